"""The rows of an index at one moment, and searches over them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo import _native
from velo.errors import ClosedError, InvalidArgumentError, UnknownColumnError, UnknownIdError
from velo.filters.arrow_values import arrow_of, texts_of
from velo.filters.compiler import Columns, FilterCompiler, filters_of, of_rows
from velo.filters.native import NativeFilter
from velo.folder.ids import Ids
from velo.fulltext.file import Words
from velo.options import Effort, SearchTuning
from velo.results import FilterPlan
from velo.search.prepared import Prepared, filter_plan_of, prepare
from velo.search.request import Delta, Request, Rows, SegmentView
from velo.segments.chunked import ChunkedColumns, ChunkedCompiler, ChunkedFilter, ChunkedIds, Stretch
from velo.segments.delta import DeltaRows
from velo.segments.lifetime import LifetimeGuard
from velo.segments.segment import Segment
from velo.segments.view import View
from velo.types import AnyArray

#: An event loop searches up to this many rows itself (below 1 ms, about the cost of starting a thread).
_ROWS_IN_LOOP: Final = 4096
#: Prepared options kept by an index; a service uses a handful.
_KEPT: Final = 64


class _ShardsCompiler(ChunkedCompiler):
    """Filters over several folders; a mask covers the rows of all, in the order of the folders."""

    def __init__(self, views: Sequence[View], stretches: Sequence[Stretch], store: Columns | None) -> None:
        super().__init__(stretches, store)
        self._views = views

    def compile(self, condition: Any) -> NativeFilter:
        if isinstance(condition, NativeFilter):
            return condition
        ends = np.cumsum([one.n for one in self._views]).tolist()
        segments: list[NativeFilter] = []
        for view, end in zip(self._views, ends, strict=True):
            compiled = view.filters.compile(of_rows(condition, end - view.n, end, ends[-1]))
            segments += compiled.segments if isinstance(compiled, ChunkedFilter) else [compiled]
        return ChunkedFilter(segments)


class Snapshot:
    """All segments and deltas of one folder, or of all shards of a collection, as they were at one moment.

    Vertices are numbered through all folders: for each of them its segments, then its delta. A search is one
    native call over all of them. The snapshot keeps the files that it shows in place.

    `before`: Of the same index; prepared search options are taken from it while the segments are the same.
    """

    def __init__(self, views: Sequence[View], guard: LifetimeGuard, before: Snapshot | None = None) -> None:
        self.views = tuple(views)
        self.guard = guard
        self.dim = views[0].shape.dim
        self.segments: list[SegmentView] = []
        self.deltas: list[Delta] = []
        stretches: list[Stretch] = []
        starts = [0]
        for view in views:
            first, base = starts[-1], len(stretches)
            for number, (segment, alive) in enumerate(zip(view.segments, view.alive, strict=True)):
                self.segments.append(SegmentView(segment, first, alive, base + number))
                first += segment.n
            stretches += view.stretches
            if view.delta:
                self.deltas.append(Delta(view, first, slice(base + len(view.segments), len(stretches))))
            starts.append(starts[-1] + view.n)
        self._starts = np.array(starts)
        self.n = starts[-1]
        self.ids: Ids
        self.metadata: Any
        self.filters: FilterCompiler
        if len(views) == 1:
            self.ids, self.metadata, self.filters = views[0].ids, views[0].metadata, views[0].filters
        else:
            kind = next((one.id_kind for one in views if one.id_kind is not None), None)
            alive_rows = [one for view in views for one in view.alive_by_stretch()]
            self.ids = ChunkedIds(stretches, kind, alive_rows)
            self.metadata = None if views[0].shape.schema is None else ChunkedColumns(stretches)
            self.filters = _ShardsCompiler(views, stretches, self.metadata)
        #: The segments, largest first.
        self._segments = sorted((one.opened for one in self.segments), key=_row_count, reverse=True)
        same = before is not None and before._segments == self._segments
        self._prepared: dict[tuple[Any, ...], Prepared] = before._prepared if before and same else {}

    # ---- rows

    @property
    def live_count(self) -> int:
        """Living rows."""
        return sum(view.live_count for view in self.views)

    @cached_property
    def is_whole(self) -> bool:
        """Whether all rows live."""
        return all(one.alive.rows is None for one in self.segments) and all(
            bool(one.view.delta_alive.all()) for one in self.deltas
        )

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of the metadata; None if there are none."""
        schema: pa.Schema | None = self.views[0].shape.schema
        return schema

    def by_view(self, vertices: AnyArray) -> Iterator[tuple[View, AnyArray, AnyArray]]:
        """The vertices of each view: their places in the array, and their numbers in the view."""
        if len(self.views) == 1:
            yield self.views[0], np.arange(len(vertices)), vertices
            return
        places = self.view_of(vertices)
        for place in np.unique(places):
            inside = np.flatnonzero(places == place)
            yield self.views[place], inside, vertices[inside] - self._starts[place]

    def view_of(self, vertices: AnyArray) -> AnyArray:
        """The number of the view of each vertex."""
        places: AnyArray = np.searchsorted(self._starts, vertices, side="right") - 1
        return places

    def vectors(self, vertices: AnyArray, *, decoded: bool = False) -> AnyArray:
        """The vectors of some vertices, float32; from their codes where none are stored, if `decoded`."""
        out = np.empty((len(vertices), self.dim), np.float32)
        for view, inside, own in self.by_view(vertices):
            out[inside] = view.vectors(own, decoded=decoded)
        return out

    def are_alive(self, vertices: AnyArray) -> AnyArray:
        """Whether each vertex lives; -1 does not."""
        found: AnyArray = vertices >= 0
        if not self.is_whole:
            places = np.flatnonzero(found)
            for view, inside, own in self.by_view(vertices[places]):
                found[places[inside]] = view.are_alive(own)
        return found

    def alive_rows(self) -> AnyArray:
        """Whether each vertex lives."""
        return np.concatenate([view.alive_rows() for view in self.views])

    def vertices(self, ids: Any) -> AnyArray:
        """The vertex of the living row of each id."""
        single = isinstance(ids, str | int | np.integer)
        vertices: AnyArray = self.ids.vertices([ids] if single else ids)
        dead = np.flatnonzero(~self.are_alive(vertices))
        if len(dead):
            raise UnknownIdError(
                "no vector has this id any more: it was deleted", argument="ids", row=int(dead[0])
            )
        return vertices

    def passing(self, condition: Any) -> NativeFilter | None:
        """The living rows that pass one filter; None if all rows do."""
        self.check_open()
        if isinstance(condition, list | tuple) and any(
            isinstance(one, dict) or one is None for one in condition
        ):
            raise InvalidArgumentError(
                "one filter is asked here, not a list of them: there are no queries", argument="filter"
            )
        passing = None if condition is None else self.filters.compile(condition)
        if self.is_whole:
            return passing
        if not self.deltas and not isinstance(self.filters, ChunkedCompiler):
            return self.segments[0].alive.applied([passing])[0]
        alive = self.alive_rows()
        if passing is not None:
            alive &= passing.matches()
        return self.filters.compile_matches(alive)

    def without(self, condition: Any, known: AnyArray) -> NativeFilter:
        """A filter for the rows that pass `condition`, except the vertices marked in `known`."""
        rest = self.filters.compile_matches(~known)
        return rest if condition is None else self.filters.compile(condition).within(rest)

    def only(self, vertices: AnyArray) -> NativeFilter:
        """A filter that passes some vertices."""
        mask = np.zeros(self.n, bool)
        mask[vertices] = True
        return self.filters.compile_matches(mask)

    def columns(self, return_metadata: Sequence[str] | bool | None) -> list[str] | None:
        """The columns to return, checked before the search."""
        if return_metadata is None or return_metadata is False:
            return None
        known = [] if self.metadata is None else list(self.metadata.column_names)
        if return_metadata is True:
            return known
        if isinstance(return_metadata, str):
            return_metadata = [return_metadata]
        if not isinstance(return_metadata, Sequence):
            raise InvalidArgumentError(
                f"return_metadata is True or a list of columns, not {return_metadata!r}",
                argument="return_metadata",
            )
        wanted = list(return_metadata)
        for name in wanted:
            if name not in known:
                raise UnknownColumnError(
                    f"no column {name!r}; there are: {', '.join(known) or 'none'}", argument="return_metadata"
                )
        return wanted

    def table(self, vertices: AnyArray, names: list[str] | None) -> pa.Table:
        """The ids of some vertices, and some of their columns."""
        found = self.ids.of(vertices.astype(np.int64))
        ids = texts_of(found.tolist()).cast(pa.string()) if found.dtype == object else arrow_of(found)
        table = pa.table({"id": ids})
        if self.metadata is not None and names:
            rows = self.metadata.rows(vertices, names)
            for name in rows.column_names:
                shown = name if name != "id" else "metadata.id"
                table = table.append_column(shown, rows.column(name))
        return table

    def words(self, column: str) -> Iterator[tuple[int, Words]]:
        """The full-text index of each segment and stretch of the delta, with its first vertex."""
        start = 0
        for view in self.views:
            each: list[Segment | DeltaRows] = [*view.segments, *view.delta]
            for one in each:
                yield start, one.words(column)
                start += one.n

    # ---- searches

    def check_open(self) -> None:
        """Raise unless the index is open, and was opened by this process."""
        self.guard.check()

    def prepared(
        self,
        k: int,
        recall: float | None,
        list_size: int | None,
        timeout_s: float | None,
        tuning: SearchTuning | None,
        exact: bool | None,
    ) -> Prepared:
        """Checked search options, which are kept."""
        # The types too: True and 1.0 would be found under 1, and neither is a k.
        key = (k, type(k), recall, list_size, type(list_size), timeout_s, tuning, exact, type(exact))
        try:
            return self._prepared[key]
        except (KeyError, TypeError):
            pass
        if len(self._prepared) >= _KEPT:
            self._prepared.clear()
        made = prepare(self._segments, k, Effort(recall, list_size, timeout_s, tuning, exact))
        self._prepared[key] = made
        return made

    @cached_property
    def unfiltered(self) -> tuple[Any, int, Any, int, Any] | None:
        """The native arguments of a search without a filter; None if that takes a delta or several calls."""
        if self.deltas or not self.segments:
            return None
        request = self.request(np.zeros((1, self.dim), np.float32), 1, None, Effort())
        calls = list(request.calls())
        array, count, delta = calls[0][1][:3]
        # The request itself would close a circle of references, which would keep merged segments open.
        return (array, count, delta, request.filter_count, request.pointers) if len(calls) == 1 else None

    def request(
        self, queries: Any, k: int, filters: Any, effort: Effort, *, whole_delta: bool = False
    ) -> Request:
        """A search, checked and ready to run."""
        self.check_open()
        compiled = filters_of(filters, self.filters)
        rows = Rows(self.dim, self.segments, self.deltas, self.metadata)
        prepared = self.prepared(k, *effort)
        return Request(rows, prepared, queries, effort, compiled, whole_delta=whole_delta)

    def run(self, request: Request, argument: str = "queries") -> Request:
        if request.query_count == 0:
            return request
        answers = []
        for _, arguments, answer in request.calls():
            status = _native.lib.velo_search_segments(*(*arguments, answer.out))
            if status != 0:
                self.check_open()  # its errors name the index
                _native.check(status, argument)
            answers.append(answer)
        self._check_gpu(request)
        return request.merge([*answers, *request.search_further_deltas()])

    def _check_gpu(self, request: Request) -> None:
        if request.query_count > 1 and self.segments:
            with contextlib.suppress(ClosedError):  # the answer is there all the same
                self.segments[0].opened.check_gpu()

    async def run_async(self, request: Request) -> Request:
        """Answer a request without blocking the event loop."""
        if request.query_count == 0:
            return request
        answers = []
        for first, arguments, answer in request.calls():
            submit = partial(_native.lib.velo_submit_segments, *(*arguments, answer.out))
            try:
                status = await first.completions.run(submit, (request, answer))  # it has the ticket
            except ClosedError:
                self.check_open()
                raise
            if status != 0:
                raise request.failure(status)
            answers.append(answer)
        self._check_gpu(request)
        rows = sum(one.view.native.delta_rows for one in request.further_deltas)
        if request.query_count * rows <= _ROWS_IN_LOOP:
            return request.merge([*answers, *request.search_further_deltas()])
        import asyncio

        return request.merge([*answers, *await asyncio.to_thread(request.search_further_deltas)])

    def filter_plan(self, request: Request, option: str) -> FilterPlan | None:
        """The plan for the first filter in the largest segment; None without a filter or a segment."""
        if not self.segments:
            return None
        largest = max(self.segments, key=lambda one: one.opened.n)
        first = request.filters[0] if request.filters else None
        own = first.segments[largest.stretch] if isinstance(first, ChunkedFilter) else first
        compiled = largest.alive.applied([own])[0] if largest.alive.rows is not None else own
        return filter_plan_of(largest.opened.handle, compiled, request.options, option)

    def matches(self, request: Request) -> int | None:
        """Living rows that pass the first filter; None without a filter."""
        first = request.filters[0] if request.filters else None
        if first is None:
            return None
        if self.is_whole:
            return int(first.count())
        return int((first.matches() & self.alive_rows()).sum())


def _row_count(segment: Segment) -> int:
    return segment.n
