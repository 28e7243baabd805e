"""Searches of one query each that are asked in one call; every one ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from velo import _native
from velo.errors import BusyError, VeloError
from velo.results import SearchResult
from velo.search.answer import Counters, expectation_of
from velo.search.request import Request

if TYPE_CHECKING:
    import asyncio  # as in completions.py

    from velo.search.snapshot import Snapshot

__all__ = ["Each", "Ended"]

#: Told which rows have ended, and what they found or why they failed.
Ended: TypeAlias = Callable[[Sequence[int], "SearchResult | VeloError"], None]

#: Elements of the arrays that hold k of a row; all others hold one.
_OF_K: Final = ("vertices", "distances")


class Each:
    """Searches of one query each, on their way; they belong to the event loop that asked.

    Parameters
    ----------
    request : Request
        All of them. Only its arrays are used: each query is submitted as a search of its own, which the
        library answers into its row of them.
    snapshot : Snapshot
        Searched by one native call a query: :attr:`Snapshot.unfiltered` is not None.
    ended : callable
        Called in the event loop with rows that have ended, as soon as they have.
    """

    def __init__(self, request: Request, snapshot: Snapshot, ended: Ended) -> None:
        import asyncio

        assert snapshot.unfiltered is not None
        loop = asyncio.get_running_loop()
        self._request = request
        self._ids = snapshot.ids
        self._completions = snapshot.segments[0].opened.completions
        self._ended = ended
        self._outs = _outs_of(request)
        outs = _native.ffi.from_buffer("velo_search_out[]", self._outs)
        lib, first = _native.lib, _native.pointer("uint8_t", request.queries)
        step = request.queries.strides[0]
        array, count, delta, filter_count, _ = snapshot.unfiltered

        def submit(row: int, ticket: int) -> int:
            status: int = lib.velo_submit_segments(
                array,
                count,
                delta,
                first + row * step,
                request.dtype,
                1,
                filter_count,
                request.options,
                outs + row,
                ticket,
            )
            return status

        self._submit = submit
        self._late: dict[int, asyncio.Task[None]] = {}
        self._tickets: dict[int, int] = {}
        self._told = self._completions.submit_each(request.query_count, submit, self)
        for row, told in enumerate(self._told):
            if isinstance(told, int):
                self._tickets[told] = row
            elif isinstance(told, BusyError):
                self._late[row] = loop.create_task(self._wait(row))
            else:
                loop.call_soon(ended, [row], told)

    async def _wait(self, row: int) -> None:
        """The library had no room: wait for it as every search does."""
        try:
            status = await self._completions.run(lambda ticket: self._submit(row, ticket), self)
        except VeloError as error:
            del self._late[row]
            self._ended([row], error)
        else:
            del self._late[row]
            self._end([row], [status])

    def cancel(self, row: int) -> None:
        """Nobody waits for this row any more; nothing is told of it."""
        late = self._late.pop(row, None)
        if late is not None:
            late.cancel()
            return
        ticket = self._told[row]
        if isinstance(ticket, int) and self._tickets.pop(ticket, None) is not None:
            self._completions.cancel(ticket)

    def take(self, finished: Sequence[tuple[int, int]]) -> None:
        """Searches that have ended, by ticket and status."""
        rows, statuses = [], []
        for ticket, status in finished:
            row = self._tickets.pop(ticket, None)
            if row is not None:
                rows.append(row)
                statuses.append(status)
        if rows:
            self._end(rows, statuses)

    def fail(self, error: VeloError) -> None:
        """None of them will be answered."""
        rows = list(self._tickets.values())
        self._tickets.clear()
        if rows:
            self._ended(rows, error)

    def _end(self, rows: list[int], statuses: list[int]) -> None:
        request = self._request
        if any(statuses):
            for row, status in zip(rows, statuses, strict=True):
                if status != 0:
                    self._ended([row], request.failure(status, row))
            rows = [row for row, status in zip(rows, statuses, strict=True) if status == 0]
            if not rows:
                return
        vertices, distances, narrow, wide = request.vertices, request.distances, request.narrow, request.wide
        if len(rows) < request.query_count:
            vertices, distances = vertices[rows], distances[rows]
            narrow, wide = narrow[:, rows], wide[:, rows]
        elif len(rows) > 1:
            rows = list(range(len(rows)))
        counts = narrow[0]
        stats = Counters(narrow, wide)
        ids = self._ids.of(vertices, bool(counts.min() == request.k))
        expected = expectation_of(request.expected, stats)
        self._ended(rows, SearchResult(ids, distances, counts, stats, None, expected))


def _outs_of(request: Request) -> Any:
    """For each query of a request the struct with which it is answered alone: one row of 64-bit words."""
    words = np.frombuffer(_native.ffi.buffer(request.out), np.uint64)
    rows = np.arange(request.query_count, dtype=np.uint64)
    return words + rows[:, None] * _steps(request.k)


@lru_cache(maxsize=64)
def _steps(k: int) -> Any:
    """The stride between two queries in the array behind each pointer of the struct."""
    ffi = _native.ffi
    kind = ffi.typeof("velo_search_out")
    steps = np.zeros(ffi.sizeof(kind) // 8, np.uint64)
    for name, field in kind.fields:
        if field.type.kind == "pointer":
            steps[field.offset // 8] = ffi.sizeof(field.type.item) * (k if name in _OF_K else 1)
    return steps
