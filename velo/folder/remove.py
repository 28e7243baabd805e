"""Removal of an index: the files that velo made, and nothing else."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from velo.errors import BusyError, CorruptIndexError, NotAnIndexError, VeloError
from velo.folder.manifest import COLLECTION_FILE, FOLDER_MANIFEST_FILE, MANIFEST_FILE, read_manifest
from velo.folder.replace import MARKER, is_metadata, is_work, os_failure, sync_folder, without_writers
from velo.folder.shards import shards_of

#: Exists in a folder from the beginning of its removal until all else is removed.
_REMOVING: Final = "removing"
#: Files that describe a folder; one of them at least is in a complete index or collection.
_MANIFESTS: Final = (MANIFEST_FILE, FOLDER_MANIFEST_FILE, COLLECTION_FILE)
#: Files that no manifest names.
_LIVE: Final = re.compile(
    r"live\.json(\.tmp|\.moved)?|live\.page|(merge|rows)\.lock|log-[0-9a-f]{16}\.velolog(\.torn|\.moved)?"
    r"|dead-[0-9a-f]{16}\.bin|ids\.find"
)
_BUILT: Final = frozenset(
    {"pages.bin", "page_starts.bin", "links.bin", "codes.bin", "vectors.bin", "ids.arrow", MARKER}
)
_SEGMENT: Final = re.compile(r"part-[0-9a-f]{16}")


def is_half_removed(folder: Path) -> bool:
    """Whether the removal of an index began here and was killed: it may be done again."""
    return (folder / _REMOVING).is_file()


def remove_index(folder: Path) -> list[str]:
    """Remove an index or a collection of shards; other files stay, with their folders.

    Open indexes continue to work. A removal that is killed leaves a folder that is recognized as half
    removed. Returns the names of what remains below the folder.
    """
    there = any((folder / one).is_file() for one in _MANIFESTS)
    if folder.is_symlink() or not (there or is_half_removed(folder)):
        raise NotAnIndexError(f"{folder} holds no index", file=str(folder))
    try:
        folders = [folder]
        if (folder / COLLECTION_FILE).is_file():
            with contextlib.suppress(CorruptIndexError):  # then its shards are not known as ours
                folders += [folder / one.path for one in shards_of(folder)]
        with contextlib.ExitStack() as locks:
            for one in folders:
                locks.enter_context(_no_writer(one))
            (folder / _REMOVING).touch()
            sync_folder(folder)
            for one in reversed(folders):
                _remove_inside(one)
        with contextlib.suppress(FileNotFoundError):
            sync_folder(folder.parent)
    except OSError as error:
        raise error if isinstance(error, VeloError) else os_failure(error, str(folder)) from error
    left = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(str(path.relative_to(folder)) for path in left)


def _remove_inside(folder: Path) -> None:
    """Remove what is ours in the folder of an index, then the folder if it is empty."""
    if folder.is_symlink() or not folder.is_dir():
        return
    named: frozenset[str] = frozenset()
    with contextlib.suppress(VeloError):
        named = frozenset(read_manifest(folder).files)
    last = (*_MANIFESTS, _REMOVING)
    for entry in sorted(folder.iterdir()):
        name = entry.name
        if entry.is_symlink():
            continue
        if entry.is_dir():
            if _SEGMENT.fullmatch(name):
                _remove_inside(entry)
        elif name not in last and (
            name in named or name in _BUILT or _LIVE.fullmatch(name) or is_metadata(name) or is_work(name)
        ):
            entry.unlink()
    for name in last:  # until then it is known what this is
        if not (folder / name).is_symlink():
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


@contextlib.contextmanager
def _no_writer(folder: Path) -> Iterator[None]:
    """Keep writers away from an index; a missing index needs none."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(without_writers(folder))
        except BlockingIOError as error:
            raise BusyError(f"a process writes to {folder}: it is not removed") from error
        yield
