"""SIFT descriptors as pictures of characters: 4 x 4 cells of 8 gradient directions each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table
from rich.text import Text

from velo.types import AnyArray

__all__ = ["descriptor", "descriptor_row"]

#: The direction of each of the eight bins, from 0 degrees on.
_ARROWS = "→↗↑↖←↙↓↘"


def descriptor(vector: AnyArray) -> Text:
    """A descriptor of 128 elements as four lines: each cell's strongest direction, over its heat."""
    cells = np.asarray(vector, np.float64).reshape(4, 4, 8)
    strongest = cells.argmax(axis=2)
    energy = np.sqrt((cells**2).sum(axis=2))
    heat = energy / max(float(energy.max()), 1e-9)
    picture = Text()
    for row in range(4):
        for column in range(4):
            warmth = float(heat[row, column])
            arrow = _ARROWS[int(strongest[row, column])] if cells[row, column].max() > 0 else "·"
            ink = "black" if warmth > 0.6 else "white"
            picture.append(f"{arrow} ", style=f"{ink} on {_color(warmth)}")
        if row < 3:
            picture.append("\n")
    return picture


def _color(warmth: float) -> str:
    """From dark blue through red to yellow."""
    stops = np.array([[16, 18, 48], [110, 28, 90], [214, 74, 52], [252, 214, 90]], np.float64)
    place = warmth * (len(stops) - 1)
    low = min(int(place), len(stops) - 2)
    red, green, blue = stops[low] + (stops[low + 1] - stops[low]) * (place - low)
    return f"rgb({red:.0f},{green:.0f},{blue:.0f})"


def descriptor_row(vectors: Sequence[AnyArray], names: Sequence[str]) -> Table:
    """Descriptors side by side under their names."""
    row = Table.grid(padding=(0, 3))
    for _ in vectors:
        row.add_column(no_wrap=True)
    row.add_row(*(Text(name, style="dim") for name in names))
    row.add_row(*(descriptor(vector) for vector in vectors))
    return row
