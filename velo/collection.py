"""A collection of shards opened in one process: searched like an index, without a server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from velo.errors import CorruptIndexError, InvalidArgumentError, UnknownIdError, UnsupportedError
from velo.folder.manifest import COLLECTION_FILE
from velo.folder.opened import shown
from velo.folder.shards import check_shard, is_within
from velo.hints import hinted
from velo.index import Index, open_index
from velo.options import OpenTuning, folder_path, memory_bytes
from velo.results import RangeResult, SearchResult
from velo.types import (
    AnyArray,
    DurabilityName,
    IoName,
    Memory,
    MetricName,
    PathLike,
    PlanName,
    UnknownColumns,
)

__all__ = ["ShardedIndex", "open_path"]


Part = TypeVar("Part")


@hinted
def open_path(
    path: PathLike,
    *,
    memory: Memory | None = None,
    threads: int | None = None,
    io: IoName = "auto",
    plan: PlanName = "auto",
    tuning: OpenTuning | None = None,
    unknown_columns: UnknownColumns = "error",
    writable: bool = False,
    durability: DurabilityName = "sync",
    merge_memory: Memory | None = None,
) -> Any:
    """Open what :func:`velo.build` or :func:`velo.build_collection` made.

    Parameters
    ----------
    path : path
        The folder.
    memory : int, float or str, optional
        What the index may keep in memory: bytes, a share of n·d·4 bytes (``"15%"`` or 0.15), or a size
        (``"2GiB"``). Without it the index takes what its codes and links need, and has no cache.
    threads : int, optional
        Workers that search. Without it there is one for each core.
    io : {"auto", "uring", "threads"}
        ``"auto"`` takes io_uring where the system allows it.
    plan : {"auto", "links_in_memory", "links_on_disk"}
        ``"auto"`` keeps links in memory where `memory` has room for them.
    tuning : OpenTuning, optional
    unknown_columns : {"error", "missing"}
        ``"missing"`` for filters on data without a schema.
    writable : bool
        Open an index as the one process that may change it.
    durability : {"sync", "interval", "process"}
        When a change is on the device: before its call returns, 100 ms later, or when the system writes it.
    merge_memory : int, float or str, optional
        With `writable`, what all merges that run may take together, beside `memory`; as much as `memory`
        where it is not named. With 400 bytes a row or more (at 128 dimensions) a merge goes on from the graph
        that is there.

    Returns
    -------
    Index or ShardedIndex
        A :class:`ShardedIndex` where the folder holds a collection of shards. Use it in ``with``, or close
        it.

    Raises
    ------
    NotAnIndexError
        There is no folder, or no complete index in it.
    CorruptIndexError
        A file is damaged.
    UnsupportedVersionError
        Another version of the format.
    BudgetTooSmallError
        `memory` does not hold what the index cannot do without; ``needed_bytes`` says how much that is.
    DeviceError
        The system refused a read, a thread or a descriptor.
    BusyError
        With `writable`: somebody else writes to this index.

    Examples
    --------
    >>> with velo.open("shop.velo", memory="50%") as index:
    ...     ids, distances = index.search(query, k=3)
    """
    folder = folder_path(path)
    how: dict[str, Any] = {
        "memory": memory,
        "threads": threads,
        "io": io,
        "plan": plan,
        "tuning": tuning,
        "unknown_columns": unknown_columns,
    }
    if (folder / COLLECTION_FILE).is_file():
        if writable:
            raise UnsupportedError(
                f"{folder} is a collection of shards; it is opened to read", argument="path"
            )
        return ShardedIndex(folder, **how)
    return open_index(folder, writable=writable, durability=durability, merge_memory=merge_memory, **how)


class ShardedIndex:
    """A collection of shards, open in this process; :func:`velo.open` makes it.

    It answers as one index over all rows would. Each shard has workers of its own; a budget is divided by
    rows, threads are divided evenly. Groups (``group_by``) need a server: ``velo serve``.

    Attributes
    ----------
    path : pathlib.Path
    n, dim : int
    metric : {"l2", "ip", "cosine"}
    shards : tuple of Index
    """

    def __init__(
        self, folder: Path, *, memory: Memory | None = None, threads: int | None = None, **options: Any
    ) -> None:
        self.path = folder
        entries = _entries(folder)
        total, dim = sum(entry.rows for entry in entries), entries[0].dim
        budget = None if memory is None else memory_bytes(memory, total, dim)
        each = max(1, (threads or os.cpu_count() or 1) // len(entries))
        opened: list[Index] = []
        try:
            for place, entry in enumerate(entries):
                part = None if budget is None else budget * entry.rows // max(1, total)
                opened.append(open_index(entry.path, memory=part, threads=each, **options))
                check_shard(entry.path, str(place), entry.uuid)
        except BaseException:
            for one in opened:
                one.close()
            raise
        self.shards: tuple[Index, ...] = tuple(opened)
        self.n = sum(shard.n for shard in opened)
        self.dim = opened[0].dim
        self.metric: MetricName = opened[0].metric
        self._pool = ThreadPoolExecutor(len(opened), thread_name_prefix="velo-shard")

    def _each(self, work: Callable[[Index, int], Part]) -> list[Part]:
        """The answers of all shards, asked at once; a shard and its place are handed over."""
        return list(self._pool.map(work, self.shards, range(len(self.shards))))

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        filter: Any = None,  # noqa: A002
        return_metadata: Sequence[str] | bool | None = None,
        **options: Any,
    ) -> SearchResult:
        """Find the k nearest vectors of each query over all shards.

        Parameters
        ----------
        queries, k, filter, return_metadata, **options
            As for :meth:`Index.search`, but for `group_by`.

        Returns
        -------
        SearchResult
            ``stats`` are summed over the shards, latency is that of the slowest.
        """
        if options.get("group_by") is not None:
            raise UnsupportedError(
                "groups over shards need a server: velo serve, and its client", argument="group_by"
            )
        parts = self._each(
            lambda shard, place: shard.search(
                queries, k, filter=self._filter_of(filter, place), return_metadata=return_metadata, **options
            )
        )
        return _merged(parts, k)

    def range_search(
        self,
        queries: Any,
        radius: float,
        *,
        filter: Any = None,  # noqa: A002
        limit: int = 10_000,
        **options: Any,
    ) -> RangeResult:
        """Find all vectors within a distance of each query over all shards.

        Parameters
        ----------
        queries, radius, filter, limit, **options
            As for :meth:`Index.range_search`.

        Returns
        -------
        RangeResult
        """
        parts = self._each(
            lambda shard, place: shard.range_search(
                queries, radius, filter=self._filter_of(filter, place), limit=limit, **options
            )
        )
        return _merged_ranges(parts, limit)

    def count(self, filter: Any = None) -> int:  # noqa: A002
        """How many rows pass a filter; how many there are, without one.

        Parameters
        ----------
        filter : optional
            One filter, as for :meth:`Index.search`.

        Returns
        -------
        int
        """
        return sum(self._each(lambda shard, place: shard.count(self._filter_of(filter, place))))

    def get(self, ids: Any, *, columns: Sequence[str] | bool = True) -> pa.Table:
        """The metadata of some ids.

        Parameters
        ----------
        ids, columns :
            As for :meth:`Index.get`.

        Returns
        -------
        pyarrow.Table

        Raises
        ------
        UnknownIdError
        """
        asked = [ids] if isinstance(ids, str | int | np.integer) else list(ids)
        found: dict[Any, pa.Table] = {}
        for shard in self.shards:
            left = [one for one in asked if one not in found]
            known = [one for one in left if shard.count([one])]
            table = shard.get(known, columns=columns)
            found |= {one: table.slice(place, 1) for place, one in enumerate(known)}
        for row, one in enumerate(asked):
            if one not in found:
                raise UnknownIdError(f"no vector has the id {one!r}", argument="ids", row=row)
        parts = [found[one] for one in asked]
        return pa.concat_tables(parts) if parts else self.shards[0].get([], columns=columns)

    def info(self) -> dict[str, Any]:
        """What the collection is and what it costs.

        Returns
        -------
        dict
            Of :meth:`Index.info` what all shards have in common, sums of bytes, and ``shards``: each one's.
        """
        infos = [shard.info() for shard in self.shards]
        same = ("dim", "metric", "dtype", "ids", "columns", "plan", "device", "stores_vectors")
        summed = ("memory_bytes_total", "memory_within_budget_bytes", "memory_beside_budget_bytes")
        return {
            "path": str(self.path),
            "n": self.n,
            **{name: infos[0][name] for name in same},
            **{name: sum(info[name] for info in infos) for name in summed},
            "shards": infos,
        }

    def close(self) -> None:
        """Close all shards; twice is once."""
        self._pool.shutdown()
        for shard in self.shards:
            shard.close()

    def __enter__(self) -> ShardedIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Rows that live."""
        return sum(map(len, self.shards))

    def __repr__(self) -> str:
        return f"velo.ShardedIndex({shown(self.path)!r}, n={self.n}, shards={len(self.shards)})"

    def _filter_of(self, condition: Any, place: int) -> Any:
        """The part of a filter that is about a shard's rows: masks are over the rows of all."""
        array = condition if isinstance(condition, np.ndarray) else None
        flat = (
            isinstance(condition, list | tuple)
            and len(condition) == self.n
            and all(type(one) is bool for one in condition)
        )
        if flat:
            array = np.asarray(condition, bool)
        if array is None or array.dtype != bool:
            return condition
        if array.shape[-1] != self.n:
            raise InvalidArgumentError(
                f"a mask of shape {array.shape} was given for {self.n} rows", argument="filter"
            )
        start = sum(shard.n for shard in self.shards[:place])
        return array[..., start : start + self.shards[place].n]


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a collection says of a shard."""

    path: Path
    rows: int
    dim: int
    uuid: str


def _entries(folder: Path) -> list[_Entry]:
    try:
        document = json.loads((folder / COLLECTION_FILE).read_bytes())
        dim = int(document["dim"])
        found = [
            _Entry(folder / str(entry["path"]), int(entry["rows"]), dim, str(entry.get("uuid", "")))
            for entry in document["shards"]
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptIndexError(f"{COLLECTION_FILE} cannot be read: {error}", file=COLLECTION_FILE) from error
    if not found:
        raise CorruptIndexError(f"{COLLECTION_FILE} names no shards", file=COLLECTION_FILE)
    for entry in document["shards"]:
        if not is_within(str(entry["path"])):
            raise CorruptIndexError(
                f"{COLLECTION_FILE} names a shard outside: {entry['path']!r}", file=COLLECTION_FILE
            )
    return found


def _order(ids: AnyArray, distances: AnyArray) -> AnyArray:
    """Nearest first; equal distances by the lower id."""
    keys = ids if ids.dtype != object else np.array([str(one) for one in ids])
    order: AnyArray = np.lexsort((keys, distances))
    return order


def _stats(parts: Sequence[SearchResult | RangeResult]) -> dict[str, AnyArray]:
    names = list(parts[0].stats)
    return {
        name: np.max([part.stats[name] for part in parts], axis=0)
        if name == "latency_us"
        else np.sum([part.stats[name].astype(np.uint64) for part in parts], axis=0)
        for name in names
    }


def _merged(parts: Sequence[SearchResult], k: int) -> SearchResult:
    single = parts[0].ids.ndim == 1
    ids = np.concatenate([np.atleast_2d(part.ids) for part in parts], axis=1)
    distances = np.concatenate([np.atleast_2d(part.distances) for part in parts], axis=1)
    places = np.arange(parts[0].ids.shape[-1])
    real = np.concatenate([places < np.asarray(part.counts)[:, None] for part in parts], axis=1)
    count = len(ids)
    found_ids = np.full((count, k), None if ids.dtype == object else -1, ids.dtype)
    found_distances = np.full((count, k), np.inf, np.float32)
    counts = np.minimum(real.sum(axis=1), k).astype(np.uint32)
    tables: list[pa.Table] | None = None if parts[0].metadata is None else []
    for query in range(count):
        hits = np.flatnonzero(real[query])
        nearest = _order(ids[query, hits], distances[query, hits])[:k]
        found_ids[query, : len(nearest)] = ids[query, hits[nearest]]
        found_distances[query, : len(nearest)] = distances[query, hits[nearest]]
        if tables is not None:
            rows: Any = [part.metadata for part in parts]
            rows = rows if single else [one[query] for one in rows]
            tables.append(pa.concat_tables(rows).take(nearest))
    metadata: Any = tables[0] if single and tables is not None else tables
    return SearchResult(
        ids=found_ids[0] if single else found_ids,
        distances=found_distances[0] if single else found_distances,
        counts=counts,
        stats=_stats(parts),
        metadata=metadata,
    )


def _merged_ranges(parts: Sequence[RangeResult], limit: int) -> RangeResult:
    count = len(parts[0])
    ids: list[AnyArray] = []
    distances: list[AnyArray] = []
    tables: list[pa.Table] = []
    limited = np.any([part.limited for part in parts], axis=0)
    with_metadata = parts[0].metadata is not None
    for query in range(count):
        found = [part[query] for part in parts]
        both = np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])
        order = _order(*both)
        limited[query] |= len(order) > limit
        order = order[:limit]
        ids.append(both[0][order])
        distances.append(both[1][order])
        if with_metadata:
            rows = [
                part.metadata.slice(int(part.lims[query]), int(part.counts[query]))  # type: ignore[union-attr]
                for part in parts
            ]
            tables.append(pa.concat_tables(rows).take(order))
    empty = parts[0].ids[:0]
    return RangeResult(
        lims=np.concatenate([[0], np.cumsum([len(one) for one in ids])]).astype(np.int64),
        distances=np.concatenate([np.zeros(0, np.float32), *distances]),
        ids=np.concatenate([empty, *ids]),
        limited=limited,
        stats=_stats(parts),
        metadata=pa.concat_tables(tables) if tables else parts[0].metadata,
    )
