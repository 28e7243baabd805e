"""Lets calls into an open index, keeps them out once it closes, and knows which process opened it."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from velo.errors import ClosedError, ForkedError

__all__ = ["Gate"]


class Gate:
    """A context manager around every native call with a handle.

    Closing waits for the calls inside, so that no call can hold a handle that was freed. The process is
    looked at before the lock: in a forked child the lock may stay held for ever by a thread that is no more.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._condition = threading.Condition(threading.Lock())
        self._inside = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self._closed

    @property
    def forked(self) -> bool:
        """True in a child of the process that opened the index."""
        return os.getpid() != self._process

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            raise ForkedError(
                f"{self._what} was opened in process {self._process}, this is its child {os.getpid()}: "
                "open it again here"
            )
        with self._condition:
            if self._closed:
                raise ClosedError(f"{self._what} was closed")
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._condition:
            self._inside -= 1
            if self._closed and self._inside == 0:
                self._condition.notify_all()

    def close(self) -> bool:
        """Keep further calls out and wait for those inside; False if it was closed before."""
        with self._condition:
            if self._closed:
                return False
            self._closed = True
            self._condition.wait_for(lambda: self._inside == 0)
        return True
