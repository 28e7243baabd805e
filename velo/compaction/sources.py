"""The sources of a new segment: other segments and the delta, with their vectors and columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo.folder.flow import ColumnSource, StoredRows
from velo.formats.source import Source
from velo.options import METRIC_CODES
from velo.segments.chunked import ChunkedColumns
from velo.segments.segment import Segment
from velo.segments.view import View
from velo.types import AnyArray

__all__ = ["Sources"]

#: Rows that are read at a time, in bytes of float32. Each thread that merges keeps some times that much,
#: which no budget counts: four times as many took 17 MiB more of a process with three of them.
_READ_BYTES: Final = 1 << 20
#: Of a vertex whose row no new segment has, as velo.h spells it.
_GONE: Final = np.iinfo(np.uint32).max


class SourceRows(Source):
    """The vectors of some vertices of a view, ascending; decoded from codes if their segment stores no
    vectors.

    Nothing is copied to a file: a build reads them a few times, page after page.
    """

    def __init__(self, view: View, vertices: AnyArray, dtype: np.dtype[Any]) -> None:
        self._view = view
        self._dtype = dtype
        segments = sum(segment.n for segment in view.segments)
        self._stored = vertices[: np.searchsorted(vertices, segments)]
        self._added = vertices[len(self._stored) :] - segments

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        return len(self._stored) + len(self._added), self._view.shape.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Their element type."""
        return self._dtype

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield the rows ``start`` to ``stop``: those of segments, then those of the delta."""
        step = min(rows, max(1, _READ_BYTES // (4 * self.shape[1])))
        stored = len(self._stored)
        for row in range(start, min(stop, stored), step):
            vertices = self._stored[row : min(row + step, stop, stored)]
            yield self._view.vectors(vertices, decoded=True).astype(self.dtype, copy=False)
        for row in range(max(start, stored), stop, step):
            added = self._view.delta_vectors(self._added[row - stored : min(row + step, stop) - stored])
            yield added.astype(self.dtype, copy=False)


class SourceColumns(ColumnSource):
    """The columns of some vertices of a view, ascending.

    Nothing is read before the segment is placed, and then some rows at a time.
    """

    def __init__(self, columns: Any, vertices: AnyArray) -> None:
        self._columns = columns
        self._vertices = vertices

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self._vertices)

    @property
    def schema(self) -> Any:
        """The columns as they were given."""
        return self._columns.schema

    def stored(self, name: str) -> list[StoredRows]:
        """The stored pieces of a column, store after store."""
        stores = self._columns.stores if isinstance(self._columns, ChunkedColumns) else [self._columns]
        starts = np.cumsum([0, *(store.row_count for store in stores)])
        bounds = np.searchsorted(self._vertices, starts)
        return [
            self._rows_of(store, name, int(start), int(first), int(last))
            for store, start, first, last in zip(stores, starts, bounds, bounds[1:], strict=False)
            if last > first
        ]

    def _rows_of(self, store: Any, name: str, start: int, first: int, last: int) -> StoredRows:
        """Rows `first` to `last`, stored in one store whose first row is the vertex `start`."""
        return StoredRows(
            first,
            last,
            store.filter_columns[name].dictionary,
            store.stored_row_bytes(name),
            lambda rows: store.stored_rows(name, self._vertices[first + rows.astype(np.int64)] - start),
        )

    def storage(self, name: str, rows: AnyArray) -> Any:
        """A column of some rows in its storage type."""
        return self._columns.storage_rows(self._vertices[rows], [name]).column(0)

    def given(self, name: str) -> Any:
        """A table of one column with all rows, in the type it was given in."""
        return self._columns.rows(self._vertices, [name])


@dataclass(frozen=True)
class Sources:
    """The sources of a new segment: some of the segments of a view, its delta, or both.

    Attributes
    ----------
    names : list of str
        The folder of each segment of the view.
    segments : list of int
        The segments that it replaces, ascending.
    vertices : ndarray
        Its rows, ascending.
    with_delta : bool
        It replaces the delta.
    """

    view: View
    names: list[str]
    segments: list[int]
    vertices: AnyArray
    with_delta: bool

    @classmethod
    def alive(cls, view: View, names: list[str], segments: list[int], *, with_delta: bool) -> Sources:
        """The rows of some segments of a view that are not deleted, and those of its delta."""
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        taken = np.zeros(view.n, bool)
        for segment in segments:
            rows = view.alive[segment].rows
            taken[starts[segment] : starts[segment + 1]] = True if rows is None else rows.matches()
        if with_delta:
            taken[starts[-1] :] = view.delta_alive
        return cls(view, names, segments, np.flatnonzero(taken), with_delta and view.native.delta_rows > 0)

    @property
    def count(self) -> int:
        """The number of its rows."""
        return len(self.vertices)

    @property
    def of_rows(self) -> int:
        """Rows of the whole index."""
        return self.view.n

    @property
    def takes_segments(self) -> bool:
        """Whether it takes the place of segments."""
        return bool(self.segments)

    @property
    def like(self) -> Segment | None:
        """The largest part of the view, whose bits and degree the new one gets."""
        return self.view.largest

    def vectors(self) -> SourceRows:
        """The rows' vectors."""
        return SourceRows(self.view, self.vertices, self.dtype)

    def ids(self) -> Any:
        """The rows' ids."""
        return self.view.ids.of(self.vertices)

    def metadata(self) -> SourceColumns | None:
        """The rows' columns, or None."""
        return None if self.view.metadata is None else SourceColumns(self.view.metadata, self.vertices)

    @cached_property
    def coded(self) -> list[int]:
        """The segments without stored vectors from which rows are taken: their codes are decoded."""
        numbers = [number for number in self.segments if not self.view.segments[number].stores_vectors]
        return [number for number in numbers if (own := self._rows_of(number)[1]).stop > own.start]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the rows: decoded directions (cosine) are not integers."""
        segments = self.view.segments
        is_direction = any(segments[number].metric == METRIC_CODES["cosine"] for number in self.coded)
        own = self.view.shape.dtype
        return np.dtype(np.float32) if is_direction and own.kind != "f" else own

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """The calibration of the largest segment; if only codes are left, of one that has only codes."""
        coded = [self.view.segments[number] for number in self.coded]
        of = max(coded, key=lambda segment: segment.n) if coded else self.view.largest
        return None if of is None else of.calibration

    def warm_start(self, folder: Path) -> tuple[Path, AnyArray] | None:
        """The largest of these segments, and the row in the new one of each of its vertices."""
        if not self.segments:
            return None
        number = max(self.segments, key=lambda segment: self.view.segments[segment].n)
        first, own = self._rows_of(number)
        rows = np.full(self.view.segments[number].n, _GONE, np.uint32)
        rows[self.vertices[own] - first] = np.arange(own.start, own.stop)
        return folder / self.names[number], rows

    @property
    def of_delta(self) -> Sources:
        """The rows of the delta alone."""
        first = sum(segment.n for segment in self.view.segments)
        return replace(self, segments=[], vertices=self.vertices[np.searchsorted(self.vertices, first) :])

    def moved(self, view: View, names: list[str], segment: str | None) -> Sources:
        """The same rows in a later view: those of the delta became this segment, if there were any."""
        added = len(self.of_delta.vertices)
        stored = self.vertices[: len(self.vertices) - added]
        if segment is None:
            return Sources(view, names, self.segments, stored, with_delta=False)
        number = names.index(segment)
        first = sum(segment.n for segment in view.segments[:number])
        return Sources(
            view,
            names,
            [*self.segments, number],
            np.concatenate([stored, np.arange(first, first + added)]),
            with_delta=False,
        )

    def taken(self) -> AnyArray:
        """Of each of these segments which of its rows are taken: a bit a row, in words of its own."""
        words = [np.zeros(0, np.uint64)]
        for number in self.segments:
            first, own = self._rows_of(number)
            bits = np.zeros(-(-self.view.segments[number].n // 64) * 64, bool)
            bits[self.vertices[own] - first] = True
            words.append(np.packbits(bits, bitorder="little").view(np.uint64))
        return np.concatenate(words)

    def _rows_of(self, number: int) -> tuple[int, slice]:
        """The first vertex of a segment, and where its rows are among those that are taken."""
        first = sum(segment.n for segment in self.view.segments[:number])
        start, stop = np.searchsorted(self.vertices, [first, first + self.view.segments[number].n])
        return first, slice(int(start), int(stop))
