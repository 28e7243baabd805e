"""Consistent reads of a folder that another process may change at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from velo.errors import BusyError, VeloError
from velo.folder.leftovers import building_folder
from velo.folder.live import FOLDER_MANIFEST_FILE
from velo.folder.manifest import MANIFEST_FILE

__all__ = ["ATTEMPTS", "read_consistently"]

_Result = TypeVar("_Result")

#: How often a folder is read again that changes meanwhile, and seconds between.
ATTEMPTS: Final = 100
_BETWEEN_S: Final = 0.005


def read_consistently(folder: Path, read: Callable[[], _Result]) -> _Result:
    """Read several files of an index, and retry if they changed meanwhile.

    A first write moves the files of an index, new metadata and merges replace some, and a build with
    ``overwrite=True`` replaces the folder. A failure without such a change is raised at once. `read` must
    have no effect when it fails.
    """
    for attempt in range(ATTEMPTS):
        before = _state_of(folder)
        try:
            return read()
        except BusyError:
            raise
        except (VeloError, FileNotFoundError, NotADirectoryError):
            is_moving = before is None and building_folder(folder).is_dir()
            if attempt + 1 == ATTEMPTS or (_state_of(folder) == before and not is_moving):
                raise
        time.sleep(_BETWEEN_S)
    raise AssertionError("the last attempt returns or raises")


def _state_of(folder: Path) -> tuple[int, bytes, bytes] | None:
    """The folder's inode and the files that name all others; None: there is no folder."""
    try:
        return folder.stat().st_ino, _content(folder / FOLDER_MANIFEST_FILE), _content(folder / MANIFEST_FILE)
    except (OSError, ValueError):  # a name with a NUL
        return None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""  # to open a pipe may take for ever
    except OSError:
        return b""
