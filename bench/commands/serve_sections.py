"""Serving: what the road costs, what the gateway answers, and who waits when a shard dies or stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.commands.serve_costs import (
    CALLERS,
    SERVE,
    SHARDS,
    K,
    costs,
    exchange,
    gateway_alone,
    heavy_beside,
    in_loop,
    post,
    served,
    singles_of,
)
from bench.harness.pages import ROOT
from bench.harness.sections import Context, Section
from velo.formats import open_vectors
from velo_serving.hosting.processes import open_processes
from velo_serving.places.spec import ShardSpec
from velo_serving.shard.shard import Shard
from velo_serving.wire.channel import SocketChannel, at
from velo_serving.wire.endpoint import abstract_path
from velo_serving.wire.server import ShardHost, ShardServer
from velo_serving.words.types import SearchRequest

__all__ = ["ASKED", "EVENT_AT", "STEP_S", "fan_out", "sections_of"]

#: How often a query is asked while something happens, how many there are, and before which one it happens.
STEP_S = 0.01
ASKED = 400
EVENT_AT = 150

#: The longest that a section may take.
LIMIT_S = 600.0


class Idle:
    """An index that answers at once, with the same ten ids."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self.ids = np.arange(K, dtype=np.int64)[None]
        self.distances = np.arange(K, dtype=np.float32)[None]
        self.counts = np.array([K])
        self.stats: dict[str, Any] = {}
        self.metadata = None

    def info(self) -> dict[str, Any]:
        """Return what a shard asks for."""
        return {"n": K, "dim": self._dim, "metric": "l2"}

    def close(self) -> None:
        """Nothing is open."""

    async def search_async(self, *arguments: Any, **options: Any) -> Idle:
        """Answer."""
        return self


def idle_shard(dim: int) -> None:
    """The program of a process that serves an idle shard: says where, and ends with its parent."""
    shard: Any = Shard(ShardSpec("0", "."), lambda spec: Idle(dim))  # type: ignore[arg-type, return-value]
    shard.open()
    host = ShardHost(ShardServer(shard, token="bench"))
    endpoint = host.start(path=abstract_path("bench"))
    print(json.dumps({"path": endpoint.path, "host_id": endpoint.host_id}), flush=True)
    sys.stdin.read()
    host.close()
    shard.close()


def _spread(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "load": os.getloadavg()[0]}


async def _repeat(ask: Callable[[], Awaitable[Any]], count: int) -> list[float]:
    took = []
    for _ in range(count + count // 10):
        started = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - started)
    return took[count // 10 :]


# ---- the road alone ----


def fan_out(dim: int, *, ray: bool, count: int = 2000) -> list[dict[str, Any]]:
    """Fan-outs to four idle processes, one at a time: over the road, and by Ray's own calls."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = f"from bench.commands.serve_sections import idle_shard; idle_shard({dim})"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(SHARDS)
    ]
    rows = []
    try:
        endpoints = [json.loads(child.stdout.readline()) for child in children if child.stdout is not None]
        rows.append({"what": "fan-out over the road", **_spread(in_loop(_road(endpoints, dim, count)))})
    finally:
        for child in children:
            child.communicate()
    if ray:
        rows.append({"what": "fan-out by Ray's calls", **_spread(_ray_calls(dim, count // 8))})
    return rows


async def _road(endpoints: list[dict[str, str]], dim: int, count: int) -> list[float]:
    from velo_serving.wire.endpoint import Endpoint

    channels = [
        SocketChannel(str(number), at(Endpoint("bench", one["host_id"], one["path"])))
        for number, one in enumerate(endpoints)
    ]
    for channel in channels:
        await channel.health()

    async def ask() -> None:
        request = SearchRequest(np.zeros((1, dim), np.float32), K)
        await asyncio.gather(*(channel.submit(request, 5.0) for channel in channels))

    took = await _repeat(ask, count)
    for channel in channels:
        await channel.close()
    return took


@contextmanager
def _ray() -> Iterator[Any]:
    import logging

    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, num_cpus=2)
    try:
        yield ray
    finally:
        ray.shutdown()


def _ray_calls(dim: int, count: int) -> list[float]:
    class Actor:
        async def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.arange(K, dtype=np.int64), np.arange(K, dtype=np.float32)

    with _ray() as ray:
        make: Any = ray.remote
        actors = [make(num_cpus=0)(Actor).remote() for _ in range(SHARDS)]
        query = np.zeros((1, dim), np.float32)

        async def ask() -> None:
            await asyncio.gather(*(actor.search.remote(query) for actor in actors))

        return asyncio.run(_repeat(ask, count))


def by_ray(collection: Path, queries: np.ndarray, seconds: float) -> list[dict[str, Any]]:
    """What it was like before the road: an actor a shard, each query a call of Ray's to each of them."""

    class Actor:
        def __init__(self, path: str) -> None:
            self._index = velo.open(path, threads=1)

        async def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = await self._index.search_async(queries, k=K)
            return found.ids, found.distances

    with _ray() as ray:
        make: Any = ray.remote
        actors = [
            make(num_cpus=0)(Actor).remote(str((collection / f"shard-{number:05d}").resolve()))
            for number in range(SHARDS)
        ]

        async def ask(number: int) -> None:
            query = queries[[number % len(queries)]]
            parts = await asyncio.gather(*(actor.search.remote(query) for actor in actors))
            distances = np.concatenate([part[1][0] for part in parts])
            _ = np.concatenate([part[0][0] for part in parts])[np.argsort(distances, kind="stable")[:K]]

        async def measured() -> tuple[list[float], float]:
            places = iter(range(1 << 30))
            took = await _repeat(lambda: ask(next(places)), 300)
            done, began = 0, time.perf_counter()

            async def caller(number: int) -> None:
                nonlocal done
                while time.perf_counter() - began < seconds:
                    await ask(number + done)
                    done += 1

            await asyncio.gather(*(caller(number) for number in range(CALLERS)))
            return took, done / (time.perf_counter() - began)

        took, rate = asyncio.run(measured())
    return [
        {"what": "one query by Ray's calls", **_spread(took)},
        {"what": "queries by Ray's calls, 32 at a time", "queries_per_s": rate, "load": os.getloadavg()[0]},
    ]


# ---- the library, the same shards ----


def library(collection: Path, queries: np.ndarray, seconds: float) -> list[dict[str, Any]]:
    """What one process gets out of all shards, by batches of 64; and single queries of the slowest shard."""
    singles = []
    with velo.open(collection, threads=1) as shards:
        rate = _rate_of(shards, queries, seconds)
    for number in range(SHARDS):
        with velo.open(collection / f"shard-{number:05d}", threads=1) as index:
            index.search(queries[:64], k=K)
            took = []
            for query in queries[:200]:
                began = time.perf_counter()
                index.search(query, k=K)
                took.append(time.perf_counter() - began)
            singles.append(_spread(took)["p50_ms"])
    return [
        {
            "what": "library",
            "queries_per_s": rate,
            "slowest_shard_p50_ms": max(singles),
            "load": os.getloadavg()[0],
        }
    ]


def _rate_of(index: Any, queries: np.ndarray, seconds: float) -> float:
    index.search(queries[:64], k=K)
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        index.search(np.roll(queries, -done, axis=0)[:64], k=K)
        done += 64
    return done / (time.perf_counter() - started)


def own_rate(path: str, queries_path: str, seconds: float) -> None:
    """The program of a process that asks one shard alone: begins when told, and says how fast it was."""
    queries = open_vectors(Path(queries_path)).read().astype(np.float32)
    with velo.open(path, threads=1) as index:
        print("ready", flush=True)
        sys.stdin.readline()
        print(_rate_of(index, queries, seconds), flush=True)


def at_once(collection: Path, queries_path: Path, seconds: float) -> list[dict[str, Any]]:
    """What the four shards do on this machine at the same time, a process each, with no gateway over them."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    program = (
        "import sys; from bench.commands import serve_sections as s;"
        " s.own_rate(*sys.argv[1:3], float(sys.argv[3]))"
    )
    children = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", program, str(collection / f"shard-{number:05d}")),
                *(str(queries_path), str(seconds)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(SHARDS)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    rates = [float(child.communicate()[0]) for child in children]
    return [{"what": "shards at once", "queries_per_s": sum(rates), "load": os.getloadavg()[0]}]


# ---- the gateway ----


def gateway(collection: Path, queries: np.ndarray, seconds: float, workers: int) -> list[dict[str, Any]]:
    """``velo serve`` with a process a shard, asked over keep-alive connections."""
    with served(ROOT, SERVE, [str(collection.resolve()), "processes", str(workers)]) as server:
        return list(in_loop(_ask_gateway(server.host, server.port, queries, seconds, workers)))


async def _ask_gateway(
    host: str, port: int, queries: np.ndarray, seconds: float, workers: int
) -> list[dict[str, Any]]:
    import io

    singles = singles_of(queries[:200])
    file = io.BytesIO()
    np.save(file, queries[:64])
    batch = post(file.getvalue(), "application/x-npy", "application/x-npz", f"/v1/search?k={K}")

    async def rate(requests: list[bytes], connections: int, each: int) -> dict[str, Any]:
        done = refused = 0
        end = time.perf_counter() + seconds

        async def one(number: int) -> None:
            nonlocal done, refused
            reader, writer = await asyncio.open_connection(host, port)
            while time.perf_counter() < end:
                status = await exchange(reader, writer, requests[number % len(requests)])
                done += each * (status == 200)
                refused += status != 200
                number += 1
            writer.close()

        started = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(connections)))
        took_s = time.perf_counter() - started
        return {"queries_per_s": done / took_s, "refused": refused, "load": os.getloadavg()[0]}

    if workers > 1:
        return [{"what": f"JSON, 32 connections, {workers} workers", **await rate(singles, CALLERS, 1)}]
    reader, writer = await asyncio.open_connection(host, port)
    for request in singles:
        await exchange(reader, writer, request)
    places = iter(range(1 << 30))
    took = await _repeat(
        lambda: exchange(reader, writer, singles[next(places) % len(singles)]), 5 * len(singles)
    )
    writer.close()
    return [
        {"what": "one JSON query at a time", **_spread(took)},
        {"what": "JSON, 32 connections", **await rate(singles, CALLERS, 1)},
        {"what": "npy bodies of 64, 4 connections", **await rate([batch], 4, 64)},
    ]


# ---- events ----


def events(collection: Path, queries: np.ndarray) -> list[dict[str, Any]]:
    """Queries every ten milliseconds while a shard is killed, and while one is stopped."""
    rows = []
    for what, number in (
        ("nothing", None),
        ("a shard is killed", signal.SIGKILL),
        ("a shard is stopped", signal.SIGSTOP),
    ):
        shards = open_processes(collection, threads=1)
        backend, victim = shards.backend(), shards.processes[shards.records[0].name][1]

        async def scene(
            number: Any = number, backend: Any = backend, victim: Any = victim
        ) -> list[tuple[float, float, int]]:
            await backend.start()
            router = backend.collection().router
            timeline: list[tuple[float, float, int]] = []
            began = time.perf_counter()

            async def one(place: int) -> None:
                started = time.perf_counter()
                answer = await router.search(SearchRequest(queries[[place % len(queries)]], K, timeout_s=5.0))
                now = time.perf_counter()
                timeline.append((started - began, now - started, answer.shards_answered))

            tasks = []
            for place in range(ASKED):
                if place == EVENT_AT and number is not None:
                    os.kill(victim.pid, number)
                tasks.append(asyncio.ensure_future(one(place)))
                await asyncio.sleep(STEP_S)
            await asyncio.gather(*tasks)
            if number == signal.SIGSTOP:
                os.kill(victim.pid, signal.SIGCONT)
            await backend.close()
            return timeline

        timeline = in_loop(scene())
        took = [seconds for _, seconds, _ in timeline]
        rows.append(
            {
                "what": what,
                **_spread(took),
                "longest_ms": max(took) * 1e3,
                "above_250_ms": sum(seconds > 0.25 for seconds in took),
                "partial": sum(shards < SHARDS for _, _, shards in timeline),
                "asked": len(timeline),
                "timeline": [(at_s, seconds) for at_s, seconds, _ in timeline],
            }
        )
    return rows


# ---- what is measured ----


def sections_of(context: Context) -> dict[str, Section]:
    """Every section: each ends within ten minutes."""
    collection, options = Path(context.data), context.options
    queries_path, seconds, beside = Path(options["queries"]), options["seconds"], options["beside"]

    def queries() -> np.ndarray:
        found: np.ndarray = open_vectors(queries_path).read().astype(np.float32)
        return found

    def callers(kind: str, connections: int) -> Callable[[], list[dict[str, Any]]]:
        return lambda: costs(collection, queries_path, seconds / 2, beside, kind, connections)

    measures: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "road": lambda: fan_out(queries().shape[1], ray=options["ray"]),
        "library": lambda: [
            *library(collection, queries(), seconds),
            *at_once(collection, queries_path, seconds),
        ],
        "processes": callers("processes", CALLERS),
        "threads": callers("threads", CALLERS),
        "one at a time": callers("processes", 1),
        "gateway alone": lambda: gateway_alone(seconds / 2, beside),
        "heavy": lambda: heavy_beside(collection, queries_path, seconds, beside),
        "one gateway": lambda: gateway(collection, queries(), seconds, 1),
        "two gateways": lambda: gateway(collection, queries(), seconds, 2),
        "events": lambda: events(collection, queries()),
    }
    if options["ray"]:
        measures["Ray"] = lambda: by_ray(collection, queries(), seconds)

    def section(name: str, measure: Callable[[], list[dict[str, Any]]]) -> Section:
        return Section(name, lambda _: {"rows": measure()}, LIMIT_S)

    return {name: section(name, measure) for name, measure in measures.items()}
