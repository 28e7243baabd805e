"""Answers of several shards as the results of ``velo.Index``: one type, wherever a search ran."""

from __future__ import annotations

from typing import Any

import numpy as np

from velo import GroupedResult, RangeResult, SearchResult
from velo.results import Served
from velo_serving.protocol.hits import costs_of, is_hit, joined
from velo_serving.protocol.types import Answer, Hits, SearchRequest


def result_of(answer: Answer, request: SearchRequest, took_ms: float) -> SearchResult | RangeResult:
    failures = [one.to_dict() for one in answer.failures]
    served = Served(took_ms, answer.shards_answered, answer.shards_total, failures)
    hits = answer.hits
    if request.radius is not None:
        return ranges_result(hits, served)
    if request.group_by is not None:
        return groups_result(hits, served, request.k, request.group_hits)
    return nearest_result(hits, served)


def nearest_result(hits: Hits, served: Served, *, single: bool = False) -> SearchResult:
    first = 0 if single else slice(None)
    return SearchResult(
        ids=hits.ids[first],
        distances=hits.distances[first],
        counts=hits.counts.astype(np.uint32),
        stats=_shares(hits),
        metadata=None if hits.metadata is None else hits.metadata[first],
        served=served,
        vectors=None if hits.vectors is None else hits.vectors[first],
        scores=None if hits.scores is None else hits.scores[first],
    )


def groups_result(
    hits: Hits, served: Served, k: int, group_size: int, *, single: bool = False
) -> GroupedResult:
    """Groups of each query; the rows of the hits hold one group after another."""
    groups = hits.groups or [[] for _ in hits.counts]
    shape = (len(hits.ids), k, group_size)
    ids = np.full(shape, None if hits.ids.dtype == object else -1, hits.ids.dtype)
    distances = np.full(shape, np.inf, np.float32)
    vectors = None if hits.vectors is None else np.full((*shape, hits.vectors.shape[2]), np.nan, np.float32)
    sizes = np.zeros(shape[:2], np.uint32)
    for query, row in enumerate(groups):
        start = 0
        for place, (_, size) in enumerate(row):
            inside = slice(start, start + size)
            ids[query, place, :size] = hits.ids[query, inside]
            distances[query, place, :size] = hits.distances[query, inside]
            if vectors is not None and hits.vectors is not None:
                vectors[query, place, :size] = hits.vectors[query, inside]
            sizes[query, place] = size
            start += size
    values = [[value for value, _ in row] for row in groups]
    first = 0 if single else slice(None)
    return GroupedResult(
        ids=ids[first],
        distances=distances[first],
        counts=np.array([len(row) for row in values], np.uint32),
        stats=_shares(hits),
        metadata=None if hits.metadata is None else hits.metadata[first],
        group_sizes=sizes,
        groups=values[first],
        complete=np.array([len(row) >= k for row in values], bool),
        served=served,
        vectors=None if vectors is None else vectors[first],
    )


def ranges_result(hits: Hits, served: Served) -> RangeResult:
    """All within a radius: rows that are padded to the longest become one after another."""
    kept = is_hit(hits)
    return RangeResult(
        lims=np.concatenate([[0], np.cumsum(hits.counts)]).astype(np.int64),
        distances=hits.distances[kept],
        ids=hits.ids[kept],
        limited=np.asarray(hits.limited, np.bool_),
        stats=_shares(hits),
        metadata=None if hits.metadata is None else joined(hits.metadata),
        served=served,
        vectors=None if hits.vectors is None else hits.vectors[kept],
    )


def _shares(hits: Hits) -> dict[str, Any]:
    """Shards count for a request as a whole; each query gets its share."""
    count = len(hits.counts)
    return {name: np.full(count, total / max(1, count)) for name, total in costs_of([hits]).items()}
