"""Replacement of a folder, cleanup after killed processes, and consistent reads while others change it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from velo.errors import BusyError, IndexExistsError, InvalidArgumentError, NoSpaceError, VeloError
from velo.folder.manifest import (
    COLLECTION_FILE,
    FOLDER_MANIFEST_FILE,
    MANIFEST_FILE,
    check_is_no_file,
    read_manifest,
)
from velo.folder.stored import system_failure

#: Shared by all processes that write to an index, who hold a lock on it (zig/src/live/page.zig).
PAGE_FILE: Final = "live.page"
#: Exists in a folder under construction, locked by its build (zig/src/index/folder.zig).
MARKER: Final = "building"
#: Files of velo that no manifest names: work files, and files before their final rename.
_WORK: Final = re.compile(
    r"(codes|points|vectors|encode|graph|parts|partitions|lists|placed_lists|placed_codes|placement|written)\.work(\.tmp)?"
    r"|(manifest\.json|vectors\.bin)\.tmp|(ids\.arrow|collection\.json)\.part"
)
#: Metadata, complete or about to take its name (:mod:`velo.folder.metadata`).
_METADATA: Final = re.compile(
    r"columns(\.[0-9]+)?\.(arrow|stats|postings|words(\.[0-9a-f]{8}(?=\.part))?)(\.part)?"
)


def building_folder(target: Path) -> Path:
    """The folder in which the successor of `target` is built."""
    return target.parent / f".{target.name}.building"


def is_metadata(name: str) -> bool:
    """Whether this is the name of a file of metadata, of whatever generation."""
    return _METADATA.fullmatch(name) is not None


def is_work(name: str) -> bool:
    """Whether this is the name of a work file of a build, or of a file before its final rename."""
    return _WORK.fullmatch(name) is not None


def old_prefix(target: Path) -> str:
    """The prefix of folders in which the old `target` is kept until its successor is in place."""
    return f".{target.name}.old-"


def settle(target: Path) -> list[str]:
    """Finish the replacement of a folder that was killed: restore the old one if the new one is not in place.

    Nothing is done while another process builds there. Returns the names that were restored or removed.
    """
    done: list[str] = []
    with contextlib.suppress(OSError):
        olds = [entry for entry in target.parent.iterdir() if entry.name.startswith(old_prefix(target))]
        for beside in olds:
            with unlocked(building_folder(target)) as free:
                if not free:
                    return done
                if not target.exists() and (beside / "old").is_dir():
                    os.rename(beside / "old", target)
                shutil.rmtree(beside, ignore_errors=True)
                done.append(beside.name)
    return done


def clean_folder(target: Path) -> list[str]:
    """Remove everything that killed processes left in an index or a collection, and beside it.

    This includes unfinished builds that could be resumed. Other files stay, and so does a build that is
    running. Returns the names that were restored or removed.
    """
    done = settle(target)
    fresh = building_folder(target)
    if fresh.is_dir():
        with unlocked(fresh) as free:
            if free:
                shutil.rmtree(fresh, ignore_errors=True)
                done.append(fresh.name)
    folders = [target]
    if (target / COLLECTION_FILE).is_file():
        folders += [entry for entry in sorted(target.iterdir()) if re.fullmatch(r"shard-\d{5}", entry.name)]
    for folder in folders:
        done += [name if folder == target else f"{folder.name}/{name}" for name in _clean_inside(folder)]
    return done


def _clean_inside(folder: Path) -> list[str]:
    if not ((folder / MANIFEST_FILE).is_file() or (folder / COLLECTION_FILE).is_file()):
        return []  # an unfinished build: all that is there is work
    named: frozenset[str] = frozenset()
    with contextlib.suppress(VeloError):
        named = frozenset(read_manifest(folder).files)
    removed = []
    with unlocked(folder / MARKER) as free:
        if not free:
            return []
        for entry in sorted(folder.iterdir()):
            ours = is_work(entry.name) or (
                is_metadata(entry.name)
                and not entry.name.endswith(".words")  # which no manifest names
                and (named or entry.name.endswith(".part"))
            )
            if entry.is_file() and ours and entry.name not in named:
                entry.unlink(missing_ok=True)
                removed.append(entry.name)
        if (folder / MARKER).is_file():
            (folder / MARKER).unlink()
            removed.append(MARKER)
    return removed


def try_lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether a lock of an open file or folder was free."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def without_writers(folder: Path) -> Iterator[None]:
    """Keep writers away from an index; BlockingIOError where there are some.

    They hold the page that they share from the beginning to the end, and the folder during a call.
    """
    with contextlib.ExitStack() as held:
        for path in (folder, folder / PAGE_FILE):
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                continue
            held.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@contextlib.contextmanager
def unlocked(path: Path) -> Iterator[bool]:
    """Whether no process builds there; while this lasts none begins to."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield True  # nothing there to be locked
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


# ---- consistent reads

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


# ---- replacement

#: Errors of the system for a path that it cannot take: the caller has to name another.
_OF_A_PATH: Final = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.EINVAL, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP),
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
    is_written = (target / FOLDER_MANIFEST_FILE).is_file()
    there = is_written or (target / written_last).is_file()
    if is_written and not overwrite:
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
    try:
        with without_writers(target):
            _swap_locked(fresh, target)
    except BlockingIOError as error:
        raise BusyError(f"another process writes to {target}: it is not replaced") from error


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
