"""One search over several parts and the delta: each is searched, and the nearest of all are the answer.

The delta comes first, since it takes no read, then the part of the most rows, which holds most answers.
What both have found is the bound of the next part: it reads only for rows that may still come between.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import InvalidArgumentError, NotFiniteError, SearchTimeoutError
from velo.filters.native import NativeFilter
from velo.live.pieces import ManyFilter
from velo.live.rows import MAGNITUDE_MAX
from velo.live.view import View
from velo.options import Effort, fill_search
from velo.results import Expectation
from velo.search.request import Request
from velo.search.script import deadline_of
from velo.search.segment import Segment
from velo.types import AnyArray

__all__ = ["MergedRequest"]

#: Reads that an answer takes, where nearly each lies on a page of its own (zig/src/search/filter_plan.zig).
_READS_OF_ANSWER: Final = 1.15
#: A part of so few rows is searched without a bound.
_ROWS_UNBOUND: Final = 100
#: An event loop looks at so many rows itself, in less than a millisecond: to hand them over takes as long.
_LOOKED_AT_IN_PASSING: Final = 4096
#: Queries that the delta is asked at once, between two looks at the clock.
_AT_ONCE: Final = 16
#: Of the delta's nearest rows the share that a search finds which names none.
_DELTA_RECALL: Final = 0.99


class MergedRequest(Request):
    """A request to each part of a view, and one answer."""

    __slots__ = ("_deadline", "_delta", "_delta_list_size", "_delta_recall", "_view", "parts")

    def __init__(
        self,
        view: View,
        queries: Any,
        k: int,
        effort: Effort,
        filters: Sequence[NativeFilter | None],
    ) -> None:
        options = _native.new("velo_search_options")
        fill_search(options, k, *effort)
        super().__init__(queries, view.shape.dim, int(options.k), options, filters, _native.ffi.NULL)
        self._view = view
        self._delta_recall = _delta_recall(effort)
        self._delta_list_size = int(options.list_size)
        #: All searches of it together have one timeout.
        self._deadline = deadline_of(effort.timeout_s)
        self.store = view.metadata
        if self.filter_count > 1 and self.filter_count != self.query_count:
            raise InvalidArgumentError(
                f"{self.filter_count} filters were given for {self.query_count} queries", argument="filter"
            )
        self.parts = [
            (segment, self._request_to(number, segment, effort))
            for number, segment in enumerate(view.segments)
        ]
        self.expected = _together([(segment.n, one.expected) for segment, one in self._order()], self.k)

    def _request_to(self, number: int, segment: Segment, effort: Effort) -> Request:
        prepared = segment.prepared.of(self.k, *effort)
        own = [one.parts[number] if isinstance(one, ManyFilter) else None for one in self.filters]
        compiled = self._view.alive[number].applied(own)
        null = _native.ffi.NULL
        handles = null
        if compiled:
            handles = _native.ffi.new(
                "velo_filter *[]", [null if one is None else one.handle for one in compiled]
            )
        request = Request(self.queries, segment.dim, self.k, prepared.options, compiled, handles)
        request.expected = prepared.expected
        return request

    def run(self, search: Callable[[Segment, Request], Request]) -> MergedRequest:
        """Search every part, one after the other."""
        nearest = self._begin()
        for segment, request in self._order():
            self._prepare(request, nearest, segment)
            nearest.take(search(segment, request).distances, segment.n)
        return self._merge()

    async def run_async(self, search: Callable[[Segment, Request], Awaitable[Request]]) -> MergedRequest:
        """The same without blocking the event loop."""
        if self.query_count * self._view.native.delta_rows > _LOOKED_AT_IN_PASSING:
            import asyncio

            nearest = await asyncio.to_thread(self._begin)
        else:
            nearest = self._begin()
        for segment, request in self._order():
            self._prepare(request, nearest, segment)
            nearest.take((await search(segment, request)).distances, segment.n)
        return self._merge()

    def _begin(self) -> _Nearest:
        self._delta = self._search_delta()
        nearest = _Nearest(self.query_count, self.k)
        if self._delta is not None:
            nearest.take(self._delta[1], self._view.native.delta_rows)
        return nearest

    def _prepare(self, request: Request, nearest: _Nearest, segment: Segment) -> None:
        nearest.bound(request, segment.n)
        if self._deadline is not None:
            request.end_by(self._left_s())

    def _left_s(self) -> float:
        """What is left of the timeout.

        Raises
        ------
        SearchTimeoutError
        """
        if self._deadline is None:
            return math.inf
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise SearchTimeoutError("the search took longer than its timeout_s")
        return left

    def _order(self) -> list[tuple[Segment, Request]]:
        """The parts, the largest first."""
        return sorted(self.parts, key=lambda part: -part[0].n)

    def _merge(self) -> MergedRequest:
        starts = np.cumsum([0, *(segment.n for segment in self._view.segments)])
        vertices: list[AnyArray] = []
        distances: list[AnyArray] = []
        for start, (_, request) in zip(starts, self.parts, strict=False):
            vertices.append(np.where(request.vertices >= 0, request.vertices + start, -1))
            distances.append(request.distances)
            self.narrow += request.narrow
            self.wide += request.wide
        if self.parts:  # outside of all rows is who is outside of those of each part
            outside = [request.stats()["outside"] for _, request in self.parts]
            self.stats()["outside"][:] = np.min(outside, axis=0)
        if self._delta is not None:
            rows, near, counts, looks = self._delta
            vertices.append(np.where(rows >= 0, rows + starts[-1], -1))
            distances.append(near)
            self.narrow[0] += counts
            self.stats()["estimates"][:] += looks
        if not vertices:
            self.vertices[:], self.distances[:] = -1, np.inf
            return self
        all_vertices, all_distances = np.concatenate(vertices, axis=1), np.concatenate(distances, axis=1)
        order = np.argsort(all_distances, axis=1, kind="stable")[:, : self.k]
        self.vertices[:] = np.take_along_axis(all_vertices, order, 1)
        self.distances[:] = np.take_along_axis(all_distances, order, 1)
        np.minimum(self.narrow[0], self.k, out=self.narrow[0])
        return self

    def look_at_all(self) -> None:
        """Measure every row of the delta."""
        self._delta_recall = 1.0

    def _search_delta(self) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray] | None:
        view = self._view
        with np.errstate(over="ignore"):
            queries = self.queries.astype(np.float32, copy=False)
        bad = np.flatnonzero(~(np.abs(queries) <= MAGNITUDE_MAX).all(axis=1))
        if len(bad):
            row = int(bad[0])
            raise NotFiniteError(
                f"query {row} holds NaN, infinity or a magnitude above {MAGNITUDE_MAX}",
                argument="queries",
                row=row,
            )
        if not view.chunks:
            return None
        first = len(view.segments)
        masks = [
            ManyFilter(one.parts[first:]).matches() if isinstance(one, ManyFilter) else None
            for one in self.filters
        ]
        if all(mask is None for mask in masks):
            masks = []
        self._left_s()
        recall, list_size = self._delta_recall, self._delta_list_size
        if len(queries) <= _AT_ONCE:
            return view.native.search(queries, self.k, recall, list_size, masks)
        found = []
        for at in range(0, len(queries), _AT_ONCE):
            self._left_s()
            some = queries[at : at + _AT_ONCE]
            own = masks[at : at + _AT_ONCE] if len(masks) > 1 else masks
            found.append(view.native.search(some, self.k, recall, list_size, own))
        rows, near, counts, looks = (np.concatenate(one) for one in zip(*found, strict=True))
        return rows, near, counts, looks

    def matches(self) -> int | None:
        """Rows that live and pass the first filter; None: there is no filter."""
        if not self.filters or self.filters[0] is None:
            return None
        passing = self.filters[0].matches()
        return int((passing & self._view.alive_rows()).sum())


def _delta_recall(effort: Effort) -> float:
    """Of the delta's nearest rows the share that is to be found; 1 looks at every row."""
    if effort.exact or (effort.tuning is not None and effort.tuning.filter_plan == "scan"):
        return 1.0
    return _DELTA_RECALL if effort.recall is None else float(effort.recall)


class _Nearest:
    """The k nearest distances so far of each query."""

    def __init__(self, count: int, k: int) -> None:
        self._k = k
        self._rows = 0
        self._distances = np.full((count, k), np.inf, np.float32)

    def take(self, distances: AnyArray, rows: int) -> None:
        """Those of one more part of so many rows, padded with infinity."""
        self._rows += rows
        both = np.concatenate([self._distances, distances], axis=1)
        self._distances = np.partition(both, self._k - 1, axis=1)[:, : self._k]

    def bound(self, request: Request, rows: int) -> None:
        """Tell the next part, where there are k of them.

        A part of more rows than were searched before it finds a nearer bound itself, on a way that one from
        elsewhere would only cut short. One of very few rows, a page or two, has none either: what their codes
        err by is not known well enough to leave any out.
        """
        if rows > self._rows or rows <= _ROWS_UNBOUND:
            return
        bounds = np.ascontiguousarray(self._distances.max(axis=1))
        if np.isfinite(bounds).any():
            request.bound(bounds)


def _together(parts: Sequence[tuple[int, Expectation]], k: int) -> Expectation:
    """What searches of all parts are expected to cost together; the recall is the least of theirs.

    Parameters
    ----------
    parts : sequence of (int, Expectation)
        Rows, and what a search of that part alone is expected to be like; the first one searched first.
    k : int
    """
    list_size = max((one.list_size for _, one in parts), default=0)
    if not parts or any(one.recall is None for _, one in parts):
        return Expectation(list_size)
    rows = sum(n for n, _ in parts)
    # A part that is searched within the bound of others reads a page for each answer that it holds.
    shares = [1.0]
    for n, one in parts[1:]:
        answers = _READS_OF_ANSWER * k * n / rows
        shares.append(min(1.0, answers / one.reads) if one.reads else 1.0)

    def total(name: str) -> float:
        return sum(float(getattr(one, name) or 0.0) for _, one in parts)

    def total_read(name: str) -> float:
        found = [float(getattr(one, name) or 0.0) for _, one in parts]
        return sum(value * share for value, share in zip(found, shares, strict=True))

    return Expectation(
        list_size=list_size,
        recall=min(one.recall for _, one in parts if one.recall is not None),
        reads=total_read("reads"),
        rounds=total_read("rounds"),
        estimates=total("estimates"),
        expanded=total("expanded"),
        records_scored=total_read("records_scored"),
    )
