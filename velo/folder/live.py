"""Whether an index has live data (``live.json``), and the folders of its segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from velo.errors import CorruptIndexError, UnsupportedError
from velo.folder.paths import check_is_folder

__all__ = ["FOLDER_MANIFEST_FILE", "SEGMENT_FIRST", "data_folder", "data_folders", "is_live", "refuse_live"]

FOLDER_MANIFEST_FILE: Final = "live.json"
#: The segment that a built index becomes with its first write.
SEGMENT_FIRST: Final = "part-0000000000000001"


def is_live(folder: Path) -> bool:
    """Whether rows of this index were changed since it was built."""
    return (folder / FOLDER_MANIFEST_FILE).is_file()


def data_folders(folder: Path) -> list[Path]:
    """The folders with the files of an index: its own, or those of its segments.

    Raises
    ------
    CorruptIndexError
        ``live.json`` cannot be read.
    """
    check_is_folder(folder)
    if not is_live(folder):
        return [folder]
    try:
        names = [
            str(segment["path"])
            for segment in json.loads((folder / FOLDER_MANIFEST_FILE).read_bytes())["parts"]
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptIndexError(
            f"{FOLDER_MANIFEST_FILE} cannot be read: {error}", file=FOLDER_MANIFEST_FILE
        ) from error
    for name in names:
        if Path(name).name != name:
            raise CorruptIndexError(
                f"{FOLDER_MANIFEST_FILE} names a part outside: {name!r}", file=FOLDER_MANIFEST_FILE
            )
    return [folder / name for name in names]


def data_folder(folder: Path) -> Path:
    """The folder with the files of an index of one segment.

    Raises
    ------
    CorruptIndexError
        ``live.json`` cannot be read.
    UnsupportedError
        The index has several segments, or none.
    """
    folders = data_folders(folder)
    if len(folders) == 1:
        return folders[0]
    raise UnsupportedError(f"{folder} has {len(folders)} parts: optimize it first, so that it has one")


def refuse_live(folder: Path, what: str) -> None:
    """Refuse an operation on indexes that were written to since they were built."""
    if is_live(folder):
        raise UnsupportedError(f"{folder} has rows that came or went: {what}")
