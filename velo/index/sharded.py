"""A collection of shards, open in one process as one index."""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from velo.errors import DuplicateIdError, ReadOnlyError, UnknownIdError, VeloError
from velo.filters.arguments import of_rows
from velo.filters.arrays import arrow_of
from velo.folder.ids import checked_ids
from velo.folder.metadata import given_metadata
from velo.folder.opened import shown
from velo.folder.shards import homes
from velo.folder.snapshot import snapshot
from velo.index.index import Index
from velo.index.verbs import distinct_count, seconds
from velo.options import folder_path
from velo.parts.added import NewColumns
from velo.parts.columns import given_columns
from velo.parts.gate import Gate
from velo.parts.rows import (
    ROW,
    RowShape,
    check_finite,
    checked_row_ids,
    given_vectors,
    in_type,
    request_bytes,
)
from velo.results import Written
from velo.search.shards import ShardSearches
from velo.types import AnyArray, PathLike

__all__ = ["ShardedIndex"]

Answer = TypeVar("Answer")

#: Calls that wait for a shard at once, of each shard; further ones wait for their turn.
_CALLS_OF_SHARD: Final = 16


class ShardedIndex(Index):
    """A collection of shards, open in this process; :func:`velo.open` makes it.

    It has all methods of :class:`Index` and answers as one index over all rows would. Each shard has workers
    of its own; a budget is divided by rows, threads are divided evenly.

    **A write is atomic within each shard**, not over all: what can be refused is refused before any shard
    writes, and where one fails after others have written, the error says which did. An id that a row has
    stays in that row's shard, a new one goes to the shard that its hash names; where velo numbers the rows,
    new ones go to the last shard. Writes through one object come one after the other.

    Attributes
    ----------
    path : pathlib.Path
    n, dim : int
    metric : {"l2", "ip", "cosine"}
    shards : tuple of Index
    """

    def __init__(
        self, folder: Path, names: Sequence[str], shards: Sequence[Index], reopen: partial[Index]
    ) -> None:
        self.path = folder
        self.shards = tuple(shards)
        self.dim, self.metric = shards[0].dim, shards[0].metric
        self._names = names
        self._reopen = reopen
        self._gate = Gate(str(folder))
        self._pool = ThreadPoolExecutor(_CALLS_OF_SHARD * len(shards), thread_name_prefix="velo-shard")
        #: Held by who looks where rows are and then writes.
        self._writing = threading.Lock()
        self._known: tuple[list[Any], ShardSearches] | None = None

    # ---- what is there

    @property
    def n(self) -> int:
        """Rows that were built, and that came since; dead ones among them."""
        return sum(shard.n for shard in self.shards)

    def _seen(self) -> ShardSearches:
        """What a call that begins now searches; the same as long as no shard changes."""
        with self._gate.inside():
            seen = [shard._seen() for shard in self.shards]
            # What is as it was built is always seen as itself, but may get other metadata.
            key = [part for one in seen for part in (one, one._filters)]
            known = self._known
            if known is None or any(one is not other for one, other in zip(known[0], key, strict=True)):
                info = weakref.WeakMethod(self.info)  # or a circle would keep shards open
                known = self._known = key, ShardSearches(seen, self._gate, self._pool, info)
            return known[1]

    def _schema_of_rows(self) -> pa.Schema | None:
        return self.shards[0]._schema_of_rows()

    def info(self) -> dict[str, Any]:
        """What the collection is and what it costs.

        Returns
        -------
        dict
            As :meth:`Index.info` of the largest shard, with rows, bytes and threads of all, and ``shards``:
            each one's, with what was changed in it.
        """
        infos = [shard.info() for shard in self.shards]
        summed = (
            "page_count",
            "threads",
            "memory_bytes_total",
            "memory_within_budget_bytes",
            "memory_beside_budget_bytes",
        )
        budgets = [info["memory_budget_bytes"] for info in infos]
        return {
            **max(infos, key=lambda info: info["n"]),
            "path": str(self.path),
            "n": self.n,
            **{name: sum(info[name] for info in infos) for name in summed},
            **{name: _summed([info[name] for info in infos]) for name in ("memory_bytes", "column_bytes")},
            "memory_budget_bytes": None if None in budgets else sum(budgets),
            "cache_refused": any(info["cache_refused"] for info in infos),
            "disk_bytes": {
                f"{name}/{file}": size
                for name, info in zip(self._names, infos, strict=True)
                for file, size in info["disk_bytes"].items()
            },
            "live": None,
            "shards": infos,
        }

    def verify(self) -> int:
        """Check every file of every shard, as :func:`velo.verify` does.

        Returns
        -------
        int
            How many pages were checked.
        """
        return sum(shard.verify() for shard in self.shards)

    def _refreshed(self) -> bool:
        return sum(shard.refresh() for shard in self.shards) > 0  # each of them

    def __len__(self) -> int:
        """Rows that live."""
        return sum(map(len, self.shards))

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"velo.ShardedIndex({shown(self.path)!r}, n={self.n}, shards={len(self.shards)}{state})"

    # ---- rows that come and go

    def _insert(
        self, vectors: Any, ids: Any, metadata: Any, request: Any, timeout_s: Any, *, upsert: bool
    ) -> Written:
        until = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        with self._gate.inside(), self._writing:
            shape = self._shape()
            last = self.shards[-1]
            if ids is None and shape.id_kind == ROW and not upsert:  # numbers after those of others are taken
                return last._insert(vectors, None, metadata, request, _left(until), upsert=False)
            name = request_bytes(request)
            rows, column, table = _checked(shape, vectors, ids, metadata, upsert=upsert)
            found = self._shards_of(column)
            home = homes(column, len(self.shards), numbered=shape.id_kind == ROW)
            if not upsert:
                _refuse_known(column, (found >= 0) & ((found != home) if name else True))
            target = np.where(found < 0, home, found)
            # A shard that has some of them may say that they are there: before others write.
            first = set(found[found >= 0].tolist()) if not upsert else set()
            places = sorted(np.unique(target).tolist(), key=lambda place: place not in first)

            def write(place: int) -> Written:
                inside = np.flatnonzero(target == place)
                own = _taken(column, inside)
                return self.shards[place]._insert(
                    rows[inside],
                    own,
                    None if table is None else table.take(arrow_of(inside)),
                    _name_of(name, own) if name else None,
                    _left(until),
                    upsert=upsert,
                )

            done = self._told(places[: len(first)], write)
            return _of_all([*done, *self._told(places[len(first) :], write)])

    def _update(self, ids: Any, metadata: Any, request: Any, timeout_s: Any, condition: Any) -> Written:
        """Each shard changes the rows that it has."""
        column = None if ids is None else checked_ids(ids)
        until = None if timeout_s is None else time.monotonic() + seconds(timeout_s)
        return self._each_writes(
            column,
            lambda place: self.shards[place]._update(
                column, metadata, request, _left(until), self._part_of(condition, place)
            ),
        )

    def _delete(self, ids: Any, condition: Any) -> Written:
        column = None if ids is None else checked_ids(ids)
        return self._each_writes(
            column, lambda place: self.shards[place]._delete(column, self._part_of(condition, place))
        )

    def _each_writes(self, column: Any, write: Callable[[int], Written]) -> Written:
        with self._gate.inside(), self._writing:
            self._shape()  # refuses what is open to read
            done = _of_all(self._told(range(len(self.shards)), write))
        missing = 0 if column is None else max(0, distinct_count(column) - done.rows)
        return replace(done, missing=missing)

    def flush(self) -> None:
        """Flush all shards, as :meth:`Index.flush` does one."""
        self._each(lambda shard: shard.flush())

    def optimize(self, wait: bool = True) -> None:
        """Make one part of each shard, as :meth:`Index.optimize` does of an index.

        Parameters
        ----------
        wait : bool
        """
        self._each(lambda shard: shard.optimize(wait))

    def snapshot(self, path: PathLike) -> None:
        """Make another folder a collection that holds what this one holds now, as :meth:`Index.snapshot`.

        Parameters
        ----------
        path : path
            What another process writes meanwhile is there in some shards, and in others not.
        """
        with self._gate.inside(), self._writing:
            snapshot(self.path, folder_path(path), self._names)

    def _change_metadata(self, table: Any, **how: Any) -> None:
        """Each shard gets the rows of a table that are its own."""
        with self._gate.inside(), self._writing:
            name = how.get("ids_column")
            given = given_metadata(table, self.n).table()
            places = np.repeat(np.arange(len(self.shards)), [shard.n for shard in self.shards])
            if name is not None and name in given.column_names:
                places = self._shards_of(checked_ids(given.column(name)))
                if (places < 0).any():
                    row = int(np.argmax(places < 0))
                    one = given.column(name)[row].as_py()
                    raise UnknownIdError(f"no vector has the id {one!r}", argument="ids_column", row=row)
            for place, shard in enumerate(self.shards):
                shard._change_metadata(given.take(arrow_of(np.flatnonzero(places == place))), **how)

    def _add_new(self, new: NewColumns, *, overwrite: bool) -> None:
        with self._gate.inside(), self._writing:
            for shard in self.shards:
                shard._add_new(new, overwrite=overwrite)

    # ---- how

    def _shape(self) -> RowShape:
        """What new rows have to be like.

        Raises
        ------
        ReadOnlyError
        """
        live = self.shards[-1]._live
        if live is None or live.durability is None:
            raise ReadOnlyError(f"{self.path} was opened to read: open it with writable=True")
        return live.shape()

    def _shards_of(self, column: Any) -> AnyArray:
        """The shard of the row that has each id, -1 where none has."""
        seen = self._seen()
        vertices = seen._ids.find(column)
        return np.where(vertices < 0, -1, seen.shards_of(vertices))

    def _part_of(self, condition: Any, place: int) -> Any:
        """A filter as one shard takes it: masks are over the rows of all."""
        start = sum(shard.n for shard in self.shards[:place])
        return of_rows(condition, start, start + self.shards[place].n, self.n)

    def _each(self, work: Callable[[Index], Answer]) -> list[Answer]:
        with self._gate.inside(), self._writing:
            return list(self._pool.map(work, self.shards))

    def _told(self, places: Sequence[int], write: Callable[[int], Written]) -> list[Written]:
        """What shards wrote, all at once.

        Raises
        ------
        VeloError
            One failed. It says which of these shards wrote.
        """
        calls = {place: self._pool.submit(write, place) for place in places}
        failures = {place: error for place, one in calls.items() if (error := one.exception()) is not None}
        for place, error in failures.items():
            wrote = [self._names[other] for other in calls if other not in failures]
            if isinstance(error, VeloError) and wrote:
                error.message = f"{self._names[place]}: {error.message}; {', '.join(wrote)} wrote their rows"
            raise error
        return [one.result() for one in calls.values()]

    # ---- its end

    def close(self) -> None:
        """Close all shards; twice is once. Searches under way end first."""
        if self._gate.forked:
            return
        self._gate.close()
        self._pool.shutdown()
        for shard in self.shards:
            shard.close()


def _summed(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(part.get(name, 0) for part in parts) for name in parts[0]}


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _taken(column: Any, rows: AnyArray) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else column.take(arrow_of(rows))


def _checked(
    shape: RowShape, vectors: Any, ids: Any, metadata: Any, *, upsert: bool
) -> tuple[AnyArray, Any, Any]:
    """Vectors, ids and columns of the rows that stay, all checked before any shard writes."""
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
    """An insert takes ids that no row has; one that is repeated finds its own rows at their homes."""
    if known.any():
        row = int(np.argmax(known))
        one = column[row].item() if isinstance(column, np.ndarray) else column[row].as_py()
        raise DuplicateIdError(f"ids: {one!r} of row {row} is there already", argument="ids", row=row)


def _name_of(request: bytes, ids: Any) -> str:
    """What a shard is told as the name of a call of which these ids go to it."""
    digest = hashlib.blake2b(digest_size=32)
    values = ids.tolist() if isinstance(ids, np.ndarray) else ids.to_pylist()
    for plain in [request, *(str(one).encode() for one in values)]:
        digest.update(len(plain).to_bytes(8, "little") + plain)
    return digest.hexdigest()


def _of_all(written: Iterable[Written]) -> Written:
    """What all shards wrote; the sequence is the highest of theirs."""
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
