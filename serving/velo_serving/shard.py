"""One shard at work: opens an index, answers batches. It knows no Ray, no HTTP, no other shard."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import FilterError, VeloError
from velo.filters import from_sql
from velo_serving.errors import ShardNotHereError, ShardUnavailableError
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

#: Deadlines are rounded up to this, so that requests a few milliseconds apart can share one native call.
TIMEOUT_STEP_S = 0.1


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
    """An index that answers batches, and that can be asked how it is.

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

    async def search(self, batch: Sequence[SearchRequest]) -> list[ShardReply]:
        """Answer every request of a batch; an error of one does not touch the others.

        Requests that share k, recall, list size and columns go to the index in one call, each with a filter.

        Raises
        ------
        ShardUnavailableError
            The shard has no open index.
        """
        index = self._index
        if index is None:
            raise ShardUnavailableError(f"shard {self.name} has no open index")
        groups: dict[Any, list[int]] = defaultdict(list)
        for place, request in enumerate(batch):
            columns = request.return_metadata
            kind = (request.group_by, request.group_size, request.radius)
            key = (request.k, request.recall, request.list_size, columns, request.queries.shape[1], kind)
            groups[key].append(place)
        replies: list[ShardReply | None] = [None] * len(batch)

        async def answer(places: list[int]) -> None:
            members = [batch[place] for place in places]
            for place, reply in zip(places, await _answer_group(index, members), strict=True):
                replies[place] = reply

        await asyncio.gather(*(answer(places) for places in groups.values()))
        return [reply for reply in replies if reply is not None]


async def _answer_group(index: SearchIndex, requests: Sequence[SearchRequest]) -> list[ShardReply]:
    try:
        hits = await _search_together(index, requests)
    except Exception as error:
        if len(requests) == 1:
            return [await _blame(index, requests[0], error)]
        # Somebody in the group is at fault, or was unlucky: each alone, so that the others get their answers.
        alone = await asyncio.gather(*(_answer_group(index, [request]) for request in requests))
        return [replies[0] for replies in alone]
    return list(hits)


async def _search_together(index: SearchIndex, requests: Sequence[SearchRequest]) -> list[Hits]:
    first = requests[0]
    queries = (
        first.queries if len(requests) == 1 else np.concatenate([request.queries for request in requests])
    )
    options: dict[str, Any] = {
        "filter": _filter_argument(requests, len(queries)),
        "recall": first.recall,
        "list_size": first.list_size,
        "return_metadata": list(first.return_metadata) if first.return_metadata is not None else None,
        "timeout_s": _timeout_of(requests),
    }
    if first.radius is not None:
        found = await index.range_search_async(queries, first.radius, limit=first.k, **options)
        whole = _of_ranges(found)
    elif first.group_by is not None:
        grouping: dict[str, Any] = {"group_by": first.group_by, "group_size": first.group_size}
        whole = _of_groups(await index.search_async(queries, first.k, **grouping, **options))
    else:
        result = await index.search_async(queries, first.k, **options)
        whole = _hits_of(result, with_metadata=first.return_metadata is not None)
    if len(requests) == 1:
        return [whole.hits()]
    parts = []
    start = 0
    for request in requests:
        stop = start + len(request.queries)
        parts.append(whole.hits(start, stop))
        start = stop
    return parts


def _filter_argument(requests: Sequence[SearchRequest], query_count: int) -> FilterForm | list[Any] | None:
    """One filter for all queries where that is enough, else one each."""
    filters = [request.filters[0] if request.filters else None for request in requests]
    if all(request.filters is None or len(request.filters) == 1 for request in requests) and all(
        one == filters[0] for one in filters
    ):
        return filters[0]
    each = [_read(request.filter_of(query)) for request in requests for query in range(len(request.queries))]
    assert len(each) == query_count
    return each


def _read(condition: FilterForm | None) -> Any:
    """A filter as it may stand in a list: there a text would be an id."""
    return from_sql(condition) if isinstance(condition, str) else condition


def _timeout_of(requests: Sequence[SearchRequest]) -> float | None:
    timeouts = [request.timeout_s for request in requests]
    if any(timeout is None for timeout in timeouts):
        return None
    longest = max(timeout for timeout in timeouts if timeout is not None)
    return max(1, math.ceil(longest / TIMEOUT_STEP_S)) * TIMEOUT_STEP_S


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


@dataclass(frozen=True, slots=True)
class _Result:
    """A ``velo.SearchResult`` of several queries, to be cut by query."""

    ids: Any
    distances: Any
    counts: Any
    metadata: list[Any] | None
    reads: Any
    bytes_read: Any
    shared_reads: Any
    cache_hits: Any
    groups: list[list[tuple[Any, int]]] | None = None
    limited: Any = None

    def hits(self, start: int = 0, stop: int | None = None) -> Hits:
        rows = None
        if self.metadata is not None:
            rows = [table.to_pylist() for table in self.metadata[start:stop]]
        return Hits(
            ids=self.ids[start:stop],
            distances=self.distances[start:stop],
            counts=self.counts[start:stop],
            metadata=rows,
            reads=int(self.reads[start:stop].sum()),
            bytes_read=int(self.bytes_read[start:stop].sum()),
            shared_reads=int(self.shared_reads[start:stop].sum()),
            cache_hits=int(self.cache_hits[start:stop].sum()),
            groups=None if self.groups is None else self.groups[start:stop],
            limited=None if self.limited is None else self.limited[start:stop],
        )


def _hits_of(result: Any, *, with_metadata: bool) -> _Result:
    counts = np.asarray(result.counts, dtype=np.int64)
    metadata = None
    if with_metadata:
        assert isinstance(result.metadata, list)  # two-dimensional queries bring a table each
        metadata = result.metadata
    ids, distances = np.asarray(result.ids), np.asarray(result.distances, dtype=np.float32)
    return _cost_of(result, ids, distances, counts, metadata)


def _of_ranges(result: Any) -> _Result:
    """A ``velo.RangeResult`` with each query's hits in a row of its own."""
    counts = np.asarray(result.counts, np.int64)
    kept = np.arange(max(1, int(counts.max(initial=1))))[None, :] < counts[:, None]
    metadata = None
    if result.metadata is not None:
        ends = result.lims[1:].tolist()
        starts = result.lims[:-1].tolist()
        metadata = [
            result.metadata.slice(start, end - start) for start, end in zip(starts, ends, strict=True)
        ]
    ids, distances = _in_rows(result.ids, result.distances, kept)
    return _cost_of(result, ids, distances, counts, metadata, limited=np.asarray(result.limited))


def _of_groups(result: Any) -> _Result:
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
    return _cost_of(result, ids, distances, counts, result.metadata, groups=groups)


def _in_rows(flat_ids: Any, flat_distances: Any, kept: Any) -> tuple[Any, Any]:
    """Hits of all queries one after another, to rows that are padded."""
    strings = flat_ids.dtype == object
    ids = np.full(kept.shape, None if strings else -1, object if strings else np.int64)
    distances = np.full(kept.shape, np.inf, np.float32)
    ids[kept], distances[kept] = flat_ids, flat_distances
    return ids, distances


def _cost_of(
    result: Any, ids: Any, distances: Any, counts: Any, metadata: list[Any] | None, **further: Any
) -> _Result:
    stats = result.stats
    nothing = np.zeros(len(counts), np.int64)
    reads, bytes_read, shared_reads, cache_hits = (
        np.asarray(stats.get(name, nothing)) for name in ("reads", "bytes_read", "shared_reads", "cache_hits")
    )
    return _Result(ids, distances, counts, metadata, reads, bytes_read, shared_reads, cache_hits, **further)


def _health_of(index: SearchIndex, node: str) -> ShardHealth:
    info = index.info()
    memory = info.get("memory_bytes", 0)
    device = info.get("device", "")
    return ShardHealth(
        n=int(info["n"]),
        dim=int(info["dim"]),
        metric=str(info["metric"]),
        node=node,
        pid=os.getpid(),
        memory_bytes=sum(memory.values()) if isinstance(memory, Mapping) else int(memory),
        device=str(device.get("name", "")) if isinstance(device, Mapping) else str(device),
        details={
            "uuid": info.get("uuid", ""),
            "plan": info.get("plan", ""),
            "ids": info.get("ids", ""),
            "columns": list(info.get("columns", ())),
        },
    )


def as_queries(vectors: Any) -> Float32Matrix:
    """Return vectors as a matrix of float32, one row a query."""
    matrix = np.asarray(vectors, dtype=np.float32)
    return matrix.reshape(1, -1) if matrix.ndim == 1 else matrix
