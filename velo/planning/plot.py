"""Queries a second over recall, as a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from velo.errors import InvalidArgumentError, MissingDependencyError
from velo.folder.replace import os_failure
from velo.types import PathLike

__all__ = ["check_plot", "draw_curves"]


def check_plot(to: PathLike) -> None:
    """Whether a picture can be drawn into this file: who measures for a minute asks before.

    Raises
    ------
    MissingDependencyError, InvalidArgumentError
    """
    canvas = _new_figure().canvas
    formats = canvas.get_supported_filetypes()
    suffix = Path(to).suffix.removeprefix(".").lower()
    if suffix not in formats:
        raise InvalidArgumentError(
            f"{to}: a picture's file ends in one of {', '.join(f'.{name}' for name in sorted(formats))}",
            argument="to",
        )
    if not Path(to).absolute().parent.is_dir():
        raise InvalidArgumentError(f"{to}: there is no such folder", argument="to")


def draw_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    to: PathLike | Any = None,
    *,
    title: str,
    k: int,
    recall: float,
) -> Any:
    """Draw a line a curve, the first one thick, and a mark at the recall that was asked for.

    Parameters
    ----------
    curves : mapping of str to sequence of (recall, queries a second)
    to : path or matplotlib.axes.Axes, optional
    title : str
    k : int
    recall : float

    Returns
    -------
    matplotlib.axes.Axes
    """
    path = to if isinstance(to, str | os.PathLike) else None
    if path is not None:
        check_plot(path)
    axes: Any = _new_figure().subplots() if to is None or path is not None else to
    for number, (name, points) in enumerate(curves.items()):
        axes.plot(*zip(*points, strict=True), marker="o", linewidth=1 if number else 2.5, label=name)
    axes.axvline(recall, color="gray", linestyle=":", linewidth=1)
    axes.set_yscale("log", subs=())
    axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel(f"recall@{k}")
    axes.set_ylabel("queries a second")
    axes.set_title(title)
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend()
    if path is not None:
        try:
            axes.figure.savefig(path)
        except OSError as error:
            raise os_failure(error, str(path)) from error
    return axes


def _new_figure() -> Any:
    """Not by pyplot: it would keep the figure, and ask for a screen."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("a picture needs matplotlib: pip install 'veloann[plot]'") from error
    return Figure(figsize=(7, 4.5), dpi=130, layout="constrained")
