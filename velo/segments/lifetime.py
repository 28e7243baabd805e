"""Lets calls into an open index, keeps them out once it closes, and knows which process opened it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from velo.errors import ClosedError, ForkedError

Answer = TypeVar("Answer")

__all__ = ["LifetimeGuard"]

#: How long :meth:`Gate.close` waits between two looks at who is inside.
_LOOK_S: Final = 1e-3


class _Pass(type(threading.RLock())):  # type: ignore[misc]
    """A pass: its holder is inside.

    Its base gives it a ``with`` that runs no Python: an interrupt that comes while a block ends cannot keep
    it from ending.
    """

    __slots__ = ("anchor",)


class LifetimeGuard:
    """Stands around every native call with a handle, as :meth:`inside` or by :meth:`call`.

    Closing waits for the calls inside, so that no call can hold a handle that was freed. Who is inside holds
    a reference to one object, and Python counts them: nothing has to run for a call to have left, so one
    that was interrupted between any two instructions has left, too. No lock is held that a fork could keep.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._anchor = object()
        self._closed = False
        self._outside = sys.getrefcount(self._anchor)

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self._closed

    @property
    def forked(self) -> bool:
        """True in a child of the process that opened the index."""
        return os.getpid() != self._process

    def call(self, function: Callable[..., Answer], *arguments: object) -> Answer:
        """Call `function` inside; raises what :meth:`inside` raises."""
        if os.getpid() != self._process:
            self._refuse()
        anchor = self._anchor  # before the look at `_closed`, which close() sets before it counts
        try:
            if self._closed:
                raise ClosedError(f"{self._what} was closed")
            return function(*arguments)
        finally:
            del anchor  # a traceback may keep this frame

    def inside(self) -> Any:
        """A context manager for a block that is inside.

        Raises
        ------
        ForkedError
            The process is looked at first: a forked child has no workers.
        ClosedError
        """
        if os.getpid() != self._process:
            self._refuse()
        taken = _Pass()
        taken.anchor = self._anchor
        if self._closed:
            del taken
            raise ClosedError(f"{self._what} was closed")
        return taken

    def _refuse(self) -> NoReturn:
        raise ForkedError(
            f"{self._what} was opened in process {self._process}, this is its child {os.getpid()}: "
            "open it again here"
        )

    def close(self) -> None:
        """Keep further calls out and wait for those inside; interrupted, it can be called again."""
        self._closed = True
        while sys.getrefcount(self._anchor) > self._outside:
            time.sleep(_LOOK_S)
