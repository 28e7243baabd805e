"""The rows of a part that is made, read from where they are: the parts' vectors or codes, and the delta."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from velo.formats.source import Source
from velo.parts.view import View
from velo.types import AnyArray

__all__ = ["SourceRows"]

#: Rows that are read at a time, in bytes of float32. Each thread that merges keeps some times that much,
#: which no budget counts: four times as many took 17 MiB more of a process with three of them.
_READ_BYTES: Final = 1 << 20


class SourceRows(Source):
    """The vectors of some vertices; of a part that stores none, what its codes tell of them.

    Nothing is copied to a file: a build passes over them a few times, and parts are read page after page.

    Parameters
    ----------
    view : View
    vertices : ndarray
        Ascending.
    dtype : dtype
        Of the vectors.
    """

    def __init__(self, view: View, vertices: AnyArray, dtype: np.dtype[Any]) -> None:
        self._view = view
        self._dtype = dtype
        parts = sum(part.n for part in view.parts)
        self._stored = vertices[: np.searchsorted(vertices, parts)]
        self._added = vertices[len(self._stored) :] - parts

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        return len(self._stored) + len(self._added), self._view.shape.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their element type."""
        return self._dtype

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield the rows ``start`` to ``stop``: those of parts, then those of the delta."""
        step = min(rows, max(1, _READ_BYTES // (4 * self.shape[1])))
        stored = len(self._stored)
        for row in range(start, min(stop, stored), step):
            vertices = self._stored[row : min(row + step, stop, stored)]
            yield self._view.vectors(vertices, decoded=True).astype(self.dtype, copy=False)
        for row in range(max(start, stored), stop, step):
            added = self._view.delta_vectors(self._added[row - stored : min(row + step, stop) - stored])
            yield added.astype(self.dtype, copy=False)
