"""Event loops and the clock of routers, which tests replace."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop, of uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


#: A thread that waits for the interpreter gets it after this time; Python's own is ten times as long.
SWITCH_S: Final = 0.0005


@contextmanager
def short_pauses() -> Iterator[None]:
    """Shorten the pauses of the event loops of a process that serves, whose modules are loaded.

    A full collection looks at all objects, for tens of milliseconds; those that exist now are left out.
    """
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before_s)


#: One thread: several would take turns with an event loop, which would wait for each of them.
_CONVERSIONS: Final = ThreadPoolExecutor(1, "velo-convert")


async def converted(work: Callable[..., T], *arguments: Any) -> T:
    """Run a conversion of many hits outside the event loop, after earlier ones."""
    return await asyncio.get_running_loop().run_in_executor(_CONVERSIONS, work, *arguments)


class LoopThread:
    """An event loop in a thread of its own, which starts with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = new_event_loop()
                self._thread = threading.Thread(None, self._serve, self._name, (self._loop,), daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the thread and wait here; canceling the wait cancels the work."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started()))

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._started())

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the thread and block until it is done."""
        return asyncio.run_coroutine_threadsafe(work, self._started()).result()

    def close(self) -> None:
        """Cancel all work and end the thread; idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if thread is not threading.current_thread():
                thread.join()


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The clock of a router: monotonic seconds, and callbacks once ``now() >= when``."""

    def now(self) -> float: ...
    def call_at(self, when: float, callback: Callable[[], None]) -> Timer: ...


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), callback)
