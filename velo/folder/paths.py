"""Checks of paths that cannot hold an index: files in the way, missing folders."""

from __future__ import annotations

from pathlib import Path

from velo.errors import IndexExistsError, InvalidArgumentError, NotAnIndexError

__all__ = ["check_is_folder", "check_is_no_file"]


def check_is_folder(folder: Path) -> None:
    """Refuse to read an index where there is no folder, with NotAnIndexError.

    If the system does not allow the test, a later call reports why.
    """
    try:
        if folder.is_dir():
            return
    except OSError:
        return
    file = _file_in(folder)
    what = "is a file, and an index is a folder" if file == folder else "does not exist"
    if file is not None and file != folder:
        what += f": {file} is a file"
    hint = "velo.build(path, vectors) makes an index"
    raise NotAnIndexError(f"{folder} {what}; {hint}", argument="path")


def check_is_no_file(target: Path) -> None:
    """Refuse to make an index where a file is in the way, or where the parent folder is missing."""
    try:
        if target.is_dir() or (target.parent.is_dir() and not target.exists()):
            return
    except (OSError, ValueError):
        return
    file = _file_in(target)
    if file == target:
        raise IndexExistsError(f"{target} is a file, and an index is a folder", argument="path")
    why = "its parent folder does not exist" if file is None else f"{file} is a file"
    raise InvalidArgumentError(f"cannot create {target}: {why}", argument="path")


def _file_in(path: Path) -> Path | None:
    """The file that a path leads to or through, such as "notes.txt" in "notes.txt/shop.velo"."""
    return next((place for place in (path, *path.parents) if place.is_file()), None)
