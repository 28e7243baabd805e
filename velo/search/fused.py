"""Two lists of hits become one."""

from __future__ import annotations

import numpy as np

from velo.options import RRF, Fusion
from velo.types import AnyArray, Float64Array, Int64Array

__all__ = ["fused"]


def fused(
    fusion: Fusion, nearest: Int64Array, distances: AnyArray, best: Int64Array, scores: Float64Array
) -> tuple[Int64Array, Float64Array]:
    """The hits of two lists, highest score first; of equal ones the nearer, then the better in words.

    Parameters
    ----------
    fusion : RRF or Weighted
    nearest, distances :
        What vectors found, nearest first.
    best, scores :
        What words found, best first.
    """
    lists = [
        (fusion.vectors, nearest, -distances.astype(np.float64)),
        (fusion.words, best, scores),
    ]
    vertices = np.unique(np.concatenate([found for weight, found, _ in lists if weight > 0]))
    total = np.zeros(len(vertices))
    ranks = []
    for weight, found, values in lists:
        rank = np.full(len(vertices), np.iinfo(np.int64).max)
        if weight > 0:
            at = np.searchsorted(vertices, found)
            rank[at] = np.arange(len(found))
            total[at] += weight * _points(fusion, values)
        ranks.append(rank)
    order = np.lexsort((ranks[1], ranks[0], -total))
    return vertices[order], total[order]


def _points(fusion: Fusion, values: Float64Array) -> Float64Array:
    """What each hit of one list is worth there, of the best first."""
    if isinstance(fusion, RRF):
        ranks: Float64Array = np.arange(1, len(values) + 1, dtype=np.float64)
        return 1.0 / (fusion.constant + ranks)
    if len(values) == 0 or values[0] == values[-1]:
        return np.ones(len(values))
    points: Float64Array = (values - values[-1]) / (values[0] - values[-1])
    return points
