"""Files that are read again when they change: exchanged by renaming another over them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

__all__ = ["FILE_BYTES_MAX", "WatchedFile"]

#: How often a file is looked at.
LOOK_S: Final = 1.0

FILE_BYTES_MAX: Final = 1 << 20


class WatchedFile:
    """Knows whether a file is another one than when it was last asked.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked_at = time.monotonic()
        self._stamp = self._stamp_now()

    def changed(self) -> bool:
        """Whether the file changed; looks once a second at most."""
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
