"""Work in the background, one piece after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Worker"]


class Worker:
    """A thread while there is work, and none while there is not.

    Parameters
    ----------
    name : str
        Of the thread.
    work : callable
        A piece of work.
    failed : callable
        Told what a piece failed of, before anybody sees that it ended; no further one follows then.
    """

    def __init__(self, name: str, work: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        self._name = name
        self._work = work
        self._failed = failed
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        #: When a piece is to begin, by the monotonic clock: there is more to do than what is under way.
        self._wanted_at_s: float | None = None
        self._works = False

    @property
    def is_busy(self) -> bool:
        """Work is under way, or about to be."""
        at = self._wanted_at_s
        return self._works or (at is not None and at <= time.monotonic())

    def ask(self, after_s: float = 0.0) -> None:
        """Work, now or so many seconds later; where that is under way, once more after it."""
        with self._state:
            at = time.monotonic() + after_s
            self._wanted_at_s = at if self._wanted_at_s is None else min(at, self._wanted_at_s)
            self._state.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for what is under way, and for nothing that begins later; False where that took too long."""
        with self._state:
            return self._state.wait_for(lambda: not self.is_busy, timeout_s)

    def forget(self) -> None:
        """What has not begun does not begin."""
        with self._state:
            self._wanted_at_s = None
            self._state.notify_all()

    def _run(self) -> None:
        while True:
            with self._state:
                if not self._begins():
                    return self._end()
            try:
                self._work()
            except BaseException as error:
                with self._state:
                    self._failed(error)
                    self._wanted_at_s = None
                    return self._end()

    def _begins(self) -> bool:
        """Wait until a piece is to begin; False where none is. With the lock held."""
        self._works = False
        self._state.notify_all()
        while self._wanted_at_s is not None:
            left_s = self._wanted_at_s - time.monotonic()
            if left_s <= 0:
                self._works, self._wanted_at_s = True, None
                return True
            self._state.wait(left_s)
        return False

    def _end(self) -> None:
        """With the lock held."""
        self._works, self._thread = False, None
        self._state.notify_all()
