"""One search of a snapshot: native queries and filters, and the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from velo import _native
from velo._native.limits import native_limit
from velo.errors import CorruptIndexError, InvalidArgumentError, NotFiniteError, SearchTimeoutError, VeloError
from velo.filters.compiler import Columns
from velo.filters.native import NativeFilter
from velo.options import Effort
from velo.search.answer import QUERY_DTYPES, Answer, deadline_of, native_queries
from velo.search.prepared import Prepared
from velo.segments.chunked import ChunkedFilter
from velo.segments.rows import MAGNITUDE_MAX, not_finite
from velo.segments.segment import Segment
from velo.segments.view import AliveRows, View
from velo.types import AnyArray

__all__ = ["Delta", "Request", "Rows", "Segment"]

#: By the numbers that the library gives them.
_PAGE_FILES: Final = ("pages.bin", "vectors.bin")
#: Queries that the delta is asked at once, between two looks at the clock.
_AT_ONCE: Final = 16
#: The share of the delta's nearest rows that a search without `recall` finds.
_DELTA_RECALL: Final = 0.99


class SegmentView(NamedTuple):
    """A segment among all rows of a snapshot."""

    opened: Segment
    first: int
    alive: AliveRows
    stretch: int


class Delta(NamedTuple):
    """The delta of one folder among all rows of a snapshot."""

    view: View
    first: int
    stretches: slice


class Rows(NamedTuple):
    """The rows that a request searches."""

    dim: int
    segments: list[SegmentView]
    deltas: list[Delta]
    metadata: Columns | None


class Request(Answer):
    """One search of a snapshot: queries and filters in native form, and buffers for the answer.

    A native call takes a bounded number of segments and the delta of one folder. A request needs several
    calls only if the snapshot has more of them; their answers are merged.
    """

    __slots__ = (
        "_deadline",
        "_delta_recall",
        "dtype",
        "expected",
        "filter_count",
        "filters",
        "options",
        "pointers",
        "queries",
        "query_count",
        "query_pointer",
        "rows",
        "single",
    )

    def __init__(
        self,
        rows: Rows,
        prepared: Prepared,
        queries: Any,
        effort: Effort,
        filters: Sequence[NativeFilter | None],
        *,
        whole_delta: bool = False,
    ) -> None:
        self.queries, self.single = native_queries(queries, rows.dim)
        self.dtype = QUERY_DTYPES[self.queries.dtype]
        self.query_count = len(self.queries)
        super().__init__(self.query_count, prepared.k)
        self.rows = rows
        self.options = prepared.options
        self.expected = prepared.expected
        self.filters = filters
        if len(filters) > 1 and len(filters) != self.query_count:
            raise InvalidArgumentError(
                f"{len(filters)} filters were given for {self.query_count} queries", argument="filter"
            )
        self.query_pointer = _native.pointer("uint8_t", self.queries) if self.query_count else None
        #: Memory behind pointers in native structs.
        self.pointers: list[Any] = []
        self._deadline = deadline_of(effort.timeout_s)
        self._delta_recall = 1.0 if whole_delta else _delta_recall(effort)

    # ---- native arguments

    def calls(self) -> Iterator[tuple[Segment, Sequence[Any], Answer]]:
        """For each native call its first segment, its arguments up to the answer, and the answer.

        Each call is limited to the time that the calls before it have left.
        """
        segments = self.rows.segments
        if not segments:
            return
        filters = self._kept([one.alive.applied(self._filters_of(one.stretch)) for one in segments])
        self.filter_count = max(map(len, filters))
        most = native_limit("segments").high
        delta = self._delta(self.rows.deltas[0]) if self.rows.deltas else _native.ffi.NULL
        for start in range(0, len(segments), most):
            if start > 0:
                self.end_by_deadline()
            answer = self if start == 0 else Answer(self.query_count, self.k)
            array = self._segments(segments[start : start + most], filters[start : start + most])
            arguments = (
                array,
                len(array),
                delta,
                self.query_pointer,
                self.dtype,
                self.query_count,
                self.filter_count,
                self.options,
            )
            yield segments[start].opened, arguments, answer
            delta = _native.ffi.NULL  # the first call searches it

    def _filters_of(self, stretch: int) -> list[NativeFilter | None]:
        """The filters over the rows of one stretch."""
        return [one.segments[stretch] if isinstance(one, ChunkedFilter) else one for one in self.filters]

    def _segments(
        self, segments: Sequence[SegmentView], filters: Sequence[Sequence[NativeFilter | None]]
    ) -> Any:
        """A ``velo_segment`` for each segment."""
        ffi = _native.ffi
        array = ffi.new("velo_segment[]", len(segments))
        for native, segment, compiled in zip(array, segments, filters, strict=True):
            native.index, native.first = segment.opened.handle, segment.first
            if compiled:
                handles = [ffi.NULL if one is None else one.handle for one in compiled]
                if len(handles) < self.filter_count:
                    handles *= self.filter_count
                native.filters = self._kept(ffi.new("velo_filter *[]", handles))
        return array

    def _delta(self, delta: Delta) -> Any:
        """A ``velo_delta``."""
        masks = [
            ChunkedFilter(one.segments[delta.stretches]).matches() if isinstance(one, ChunkedFilter) else None
            for one in self.filters
        ]
        if all(mask is None for mask in masks):
            masks = []
        native, keep = delta.view.native.asked(
            delta.first, self._delta_recall, int(self.options.list_size), masks
        )
        self._kept(keep)
        return self._kept(native)

    def _kept(self, pointer: Any) -> Any:
        """Keep alive what native structs point to."""
        self.pointers.append(pointer)
        return pointer

    def end_by_deadline(self) -> None:
        """Limit the next native call to the rest of the timeout."""
        if self._deadline is None:
            return
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise SearchTimeoutError("the search took longer than its timeout_s")
        options = _native.ffi.new("velo_search_options *", self.options[0])
        options.timeout_us = max(1, int(left_s * 1e6))
        self.options = options

    # ---- deltas that no native call took

    @property
    def further_deltas(self) -> Sequence[Delta]:
        """The deltas to search beside the native calls."""
        return self.rows.deltas[1:] if self.rows.segments else self.rows.deltas

    def search_further_deltas(self) -> list[Answer]:
        """The answers over :attr:`further_deltas`."""
        if not self.further_deltas:
            return []
        with np.errstate(over="ignore"):
            queries = self.queries.astype(np.float32, copy=False)
        row = not_finite(queries)
        if row is not None:
            raise NotFiniteError(
                f"query {row} holds NaN, infinity or a magnitude above {MAGNITUDE_MAX}",
                argument="queries",
                row=row,
            )
        return [self._search_delta(one, queries) for one in self.further_deltas]

    def _search_delta(self, delta: Delta, queries: AnyArray) -> Answer:
        answer = Answer(self.query_count, self.k)
        native = self._delta(delta)
        # A mask each is for all queries together; else the clock is read between blocks of queries.
        at_once = self.query_count if native.mask_count > 1 else _AT_ONCE
        for at in range(0, self.query_count, at_once):
            self.end_by_deadline()
            some = slice(at, at + at_once)
            rows, near, counts, looks = delta.view.native.search(native, queries[some], self.k)
            answer.vertices[some] = np.where(rows < 0, -1, rows + delta.first)
            answer.distances[some] = near
            answer.narrow[0, some] = counts
            answer.stats()["estimates"][some] = looks
        return answer

    def merge(self, answers: Sequence[Answer]) -> Request:
        """Take the nearest of all answers; without any nothing was found."""
        if not answers:
            self.vertices[:], self.distances[:] = -1, np.inf
        elif len(answers) > 1 or answers[0] is not self:
            self.take_nearest(answers)
        return self

    # ---- failures

    def failure(self, status: int, row: int | None = None) -> VeloError:
        """The exception for a call that ended with `status`, from the library's record for each query."""
        if row is None:
            failed = np.flatnonzero(self.statuses == status)
            row = int(failed[0]) if len(failed) else None
        page = int(self.error_pages[row]) if row is not None and self.error_pages[row] >= 0 else None
        file = None if page is None else _PAGE_FILES[self.error_files[row]]
        error = _native.error_of(status, file=file, page=page, row=row)
        if page is not None:
            damaged = isinstance(error, CorruptIndexError)
            what = f"page {page} of {file} is damaged"
            error.message = what if damaged else f"the device failed to read page {page} of {file}"
        return error


def _delta_recall(effort: Effort) -> float:
    """The share of the delta's nearest rows to find; 1 measures every row."""
    if effort.exact or (effort.tuning is not None and effort.tuning.filter_plan == "scan"):
        return 1.0
    return _DELTA_RECALL if effort.recall is None else float(effort.recall)
