"""Pictures of a report: panels of lines over the same x, one color for each system."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Points = Sequence[tuple[float, float]]

#: The color and mark of each system in every picture. Nothing else has these colors.
STYLES = {
    "velo": ("#0b5cad", "o"),
    "hnswlib": ("#c2410c", "s"),
    "usearch": ("#ca8a04", "^"),
    "diskannpy": ("#15803d", "D"),
    "rabitqlib": ("#be185d", "P"),
    "zvec": ("#7e22ce", "v"),
    "lancedb": ("#65a30d", ">"),
    "numpy": ("#57534e", "X"),
}
#: Several lines of velo are shades of its color with different marks and dashes.
SHADES = ("#0b5cad", "#5ea9e6", "#08306b", "#22b8cf", "#7c93b5", "#4f46e5", "#a5c8ec", "#0e7490")
MARKS = "osD^vXPh"
DASHES = ("-", "--", "-.", ":")
#: Lines without a place in the legend.
PALE = "#cbd5e1"
#: Levels that are asked for, and grids.
ASKED, GRID = "#111111", "#d6d3d1"
#: Events by kind.
MOMENTS = ("#a8a29e", "#fca5a5", "#fcd34d", "#86efac", "#67e8f9", "#a5b4fc", "#f0abfc", "#78716c")
RECALL_TICKS = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)


@dataclass(frozen=True)
class Panel:
    """Lines over x: points by label. A label that begins with ``_`` is pale and not in the legend."""

    #: The name of the axis.
    y: str
    series: Mapping[str, Points]
    #: A logarithmic y; lines between the points; marks at the points.
    log: bool = False
    joined: bool = True
    marked: bool = True
    #: The beginning of a linear y.
    low: float = 0.0
    #: Horizontal and vertical lines by label.
    levels: Mapping[str, float] = field(default_factory=dict)
    moments: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """Panels one above the other over the same x; ``name`` is the end of the file's name."""

    name: str
    title: str
    panels: Sequence[Panel]
    x: str = "recall@10"
    scale: Literal["linear", "log", "share", "recall"] = "linear"

    def file(self, page: str) -> str:
        return f"{page}-{self.name}.png" if self.name else f"{page}.png"

    @property
    def is_empty(self) -> bool:
        return not any(points for panel in self.panels for points in panel.series.values())


@dataclass(frozen=True)
class Style:
    """The look of a label."""

    color: str
    mark: str
    dash: str = "-"


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def system_of(label: str) -> str:
    """The system that a label begins with; velo where it names none."""
    first = re.split(r"[ ,:]", label, maxsplit=1)[0].lower()
    return first if first in STYLES else "velo"


def styled(labels: Sequence[str]) -> dict[str, Style]:
    """The look of each label: a system in its color, several of velo in shades of velo's."""
    styles: dict[str, Style] = {}
    mine = 0
    for label in dict.fromkeys(labels):
        if label.startswith("_"):
            styles[label] = Style(PALE, "")
        elif (system := system_of(label)) != "velo":
            styles[label] = Style(*STYLES[system])
        else:
            again = mine // len(SHADES)  # shades come again with other dashes
            dash = DASHES[(mine // 2 + again) % len(DASHES)]
            styles[label] = Style(SHADES[mine % len(SHADES)], MARKS[mine % len(MARKS)], dash)
            mine += 1
    return styles


def draw(picture: Picture, path: Path) -> None:
    """Write the picture to ``path`` as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    count = len(picture.panels)
    size = (7.2, 4.6 if count == 1 else 2.6 * count)
    drawn, grid = plt.subplots(
        count, 1, figsize=size, dpi=130, layout="constrained", sharex=True, squeeze=False
    )
    styles = styled([label for panel in picture.panels for label in panel.series])
    shown: dict[str, Any] = {}
    for axes, panel in zip(grid[:, 0], picture.panels, strict=True):
        axes.set_axisbelow(True)
        axes.grid(True, which="major", color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        _draw_panel(axes, panel, styles, picture.scale)
        for mark, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, mark)
    _scale_x(grid[-1, 0], picture.scale)
    grid[0, 0].set_title(picture.title, fontsize=11, loc="left")
    grid[-1, 0].set_xlabel(picture.x)
    if shown:
        columns = 1 if len(shown) < 9 and count < 3 else 3
        place: Any = "outside right center" if columns == 1 else "outside lower left"
        drawn.legend(shown.values(), shown.keys(), frameon=False, fontsize=8, ncols=columns, loc=place)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)
    plt.close(drawn)


def _draw_panel(axes: Any, panel: Panel, styles: Mapping[str, Style], scale: str) -> None:
    for label, points in panel.series.items():
        style = styles[label]
        ordered = sorted(points)
        if scale == "recall":
            ordered = [(max(1 - x, 5e-4), y) for x, y in ordered if x >= RECALL_TICKS[0]]
        axes.plot(
            [x for x, _ in ordered],
            [y for _, y in ordered],
            color=style.color,
            marker=style.mark if panel.marked or not panel.joined else "",
            linestyle=style.dash if panel.joined else "none",
            markersize=4 if panel.joined else 7,
            linewidth=1.4 if style.mark else 0.8,
            label=label,
        )
    for number, (label, places) in enumerate(panel.moments.items()):
        for at, place in enumerate(places):
            color = MOMENTS[number % len(MOMENTS)]
            axes.axvline(place, color=color, linewidth=1.0, label=label if at == 0 else None)
    for label, level in panel.levels.items():
        axes.axhline(level, color=ASKED, linewidth=1.0, linestyle="--", label=label)
    axes.set_ylabel(panel.y)
    if not panel.joined:
        axes.margins(0.15)
    if panel.log:
        axes.set_yscale("log")
        _plain_log(axes.yaxis)
    else:
        axes.set_ylim(bottom=panel.low)


def _scale_x(axes: Any, scale: str) -> None:
    if scale == "recall":
        axes.set_xscale("log")
        axes.set_xticks([1 - tick for tick in RECALL_TICKS], [f"{tick:g}" for tick in RECALL_TICKS])
        axes.set_xticks([], minor=True)
        axes.set_xlim(1 - RECALL_TICKS[0], 4e-4)
    elif scale in ("log", "share"):
        axes.set_xscale("log")
        _plain_log(axes.xaxis, "%" if scale == "share" else "")


def _plain_log(axis: Any, unit: str = "") -> None:
    """Ticks at powers of ten and their 2 and 5 folds, as plain numbers."""
    from matplotlib import ticker

    scale = 100 if unit else 1
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value * scale:,.10g}{unit}"))
    axis.set_minor_formatter(ticker.NullFormatter())
