"""Fusion of two lists of hits."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from velo.types import AnyArray, Float64Array, Int64Array

__all__ = ["Fuses", "fused"]


class Fuses(Protocol):
    """A way to fuse two lists: their weights and lengths, and the points of a hit in its list."""

    @property
    def vectors(self) -> float: ...

    @property
    def words(self) -> float: ...

    def depth_of(self, k: int) -> int:
        """Return the number of hits per list for k results."""

    def points(self, values: Float64Array) -> Float64Array:
        """Return the points of each hit of one list, best first."""


def fused(
    fusion: Fuses, nearest: Int64Array, distances: AnyArray, best: Int64Array, scores: Float64Array
) -> tuple[Int64Array, Float64Array]:
    """Fuse two lists of hits, highest score first; ties go to the nearer, then to the better in words.

    Parameters
    ----------
    fusion : RRF or Weighted
    nearest, distances :
        Rows found by vectors, nearest first, by number.
    best, scores :
        Rows found by words, best first, by number.
    """
    lists = [
        (fusion.vectors, nearest, -distances.astype(np.float64)),
        (fusion.words, best, scores),
    ]
    numbers = np.unique(np.concatenate([found for weight, found, _ in lists if weight > 0]))
    total = np.zeros(len(numbers))
    ranks = []
    for weight, found, values in lists:
        rank = np.full(len(numbers), np.iinfo(np.int64).max)
        if weight > 0:
            at = np.searchsorted(numbers, found)
            rank[at] = np.arange(len(found))
            total[at] += weight * fusion.points(values)
        ranks.append(rank)
    order = np.lexsort((ranks[1], ranks[0], -total))
    return numbers[order], total[order]
