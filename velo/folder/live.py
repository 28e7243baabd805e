"""Whether a folder holds live data, and where the index in it lies; all else only the library reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from velo.errors import CorruptIndexError, UnsupportedError

__all__ = ["ROOT_FILE", "data_folder", "is_live", "refuse_live"]

ROOT_FILE: Final = "live.json"


def is_live(folder: Path) -> bool:
    """Whether rows of this index were changed since it was built."""
    return (folder / ROOT_FILE).is_file()


def data_folder(folder: Path) -> Path:
    """Where the files of an index lie: the folder itself, or its part.

    Raises
    ------
    CorruptIndexError
        ``live.json`` names none.
    """
    if not is_live(folder):
        return folder
    try:
        (part,) = json.loads((folder / ROOT_FILE).read_bytes())["parts"]
        name = str(part["path"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptIndexError(f"{ROOT_FILE} cannot be read: {error}", file=ROOT_FILE) from error
    if Path(name).name != name:
        raise CorruptIndexError(f"{ROOT_FILE} names a part outside: {name!r}", file=ROOT_FILE)
    return folder / name


def refuse_live(folder: Path, what: str) -> None:
    """Refuse what goes with indexes only that are as they were built."""
    if is_live(folder):
        raise UnsupportedError(f"{folder} has rows that were deleted: {what}")
