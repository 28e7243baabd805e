"""Cleanup after killed processes, in an index folder and beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from velo.errors import VeloError
from velo.folder.manifest import MANIFEST_FILE, read_manifest

__all__ = ["MARKER", "building_folder", "clean_folder", "is_metadata", "is_work", "old_prefix", "settle"]

#: Exists in a folder under construction, locked by its build (zig/src/index/folder.zig).
MARKER: Final = "building"
_COLLECTION_FILE: Final = "collection.json"
#: Files of ours that no manifest names: work, and what was about to take its name.
_WORK: Final = re.compile(
    r"(codes|points|vectors|encode|graph|parts|partitions|lists|placed_lists|placement|written)\.work(\.tmp)?"
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
    """Whether this is the name of what a build works with, or was about to name."""
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
            with _unlocked(building_folder(target)) as free:
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
        with _unlocked(fresh) as free:
            if free:
                shutil.rmtree(fresh, ignore_errors=True)
                done.append(fresh.name)
    folders = [target]
    if (target / _COLLECTION_FILE).is_file():
        folders += [entry for entry in sorted(target.iterdir()) if re.fullmatch(r"shard-\d{5}", entry.name)]
    for folder in folders:
        done += [name if folder == target else f"{folder.name}/{name}" for name in _clean_inside(folder)]
    return done


def _clean_inside(folder: Path) -> list[str]:
    if not ((folder / MANIFEST_FILE).is_file() or (folder / _COLLECTION_FILE).is_file()):
        return []  # an unfinished build: all that is there is work
    named: frozenset[str] = frozenset()
    with contextlib.suppress(VeloError):
        named = frozenset(read_manifest(folder).files)
    removed = []
    with _unlocked(folder / MARKER) as free:
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


@contextlib.contextmanager
def _unlocked(path: Path) -> Iterator[bool]:
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
