"""Writes to a collection of shards: each row goes to the shard that holds its id, or will hold it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final, Literal, TypeVar

import numpy as np

from velo.errors import BusyError, DuplicateIdError, VeloError
from velo.filters.arrow_values import arrow_of
from velo.filters.compiler import of_rows
from velo.folder.ids import checked_ids
from velo.folder.metadata import given_metadata
from velo.folder.replace import os_failure, try_lock
from velo.folder.shards import homes
from velo.folder.sides import side_of
from velo.index.folder import OpenFolder
from velo.index.writer import Writer, distinct_count, seconds
from velo.results import Written
from velo.search.snapshot import Snapshot
from velo.segments.added import NewColumns
from velo.segments.columns import given_columns
from velo.segments.lifetime import LifetimeGuard
from velo.segments.rows import (
    ROW,
    RowShape,
    check_finite,
    checked_row_ids,
    given_vectors,
    in_type,
    request_bytes,
)
from velo.types import AnyArray

Answer = TypeVar("Answer")

#: How long a call without a timeout waits for another process, and how often it tries.
_WAIT_S: Final = 60.0
_TRY_S: Final = 0.002


class ShardWriter:
    """The writes of :class:`velo.ShardedIndex`, one after another; shards write at the same time.

    A write is atomic within each shard. Everything that can be refused is refused before any shard writes.
    """

    def __init__(self, folders: Sequence[OpenFolder], names: Sequence[str], guard: LifetimeGuard) -> None:
        self._folders = folders
        self._names = names
        self._guard = guard
        self.writers = [Writer(one) for one in folders]
        #: Held from the lookup of rows to the end of the write.
        self.lock = threading.Lock()

    def insert(
        self, vectors: Any, ids: Any, metadata: Any, request: Any, timeout_s: Any, *, upsert: bool
    ) -> Written:
        """See :meth:`velo.Index.insert` and :meth:`velo.Index.upsert`."""
        until = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        last = self.writers[-1]
        shape = last.shape
        if ids is None and shape.id_kind == ROW and not upsert:  # numbers after those of others are taken
            with self._alone(until):
                return last.insert(vectors, None, metadata, request, _left(until), upsert=False)
        with self._alone(until), self._placing(until), self._on("upsert", until):
            name = request_bytes(request)
            rows, column, table = _checked(shape, vectors, ids, metadata, upsert=upsert)
            found = self._shards_of(column)
            home = homes(column, len(self.writers), numbered=shape.id_kind == ROW)
            if not upsert:
                _refuse_known(column, (found >= 0) & ((found != home) if name else True))
            target = np.where(found < 0, home, found)
            # A shard that has some of the rows may refuse them, so it writes before the others.
            first = set(found[found >= 0].tolist()) if not upsert else set()
            places = sorted(np.unique(target).tolist(), key=lambda place: place not in first)

            def write(place: int) -> Written:
                inside = np.flatnonzero(target == place)
                own = _taken(column, inside)
                return self.writers[place].insert(
                    rows[inside],
                    own,
                    None if table is None else table.take(arrow_of(inside)),
                    _name_of(name, own) if name else None,
                    _left(until),
                    upsert=upsert,
                )

            done = self._write(places[: len(first)], write)
            return _sum([*done, *self._write(places[len(first) :], write)])

    def update(self, ids: Any, metadata: Any, request: Any, timeout_s: Any, condition: Any) -> Written:
        """See :meth:`velo.Index.update`; each shard changes its own rows."""
        column = None if ids is None else checked_ids(ids)
        until = None if timeout_s is None else time.monotonic() + seconds(timeout_s)

        def write(place: int) -> Written:
            own = self._segment_of(condition, place)
            return self.writers[place].update(column, metadata, request, _left(until), own)

        return self._write_all(column, until, write)

    def delete(self, ids: Any, timeout_s: Any, condition: Any) -> Written:
        """See :meth:`velo.Index.delete`."""
        column = None if ids is None else checked_ids(ids)
        until = None if timeout_s is None else time.monotonic() + seconds(timeout_s)

        def write(place: int) -> Written:
            return self.writers[place].delete(column, _left(until), self._segment_of(condition, place))

        return self._write_all(column, until, write)

    def add_columns(self, new: NewColumns) -> None:
        """See :meth:`velo.Index.add_columns`."""
        with self.lock, self._placing(None):
            for writer in self.writers:
                writer.add_columns(new)

    def flush(self) -> None:
        """See :meth:`velo.Index.flush`."""
        self._each(Writer.flush)

    def optimize(self, wait: bool = True) -> None:
        """See :meth:`velo.Index.optimize`."""
        self._each(lambda writer: writer.optimize(wait))

    def release(self) -> None:
        """See :meth:`Writer.release`."""
        for writer in self.writers:
            writer.release()

    @contextlib.contextmanager
    def _alone(self, until: float | None) -> Iterator[None]:
        """Keep other threads out."""
        if not self.lock.acquire(timeout=-1 if until is None else max(0.0, until - time.monotonic())):
            raise BusyError("another thread writes to this collection: try again")
        try:
            yield
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def _placing(self, until: float | None) -> Iterator[None]:
        """Keep other processes from giving shards new ids or columns: one could go to two of them."""
        above = [".."] * len(PurePosixPath(self._names[0]).parts)
        path = self._folders[0].opened.at.joinpath(*above)  # wherever the collection was moved to
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise os_failure(error, str(path)) from error
        try:
            deadline = time.monotonic() + _WAIT_S if until is None else until
            while not try_lock(handle):
                if time.monotonic() >= deadline:
                    raise BusyError("another process inserts into this collection: try again")
                time.sleep(_TRY_S)
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have the descriptor, too
            os.close(handle)

    @contextlib.contextmanager
    def _on(self, side: Literal["upsert", "delete"], until: float | None) -> Iterator[None]:
        """Exclude deletes from an upsert, and the other way round, also in other processes: a row that has a
        shard keeps it until it is replaced.
        """
        with contextlib.ExitStack() as stack:
            for one in self._folders:
                stack.enter_context(side_of(one.opened.at, side, _left(until)))
            yield

    def _each(self, work: Callable[[Writer], Answer]) -> list[Answer]:
        with self.lock, ThreadPoolExecutor(len(self.writers)) as pool:
            return list(pool.map(work, self.writers))

    def _snapshot(self) -> Snapshot:
        return Snapshot([one.view() for one in self._folders], self._guard)

    def _shards_of(self, column: Any) -> AnyArray:
        """The shard of the row that has each id, -1 where none has."""
        at = self._snapshot()
        vertices = at.ids.find(column)
        return np.where(vertices < 0, -1, at.view_of(vertices))

    def _segment_of(self, condition: Any, place: int) -> Any:
        """A filter as one shard takes it: masks cover the rows of all shards."""
        at = self._snapshot()
        start = sum(view.n for view in at.views[:place])
        return of_rows(condition, start, start + at.views[place].n, at.n)

    def _write_all(self, column: Any, until: float | None, write: Callable[[int], Written]) -> Written:
        with self._alone(until), self._on("delete", until):
            done = _sum(self._write(range(len(self.writers)), write))
        missing = 0 if column is None else max(0, distinct_count(column) - done.rows)
        return replace(done, missing=missing)

    def _write(self, places: Sequence[int], write: Callable[[int], Written]) -> list[Written]:
        """Write to several shards at the same time."""
        if not places:
            return []
        with ThreadPoolExecutor(len(places)) as pool:
            calls = {place: pool.submit(write, place) for place in places}
        failures = {place: error for place, one in calls.items() if (error := one.exception()) is not None}
        for place, error in failures.items():
            wrote = [self._names[other] for other in calls if other not in failures]
            if isinstance(error, VeloError) and wrote:
                error.message = f"{self._names[place]}: {error.message}; {', '.join(wrote)} wrote their rows"
            raise error
        return [one.result() for one in calls.values()]


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _taken(column: Any, rows: AnyArray) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else column.take(arrow_of(rows))


def _checked(
    shape: RowShape, vectors: Any, ids: Any, metadata: Any, *, upsert: bool
) -> tuple[AnyArray, Any, Any]:
    """Vectors, ids and columns of the rows to write, checked."""
    given = given_vectors(vectors, shape)
    rows = in_type(given if isinstance(given, np.ndarray) else given.read(), shape)
    check_finite(rows)
    _, column, kept = checked_row_ids(ids, len(rows), shape.id_kind, upsert)
    table = None
    if given_columns(metadata, shape.schema, len(rows)) is not None:
        table = given_metadata(metadata, len(rows)).table()
    if kept is not None:
        rows, table = rows[kept], None if table is None else table.take(arrow_of(kept))
    return rows, column, table


def _refuse_known(column: Any, known: AnyArray) -> None:
    """Refuse ids that a row has; a repeated call finds its own rows in their home shards."""
    if known.any():
        row = int(np.argmax(known))
        one = column[row].item() if isinstance(column, np.ndarray) else column[row].as_py()
        raise DuplicateIdError(f"ids: {one!r} of row {row} is there already", argument="ids", row=row)


def _name_of(request: bytes, ids: Any) -> str:
    """The request name for the rows of a call that go to one shard."""
    digest = hashlib.blake2b(digest_size=32)
    values = ids.tolist() if isinstance(ids, np.ndarray) else ids.to_pylist()
    for plain in [request, *(str(one).encode() for one in values)]:
        digest.update(len(plain).to_bytes(8, "little") + plain)
    return digest.hexdigest()


def _sum(written: Iterable[Written]) -> Written:
    """The writes of all shards as one; the sequence is the highest of theirs."""
    each = list(written) or [Written(rows=0, missing=0, sequence=0, durable=True)]
    return Written(
        rows=sum(one.rows for one in each),
        missing=0,
        sequence=max(one.sequence for one in each),
        durable=all(one.durable for one in each),
        replaced=sum(one.replaced for one in each),
        repeated=all(one.repeated for one in each),
        pressure=max(one.pressure for one in each),
    )
