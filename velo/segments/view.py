"""The rows of one folder at one moment: its segments with their deleted rows, and the delta."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from velo.filters.compiler import FilterCompiler
from velo.filters.native import NativeFilter
from velo.folder.ids import Ids
from velo.segments.chunked import ChunkedColumns, ChunkedCompiler, ChunkedIds, Stretch
from velo.segments.delta import DeltaRows, NativeView
from velo.segments.rows import STRINGS, RowShape
from velo.segments.segment import Segment
from velo.types import AnyArray

#: Filters of callers that are kept together with the rows that live.
_KEPT: Final = 64
#: In the place of a segment's number: rows of the delta.
_DELTA: Final = 2**32 - 1


class AliveRows:
    """The rows of a segment that live."""

    def __init__(self, rows: NativeFilter | None) -> None:
        self.rows = rows
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, NativeFilter] = OrderedDict()

    def applied(self, filters: Sequence[NativeFilter | None]) -> list[NativeFilter | None]:
        """The filters of a search, restricted to living rows."""
        if self.rows is None:
            return list(filters)
        return [self.rows if one is None else self._restricted(one) for one in filters or [None]]

    def _restricted(self, inner: NativeFilter) -> NativeFilter:
        assert self.rows is not None
        with self._lock:
            known = self._kept.get(id(inner))
            if known is not None:
                self._kept.move_to_end(id(inner))
                return known
        made = inner.within(self.rows)
        with self._lock:
            # What is kept keeps the inner filter, so that no other one takes its place in memory.
            self._kept[id(inner)] = made
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made

    @property
    def memory_bytes(self) -> int:
        """Memory of the rows and of the filters kept with them."""
        if self.rows is None:
            return 0
        with self._lock:
            kept = list(self._kept.values())
        return self.rows.memory_bytes + sum(one.memory_bytes for one in kept)


class View:
    """A snapshot of the segments, the delta and the deleted rows of one folder.

    `stretches`: The segments, then the delta; one without rows if the view has neither.
    """

    def __init__(
        self, native: NativeView, segments: tuple[Segment, ...], delta: list[DeltaRows], shape: RowShape
    ) -> None:
        self.native = native
        self.segments = segments
        self.delta = delta
        self.shape = shape
        self.layout, self.sequence = native.layout, native.sequence
        self.alive = [AliveRows(native.rows(segment, one.n)) for segment, one in enumerate(segments)]
        self.delta_alive = native.alive()
        self.n = sum(one.n for one in segments) + native.delta_rows
        self.ids: Ids
        self.filters: FilterCompiler
        self.metadata: Any
        wide = [shape.columns.of_segment(one) for one in segments]
        self.stretches: list[Stretch] = [*wide, *delta] or [DeltaRows(native, 0, 0, 0, shape.columns)]
        if native.is_as_built:  # masks of a caller have the order of its rows, and nothing has to be joined
            self.ids, self.filters, self.metadata = wide[0].ids, wide[0].filters, wide[0].metadata
            return
        self.ids = ChunkedIds(self.stretches, self.id_kind, self.alive_by_stretch())
        self.metadata = None if shape.schema is None else ChunkedColumns(self.stretches)
        self.filters = ChunkedCompiler(self.stretches, self.metadata)

    @property
    def id_kind(self) -> str | None:
        """``"int64"`` or ``"string"``; None while the index has no rows."""
        kind = self.shape.id_kind
        return None if kind < 0 else "string" if kind == STRINGS else "int64"

    def alive_by_stretch(self) -> list[Callable[[AnyArray], AnyArray] | None]:
        """For each stretch a function from its rows to whether they live; None: all do."""
        found: list[Callable[[AnyArray], AnyArray] | None] = [
            None if one.rows is None else one.rows.check for one in self.alive
        ]
        start = 0
        for stretch in self.stretches[len(self.segments) :]:
            found.append(self.delta_alive[start : start + stretch.n].__getitem__)
            start += stretch.n
        return found

    @property
    def largest(self) -> Segment | None:
        """The part of the most rows."""
        return max(self.segments, key=lambda segment: segment.n, default=None)

    @property
    def live_count(self) -> int:
        """Living rows."""
        segments = sum(
            segment.n if one.rows is None else one.rows.count()
            for segment, one in zip(self.segments, self.alive, strict=True)
        )
        return segments + int(self.delta_alive.sum())

    def alive_rows(self) -> AnyArray:
        """Of each vertex whether it lives."""
        segments = [
            np.ones(segment.n, bool) if one.rows is None else one.rows.matches()
            for segment, one in zip(self.segments, self.alive, strict=True)
        ]
        return np.concatenate([np.zeros(0, bool), *segments, self.delta_alive])

    def passing(self, condition: Any) -> AnyArray:
        """The vertices that live and pass a filter, ascending."""
        matches = self.filters.compile(condition).matches()
        vertices: AnyArray = np.flatnonzero(matches & self.alive_rows())
        return vertices

    def are_alive(self, vertices: AnyArray) -> AnyArray:
        alive = np.ones(len(vertices), bool)
        segments, rows = self.places(vertices)
        for segment in np.unique(segments):
            inside = np.flatnonzero(segments == segment)
            if segment == _DELTA:
                alive[inside] = self.delta_alive[rows[inside]]
            elif (living := self.alive[segment].rows) is not None:
                alive[inside] = living.check(rows[inside])
        return alive

    def places(self, vertices: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Segment and row in it of each vertex; the delta has a number of its own."""
        starts = np.cumsum([0, *(one.n for one in self.segments)])
        at = np.searchsorted(starts, vertices, side="right") - 1
        rows = (vertices - starts[at]).astype(np.uint32)
        segments = np.where(at == len(self.segments), _DELTA, at).astype(np.uint32)
        return segments, rows

    def vectors(self, vertices: AnyArray, *, decoded: bool = False) -> AnyArray:
        """The vectors of some vertices as they were given, in float32."""
        out = np.empty((len(vertices), self.shape.dim), np.float32)
        segments, rows = self.places(vertices)
        for segment in np.unique(segments):
            inside = np.flatnonzero(segments == segment)
            if segment == _DELTA:
                out[inside] = self.delta_vectors(rows[inside])
            else:
                one = self.segments[segment]
                read = one.decoded if decoded and not one.stores_vectors else one.vectors
                out[inside] = read(rows[inside])
        return out

    def delta_vectors(self, rows: AnyArray) -> AnyArray:
        out = np.empty((len(rows), self.shape.dim), self.shape.dtype)
        first = 0
        for stretch in self.delta:
            inside = np.flatnonzero((rows >= first) & (rows < first + stretch.n))
            if len(inside) > 0:
                vectors = np.empty((len(inside), self.shape.dim), self.shape.dtype)
                stretch.vectors_into(vectors, rows[inside] - first)
                out[inside] = vectors
            first += stretch.n
        return out

    @property
    def memory_bytes(self) -> int:
        """Memory of deleted rows and of filters over living ones."""
        delta = sum(stretch.memory_bytes for stretch in self.delta)
        return sum(one.memory_bytes for one in self.alive) + len(self.delta_alive) + delta
