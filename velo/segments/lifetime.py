"""The lifetime of an open index: calls come and go until it is closed, in the process that opened it."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from velo import _native
from velo.errors import ClosedError, ForkedError

__all__ = ["LifetimeGuard"]


class LifetimeGuard:
    """A scope of the library.

    A native call checks its handles itself. What uses more than a handle, such as the descriptor of the
    folder, holds the scope by :meth:`inside`: closing waits for it. The library counts, so that an interrupt
    between two instructions of Python neither keeps a block inside for good nor takes it out early.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._process = os.getpid()
        self._place = _native.ffi.gc(_native.ffi.new("velo_scope *"), _native.lib.velo_scope_close)
        _native.check(_native.lib.velo_scope_open(self._place))
        self._scope = int(self._place[0])

    @property
    def closed(self) -> bool:
        """True once :meth:`close` was called."""
        return _native.lib.velo_scope_check(self._scope) != 0 and not self.forked

    @property
    def forked(self) -> bool:
        """True in a child of the process that opened the index."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raise the error of a call that begins now, if there is one.

        Raises
        ------
        ForkedError
        ClosedError
        """
        if _native.lib.velo_scope_check(self._scope) != 0:
            self._refuse()

    def inside(self) -> Any:
        """A context manager for a block that is inside; raises what :meth:`check` raises."""
        held = _native.ffi.gc(_native.ffi.new("velo_scope *"), _native.lib.velo_scope_leave)
        try:
            if _native.lib.velo_scope_enter(self._scope, held) != 0:
                self._refuse()
        except BaseException:
            _native.ffi.release(held)  # a traceback may keep this frame
            raise
        return held

    def _refuse(self) -> NoReturn:
        if self.forked:
            raise ForkedError(
                f"{self._what} was opened in process {self._process}, this is its child {os.getpid()}: "
                "open it again here"
            )
        raise ClosedError(f"{self._what} was closed")

    def close(self) -> None:
        """Keep further calls out and wait for those inside; interrupted, it can be called again."""
        _native.close(_native.lib.velo_scope_close, self._place)
