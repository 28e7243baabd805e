"""Shards are asked for their share of an answer, which stays that of all rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

from tests.serving.fakes import CommandedChannel, hits, request
from tests.serving.router_stage import Stage, on_stage
from velo_serving.protocol.types import Hits, SearchRequest, ShardReply
from velo_serving.routing.router import Router
from velo_serving.routing.shares import TOLERATED, Shares, share_of
from velo_serving.transport.codec import decode_search, encode_search, is_plain

ROWS, SHARDS = 400, 4


class Rows(CommandedChannel):
    """A shard of rows on a line, ids and places alike; a query is a place in its first number."""

    def __init__(self, number: int, rows: np.ndarray) -> None:
        super().__init__(number)
        self.rows = rows
        self.answer = self.nearest

    async def nearest(self, asked: SearchRequest) -> ShardReply:
        found = []
        for query in asked.queries[:, 0]:
            distances = np.abs(self.rows - query).astype(np.float32)
            near = np.lexsort((self.rows, distances))[: asked.k]
            found.append((self.rows[near], distances[near]))
        parts = [hits(ids.tolist(), distances.tolist(), k=asked.k) for ids, distances in found]
        return Hits(
            ids=np.concatenate([part.ids for part in parts]),
            distances=np.concatenate([part.distances for part in parts]),
            counts=np.concatenate([part.counts for part in parts]),
            metadata=[pa.table({"row": ids}) for ids, _ in found],
        )


def shards_of(place_of: Callable[[np.ndarray], np.ndarray]) -> list[Rows]:
    rows = np.arange(ROWS)
    places = place_of(rows)
    return [Rows(number, rows[places == number]) for number in range(SHARDS)]


RANDOM = np.random.default_rng(5)

SPLITS = {
    "at random": lambda rows: RANDOM.integers(0, SHARDS, len(rows)),
    "by clusters": lambda rows: rows * SHARDS // len(rows),
    "all in one": lambda rows: np.full(len(rows), 2),
    "one of each but the last": lambda rows: np.minimum(rows, SHARDS - 1),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("k", [1, 7, 10, 60, 500])
def test_answers_are_those_of_all_rows_however_they_are_distributed(split: str, k: int) -> None:
    async def play() -> None:
        shards = shards_of(SPLITS[split])
        router = Router("things", shards)
        await router.start()
        for count in [1] * 20 + [9] * 3:
            places = RANDOM.uniform(0, ROWS, count).astype(np.float32)
            queries = np.zeros((count, 4), np.float32)
            queries[:, 0] = places
            answer = await router.search(SearchRequest(queries, k))
            whole = await Rows(0, np.arange(ROWS)).nearest(SearchRequest(queries, k))
            assert isinstance(whole, Hits)
            assert answer.hits.ids.tolist() == whole.ids.tolist()
            assert answer.hits.counts.tolist() == whole.counts.tolist()
            assert answer.hits.metadata == whole.metadata
            assert not answer.partial
        await router.close()

    asyncio.run(play())


def test_even_shards_are_asked_for_less_and_clustered_ones_for_all_at_once() -> None:
    async def asked(split: str) -> list[list[int]]:
        shards = shards_of(SPLITS[split])
        router = Router("things", shards)
        await router.start()
        for place in RANDOM.uniform(0, ROWS, 100):
            await router.search(SearchRequest(np.full((1, 4), place, np.float32), 10))
        await router.close()
        return [[one.k for one in shard.requests] for shard in shards]

    even = asyncio.run(asked("at random"))
    assert sum(map(len, even)) < 100 * SHARDS * (1 + TOLERATED)
    assert sum(map(sum, even)) < 0.75 * 100 * SHARDS * 10
    clustered = asyncio.run(asked("by clusters"))
    assert sum(map(len, clustered)) < 100 * SHARDS + 50
    assert all(ks[-50:] == [10] * 50 for ks in clustered)


@pytest.mark.parametrize(("shards", "parts"), [(2, 32), (4, 16), (16, 4), (3, 40)])
def test_one_request_in_ten_holds_more_than_its_share(shards: int, parts: int) -> None:
    shares = np.full(shards, (1 - parts / 64) / max(1, shards - 1))
    shares[0] = parts / 64
    for k in (1, 3, 10, 100, 5000):
        share = share_of(k, shards, parts)
        assert share_of(k - 1, shards, parts) <= share <= k if k > 1 else share == 1
        held = np.random.default_rng(1).multinomial(k, shares, 4000)
        assert share == k or (held >= share).any(axis=1).mean() < 0.13
    assert (share_of(9, 1, 64), share_of(9, 2, 64)) == (9, 9)


def test_first_requests_may_miss_more_the_more_of_their_hits_are_not_merged() -> None:
    """Misses that grow with the rank are, over the merged hits, as many as were asked for."""
    shares, random = Shares(SHARDS), np.random.default_rng(2)
    for k in (5, 10, 100, 5000):
        asked = SearchRequest(np.zeros((1, 4), np.float32), k, recall=0.98)
        part = shares.of(asked)
        assert part.k == share_of(k, SHARDS, 16) < k
        assert part.recall is not None
        assert 0.98**2 <= part.recall <= 0.98
        ranks = np.arange(1, k + 1)
        missed = (1 - part.recall) * (2 * ranks - 1) / part.k
        held = random.multinomial(k, [1 / SHARDS] * SHARDS, 2000)
        merged = (np.cumsum(missed)[np.maximum(held, 1) - 1] * (held > 0)).sum(axis=1).mean() / k
        assert merged < 0.02 * 1.02
    assert shares.of(structs.replace(asked, recall=None)).recall is None
    assert shares.of(structs.replace(asked, recall=1.0)).recall == 1
    for whole in (
        structs.replace(asked, k=1),
        structs.replace(asked, group_by="a"),
        structs.replace(asked, radius=1.0),
    ):
        assert shares.of(whole) is whole


@on_stage(shards=4)
async def test_a_shard_that_is_lost_before_it_is_asked_again_is_missing(stage: Stage) -> None:
    for shard in stage.shards:
        shard.answer = Rows(0, np.arange(100) + 1000 * shard.number).nearest  # type: ignore[method-assign]
    first = stage.shards[0]

    async def once(asked: SearchRequest) -> ShardReply:
        first.answer = first.never  # type: ignore[method-assign]
        return await Rows(0, np.arange(100)).nearest(asked)

    first.answer = once  # type: ignore[method-assign]
    task = stage.ask(k=20, recall=0.9)
    await stage.clock.crank(0.0)
    assert [one.k for one in first.requests] == [share_of(20, 4, 16), 20]
    assert [one.recall for one in first.requests] == [pytest.approx(1 - 0.1 * 10 / 5.75), 0.9]
    first.lost("the process ended")
    answer = await task
    assert answer.partial
    assert [one.shard for one in answer.failures] == ["0"]


def test_the_class_of_a_request_is_that_of_all_its_parts() -> None:
    heavy = SearchRequest(np.zeros((2, 4), np.float32), 5000, filters=({"a": 1}, None))
    assert heavy.is_heavy
    part = structs.replace(heavy.part([1]), filters=None, k=3)
    assert part.is_heavy
    assert not is_plain(part)
    assert decode_search(*encode_search(part)).is_heavy
    light = request(k=3)
    assert is_plain(light)
    assert not decode_search(*encode_search(light)).is_heavy
