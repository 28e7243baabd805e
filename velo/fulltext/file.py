"""The full-text index of some rows as a file: written once, never changed, and derived from the rows.

It is an SQLite database. Rows are divided into blocks; each word of a block has one entry with the rows that
contain it and how often. A checksum of the database follows at the end of the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo.errors import CorruptIndexError, VeloError
from velo.folder.replace import os_failure, sync_folder
from velo.folder.stored import read_failure
from velo.fulltext.tokens import CACHE_BYTES, Tokens, connected, failures, read_only
from velo.types import AnyArray, Int64Array

#: Texts of some rows, from one to the one before another; None: a row has none.
Texts = Callable[[int, int], Sequence[str | None]]

#: Changes with the format of the file and with the tokenization.
_FORMAT: Final = "1"
#: Rows of a block: their places in it take two bytes.
_BLOCK: Final = 1 << 16
#: Texts that are in memory at once.
_AT_ONCE: Final = 1024
#: Words that one query names: older versions of SQLite take no more than 999.
_ASKED_AT_ONCE: Final = 500
#: How often a word is counted in a row, and words in a row, at most.
_TIMES_MAX: Final = 2**8 - 1
_LENGTH_MAX: Final = 2**16 - 1
#: Behind the database: its sum, and that it is one.
_END: Final = struct.Struct("<I12s")
_MARK: Final = b"velo words 1"
_CHUNK_BYTES: Final = 1 << 20

_SCHEMA: Final = (
    "CREATE TABLE about(name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE postings(block INTEGER, word TEXT, data BLOB, PRIMARY KEY(block, word)) WITHOUT ROWID",
    "CREATE TABLE lengths(block INTEGER PRIMARY KEY, data BLOB)",
)


class Words:
    """The full-text index of some rows."""

    def __init__(self, connection: Any, file: str) -> None:
        self._database = connection
        self._finalizer = weakref.finalize(self, connection.close)
        self._file = file
        #: Whether they could not be read at some place.
        self.damaged = False
        #: One cursor at a time; none is held while rows are scored.
        self._lock = threading.Lock()
        about = dict(self._asked("SELECT name, value FROM about"))
        try:
            self.stamp = str(about["stamp"])
            if about["format"] != _FORMAT:
                raise ValueError(f"format {about['format']!r}")
            self.row_count, self.with_words, self.word_count = (
                int(about[name]) for name in ("rows", "with_words", "words")
            )
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptIndexError(f"{file} cannot be read: {error}", file=file) from error

    @classmethod
    def opened(cls, path: Path, stamp: str) -> Words:
        """Open a file after checking all of it; `stamp` identifies the rows that it was made from."""
        check_sum(path)
        with failures(path.name):
            words = cls(read_only(path), path.name)
        if words.stamp != stamp:
            words.close()
            raise CorruptIndexError(f"{path.name} belongs to other rows", file=path.name)
        return words

    @classmethod
    def beside(cls, texts: Texts, row_count: int, name: str) -> Words:
        """An index in a temporary file of SQLite, which is removed with it."""
        with failures(name):
            database = connected("")
            try:
                _fill(database, texts, row_count, name)
            except BaseException:
                database.close()
                raise
            return cls(database, name)

    @property
    def memory_bytes(self) -> int:
        """The most memory that it takes."""
        return CACHE_BYTES

    def close(self) -> None:
        """Let the file go; further calls do nothing."""
        with self._lock:
            self._finalizer()

    def _asked(self, query: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock, failures(self._file):
                return list(self._database.execute(query, tuple(values)).fetchall())
        except CorruptIndexError:
            self.damaged = True
            raise

    def frequencies(self, words: Sequence[str], check: Callable[[], None]) -> Int64Array:
        """The number of rows with each of some words; `check` is called now and then."""
        found = dict.fromkeys(words, 0)
        for block in range(self._blocks):
            for start in range(0, len(words), _ASKED_AT_ONCE):
                check()
                some = words[start : start + _ASKED_AT_ONCE]
                marks = ",".join("?" * len(some))
                for word, size in self._asked(
                    f"SELECT word, length(data) FROM postings WHERE block=? AND word IN ({marks})",
                    (block, *some),
                ):
                    found[word] += size // 3
        return np.array(list(found.values()), np.int64)

    @property
    def _blocks(self) -> int:
        return -(-self.row_count // _BLOCK)

    def blocks(
        self, words: Sequence[str]
    ) -> Iterator[tuple[int, AnyArray, list[tuple[str, AnyArray, AnyArray]]]]:
        """Block by block: its first row, how many words each of its rows has, and of each of some words that
        it holds the rows that have it, counted from the first, and how often each does.
        """
        marks = ",".join("?" * len(words))
        for block in range(self._blocks):
            found = self._asked(
                f"SELECT word, data FROM postings WHERE block=? AND word IN ({marks})", (block, *words)
            )
            if not found:
                continue
            lengths = self._asked("SELECT data FROM lengths WHERE block=?", (block,))
            size = min(_BLOCK, self.row_count - block * _BLOCK)
            try:
                of_rows = np.frombuffer(lengths[0][0], "<u2")
                postings = [(word, *_unpacked(data, size)) for word, data in found]
                if len(of_rows) != size:
                    raise ValueError(f"{len(of_rows)} lengths of {size} rows")
            except (ValueError, IndexError, TypeError) as error:
                self.damaged = True
                raise CorruptIndexError(f"{self._file} cannot be read: {error}", file=self._file) from error
            yield block * _BLOCK, of_rows, postings


def _unpacked(data: Any, row_count: int) -> tuple[AnyArray, AnyArray]:
    count = len(data) // 3
    rows = np.frombuffer(data, "<u2", count)
    if len(data) != 3 * count or (count and int(rows.max()) >= row_count):
        raise ValueError("a word has rows beyond the end")
    return rows, np.frombuffer(data, np.uint8, count, 2 * count)


def _fill(database: Any, texts: Texts, row_count: int, stamp: str) -> None:
    """Write the words of all texts."""
    for command in _SCHEMA:
        database.execute(command)
    with contextlib.closing(Tokens("")) as tokens:
        total = with_words = 0
        database.execute("BEGIN")
        for block, first in enumerate(range(0, row_count, _BLOCK)):
            end = min(row_count, first + _BLOCK)
            lengths = np.zeros(end - first, np.int64)

            def rows(first: int = first, end: int = end) -> Iterator[tuple[int, str | None]]:
                for start in range(first, end, _AT_ONCE):
                    some = texts(start, min(end, start + _AT_ONCE))
                    yield from ((start - first + at, text) for at, text in enumerate(some) if text)

            def entries(block: int = block, lengths: AnyArray = lengths) -> Iterator[tuple[int, str, bytes]]:
                for words, starts, places, times in tokens.postings():
                    lengths += np.bincount(places, times, len(lengths)).astype(np.int64)
                    row_bytes = places.astype("<u2").tobytes()
                    time_bytes = np.minimum(times, _TIMES_MAX).astype(np.uint8).tobytes()
                    ends = [*starts[1:].tolist(), len(places)]
                    for word, start, end in zip(words, starts.tolist(), ends, strict=True):
                        yield block, word, row_bytes[2 * start : 2 * end] + time_bytes[start:end]

            tokens.take(rows())
            database.executemany("INSERT INTO postings VALUES (?, ?, ?)", entries())
            capped = np.minimum(lengths, _LENGTH_MAX).astype("<u2")
            database.execute("INSERT INTO lengths VALUES (?, ?)", (block, capped.tobytes()))
            total += int(lengths.sum())
            with_words += int(np.count_nonzero(lengths))
        about = {
            "format": _FORMAT,
            "stamp": stamp,
            "rows": row_count,
            "with_words": with_words,
            "words": total,
        }
        database.executemany("INSERT INTO about VALUES (?, ?)", about.items())
        database.execute("COMMIT")


def write_words(path: Path, texts: Texts, row_count: int, stamp: str) -> None:
    """Write the full-text index of some rows; the file gets its name once it is complete and synced.

    All writers write the same contents, so their order does not matter. `stamp` identifies the rows.
    """
    _remove_left(path)
    beside = path.with_name(f"{path.name}.{os.urandom(4).hex()}.part")
    try:
        with open(beside, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shows that it is being written
            with failures(path.name), contextlib.closing(connected(str(beside))) as database:
                _fill(database, texts, row_count, stamp)
            total, size = _sum(beside)
            file.seek(size)
            file.write(_END.pack(total, _MARK))
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError) and not isinstance(error, VeloError):
            raise os_failure(error, str(path)) from error
        raise


def _remove_left(path: Path) -> None:
    """Take away what killed processes left of this file."""
    with contextlib.suppress(OSError):
        for left in path.parent.glob(f"{path.name}.*.part"):
            with contextlib.suppress(OSError), open(left, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def _sum(path: Path, end: int | None = None) -> tuple[int, int]:
    """The sum of a file up to a place, and the place."""
    total, size = 0, 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES if end is None else min(_CHUNK_BYTES, end - size)):
            total = zlib.crc32(chunk, total)
            size += len(chunk)
    return total, size


def check_sum(path: Path) -> None:
    """Read a whole file and verify its checksum."""
    try:
        with open(path, "rb") as file:
            end = max(0, os.fstat(file.fileno()).st_size - _END.size)
            file.seek(end)
            last = file.read(_END.size)
        found = _sum(path, end)[0]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_failure(error, path.name) from error
    if len(last) != _END.size or _END.unpack(last) != (found, _MARK):
        raise CorruptIndexError(f"{path.name} is damaged", file=path.name)
