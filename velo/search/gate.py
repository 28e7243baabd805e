"""Lets calls into an open index, keeps them out once it closes, and knows which process opened it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, TypeVar

from velo.errors import ClosedError, ForkedError

Answer = TypeVar("Answer")

__all__ = ["Gate"]


class Gate:
    """Stands around every native call with a handle, as a context manager or by :meth:`call`.

    Closing waits for the calls inside, so that no call can hold a handle that was freed. The process is
    looked at first: a forked child's locks may stay held for ever by threads that are no more.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._condition = threading.Condition(threading.Lock())
        # One entry a call. Appending and popping are atomic, so that calls meet at no lock.
        self._inside: list[None] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self._closed

    @property
    def forked(self) -> bool:
        """True in a child of the process that opened the index."""
        return os.getpid() != self._process

    def call(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Call `function` inside; raises what entering the gate raises."""
        if os.getpid() != self._process:
            self._refuse()
        inside = self._inside
        try:
            inside.append(None)  # before the look at `_closed`, which close() sets before it looks here
            if self._closed:
                raise ClosedError(f"{self._what} was closed")
            return function(*arguments)
        finally:
            inside.pop()
            if self._closed:
                self._wake()

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            self._refuse()
        self._inside.append(None)
        if self._closed:
            self._leave()
            raise ClosedError(f"{self._what} was closed")

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _refuse(self) -> NoReturn:
        raise ForkedError(
            f"{self._what} was opened in process {self._process}, this is its child {os.getpid()}: "
            "open it again here"
        )

    def _leave(self) -> None:
        self._inside.pop()
        if self._closed:
            self._wake()

    def _wake(self) -> None:
        with self._condition:
            if not self._inside:
                self._condition.notify_all()

    def close(self) -> bool:
        """Keep further calls out and wait for those inside; False if it was closed before."""
        with self._condition:
            if self._closed:
                return False
            self._closed = True
            self._condition.wait_for(lambda: not self._inside)
        return True
