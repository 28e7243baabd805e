"""Folds: parts are made of the delta, or of everything, while others write and search.

One at a time. A view is taken, an ordinary index is built from what lives in it, and one root puts it in
the place of its sources; what was deleted or replaced meanwhile is dead in it from its first moment. Killed
before that, the folder is what it was, and the next writer takes away what was begun.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from velo.errors import UnsupportedError, VeloError
from velo.folder.replace import os_failure
from velo.live.data import DONE, LiveData
from velo.live.view import View
from velo.search.segment import Segment
from velo.types import AnyArray, Memory

__all__ = ["Builder", "Folds", "set_builder"]

#: Rows that are read at a time, in bytes of float32.
_READ_BYTES: Final = 8 << 20
#: Young parts that are made before all are folded into one.
_PARTS_MAX: Final = 8

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
                if everything or (len(self._live.segments) >= _PARTS_MAX and self._is_whole()):
                    self._fold_all()
                else:
                    self._fold_delta()
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

    def _is_whole(self) -> bool:
        return all(segment.stores_vectors for segment in self._live.segments)

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
        self._fold(view, [], vertices, lambda _: view.delta_vectors()[rows])

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
        vertices = np.flatnonzero(view.alive_rows())
        self._fold(
            view,
            list(range(len(view.segments))),
            vertices,
            lambda folder: self._vectors(view, vertices, folder),
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
        self, view: View, parts: list[int], vertices: AnyArray, vectors_of: Callable[[Path], AnyArray]
    ) -> None:
        live = self._live
        if len(vertices) == 0:
            self._commit(view, parts, None)
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
            self._commit(view, parts, made)
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

    def _commit(self, view: View, parts: list[int], made: Segment | None) -> None:
        done = self._live.fold(view, parts, True, made)
        assert done.outcome == DONE, "folds come one at a time"
