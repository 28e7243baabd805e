"""What a Ray cluster can lose while it is asked: a node, a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import velo
from tests.serving.conftest import PATIENT, RAY_MARKS
from tests.serving.exact_gateway import serving
from velo_serving import Client
from velo_serving.on_ray.actors import ray, ray_session
from velo_serving.on_ray.cluster import Cluster
from velo_serving.routing.backend import Backend

pytestmark = RAY_MARKS

SHARDS = 2
VECTORS = np.random.default_rng(17).standard_normal((400, 16)).astype(np.float32)


#: Of a request; and how much later it may be answered on a busy machine.
DEADLINE_S = 5.0
SLACK_S = 1.0

#: By when Ray has started again what it lost.
RECOVERY_S = 60.0

#: So that Ray misses a node after some seconds; its default is a quarter of a minute.
QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 4,
}

#: Not 127.0.0.1: for that one Ray would look for an address that others can reach.
SMALL = {"object_store_memory": 80 << 20, "node_ip_address": "127.0.0.2", "include_dashboard": False}


class Nodes:
    """A Ray of several nodes on this machine: a head without disks, and a node for each replica's disk."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self._ray: Any = RayCluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "_system_config": QUICK, **SMALL}
        )
        self.of_disk: dict[int, Any] = {}

    @property
    def address(self) -> str:
        return str(self._ray.address)

    def add(self, disk: int) -> None:
        """In the main thread: Ray sets handlers of signals."""
        node = self._ray.add_node(num_cpus=1, resources={f"disk-{disk}": 1}, **SMALL)
        self.of_disk[disk] = node

    def lose(self, disk: int) -> None:
        """As if its power were cut: nothing on it says goodbye."""
        self._ray.remove_node(self.of_disk.pop(disk), allow_graceful=False)

    def close(self) -> None:
        self._ray.shutdown()


@pytest.fixture(scope="module")
def nodes(the_local_ray: Any) -> Iterator[Nodes]:
    the_local_ray.stop()  # a process is connected to one Ray
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="velo-", ignore_cleanup_errors=True) as folder,
    ):
        # The address of such a Ray is written down for whoever starts one next: not where others look.
        patch.setenv("RAY_TMPDIR", folder)
        opened = Nodes()
        try:
            for disk in range(2):
                opened.add(disk)
            with ray_session(opened.address):
                yield opened
        finally:
            opened.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("losses")
    return velo.build_collection(folder / "photos.velo", VECTORS, shards=SHARDS, calibrate=False, threads=1)


async def ask(client: httpx.AsyncClient, row: int) -> httpx.Response:
    """Search for a row by its own vector, and be answered in time."""
    body = {"vector": VECTORS[row].tolist(), "k": 1, "list_size": 100, "timeout_ms": 1000 * DEADLINE_S}
    started = time.monotonic()
    answer = await client.post("/v1/search", json=body)
    took_s = time.monotonic() - started
    assert took_s < DEADLINE_S + SLACK_S, f"{answer.status_code} after {took_s:.1f} s"
    return answer


async def until_up(backend: Backend, count: int) -> None:
    end = time.monotonic() + RECOVERY_S
    while sum(one.state == "up" for one in backend.collection().router.shards()) != count:
        assert time.monotonic() < end, backend.collection().router.shards()
        await asyncio.sleep(0.05)


@pytest.mark.long(
    guarded_by="tests/serving/test_ray_end_to_end.py::test_a_killed_actor_makes_answers_partial_until_ray_has_restarted_it"
)
def test_a_node_that_is_lost_is_answered_for_and_comes_back(nodes: Nodes, path: Path) -> None:
    """Replica 0 of each shard has its disk on one node, replica 1 on the other."""

    async def whole(client: httpx.AsyncClient, row: int) -> None:
        answer = await ask(client, row % len(VECTORS))
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["ids"], told["shards_answered"]) == ([[row % len(VECTORS)]], SHARDS), told

    async def lose(client: httpx.AsyncClient, disk: int) -> None:
        losing = asyncio.create_task(asyncio.to_thread(nodes.lose, disk))
        row = 0
        while not losing.done() or row < 50:
            await whole(client, row)
            row += 1
            await asyncio.sleep(0.01)
        await losing

    async def run(cluster: Cluster) -> None:
        backend = cluster.backend(limits=PATIENT)
        async with serving(backend) as client:
            await until_up(backend, 2 * SHARDS)
            await lose(client, 0)
            await until_up(backend, SHARDS)
            await whole(client, 7)
            # Now nobody is left, and whoever asks hears so, at once and under the number of the request.
            await asyncio.to_thread(nodes.lose, 1)
            await until_up(backend, 0)
            for row in range(5):
                answer = await ask(client, row)
                assert answer.status_code == 503, answer.text
                error = answer.json()["error"]
                assert error["type"] == "NoShardAnsweredError"
                assert error["request_id"] == answer.headers["x-request-id"]
                assert "retry-after" in answer.headers
            # The disks are there again, and Ray starts there what is pinned to them.
            for disk in (0, 1):
                nodes.add(disk)
            await until_up(backend, 2 * SHARDS)
            for row in range(20):
                await whole(client, row)

    with Cluster.start(path, replicas=2, pin="resource:disk-{replica}", threads=1) as cluster:
        asyncio.run(run(cluster))


class GatewayProcess:
    """A gateway in a process of its own, over actors that it did not start."""

    def __init__(self, address: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.serving.ray_gateway_program", address, name],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )

    def url(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.mark.long(
    guarded_by="tests/serving/test_ray_end_to_end.py::test_another_process_finds_running_actors_and_leaves_them_alone"
)
def test_one_of_two_gateways_over_the_same_actors_is_killed(nodes: Nodes, path: Path) -> None:
    with (
        Cluster.start(path, name="shared", pin="resource:disk-{replica}", threads=1) as cluster,
        contextlib.ExitStack() as stack,
    ):
        both = [GatewayProcess(nodes.address, "shared") for _ in range(2)]
        for one in both:
            stack.callback(one.close)
        urls = [one.url() for one in both]
        clients = [stack.enter_context(Client(url, collection="shared", retries=0)) for url in urls]
        over, killed = threading.Event(), threading.Event()
        pids = pids_of(clients[1])
        answered = [0, 0]
        wrong: list[Any] = []

        def load(number: int, client: Client) -> None:
            row = number
            while not over.is_set():
                try:
                    found = client.search(VECTORS[row], k=1, list_size=100, timeout_s=DEADLINE_S)
                except Exception as error:
                    # Only of the one that is killed, and only from then on.
                    if number or not killed.is_set():
                        wrong.append(error)
                    return
                if (found.ids.tolist(), found.shards_answered) != ([row], SHARDS):
                    wrong.append(found)
                answered[number] += 1
                row = (row + 2) % len(VECTORS)

        threads = [threading.Thread(target=load, args=pair) for pair in enumerate(clients)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: min(answered) >= 50, wrong)
            killed.set()
            os.kill(both[0].process.pid, signal.SIGKILL)
            both[0].process.wait(30)
            threads[0].join(30)
            before = answered[1]
            until(lambda: answered[1] >= before + 200, wrong)
        finally:
            over.set()
            for thread in threads:
                thread.join(30)
        assert not wrong, wrong
        # The actors are those of before, and know that one gateway is gone.
        assert pids_of(clients[1]) == pids
        assert ray.get([actor.peers.remote() for actor in cluster.actors]) == [1] * SHARDS
        # And a gateway that comes instead finds them.
        third = GatewayProcess(nodes.address, "shared")
        stack.callback(third.close)
        with Client(third.url(), collection="shared", retries=0) as client:
            assert client.search(VECTORS[[5]], k=1, list_size=100).ids.tolist() == [[5]]


def pids_of(client: Client) -> list[int]:
    return [shard["pid"] for shard in client.info()["shards"]]


def until(true: Any, wrong: list[Any]) -> None:
    end = time.monotonic() + RECOVERY_S
    while not true() and not wrong:
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
