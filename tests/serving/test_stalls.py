"""Processes that stand still for half a second: a stall is not a death, and no search fails for it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np

from tests.serving.conftest import THINGS_SHARDS, Served, children, serving
from tests.serving.exact_gateway import VECTOR, exact_backend
from tests.serving.exact_gateway import serving as serving_here

STALL_S = 0.5
CLIENTS = 4


class Load:
    """Searches from a few threads, each after the answer to the one before, until `end`."""

    def __init__(self, served: Served, query: np.ndarray) -> None:
        self.statuses: Counter[int] = Counter()
        self._body = {"vector": query.tolist(), "k": 5, "timeout_ms": 30_000}
        self._url = f"{served.url}/v1/search"
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._over.is_set():
                self.statuses[client.post(self._url, json=self._body).status_code] += 1

    def end(self) -> Counter[int]:
        self._over.set()
        for thread in self._threads:
            thread.join()
        return self.statuses


def test_the_first_groups_after_a_start_disturb_no_search(
    things_path: Path, things_vectors: np.ndarray
) -> None:
    with serving(str(things_path), "--processes") as served:
        load = Load(served, things_vectors[0])
        body = {"vector": things_vectors[1].tolist(), "k": 3, "group_by": "color", "group_size": 2}
        groups = httpx.post(f"{served.url}/v1/search", json=body, timeout=60)
        statuses = load.end()
    assert groups.status_code == 200
    assert len(groups.json()["groups"][0]) == 3
    assert set(statuses) == {200}


def test_no_search_fails_for_a_process_that_stalls(things_path: Path, things_vectors: np.ndarray) -> None:
    with serving(str(things_path), "--processes") as served:
        shards = children(served, b"shard.process")
        assert len(shards) == THINGS_SHARDS
        load = Load(served, things_vectors[0])
        for stalled in ([served.process.pid], shards[:1], shards, [served.process.pid, *shards]):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in stalled:
                    os.kill(pid, number)
                time.sleep(STALL_S)
        statuses = load.end()
        up = httpx.get(f"{served.url}/metrics", timeout=60).text
    assert set(statuses) == {200}
    assert "velo_shard_falls_total{" not in up, "a shard was taken for dead"


async def test_no_search_fails_for_an_event_loop_that_stalls(tmp_path: Path) -> None:
    async with serving_here(exact_backend(tmp_path)) as client:

        async def ask() -> list[httpx.Response]:
            return [await client.post("/v1/search", json={"vector": VECTOR}) for _ in range(10)]

        asking = [asyncio.create_task(ask()) for _ in range(8)]
        for _ in range(3):
            await asyncio.sleep(0.01)
            time.sleep(STALL_S)  # as a garbage collection, an import or a page fault would
        answers = [answer for each in asking for answer in await each]
    assert [answer.status_code for answer in answers] == [200] * 80
    assert not any(answer.json()["partial"] for answer in answers)
