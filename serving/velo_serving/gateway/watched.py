"""Files of lines that are read again when they change: exchanged by renaming another over them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

#: How often a file is looked at.
LOOK_S: Final = 1.0

_FILE_BYTES_MAX: Final = 1 << 20


class WatchedFile:
    """Knows whether a file is another one than when it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_at = time.monotonic()
        self._stamp = self._stamp_now()

    def changed(self) -> bool:
        """Whether the file changed; checks once a second at most."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        stamp = self._stamp_now()
        before, self._stamp = self._stamp, stamp
        return stamp != before

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
