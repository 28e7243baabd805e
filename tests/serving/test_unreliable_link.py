"""Queries over a link that delays, cuts and reorders end in time, with right answers."""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.long import count
from tests.serving.exact_gateway import VECTORS, exact, serving
from tests.serving.fakes import ExactIndex
from tests.serving.unreliable_link import Link
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.limits import RouterLimits
from velo_serving.routing.backend import Backend
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.shard.shard import Shard
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.endpoint import Endpoint
from velo_serving.transport.server import ShardServer

SHARDS, REPLICAS, K = 2, 2, 7

#: Of a query; and how much later it may be answered where gateway, shards and link share a busy thread.
DEADLINE_S, SLACK_S = 1.0, 4.0

#: The time within which a reliable link must bring a whole answer.
WHOLE_S = 30.0

#: The least time for which the link is unreliable, and the time within which it must have cut enough.
UNRELIABLE_S, UNRELIABLE_MAX_S = 3.0, 60.0

#: What an answer may be that is none, and how it is called.
ANNOUNCED = {429: "QueueFullError", 503: "NoShardAnsweredError", 504: "DeadlineExceededError"}

ROWS = np.array_split(np.arange(len(VECTORS)), SHARDS)

LIMITS = RouterLimits(probe_interval_s=0.2, probe_down_interval_s=0.02, probe_timeout_s=0.5)


class Scene:
    """Two shards, a link to each that both of its channels take, and a gateway."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._stack = AsyncExitStack()
        self.links: list[Link] = []
        self.router: Router
        self.client: httpx.AsyncClient

    async def __aenter__(self) -> Scene:
        channels = []
        for number, rows in enumerate(ROWS):
            index = ExactIndex(VECTORS[rows], int(rows[0]))
            shard = Shard(ShardSpec(str(number), str(self._folder)), lambda spec, index=index: index)
            shard.open()
            server = ShardServer(shard, token="secret")
            endpoint = await server.start(host="127.0.0.1")
            self._stack.push_async_callback(server.close)
            assert endpoint.host is not None
            link = Link(self._seed * SHARDS + number, endpoint.host, endpoint.port)
            await link.start()
            self._stack.push_async_callback(link.close)
            self.links.append(link)
            there = at(Endpoint("secret", host="127.0.0.1", port=link.port))
            channels.append([SocketChannel(f"{number}/{replica}", there) for replica in range(REPLICAS)])
        self.router = Router("things", channels, limits=LIMITS)
        generation = Generation(len(VECTORS), VECTORS.shape[1], "l2", self.router)
        backend = Backend([ServedCollection("things", generation)])
        self.client = await self._stack.enter_async_context(serving(backend))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def all_up(self) -> None:
        end = time.monotonic() + WHOLE_S
        while not all(one.state == "up" for one in self.router.shards()):
            assert time.monotonic() < end, self.router.shards()
            await asyncio.sleep(0.02)

    async def ask_until_whole(self, row: int) -> None:
        """On a busy machine a deadline may pass, or a probe be missed, though nothing is in the way."""
        end = time.monotonic() + WHOLE_S
        while (told := await self.ask([row])) is None or told["partial"]:
            assert time.monotonic() < end, told
            await asyncio.sleep(0.02)

    def seen(self) -> str:
        connections, cuts, overtaken = self._sums()
        return f"{connections} connections, {cuts} cut between bytes, {overtaken} overtaken"

    def is_enough(self) -> bool:
        """Whether the link was unreliable enough."""
        connections, cuts, overtaken = self._sums()
        return connections >= 30 and cuts >= 15 and overtaken >= 1

    def _sums(self) -> tuple[int, int, int]:
        return (
            sum(link.connections for link in self.links),
            sum(link.cuts for link in self.links),
            sum(link.overtaken for link in self.links),
        )

    async def ask(self, rows: list[int]) -> dict[str, Any] | None:
        """Search; what it was answered if that is an answer, and right in any case."""
        body = {"vectors": VECTORS[rows].tolist(), "k": K, "timeout_ms": 1000 * DEADLINE_S}
        started = time.monotonic()
        answer = await self.client.post("/v1/search", json=body)
        took_s = time.monotonic() - started
        assert took_s < DEADLINE_S + SLACK_S, f"{answer.status_code} after {took_s:.2f} s"
        told: dict[str, Any] = answer.json()
        if answer.status_code != 200:
            assert told["error"]["type"] == ANNOUNCED[answer.status_code], told
            assert told["error"]["request_id"] == answer.headers["x-request-id"]
            return None
        failed = {int(one["shard"]) for one in told.get("failures", ())}
        assert told["shards_answered"] == SHARDS - len(failed)
        passing = np.isin(np.arange(len(VECTORS)), np.concatenate(ROWS_BUT[frozenset(failed)]))
        assert told["ids"] == exact(VECTORS[rows], K, passing), failed
        return told


ROWS_BUT = {
    frozenset(failed): [ROWS[number] for number in range(SHARDS) if number not in failed]
    for failed in ((), (0,), (1,))
}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("turn", range(count(1, 3)))
def test_queries_over_an_unreliable_link_are_right_and_in_time(turn: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"VELO_TEST_SEED={seed}")

    async def run() -> None:
        outcomes: list[dict[str, Any] | None] = []
        draw = random.Random(seed)
        async with Scene(tmp_path, seed) as scene:
            await scene.all_up()
            for row in range(20):
                await scene.ask_until_whole(row)
            opened = descriptors()
            tasks: list[asyncio.Task[dict[str, Any] | None]] = []
            for link in scene.links:
                link.reliable = False
                link.cut()
            began = time.monotonic()
            while time.monotonic() < began + UNRELIABLE_S or not scene.is_enough():
                assert time.monotonic() < began + UNRELIABLE_MAX_S, scene.seen()
                rows = [draw.randrange(len(VECTORS)) for _ in range(draw.choice([1, 1, 8]))]
                tasks.append(asyncio.create_task(scene.ask(rows)))
                if draw.random() < 0.02:
                    draw.choice(scene.links).cut()
                await asyncio.sleep(0.01)
            outcomes = await asyncio.gather(*tasks)
            # It is reliable again: connections of before end, and everything is as it was.
            for link in scene.links:
                link.reliable = True
                link.cut()
            await asyncio.sleep(0.1)
            await scene.all_up()
            for row in range(20):
                await scene.ask_until_whole(row)
            assert scene.router.queries_admitted == 0
            end = time.monotonic() + WHOLE_S
            while descriptors() > opened:
                assert time.monotonic() < end, f"{descriptors()} descriptors instead of {opened}"
                await asyncio.sleep(0.05)
            whole = sum(one is not None and not one["partial"] for one in outcomes)
            print(f"{scene.seen()}, {whole} of {len(outcomes)} answers were whole")
            assert 0 < whole < len(outcomes)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(run())
