"""Merging hits of several shards: the nearest, groups, and all within a radius.

A shard returns its nearest k groups, which include those of the nearest k overall that it has. Further rows
of a group may be in a shard where the group is not among the nearest k; such shards are asked again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import structs

from velo.filters import And, Compare, Expr, from_dict, from_sql, to_dict
from velo_serving.protocol.hits import costs_of, is_hit, joined, no_hits, rows_at
from velo_serving.protocol.types import Answer, FilterForm, Hits, IdArray, SearchRequest

#: The number of hits up to which one query is merged without padding.
SMALL_MAX = 400


def merge(parts: Sequence[Hits], request: SearchRequest) -> Hits:
    if request.group_by is not None:
        return merge_groups(parts, request.k, request.group_hits)
    if request.radius is None:
        return merge_top_k(parts, request.k)
    hit_counts = np.sum([part.counts for part in parts], axis=0)
    hits = merge_top_k(parts, max(1, min(request.k, int(hit_counts.max(initial=1)))))
    limited = hit_counts > request.k
    for part in parts:
        if part.limited is not None:
            limited = limited | part.limited
    return replace(hits, limited=limited)


def merge_top_k(parts: Sequence[Hits], k: int) -> Hits:
    """Keep the ``k`` nearest hits of every query over all parts; equal distances are ordered by id.

    The parts may be narrower or wider than ``k``. Metadata is complete, or missing.
    """
    assert len(parts) > 0
    assert k >= 1
    if len(parts[0].counts) == 1 and sum(part.distances.shape[1] for part in parts) <= SMALL_MAX:
        return _merge_small(parts, k)
    distances = np.concatenate([part.distances for part in parts], axis=1)
    valid = np.concatenate([is_hit(part) for part in parts], axis=1)
    ids_are_int = all(part.ids.dtype.kind == "i" for part in parts)
    each: list[IdArray] = [part.ids if ids_are_int else part.ids.astype(object) for part in parts]
    ids: IdArray = np.concatenate(each, axis=1)
    if ids_are_int:
        order = np.lexsort((ids, distances, ~valid), axis=-1)[:, :k]
    else:
        order = _order_object(ids, distances, valid)[:, :k]
    counts = np.minimum(valid.sum(axis=1), k).astype(np.int64)

    real = np.arange(order.shape[1])[None, :] < counts[:, None]
    merged_ids, merged_distances = no_hits(len(distances), k, strings=not ids_are_int)
    width = order.shape[1]
    merged_ids[:, :width][real] = np.take_along_axis(ids, order, axis=1)[real]
    merged_distances[:, :width][real] = np.take_along_axis(distances, order, axis=1)[real]
    return Hits(
        ids=merged_ids,
        distances=merged_distances,
        counts=counts,
        metadata=_merge_metadata(parts, order, counts, valid),
        **costs_of(parts),
    )


def _merge_small(parts: Sequence[Hits], k: int) -> Hits:
    """Merge one query with few hits, without padding."""
    counts = [int(part.counts[0]) for part in parts]
    distances = np.concatenate([part.distances[0, :count] for part, count in zip(parts, counts, strict=True)])
    rows = [part.ids[0, :count] for part, count in zip(parts, counts, strict=True)]
    nothing: int | None = -1
    if all(row.dtype.kind == "i" for row in rows):
        ids: IdArray = np.concatenate(rows)
        order = np.lexsort((ids, distances))[:k]
    else:
        nothing = None
        ids = np.concatenate([row.astype(object) for row in rows])
        order = np.array(_order_mixed(ids.tolist(), distances.tolist())[:k], np.intp)
    count = len(order)
    merged_ids, merged_distances = ids[order], distances[order]
    if count < k:
        merged_ids = np.concatenate([merged_ids, np.full(k - count, nothing, merged_ids.dtype)])
        merged_distances = np.concatenate([merged_distances, np.full(k - count, np.inf, np.float32)])
    return Hits(
        ids=merged_ids[None],
        distances=merged_distances[None],
        counts=np.array([count], dtype=np.int64),
        metadata=_merge_metadata(parts, order[None], [count]),
        **costs_of(parts),
    )


def _order_mixed(ids: Sequence[Any], distances: Sequence[float]) -> list[int]:
    """Order by distance, then by id: strings, or strings and integers if shards disagree."""
    return sorted(range(len(ids)), key=lambda at: (distances[at], isinstance(ids[at], str), ids[at]))


def _order_object(
    ids: IdArray, distances: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]
) -> npt.NDArray[np.intp]:
    order = np.empty(distances.shape, dtype=np.intp)
    for row in range(distances.shape[0]):
        real, padding = np.flatnonzero(valid[row]), np.flatnonzero(~valid[row])
        first = _order_mixed(ids[row, real].tolist(), distances[row, real].tolist())
        order[row] = np.concatenate([real[first], padding])
    return order


def _merge_metadata(
    parts: Sequence[Hits],
    order: npt.NDArray[np.intp],
    counts: Sequence[int] | npt.NDArray[np.int64],
    valid: npt.NDArray[np.bool_] | None = None,
) -> list[pa.Table] | None:
    """The metadata of merged hits, or None if a part with hits has none.

    ``order`` has places among the hits of all parts, or with ``valid`` among hits and padding.
    """
    given = [part.metadata for part in parts if part.metadata is not None]
    if not given or any(part.metadata is None and part.counts.any() for part in parts):
        return None
    merged = []
    for row, count in enumerate(counts):
        places = order[row, :count]
        if valid is not None:
            places = np.cumsum(valid[row])[places] - 1
        merged.append(joined([tables[row] for tables in given]).take(places))
    return merged


#: (distance, whether the id is text, id, table of the metadata and row): sorted by distance, then by id.
_Hit: TypeAlias = tuple[float, bool, Any, tuple[pa.Table, int] | None]
_Groups: TypeAlias = dict[Any, list[_Hit]]


@dataclass(frozen=True, slots=True, eq=False)
class FollowUp:
    """A search for the rows of some groups: its query number i is about ``groups[i]``, (query, value)."""

    request: SearchRequest
    groups: tuple[tuple[int, Any], ...]


def merge_groups(parts: Sequence[Hits], k: int, group_size: int) -> Hits:
    """Keep the ``k`` nearest groups of every query over all parts, and their nearest hits."""
    merged: list[_Groups] = []
    for query in range(len(parts[0].counts)):
        groups: _Groups = {}
        for part in parts:
            for value, hits in _groups_of(part, query).items():
                groups.setdefault(value, []).extend(hits)
        merged.append(_nearest(groups, k, group_size))
    return _hits_of(merged, parts)


def thin_groups(parts: Sequence[Hits], merged: Hits, request: SearchRequest) -> tuple[tuple[int, Any], ...]:
    """The (query, value) pairs of merged groups that may have nearer rows in some part.

    A part shows the nearest rows of its groups, and all its groups if they are fewer than k. Otherwise the
    rows of a missing group are farther than the nearest row of its last group.
    """
    thin: list[tuple[int, Any]] = []
    if request.group_hits == 1 or len(parts) == 1:
        return ()
    for query in range(len(merged.counts)):
        per_part = [_groups_of(part, query) for part in parts]
        bounds = [
            max(hits[0][0] for hits in groups.values()) if len(groups) >= request.k else np.inf
            for groups in per_part
        ]
        for value, hits in _groups_of(merged, query).items():
            farthest = hits[-1][0] if len(hits) == request.group_hits else np.inf
            if any(
                value not in groups and bound < farthest
                for groups, bound in zip(per_part, bounds, strict=True)
            ):
                thin.append((query, value))
    return tuple(thin)


def follow_ups(request: SearchRequest, answer: Answer, queries_max: int) -> Iterator[FollowUp]:
    """Searches for the rows of incomplete groups, ``queries_max`` at a time."""
    for start in range(0, len(answer.thin_groups), queries_max):
        groups = answer.thin_groups[start : start + queries_max]
        assert request.group_by is not None
        filters = tuple(_within(request.filter_of(query), request.group_by, value) for query, value in groups)
        narrow = structs.replace(
            request,
            queries=request.queries[[query for query, _ in groups]],
            k=request.group_hits,
            filters=filters,
            group_by=None,
            group_size=None,
        )
        yield FollowUp(narrow, groups)


def fill_groups(answer: Answer, request: SearchRequest, follow_up: FollowUp, more: Answer) -> Answer:
    merged = [_groups_of(answer.hits, query) for query in range(len(answer.hits.counts))]
    for place, (query, value) in enumerate(follow_up.groups):
        ids = {hit[2] for hit in merged[query][value]}
        row = _row(more.hits, place, 0, int(more.hits.counts[place]))
        merged[query][value].extend(hit for hit in row if hit[2] not in ids)
    filled = [_nearest(groups, request.k, request.group_hits) for groups in merged]
    fewer = more if more.shards_answered < answer.shards_answered else answer
    return dataclasses.replace(
        answer,
        hits=_hits_of(filled, [answer.hits, more.hits]),
        shards_answered=fewer.shards_answered,
        failures=fewer.failures,
        homes={**answer.homes, **more.homes},
    )


def _within(condition: FilterForm | None, column: str, value: Any) -> FilterForm:
    """A filter and a value of a column."""
    group: Expr = Compare(column, "eq", value)
    if condition is None:
        return to_dict(group)
    tree = from_dict(condition) if isinstance(condition, Mapping) else from_sql(condition)
    return to_dict(And((tree, group)))


def _groups_of(part: Hits, query: int) -> _Groups:
    assert part.groups is not None
    groups: _Groups = {}
    start = 0
    for value, size in part.groups[query]:
        groups[value] = _row(part, query, start, start + size)
        start += size
    return groups


def _row(part: Hits, query: int, start: int, stop: int) -> list[_Hit]:
    ids = part.ids[query, start:stop].tolist()
    distances = part.distances[query, start:stop].tolist()
    table = None if part.metadata is None else part.metadata[query]
    return [
        (distance, isinstance(one, str), one, None if table is None else (table, row))
        for row, (distance, one) in enumerate(zip(distances, ids, strict=True), start)
    ]


def _nearest(groups: _Groups, k: int, group_size: int) -> _Groups:
    ordered = {value: sorted(hits, key=_order)[:group_size] for value, hits in groups.items() if hits}
    return dict(sorted(ordered.items(), key=lambda item: _order(item[1][0]))[:k])


def _order(hit: _Hit) -> tuple[float, bool, Any]:
    return hit[:3]


def _hits_of(merged: Sequence[_Groups], parts: Sequence[Hits]) -> Hits:
    counts = np.array([sum(map(len, groups.values())) for groups in merged], np.int64)
    width = max(1, int(counts.max(initial=1)))
    strings = any(part.ids.dtype == object for part in parts)
    ids, distances = no_hits(len(merged), width, strings=strings)
    with_metadata = [part.metadata for part in parts if part.metadata]
    metadata: list[pa.Table] = []
    for query, groups in enumerate(merged):
        hits = [hit for group in groups.values() for hit in group]
        ids[query, : len(hits)] = [hit[2] for hit in hits]
        distances[query, : len(hits)] = [hit[0] for hit in hits]
        if len(with_metadata) == len(parts):
            places = [hit[3] for hit in hits if hit[3] is not None]
            metadata.append(rows_at(places) if places else with_metadata[0][0].slice(0, 0))
    return Hits(
        ids=ids,
        distances=distances,
        counts=counts,
        metadata=metadata or None,
        **costs_of(parts),
        groups=[[(value, len(hits)) for value, hits in groups.items()] for groups in merged],
    )
