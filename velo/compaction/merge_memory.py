"""The memory budget of flushes and merges: each takes its share of it while it runs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from velo.errors import BudgetTooSmallError, BusyError
from velo.options import memory_bytes, sizes_of
from velo.options.checks import is_share
from velo.segments.data import LiveData
from velo.types import Memory

__all__ = ["MergeMemory"]

#: Of the budget at most this share is left to the delta by merges: a row of the delta takes about as much as
#: in a build, and the delta a tenth of `memory`.
_DELTA_SHARE: Final = 1 / 8


class MergeMemory:
    """Divides one budget between the flushes and merges that run, first come, first served.

    In the background a flush gets a share that merges leave to it, so neither waits for the other. If the
    budget is too small for both, a merge takes all of it, and they take turns.

    Parameters
    ----------
    named : int, float, str or None
        As users give it. A share, or a budget derived from `memory`, counts as at least the need of the
        segment: only a number of bytes can be too small.
    memory : int, float, str or None
        Of the index: the default for `named`. None: there is no bound.

    Raises
    ------
    BudgetTooSmallError
        A full delta cannot become a segment within `named`.
    """

    def __init__(self, named: Memory | None, memory: Memory | None, live: LiveData) -> None:
        self._given = memory if named is None else named
        info = live.info()
        self._dim = live.shape().dim
        self._delta_rows = int(info.delta_bytes_max) // live.shape().delta_row_bytes
        self._taken = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()
        #: Memory of the build of a full delta, with no links counted.
        self._delta_least = int(sizes_of(self._delta_rows, self._dim).build_least_bytes)
        self._has_floor = named is None or is_share(named)
        self._least = self._delta_least if self._has_floor else 1
        total = self.total(int(info.rows) + self._delta_rows)
        if total is not None:
            _check(self._delta_least, total)

    @property
    def taken(self) -> int:
        """Bytes in use by those that run."""
        return self._taken

    def total(self, rows: int) -> int | None:
        """The budget of an index with this number of rows; None: there is none."""
        if self._given is None:
            return None
        return max(self._least, memory_bytes(self._given, rows, self._dim, "merge_memory"))

    def for_delta(self, total: int, degree: int) -> int:
        """The share that merges leave to the delta: a full one is built in one piece, if that is little."""
        full = sizes_of(self._delta_rows, self._dim, degree=degree)
        share = min(full.build_whole_bytes, int(total * _DELTA_SHARE))
        return int(min(total, max(full.build_least_bytes, share)))

    def rest(self, total: int) -> int:
        """The most that a merge may take beside others, so that a full delta can still become a segment."""
        return max(0, (total - self._taken) * 3 // 4 - self._delta_least)

    @contextlib.contextmanager
    def share(self, total: int, least: int, most: int, deadline: float | None = None) -> Iterator[int]:
        """Take a share of `total` while the context lasts; waits until `least` bytes are free, up to
        `deadline`.

        Yields the bytes taken, at most `most`; if `most` is below `least`, all that is free.

        Raises
        ------
        BudgetTooSmallError
            At once: the whole budget is less than `least`.
        BusyError
            Others used too much of it until the deadline (monotonic clock).
        """
        if self._has_floor:
            total = max(total, least)
        _check(least, total)
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._changed.wait_for(
                    lambda: self._waiting[0] is turn and total - self._taken >= least, left
                ):
                    raise BusyError("other merges take the memory that these rows need: try again")
                free = total - self._taken
                bytes_taken = free if most < least else min(most, free)
                self._taken += bytes_taken
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield bytes_taken
        finally:
            with self._changed:
                self._taken -= bytes_taken
                self._changed.notify_all()


def _check(least: int, total: int) -> None:
    if total < least:
        raise BudgetTooSmallError(
            f"merge_memory is {total:,} bytes; a segment takes {least:,} bytes at least",
            argument="merge_memory",
            needed_bytes=least,
        )
