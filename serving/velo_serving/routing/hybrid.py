"""Searches over a router: full-text and hybrid ones, and the stored vectors of hits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import structs

from velo.results import Fuses, fused
from velo_serving.protocol.hits import costs_of, ids_of_hits, is_hit, no_hits, rows_at
from velo_serving.protocol.loops import converted
from velo_serving.protocol.types import Answer, Failure, Hits, SearchRequest, ShardFailure
from velo_serving.routing.router import Router, refusal_of

#: Asks all shards, by vectors or by words.
Ask: TypeAlias = Callable[[SearchRequest], Awaitable[Answer]]

#: Queries and hits that are fused on the event loop at most.
_INLINE_MAX: Final = 2_000


async def search_by(ask: Ask, request: SearchRequest, limit_s: float | None) -> Answer:
    """Run a full-text, hybrid or vector search over ``ask`` within ``limit_s``."""
    if request.text is None:
        return await ask(request)
    if request.fusion is None:
        answer = await ask(request)
        return replace(answer, hits=_scored(answer.hits))
    started = time.perf_counter()
    fusion: Fuses = request.fusion
    depth = fusion.depth_of(request.k)
    request = structs.replace(request, of_heavy=request.is_heavy)
    by_words = structs.replace(request, k=depth, fusion=None)
    lists = [(fusion.vectors, structs.replace(by_words, text=None)), (fusion.words, by_words)]
    answers = list(await asyncio.gather(*(ask(part) for weight, part in lists if weight > 0)))
    # A list of no weight is not asked for.
    near = answers[0].hits if fusion.vectors > 0 else _no_hits(answers[0].hits)
    words = answers[-1].hits if fusion.words > 0 else _no_hits(answers[0].hits)
    if len(request.queries) * depth > _INLINE_MAX:
        hits, missing = await converted(_fused, request, near, words)
    else:
        hits, missing = _fused(request, near, words)
    if missing:
        left_s = None if limit_s is None else max(limit_s - (time.perf_counter() - started), 0.001)
        rows = sorted(missing)
        answers.append(
            await ask(
                structs.replace(
                    request,
                    queries=request.queries[rows],
                    k=max(len(ids) for ids in missing.values()),
                    filters=tuple({"$ids": missing[row]} for row in rows),
                    text=None,
                    fusion=None,
                    return_metadata=None,
                    timeout_s=left_s,
                )
            )
        )
        _take_distances(hits, rows, answers[-1].hits)
    return _together(answers, hits)


def _scored(words: Hits) -> Hits:
    """Full-text hits: shards send negated scores as distances."""
    scores = np.where(is_hit(words), -words.distances, 0).astype(np.float32)
    return replace(words, distances=np.full_like(words.distances, np.inf), scores=scores)


def _no_hits(like: Hits) -> Hits:
    return Hits(like.ids[:, :0], like.distances[:, :0], np.zeros_like(like.counts))


def _fused(request: SearchRequest, near: Hits, words: Hits) -> tuple[Hits, dict[int, list[Any]]]:
    """The fused hits of each query, and by query those without a known distance."""
    fusion: Fuses = request.fusion
    count, k = len(request.queries), request.k
    strings = near.ids.dtype == object or words.ids.dtype == object
    ids, distances = no_hits(count, k, strings=strings)
    scores = np.zeros((count, k), np.float32)
    counts = np.zeros(count, np.int64)
    lists = [one for one in (near, words) if one.counts.any()]
    lists = [] if any(one.metadata is None for one in lists) else lists
    metadata: list[pa.Table] = []
    missing: dict[int, list[Any]] = {}
    for row in range(count):
        of_near = near.ids[row, : near.counts[row]].tolist()
        of_words = words.ids[row, : words.counts[row]].tolist()
        numbers = {one: number for number, one in enumerate(dict.fromkeys([*of_near, *of_words]))}
        known = list(numbers)
        found, points = fused(
            fusion,
            np.array([numbers[one] for one in of_near], np.int64),
            near.distances[row, : len(of_near)],
            np.array([numbers[one] for one in of_words], np.int64),
            -words.distances[row, : len(of_words)].astype(np.float64),
        )
        chosen = [known[number] for number in found[:k].tolist()]
        counts[row] = len(chosen)
        ids[row, : len(chosen)] = chosen
        scores[row, : len(chosen)] = points[:k]
        distance_of = dict(zip(of_near, near.distances[row].tolist(), strict=False))
        distances[row, : len(chosen)] = [distance_of.get(one, np.inf) for one in chosen]
        unknown = [one for one in chosen if one not in distance_of]
        if unknown:
            missing[row] = unknown
        if lists:
            metadata.append(_rows_of(chosen, row, lists))
    return Hits(ids, distances, counts, metadata or None, scores=scores), missing


def _rows_of(chosen: Sequence[Any], row: int, lists: Sequence[Hits]) -> pa.Table:
    tables = [hits.metadata[row] for hits in lists if hits.metadata is not None]
    of_id = {
        one: (table, place)
        for hits, table in zip(lists, tables, strict=True)
        for place, one in enumerate(hits.ids[row, : hits.counts[row]].tolist())
    }
    return rows_at([of_id[one] for one in chosen]) if chosen else tables[0].slice(0, 0)


def _take_distances(hits: Hits, rows: Sequence[int], found: Hits) -> None:
    for at, row in enumerate(rows):
        size = int(found.counts[at])
        distance_of = dict(zip(found.ids[at, :size].tolist(), found.distances[at].tolist(), strict=False))
        for place, one in enumerate(hits.ids[row, : hits.counts[row]].tolist()):
            if one in distance_of:
                hits.distances[row, place] = distance_of[one]


def _together(answers: Sequence[Answer], hits: Hits) -> Answer:
    """One answer, as complete as its least complete part."""
    least = min(answers, key=lambda one: one.shards_answered)
    failures = {one.shard: one for answer in answers for one in answer.failures}
    hits = replace(hits, **costs_of(one.hits for one in answers))
    homes = {one: place for answer in answers for one, place in answer.homes.items()}
    answered = min(least.shards_answered, least.shards_total - len(failures))
    return replace(least, hits=hits, shards_answered=answered, failures=tuple(failures.values()), homes=homes)


async def search(router: Router, request: SearchRequest, dim: int, *, spent_s: float = 0.0) -> Answer:
    started = time.perf_counter()
    limit_s = router.limits.timeout_default_s if request.timeout_s is None else request.timeout_s
    answer = await search_by(router.search, request, limit_s)
    if not request.return_vectors:
        return answer
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
    if answer.hits.ids.size > _INLINE_MAX:
        hits = await converted(_with_vectors, answer.hits, found, dim)
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
    rows = np.concatenate([*parts, nothing])  # the last row is that of missing vectors
    vectors = np.full((*hits.ids.shape, dim), np.nan, np.float32)
    vectors[is_hit(hits)] = rows[[place_of.get(one, -1) for one in ids_of_hits(hits)]]
    return replace(hits, vectors=vectors)
