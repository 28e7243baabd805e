"""A copy of an index at one moment: files that never change get a second name, the log is copied."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from velo.errors import CorruptIndexError, IndexExistsError, VeloError
from velo.folder.manifest import (
    COLLECTION_FILE,
    FOLDER_MANIFEST_FILE,
    MANIFEST_FILE,
    read_folder_manifest,
    read_manifest,
)
from velo.folder.metadata import generation_in, words_name
from velo.folder.replace import os_failure, read_consistently, sync_folder

#: Errors of a file system without hard links, or across file systems.
_NO_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS})


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


@dataclass
class OpenFiles:
    """Open files of an index at one moment, which stay readable while merges remove them.

    `handles`: Descriptors by names below the folder, without ``live.json``, whose content is `manifest`.
    """

    manifest: bytes | None = None
    log: str = ""
    handles: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> OpenFiles:
        """Open the files; call `close` afterwards."""
        return read_consistently(folder, lambda: cls._open(folder))

    @classmethod
    def _open(cls, folder: Path) -> OpenFiles:
        manifest = read_folder_manifest(folder)
        opened = cls(manifest.text, manifest.log)
        try:
            for name in (*manifest.files, *([] if manifest.text is None else [manifest.log])):
                opened._add(folder, name)
            for one in manifest.segments:
                files = read_manifest(folder / one.path).files
                words = words_name(max(1, generation_in(folder / one.path)))
                for name in (*files, MANIFEST_FILE):
                    opened._add(folder, f"{one.path}/{name}")
                with contextlib.suppress(FileNotFoundError):  # made again where it is missing
                    opened._add(folder, f"{one.path}/{words}")
                if read_manifest(folder / one.path).files != files:  # new metadata came meanwhile
                    raise CorruptIndexError(f"{one.path} has other files now", file=MANIFEST_FILE)
        except BaseException:
            opened.close()
            raise
        return opened

    def _add(self, folder: Path, name: str) -> None:
        self.handles[name.removeprefix("./")] = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        while self.handles:
            os.close(self.handles.popitem()[1])


def _fill_last(source: Path, fresh: Path) -> None:
    """Fill a new folder, from a root that stays until all that it names is copied."""

    def fill() -> None:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        _fill(source, fresh)

    read_consistently(source, fill)


def _fill(source: Path, fresh: Path) -> None:
    manifest = read_folder_manifest(source)
    for one in manifest.segments:
        (fresh / one.path).mkdir(exist_ok=True)
        _link_index(source / one.path, fresh / one.path)
    for name in manifest.files:
        _link(source / name, fresh / name)
    for one in manifest.segments:
        sync_folder(fresh / one.path)
    if manifest.text is not None:
        _copy(source / manifest.log, fresh / manifest.log)  # the writer goes on in its own
        with open(fresh / FOLDER_MANIFEST_FILE, "wb") as file:
            file.write(manifest.text)
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
