"""One search over several parts and the delta, in one call of the library."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np

from velo import _native
from velo._native.limits import native_limit
from velo.errors import InvalidArgumentError, NotFiniteError, SearchTimeoutError
from velo.filters.native import NativeFilter
from velo.options import Effort, fill_search
from velo.parts.many import ManyFilter
from velo.parts.part import Part
from velo.parts.rows import MAGNITUDE_MAX, not_finite
from velo.parts.view import View
from velo.results import Expectation, FilterPlan
from velo.search.filter_costs import filter_plan_of
from velo.search.prepared import PreparedOptions
from velo.search.request import Answer, Request
from velo.search.script import deadline_of

__all__ = ["MergedRequest"]

#: Reads that an answer takes, where nearly each lies on a page of its own (zig/src/search/filter_plan.zig).
_READS_OF_ANSWER: Final = 1.15
#: An event loop looks at so many rows itself, in less than a millisecond: to hand them over takes as long.
_LOOKED_AT_IN_PASSING: Final = 4096
#: Queries that the delta is asked at once, between two looks at the clock.
_AT_ONCE: Final = 16
#: Of the delta's nearest rows the share that a search finds which names none.
_DELTA_RECALL: Final = 0.99


class MergedRequest(Request):
    """A request to all parts of a view, and one answer."""

    __slots__ = (
        "_compiled",
        "_deadline",
        "_delta_list_size",
        "_delta_recall",
        "_first",
        "_part_filter_count",
        "_pointers",
        "_view",
    )

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
        self._pointers: list[Any] = []
        self._delta_recall = _delta_recall(effort)
        self._delta_list_size = int(options.list_size)
        #: All searches of it together have one timeout.
        self._deadline = deadline_of(effort.timeout_s)
        self.store = view.metadata
        if self.filter_count > 1 and self.filter_count != self.query_count:
            raise InvalidArgumentError(
                f"{self.filter_count} filters were given for {self.query_count} queries", argument="filter"
            )
        self._first = np.cumsum([0, *(part.n for part in view.parts)])
        #: Of each part its filters, none of which lets a dead row pass.
        self._compiled = [self._filters_of(number) for number in range(len(view.parts))]
        self._part_filter_count = max((len(one) for one in self._compiled), default=0)
        prepared = sorted(
            ((one.n, PreparedOptions(one).of(self.k, *effort).expected) for one in view.parts),
            key=_rows,
            reverse=True,
        )
        self.expected = _together(prepared, self.k)

    def _filters_of(self, number: int) -> list[NativeFilter | None]:
        own = [one.parts[number] if isinstance(one, ManyFilter) else None for one in self.filters]
        return self._view.alive[number].applied(own)

    def run(self, search: Callable[[Part, Sequence[Any], Answer], None]) -> MergedRequest:
        """Search all parts and the delta at once.

        Parameters
        ----------
        search : callable
            Given the part that comes first, what a native search of several takes, and where it puts the
            answer.
        """
        if not self._view.parts:
            return self._search_delta()
        answers = self._answers()
        for first, arguments, answer in answers:
            search(first, arguments, answer)
        return self._merge([answer for *_, answer in answers])

    async def run_async(
        self, search: Callable[[Part, Sequence[Any], Answer], Awaitable[None]]
    ) -> MergedRequest:
        """The same without blocking the event loop."""
        if not self._view.parts:
            if self.query_count * self._view.native.delta_rows <= _LOOKED_AT_IN_PASSING:
                return self._search_delta()
            import asyncio

            return await asyncio.to_thread(self._search_delta)
        answers = self._answers()
        for first, arguments, answer in answers:
            await search(first, arguments, answer)
        return self._merge([answer for *_, answer in answers])

    def _answers(self) -> list[tuple[Part, Sequence[Any], Answer]]:
        """As many parts at once as the library takes, and where their answer goes."""
        if self._deadline is not None:
            self.end_by(self._left_s())
        found: list[tuple[Part, Sequence[Any], Answer]] = []
        most = native_limit("parts").high
        delta = self._delta()
        for at in range(0, len(self._view.parts), most):
            answer = self if at == 0 else Answer(self.query_count, self.k)
            parts, count = self._parts(at, min(at + most, len(self._view.parts)))
            asked = self.query_pointer, self.dtype, self.query_count, count, self.options
            found.append((self._view.parts[at], (*parts, delta, *asked), answer))
            delta = _native.ffi.NULL  # the first call has searched it
        return found

    def _delta(self) -> Any:
        """``velo_delta`` of the view; NULL: it has no rows there."""
        view = self._view
        if not view.delta:
            return _native.ffi.NULL
        first = len(view.parts)
        masks = [
            ManyFilter(one.parts[first:]).matches() if isinstance(one, ManyFilter) else None
            for one in self.filters
        ]
        if all(mask is None for mask in masks):
            masks = []
        asked, keep = view.native.asked(
            int(self._first[-1]), self._delta_recall, self._delta_list_size, masks
        )
        self._kept(keep)
        self._kept(asked)
        return asked

    def _parts(self, start: int, end: int) -> tuple[tuple[Any, int], int]:
        """``velo_part`` for some parts, and how many filters each has."""
        ffi = _native.ffi
        parts = ffi.new("velo_part[]", end - start)
        for part, number in zip(parts, range(start, end), strict=True):
            part.index = self._view.parts[number].handle
            part.first = int(self._first[number])
            compiled = self._compiled[number]
            if compiled:
                handles = [ffi.NULL if one is None else one.handle for one in compiled]
                if len(handles) < self._part_filter_count:
                    handles *= self._part_filter_count
                part.filters = self._kept(ffi.new("velo_filter *[]", handles))
        return (parts, end - start), self._part_filter_count

    def _kept(self, pointer: Any) -> Any:
        """A struct's pointer fields do not keep memory alive."""
        self._pointers.append(pointer)
        return pointer

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

    def _merge(self, answers: Sequence[Answer]) -> MergedRequest:
        """One answer of those of all calls."""
        if len(answers) > 1:
            self.take_nearest(answers)
        return self

    def filter_plan(self, option: str) -> FilterPlan | None:
        """How the largest part meets the first filter; None: there is none, or no part."""
        parts = self._view.parts
        if not parts:
            return None
        number = max(range(len(parts)), key=lambda one: parts[one].n)
        compiled = self._compiled[number]
        return filter_plan_of(parts[number].handle, compiled[0] if compiled else None, self.options, option)

    def look_at_all(self) -> None:
        """Measure every row of the delta."""
        self._delta_recall = 1.0

    def _search_delta(self) -> MergedRequest:
        """The answer where there is no part."""
        with np.errstate(over="ignore"):
            queries = self.queries.astype(np.float32, copy=False)
        row = not_finite(queries)
        if row is not None:
            raise NotFiniteError(
                f"query {row} holds NaN, infinity or a magnitude above {MAGNITUDE_MAX}",
                argument="queries",
                row=row,
            )
        self.vertices[:], self.distances[:] = -1, np.inf
        delta = self._delta()
        if delta == _native.ffi.NULL:
            return self
        # A mask each is for all queries together; else the clock is looked at between some of them.
        at_once = self.query_count if delta.mask_count > 1 else _AT_ONCE
        for at in range(0, self.query_count, at_once):
            self._left_s()
            some = slice(at, at + at_once)
            rows, near, counts, looks = self._view.native.search(delta, queries[some], self.k)
            self.vertices[some], self.distances[some] = rows, near
            self.narrow[0, some] = counts
            self.stats()["estimates"][some] = looks
        return self

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


def _rows(part: tuple[int, Expectation]) -> int:
    return part[0]


def _together(parts: Sequence[tuple[int, Expectation]], k: int) -> Expectation:
    """What searches of all parts are expected to cost together; the recall is the least of theirs.

    Parameters
    ----------
    parts : sequence of (int, Expectation)
        Rows, and what a search of that part alone is expected to be like; the largest first.
    k : int
    """
    list_size = max((one.list_size for _, one in parts), default=0)
    if not parts or any(one.recall is None for _, one in parts):
        return Expectation(list_size)
    rows = sum(n for n, _ in parts)
    # Within the bound of all of them a part beside the largest reads a page for each answer that it holds.
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
        rounds=parts[0][1].rounds,
        estimates=total("estimates"),
        expanded=total("expanded"),
        records_scored=total_read("records_scored"),
    )
