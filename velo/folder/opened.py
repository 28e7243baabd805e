"""The folder of an open index: identified by its descriptor, not by its path."""

from __future__ import annotations

import os
from pathlib import Path

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
    The descriptor closes with :meth:`close`, or when nothing refers to the folder any more. `path`, an
    absolute one, is the folder's name when it was opened, for messages.
    """

    #: Also of one whose making was interrupted before it began.
    _descriptor = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotAnIndexError(f"{path} cannot be opened: {error.strerror}", argument="path") from error
        except OSError as error:
            raise os_failure(error, str(path)) from error
        by_descriptor = Path(f"/proc/self/fd/{self._descriptor}")
        self._by_descriptor = by_descriptor if os.path.exists(by_descriptor) else None

    @property
    def at(self) -> Path:
        """A path that leads to the folder, whatever its name is now."""
        if self._descriptor < 0:
            raise ClosedError(f"{self.path} was closed")
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

    def close(self) -> None:
        """Close the descriptor; further calls do nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()
