"""Other names of collections, from a file that is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Final

from velo_serving.gateway.watched import LOOK_S, WatchedFile, read_lines
from velo_serving.protocol.errors import AliasFileError, UnknownCollectionError
from velo_serving.routing.backend import Backend

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")

log = logging.getLogger("velo_serving")


class Aliases:
    """The aliases of a file, with a line ``ALIAS COLLECTION`` for each, read again when it changes.

    If the file is damaged, or names a collection that is not served, the aliases stay, and the log says why.
    """

    def __init__(self, path: str | Path, backend: Backend) -> None:
        self._path = Path(path)
        self._backend = backend
        self._watched = WatchedFile(self._path)
        self._take()

    def reload(self) -> None:
        try:
            self._take()
            log.info("%s is read: %d aliases", self._path, len(self._backend.aliases))
        except AliasFileError as error:
            log.error("the aliases stay as they were: %s", error)

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._watched.changed():
                self.reload()

    def _take(self) -> None:
        found = _read_aliases(self._path)
        try:
            self._backend.alias(found)
        except UnknownCollectionError as error:
            raise AliasFileError(f"{self._path}: {error}", file=str(self._path), argument="aliases") from None


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
