"""A program: the gateway as an app of Ray Serve, on a Ray of its own. It prints what it saw.

In a process of its own: Serve leaves its controller and proxy to whatever uses Ray next.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from ray import serve

from tests.serving.local_ray import LocalRay
from velo.errors import InvalidArgumentError, VeloError
from velo_serving import Client
from velo_serving.on_ray.actors import places_of
from velo_serving.on_ray.cluster import Cluster
from velo_serving.on_ray.serve_app import serve_app
from velo_serving.protocol.errors import ApiKeyError, ApiKeyFileError

KEY = "a-key-for-reading-alone"


def children(name: str) -> list[int]:
    """Processes of a name that this one started, or theirs."""
    parents, found = {}, []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")
            except OSError:
                continue  # it ended meanwhile
            state, parent = fields[2].split()[:2]
            parents[int(entry.name)] = int(parent)
            if name in fields[0] and state != "Z":
                found.append(int(entry.name))
    ours = []
    for pid in found:
        at = pid
        while at > 1 and at != os.getpid():
            at = parents.get(at, 0)
        if at == os.getpid():
            ours.append(pid)
    return ours


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def refused(args: dict[str, Any]) -> str:
    try:
        serve_app(args)
    except (InvalidArgumentError, ApiKeyFileError) as error:
        return str(error)
    return ""


def is_alive(pid: int) -> bool:
    return pid > 0 and Path(f"/proc/{pid}").exists()


def shards_now(client: Client) -> list[int]:
    """Pids of the shards; a gateway may still name one that ended, until it has asked again."""
    end = time.monotonic() + 60
    while not all(map(is_alive, pids := [one["pid"] for one in client.info()["shards"]])):
        assert time.monotonic() < end, f"of {pids} some do not run"
        time.sleep(0.1)
    return pids


def kill_a_gateway(client: Client, queries: np.ndarray) -> dict[str, Any]:
    """A gateway's process dies: what is asked meanwhile, and once Serve has started another one."""
    before, actors = set(gateways()), shards_now(client)
    expected = whole_answer(client, queries)
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    right, wrong, refused = 0, 0, []
    end = time.monotonic() + 120
    while len(set(gateways()) - {victim}) < len(before):  # it may take a moment to be gone, too
        assert time.monotonic() < end, "the gateway does not come back"
        try:
            found = client.search(queries, k=10, list_size=200)
            if not found.partial:  # a busy machine may keep a shard from its answer
                is_right = found.ids.tolist() == expected
                right, wrong = right + is_right, wrong + (not is_right)
        except VeloError as error:
            refused.append(f"{type(error).__name__}: {error}")
        time.sleep(0.02)
    while not running(len(before)):
        assert time.monotonic() < end, serve.status()
        time.sleep(0.1)
    return {
        "before": len(before),
        "new": len(set(gateways()) - before),
        "right": right,
        "wrong": wrong,
        "refused": refused,
        "after": whole_answer(client, queries) == expected,
        "same_actors": all(map(is_alive, actors)),
    }


def whole_answer(client: Client, queries: np.ndarray) -> list[list[int]]:
    """What all shards together answer."""
    end = time.monotonic() + 60
    while (found := client.search(queries, k=10, list_size=200)).partial:
        assert time.monotonic() < end, "a shard is missing"
    ids: list[list[int]] = found.ids.tolist()
    return ids


def gateways() -> list[int]:
    """Pids of the gateways."""
    return children("ray::ServeRepli")  # as much of the name as Linux keeps


def running(count: int) -> bool:
    """Whether Serve has so many gateways, and all of them answer it."""
    deployment = serve.status().applications["velo"].deployments["gateway"]
    return deployment.replica_states == {"RUNNING": count}


def main(path: str, folder: str) -> None:
    queries = np.load(Path(folder) / "queries.npy")
    keys = Path(folder) / "keys.txt"
    keys.write_text(f"read {KEY}\n")
    keys.chmod(0o600)
    local = LocalRay(Path(folder) / "cache", {f"photos-{number}": 1 for number in range(8)})
    local.start()
    try:
        told = scene(path, queries, keys)
    finally:
        local.stop()
    print(json.dumps(told))


def scene(path: str, queries: np.ndarray, keys: Path) -> dict[str, Any]:
    port = free_port()
    told: dict[str, Any] = {
        "unknown": refused({"name": "photos", "path": path, "replica": 2}),
        "missing": refused({"path": path}),
        "gateways_refused": refused({"name": "photos", "gateways": 0}),
        "keys": refused({"name": "photos", "api_keys": str(keys) + ".gone"}),
        "started_by_mistakes": len(places_of("photos")),
    }
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    args = {
        "name": "photos",
        "path": path,
        "pin": "resource:photos-{shard}",
        "threads": 1,
        "gateways": 2,
        "cpus": 0.1,
        "ready_shards": 2,
        "api_keys": str(keys),
    }
    serve.run(serve_app(args), name="velo", route_prefix="/")
    url = f"http://127.0.0.1:{port}"
    with Client(url, collection="photos", api_key=KEY, body_format="arrow", retries=10) as client:
        end = time.monotonic() + 60
        while not client.ready():
            assert time.monotonic() < end, "it does not become ready"
            time.sleep(0.1)
        answer = client.search(queries, k=10, list_size=200)
        told |= {"ids": answer.ids.tolist(), "shards": answer.shards_answered, "rows": client.count()}
        try:
            Client(url, collection="photos").count()
        except ApiKeyError:
            told["without_key"] = "ApiKeyError"
        try:
            client.search(queries[:, :3])
        except VeloError as error:
            told["wrong"] = type(error).__name__
        state = serve.status().applications["velo"].deployments["gateway"]
        told["gateways"] = state.replica_states
        # A shard's process dies, and Ray starts it again: both gateways find it where it is then.
        victim = client.info()["shards"][0]["pid"]
        os.kill(victim, signal.SIGKILL)
        seen = []
        end = time.monotonic() + 60
        while time.monotonic() < end and (not seen or seen[-1] < answer.shards_total or len(seen) < 20):
            seen.append(client.search(queries[:1], k=10).shards_answered)
            time.sleep(0.02)
        told["after_a_kill"] = seen[-1]
        told["gateway_killed"] = kill_a_gateway(client, queries)
    # The app again, as after a change of its configuration: the actors that run are used.
    before = {str(one) for one in places_of("photos")}
    serve.run(serve_app({**args, "gateways": 1}), name="velo", route_prefix="/")
    told["same_actors"] = before == {str(one) for one in places_of("photos")}
    serve.shutdown()
    told["actors_left"] = len(places_of("photos"))
    with Cluster.connect("photos") as cluster:
        told["still_there"] = len(cluster.actors)
    return told


if __name__ == "__main__":
    main(*sys.argv[1:])
