"""Brings finished asynchronous searches back to the event loops that wait for them.

The library counts finished searches on one eventfd. Every loop that searches watches a duplicate of it;
whichever loop wakes first reaps all that is finished and hands the results of other loops over to them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from velo import _native
from velo.errors import BusyError, ClosedError, VeloError

if TYPE_CHECKING:
    import asyncio  # 7 MB that only those need who search with it: they have imported it

__all__ = ["Completions", "Several"]

_REAPED_AT_ONCE = 256


class Several(Protocol):
    """A waiter for several tickets, which receives all completions at once."""

    def take(self, finished: Sequence[tuple[int, int]]) -> None:
        """Tickets that have ended, and their statuses."""

    def fail(self, error: VeloError) -> None:
        """None of its tickets will end."""


class Completions:
    """The asynchronous side of one open index."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        #: Held for loops and their descriptors. The collector may close the index in a thread that has it.
        self._lock = threading.RLock()
        self._closed = False
        self._tickets = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[int] | None, Any]] = {}
        self._slots: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[int]]] = deque()
        self._watched: dict[asyncio.AbstractEventLoop, int] = {}
        self._completions = _native.ffi.new("velo_completion[]", _REAPED_AT_ONCE)
        self._count = _native.ffi.new("uint32_t *")

    async def run(self, submit: Callable[[int], int], keep: Any) -> int:
        """Submit and wait.

        Parameters
        ----------
        submit : callable
            Given a ticket, makes the native call and returns its status.
        keep : object
            Kept alive until the library is done with the ticket, even if this task is canceled before.

        Returns
        -------
        int
            The status with which the search ended.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        while True:
            self._watch(loop)
            future: asyncio.Future[int] = loop.create_future()
            ticket = next(self._tickets)
            self._waiting[ticket] = loop, future, keep
            try:
                _native.check(submit(ticket))
            except BusyError:
                self._waiting.pop(ticket, None)
                slot: asyncio.Future[int] = loop.create_future()
                with self._lock:
                    self._slots.append((loop, slot))
                    # The last ones may have ended meanwhile: then no reap will come to wake us.
                    if not self._waiting or self._closed:
                        _resolve(loop, slot, 0)
                await slot
                continue
            except BaseException:
                self._waiting.pop(ticket, None)
                future.cancel()  # a close may settle it still
                raise
            try:
                return await future
            except asyncio.CancelledError:
                self.cancel(ticket)
                raise

    def submit_each(
        self, count: int, submit: Callable[[int, int, Any], int], several: Several
    ) -> list[int | VeloError]:
        """Submit queries and go on; `several` hears in this event loop as they end, and lives until then.

        Parameters
        ----------
        count : int
        submit : callable
            Given a query, a ticket, and a place for a number, submits the queries from that one on, with
            consecutive tickets; writes the number of those taken and returns the status of the first refusal.
        several : Several

        Returns
        -------
        list of int or VeloError
            For each its ticket, or the reason for its refusal.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        outcomes: list[int | VeloError] = []
        first = 0
        submitted = _native.ffi.new("uint64_t *")
        self._watch(loop)
        while first < count:
            tickets = list(itertools.islice(self._tickets, count - first))  # consecutive: one call into C
            for ticket in tickets:
                self._waiting[ticket] = loop, None, several
            refusal = None
            submitted[0] = 0
            try:
                _native.check(submit(first, tickets[0], submitted))
            except VeloError as error:
                refusal = error
            taken = int(submitted[0])
            outcomes += tickets[:taken]
            for ticket in tickets[taken:]:
                self._waiting.pop(ticket, None)
            first += taken
            if refusal is not None:
                # Later queries find no place, either; any other refusal concerns one query.
                refused = count - first if isinstance(refusal, BusyError) else 1
                outcomes += [refusal] * refused
                first += refused
        return outcomes

    def cancel(self, ticket: int) -> None:
        """Cancel this ticket: other queries take the places of its queries."""
        # Closed meanwhile, or forked, there is nothing to cancel.
        _native.lib.velo_cancel(self._handle, ticket)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop in self._watched:
            return
        with self._lock:
            for ended in [known for known in self._watched if known.is_closed()]:
                os.close(self._watched.pop(ended))
            event = _native.ffi.new("int32_t *")
            _native.check(_native.lib.velo_event_fd(self._handle, event))
            fd = int(event[0])
            loop.add_reader(fd, self._reap)
            self._watched[loop] = fd

    def _reap(self) -> None:
        """Take all that is finished; runs in the thread of whichever loop woke up."""
        finished: list[tuple[int, int]] = []
        try:
            with self._lock:
                count = _REAPED_AT_ONCE
                while count == _REAPED_AT_ONCE:
                    _native.check(
                        _native.lib.velo_reap(self._handle, self._completions, _REAPED_AT_ONCE, self._count)
                    )
                    count = int(self._count[0])
                    finished += [(int(done.ticket), int(done.status)) for done in self._completions[0:count]]
        except ClosedError:
            return
        together: dict[int, tuple[asyncio.AbstractEventLoop, Several, list[tuple[int, int]]]] = {}
        for ticket, status in finished:
            waiting = self._waiting.pop(ticket, None)
            if waiting is None:
                continue  # told that the index was closed
            loop, future, keep = waiting
            if future is not None:
                _resolve(loop, future, status)
            else:
                together.setdefault(id(keep), (loop, keep, []))[2].append((ticket, status))
        for loop, several, ended in together.values():
            _run_in(loop, partial(several.take, ended))
        with self._lock:
            for _ in range(min(len(finished), len(self._slots))):
                loop, slot = self._slots.popleft()
                _resolve(loop, slot, 0)

    def close(self) -> None:
        """Fail what still waits and leave every loop; after the native handle is closed."""
        closed = ClosedError("the index was closed while the search ran")
        with self._lock:
            self._closed = True  # from here on nothing is added
            while self._slots:
                loop, slot = self._slots.popleft()
                _resolve(loop, slot, 0)
        for loop, future, keep in self._waiting.copy().values():
            if future is None:
                _run_in(loop, partial(keep.fail, closed))  # a second report has no effect
            else:
                _resolve(loop, future, closed)
        self._waiting.clear()
        for loop, fd in self._watched.items():
            _unwatch(loop, fd)
        self._watched.clear()


def _resolve(loop: asyncio.AbstractEventLoop, future: asyncio.Future[int], value: int | Exception) -> None:
    def settle() -> None:
        if future.done():
            return
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)

    _run_in(loop, settle)


def _unwatch(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    def leave() -> None:
        loop.remove_reader(fd)
        os.close(fd)

    if not _run_in(loop, leave):
        os.close(fd)


def _run_in(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> bool:
    """Run `action` in the thread of `loop`; False if that loop is closed and will run nothing more."""
    import asyncio

    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        action()
        return True
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:
        return False
    return True
