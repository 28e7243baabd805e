"""A hung shard, a slow query, and a shard that returns with another index: real shards and a real clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.serving.fakes import ExactIndex
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.types import Answer, SearchRequest
from velo_serving.routing.local_backend import LocalChannel
from velo_serving.routing.router import Router
from velo_serving.shard.shard import Shard

VECTORS = np.random.default_rng(3).standard_normal((40, 4)).astype(np.float32)

#: The deadline of a query, and the time of one that is not affected by a fault, on a busy machine.
DEADLINE_S = 6.0
PATIENCE_S = DEADLINE_S / 3


#: Of the slow query.
SLOW_S = 3.0

QUICK_PROBES = RouterLimits(probe_interval_s=0.1, probe_down_interval_s=0.05)


async def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


class Index(ExactIndex):
    """An exact index of a name, whose searches a test may hold up."""

    def __init__(self, uuid: str = "first", vectors: np.ndarray = VECTORS) -> None:
        super().__init__(vectors)
        self.uuid = uuid
        self.hold: Callable[[Any], Awaitable[None]] | None = None

    def info(self) -> dict[str, Any]:
        """Answers from memory, whatever the disk does."""
        return super().info() | {"uuid": self.uuid}

    async def search_async(self, queries: Any, k: int = 10, **options: Any) -> Any:
        if self.hold is not None:
            await self.hold(queries)
        return await super().search_async(queries, k, **options)


def channel_of(index: Index, folder: Path, name: str) -> LocalChannel:
    shard = Shard(ShardSpec(name, str(folder)), lambda spec: index)
    shard.open()
    return LocalChannel(shard)


async def timed(router: Router, row: int = 0, **options: Any) -> tuple[float, Answer]:
    started = time.monotonic()
    answer = await router.search(SearchRequest(VECTORS[row : row + 1], 3, timeout_s=DEADLINE_S, **options))
    return time.monotonic() - started, answer


def test_a_hung_shard_that_still_reports_health_delays_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        indexes = [Index("a"), Index("b")]
        router = Router("things", [channel_of(one, tmp_path, one.uuid) for one in indexes])
        await router.start()
        hung = asyncio.Event()
        held = 0

        async def wedge(queries: Any) -> None:
            nonlocal held
            if not hung.is_set():
                held += 1
                await hung.wait()

        assert (await timed(router))[1].shards_answered == 2
        indexes[1].hold = wedge
        tasks = []
        for row in range(30):
            tasks.append(asyncio.create_task(timed(router, row)))
            await asyncio.sleep(0.02)
        told = await asyncio.gather(*tasks)
        # A second of silence, and what a busy machine adds.
        late = [seconds for seconds, _ in told if seconds > DEADLINE_S / 2]
        assert not late, f"{len(late)} of {len(told)} waited, {max(late):.2f} s at most"
        assert 1 <= held < len(told), "the shard is still asked"
        assert all(answer.shards_answered == 1 for _, answer in told)
        # Its health answers all the while: only a search that succeeds brings it back.
        assert [one.state for one in router.shards()] == ["up", "down"]
        hung.set()
        await until(lambda: router.shards_up == 2)
        assert (await timed(router))[1].shards_answered == 2
        await router.close()

    asyncio.run(run())


async def test_a_slow_query_does_not_delay_others(tmp_path: Path) -> None:
    index = Index()
    router = Router("things", [channel_of(index, tmp_path, "0")])
    await router.start()

    async def slow(queries: Any) -> None:
        if bool((queries == VECTORS[7]).all(axis=1).any()):
            await asyncio.sleep(SLOW_S)

    index.hold = slow
    told = await asyncio.gather(*(timed(router, row) for row in range(20)))
    seconds = [one for one, _ in told]
    assert seconds[7] >= SLOW_S
    assert max(seconds[:7] + seconds[8:]) < SLOW_S / 2
    assert all(answer.hits.ids[0, 0] == row for row, (_, answer) in enumerate(told))
    await router.close()


async def test_a_shard_that_returns_with_another_index_is_refused(tmp_path: Path) -> None:
    others = {"uuid": Index("second"), "dim": Index("first", VECTORS[:, :3]), "metric": Index("first")}
    told = others["metric"].info() | {"metric": "ip"}
    others["metric"].info = lambda: told  # type: ignore[method-assign]
    for what, other in others.items():
        stays, changes = channel_of(Index("stays"), tmp_path, "0"), channel_of(Index(), tmp_path, "1")
        first = changes.shard
        router = Router("things", [stays, changes], limits=QUICK_PROBES)
        await router.start()
        assert (await timed(router))[1].shards_answered == 2
        first.close()
        changes.shard = channel_of(other, tmp_path, "1").shard
        await until(lambda router=router: [one.state for one in router.shards()] == ["up", "down"])
        await asyncio.sleep(0.3)  # probes go on, and the other index answers them
        _, answer = await timed(router)
        assert (answer.shards_answered, answer.shards_total) == (1, 2), what
        assert "another index" in router.shards()[1].reason
        # The index that it had may return.
        changes.shard = channel_of(Index(), tmp_path, "1").shard
        await until(lambda router=router: router.shards_up == 2)
        assert (await timed(router))[1].shards_answered == 2
        await router.close()
