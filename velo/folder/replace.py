"""Filling a folder so that what is complete there stays until the new one is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from velo.errors import (
    IndexExistsError,
    InvalidArgumentError,
    NoSpaceError,
    PermissionDeniedError,
    VeloError,
)

__all__ = ["MANIFEST_FILE", "folder_to_fill", "index_to_fill", "os_failure"]

MANIFEST_FILE: Final = "manifest.json"


@contextlib.contextmanager
def index_to_fill(target: Path, overwrite: bool) -> Iterator[Path]:
    """Where to build an index: `target`, or a folder beside it that takes its place when it is complete.

    That folder is always the same one, so that a killed build is found again; a lock on it keeps two builds
    apart until one of them has put it into its place.
    """
    if not (overwrite and (target / MANIFEST_FILE).is_file()):
        yield target
        return
    fresh = target.parent / f".{target.name}.building"
    try:
        fresh.mkdir(exist_ok=True)
        handle = os.open(fresh, os.O_RDONLY)
    except OSError as error:
        raise os_failure(error, str(fresh)) from error
    try:
        _lock(handle, fresh)
        if (fresh / MANIFEST_FILE).is_file():  # killed when it was complete: of which vectors, nobody knows
            for entry in fresh.iterdir():
                entry.unlink()
        try:
            yield fresh
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.rmdir()
            raise
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
        try:
            # An index that is open keeps its files until it closes, whatever their folder is called.
            os.rename(target, beside / "old")
            try:
                os.rename(fresh, target)
            except OSError:
                os.rename(beside / "old", target)
                raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
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


@contextlib.contextmanager
def folder_to_fill(target: Path, overwrite: bool, written_last: str) -> Iterator[Path]:
    """Where to build: `target`, or a folder beside it that takes the place of what is complete there."""
    if not (overwrite and (target / written_last).is_file()):
        yield target
        return
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.building-", dir=target.parent))
    except OSError as error:
        raise os_failure(error, str(target.parent)) from error
    try:
        fresh = beside / "new"
        yield fresh
        # An index that is open keeps its files: they stay until it closes, whatever their folder is called.
        os.rename(target, beside / "old")
        try:
            os.rename(fresh, target)
        except OSError:
            os.rename(beside / "old", target)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def os_failure(error: OSError, file: str) -> VeloError:
    """The typed error of what the system refused."""
    message = f"{file}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpaceError(message, file=file)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDeniedError(message, file=file)
    return InvalidArgumentError(message, file=file)
