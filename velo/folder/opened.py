"""The folder of an open index: identified by its descriptor, not by its path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from velo import _native
from velo.errors import ClosedError, NotAnIndexError, UnsupportedError
from velo.folder.replace import os_failure


def shown(path: Path) -> str:
    """A path for messages: relative to the current directory if it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)


class OpenedFolder:
    """A folder that stays the same one after it was opened.

    A change of directory, a rename of the folder, or another folder in its place change the meaning of a
    path, but not the folder that a descriptor refers to. So an index names all of its files by :attr:`at`.
    The library shares the descriptor: it closes after :meth:`close`, or when nothing refers to the folder any
    more, once no live data uses it. `path`, an absolute one, is the folder's name when it was opened, for
    messages.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Where the library puts its folder, and from where it takes it back.
        self._place = _native.ffi.gc(_native.ffi.new("velo_folder **"), _native.lib.velo_folder_release)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAnIndexError(f"{path} cannot be opened: {error.strerror}", argument="path") from error
        except OSError as error:
            raise os_failure(error, str(path)) from error
        _native.check(_native.lib.velo_folder_take(descriptor, self._place))
        self._descriptor = descriptor
        by_descriptor = Path(f"/proc/self/fd/{descriptor}")
        self._by_descriptor = by_descriptor if os.path.exists(by_descriptor) else None

    @property
    def native(self) -> Any:
        """The ``velo_folder``; raises where :meth:`close` was called."""
        if self._place[0] == _native.ffi.NULL:
            raise ClosedError(f"{self.path} was closed")
        return self._place[0]

    @property
    def at(self) -> Path:
        """A path that leads to the folder, whatever its name is now."""
        _ = self.native
        if self._by_descriptor is not None:
            return self._by_descriptor
        own = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path)
        except OSError:
            there = None
        if there is None or not os.path.samestat(own, there):
            raise UnsupportedError(f"{self.path} is another folder by now: open the index again")
        return self.path

    def changed_at_ns(self) -> int:
        """When a name came to the folder or went, in ticks of the system's clock; 0 after :meth:`close`."""
        try:
            return os.fstat(self._descriptor).st_mtime_ns
        except OSError:
            return 0

    def close(self) -> None:
        """Give the descriptor back; further calls do nothing."""
        _native.lib.velo_folder_release(self._place)
