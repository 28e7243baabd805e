"""Work in the background, one piece after the other."""

from __future__ import annotations

import threading
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
        #: There is more to do than what is under way.
        self._wanted = False

    @property
    def is_busy(self) -> bool:
        """Work is under way."""
        return self._thread is not None

    def ask(self) -> None:
        """Work; where that is under way, once more after it."""
        with self._state:
            self._wanted = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is under way; False where that took too long."""
        with self._state:
            return self._state.wait_for(lambda: self._thread is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._state:
                if not self._wanted:
                    return self._end()
                self._wanted = False
            try:
                self._work()
            except BaseException as error:
                with self._state:
                    self._failed(error)
                    return self._end()

    def _end(self) -> None:
        """With the lock held."""
        self._wanted, self._thread = False, None
        self._state.notify_all()
