"""Flushes and merges: the delta and segments become new segments, while others write and search.

A view is taken, an ordinary index is built from its live rows, and one manifest puts it in the place of its
sources; rows deleted or replaced meanwhile are deleted in it from its first moment. If the process is killed
before that, the folder is unchanged: the next process that merges resumes a large merge, and removes all
else.

Of several processes that write, one flushes and merges at a time (:mod:`velo.compaction.merge_lock`). The
work of others is left to it, and they ask again later, since it may be killed. A caller of theirs waits for
it.

A flush runs beside a merge, each in a thread of its own. A writer without room waits until its rows are
indexed; it waits for others only if `merge_memory` is too small for both. A caller waits for that thread, so
an interrupt ends the wait and not the work.

While rows are written, small segments of one size are merged in a third thread, also beside a long merge: so
there are few segments at any rate of writing. A merge with the largest segment waits until no rows are
written, or until there are as many new rows as old ones. A full compaction cancels running merges; redoing
their work costs less than waiting.

A full compaction includes the delta, in one pass. These rows stay in the delta until the segment is complete.
If the delta must be flushed before, they become a segment of their own, and later rows another: the
compaction then replaces the first, too.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from velo.compaction.merge_lock import MergeLock
from velo.compaction.merge_memory import MergeMemory
from velo.compaction.segment_builder import How, LiveFolder, SegmentBuilder
from velo.compaction.sources import LargeRows, Sources
from velo.compaction.worker import Worker
from velo.errors import BusyError, CancelledError, OutOfMemoryError
from velo.segments.data import DONE
from velo.segments.view import View
from velo.types import Memory

#: In the background all gives way to searches. Writers may wait for a flush, so it goes first; a
#: merge of segments uses idle processors, and this nice value if there are none.
_NICE: Final = 10
_NICE_DELTA: Final = 5

#: How full the delta is when writes begin to be held back, and for how long one is at most.
_PAUSE_FROM: Final = 0.5
_PAUSE_MAX_S: Final = 1.0


#: Segments are examined after this many deletions, and this share of those that justify a merge.
_DIED_MIN: Final = 64
_DIED_SHARE: Final = 0.25
#: Delay of background work, so that a process that opens an index for a call or two does not wait for a
#: merge.
_LATER_S: Final = 1.0
#: Delay of background work that is left to another process; that may be killed before it gets to it.
_LEFT_S: Final = 1.0
#: How often a caller tries who waits for the work of another process.
_TRY_S: Final = 0.02
#: Writing has ended once no flush came for this many times the usual interval.
_CALM: Final = 2.0


class Compactor:
    """The flushes and merges of an open index."""

    def __init__(
        self,
        folder: LiveFolder,
        threads: int | None,
        device: str,
        merge_memory: Memory | None,
        memory: Memory | None,
    ) -> None:
        self._folder = folder
        budget = MergeMemory(merge_memory, memory, folder.live)
        self._maker = SegmentBuilder(folder, threads, device, budget, memory)
        self._merge_lock = MergeLock(folder.opened)
        #: Held while segments are merged; to exclude all merges take it first, then the others.
        self._segments_lock = threading.Lock()
        #: Held while small segments are merged, and while other merges choose their sources.
        self._sizes_lock = threading.Lock()
        #: Held while the delta becomes a segment, and while a merge that took it along is put into its place.
        self._delta_lock = threading.Lock()
        #: The folders of segments that a merge under way takes; merges of a size leave them alone.
        self._in_use: frozenset[str] = frozenset()
        #: A caller waits for the lock of small segments.
        self._sizes_give_way = False
        #: The merge that includes the delta, until the delta becomes a segment; then the name of that.
        self._taken: Sources | None = None
        self._taken_segment: str | None = None
        self._delta_worker = Worker(lambda: self._work(self._delta_worker, self._work_on_delta), self._failed)
        self._sizes_worker = Worker(lambda: self._work(self._sizes_worker, self._work_on_sizes), self._failed)
        self._segments_worker = Worker(
            lambda: self._work(self._segments_worker, self._work_on_segments), self._failed
        )
        #: Those whose last piece of work was left to another process.
        self._left: set[Worker] = set()
        self._all_wanted = False
        #: A caller waits for the next work: it does not give way to searches.
        self._is_waited_for = {self._delta_worker: False, self._segments_worker: False}
        #: Rows that died since segments were last looked at. Counts that two writers add at once may become
        #: one.
        self._died = 0
        self._failure: BaseException | None = None
        #: Rows of the delta that the last segment was made of, and the seconds that it took.
        self._pace: tuple[int, float] | None = None
        #: When that was.
        self._flushed_at_s = -math.inf

    # ---- work that a caller waits for

    def flush(self) -> None:
        """Make a part of the delta; whether segments are worth a merge is looked at soon."""
        self._wait_for(self._delta_worker)

    def optimize(self) -> None:
        """Make one segment of everything."""
        self._wait_for(self._segments_worker, everything=True)

    def _wait_for(self, worker: Worker, *, everything: bool = False) -> None:
        while True:
            self._failure = None  # now it is seen whether it fails again
            self._all_wanted |= everything  # again, after a piece that gave way to another process
            self._is_waited_for[worker] = True
            worker.wait(worker.ask())
            self._failure = None  # the caller gets it
            if worker not in self._left:
                return
            time.sleep(_TRY_S)

    def insert(self, rows: LargeRows, deadline: float | None) -> Any:
        """Make a part of the rows of a call, in this thread; a ``velo_live_done``."""
        how = How(leaves_room=True, is_beside=self._segments_worker.is_busy)
        done = self._maker.insert(rows, how, deadline)
        if done.outcome == DONE:
            with contextlib.suppress(OutOfMemoryError):
                self._segments_worker.ask(after_s=_LATER_S)
        return done

    def sweep(self) -> None:
        """Remove segments that were merged and are not in use."""
        self._maker.sweep()

    def pause(self, rows: int, pressure: float) -> float:
        """Seconds by which a write of this many rows is delayed while the delta is flushed.

        The fuller the delta, the more: before it is full, rows come as fast as they are indexed.
        """
        pace = self._pace
        if pace is None or not self._delta_worker.is_busy or pressure <= _PAUSE_FROM:
            return 0.0
        share = (min(1.0, pressure) - _PAUSE_FROM) / (1 - _PAUSE_FROM)
        return min(_PAUSE_MAX_S, share * rows * pace[1] / pace[0])

    # ---- in the background

    def resume(self) -> None:
        """Schedule work left by an earlier writer: an interrupted merge, or one that deleted rows justify."""
        if self._maker.has_begun:
            with contextlib.suppress(OutOfMemoryError):
                self._segments_worker.ask(after_s=_LATER_S)
        self.died(int(self._folder.live.info().dead_rows))

    def died(self, rows: int) -> None:
        """Count deleted rows, and examine segments soon if one may be worth a merge."""
        self._died += rows
        segments = self._folder.live.seen
        if self._died < _DIED_MIN or not segments or self._failure is not None:
            return
        if self._died >= _DIED_SHARE * DEAD_SHARE * min(segment.n for segment in segments):
            self._died = 0
            with contextlib.suppress(OutOfMemoryError):
                self._segments_worker.ask(after_s=_LATER_S)

    @property
    def failure(self) -> BaseException | None:
        """The error of the last work in the background, until it was reported."""
        return self._failure

    def begin(self, *, everything: bool = False) -> None:
        """Flush or merge in the background, unless that is under way; what failed before is raised now."""
        self._raise_failure()
        self.suggest(everything=everything)

    def suggest(self, *, everything: bool = False) -> None:
        """Flush or merge in the background, unless that is running or has failed."""
        if self._failure is not None:
            return
        with contextlib.suppress(OutOfMemoryError):  # the next request includes this one
            if everything:
                self._all_wanted = True
                self._segments_worker.ask()
            elif not self._delta_worker.is_busy:
                self._delta_worker.ask()

    def wait(self, timeout_s: float | None) -> bool:
        """Flush in the background and wait for it, or for another process that does; False where that took
        too long.
        """
        self.begin()
        ended = self._delta_worker.wait(timeout_s=timeout_s)
        self._raise_failure()
        if self._delta_worker in self._left:
            time.sleep(_TRY_S)
        return ended

    @property
    def is_here(self) -> bool:
        """Whether one of its threads asks."""
        return any(one.is_here for one in (self._delta_worker, self._sizes_worker, self._segments_worker))

    def join(self) -> None:
        """Wait for what is under way."""
        self._delta_worker.wait()  # which asks the others
        self._segments_worker.wait()
        self._sizes_worker.wait()

    def close(self) -> None:
        """Wait for what is under way; nothing further begins. Interrupted, it can be called again."""
        # In this order they ask each other; segments ask themselves, too.
        for worker in (self._delta_worker, self._segments_worker, self._sizes_worker):
            worker.forget()
            worker.wait()
            worker.forget()

    def _failed(self, failure: BaseException) -> None:
        self._failure = failure

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _how(self, worker: Worker, nice: int, *, gives_way: bool) -> How:
        """The resources of a piece of work: as much as others of the process if a caller waits for it."""
        is_waited_for, self._is_waited_for[worker] = self._is_waited_for[worker], False
        if is_waited_for:  # the delta needs little, and merges leave it that
            return How(leaves_room=worker is self._segments_worker or self._segments_worker.is_busy)
        return How(nice=nice, gives_way=gives_way, leaves_room=True)

    def _work(self, worker: Worker, piece: Callable[[], None]) -> None:
        """Do a piece of work, unless another process has the right to, or was faster."""
        with self._merge_lock.taken() as is_ours, contextlib.suppress(BusyError):
            if is_ours:
                piece()
                self._left.discard(worker)
                return
        self._left.add(worker)
        worker.ask(after_s=_LEFT_S)

    def _work_on_delta(self) -> None:
        how = self._how(self._delta_worker, _NICE_DELTA, gives_way=False)
        with self._delta_lock:
            self._flush_delta(replace(how, is_beside=self._segments_worker.is_busy))
        with contextlib.suppress(OutOfMemoryError):
            for worker in (self._sizes_worker, self._segments_worker):
                worker.ask(after_s=0 if how.nice else _LATER_S)
        self.sweep()

    def _work_on_sizes(self) -> None:
        how = How(nice=_NICE_DELTA, leaves_room=True, is_beside=True, takes_rest=True)
        with self._sizes_lock, contextlib.suppress(CancelledError, BusyError):
            while (sources := self._of_a_size()) is not None:
                # Busy: the memory of merges is taken. Whatever has it asks for this once it has ended.
                self._maker.make(sources, how, is_wanted=lambda: not self._sizes_give_way)
        self.sweep()

    def _work_on_segments(self) -> None:
        everything, self._all_wanted = self._all_wanted, False
        how = self._how(self._segments_worker, _NICE, gives_way=True)
        with self._segments_lock:
            try:
                if everything:
                    self._merge_all(how)
                else:
                    self._merge_young(how)
            finally:
                self._in_use, self._taken_segment = frozenset(), None
        with contextlib.suppress(OutOfMemoryError):
            self._sizes_worker.ask(after_s=_LATER_S)
        self.sweep()

    @contextlib.contextmanager
    def kept_away(self) -> Iterator[None]:
        """Exclude all flushes and merges; a canceled merge of small segments is repeated later."""
        with self._segments_lock, self._sizes_held(), self._delta_lock:
            yield

    @contextlib.contextmanager
    def _sizes_held(self) -> Iterator[None]:
        """Exclude merges of small segments."""
        self._sizes_give_way = True
        try:
            with self._sizes_lock:
                self._sizes_give_way = False
                yield
        finally:
            self._sizes_give_way = False

    # ---- what

    def _flush_delta(self, how: How) -> None:
        began, rows = time.monotonic(), 0
        if (taken := self._taken) is not None:
            self._taken_segment = self._maker.make(taken.of_delta, how)
            self._taken = None
            rows = len(taken.of_delta.vertices)
        sources = Sources.alive(*self._maker.look(), [], with_delta=True)
        if sources.with_delta:
            self._maker.make(sources, how)
            rows += len(sources.vertices)
        if rows:
            self._flushed_at_s = time.monotonic()
            self._pace = rows, self._flushed_at_s - began

    def _of_a_size(self) -> Sources | None:
        """Young segments that are to become one; with their lock."""
        view, names = self._maker.look()
        if self._taken is not None or self._all_wanted:  # part of the delta becomes one that is not to be had
            return None
        others = [number for number, name in enumerate(names) if name in self._in_use | {self._taken_segment}]
        segments = segments_of_a_size([segment.n for segment in view.segments], others)
        return Sources.alive(view, names, segments, with_delta=False) if segments else None

    def _go_on(self, how: How) -> None:
        """Go on with a merge that was killed."""
        if not self._maker.has_begun:
            return
        with self._sizes_held():
            begun, sources = self._maker.begun()
            self._take(sources)
        if begun is not None and sources is not None:
            self._maker.make(sources, how, begun)

    def _take(self, sources: Sources | None) -> None:
        """Record the sources of a merge; the caller holds the lock of small segments."""
        taken = [] if sources is None else [sources.names[number] for number in sources.segments]
        self._in_use = frozenset(taken)

    def _merge_young(self, how: How) -> None:
        """Merge into the largest segment, or rewrite segments with many deleted rows, while that pays."""
        self._go_on(how)
        while not self._all_wanted:  # else all rows are written again right after
            calm_at_s = self._flushed_at_s + _CALM * _LATER_S
            is_calm = not self._delta_worker.is_busy and time.monotonic() >= calm_at_s
            if self._worth_a_merge(is_calm=is_calm) is None:
                if not is_calm and self._worth_a_merge(is_calm=True) is not None:
                    with contextlib.suppress(OutOfMemoryError):
                        self._segments_worker.ask(after_s=max(_LATER_S, calm_at_s - time.monotonic()))
                return
            with self._sizes_held():
                sources = self._worth_a_merge(is_calm=is_calm)
                self._take(sources)
            if sources is not None:
                with contextlib.suppress(CancelledError):
                    self._maker.make(sources, how, is_wanted=lambda: not self._all_wanted)

    def _worth_a_merge(self, *, is_calm: bool) -> Sources | None:
        view, names = self._maker.look()
        alive = [
            segment.n if one.rows is None else one.rows.count()
            for segment, one in zip(view.segments, view.alive, strict=True)
        ]
        segments = segments_to_merge([segment.n for segment in view.segments], alive, is_calm=is_calm)
        if not segments and is_calm:
            segments = _left_alone(view)
        return Sources.alive(view, names, segments, with_delta=False) if segments else None

    def _merge_all(self, how: How) -> None:
        self._go_on(how)
        with self._sizes_held(), self._delta_lock:
            sources = self._everything(with_delta=True)
            if sources.with_delta and (not sources.segments or self._maker.goes_on(sources)):
                self._flush_delta(how)  # what goes on after a kill takes segments alone: they never change
                if sources.segments:
                    sources = self._everything(with_delta=False)
            if not sources.segments:
                return
            self._taken = sources if sources.with_delta else None
            self._take(sources)
        try:
            self._maker.make(sources, how, latest=self._latest)
        finally:
            self._taken = None

    def _everything(self, *, with_delta: bool) -> Sources:
        """All that is there; no segments where that is one and as it should be."""
        view, names = self._maker.look()
        pieces = len(view.segments) + (with_delta and bool(view.delta_alive.any()))
        is_whole = pieces <= 1 and all(one.rows is None for one in view.alive)
        if is_whole and not _left_alone(view):
            return Sources.alive(view, names, [], with_delta=with_delta)
        return Sources.alive(view, names, list(range(len(view.segments))), with_delta=with_delta)

    @contextlib.contextmanager
    def _latest(self, sources: Sources) -> Iterator[Sources]:
        """The present place of a merge's rows; one that has some of the delta keeps it unchanged."""
        if not sources.with_delta:
            yield sources
            return
        with self._delta_lock:
            is_moved, self._taken = self._taken is None, None
            yield sources.moved(*self._maker.look(), self._taken_segment) if is_moved else sources


#: Segments of about one size that become one, and how many times as many rows are another size.
_SIZE_SEGMENTS: Final = 4
#: Segments that would become one of this share of the largest one's rows are near its size.
_NEAR_SHARE: Final = 0.5
#: While no rows are written: merge all once the small segments have this share of the largest one's rows.
_YOUNG_SHARE: Final = 0.2
#: While rows are written: the same, later, because such a merge rewrites every row.
_YOUNG_SHARE_MAX: Final = 1.0
#: A segment with this share of deleted rows is rewritten.
DEAD_SHARE: Final = 0.2


def segments_to_merge(rows: Sequence[int], alive: Sequence[int], *, is_calm: bool) -> list[int]:
    """The segments to merge now, the largest among them, or one with many deleted rows; ascending, may be
    empty.

    The largest segment is written again only when it is worth it. `alive` counts the rows of each that are
    not deleted; `is_calm`: no rows are being written.
    """
    if not rows:
        return []
    base = _largest(rows)
    young = [segment for segment in range(len(rows)) if segment != base]
    share = _YOUNG_SHARE if is_calm else _YOUNG_SHARE_MAX
    if sum(alive[segment] for segment in young) >= share * max(1, rows[base]):
        return sorted([base, *young])
    for segment in range(len(rows)):
        if rows[segment] - alive[segment] >= DEAD_SHARE * rows[segment]:
            return [segment]
    return []


def _left_alone(view: View) -> list[int]:
    """The largest segment, if it is an interim one: the segment that it was built to be beside is gone."""
    largest = view.largest
    return [view.segments.index(largest)] if largest is not None and largest.is_interim else []


def segments_of_a_size(rows: Sequence[int], others: Sequence[int]) -> list[int]:
    """Small segments of about one size to merge into one of the next, without `others`; ascending, may be
    empty.

    As in a log-structured merge tree, a row is written once for each size. Segments that would come near the
    size of the largest one are left to the merge with it, unless there are twice as many before it begins.
    """
    if not rows:
        return []
    largest = _largest(rows)
    sizes: dict[int, list[int]] = {}
    for segment in range(len(rows)):
        if segment not in others and segment != largest:
            sizes.setdefault(int(math.log(rows[segment], _SIZE_SEGMENTS)), []).append(segment)
    for _, group in sorted(sizes.items()):
        is_near = sum(rows[segment] for segment in group) >= _NEAR_SHARE * rows[largest]
        if len(group) >= (2 if is_near else 1) * _SIZE_SEGMENTS:
            return group
    return []


def _largest(rows: Sequence[int]) -> int:
    return max(range(len(rows)), key=rows.__getitem__)
