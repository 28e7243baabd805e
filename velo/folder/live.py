"""Whether a folder holds live data, which only the library reads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from velo.errors import UnsupportedError

__all__ = ["ROOT_FILE", "is_live", "refuse_live"]

ROOT_FILE: Final = "live.json"


def is_live(folder: Path) -> bool:
    """Whether rows of this index were changed since it was built."""
    return (folder / ROOT_FILE).is_file()


def refuse_live(folder: Path, what: str) -> None:
    """Refuse what goes with indexes only that are as they were built."""
    if is_live(folder):
        raise UnsupportedError(f"{folder} has rows that were deleted: {what}")
