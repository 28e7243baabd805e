"""Builds of a folder that keep a complete old one until the new one is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from velo.errors import (
    BusyError,
    IndexExistsError,
    InvalidArgumentError,
    NoSpaceError,
    VeloError,
)
from velo.folder.leftovers import MARKER, building_folder, old_prefix, settle
from velo.folder.live import is_live
from velo.folder.paths import check_is_no_file
from velo.folder.stored import system_failure

__all__ = ["durable_file", "folder_to_fill", "os_failure", "sync_folder"]


#: Errors of the system for a path that it cannot take: the caller has to name another.
_OF_A_PATH: Final = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.EINVAL,
        errno.EXDEV,
        errno.EMLINK,
        errno.EOPNOTSUPP,
    }
)


@contextlib.contextmanager
def folder_to_fill(target: Path, overwrite: bool, written_last: str) -> Iterator[Path]:
    """The folder to build in: `target`, or one beside it that replaces a complete index there.

    The name of the latter is always the same, so that a killed build is found again; a lock on it excludes a
    second build until the first has moved it into place. `written_last` is the file that makes a folder
    complete.
    """
    check_is_no_file(target)
    settle(target)
    there = (target / written_last).is_file() or is_live(target)
    if there and not overwrite and is_live(target):
        raise IndexExistsError(
            f"{target} already holds an index; overwrite=True or --overwrite replaces it", argument="path"
        )
    if not (overwrite and there):
        yield target
        return
    fresh = building_folder(target)
    try:
        fresh.mkdir(exist_ok=True)
        handle = os.open(fresh, os.O_RDONLY)
    except OSError as error:
        raise os_failure(error, str(fresh)) from error
    try:
        _lock(handle, fresh)
        if (fresh / written_last).is_file():  # killed when it was complete
            if (fresh / MARKER).is_file():  # a build knows its vectors as long as its work is there
                (fresh / written_last).unlink()
            else:
                _empty(fresh)
        try:
            yield fresh
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.rmdir()
            raise
        _swap(fresh, target)
    except OSError as error:
        raise error if isinstance(error, VeloError) else os_failure(error, str(fresh)) from error
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    """Hold the folder until the handle closes; it is the folder of that name still, not one renamed since."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(folder).st_ino == os.fstat(handle).st_ino:
            return
    except (BlockingIOError, FileNotFoundError):
        pass
    raise IndexExistsError(f"another build is at work in {folder}", argument="path")


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _swap(fresh: Path, target: Path) -> None:
    """Replace a folder by a complete one, and sync the parent folder."""
    writing = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(writing, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _swap_locked(fresh, target)
    except BlockingIOError as error:
        raise BusyError(f"another process writes to {target}: it is not replaced") from error
    finally:
        os.close(writing)


def _swap_locked(fresh: Path, target: Path) -> None:
    beside = Path(tempfile.mkdtemp(prefix=old_prefix(target), dir=target.parent))
    try:
        # An index that is open keeps its files until it closes, whatever their folder is called.
        os.rename(target, beside / "old")
        try:
            os.rename(fresh, target)
        except OSError:
            os.rename(beside / "old", target)
            raise
        sync_folder(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextlib.contextmanager
def durable_file(path: Path) -> Iterator[Any]:
    """A file that takes its name once it is complete and on the device."""
    beside = path.with_name(f"{path.name}.part")
    try:
        with open(beside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def os_failure(error: OSError, file: str) -> VeloError:
    """The typed error of what the system refused."""
    message = f"{file}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpaceError(message, file=file)
    if error.errno is None or error.errno in _OF_A_PATH:
        return InvalidArgumentError(message, file=file)
    return system_failure(error, message, file)
