"""A number that grows with all that any process makes visible in a folder."""

from __future__ import annotations

import mmap
import os
import time
from typing import Final

from velo.errors import UnsupportedError
from velo.folder.opened import OpenedFolder
from velo.folder.replace import PAGE_FILE

#: As in zig/src/live/page.zig.
_PAGE_BYTES: Final = 4096
#: Where the counter stands in it, in words of eight bytes.
_COUNTER: Final = 3
#: What is added where the counter cannot tell: another page, or a change by this object alone.
_STEP: Final = 1 << 64
#: How often it is checked that the page is the one that writers use: it may have been deleted.
_CHECK_S: Final = 0.1


class Changes:
    """Whether a folder changed since it was last looked at, which every search asks.

    The page is mapped here and not taken from the library: an index may be closed while another thread reads
    the counter.
    """

    def __init__(self, opened: OpenedFolder, *, follows: bool) -> None:
        self._opened = opened
        self._words: memoryview | None = None
        self._base = 0
        self._file: tuple[int, int] | None = None
        #: Until then only the counter is read.
        self._check_at_s = 0.0
        #: Without a page: when the folder got its last name.
        self._at_ns = 0
        if not follows:
            self._words, self._check_at_s = memoryview(bytes(_PAGE_BYTES)).cast("Q"), float("inf")

    def stamp(self) -> int:
        """Another number once something may have changed."""
        words = self._words
        if words is None or time.monotonic() >= self._check_at_s:
            return self._checked()
        return self._base + words[_COUNTER]

    def added(self, stamp: int) -> int:
        """The stamp after a change that the counter does not show."""
        self._base += _STEP
        return stamp + _STEP

    def _checked(self) -> int:
        """The number after a look at the folder, which has no page before the first write."""
        now = time.monotonic()
        at_ns = 0 if self._words is not None else self._opened.changed_at_ns()
        if now >= self._check_at_s or at_ns != self._at_ns:
            self._map()
            self._check_at_s, self._at_ns = now + _CHECK_S, at_ns
        words = self._words
        return self._base + (at_ns if words is None else words[_COUNTER])

    def _map(self) -> None:
        """Map the page that the folder has now."""
        try:
            handle = os.open(self._opened.at / PAGE_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, UnsupportedError):
            return  # what was mapped goes on to count
        try:
            found = os.fstat(handle)
            if self._file != (found.st_dev, found.st_ino) and found.st_size >= _PAGE_BYTES:
                page = mmap.mmap(handle, _PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
                self._words = memoryview(page).cast("Q")
                self._file = found.st_dev, found.st_ino
                self._base += _STEP
        except (OSError, ValueError):
            return
        finally:
            os.close(handle)
