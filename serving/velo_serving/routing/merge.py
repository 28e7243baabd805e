"""Merging the nearest vectors of several shards: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from velo_serving.protocol.hits import costs_of, is_hit, no_hits
from velo_serving.protocol.types import Hits, IdArray, MetadataRow, SearchRequest
from velo_serving.routing.grouping import merge_groups

#: One query with so many hits of all shards together is merged without padding.
SMALL_MAX = 400


def merge(parts: Sequence[Hits], request: SearchRequest) -> Hits:
    """One answer to a request, of the parts that its shards found."""
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
    ids: IdArray = np.concatenate(
        [part.ids if ids_are_int else part.ids.astype(object) for part in parts], axis=1
    )
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
        metadata=_merge_metadata(parts, order, counts),
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
    metadata: list[list[MetadataRow]] | None = None
    if not _lacks_metadata(parts):
        of_hits = [row for part in parts if part.metadata is not None for row in part.metadata[0]]
        metadata = [[of_hits[place] for place in order.tolist()]]
    return Hits(
        ids=merged_ids[None],
        distances=merged_distances[None],
        counts=np.array([count], dtype=np.int64),
        metadata=metadata,
        **costs_of(parts),
    )


def _lacks_metadata(parts: Sequence[Hits]) -> bool:
    """Whether a part with hits has no metadata, or no part has any."""
    return any(part.metadata is None and bool(part.counts.any()) for part in parts) or all(
        part.metadata is None for part in parts
    )


def _order_mixed(ids: Sequence[Any], distances: Sequence[float]) -> list[int]:
    """Order by distance, then by id: strings, or strings and integers if shards disagree."""
    return sorted(
        range(len(ids)), key=lambda place: (distances[place], isinstance(ids[place], str), ids[place])
    )


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
    parts: Sequence[Hits], order: npt.NDArray[np.intp], counts: npt.NDArray[np.int64]
) -> list[list[MetadataRow]] | None:
    if _lacks_metadata(parts):
        return None
    # Column c of the concatenation is hit c - first[part] of that part.
    first = np.cumsum([0] + [part.distances.shape[1] for part in parts])
    part_of = np.searchsorted(first, order, side="right") - 1
    merged: list[list[MetadataRow]] = []
    for row, count in enumerate(counts):
        rows: list[MetadataRow] = []
        for place in range(count):
            part = int(part_of[row, place])
            metadata = parts[part].metadata
            assert metadata is not None
            rows.append(metadata[row][int(order[row, place] - first[part])])
        merged.append(rows)
    return merged
