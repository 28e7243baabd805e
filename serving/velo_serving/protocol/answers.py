"""Answers of several shards as what ``velo.Index`` answers with: one type, wherever a search ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo import GroupedResult, RangeResult, SearchResult
from velo.results import Served
from velo_serving.protocol.hits import costs_of, with_rows
from velo_serving.protocol.types import Answer, IdArray, SearchRequest

Distances = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


def result_of(answer: Answer, request: SearchRequest, took_ms: float) -> SearchResult | RangeResult:
    """The answer of a router as an index would give it."""
    hits = with_rows(answer.hits)
    failures = [
        {"shard": one.shard, "type": one.failure.kind, "message": one.failure.message}
        for one in answer.failures
    ]
    served = Served(took_ms, answer.shards_answered, answer.shards_total, failures)
    stats = costs_of([hits])
    found = (hits.ids, hits.distances, np.asarray(hits.counts, np.int64))
    if request.radius is not None:
        assert hits.limited is not None
        return ranges_result(*found, hits.limited, hits.metadata, stats, served, hits.vectors)
    if request.group_by is not None:
        groups = hits.groups or [[] for _ in hits.counts]
        return groups_result(
            *found[:2],
            groups,
            request.k,
            request.group_hits,
            False,
            hits.metadata,
            stats,
            served,
            hits.vectors,
        )
    return nearest_result(*found, False, hits.metadata, stats, served, hits.vectors, hits.scores)


def nearest_result(
    ids: IdArray,
    distances: Distances,
    counts: Counts,
    single: bool,
    metadata: Sequence[Sequence[Mapping[str, Any]]] | None,
    stats: Mapping[str, int],
    served: Served,
    vectors: Vectors | None = None,
    scores: Distances | None = None,
) -> SearchResult:
    """The nearest of each query, in rows of k."""
    tables = _tables(metadata)
    return SearchResult(
        ids=ids[0] if single else ids,
        distances=distances[0] if single else distances,
        counts=counts.astype(np.uint32),
        stats=_shares(stats, len(counts)),
        metadata=tables[0] if single and tables is not None else tables,
        served=served,
        vectors=vectors[0] if single and vectors is not None else vectors,
        scores=scores[0] if single and scores is not None else scores,
    )


def groups_result(
    ids: IdArray,
    distances: Distances,
    groups: Sequence[Sequence[tuple[Any, int]]],
    k: int,
    group_size: int,
    single: bool,
    metadata: Sequence[Sequence[Mapping[str, Any]]] | None,
    stats: Mapping[str, int],
    served: Served,
    vectors: Vectors | None = None,
) -> GroupedResult:
    """Groups of each query; the rows hold one group after another, which are cut to equal width."""
    shape = (len(ids), k, group_size)
    each_ids = np.full(shape, None if ids.dtype == object else -1, ids.dtype)
    each_distances = np.full(shape, np.inf, np.float32)
    each_vectors = None if vectors is None else np.full((*shape, vectors.shape[2]), np.nan, np.float32)
    sizes = np.zeros(shape[:2], np.uint32)
    for query, row in enumerate(groups):
        start = 0
        for place, (_, size) in enumerate(row):
            each_ids[query, place, :size] = ids[query, start : start + size]
            each_distances[query, place, :size] = distances[query, start : start + size]
            if vectors is not None and each_vectors is not None:
                each_vectors[query, place, :size] = vectors[query, start : start + size]
            sizes[query, place] = size
            start += size
    values = [[value for value, _ in row] for row in groups]
    tables = _tables(metadata)
    return GroupedResult(
        ids=each_ids[0] if single else each_ids,
        distances=each_distances[0] if single else each_distances,
        counts=np.array([len(row) for row in values], np.uint32),
        stats=_shares(stats, len(values)),
        metadata=tables[0] if single and tables is not None else tables,
        group_sizes=sizes,
        groups=values[0] if single else values,
        complete=np.array([len(row) >= k for row in values], bool),
        served=served,
        vectors=each_vectors[0] if single and each_vectors is not None else each_vectors,
    )


def ranges_result(
    ids: IdArray,
    distances: Distances,
    counts: Counts,
    limited: npt.NDArray[np.bool_],
    metadata: Sequence[Sequence[Mapping[str, Any]]] | None,
    stats: Mapping[str, int],
    served: Served,
    vectors: Vectors | None = None,
) -> RangeResult:
    """All within a radius; rows that are padded to the longest become one after another."""
    kept = np.arange(ids.shape[1])[None, :] < counts[:, None]
    rows = None if metadata is None else [row for part in metadata for row in part]
    return RangeResult(
        lims=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        distances=distances[kept],
        ids=ids[kept],
        limited=np.asarray(limited, np.bool_),
        stats=_shares(stats, len(counts)),
        metadata=None if rows is None else _table(rows),
        served=served,
        vectors=None if vectors is None else vectors[kept],
    )


def _shares(stats: Mapping[str, int], count: int) -> dict[str, Any]:
    """Shards count for a request as a whole; each query gets its share."""
    return {name: np.full(count, total / max(1, count)) for name, total in stats.items()}


def _tables(metadata: Sequence[Sequence[Mapping[str, Any]]] | None) -> list[pa.Table] | None:
    if metadata is None:
        return None
    whole = _table([row for part in metadata for row in part])
    ends = np.cumsum([len(part) for part in metadata]).tolist()
    return [whole.slice(end - len(part), len(part)) for end, part in zip(ends, metadata, strict=True)]


def _table(rows: list[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows]) if rows else pa.table({})
