"""A copy of an index at one moment: files that never change get a second name, the log is copied."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from velo.errors import CorruptIndexError, IndexExistsError, VeloError
from velo.folder.manifest import COLLECTION_FILE, FOLDER_MANIFEST_FILE, MANIFEST_FILE, is_live, read_manifest
from velo.folder.metadata import generation_in, words_name
from velo.folder.replace import os_failure, read_consistently, sync_folder

#: Errors of a file system without hard links, or across file systems.
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})
#: Beside the files of a segment that its manifest names (zig/src/live/find.zig).
_FIND_FILE: Final = "ids.find"


def snapshot(source: Path, target: Path, shards: Sequence[str] = ()) -> None:
    """Make `target` an index with the contents of `source`, which others may write to.

    It has everything that was written before the call; each write during the call is in it as a whole or not
    at all. The folder gets its name when it is complete and synced. `target` must be missing or an empty
    folder. `shards` are the folders of a collection's shards, each of which is copied at a moment of its own.
    """
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise IndexExistsError(f"{target} already exists and is not empty", argument="path")
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise os_failure(error, str(target.parent)) from error
    try:
        fresh = beside / "snapshot"
        if shards:
            fresh.mkdir()
            for name in shards:
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                _fill_last(source / name, fresh / name)
            _copy(source / COLLECTION_FILE, fresh / COLLECTION_FILE)
            sync_folder(fresh)
        else:
            _fill_last(source, fresh)
        os.chmod(fresh, source.stat().st_mode & 0o777)
        os.rename(fresh, target)
        sync_folder(target.parent)
    except OSError as error:
        raise error if isinstance(error, VeloError) else os_failure(error, str(target)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fill_last(source: Path, fresh: Path) -> None:
    """Fill a new folder, from a root that stays until all that it names is copied."""

    def fill() -> None:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        _fill(source, fresh)

    read_consistently(source, fill)


def _fill(source: Path, fresh: Path) -> None:
    if not is_live(source):
        _link_index(source, fresh)
        sync_folder(fresh)
        return
    root = (source / FOLDER_MANIFEST_FILE).read_bytes()
    try:
        document = json.loads(root)
        segments = [str(segment["path"]) for segment in document["parts"]]
        dead = [str(segment["dead"]) for segment in document["parts"] if segment.get("dead") is not None]
        log = str(document["first_log"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptIndexError(
            f"{FOLDER_MANIFEST_FILE} cannot be read: {error}", file=FOLDER_MANIFEST_FILE
        ) from error
    for name in (*segments, *dead, log):
        if Path(name).name != name:
            raise CorruptIndexError(
                f"{FOLDER_MANIFEST_FILE} names a file outside: {name!r}", file=FOLDER_MANIFEST_FILE
            )
    for name in segments:
        (fresh / name).mkdir()
        _link_index(source / name, fresh / name)
        _link(source / name / _FIND_FILE, fresh / name / _FIND_FILE)
        sync_folder(fresh / name)
    for name in dead:
        _link(source / name, fresh / name)
    _copy(source / log, fresh / log)  # the writer goes on in its own
    with open(fresh / FOLDER_MANIFEST_FILE, "wb") as file:
        file.write(root)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(fresh)


def _link_index(source: Path, fresh: Path) -> None:
    for name in read_manifest(source).files:
        if Path(name).name != name:
            raise CorruptIndexError(f"{MANIFEST_FILE} names a file outside: {name!r}", file=MANIFEST_FILE)
        _link(source / name, fresh / name)
    _link(source / MANIFEST_FILE, fresh / MANIFEST_FILE)
    missing = [name for name in read_manifest(fresh).files if not (fresh / name).exists()]
    if missing:  # new metadata came between the two looks at the manifest
        raise CorruptIndexError(f"{missing[0]} is missing from the index", file=missing[0])
    with contextlib.suppress(FileNotFoundError):  # made again where it is missing
        words = words_name(max(1, generation_in(fresh)))
        _link(source / words, fresh / words)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        _copy(source, target)


def _copy(source: Path, target: Path) -> None:
    try:
        with open(source, "rb") as file, open(target, "xb") as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            target.unlink()
        raise
