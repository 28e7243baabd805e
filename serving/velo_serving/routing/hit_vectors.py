"""The stored vectors of hits: asked for once the hits are known, of the shards that have them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from velo_serving.protocol.hits import ids_of_hits, is_hit
from velo_serving.protocol.types import Answer, Failure, Hits, SearchRequest, ShardFailure
from velo_serving.routing import hybrid
from velo_serving.routing.router import Router, refusal_of

#: More hits than this leave the event loop for a thread.
INLINE_MAX = 2_000


async def search(router: Router, request: SearchRequest, dim: int, *, spent_s: float = 0.0) -> Answer:
    """Search, and bring the vectors of the hits where the request asks for them."""
    started = time.perf_counter()
    answer = await hybrid.search(router, request)
    if not request.return_vectors:
        return answer
    limit_s = router.limits.timeout_default_s if request.timeout_s is None else request.timeout_s
    return await _bring_vectors(
        router,
        answer,
        dim,
        timeout_s=max(limit_s - spent_s - (time.perf_counter() - started), 0.001),
        allow_partial=request.allow_partial,
    )


async def _bring_vectors(
    router: Router, answer: Answer, dim: int, *, timeout_s: float | None, allow_partial: bool
) -> Answer:
    """The answer with the vectors of its hits. Deleted rows have none; late shards count as missing."""
    arguments: dict[int, dict[str, list[Any]]] = {}
    for one in dict.fromkeys(ids_of_hits(answer.hits)):
        arguments.setdefault(answer.homes[one], {"ids": []})["ids"].append(one)
    replies = await router.look_up_each("vectors", arguments, timeout_s) if arguments else []
    found = [reply for _, reply in replies if not isinstance(reply, Failure)]
    failures = [ShardFailure(name, reply) for name, reply in replies if isinstance(reply, Failure)]
    if failures and not (found and allow_partial):
        raise refusal_of(router.name, failures, answer.shards_answered - len(failures), answer.shards_total)
    if answer.hits.ids.size > INLINE_MAX:
        hits = await asyncio.to_thread(_with_vectors, answer.hits, found, dim)
    else:
        hits = _with_vectors(answer.hits, found, dim)
    return replace(
        answer,
        hits=hits,
        shards_answered=answer.shards_answered - len(failures),
        failures=(*answer.failures, *failures),
    )


def _with_vectors(hits: Hits, found: Sequence[Mapping[str, Any]], dim: int) -> Hits:
    place_of: dict[Any, int] = {}
    parts = []
    for reply in found:
        place_of |= {one: place for place, one in enumerate(reply["ids"], len(place_of))}
        parts.append(np.frombuffer(reply["vectors"], "<f4").reshape(len(reply["ids"]), dim))
    nothing = np.full((1, dim), np.nan, np.float32)
    rows = np.concatenate([*parts, nothing])  # the last row stands for what was not brought
    vectors = np.full((*hits.ids.shape, dim), np.nan, np.float32)
    vectors[is_hit(hits)] = rows[[place_of.get(one, -1) for one in ids_of_hits(hits)]]
    return replace(hits, vectors=vectors)
