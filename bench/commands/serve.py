"""Serving: what the road costs, what the gateway answers, and who waits when a shard dies or stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

import velo
from bench.harness.machine import describe
from bench.harness.tables import machine_line, table
from velo.formats import open_vectors
from velo_serving.processes import backend_of, open_processes
from velo_serving.shard import Shard, ShardSpec
from velo_serving.types import SearchRequest
from velo_serving.wire.channel import SocketChannel, at
from velo_serving.wire.endpoint import abstract_path
from velo_serving.wire.server import ShardHost, ShardServer

__all__ = ["run"]

SHARDS = 4
K = 10


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


def run(collection: Path, queries_path: Path, *, seconds: float, ray: bool, out: Path, name: str) -> None:
    """Measure everything and write ``docs/results/serve-NAME.md``.

    Parameters
    ----------
    collection : Path
        Of four shards.
    asked : Path
        A file of vectors: the queries.
    seconds : float
        Of each throughput.
    ray : bool
        Whether Ray's own calls are measured beside the road.
    out : Path
    name : str
    """
    queries = open_vectors(queries_path).read().astype(np.float32)
    rows: list[dict[str, Any]] = [{"what": "machine", **describe(collection)}]
    rows += fan_out(queries.shape[1], ray=ray)
    rows += library(collection, queries, seconds)
    rows += gateway(collection, queries, seconds)
    rows += events(collection, queries)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"serve-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (out / f"serve-{name}.md").write_text("\n".join(_page(rows, name)) + "\n")


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
    program = f"from bench.commands.serve import idle_shard; idle_shard({dim})"
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
        rows.append({"what": "fan-out over the road", **_spread(_with_uvloop(_road(endpoints, dim, count)))})
    finally:
        for child in children:
            child.communicate()
    if ray:
        rows.append({"what": "fan-out by Ray's calls", **_spread(_ray_calls(dim, count // 8))})
    return rows


def _with_uvloop(work: Any) -> Any:
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


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


def _ray_calls(dim: int, count: int) -> list[float]:
    import logging

    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, num_cpus=2)
    try:

        class Actor:
            async def search(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                return np.arange(K, dtype=np.int64), np.arange(K, dtype=np.float32)

        make: Any = ray.remote
        actors = [make(num_cpus=0)(Actor).remote() for _ in range(SHARDS)]
        query = np.zeros((1, dim), np.float32)

        async def ask() -> None:
            await asyncio.gather(*(actor.search.remote(query) for actor in actors))

        return asyncio.run(_repeat(ask, count))
    finally:
        ray.shutdown()


# ---- the library, the same shards ----


def library(collection: Path, queries: np.ndarray, seconds: float) -> list[dict[str, Any]]:
    """What one process gets out of the shards, one after another: batches of 64, and single queries."""
    rates, singles = [], []
    for number in range(SHARDS):
        with velo.open(collection / f"shard-{number:05d}", threads=1) as index:
            index.search(queries[:64], k=K)
            started, done = time.perf_counter(), 0
            while time.perf_counter() - started < seconds / SHARDS:
                index.search(np.roll(queries, done, axis=0)[:64], k=K)
                done += 64
            rates.append(done / (time.perf_counter() - started))
            took = []
            for query in queries[:200]:
                began = time.perf_counter()
                index.search(query, k=K)
                took.append(time.perf_counter() - began)
            singles.append(_spread(took)["p50_ms"])
    # One query asks all four: two processors share four shards' work.
    processors = min(SHARDS, os.cpu_count() or 1)
    return [
        {
            "what": "library",
            "queries_per_s": processors / sum(1 / rate for rate in rates),
            "slowest_shard_p50_ms": max(singles),
            "load": os.getloadavg()[0],
        }
    ]


# ---- the gateway ----


def gateway(collection: Path, queries: np.ndarray, seconds: float) -> list[dict[str, Any]]:
    """``velo serve`` with a process a shard, asked over keep-alive connections."""
    program = (
        "import sys, velo_serving.serve as s; s.serve_local(sys.argv[1], port=0, threads=1, processes=True,"
        " on_ready=lambda url: print(url, flush=True))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    server = subprocess.Popen(
        [sys.executable, "-c", program, str(collection)], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert server.stdout is not None
        address = urlsplit(server.stdout.readline().strip())
        return list(
            _with_uvloop(_ask_gateway(str(address.hostname), int(address.port or 0), queries, seconds))
        )
    finally:
        server.terminate()
        server.wait()


def _post(body: bytes, kind: str, accept: str, path: str = "/v1/search") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(lengths[0].split(b":")[1]))
    return int(head[9:12])


async def _ask_gateway(host: str, port: int, queries: np.ndarray, seconds: float) -> list[dict[str, Any]]:
    import io

    kind = "application/json"
    singles = [
        _post(json.dumps({"vector": query.tolist(), "k": K}).encode(), kind, kind) for query in queries[:200]
    ]
    file = io.BytesIO()
    np.save(file, queries[:64])
    batch = _post(file.getvalue(), "application/x-npy", "application/x-npz", f"/v1/search?k={K}")

    async def rate(requests: list[bytes], connections: int, each: int) -> dict[str, Any]:
        done = refused = 0
        end = time.perf_counter() + seconds

        async def one(number: int) -> None:
            nonlocal done, refused
            reader, writer = await asyncio.open_connection(host, port)
            while time.perf_counter() < end:
                status = await _exchange(reader, writer, requests[number % len(requests)])
                done += each * (status == 200)
                refused += status != 200
                number += 1
            writer.close()

        started = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(connections)))
        took_s = time.perf_counter() - started
        return {"queries_per_s": done / took_s, "refused": refused, "load": os.getloadavg()[0]}

    reader, writer = await asyncio.open_connection(host, port)
    for request in singles:
        await _exchange(reader, writer, request)
    places = iter(range(1 << 30))
    took = await _repeat(
        lambda: _exchange(reader, writer, singles[next(places) % len(singles)]), 5 * len(singles)
    )
    writer.close()
    return [
        {"what": "one JSON query at a time", **_spread(took)},
        {"what": "JSON, 32 connections", **await rate(singles, 32, 1)},
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
        backend, victim = backend_of(shards), shards.processes[shards.records[0].name][1]

        async def scene(
            number: Any = number, backend: Any = backend, victim: Any = victim
        ) -> list[tuple[float, int]]:
            await backend.start()
            router = backend.collection().router
            timeline: list[tuple[float, int]] = []

            async def one(place: int) -> None:
                started = time.perf_counter()
                answer = await router.search(SearchRequest(queries[[place % len(queries)]], K, timeout_s=5.0))
                timeline.append((time.perf_counter() - started, answer.shards_answered))

            tasks = []
            for place in range(400):
                if place == 150 and number is not None:
                    os.kill(victim.pid, number)
                tasks.append(asyncio.ensure_future(one(place)))
                await asyncio.sleep(0.01)
            await asyncio.gather(*tasks)
            if number == signal.SIGSTOP:
                os.kill(victim.pid, signal.SIGCONT)
            await backend.close()
            return timeline

        timeline = _with_uvloop(scene())
        took = [seconds for seconds, _ in timeline]
        rows.append(
            {
                "what": what,
                **_spread(took),
                "longest_ms": max(took) * 1e3,
                "above_250_ms": sum(seconds > 0.25 for seconds in took),
                "partial": sum(shards < SHARDS for _, shards in timeline),
                "asked": len(timeline),
            }
        )
    return rows


# ---- the page ----


def _page(rows: list[dict[str, Any]], name: str) -> list[str]:
    by_what = {row["what"]: row for row in rows}
    own = by_what["library"]
    lines = [
        f"# Serving {name}: four shards, each in a process of its own",
        "",
        machine_line(by_what["machine"])
        + " `python -m bench serve`. Times move with the load, which stands beside them.",
        "",
    ]

    def line(what: str, value: str, target: str) -> list[str]:
        return (
            [what, value, target, f"{by_what[what]['load']:.1f}"]
            if what in by_what
            else [what, "not measured", target, "–"]
        )

    cells = []
    for what, target in (
        ("fan-out over the road", "p50 ≤ 0.3, p99 ≤ 1"),
        ("fan-out by Ray's calls", "beside it"),
    ):
        row = by_what.get(what)
        summary = "" if row is None else f"p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms"
        cells.append(line(what, summary, target))
    row = by_what["one JSON query at a time"]
    slowest = own["slowest_shard_p50_ms"]
    summary = f"p50 {row['p50_ms']:.2f} ms (slowest shard {slowest:.2f} ms), p99 {row['p99_ms']:.2f} ms"
    cells.append(line(row["what"], summary, "slowest shard + 0.7 ms"))
    row = by_what["JSON, 32 connections"]
    cells.append(line(row["what"], f"{row['queries_per_s']:,.0f} queries/s", "≥ 3,000"))
    row = by_what["npy bodies of 64, 4 connections"]
    share = row["queries_per_s"] / own["queries_per_s"]
    summary = (
        f"{row['queries_per_s']:,.0f} queries/s, {share:.2f} of the library's {own['queries_per_s']:,.0f}"
    )
    cells.append(line(row["what"], summary, "≥ 0.8"))
    lines += table(["what", "measured", "target", "load"], cells)
    lines += ["", "Queries every 10 ms, 400 of them, four shards; after 150 the event:", ""]
    cells = [
        [
            what,
            f"{by_what[what]['p50_ms']:.1f}",
            f"{by_what[what]['p99_ms']:.1f}",
            f"{by_what[what]['longest_ms']:.0f}",
            str(by_what[what]["above_250_ms"]),
            str(by_what[what]["partial"]),
            f"{by_what[what]['load']:.1f}",
        ]
        for what in ("nothing", "a shard is killed", "a shard is stopped")
    ]
    return lines + table(
        ["event", "p50, ms", "p99, ms", "longest, ms", "above 250 ms", "partial answers", "load"], cells
    )
