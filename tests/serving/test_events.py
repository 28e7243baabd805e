"""What must happen when processes die, hang and drown: real shards in processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.serving.conftest import LIST_SIZE, PATIENT, SHARDS, local_answer
from tests.serving.overload import DEADLINE_S, overload
from velo.errors import CorruptIndexError
from velo_serving.hosting.processes import ShardProcess, open_processes
from velo_serving.protocol.errors import ShardNotHereError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.types import Answer, SearchRequest
from velo_serving.routing.router import Router
from velo_serving.routing.served import ServedCollection

#: What a query takes at most where nothing is wrong, on a busy machine.
PATIENCE_S = 0.25
STEP_S = 0.02


Scene = Callable[[ServedCollection, Sequence[ShardProcess]], Awaitable[None]]


def with_processes(
    path: Path, scene: Scene, limits: RouterLimits | None = None, *, replicas: int = 1, shards: int = SHARDS
) -> None:
    async def run() -> None:
        opened = open_processes(path, replicas=replicas, threads=1)
        processes = opened.shards["sample"]
        backend = opened.backend(limits=limits)
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


def test_processes_answer_what_one_process_answers(sharded_path: Path, sharded_queries: np.ndarray) -> None:
    request = SearchRequest(
        sharded_queries, 10, ({"uniform10": {"$lt": 7}},), list_size=LIST_SIZE, return_metadata=("brand",)
    )
    expected = local_answer(sharded_path, request).hits

    async def scene(served: ServedCollection, processes: Sequence[ShardProcess]) -> None:
        found = (await served.router.search(request)).hits
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.distances, expected.distances)
        assert found.metadata == expected.metadata

    with_processes(sharded_path, scene, PATIENT)


def test_a_shard_that_is_killed_delays_nobody_and_comes_back(
    sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    async def scene(served: ServedCollection, processes: Sequence[ShardProcess]) -> None:
        watched = Watched(served.router, sharded_queries)
        asking = asyncio.create_task(watched.ask(100))
        await asyncio.sleep(0.5)
        victim = processes[2]
        before = victim.pid
        os.kill(before, signal.SIGKILL)
        await asking
        assert watched.shards <= {SHARDS - 1, SHARDS}
        assert SHARDS - 1 in watched.shards
        # Its connection is reset at once: nobody waits for a deadline, a trial or a probe.
        assert len(watched.late) <= 3, watched.late
        await until(lambda: served.router.shards_up == SHARDS)
        assert victim.pid != before
        assert victim.starts == 2
        assert (await timed(served.router, sharded_queries[0]))[1].shards_answered == SHARDS

    with_processes(sharded_path, scene)


def test_a_shard_that_is_stopped_delays_those_in_flight_alone(
    sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    async def scene(served: ServedCollection, processes: Sequence[ShardProcess]) -> None:
        pid = processes[1].pid
        await Watched(served.router, sharded_queries).ask(40)  # so that its rate is known
        os.kill(pid, signal.SIGSTOP)
        watched = Watched(served.router, sharded_queries)
        await watched.ask(100)
        in_flight = round(PATIENCE_S / STEP_S)
        assert len(watched.late) <= in_flight + 3, watched.late
        assert max(seconds for seconds, _ in watched.told) < 2.0
        assert SHARDS - 1 in watched.shards
        assert watched.told[-1][1].shards_answered == SHARDS - 1
        state = served.router.shards()[1]
        assert state.state == "down"
        os.kill(pid, signal.SIGCONT)
        await until(lambda: served.router.shards_up == SHARDS)
        assert processes[1].pid == pid

    with_processes(sharded_path, scene)


def test_a_replica_answers_for_one_that_is_killed_or_stopped(tmp_path: Path) -> None:
    """Two shards of two replicas: whatever happens to one process, every answer is whole."""
    vectors = np.random.default_rng(5).standard_normal((400, 16)).astype(np.float32)
    path = velo.build_collection(tmp_path / "sample.velo", vectors, shards=2, threads=1)

    async def scene(served: ServedCollection, processes: Sequence[ShardProcess]) -> None:
        await until(lambda: all(one.state == "up" for one in served.router.shards()))
        for number, victim in ((signal.SIGKILL, processes[1]), (signal.SIGSTOP, processes[2])):
            watched = Watched(served.router, vectors)
            asking = asyncio.create_task(watched.ask(60))
            await asyncio.sleep(0.3)
            os.kill(victim.pid, number)
            await asking
            assert watched.shards == {2}
            assert not any(answer.partial for _, answer in watched.told)
            # Half of the requests go to the other replica anyway.
            in_flight = round(PATIENCE_S / STEP_S)
            assert len(watched.late) <= in_flight / 2 + 3, watched.late
            if number == signal.SIGSTOP:
                os.kill(victim.pid, signal.SIGCONT)
            await until(lambda: all(one.state == "up" for one in served.router.shards()))
        assert [one.starts for one in processes] == [1, 2, 1, 1]

    with_processes(path, scene, replicas=2, shards=2)


@pytest.mark.long(
    guarded_by="tests/serving/test_router.py::test_what_would_wait_for_most_of_its_time_is_refused_at_once"
)
def test_twice_the_load_is_refused_early_and_nothing_is_late(tmp_path: Path) -> None:
    """A shard that can answer two hundred queries a second is asked four hundred."""
    told = asyncio.run(overload(tmp_path, 4.0))
    assert told.goodput >= 0.9, told.summary()
    assert len(told.late) <= 0.05 * (len(told.good) + len(told.refused) + len(told.late))
    in_time_s = DEADLINE_S + 0.02 + told.stalled_s
    assert np.percentile(told.good, 99) <= in_time_s, told.summary()
    assert told.longest_s <= in_time_s + told.stalled_s, told.summary()
    assert np.percentile(told.refused, 99) < 0.1 + told.stalled_s
    assert told.others == []
    # Who is refused is told when to come back, in whole seconds.
    assert told.retry_after_s
    assert all(1 <= seconds <= 2 for seconds in told.retry_after_s), told.summary()
    assert max(told.memory_bytes) - told.memory_bytes[0] < 32 << 20, told.summary()


def test_what_cannot_be_opened_is_the_librarys_own_error(sharded_path: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(sharded_path, copy)
    manifest = copy / "shard-00001" / "manifest.json"
    manifest.write_text("{}")
    with pytest.raises(CorruptIndexError):
        open_processes(copy, threads=1)
    shutil.rmtree(copy / "shard-00001")
    with pytest.raises(ShardNotHereError, match="shard 1 is not on node"):
        open_processes(copy, threads=1)
