"""Folds: parts are made of the delta, or of everything, while others write and search.

One at a time. A view is taken, an ordinary index is built from what lives in it, and one root puts it in
the place of its sources; what was deleted or replaced meanwhile is dead in it from its first moment. Killed
before that, the folder is what it was, and the next writer takes away what was begun.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from velo.errors import UnsupportedError, VeloError
from velo.folder.replace import os_failure
from velo.live.data import DONE, LiveData
from velo.live.view import View
from velo.search.segment import Segment
from velo.types import AnyArray, Memory

__all__ = ["Builder", "Folds", "parts_to_fold", "set_builder"]

#: Rows that are read at a time, in bytes of float32.
_READ_BYTES: Final = 8 << 20
#: Parts of about one size that are folded into one, and how many times as many rows are another size.
_SIZE_PARTS: Final = 4
#: All is folded into one part once the young ones have this share of the rows of the largest.
_YOUNG_SHARE: Final = 0.2
#: Parts that an index has at most, however often it is flushed: every search asks all of them.
_PARTS_MAX: Final = 32
#: A part of which this share is dead is made anew.
_DEAD_SHARE: Final = 0.2

#: How much a fold in the background gives way to searches: the nice value of the threads that link.
_NICE: Final = 10

#: Of a vertex whose row no new part has, as velo.h spells it.
_GONE: Final = np.iinfo(np.uint32).max


class Builder(Protocol):
    """Builds a part; :mod:`velo.building` brings it, which stands above this room."""

    def __call__(
        self,
        path: Path,
        vectors: Any,
        *,
        ids: Any,
        metadata: Any,
        metric: int,
        like: Segment | None,
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
        self._fold_lock = threading.Lock()
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        #: Held with the fold lock: the fold under way gives way to searches.
        self._gives_way = False

    # ---- in the caller's thread

    def flush(self) -> None:
        """Make a part of the delta."""
        self.join()
        with self._fold_lock:
            self._failure = None  # now it is seen whether it fails again
            self._fold_delta()
            if len(self._live.segments) > _PARTS_MAX:
                self._fold_young()

    def optimize(self) -> None:
        """Make one part of everything."""
        self.join()
        with self._fold_lock:
            self._failure = None
            self._fold_all()

    @contextlib.contextmanager
    def kept_away(self) -> Iterator[None]:
        """No fold begins or ends inside."""
        with self._fold_lock:
            yield

    def sweep(self) -> None:
        """Take away parts that were folded and that nobody holds, unless a part is in the making.

        Whoever makes one sweeps afterwards: a part that no root names yet looks like one that was folded.
        """
        if self._fold_lock.acquire(blocking=False):
            try:
                self._live.sweep()
            finally:
                self._fold_lock.release()

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
            if self._thread is not None or self._failure is not None:
                return
            self._thread = threading.Thread(
                target=self._work, args=(everything,), name="velo-fold", daemon=True
            )
            self._thread.start()

    def _work(self, everything: bool) -> None:
        try:
            with self._fold_lock, self._giving_way():
                if everything:
                    self._fold_all()
                else:
                    self._fold_delta()
                    self._fold_young()
                self._live.sweep()
        except BaseException as error:
            with self._state:
                self._failure = error
        finally:
            with self._state:
                self._thread = None
                self._state.notify_all()

    @contextlib.contextmanager
    def _giving_way(self) -> Iterator[None]:
        self._gives_way = True
        try:
            yield
        finally:
            self._gives_way = False

    def wait(self, timeout_s: float | None) -> bool:
        """Fold the delta in the background and wait for it; False where that took too long."""
        self.begin()
        with self._state:
            ended = self._state.wait_for(lambda: self._thread is None, timeout_s)
            self._raise_failure()
        return ended

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def join(self) -> None:
        """Wait for what is under way in the background."""
        with self._state:
            self._state.wait_for(lambda: self._thread is None)

    # ---- how

    def _fold_delta(self) -> None:
        view = self._live.view()
        if not view.native.delta_rows:
            return
        rows = np.flatnonzero(view.delta_alive)
        vertices = rows + sum(segment.n for segment in view.segments)
        self._fold(view, [], vertices, lambda _: view.delta_vectors()[rows], with_delta=True)

    def _fold_young(self) -> None:
        """Fold parts until none of them is to be folded: a row is written once a size, not once a part."""
        while True:
            view = self._live.view()
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
            self._fold_parts(view, parts, with_delta=False)

    def _fold_all(self) -> None:
        view = self._live.view()
        dead = any(one.rows is not None for one in view.alive)
        if len(view.segments) <= 1 and not dead and not view.native.delta_rows:
            return
        for segment in view.segments:
            if not segment.stores_vectors:
                raise UnsupportedError(
                    f"{self._live.folder / segment.name} stores no vectors, so its rows cannot be built "
                    "again: build it with store_vectors=True"
                )
        self._fold_parts(view, list(range(len(view.segments))), with_delta=True)

    def _fold_parts(self, view: View, parts: list[int], with_delta: bool) -> None:
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        wanted = np.zeros(view.n, bool)
        for part in parts:
            wanted[starts[part] : starts[part + 1]] = True
        wanted[starts[-1] :] = with_delta
        vertices = np.flatnonzero(wanted & view.alive_rows())
        self._fold(
            view,
            parts,
            vertices,
            lambda folder: self._vectors(view, vertices, folder),
            with_delta=with_delta,
        )

    def _vectors(self, view: View, vertices: AnyArray, folder: Path) -> AnyArray:
        """All rows in a file that is mapped, so that they take no memory."""
        shape = view.shape
        size = (len(vertices), shape.dim)
        rows = np.lib.format.open_memmap(folder / "vectors.npy", "w+", shape.dtype, size)
        step = max(1, _READ_BYTES // (4 * shape.dim))
        for start in range(0, len(vertices), step):
            rows[start : start + step] = view.vectors(vertices[start : start + step])
        rows.flush()
        mapped: AnyArray = np.load(folder / "vectors.npy", mmap_mode="r")
        return mapped

    def _fold(
        self,
        view: View,
        parts: list[int],
        vertices: AnyArray,
        vectors_of: Callable[[Path], AnyArray],
        *,
        with_delta: bool,
    ) -> None:
        live = self._live
        if len(vertices) == 0:
            self._commit(view, parts, None, with_delta)
            return
        name = live.next_part()
        folder, work = live.folder / name, live.folder / f"{name}.work"
        assert _builder is not None, "velo.building was not imported"
        try:
            work.mkdir()
            _builder(
                folder,
                vectors_of(work),
                ids=view.ids.of(vertices),
                metadata=None if view.metadata is None else view.metadata.rows(vertices),
                metric=int(live.info().metric),
                like=max(view.segments, key=lambda segment: segment.n, default=None),
                former=self._former(view, parts, vertices),
                threads=self._threads,
                build_memory=self._merge_memory,
                nice=_NICE if self._gives_way else 0,
            )
            made = self._open_part(name, view.n)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise error if isinstance(error, VeloError) else os_failure(error, str(folder)) from error
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
        try:
            self._commit(view, parts, made, with_delta)
        except BaseException:
            # Where a sync failed the root may name it: the next writer takes away what it does not name.
            made.close()
            raise

    def _former(self, view: View, parts: list[int], vertices: AnyArray) -> tuple[Path, AnyArray] | None:
        """The largest of these parts, and the row in the new one of each of its vertices."""
        if not parts:
            return None
        starts = np.cumsum([0, *(segment.n for segment in view.segments)])
        number = max(parts, key=lambda part: view.segments[part].n)
        first, end = starts[number], starts[number + 1]
        rows = np.full(end - first, _GONE, np.uint32)
        own = np.flatnonzero((vertices >= first) & (vertices < end))
        rows[vertices[own] - first] = own
        return self._live.folder / self._live.parts()[number][0], rows

    def _commit(self, view: View, parts: list[int], made: Segment | None, with_delta: bool) -> None:
        done = self._live.fold(view, parts, with_delta, made)
        assert done.outcome == DONE, "folds come one at a time"


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
