"""The clock of routers, which tests replace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will happen unless it is canceled."""

    def cancel(self) -> None:
        """Make it not happen."""


class Clock(Protocol):
    """The clock of a router."""

    def now(self) -> float:
        """Seconds since some moment; never goes back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once ``now() >= when``."""


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), callback)
