"""Two lists of hits become one."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from velo.types import AnyArray, Float64Array, Int64Array

__all__ = ["Fuses", "fused"]


class Fuses(Protocol):
    """How two lists become one: their weights and lengths, and what a hit is worth in its list."""

    @property
    def vectors(self) -> float: ...

    @property
    def words(self) -> float: ...

    def depth_of(self, k: int) -> int:
        """Hits of each list for an answer of k."""

    def points(self, values: Float64Array) -> Float64Array:
        """What each hit of one list is worth there, of the best first."""


def fused(
    fusion: Fuses, nearest: Int64Array, distances: AnyArray, best: Int64Array, scores: Float64Array
) -> tuple[Int64Array, Float64Array]:
    """The hits of two lists, highest score first; of equal ones the nearer, then the better in words.

    Parameters
    ----------
    fusion : RRF or Weighted
    nearest, distances :
        What vectors found, nearest first, by numbers.
    best, scores :
        What words found, best first, by numbers.
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
