"""The part of an answer that each shard is asked for.

A shard with a share p of the rows holds each of the k nearest with probability p, so it holds
``Binomial(k, p)`` of them. All shards are asked for the number that some shard exceeds once in ten requests.
If all hits of a shard are in the merged answer, the shard may hold more, and is asked again for k. So an
answer is that of full requests to all shards, however rows are distributed. Where shards often hold more than
their share, as shards of clusters do, all are asked for k at once.

The hits of a shard that stay in the merged answer are its nearest, which are missed least. Where the chance
that the j-th nearest is missed grows as j, the mean over all hits of a shard is ``share / (1 - p + k p)``
times that over the merged ones, since ``E[X²] / E[X] = 1 - p + k p`` for the binomial X. So the first request
may miss more by this factor, but never asks for less than the square of the recall.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from velo_serving.protocol.types import Hits, SearchRequest

#: The expected share of queries that need a second request to some shard.
EXPECTED: Final = 0.1
#: Above this share, shards are asked for k at once.
TOLERATED: Final = 0.3

#: The decay of former requests in that share.
MEMORY: Final = 0.98

#: Shares of rows are rounded up to parts of this size.
PARTS: Final = 64

_FARTHEST: Final = np.finfo(np.float32).max


@functools.lru_cache(maxsize=1024)
def share_of(k: int, shards: int, parts: int) -> int:
    """Return the hits of a first request to each shard; the largest has ``parts`` / 64 of the rows."""
    if shards == 1 or parts >= PARTS:
        return k
    p = parts / PARTS
    held = np.arange(k + 1)
    logs = np.array([math.lgamma(k + 1) - math.lgamma(j + 1) - math.lgamma(k - j + 1) for j in range(k + 1)])
    at_least = np.cumsum(np.exp(logs + held * math.log(p) + (k - held) * math.log1p(-p))[::-1])[::-1]
    return min(k, int(np.argmax(np.append(at_least * shards <= EXPECTED, True))))


class Shares:
    """Chooses the size of first requests to shards, and counts those that were too small."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._parts = math.ceil(PARTS / shards)
        self._exceeded = 0.0

    def note_rows(self, most: int, total: int) -> None:
        """Note the rows of the largest shard and of all."""
        self._parts = math.ceil(PARTS * most / total) if total else PARTS

    def of(self, request: SearchRequest) -> SearchRequest:
        """The first request to each shard; the same one where shards cannot be asked for less."""
        if request.group_by is not None or request.radius is not None:
            return request
        share = share_of(request.k, self._shards, self._parts)
        if share == request.k:
            return request
        recall, p = request.recall, self._parts / PARTS
        if recall is not None:
            recall = max(1 - (1 - recall) * share / (1 - p + request.k * p), recall**2)
        return structs.replace(request, k=share, recall=recall, of_heavy=request.is_heavy)

    @property
    def suffice(self) -> bool:
        return self._exceeded < TOLERATED

    def note(self, exceeded: int, queries: int) -> None:
        """Count the queries for which a first request was too small."""
        kept = MEMORY**queries
        self._exceeded = kept * self._exceeded + (1 - kept) * exceeded / max(1, queries)


def short_of(parts: Sequence[Hits], merged: Hits, share: int) -> npt.NDArray[np.bool_]:
    """For each part and query, whether the nearest ``share`` hits of the part are in the answer."""
    ends = np.array([part.distances[:, share - 1] for part in parts])
    last = np.minimum(merged.distances[:, -1], _FARTHEST)  # beyond are no hits
    short: npt.NDArray[np.bool_] = ends <= last
    return short
