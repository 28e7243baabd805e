"""Shard processes that die, hang and are overloaded."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import velo
from tests.serving.conftest import LIST_SIZE, SHARDS, Served, local_answer
from tests.serving.overload import DEADLINE_S, overload
from velo.errors import CorruptIndexError
from velo_serving.hosting.processes import ShardProcess, open_processes
from velo_serving.protocol.types import Answer, SearchRequest
from velo_serving.routing.router import Router
from velo_serving.routing.served import ServedCollection

#: The time of a query where nothing is wrong, on a busy machine.
PATIENCE_S = 0.5
STEP_S = 0.02


Scene = Callable[[ServedCollection, Sequence[ShardProcess]], Awaitable[None]]


def with_processes(path: Path, scene: Scene, *, replicas: int = 1, shards: int = SHARDS) -> None:
    async def run() -> None:
        opened = open_processes(path, replicas=replicas, threads=1)
        processes = opened.shards["sample"]
        backend = opened.backend()
        pids = [one.pid for one in processes]
        await backend.start()
        try:
            await until(lambda: backend.collection().router.shards_up == shards)
            await scene(backend.collection(), processes)
        finally:
            for one in processes:
                os.kill(one.pid, signal.SIGCONT)
            await backend.close()
        pids += [one.pid for one in processes]
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(run())


async def until(true: Callable[[], bool], *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


async def timed(router: Router, query: np.ndarray, **options: Any) -> tuple[float, Answer]:
    started = time.monotonic()
    request = SearchRequest(query.reshape(1, -1), 5, list_size=LIST_SIZE, **options)
    return time.monotonic() - started, await router.search(request)


class Watched:
    """Queries one after another, every twenty milliseconds, and how long each took."""

    def __init__(self, router: Router, queries: np.ndarray) -> None:
        self.told: list[tuple[float, Answer]] = []
        #: How late this machine itself was at worst: what it does not run does not answer.
        self.stalled_s = 0.0
        self._router = router
        self._queries = queries

    async def ask(self, count: int) -> None:
        async def one(row: int) -> None:
            started = time.monotonic()
            request = SearchRequest(self._queries[[row]], 5, list_size=LIST_SIZE, timeout_s=5.0)
            answer = await self._router.search(request)
            self.told.append((time.monotonic() - started, answer))

        tasks = []
        for number in range(count):
            tasks.append(asyncio.create_task(one(number % len(self._queries))))
            before = time.monotonic()
            await asyncio.sleep(STEP_S)
            self.stalled_s = max(self.stalled_s, time.monotonic() - before - STEP_S)
        await asyncio.gather(*tasks)

    @property
    def late(self) -> list[float]:
        return [seconds for seconds, _ in self.told if seconds > PATIENCE_S + self.stalled_s]

    @property
    def shards(self) -> set[int]:
        return {answer.shards_answered for _, answer in self.told}


def test_stopped_and_killed_shards_delay_nobody_and_come_back(
    sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    request = SearchRequest(
        sharded_queries, 10, ({"uniform10": {"$lt": 7}},), list_size=LIST_SIZE, return_metadata=("brand",)
    )
    expected = local_answer(sharded_path, request).hits

    async def scene(served: ServedCollection, processes: Sequence[ShardProcess]) -> None:
        answer = await served.router.search(request)
        while answer.partial:  # on a busy machine a shard may be late
            answer = await served.router.search(request)
        found = answer.hits
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.distances, expected.distances)
        assert found.metadata == expected.metadata
        await stopped(served, processes[1])
        await killed(served, processes[1])

    async def stopped(served: ServedCollection, victim: ShardProcess) -> None:
        """Only queries in flight are late."""
        pid = victim.pid
        await Watched(served.router, sharded_queries).ask(40)  # so that its rate is known
        os.kill(pid, signal.SIGSTOP)
        watched = Watched(served.router, sharded_queries)
        await watched.ask(80)
        in_flight = round(PATIENCE_S / STEP_S)
        assert len(watched.late) <= in_flight + 3, watched.late
        assert max(seconds for seconds, _ in watched.told) < 3.0 + watched.stalled_s
        assert SHARDS - 1 in watched.shards
        assert watched.told[-1][1].shards_answered == SHARDS - 1
        assert served.router.shards()[1].state == "down"
        os.kill(pid, signal.SIGCONT)
        await until(lambda: served.router.shards_up == SHARDS)
        assert victim.pid == pid

    async def killed(served: ServedCollection, victim: ShardProcess) -> None:
        """Its connection is reset at once, without a wait for a deadline, a trial or a probe."""
        watched = Watched(served.router, sharded_queries)
        asking = asyncio.create_task(watched.ask(60))
        await asyncio.sleep(0.3)
        before = victim.pid
        os.kill(before, signal.SIGKILL)
        await asking
        assert watched.shards == {SHARDS - 1, SHARDS}
        assert len(watched.late) <= 3, watched.late
        await until(lambda: served.router.shards_up == SHARDS)
        assert (victim.pid == before, victim.starts) == (False, 2)
        assert (await timed(served.router, sharded_queries[0]))[1].shards_answered == SHARDS

    with_processes(sharded_path, scene)


def test_a_replica_answers_for_a_killed_or_stopped_one(tmp_path: Path) -> None:
    """A shard of two replicas: whatever happens to one process, every answer is whole."""
    vectors = np.random.default_rng(5).standard_normal((400, 16)).astype(np.float32)
    path = velo.build_collection(tmp_path / "sample.velo", vectors, shards=1, threads=1, calibrate=False)

    async def scene(served: ServedCollection, processes: Sequence[ShardProcess]) -> None:
        await until(lambda: all(one.state == "up" for one in served.router.shards()))
        for number, victim in ((signal.SIGKILL, processes[1]), (signal.SIGSTOP, processes[0])):
            watched = Watched(served.router, vectors)
            asking = asyncio.create_task(watched.ask(60))
            await asyncio.sleep(0.3)
            os.kill(victim.pid, number)
            await asking
            assert watched.shards == {1}
            assert not any(answer.partial for _, answer in watched.told)
            # Half of the requests go to the other replica anyway.
            in_flight = round(PATIENCE_S / STEP_S)
            assert len(watched.late) <= in_flight / 2 + 3, watched.late
            if number == signal.SIGSTOP:
                os.kill(victim.pid, signal.SIGCONT)
            await until(lambda: all(one.state == "up" for one in served.router.shards()))
        assert [one.starts for one in processes] == [1, 2]

    with_processes(path, scene, replicas=2, shards=1)


@pytest.mark.long(
    guarded_by="tests/serving/test_router.py::test_a_request_that_would_wait_too_long_is_refused_at_once"
)
def test_at_twice_the_load_requests_are_refused_early_and_none_is_late(tmp_path: Path) -> None:
    """A shard that can answer two hundred queries a second is asked four hundred."""
    told = asyncio.run(overload(tmp_path, 4.0))
    assert told.goodput >= 0.9, told.summary()
    assert len(told.late) <= 0.05 * (len(told.good) + len(told.refused) + len(told.late))
    in_time_s = DEADLINE_S + 0.02 + told.stalled_s
    assert np.percentile(told.good, 99) <= in_time_s, told.summary()
    assert told.longest_s <= in_time_s + told.stalled_s, told.summary()
    assert np.percentile(told.refused, 99) < 0.1 + told.stalled_s
    assert told.others == []
    # A refusal says when to retry, in whole seconds.
    assert told.retry_after_s
    assert all(1 <= seconds <= 2 for seconds in told.retry_after_s), told.summary()
    assert max(told.memory_bytes) - told.memory_bytes[0] < 32 << 20, told.summary()


def test_a_server_starts_with_the_shards_that_open_and_takes_in_the_others(
    sharded_path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sharded_path, copy)
    away = copy / "shard-00001"
    away.rename(tmp_path / "away")
    with pytest.raises(AssertionError, match="shard 1 is not on node"):
        Served(str(copy), "--processes", "--threads", "1", "--require-all")
    for options in ([], ["--workers", "2"]):
        served = Served(str(copy), "--processes", "--threads", "1", *options)
        body = {"vector": [0.0] * 128, "timeout_ms": 30_000}
        try:
            assert httpx.get(f"{served.url}/readyz").status_code == 200
            answer = httpx.post(f"{served.url}/v1/search", json=body, timeout=60).json()
            assert (answer["shards_answered"], answer["shards_total"]) == (1, SHARDS)
            (tmp_path / "away").rename(away)
            end = time.monotonic() + 60
            while httpx.post(f"{served.url}/v1/search", json=body, timeout=60).json()["partial"]:
                assert time.monotonic() < end
                time.sleep(0.05)
        finally:
            code, told = served.stop()
        assert (code, "Traceback" in told) == (0, False), told
        assert 'shard is missing at the start, and is asked again collection="copy" shard="1"' in told
        away.rename(tmp_path / "away")


def test_an_index_that_cannot_be_opened_is_a_typed_error(sharded_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sharded_path / "shard-00001", copy)
    (copy / "manifest.json").write_text("{}")
    with pytest.raises(CorruptIndexError):
        open_processes(copy, threads=1)
