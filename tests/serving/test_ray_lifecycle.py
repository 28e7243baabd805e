"""A service on Ray from its start to its end: shards end when they are stopped, whatever else dies."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.serving.conftest import PATIENT, RAY_MARKS, Served, command, invoked, until
from velo.errors import CorruptIndexError, InvalidArgumentError
from velo_serving import Client, Cluster, read_collection
from velo_serving.on_ray.actors import places_of, ray
from velo_serving.protocol.errors import (
    NoShardAnsweredError,
    PortInUseError,
    ShardUnavailableError,
    UnknownCollectionError,
)
from velo_serving.protocol.types import SearchRequest

pytestmark = RAY_MARKS

SHARDS = 2
VECTORS = np.random.default_rng(29).standard_normal((300, 16)).astype(np.float32)

#: By when what was started answers, and what was ended is gone, on a busy machine.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lifecycle")
    return velo.build_collection(folder / "plays.velo", VECTORS, shards=SHARDS, calibrate=False, threads=1)


@pytest.fixture
def address(local_ray: None) -> str:
    return str(ray.get_runtime_context().gcs_address)


def told(*arguments: str) -> dict[str, Any]:
    """What a command that succeeds prints as JSON."""
    ended = command(*arguments, "--json")
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def whole(client: Client, row: int) -> bool:
    found = client.search(VECTORS[row], k=1, list_size=100)
    return bool(found.shards_answered == SHARDS and found.ids.tolist() == [row])


def pids_of(client: Client) -> list[int]:
    return [shard["pid"] for shard in client.info()["shards"]]


def is_gone(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def gateway(*arguments: str) -> Iterator[tuple[Served, Client]]:
    served = Served(*arguments)
    try:
        with Client(served.url, collection=arguments[1], retries=0, timeout_s=60) as client:
            yield served, client
    finally:
        served.kill()


def test_detached_shards_run_until_they_are_stopped(address: str, path: Path) -> None:
    on_ray = ("--ray-address", address)
    started = told("serve", str(path), "--detached", "--name", "plays-1", "--threads", "1", *on_ray)
    assert started == {"name": "plays-1"}
    connect = ("--connect", "plays-1", *on_ray)
    with gateway(*connect) as (first, one), gateway(*connect) as (_, two):
        until(lambda: whole(one, 1) and whole(two, 2), "not all shards came up")
        pids = pids_of(two)
        answered, over, wrong = [0], threading.Event(), []

        def load() -> None:
            while not over.is_set() and not wrong:
                if not whole(two, answered[0] % len(VECTORS)):
                    wrong.append(answered[0])
                answered[0] += 1

        asking = threading.Thread(target=load)
        asking.start()
        try:
            until(lambda: answered[0] > 20, "no answers")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(60)
            before = answered[0]
            until(lambda: answered[0] > before + 30 or bool(wrong), "the second one waits")
            with gateway(*connect) as (_, three):
                until(lambda: whole(three, 3), "a third one does not find them")
                assert pids_of(three) == pids
        finally:
            over.set()
            asking.join(60)
        assert not wrong
        # The shards end when they are stopped, and none of their processes stays.
        assert told("stop", "plays-1", *on_ray) == {"name": "plays-1", "actors": SHARDS}
        until(lambda: all(map(is_gone, pids)), f"of {pids} some run on")
        assert places_of("plays-1") == []
        with pytest.raises(NoShardAnsweredError):
            two.search(VECTORS[0])
        # Started again, they are found by a gateway that knew those before.
        Cluster.start(path, name="plays-1", detached=True, threads=1)

        def back() -> bool:
            with contextlib.suppress(velo.errors.VeloError):
                return whole(two, 5)
            return False

        until(back, "the gateway does not find what was started again")
        assert set(pids_of(two)).isdisjoint(pids)
        assert Cluster.end("plays-1") == SHARDS


@pytest.mark.long(
    guarded_by="tests/serving/test_ray_lifecycle.py::test_detached_shards_run_until_they_are_stopped"
)
def test_a_killed_gateway_that_started_its_shards_leaves_them_running(address: str, path: Path) -> None:
    on_ray = ("--ray-address", address)
    served = Served(str(path), "--ray", "--name", "plays-2", "--threads", "1", *on_ray)
    try:
        with Client(served.url, collection="plays-2", retries=0) as client:
            until(lambda: whole(client, 1), "not all shards came up")
            pids = pids_of(client)
        served.process.kill()
        served.process.wait(60)
        with gateway("--connect", "plays-2", "--workers", "2", *on_ray) as (_, other):
            until(lambda: whole(other, 2), "they ended with it")
            assert pids_of(other) == pids
        again = command("serve", str(path), "--ray", "--name", "plays-2", "--port", "0", *on_ray)
        assert again.returncode == 1
        assert "`velo stop plays-2` ends it" in again.stderr
    finally:
        served.kill()
        assert Cluster.end("plays-2") == SHARDS


NOBODY = "127.0.0.1:9"

JOB = f"""
import ray
from velo_serving import Cluster, start_ray, stop_ray
from velo_serving.protocol.errors import PlacementError

for ask in (Cluster.connect, Cluster.end, stop_ray, lambda name: start_ray("/nowhere")):
    try:
        ask("films")
    except PlacementError as error:
        assert error.argument == "address", error
        print(error.message)
assert not ray.is_initialized()
try:
    Cluster.connect("films", address="{NOBODY}")
except PlacementError as error:
    print(error.message)
assert not ray.is_initialized()
"""


def test_no_ray_is_started_where_none_runs(run_python: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)
    ended = run_python(JOB)
    assert ended.returncode == 0, ended.stderr
    refused = "[Errno 111] Connection refused"
    assert ended.stdout.splitlines() == [f"no Ray is found: {refused}"] * 4 + [
        f"there is no Ray at '{NOBODY}': {refused}"
    ]


OPTIONS_WITHOUT_MEANING = (
    (("--connect", "films", "--memory", "20%"), "memory"),
    (("--connect", "films", "--replicas", "2"), "replicas"),
    (("--connect", "films", "--writable"), "writable"),
    (("--connect", "films", "films.velo"), "paths"),
    (("films.velo", "--ray", "--detached", "--workers", "2"), "port"),
    (("films.velo", "--name", "other"), "name"),
    (("films.velo", "--shard-ports", "7100-7199"), "shard-ports"),
    (("films.velo", "--pin", "label:a=b"), "pin"),
    (("films.velo", "--ray-address", "auto"), "ray-address"),
)


def test_options_without_meaning_are_refused_by_name() -> None:
    for arguments, named in OPTIONS_WITHOUT_MEANING:
        ended = invoked("serve", *arguments, "--port", "0")
        assert (ended.returncode, ended.stdout) == (1, ""), arguments
        assert ended.stderr.startswith(f"velo: {named}: ")
        assert len(ended.stderr.splitlines()) == 1
    ended = invoked("serve")
    assert ended.returncode == 2
    assert "--connect NAME" in ended.stderr


WAITING = """
import sys, time
import ray
from velo_serving.on_ray.actors import ray_session

class Gone:
    polls = 0

    def poll(self):
        self.polls += 1
        return None, None

with ray_session(sys.argv[1]):
    asked = ray._private.worker.global_worker.gcs_error_subscriber
    patient = type(asked)(Gone())
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        patient.poll()
    print(patient.polls)
"""


def test_processes_wait_while_the_service_of_ray_is_gone(address: str, run_python: Any) -> None:
    """A thread of Ray asks it for errors, again and again without a pause unless it is made to wait."""
    ended = run_python(WAITING, address)
    assert ended.returncode == 0, ended.stderr
    assert 1 <= int(ended.stdout) <= 4


@pytest.mark.long(
    guarded_by="tests/serving/test_faults.py::test_a_shard_that_returns_with_another_index_is_refused"
)
def test_a_replica_with_another_build_of_the_shard_is_refused(local_ray: None, tmp_path: Path) -> None:
    """Of an index without a collection around it, whose uuid its first opening says."""
    path, other = tmp_path / "verses.velo", tmp_path / "other.velo"
    uuids = []
    for folder, seed in ((path, 0), (other, 1)):
        with velo.build(folder, VECTORS, calibrate=False, threads=1, seed=seed) as index:
            uuids.append(index.info()["uuid"])
    request = SearchRequest(VECTORS[[7]], 1, list_size=100, timeout_s=20.0)

    async def run(cluster: Cluster) -> None:
        backend = cluster.backend(limits=PATIENT)
        await backend.start()
        router = backend.collection().router

        async def until_it_says(word: str) -> str:
            end = time.monotonic() + PATIENCE_S
            while word not in (reason := f"{router.shards()[1].state} {router.shards()[1].reason}"):
                assert time.monotonic() < end, reason
                answer = await router.search(request)
                assert (answer.shards_answered, answer.hits.ids.tolist()) == (1, [[7]])
                await asyncio.sleep(0.05)
            return reason

        await until_it_says("up")
        path.rename(tmp_path / "aside")
        other.rename(path)
        ray.kill(cluster.actors[1], no_restart=False)
        reason = await until_it_says("holds another index")
        assert all(uuid in reason for uuid in uuids)
        path.rename(other)
        (tmp_path / "aside").rename(path)
        await until_it_says("up")
        await backend.close()

    with Cluster.start(path, replicas=2, threads=1) as cluster:
        asyncio.run(run(cluster))
    # A start there fails at once.
    described = read_collection(path)
    elsewhere = dataclasses.replace(described.shards[0], path=other)
    with pytest.raises(CorruptIndexError, match=f"{uuids[1]}.*{uuids[0]}"):
        Cluster.start(dataclasses.replace(described, shards=(elsewhere,)), threads=1)


def test_a_gateway_connects_to_the_shards_that_run(
    address: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster.start(path, name="plays-6", threads=1) as cluster:
        ray.kill(cluster.actors[1], no_restart=True)
        until(lambda: len(places_of("plays-6")) == SHARDS - 1)
        with pytest.raises(ShardUnavailableError, match="shard 1 of 'plays-6' does not answer"):
            Cluster.connect("plays-6")
        with Cluster.connect("plays-6", require_all=False) as partly:
            assert [shard.identity is None for shard in partly.records[0].shards] == [False, True]
            answer = partly.search(VECTORS[:1], 3)
            assert (answer.shards_answered, answer.partial) == (1, True)
        (line,) = (one for one in caplog.records if "missing at the start" in one.message)
        assert line.velo == {"collection": "plays-6", "shard": "1", "reason": "it does not run"}  # type: ignore[attr-defined]


def test_actors_have_the_ports_name_and_environment_that_were_given(address: str, path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))  # of every address of the node
        taken.listen()
        first = taken.getsockname()[1]
        with Cluster.start(path, name="plays-5", ports=f"{first}-{first + 40}", threads=1) as cluster:
            found = {one.port for one in ray.get([actor.endpoint.remote() for actor in cluster.actors])}
            assert len(found) == SHARDS
            assert found <= set(range(first + 1, first + 41))
            for health in ray.get([actor.health.remote() for actor in cluster.actors]):
                environment = (Path("/proc") / str(health.pid) / "environ").read_bytes().split(b"\0")
                assert b"RAY_gcs_rpc_server_reconnect_timeout_s=86400" in environment
            ended = command("serve", "--connect", "films", "--port", "0", "--ray-address", address)
            assert (ended.returncode, ended.stdout) == (1, "")
            assert ended.stderr == "velo: no actors of a collection 'films' run here; there are 'plays-5'\n"
            with pytest.raises(UnknownCollectionError, match="there are 'plays-5'"):
                Cluster.connect("films")
            with pytest.raises(UnknownCollectionError):
                Cluster.end("films")
        assert places_of("plays-5") == []
        with pytest.raises(PortInUseError, match=rf"of [0-9.]+ all ports {first}-{first} are in use"):
            Cluster.start(path, name="plays-5", ports=f"{first}-{first}", threads=1)
    with pytest.raises(InvalidArgumentError, match=r"/nowhere: cert.pem, key.pem or ca.pem cannot be used"):
        Cluster.start(path, name="plays-5", tls="/nowhere", threads=1)
