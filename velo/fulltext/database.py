"""SQLite with small caches and no journals; its failures become velo's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from velo.errors import CorruptIndexError, DeviceError, NoSpaceError, OutOfMemoryError, UnsupportedError

if TYPE_CHECKING:
    import sqlite3

__all__ = ["CACHE_BYTES", "connected", "failures", "read_only"]

#: Pages that a connection keeps in memory at most.
CACHE_BYTES: Final = 128 << 10
_PAGE_BYTES: Final = 8192


def _sqlite() -> Any:
    """Import sqlite3 on demand: some Pythons are built without it (UnsupportedError)."""
    try:
        import sqlite3
    except ImportError as error:
        raise UnsupportedError(
            "full-text search needs SQLite, and this Python was built without it"
        ) from error
    return sqlite3


def connected(path: str) -> sqlite3.Connection:
    """A database to fill, which is of no use before it is complete; "": one that lives in a file of its own,
    which goes with the connection.
    """
    connection: sqlite3.Connection = _sqlite().connect(path, isolation_level=None, check_same_thread=False)
    for pragma in (
        f"page_size={_PAGE_BYTES}",
        f"cache_size=-{CACHE_BYTES >> 10}",
        "journal_mode=OFF",
        "synchronous=OFF",
        "locking_mode=EXCLUSIVE",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def read_only(path: Path) -> sqlite3.Connection:
    """A database that never changes."""
    uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
    connection: sqlite3.Connection = _sqlite().connect(
        uri, uri=True, isolation_level=None, check_same_thread=False
    )
    connection.execute(f"PRAGMA cache_size=-{CACHE_BYTES >> 10}").fetchall()
    return connection


@contextlib.contextmanager
def failures(file: str) -> Iterator[None]:
    """Raise SQLite's failures as errors that name a file; UnsupportedError if it has no FTS5."""
    module = _sqlite()
    try:
        yield
    except MemoryError as error:
        raise OutOfMemoryError(f"{file}: SQLite is out of memory", file=file) from error
    except module.Error as error:
        said = str(error)
        if "no such module" in said:
            raise UnsupportedError(
                "full-text search needs FTS5, and the SQLite of this Python was built without it"
            ) from error
        if "disk is full" in said:
            raise NoSpaceError(f"{file}: {said}", file=file) from error
        if "disk I/O" in said or "unable to open" in said:
            raise DeviceError(f"{file}: {said}", file=file) from error
        raise CorruptIndexError(f"{file} cannot be read: {said}", file=file) from error
