"""One shard at work: opens an index, answers requests. It knows no Ray, no HTTP, no other shard."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import FilterError, VeloError
from velo.filters import from_sql
from velo_serving.errors import ShardNotHereError, ShardUnavailableError
from velo_serving.hits import concat_hits
from velo_serving.types import (
    Failure,
    FilterForm,
    Float32Matrix,
    Hits,
    SearchIndex,
    SearchRequest,
    ShardHealth,
    ShardReply,
)

__all__ = ["IndexOpener", "Shard", "ShardSpec", "open_velo_index"]

#: Deadlines are rounded up to this.
TIMEOUT_STEP_S = 0.1

#: Queries that go to the index in one call, and calls of one request at once: what others wait for.
PART_QUERIES = 64
PARTS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """What a shard needs to open its index; it pickles and stays small.

    Parameters
    ----------
    name : str
        Unique within the collection.
    path : str
        Folder of the index on the node that holds it.
    memory, threads, io, plan
        As in ``velo.open``.
    """

    name: str
    path: str
    memory: int | float | str | None = None
    threads: int | None = None
    io: str = "auto"
    plan: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)


IndexOpener = Callable[[ShardSpec], SearchIndex]


def open_velo_index(spec: ShardSpec) -> SearchIndex:
    """Open the index that a spec describes."""
    import velo  # here, so that the router and the client work where the native library is missing

    given: dict[str, Any] = {"io": spec.io, "plan": spec.plan, **spec.options}
    if spec.memory is not None:
        given["memory"] = spec.memory
    if spec.threads is not None:
        given["threads"] = spec.threads
    index: SearchIndex = velo.open(spec.path, **given)
    return index


class Shard:
    """An index that answers requests, and that can be asked how it is.

    A shard whose index cannot be opened exists all the same and says why, so that one bad disk does not take
    the process with it; asking for its health tries again.
    """

    def __init__(self, spec: ShardSpec, opener: IndexOpener = open_velo_index) -> None:
        self.spec = spec
        self._opener = opener
        self._opening = threading.Lock()  # health and search may run in different threads
        self._index: SearchIndex | None = None
        self._health = ShardHealth()
        self._closed = False

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self.spec.name

    def open(self) -> ShardHealth:
        """Open the index unless it is open.

        Raises
        ------
        ShardNotHereError
            The folder does not exist on this node.
        VeloError
            The folder holds no index that can be opened.
        """
        with self._opening:
            if self._closed:
                raise ShardUnavailableError(f"shard {self.name} is closed")
            if self._index is None:
                node = socket.gethostname()
                if not Path(self.spec.path).is_dir():
                    raise ShardNotHereError(
                        f"shard {self.name} is not on node {node}: there is no folder {self.spec.path}",
                        file=self.spec.path,
                    )
                index = self._opener(self.spec)
                self._health = _health_of(index, node)
                self._index = index
            return self._health

    def health(self) -> ShardHealth:
        """Return what the shard serves, or why it cannot; opens the index if that failed before."""
        try:
            return self.open()
        except VeloError as error:
            return ShardHealth(node=socket.gethostname(), pid=os.getpid(), failure=Failure.of(error))

    def close(self) -> None:
        """Release the index; later searches fail as unavailable."""
        with self._opening:
            self._closed = True
            index, self._index = self._index, None
        if index is not None:
            index.close()

    async def search(self, request: SearchRequest, timeout_s: float | None = None) -> ShardReply:
        """Answer a request; what is wrong with it is a ``Failure``.

        Many queries are searched in parts, so that a request that comes meanwhile waits for a part alone.

        Parameters
        ----------
        request : SearchRequest
        timeout_s : float, optional
            Seconds that are left for it.

        Raises
        ------
        ShardUnavailableError
            The shard has no open index.
        """
        index = self._index
        if index is None:
            raise ShardUnavailableError(f"shard {self.name} has no open index")
        count = len(request.queries)
        try:
            if count <= PART_QUERIES:
                return await _search(index, request, timeout_s)
            parts = [
                _part_of(request, start, min(start + PART_QUERIES, count))
                for start in range(0, count, PART_QUERIES)
            ]
            return concat_hits(await _few_at_once(index, parts, timeout_s))
        except Exception as error:
            return await _blame(index, request, error)


async def _few_at_once(
    index: SearchIndex, parts: Sequence[SearchRequest], timeout_s: float | None
) -> list[Hits]:
    """Search the parts in their order, as many at once as keep an index at work from one to the next."""
    found: list[Hits | None] = [None] * len(parts)
    rest = iter(enumerate(parts))

    async def take() -> None:
        for place, part in rest:
            found[place] = await _search(index, part, timeout_s)

    takers = [asyncio.ensure_future(take()) for _ in range(PARTS_AT_ONCE)]
    try:
        await asyncio.gather(*takers)
    finally:
        for taker in takers:
            taker.cancel()
    return [hits for hits in found if hits is not None]


def _part_of(request: SearchRequest, start: int, stop: int) -> SearchRequest:
    filters = request.filters
    if filters is not None and len(filters) > 1:
        filters = filters[start:stop]
    return dataclasses.replace(request, queries=request.queries[start:stop], filters=filters)


async def _search(index: SearchIndex, request: SearchRequest, timeout_s: float | None) -> Hits:
    columns = request.return_metadata
    options: dict[str, Any] = {
        "filter": _filter_argument(request),
        "recall": request.recall,
        "list_size": request.list_size,
        "return_metadata": None if columns is None else list(columns),
        "timeout_s": _rounded(timeout_s),
    }
    queries = request.queries
    if request.radius is not None:
        return _of_ranges(await index.range_search_async(queries, request.radius, limit=request.k, **options))
    if request.group_by is not None:
        options |= {"group_by": request.group_by, "group_size": request.group_size}
        return _of_groups(await index.search_async(queries, request.k, **options))
    return _of_nearest(await index.search_async(queries, request.k, **options))


def _filter_argument(request: SearchRequest) -> Any:
    """One filter for all queries where that is enough, else one each."""
    filters = request.filters
    if filters is None or len(filters) == 1:
        return filters[0] if filters else None
    return [_read(one) for one in filters]


def _read(condition: FilterForm | None) -> Any:
    """A filter as it may stand in a list: there a text would be an id."""
    return from_sql(condition) if isinstance(condition, str) else condition


def _rounded(timeout_s: float | None) -> float | None:
    """An index keeps what it has made ready for one set of options: few deadlines, few sets."""
    return None if timeout_s is None else max(1, math.ceil(timeout_s / TIMEOUT_STEP_S)) * TIMEOUT_STEP_S


async def _blame(index: SearchIndex, request: SearchRequest, error: Exception) -> Failure:
    """Describe a failure; with a filter each, find the query whose filter is wrong."""
    if isinstance(error, FilterError) and request.filters is not None and len(request.filters) > 1:
        for query, one in enumerate(request.filters):
            if one is None:
                continue
            try:
                await index.search_async(request.queries[query : query + 1], 1, filter=one, timeout_s=1.0)
            except FilterError as culprit:
                return Failure.of(culprit, query=query)
            except VeloError:
                break  # the index has other troubles by now: the first error stands
    return Failure.of(error)


def _of_nearest(result: Any) -> Hits:
    """A ``velo.SearchResult`` of a matrix of queries."""
    counts = np.asarray(result.counts, dtype=np.int64)
    ids, distances = np.asarray(result.ids), np.asarray(result.distances, dtype=np.float32)
    return _hits(result, ids, distances, counts, tables=result.metadata)


def _of_ranges(result: Any) -> Hits:
    """A ``velo.RangeResult`` with each query's hits in a row of its own."""
    counts = np.asarray(result.counts, np.int64)
    kept = np.arange(max(1, int(counts.max(initial=1))))[None, :] < counts[:, None]
    tables = None
    if result.metadata is not None:
        ends = result.lims[1:].tolist()
        starts = result.lims[:-1].tolist()
        tables = [result.metadata.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
    ids, distances = _in_rows(result.ids, result.distances, kept)
    return _hits(result, ids, distances, counts, tables=tables, limited=np.asarray(result.limited, np.bool_))


def _of_groups(result: Any) -> Hits:
    """A ``velo.GroupedResult`` with the hits of a query's groups one after another in a row."""
    sizes = np.asarray(result.group_sizes, np.int64)
    counts = sizes.sum(axis=1)
    kept = np.arange(max(1, int(counts.max(initial=1))))[None, :] < counts[:, None]
    real = np.arange(result.ids.shape[-1])[None, None, :] < sizes[:, :, None]
    ids, distances = _in_rows(result.ids[real], result.distances[real], kept)
    groups = [
        list(zip(values, row.tolist(), strict=False))
        for values, row in zip(result.groups, sizes, strict=True)
    ]
    return _hits(result, ids, distances, counts, tables=result.metadata, groups=groups)


def _in_rows(flat_ids: Any, flat_distances: Any, kept: Any) -> tuple[Any, Any]:
    """Hits of all queries one after another, to rows that are padded."""
    strings = flat_ids.dtype == object
    ids = np.full(kept.shape, None if strings else -1, object if strings else np.int64)
    distances = np.full(kept.shape, np.inf, np.float32)
    ids[kept], distances[kept] = flat_ids, flat_distances
    return ids, distances


def _hits(result: Any, ids: Any, distances: Any, counts: Any, **further: Any) -> Hits:
    stats = result.stats
    costs: dict[str, Any] = {}
    for name in ("reads", "bytes_read", "shared_reads", "cache_hits"):
        each = stats.get(name)
        costs[name] = 0 if each is None else int(each.sum())
    return Hits(ids, distances, counts, **costs, **further)


def _health_of(index: SearchIndex, node: str) -> ShardHealth:
    info = index.info()
    memory = info.get("memory_bytes", 0)
    device = info.get("device", "")
    return ShardHealth(
        uuid=str(info.get("uuid", "")),
        n=int(info["n"]),
        dim=int(info["dim"]),
        metric=str(info["metric"]),
        node=node,
        pid=os.getpid(),
        memory_bytes=sum(memory.values()) if isinstance(memory, Mapping) else int(memory),
        device=str(device.get("name", "")) if isinstance(device, Mapping) else str(device),
        details={
            "plan": info.get("plan", ""),
            "ids": info.get("ids", ""),
            "columns": list(info.get("columns", ())),
        },
    )


def as_queries(vectors: Any) -> Float32Matrix:
    """Return vectors as a matrix of float32, one row a query."""
    matrix = np.asarray(vectors, dtype=np.float32)
    return matrix.reshape(1, -1) if matrix.ndim == 1 else matrix
