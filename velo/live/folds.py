"""Folds: parts are made of the delta, or of everything, while others write and search.

A view is taken, an ordinary index is built from what lives in it, and one root puts it in the place of its
sources; what was deleted or replaced meanwhile is dead in it from its first moment. Killed before that, the
folder is what it was, and the next writer takes away what was begun.

In the background the delta becomes a part while parts become one: a writer without room waits for its rows to
be indexed, never for all others. Of each kind there is one at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from velo.errors import UnsupportedError, VeloError
from velo.folder.replace import os_failure
from velo.live.data import DONE, LiveData
from velo.live.fold_rows import FoldRows
from velo.live.view import View
from velo.options import memory_bytes
from velo.search.segment import Segment
from velo.types import AnyArray, Memory

__all__ = ["Builder", "Folds", "parts_to_fold", "set_builder"]

#: Parts of about one size that are folded into one, and how many times as many rows are another size.
_SIZE_PARTS: Final = 4
#: All is folded into one part once the young ones have this share of the rows of the largest.
_YOUNG_SHARE: Final = 0.2
#: Parts that an index has at most, however often it is flushed: every search asks all of them.
_PARTS_MAX: Final = 32
#: A part of which this share is dead is made anew.
_DEAD_SHARE: Final = 0.2

#: How much a fold in the background gives way to searches: the nice value of the threads that link.
#: Writers may wait for one of the delta, so it goes before one of parts.
_NICE: Final = 10
_NICE_DELTA: Final = 5

#: Budget of a fold of the delta while one of parts has all of the other: of the 64 MiB that stand beside.
_BESIDE_BYTES: Final = 20 << 20

#: How full the delta is when writes begin to be held back, and for how long one is at most.
_PAUSE_FROM: Final = 0.5
_PAUSE_MAX_S: Final = 1.0

#: Of a vertex whose row no new part has, as velo.h spells it.
_GONE: Final = np.iinfo(np.uint32).max


class Builder(Protocol):
    """Builds a part in an empty folder; :mod:`velo.building` brings it, which stands above this room."""

    def __call__(
        self,
        path: Path,
        vectors: Any,
        *,
        ids: Any,
        metadata: Any,
        metric: int,
        like: Segment | None,
        calibration: Mapping[str, Any] | None,
        former: tuple[Path, AnyArray] | None,
        threads: int | None,
        build_memory: Memory | None,
        nice: int,
    ) -> None: ...


_builder: Builder | None = None


def set_builder(builder: Builder) -> None:
    """Say what builds parts."""
    global _builder
    _builder = builder


class _Lane:
    """Work of one kind in the background, one piece after the other; the state's lock guards what it says."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.work = work
        self.thread: threading.Thread | None = None
        #: There is more to do than what is under way.
        self.wanted = False


@dataclass(frozen=True)
class _Share:
    """How much of the machine a fold takes.

    Attributes
    ----------
    nice : int
    is_beside : bool
        Another fold goes on and has the budget: little memory, and a quarter of the threads, each of which
        takes memory beside that.
    """

    nice: int = 0
    is_beside: bool = False


_ALONE: Final = _Share()


class Folds:
    """The folds of an open index.

    Parameters
    ----------
    live : LiveData
    open_part : callable
        Opens a part by its name, of a folder of so many rows.
    threads : int or None
        Of a build.
    merge_memory : int, float, str or None
        Budget of a build.
    """

    def __init__(
        self,
        live: LiveData,
        open_part: Callable[[str, int], Segment],
        threads: int | None,
        merge_memory: Memory | None,
    ) -> None:
        self._live = live
        self._open_part = open_part
        self._threads = threads
        self._merge_memory = merge_memory
        #: Held by whoever folds the delta; taken before that of parts by who folds both.
        self._delta_lock = threading.Lock()
        self._parts_lock = threading.Lock()
        #: Held while parts change, and while what is said of them has to be of one moment.
        self._changing = threading.Lock()
        self._state = threading.Condition()
        self._delta_lane = _Lane("velo-fold", self._work_on_delta)
        self._parts_lane = _Lane("velo-merge", self._work_on_parts)
        self._all_wanted = False
        self._failure: BaseException | None = None
        #: Rows of the delta that the last part was made of, and the seconds that it took.
        self._pace: tuple[int, float] | None = None

    # ---- in the caller's thread

    def flush(self) -> None:
        """Make a part of the delta."""
        self.join()
        with self.kept_away():
            self._failure = None  # now it is seen whether it fails again
            self._fold_delta(_ALONE)
            if len(self._live.segments) > _PARTS_MAX:
                self._fold_young(_ALONE)

    def optimize(self) -> None:
        """Make one part of everything."""
        self.join()
        with self.kept_away():
            self._failure = None
            self._fold_all(_ALONE, with_delta=True)

    @contextlib.contextmanager
    def kept_away(self) -> Iterator[None]:
        """No fold begins or ends inside."""
        with self._delta_lock, self._parts_lock:
            yield

    def sweep(self) -> None:
        """Take away parts that were folded and that nobody holds."""
        with self._changing:
            self._live.sweep()

    def pause(self, rows: int, pressure: float) -> float:
        """Seconds by which a write of so many rows is held back while the delta becomes a part.

        The fuller the delta, the more: before it is full, rows come as fast as they are indexed.
        """
        pace = self._pace
        if pace is None or self._delta_lane.thread is None or pressure <= _PAUSE_FROM:
            return 0.0
        share = (min(1.0, pressure) - _PAUSE_FROM) / (1 - _PAUSE_FROM)
        return min(_PAUSE_MAX_S, share * rows * pace[1] / pace[0])

    # ---- in the background

    @property
    def failure(self) -> BaseException | None:
        """What the last fold in the background failed of, until somebody was told."""
        return self._failure

    def begin(self, *, everything: bool = False) -> None:
        """Fold in the background, unless that is under way; what failed before is raised now."""
        with self._state:
            self._raise_failure()
        self.suggest(everything=everything)

    def suggest(self, *, everything: bool = False) -> None:
        """Fold in the background, unless that is under way or has failed: who asks needs no room yet."""
        with self._state:
            if self._failure is not None:
                return
            if everything:
                self._all_wanted = True
                self._ask(self._parts_lane)
            elif self._delta_lane.thread is None:
                self._ask(self._delta_lane)

    def _ask(self, lane: _Lane) -> None:
        """Have a lane work, once more where it does so already; with the state's lock held."""
        lane.wanted = True
        if lane.thread is None:
            lane.thread = threading.Thread(target=self._run, args=(lane,), name=lane.name, daemon=True)
            lane.thread.start()

    def _run(self, lane: _Lane) -> None:
        failure: BaseException | None = None
        while True:
            with self._state:
                if failure is not None or not lane.wanted:
                    self._failure = failure or self._failure
                    lane.wanted, lane.thread = False, None
                    self._state.notify_all()
                    return
                lane.wanted = False
            try:
                lane.work()
                self.sweep()
            except BaseException as error:
                failure = error

    def _work_on_delta(self) -> None:
        with self._delta_lock:
            busy = self._parts_lane.thread is not None
            self._fold_delta(_Share(nice=_NICE_DELTA, is_beside=busy))
        with self._state:
            self._ask(self._parts_lane)

    def _work_on_parts(self) -> None:
        share = _Share(nice=_NICE)
        with self._state:
            everything, self._all_wanted = self._all_wanted, False
        if everything:
            with self._delta_lock:
                self._fold_delta(share)
        with self._parts_lock:
            if everything:
                self._fold_all(share, with_delta=False)
            else:
                self._fold_young(share)

    def wait(self, timeout_s: float | None) -> bool:
        """Fold the delta in the background and wait for it; False where that took too long."""
        self.begin()
        with self._state:
            ended = self._state.wait_for(lambda: self._delta_lane.thread is None, timeout_s)
            self._raise_failure()
        return ended

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def join(self) -> None:
        """Wait for what is under way in the background."""
        with self._state:
            lanes = (self._delta_lane, self._parts_lane)
            self._state.wait_for(lambda: all(lane.thread is None for lane in lanes))

    # ---- how

    def _fold_delta(self, share: _Share) -> None:
        began = time.monotonic()
        view, names = self._look()
        rows = np.flatnonzero(view.delta_alive)
        if not view.native.delta_rows:
            return
        vertices = rows + sum(segment.n for segment in view.segments)
        self._fold(view, names, [], vertices, share, with_delta=True)
        self._pace = max(1, len(rows)), time.monotonic() - began

    def _fold_young(self, share: _Share) -> None:
        """Fold parts until none of them is to be folded: a row is written once a size, not once a part."""
        while True:
            view, names = self._look()
            alive = [
                segment.n if one.rows is None else one.rows.count()
                for segment, one in zip(view.segments, view.alive, strict=True)
            ]
            parts = parts_to_fold(
                [segment.n for segment in view.segments],
                alive,
                [segment.stores_vectors for segment in view.segments],
            )
            if not parts:
                return
            self._fold_parts(view, names, parts, share, with_delta=False)

    def _fold_all(self, share: _Share, *, with_delta: bool) -> None:
        view, names = self._look()
        dead = any(one.rows is not None for one in view.alive)
        if len(view.segments) <= 1 and not dead and not (with_delta and view.native.delta_rows):
            return
        for segment in view.segments:
            if not segment.stores_vectors:
                raise UnsupportedError(
                    f"{self._live.folder / segment.name} stores no vectors, so its rows cannot be built "
                    "again: build it with store_vectors=True"
                )
        self._fold_parts(view, names, list(range(len(view.segments))), share, with_delta=with_delta)

    def _look(self) -> tuple[View, list[str]]:
        """A view, and the folder of each of its parts."""
        with self._changing:
            return self._live.view(), [name for name, _ in self._live.parts()]

    def _fold_parts(
        self, view: View, names: list[str], parts: list[int], share: _Share, *, with_delta: bool
    ) -> None:
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        wanted = np.zeros(view.n, bool)
        for part in parts:
            wanted[starts[part] : starts[part + 1]] = True
        wanted[starts[-1] :] = with_delta
        vertices = np.flatnonzero(wanted & view.alive_rows())
        self._fold(view, names, parts, vertices, share, with_delta=with_delta)

    def _fold(
        self,
        view: View,
        names: list[str],
        parts: list[int],
        vertices: AnyArray,
        share: _Share,
        *,
        with_delta: bool,
    ) -> None:
        live = self._live
        if len(vertices) == 0:
            self._commit(view, parts, None, with_delta)
            return
        largest = max(range(len(names)), key=lambda part: view.segments[part].n, default=None)
        like = None if largest is None else view.segments[largest]
        name = live.next_part()
        folder = live.folder / name
        assert _builder is not None, "velo.building was not imported"
        with contextlib.ExitStack() as held:
            try:
                # Nobody names it yet: held, it is not taken for one that was folded.
                with self._changing:
                    folder.mkdir()
                    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                    held.callback(os.close, handle)
                    fcntl.flock(handle, fcntl.LOCK_SH)
                _builder(
                    folder,
                    FoldRows(view, vertices),
                    ids=view.ids.of(vertices),
                    metadata=None if view.metadata is None else view.metadata.rows(vertices),
                    metric=int(live.info().metric),
                    like=like,
                    calibration=None if like is None else like.calibration,
                    former=self._former(view, names, parts, vertices),
                    threads=self._threads_of(share),
                    build_memory=self._memory_of(share, view),
                    nice=share.nice,
                )
                made = self._open_part(name, view.n)
            except OSError as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise error if isinstance(error, VeloError) else os_failure(error, str(folder)) from error
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            try:
                self._commit(view, parts, made, with_delta)
            except BaseException:
                # Where a sync failed the root may name it: the next writer takes away what it does not name.
                made.close()
                raise

    def _threads_of(self, share: _Share) -> int | None:
        if not share.is_beside:
            return self._threads
        return max(1, (self._threads or len(os.sched_getaffinity(0))) // 4)

    def _memory_of(self, share: _Share, view: View) -> int | None:
        """A share is one of all rows."""
        if self._merge_memory is None:
            return None
        bound = max(1, memory_bytes(self._merge_memory, view.n, view.shape.dim))
        return min(bound, _BESIDE_BYTES) if share.is_beside else bound

    def _former(
        self, view: View, names: list[str], parts: list[int], vertices: AnyArray
    ) -> tuple[Path, AnyArray] | None:
        """The largest of these parts, and the row in the new one of each of its vertices."""
        if not parts:
            return None
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        number = max(parts, key=lambda part: view.segments[part].n)
        first, end = starts[number], starts[number + 1]
        rows = np.full(end - first, _GONE, np.uint32)
        own = np.flatnonzero((vertices >= first) & (vertices < end))
        rows[vertices[own] - first] = own
        return self._live.folder / names[number], rows

    def _commit(self, view: View, parts: list[int], made: Segment | None, with_delta: bool) -> None:
        with self._changing:
            done = self._live.fold(view, parts, with_delta, made)
        assert done.outcome == DONE, "folds of the same rows come one at a time"


def parts_to_fold(rows: Sequence[int], alive: Sequence[int], stored: Sequence[bool]) -> list[int]:
    """Which parts are to become one now; none of them where nothing is to be done.

    As in a log-structured merge tree, parts of about one size become one of the next. So a row is written
    once a size. The largest part, which has most rows, is written anew only when it is worth it.

    Parameters
    ----------
    rows, alive : sequence of int
        Of each part: its rows, and those of them that live.
    stored : sequence of bool
        Whether it stores its vectors. What stores none cannot be built again.

    Returns
    -------
    list of int
        Ascending.
    """
    if not rows:
        return []
    base = max(range(len(rows)), key=rows.__getitem__)
    young = [part for part in range(len(rows)) if part != base]
    if all(stored) and sum(alive[part] for part in young) >= _YOUNG_SHARE * max(1, rows[base]):
        return sorted([base, *young])
    for part in range(len(rows)):
        if stored[part] and rows[part] - alive[part] >= _DEAD_SHARE * rows[part]:
            return [part]
    sizes: dict[int, list[int]] = {}
    for part in young:
        if stored[part]:
            sizes.setdefault(int(math.log(rows[part], _SIZE_PARTS)), []).append(part)
    for _, group in sorted(sizes.items()):
        if len(group) >= _SIZE_PARTS:
            return group
    return []
