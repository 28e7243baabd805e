"""Files of lines that are read again when they change: a file is replaced by a rename."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from velo.errors import FormatError
from velo_serving.protocol.errors import AliasFileError, UnknownCollectionError
from velo_serving.routing.backend import Backend

#: How often a file is looked at.
LOOK_S: Final = 1.0

_FILE_BYTES_MAX: Final = 1 << 20


log = logging.getLogger("velo_serving")


class WatchedFile:
    """A file that is read again when it changes; if that fails, its content stays, and the log says why.

    ``take`` reads the file and returns how many things of a kind it has.
    """

    def __init__(self, path: Path, kind: str, take: Callable[[Path], int]) -> None:
        self._path = path
        self._kind = kind
        self._take = take
        self._looked_at = time.monotonic()
        self._stamp = self._stamp_now()

    def refresh(self) -> None:
        """Read the file if it changed; checks once a second at most."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            before, self._stamp = self._stamp, self._stamp_now()
            if self._stamp != before:
                self.reload()

    def reload(self) -> None:
        try:
            log.info("%s is read: %d %s", self._path, self._take(self._path), self._kind)
        except FormatError as error:
            log.error("the %s stay as they were: %s", self._kind, error)

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            found = os.stat(self._path)
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size


def read_lines(path: Path, wrong: Callable[[str, str], Exception]) -> Iterator[tuple[str, list[str]]]:
    """Yield position and fields of each line except empty lines and comments; ``wrong`` makes the errors."""
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise wrong(str(path), f"cannot be read: {error.strerror}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise wrong(str(path), f"has more than {_FILE_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise wrong(str(path), "is no text") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield f"{path}, line {number}", words


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


class Aliases:
    """The aliases of a file, with a line ``ALIAS COLLECTION`` for each, read again when it changes."""

    def __init__(self, path: str | Path, backend: Backend) -> None:
        self._file = WatchedFile(Path(path), "aliases", self._take)
        self._backend = backend
        self.reload = self._file.reload
        self._take(Path(path))

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._file.refresh()

    def _take(self, path: Path) -> int:
        found = _read_aliases(path)
        try:
            self._backend.alias(found)
        except UnknownCollectionError as error:
            raise AliasFileError(f"{path}: {error}", file=str(path), argument="aliases") from None
        return len(found)


def _read_aliases(path: Path) -> dict[str, str]:
    def wrong(place: str, why: str) -> AliasFileError:
        return AliasFileError(f"{place}: {why}", file=str(path), argument="aliases")

    found: dict[str, str] = {}
    for place, words in read_lines(path, wrong):
        if len(words) != 2 or not _NAME.fullmatch(words[0]):
            raise wrong(place, "a line reads 'ALIAS COLLECTION'")
        if found.setdefault(words[0], words[1]) != words[1]:
            raise wrong(place, "this alias has another collection above")
    return found
