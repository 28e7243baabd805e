"""Builds a segment, an ordinary index, from rows of a view, and replaces its sources by it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from velo.building.build import build_segment
from velo.compaction.merge_memory import MergeMemory
from velo.compaction.sources import LargeRows, MergeCheckpoint, SegmentOfCall, Sources
from velo.errors import BusyError, VeloError
from velo.folder.opened import OpenedFolder
from velo.folder.replace import os_failure
from velo.options import BuildOptions, sizes_of
from velo.segments.data import DONE, LiveData
from velo.segments.segment import Segment, segment_bytes
from velo.segments.view import View
from velo.types import Memory

#: Bytes that a merge keeps of each row: its vertex, and its row in the new segment until the library has it.
_KEPT_BYTES: Final = 8

#: A segment with less than this share of the rows of another one is interim: it is searched with the list of
#: that one, and merged into it.
_INTERIM_SHARE: Final = 0.5

#: Merges of this many rows, minutes of work, write checkpoints: some 580 bytes a row more.
_RESUMED_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class How:
    """The resources of a flush or merge.

    `nice`: The nice value of the threads that link and place.
    `gives_way`: They run while processors are idle.
    `leaves_room`: In the background: it leaves a share of the budget to the other kind.
    `is_beside`: A merge runs at the same time. The build gets a quarter of the threads, because each thread
      takes memory outside the budget.
    `takes_rest`: It takes what others leave of the budget, without waiting.
    """

    nice: int = 0
    gives_way: bool = False
    leaves_room: bool = False
    is_beside: bool = False
    takes_rest: bool = False


class LiveFolder(Protocol):
    """As much of an open folder as flushes and merges need."""

    opened: OpenedFolder

    @property
    def live(self) -> LiveData: ...

    def view(self) -> View: ...

    def write(self, call: Callable[[LiveData], Any], deadline: float | None = None) -> Any: ...

    def open_segment(self, name: str, of_rows: int, beside: Segment | None) -> Segment: ...


class SegmentBuilder:
    """Makes segments of an open index.

    `threads` and `device` are those of a build, and `search_memory` is the memory of the index, all of its
    segments together.
    """

    def __init__(
        self,
        folder: LiveFolder,
        threads: int | None,
        device: str,
        memory: MergeMemory,
        search_memory: Memory | None,
    ) -> None:
        self._folder = folder
        self._threads = threads
        self._device = device
        self._memory = memory
        self._search_memory = search_memory
        #: Held while a folder exists that no manifest names yet: a sweep would remove it.
        self._making = threading.Lock()
        #: Held while a segment is opened, or closed that came to nothing. The same workers search all: of
        #: two that become the first at once the second is opened beside the other.
        self._opening = threading.Lock()
        self._open: weakref.WeakSet[Segment] = weakref.WeakSet()

    def look(self) -> tuple[View, list[str]]:
        """A view, and the folder of each of its segments."""
        view = self._folder.view()
        return view, [view.native.segment(number)[0] for number in range(view.native.segment_count)]

    def sweep(self) -> None:
        """Remove segments that were merged and are not in use."""
        with self._making:
            self._folder.live.sweep()

    @property
    def has_begun(self) -> bool:
        """Whether there may be a merge that was killed."""
        return MergeCheckpoint.are_in(self._folder.opened.at)

    def begun(self) -> tuple[MergeCheckpoint | None, Sources | None]:
        """The interrupted merge and its sources, if all of them still exist.

        No other merge of segments may run: what such merges left is removed.
        """
        begun = MergeCheckpoint.find(self._folder.opened.at)
        sources = None if begun is None else begun.sources(*self.look())
        if begun is not None and sources is None:
            begun.remove()
        return begun, sources

    @staticmethod
    def goes_on(sources: Sources) -> bool:
        """Whether a merge of these goes on after a kill."""
        return bool(sources.segments) and len(sources.vertices) >= _RESUMED_ROWS

    def make(
        self,
        sources: Sources,
        how: How,
        begun: MergeCheckpoint | None = None,
        latest: Callable[[Sources], AbstractContextManager[Sources]] = contextlib.nullcontext,
        is_wanted: Callable[[], bool] | None = None,
    ) -> str | None:
        """Make a segment, unless no row is left, and replace its sources by it.

        `latest`: Returns a context with the present place of its sources; they stay there while it lasts.
        `is_wanted`: Called while the segment is built: False cancels it.
        """
        with contextlib.ExitStack() as held:
            made = (
                self._made(sources, how, begun, held, is_wanted=is_wanted) if len(sources.vertices) else None
            )
            # Its share of the budget is free again: work that `latest` waits for may need it.
            with latest(sources) as now:
                # After a failed sync the manifest may name it; the next writer removes segments that it does
                # not name.
                self._commit(now, made)
        return None if made is None else made.name

    def insert(self, rows: LargeRows, how: How, deadline: float | None) -> Any:
        """Make a segment of the rows of a call; all of them become visible at once.

        `deadline` (monotonic clock) limits the waits for its share of the budget and for other processes
        before the segment is made. If the returned
        ``velo_live_done`` is not ``DONE``, nothing was written.
        """
        rows.wait_until(deadline)
        done = reserved = self._folder.write(lambda live: live.reserve(rows), deadline)
        if reserved.outcome != DONE or not rows.count:
            return reserved
        made: list[Segment] = []
        try:
            with contextlib.ExitStack() as held:
                segment = SegmentOfCall(self._folder.view(), rows, int(reserved.row))
                made.append(self._made(segment, how, None, held, deadline))
                rows.wait_until(None)  # after all that work
                done = self._folder.write(lambda live: live.insert_segment(rows, segment.first_row, *made))
        finally:
            if done is reserved or done.outcome != DONE:
                self._give_up(made)
        return done

    def _give_up(self, made: list[Segment]) -> None:
        """Take away the part of a call that came to nothing, unless the library has it."""
        with self._opening:
            for segment in made:
                if not self._folder.live.has(segment):
                    self._open.discard(segment)
                    segment.close()
        with contextlib.suppress(VeloError):  # then the next sweep does it
            self.sweep()

    def _made(
        self,
        sources: Sources | SegmentOfCall,
        how: How,
        begun: MergeCheckpoint | None,
        held: contextlib.ExitStack,
        deadline: float | None = None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Segment:
        """A segment of these, whose folder is held for as long as the stack lasts."""
        index = self._folder.opened.at
        with self._share(sources, how, deadline) as build_memory:
            try:
                name = held.enter_context(self._folder.live.segment_to_make())
                is_new = False
                if begun is None and isinstance(sources, Sources) and self.goes_on(sources):
                    is_new = True
                    while (begun := MergeCheckpoint.of(index, name, sources)).folder.exists():
                        # Of one that was killed and waits.
                        name = held.enter_context(self._folder.live.segment_to_make())
                folder = index / name
                building = folder if begun is None else begun.folder
                # No manifest names it yet; while held it is not mistaken for a merged one.
                with self._making:
                    building.mkdir(exist_ok=True)
                    handle = os.open(building, os.O_RDONLY | os.O_DIRECTORY)
                    held.callback(os.close, handle)
                    try:  # nor do two processes go on with one merge
                        fcntl.flock(handle, fcntl.LOCK_SH if begun is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError as error:
                        raise BusyError(f"another process works in {building.name}: try again") from error
                    unmade = held.enter_context(_removed_unless_told(building))
                if begun is not None:
                    held.callback(begun.remove)
                    if is_new:
                        begun.write()
                if begun is None or not begun.is_built:
                    self._build(
                        building, sources, how, build_memory, resume=begun is not None, is_wanted=is_wanted
                    )
                fcntl.flock(handle, fcntl.LOCK_SH)  # it is opened, and still not taken away
                building.rename(folder)
                unmade.append(folder)
                # Rows that came meanwhile take their share of the memory, too.
                of_rows = max(sources.of_rows, int(self._folder.live.info().rows))
                with self._opening:
                    made = self._folder.open_segment(name, of_rows, next(iter(self._open), None))
                    self._open.add(made)
                unmade.clear()
            except OSError as error:
                raise error if isinstance(error, VeloError) else os_failure(error, str(folder)) from error
        return made

    def _build(
        self,
        folder: Path,
        sources: Sources | SegmentOfCall,
        how: How,
        build_memory: int | None,
        *,
        resume: bool,
        is_wanted: Callable[[], bool] | None,
    ) -> None:
        like = sources.like
        threads = self._threads
        if how.is_beside:
            threads = max(1, (threads or len(os.sched_getaffinity(0))) // 4)
        vectors = sources.vectors()
        is_interim = sources.count < _INTERIM_SHARE * sources.rows_beside
        build_segment(
            folder,
            vectors,
            ids=sources.ids,
            metadata=sources.metadata(),
            metric=int(self._folder.live.info().metric),
            like=like,
            calibration=sources.calibration,
            warm_start=sources.warm_start(self._folder.opened.at, is_interim=is_interim),
            is_interim=is_interim,
            store_vectors=not sources.coded,
            threads=threads,
            device=self._device,
            build_memory=build_memory,
            search_bytes=segment_bytes(self._search_memory, sources.count, sources.of_rows, vectors.shape[1]),
            search_memory=self._search_memory,
            nice=how.nice,
            gives_way=how.gives_way,
            resume=resume,
            watch=None if is_wanted is None else lambda _stage, _done, _total: is_wanted(),
        )

    @contextlib.contextmanager
    def _share(
        self, sources: Sources | SegmentOfCall, how: How, deadline: float | None
    ) -> Iterator[int | None]:
        """The budget of the build, less what is kept of its rows beside it."""
        count, like = sources.count, sources.like
        total = self._memory.total(sources.of_rows)
        if total is None:
            yield None
            return
        degree = BuildOptions().degree if like is None else int(like.info().degree)
        least = int(sizes_of(count, sources.view.shape.dim, degree=degree).build_least_bytes)
        most = total
        if how.leaves_room:
            of_delta = self._memory.for_delta(total, degree)
            most = total - of_delta if sources.takes_segments else of_delta
        if how.takes_rest:
            most, deadline = min(most, self._memory.rest(total)), time.monotonic()
            if most < least:
                raise BusyError("other merges take the memory that this one needs")
        with self._memory.share(total, least, most, deadline) as bytes_taken:
            yield max(least, bytes_taken - count * _KEPT_BYTES)

    def _commit(self, sources: Sources, made: Segment | None) -> None:
        done = self._folder.write(
            lambda live: live.replace(
                sources.view, sources.segments, sources.taken(), made, with_delta=sources.with_delta
            )
        )
        if done.outcome != DONE:
            if made is not None:
                self._give_up([made])
            raise BusyError("another process made a segment of the same rows: try again")
        self._folder.view()  # in the place of the last one, which keeps the sources open


@contextlib.contextmanager
def _removed_unless_told(folder: Path) -> Iterator[list[Path]]:
    """Removes a folder that was made here, under the last of its names; none are left where it is to stay."""
    names = [folder]
    try:
        yield names
    finally:
        for name in names:
            shutil.rmtree(name, ignore_errors=True)
