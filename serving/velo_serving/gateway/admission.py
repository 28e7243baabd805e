"""Admission of requests before the gateway spends time on them.

An event loop that has more to do than it can would start all requests and answer each of them late. So a few
start in each of its turns, in their order, and others wait. One is refused on arrival if the queue, at its
present pace, would take half of its time, and later if its time is over.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from velo_serving.gateway.errors import BodyTimeoutError, error_response
from velo_serving.protocol.errors import QueueFullError, ServingError, ShuttingDownError
from velo_serving.protocol.limits import RouterLimits

#: Fewer requests start in a turn of the event loop if turns take longer than this, but at least one.
TURN_S: Final = 0.01
STARTS_MAX: Final = 32

#: The decay of former starts in the pace of the queue.
PACE_MEMORY: Final = 0.9

#: The key in a scope under which the server notes when the request line arrived.
ARRIVED: Final = "velo.arrived"

_TIMEOUT: Final = re.compile(rb'timeout_ms(?:"\s*:\s*|=)(\d{1,9})')
_ROUTE: Final = SimpleNamespace(path="refused")


def arrived_at(scope: Scope) -> float:
    """When the request arrived, by the monotonic clock."""
    arrived: float = scope.setdefault(ARRIVED, time.monotonic())
    return arrived


@contextmanager
def stopped_by_server(scope: Scope) -> Iterator[None]:
    """Make an error of a cancellation as the server stops; without one it would answer with plain text."""
    try:
        yield
    except asyncio.CancelledError:
        if not scope["app"].state.draining():
            raise
        raise ShuttingDownError("the server stopped before the request was answered") from None


class Admitted:
    """Middleware: a queue of requests whose bodies have arrived; other requests pass."""

    def __init__(self, app: ASGIApp, limits: Callable[[], RouterLimits], body_read_s: float) -> None:
        self._app = app
        self._limits = limits
        self._body_read_s = body_read_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._started = 0  # in this turn
        self._began = 0.0
        self._starts = float(STARTS_MAX)
        self._pace_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        arrived = arrived_at(scope)

        async def complete(part: Message) -> None:
            """Wait for a turn once the body is complete; the deadline is in its first part or its last."""
            if part["type"] == "http.request" and not part.get("more_body"):
                texts = [one.get("body", b"") for one in ([first] if part is first else [first, part])]
                found = next(filter(None, map(_TIMEOUT.search, [*texts, scope["query_string"]])), None)
                await self._wait(arrived, None if found is None else int(found[1]) / 1000)

        try:
            with stopped_by_server(scope):
                first = await self._first(receive)
                await complete(first)
        except ServingError as error:
            scope["route"] = _ROUTE
            await error_response(error)(scope, receive, send)
            return
        parts = [first]

        async def again() -> Message:
            if parts:
                return parts.pop()
            part = await receive()
            await complete(part)
            return part

        await self._app(scope, again, send)

    async def _first(self, receive: Receive) -> Message:
        """The first part of the body; ``wait_for`` would need a task for each request."""
        task = asyncio.current_task()
        assert task is not None
        timer = asyncio.get_running_loop().call_later(self._body_read_s, task.cancel, self)
        try:
            return await receive()
        except asyncio.CancelledError as canceled:
            if canceled.args != (self,):
                raise
            raise BodyTimeoutError(f"the body did not arrive within {self._body_read_s:g} s") from None
        finally:
            timer.cancel()

    async def _wait(self, arrived: float, timeout_s: float | None) -> None:
        """Wait for the turn of a request, or refuse it."""
        if not self._waiting and self._started < int(self._starts):
            self._start_turn()
            self._started += 1
            return
        limits = self._limits()
        allowed_s = min(limits.queue_wait_max_s, (timeout_s or limits.timeout_default_s) / 2)
        wait_s = len(self._waiting) * self._pace_s
        if time.monotonic() - arrived + wait_s <= allowed_s:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
            if time.monotonic() - arrived <= allowed_s:
                return
        raise QueueFullError(
            f"{len(self._waiting)} requests wait already, the next one would wait for {wait_s:.1f} s",
            retry_after_s=wait_s,
        )

    def _start_turn(self) -> None:
        if not self._started:
            self._began = time.monotonic()
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Start those that wait longest."""
        took_s, started, self._started = time.monotonic() - self._began, self._started, 0
        self._starts = (
            max(1.0, 0.7 * self._starts) if took_s > TURN_S else min(STARTS_MAX, self._starts + 0.2)
        )
        if not self._waiting:
            return
        pace_s = took_s / max(1, started)
        self._pace_s = pace_s + PACE_MEMORY * (self._pace_s - pace_s)
        self._start_turn()
        while self._waiting and self._started < int(self._starts):
            waiter = self._waiting.popleft()
            if not waiter.done():  # its client may have left
                waiter.set_result(None)
                self._started += 1
