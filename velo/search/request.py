"""One call of a search: its queries in the library's layout, and the arrays that the library writes into."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from velo import _native
from velo._native.limits import native_limit
from velo.errors import (
    CorruptIndexError,
    DimensionMismatchError,
    DtypeError,
    InvalidArgumentError,
    NotFiniteError,
    SearchTimeoutError,
    VeloError,
)
from velo.filters.compiler import Columns
from velo.filters.native import NativeFilter
from velo.formats.source import array_of, native_dtype
from velo.options import DTYPE_CODES, Effort
from velo.parts.many import ManyFilter
from velo.parts.part import Part
from velo.parts.rows import MAGNITUDE_MAX, not_finite
from velo.results import Expectation
from velo.types import AnyArray

if TYPE_CHECKING:
    from velo.search.snapshot import Delta, Segment, Snapshot

__all__ = [
    "COUNTERS",
    "QUERY_DTYPES",
    "Answer",
    "Counters",
    "Request",
    "deadline_of",
    "expectation_of",
    "left_s",
    "native_queries",
]

#: By the numbers that the library gives them.
_PAGE_FILES: Final = ("pages.bin", "vectors.bin")
#: Queries that the delta is asked at once, between two looks at the clock.
_AT_ONCE: Final = 16
#: The share of the delta's nearest rows that a search without `recall` finds.
_DELTA_RECALL: Final = 0.99

_NARROW: Final = (
    "counts",
    "reads",
    "rounds",
    "cache_hits",
    "estimates",
    "expanded",
    "filtered",
    "records_scored",
    "records_used",
    "shared_reads",
    "outside",
)
_WIDE: Final = ("bytes_read", "latency_us")

#: The names in ``SearchResult.stats``, in the order in which they are shown.
COUNTERS: Final = (
    "reads",
    "rounds",
    "bytes_read",
    "shared_reads",
    "cache_hits",
    "estimates",
    "expanded",
    "filtered",
    "records_scored",
    "records_used",
    "outside",
    "latency_us",
)
#: Each counter's array (True: the wide one) and its row there.
_PLACES: Final = {
    name: (name in _WIDE, (_WIDE if name in _WIDE else _NARROW).index(name)) for name in COUNTERS
}

#: The element types that the library takes as they are, and their codes.
QUERY_DTYPES: Final[dict[np.dtype[Any], int]] = {np.dtype(name): code for name, code in DTYPE_CODES.items()}


def native_queries(queries: Any, dim: int) -> tuple[AnyArray, bool]:
    """Queries as a C-contiguous array of shape (nq, dim) in a native type, and whether one came alone."""
    array = queries if isinstance(queries, np.ndarray) else array_of(queries, "queries")
    if array.dtype.kind == "O":
        raise DtypeError("queries must be numbers; their rows may differ in length", argument="queries")
    dtype = native_dtype(array.dtype, "queries")
    if array.ndim not in (1, 2) or array.shape[-1] != dim:
        expected = f"({dim},) or (nq, {dim})"
        raise DimensionMismatchError(
            f"queries have the shape {array.shape}, this index takes {expected}", argument="queries"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is reported as such
        native = np.ascontiguousarray(array, dtype)
    return native.reshape(-1, dim), array.ndim == 1


def deadline_of(timeout_s: Any) -> float | None:
    """When the last of a script's searches must have ended."""
    if timeout_s is None or isinstance(timeout_s, str) or not timeout_s > 0:
        return None
    return time.monotonic() + float(timeout_s)


def left_s(timeout_s: float | None, deadline: float | None) -> float | None:
    """What is left of a timeout, for the next search; whole milliseconds, so that options are found again."""
    if deadline is None:
        return timeout_s  # none, or one that is refused when the search is prepared
    return max(1.0, math.ceil((deadline - time.monotonic()) * 1000)) / 1000


class Counters(Mapping[str, AnyArray]):
    """The counters of some queries by name; rows of two arrays, looked up when they are asked for."""

    __slots__ = ("_narrow", "_wide")

    def __init__(self, narrow: AnyArray, wide: AnyArray) -> None:
        self._narrow = narrow
        self._wide = wide

    def __getitem__(self, name: str) -> AnyArray:
        wide, place = _PLACES[name]
        row: AnyArray = (self._wide if wide else self._narrow)[place]
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(COUNTERS)

    def __len__(self) -> int:
        return len(COUNTERS)

    def __repr__(self) -> str:
        return repr(dict(self))


def expectation_of(expected: Expectation, stats: Counters) -> Expectation:
    """What a search was expected to be like: without numbers where nobody measured queries like these.

    Parameters
    ----------
    expected : Expectation
        Of its options.
    stats : Counters
        Of its queries.
    """
    if not stats["outside"].any() or expected.recall is None or expected.recall == 1:
        return expected
    return Expectation(expected.list_size)


class Answer:
    """The arrays that the library writes into for some queries, and the struct that points to them.

    They must live until the library has answered; it fills all of them, padding included.
    """

    __slots__ = (
        "_keep",
        "distances",
        "error_files",
        "error_pages",
        "first",
        "k",
        "narrow",
        "out",
        "statuses",
        "vertices",
        "wide",
    )

    def __init__(self, count: int, k: int) -> None:
        self.k = k
        self.vertices = np.empty((count, k), np.int64)
        self.distances = np.empty((count, k), np.float32)
        self.narrow = np.zeros((len(_NARROW), count), np.uint32)
        self.wide = np.zeros((len(_WIDE), count), np.uint64)
        self.statuses = np.zeros(count, np.int32)
        self.error_pages = np.full(count, -1, np.int64)
        self.error_files = np.zeros(count, np.int32)
        if count == 0:
            return
        #: Vertices and distances of the first query.
        self.first = self.vertices[0], self.distances[0]
        out = self.out = _native.new("velo_search_out")
        pointer = _native.pointer
        narrow = pointer("uint32_t", self.narrow, writable=True)
        wide = pointer("uint64_t", self.wide, writable=True)
        statuses = pointer("int32_t", self.statuses, writable=True)
        pages = pointer("int64_t", self.error_pages, writable=True)
        files = pointer("int32_t", self.error_files, writable=True)
        vertices = pointer("int64_t", self.vertices, writable=True)
        distances = pointer("float", self.distances, writable=True)
        # A struct's pointer fields do not keep memory alive: the buffers here do.
        self._keep = (narrow, wide, statuses, pages, files, vertices, distances)
        for position, name in enumerate(_NARROW):
            setattr(out, name, narrow + position * count)
        for position, name in enumerate(_WIDE):
            setattr(out, name, wide + position * count)
        out.statuses, out.error_pages, out.error_files = statuses, pages, files
        out.vertices, out.distances = vertices, distances

    @property
    def counts(self) -> AnyArray:
        """Real entries of each query."""
        counts: AnyArray = self.narrow[0]
        return counts

    def stats(self) -> Counters:
        """The counters by name, as views."""
        return Counters(self.narrow, self.wide)

    def take_nearest(self, answers: Sequence[Answer]) -> None:
        """Merge answers over disjoint rows into this one.

        Counters are summed. A query counts as outside only if it is outside in every answer.
        """
        outside = np.min([one.stats()["outside"] for one in answers], axis=0)
        self.narrow[:] = np.sum([one.narrow for one in answers], axis=0)
        self.wide[:] = np.sum([one.wide for one in answers], axis=0)
        self.stats()["outside"][:] = outside
        vertices = np.concatenate([one.vertices for one in answers], axis=1)
        distances = np.concatenate([one.distances for one in answers], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, : self.k]
        self.vertices[:] = np.take_along_axis(vertices, order, 1)
        self.distances[:] = np.take_along_axis(distances, order, 1)
        np.minimum(self.narrow[0], self.k, out=self.narrow[0])


class Request(Answer):
    """One search of a snapshot: queries and filters in native form, and buffers for the answer.

    A native call takes a bounded number of parts and the delta of one folder. A request needs several calls
    only if the snapshot has more of them; their answers are merged.

    Parameters
    ----------
    snapshot : Snapshot
    queries : array-like
    k : int
    effort : Effort
    filters : sequence of NativeFilter or None
        None at all, one for all queries, or one (or None) for each query.
    whole_delta : bool
        Measure every row of the delta instead of walking its graph.
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
        "single",
        "snapshot",
        "store",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        queries: Any,
        k: int,
        effort: Effort,
        filters: Sequence[NativeFilter | None],
        *,
        whole_delta: bool = False,
    ) -> None:
        prepared = snapshot.prepared(k, *effort)
        self.queries, self.single = native_queries(queries, snapshot.dim)
        self.dtype = QUERY_DTYPES[self.queries.dtype]
        self.query_count = len(self.queries)
        super().__init__(self.query_count, prepared.k)
        self.snapshot = snapshot
        self.options = prepared.options
        self.expected = prepared.expected
        self.filters = filters
        if len(filters) > 1 and len(filters) != self.query_count:
            raise InvalidArgumentError(
                f"{len(filters)} filters were given for {self.query_count} queries", argument="filter"
            )
        #: The source of the hits' metadata: that of the filters, even if other metadata is set meanwhile.
        self.store: Columns | None = snapshot.metadata
        self.query_pointer = _native.pointer("uint8_t", self.queries) if self.query_count else None
        #: Memory behind pointers in native structs.
        self.pointers: list[Any] = []
        self._deadline = deadline_of(effort.timeout_s)
        self._delta_recall = 1.0 if whole_delta else _delta_recall(effort)

    # ---- native arguments

    def calls(self) -> list[tuple[Part, Sequence[Any], Answer]]:
        """For each native call its first part, its arguments up to the answer, and the answer."""
        segments = self.snapshot.segments
        if not segments:
            return []
        filters = self._kept([one.alive.applied(self._filters_of(one.stretch)) for one in segments])
        self.filter_count = max(map(len, filters))
        found: list[tuple[Part, Sequence[Any], Answer]] = []
        most = native_limit("parts").high
        delta = self._delta(self.snapshot.deltas[0]) if self.snapshot.deltas else _native.ffi.NULL
        for start in range(0, len(segments), most):
            answer = self if start == 0 else Answer(self.query_count, self.k)
            array = self._parts(segments[start : start + most], filters[start : start + most])
            found.append(
                (
                    segments[start].part,
                    (
                        array,
                        len(array),
                        delta,
                        self.query_pointer,
                        self.dtype,
                        self.query_count,
                        self.filter_count,
                        self.options,
                    ),
                    answer,
                )
            )
            delta = _native.ffi.NULL  # the first call searches it
        return found

    def _filters_of(self, stretch: int) -> list[NativeFilter | None]:
        """The filters over the rows of one stretch."""
        return [one.parts[stretch] if isinstance(one, ManyFilter) else one for one in self.filters]

    def _parts(self, segments: Sequence[Segment], filters: Sequence[Sequence[NativeFilter | None]]) -> Any:
        """A ``velo_part`` for each segment."""
        ffi = _native.ffi
        array = ffi.new("velo_part[]", len(segments))
        for native, segment, compiled in zip(array, segments, filters, strict=True):
            native.index, native.first = segment.part.handle, segment.first
            if compiled:
                handles = [ffi.NULL if one is None else one.handle for one in compiled]
                if len(handles) < self.filter_count:
                    handles *= self.filter_count
                native.filters = self._kept(ffi.new("velo_filter *[]", handles))
        return array

    def _delta(self, delta: Delta) -> Any:
        """A ``velo_delta``."""
        masks = [
            ManyFilter(one.parts[delta.stretches]).matches() if isinstance(one, ManyFilter) else None
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
        """Limit the next native call to the rest of the timeout.

        Raises
        ------
        SearchTimeoutError
        """
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
        return self.snapshot.deltas[1:] if self.snapshot.segments else self.snapshot.deltas

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
        """The exception for a call that ended with `status`, from what the library wrote for each query.

        Parameters
        ----------
        status : int
        row : int, optional
            The query that ended with it, where that is known.
        """
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
