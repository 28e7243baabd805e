"""Background work, one piece after the other."""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from velo.errors import OutOfMemoryError


class Worker:
    """A thread that exists while there is work.

    Pieces are numbered, and waiters wait for a number, in a queue of its own: such a wait can be interrupted
    anywhere, and then holds no lock that others need. `failed` is called with the error of a piece before its
    end is visible; no further one follows then.
    """

    def __init__(self, work: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        self._work = work
        self._failed = failed
        self._state = threading.Lock()
        #: The thread that works; None: there is none.
        self._thread: int | None = None
        #: When a piece is to begin, by the monotonic clock: there is more to do than what is under way.
        self._wanted_at_s: float | None = None
        #: Pieces that began, and that ended.
        self._begun = self._ended = 0
        #: The last piece that failed, and of what.
        self._failure: tuple[int, BaseException] | None = None
        #: Put into where something changed.
        self._waiting: list[weakref.ref[SimpleQueue[None]]] = []

    @property
    def is_busy(self) -> bool:
        """Work is under way, or about to be."""
        at = self._wanted_at_s
        return self._begun > self._ended or (at is not None and at <= time.monotonic())

    @property
    def is_here(self) -> bool:
        return self._thread == threading.get_ident()

    def ask(self, after_s: float = 0.0) -> int:
        """Request a piece of work, now or after some seconds; if it is running, once more after it.

        Returns the number of the piece.
        """
        with self._state:
            at = time.monotonic() + after_s
            self._wanted_at_s = at if self._wanted_at_s is None else min(at, self._wanted_at_s)
            number = self._begun + 1
            self._tell()
        self._start()
        return number

    def _start(self) -> None:
        """A thread, where work is wanted and there is none."""
        if self._thread is not None or self._wanted_at_s is None:
            return
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError as error:
            raise OutOfMemoryError(f"no thread starts for work in the background: {error}") from error

    def wait(self, number: int | None = None, timeout_s: float | None = None) -> bool:
        """Wait until a piece has ended; without a number until the running one has. False after a timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        changed: SimpleQueue[None] = SimpleQueue()
        with self._state:
            self._waiting.append(weakref.ref(changed))
        while self._is_to_wait(number):
            self._start()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            try:
                changed.get(timeout=left)
            except Empty:
                continue
        failure = self._failure
        if number is not None and failure is not None and failure[0] >= min(number, self._ended):
            raise failure[1]
        return True

    def _is_to_wait(self, number: int | None) -> bool:
        if self.is_here:
            return False  # it would wait for itself
        if number is None:
            return self.is_busy
        if self._ended >= number:
            return False
        return self._begun > self._ended or self._wanted_at_s is not None

    def forget(self) -> None:
        """Cancel pieces that have not begun."""
        with self._state:
            self._wanted_at_s = None
            self._tell()

    def _tell(self) -> None:
        """With the lock held."""
        self._waiting = [one for one in self._waiting if one() is not None]
        for one in self._waiting:
            if (queue := one()) is not None:
                queue.put(None)

    def _run(self) -> None:
        changed: SimpleQueue[None] = SimpleQueue()
        with self._state:
            if self._thread is not None:  # two asked at once
                return
            self._thread = threading.get_ident()
            self._waiting.append(weakref.ref(changed))
        while self._begins(changed):
            try:
                self._work()
                failure = None
            except BaseException as error:
                failure = error
            with self._state:
                if failure is not None:
                    self._failure = self._begun, failure
                    self._wanted_at_s = None
                    self._failed(failure)
                self._ended = self._begun
                self._tell()

    def _begins(self, changed: SimpleQueue[None]) -> bool:
        """Wait until a piece is to begin; False where none is: then this thread is no longer its own."""
        while True:
            with self._state:
                at = self._wanted_at_s
                if at is None:
                    self._thread = None
                    self._tell()
                    return False
                left_s = at - time.monotonic()
                if left_s <= 0:
                    self._begun += 1
                    self._wanted_at_s = None
                    return True
            try:
                changed.get(timeout=left_s)
            except Empty:
                continue
