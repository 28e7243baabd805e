"""The right to flush and merge, which one process of a folder has at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from typing import Final

from velo.errors import VeloError
from velo.folder.opened import OpenedFolder
from velo.folder.replace import os_failure

MERGE_LOCK_FILE: Final = "merge.lock"


class MergeLock:
    """A file lock that the threads of a process share; it ends with the last of them, or with the process."""

    def __init__(self, opened: OpenedFolder) -> None:
        self._opened = opened
        #: Held for no longer than it takes to try.
        self._changing = threading.Lock()
        self._users = 0
        self._handle = -1

    @contextlib.contextmanager
    def taken(self) -> Iterator[bool]:
        """Whether this process has it now, and then for as long as this lasts."""
        with self._changing:
            is_ours = self._users > 0 or self._take()
            self._users += is_ours
        try:
            yield is_ours
        finally:
            with self._changing:
                self._users -= is_ours
                if is_ours and self._users == 0:
                    fcntl.flock(self._handle, fcntl.LOCK_UN)  # a forked child may have the descriptor, too
                    os.close(self._handle)

    def _take(self) -> bool:
        path = self._opened.at / MERGE_LOCK_FILE
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise error if isinstance(error, VeloError) else os_failure(error, str(path)) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._handle = handle
        return True
