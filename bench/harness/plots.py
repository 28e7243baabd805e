"""Curves as pictures: what a reader compares by eye before reading a table."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.curves import RECALL

Row = dict[str, Any]

#: One color and mark a system, whichever picture it is in. Nothing else in a picture has these colors.
STYLES = {
    "velo": ("#0b5cad", "o"),
    "hnswlib": ("#c2410c", "s"),
    "usearch": ("#ca8a04", "^"),
    "diskannpy": ("#15803d", "D"),
    "rabitqlib": ("#be185d", "P"),
    "zvec": ("#7e22ce", "v"),
    "diskannrust": ("#4d7c0f", "d"),
    "alayalite": ("#7c4a21", "<"),
    "lancedb": ("#65a30d", ">"),
    "qdrantedge": ("#db2777", "h"),
    "faiss": ("#a16207", "p"),
    "numpy": ("#57534e", "X"),
}
#: Several lines of velo are shades of its color, told apart by marks and dashes, too; the first is velo.
SHADES = ("#0b5cad", "#5ea9e6", "#08306b", "#22b8cf", "#7c93b5", "#4f46e5", "#a5c8ec", "#0e7490")
MARKS = "osD^vXPh"
DASHES = ("-", "--", "-.", ":")
#: What should not be: what falls short, and errors that nothing announced.
WRONG = "#b91c1c"
#: What is no system: a line that asks or promises, and grids.
ASKED, GRID = "#111111", "#d6d3d1"
#: What happens at a moment, by kind: paler than any system.
MOMENTS = ("#a8a29e", "#fca5a5", "#fcd34d", "#86efac", "#67e8f9", "#a5b4fc", "#f0abfc", "#78716c")


@dataclass(frozen=True)
class Style:
    """How a label is drawn."""

    color: str
    mark: str
    dash: str = "-"


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def figure() -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(figsize=(7.2, 4.6), dpi=130, layout="constrained")
    axes.set_axisbelow(True)
    axes.grid(True, which="major", color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return drawn, axes


def stack(count: int) -> tuple[Any, Any]:
    """Panels one above the other over the same x."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, panels = plt.subplots(
        count, 1, figsize=(7.2, 2.6 * count), dpi=130, layout="constrained", sharex=True
    )
    for axes in panels:
        axes.set_axisbelow(True)
        axes.grid(True, which="major", color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    return drawn, panels


def save_stack(drawn: Any, panels: Any, path: Path, *, title: str, x: str) -> None:
    """With one legend, of all that any panel shows."""
    from matplotlib import pyplot as plt

    shown: dict[str, Any] = {}
    for axes in panels:
        for mark, label in zip(*axes.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, mark)
    panels[0].set_title(title, fontsize=11, loc="left")
    panels[-1].set_xlabel(x)
    drawn.legend(shown.values(), shown.keys(), frameon=False, fontsize=8, ncols=3, loc="outside lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)
    plt.close(drawn)


def plain_log(axis: Any) -> None:
    """Powers of ten and their 2 and 5 folds, as numbers people write."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def save(drawn: Any, axes: Any, path: Path, *, title: str, x: str, y: str, outside: bool = True) -> None:
    from matplotlib import pyplot as plt

    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[0]:
        place = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if outside else {"loc": "best"}
        axes.legend(frameon=False, fontsize=8, **place)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)
    plt.close(drawn)


def system_of(label: str) -> str:
    """The system that a label begins with; velo, where it names none."""
    first = re.split(r"[ ,:]", label, maxsplit=1)[0].lower()
    return first if first in STYLES else "velo"


def styled(labels: Sequence[str], systems: Sequence[str] | None = None) -> dict[str, Style]:
    """How each label is drawn: a system in its color, several of velo in shades of velo's."""
    styles, mine = {}, 0
    for label, system in zip(labels, systems or [system_of(label) for label in labels], strict=True):
        if system == "velo":
            styles[label] = shade(mine)
            mine += 1
        else:
            styles[label] = Style(*STYLES.get(system, (ASKED, ".")))
    return styles


def shade(number: int) -> Style:
    """How velo's line of that number is drawn."""
    again = number // len(SHADES)  # shades come again with other dashes
    return Style(
        SHADES[number % len(SHADES)], MARKS[number % len(MARKS)], DASHES[(number // 2 + again) % len(DASHES)]
    )


def against_recall(
    rows_by_label: Mapping[str, Sequence[Row]],
    key: str,
    path: Path,
    *,
    title: str,
    y: str,
    low: float = 0.8,
    scale: float = 1.0,
    log: bool = True,
) -> None:
    """One line a label: ``key`` over recall, from ``low`` on, recall stretched towards 1."""
    shown_systems = {
        label: sorted((row for row in rows if row.get(key) is not None), key=lambda row: row[RECALL])
        for label, rows in rows_by_label.items()
    }
    shown_systems = {label: rows for label, rows in shown_systems.items() if rows}
    styles = styled(list(shown_systems), [rows[0].get("system", "velo") for rows in shown_systems.values()])
    drawn, axes = figure()
    for label, rows in shown_systems.items():
        visible = [row for row in rows if row[RECALL] >= low]
        axes.plot(
            [max(1 - row[RECALL], 5e-4) for row in visible],
            [row[key] * scale for row in visible],
            color=styles[label].color,
            marker=styles[label].mark,
            linestyle=styles[label].dash,
            markersize=4,
            linewidth=1.4,
            label=label,
        )
    axes.set_xscale("log")
    ticks = [tick for tick in (0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999) if tick >= low]
    axes.set_xticks([1 - tick for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(1 - low, 4e-4)
    if log:
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    save(drawn, axes, path, title=title, x="recall@10", y=y)


def scatter(
    points: Mapping[str, tuple[str, float, float]], path: Path, *, title: str, x: str, y: str
) -> None:
    """One point a label: (system, x, y), each with its name beside it."""
    drawn, axes = figure()
    for system, across, up in points.values():
        color, mark = STYLES.get(system, (ASKED, "."))
        axes.plot([across], [up], color=color, marker=mark, markersize=7, linestyle="none")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0.25, y=0.15)
    plain_log(axes.xaxis)
    plain_log(axes.yaxis)
    _name(drawn, axes, {label: (across, up) for label, (_, across, up) in points.items()})
    save(drawn, axes, path, title=title, x=x, y=y)


def _name(drawn: Any, axes: Any, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each label beside its point, at the first place that covers no mark and no other label."""
    from matplotlib.transforms import Bbox

    drawn.canvas.draw()  # only now is known where a point lies
    radius = 6.0
    places = axes.transData.transform(list(points.values()))
    taken = [Bbox.from_extents(x - radius, y - radius, x + radius, y + radius) for x, y in places]
    for label, point in points.items():
        for across, side in (("left", 7), ("right", -7), ("center", 0)):
            for up, height in (("bottom", 4), ("top", -4), ("bottom", 12), ("top", -12)):
                name = axes.annotate(
                    label,
                    point,
                    xytext=(side, height),
                    textcoords="offset points",
                    fontsize=8,
                    ha=across,
                    va=up,
                )
                extent = name.get_window_extent().padded(4)
                if not any(extent.overlaps(other) for other in taken):
                    break
                name.remove()
            else:
                continue
            taken.append(extent)
            break
        else:
            axes.annotate(label, point, xytext=(7, 4), textcoords="offset points", fontsize=8)


def bars(
    labels: Sequence[str], values: Sequence[float], path: Path, *, title: str, y: str, log: bool = False
) -> None:
    drawn, axes = figure()
    drawn_bars = axes.bar(range(len(labels)), values, color=SHADES[0], width=0.65)
    axes.bar_label(drawn_bars, labels=[f"{value:,.0f}" for value in values], fontsize=8, padding=2)
    axes.set_xticks(range(len(labels)), labels, rotation=25, ha="right", fontsize=8)
    axes.grid(visible=False, axis="x")
    if log:
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    save(drawn, axes, path, title=title, x="", y=y)


def asked_and_got(
    states: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], path: Path, *, title: str
) -> None:
    """A panel a state, a line a set through its (asked, got); those that fall short bear their names."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, panels = plt.subplots(
        1,
        len(states),
        figsize=(5.4 * len(states), 5.4),
        dpi=130,
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for axes, (state, sets) in zip(panels[0], states.items(), strict=True):
        recalls = sorted({point[0] for points in sets.values() for point in points})
        places = {recall: place for place, recall in enumerate(recalls)}
        axes.set_axisbelow(True)
        axes.grid(True, color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.plot(range(len(recalls)), recalls, color=ASKED, linestyle="--", linewidth=1.2, label="as asked")
        names = []
        for name, points in sets.items():
            low_points = [point for point in points if point[0] <= 0.95]
            short = any(got < recall - 0.005 for recall, got in low_points)
            color = WRONG if short else SHADES[0]
            axes.plot(
                [places[recall] for recall, _ in points],
                [got for _, got in points],
                color=color,
                marker="o",
                markersize=2.5,
                linewidth=1.0,
                alpha=0.85,
            )
            if short:
                names.append((points[-1][1], name))
        for at, (_, name) in zip(apart([value for value, _ in sorted(names)]), sorted(names), strict=True):
            axes.annotate(name, (len(recalls) - 0.95, at), fontsize=7, color=WRONG, va="center")
        axes.set_xticks(range(len(recalls)), [f"{recall:g}" for recall in recalls])
        axes.set_xlim(-0.2, len(recalls) + 0.4)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("recall asked")
        axes.set_title(" · ".join(filter(None, (title, state))), fontsize=10, loc="left")
        axes.legend(frameon=False, fontsize=8, loc="lower left")
    panels[0][0].set_ylabel("recall got")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)
    plt.close(drawn)


def apart(values: Sequence[float], gap: float = 0.024) -> list[float]:
    """Ascending places near ``values``, also ascending, at least ``gap`` from one another and below 1."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + gap) if places else value)
    top = 1.0
    for number in reversed(range(len(places))):
        places[number] = min(places[number], top)
        top = places[number] - gap
    return places


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    backwards: bool = False,
    dots: bool = True,
    low: float = 0.0,
    marks: Sequence[float] = (),
    levels: Mapping[str, float] | None = None,
    ends: Mapping[str, float] | None = None,
) -> None:
    """One line a label through its (x, y) points, in the color of the system that the label begins with.

    ``marks`` are upright lines at such x, ``levels`` level ones at such y, and ``ends`` a hollow point of a
    label beyond its last x; ``low`` is where y begins.
    """
    drawn, axes = figure()
    styles = styled(list(series))
    for label, points in series.items():
        ordered = sorted(points)
        style = styles[label]
        axes.plot(
            [point[0] for point in ordered],
            [point[1] for point in ordered],
            color=style.color,
            marker=style.mark if dots else None,
            linestyle=style.dash,
            markersize=4,
            linewidth=1.4,
            label=label,
        )
        if ends and label in ends:
            axes.plot([ordered[-1][0] + 1], [ends[label]], color=style.color, marker="o", fillstyle="none")
    for mark in marks:
        axes.axvline(mark, color=MOMENTS[-1], linewidth=1.0, linestyle=":")
    for label, level in (levels or {}).items():
        axes.axhline(level, color=ASKED, linewidth=1.0, linestyle="--", label=label)
    if log_x:
        axes.set_xscale("log")
        plain_log(axes.xaxis)
    if log_y:
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    else:
        axes.set_ylim(bottom=low)
    if backwards:
        axes.invert_xaxis()
    save(drawn, axes, path, title=title, x=x, y=y)
