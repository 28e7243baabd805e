"""Tokenization by SQLite's FTS5, the same in every velo and every Python; SQLite with small caches."""

from __future__ import annotations

import contextlib
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np

from velo.errors import CorruptIndexError, DeviceError, NoSpaceError, OutOfMemoryError, UnsupportedError
from velo.types import Int64Array

if TYPE_CHECKING:
    import sqlite3

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


#: Letters and digits in a row make a word, small, without accents. It is a part of the format of the file.
_TOKENIZER: Final = "unicode61 remove_diacritics 2"
#: Words of texts, each at each of its places, that are in memory at once.
_AT_ONCE: Final = 1 << 12


class Tokens:
    """Tokenizes texts, and lists the texts that contain each word.

    `path` names a temporary file; "" lets SQLite choose one, and ":memory:" uses none.
    """

    def __init__(self, path: str) -> None:
        self._database = connected(path)
        self._finalizer = weakref.finalize(self, self._database.close)
        self._database.execute(
            f"CREATE VIRTUAL TABLE texts USING fts5(text, content='', columnsize=0, tokenize='{_TOKENIZER}')"
        )
        self._database.execute("CREATE VIRTUAL TABLE words USING fts5vocab(texts, instance)")

    def take(self, texts: Iterable[tuple[int, str | None]]) -> None:
        """Take these texts, each by its row, instead of those before."""
        if self._database.in_transaction:  # what was taken before was interrupted
            self._database.execute("ROLLBACK")
        self._database.execute("INSERT INTO texts(texts) VALUES ('delete-all')")
        self._database.execute("BEGIN")
        try:
            self._database.executemany("INSERT INTO texts(rowid, text) VALUES (?, ?)", texts)
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def words(self) -> list[str]:
        return [word for (word,) in self._database.execute("SELECT DISTINCT term FROM words")]

    def postings(self) -> Iterator[tuple[list[str], Int64Array, Int64Array, Int64Array]]:
        """Some words at a time, ascending; where the entries of each begin, and of every entry the row that
        holds the word and how often it does.
        """
        found = self._database.execute("SELECT term, doc FROM words")
        terms: list[str] = []
        rows = np.zeros(0, np.int64)
        while some := found.fetchmany(_AT_ONCE):
            terms += [term for term, _ in some]
            rows = np.concatenate([rows, np.fromiter((row for _, row in some), np.int64, len(some))])
            last = bisect_left(terms, terms[-1])  # more entries of it may follow
            if last:
                yield _counted(terms[:last], rows[:last])
                terms, rows = terms[last:], rows[last:]
        if terms:
            yield _counted(terms, rows)

    def close(self) -> None:
        """Let the file go; further calls do nothing."""
        self._finalizer()


def _counted(terms: list[str], rows: Int64Array) -> tuple[list[str], Int64Array, Int64Array, Int64Array]:
    """Postings as :meth:`Tokens.postings` yields them, from words beside their places, rows ascending."""
    starts = [0, *(at for at in range(1, len(terms)) if terms[at] != terms[at - 1])]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = rows[1:] != rows[:-1]
    is_first[starts] = True
    firsts = np.flatnonzero(is_first)
    times = np.diff(np.append(firsts, len(rows)))
    return [terms[at] for at in starts], np.searchsorted(firsts, starts), rows[firsts], times


_local: Final = threading.local()


def words_in(text: str) -> list[str]:
    """The words of a text, each once."""
    with failures("text"):
        tokens: Tokens | None = getattr(_local, "tokens", None)
        if tokens is None:
            tokens = _local.tokens = Tokens(":memory:")
        tokens.take([(0, text)])
        return tokens.words()
