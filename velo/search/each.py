"""Searches of one query each that are asked in one call; every one ends by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from velo import _native
from velo.errors import BusyError, VeloError
from velo.results import SearchResult
from velo.search.answer import Counters, expectation_of
from velo.search.request import Request

if TYPE_CHECKING:
    import asyncio  # as in completions.py

    from velo.search.snapshot import Snapshot

__all__ = ["Each", "Ended"]

#: Called with rows that have ended, and their result or error.
Ended: TypeAlias = Callable[[Sequence[int], "SearchResult | VeloError"], None]


class Each:
    """Searches of one query each, on their way; they belong to the event loop that asked.

    Parameters
    ----------
    request : Request
        All of them. Each query is submitted as a search of its own, which the library answers into its row
        of the arrays.
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
        lib, queries = _native.lib, _native.pointer("uint8_t", request.queries)
        array, count, delta, filter_count, _ = snapshot.unfiltered

        def submit(end: int, row: int, ticket: int, submitted: Any) -> int:
            status: int = lib.velo_submit_each(
                array,
                count,
                delta,
                queries,
                request.dtype,
                end,
                filter_count,
                request.options,
                request.out,
                row,
                ticket,
                submitted,
            )
            return status

        self._submit = submit
        self._late: dict[int, asyncio.Task[None]] = {}
        self._tickets: dict[int, int] = {}
        submit_rest = partial(submit, request.query_count)
        self._submitted = self._completions.submit_each(request.query_count, submit_rest, self)
        for row, outcome in enumerate(self._submitted):
            if isinstance(outcome, int):
                self._tickets[outcome] = row
            elif isinstance(outcome, BusyError):
                self._late[row] = loop.create_task(self._wait(row))
            else:
                loop.call_soon(ended, [row], outcome)

    async def _wait(self, row: int) -> None:
        """The library had no room: wait for it as every search does."""
        try:
            submit = partial(self._submit, row + 1, row, submitted=_native.ffi.new("uint64_t *"))
            status = await self._completions.run(submit, self)
        except VeloError as error:
            del self._late[row]
            self._ended([row], error)
        else:
            del self._late[row]
            self._end([row], [status])

    def cancel(self, row: int) -> None:
        """Cancel this row; its result is not reported."""
        late = self._late.pop(row, None)
        if late is not None:
            late.cancel()
            return
        ticket = self._submitted[row]
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
