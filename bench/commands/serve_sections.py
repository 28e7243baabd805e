"""The sections of ``bench serve``: processor time of a query, rates and latencies, and the loss of a shard.

Wall times are the caller's. Processor time is the kernel's count for every process, so it says the same on a
machine that has other work.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

import velo
from bench.harness.curves import Row
from bench.harness.pages import ROOT
from velo.formats import open_vectors
from velo_serving.hosting.processes import open_processes
from velo_serving.protocol.types import SearchRequest

SHARDS: Final = 4
K: Final = 10
#: Callers of the largest rate of JSON queries.
CALLERS: Final = 32
#: Turns of each server.
TURNS: Final = 5
HEAVY_QUERIES: Final = 500
HEAVY_K: Final = 1000
#: Of overload: connections, the deadline of a request, and the permitted delay of its answer.
CROWD: Final = 768
DEADLINE_S: Final = 0.5
LATE_S: Final = 0.02
#: Between two light queries beside heavy ones.
LIGHT_EVERY_S: Final = 0.02
#: Events: the pause between two queries, their number, and the query before which the event happens.
STEP_S = 0.01
ASKED = 400
EVENT_AT = 150

#: Words of a shard's command line.
_SHARD: Final = b"velo_serving.shard.process"

#: The program of a server: a collection, ``processes`` or ``threads``, and the number of gateways.
SERVE: Final = (
    "import sys, velo_serving as s; s.serve_local(sys.argv[1], port=0, threads=1, workers=int(sys.argv[3]),"
    " processes=sys.argv[2] == 'processes', on_ready=lambda url: print(url, flush=True))"
)


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[str]
    host: str
    port: int

    def processor_s(self) -> tuple[float, float]:
        """Processor time of its gateway and of its shards' processes until now."""
        spent = {True: 0.0, False: 0.0}
        for pid in _tree_of(self.process.pid):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            is_shard = _SHARD in Path(f"/proc/{pid}/cmdline").read_bytes()
            spent[is_shard] += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return spent[False], spent[True]


def _tree_of(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(one for file in files for word in file.read_text().split() for one in _tree_of(int(word)))]


@contextmanager
def served(collection: Path, kind: str = "processes", workers: int = 1) -> Iterator[Server]:
    """A server in a process of its own, until the block ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "serving")])}
    with tempfile.TemporaryDirectory() as folder:  # Python would look for modules in the working folder
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(collection.resolve()), kind, str(workers)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=folder,
        )
        try:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline().strip())
            yield Server(process, str(address.hostname), int(address.port or 0))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


@dataclass(frozen=True)
class Costs:
    """Figures of one turn: seconds of processor, and the seconds of each request that was answered."""

    queries: int
    refused: int
    seconds: float
    gateway_s: float
    shards_s: float
    took_s: list[float]


def row_of(what: str, turns: Sequence[Costs]) -> Row:
    queries = sum(turn.queries for turn in turns)
    us = 1e6 / max(1, queries)
    gateway_us, shards_us = us * sum(t.gateway_s for t in turns), us * sum(t.shards_s for t in turns)
    took_ms = 1e3 * np.concatenate([turn.took_s for turn in turns])
    return {
        "what": what,
        "queries": queries,
        "refused": sum(turn.refused for turn in turns),
        "queries_per_s": queries / sum(turn.seconds for turn in turns),
        "gateway_us": gateway_us,
        "shards_us": shards_us,
        "all_us": gateway_us + shards_us,
        **spread(took_ms),
    }


def spread(took_ms: Any) -> Row:
    p50, p99 = np.percentile(took_ms, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "load": os.getloadavg()[0]}


def post(body: bytes, kind: str, accept: str, path: str = "/v1/search") -> bytes:
    """A request as bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def json_requests(queries: np.ndarray) -> list[bytes]:
    """Requests of one query each."""
    kind = "application/json"
    return [post(json.dumps({"vector": query.tolist(), "k": K}).encode(), kind, kind) for query in queries]


def arrow_request(queries: np.ndarray, k: int) -> bytes:
    """All queries in one request."""
    kind = "application/vnd.apache.arrow.stream"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(queries.reshape(-1)), queries.shape[1])
    table = pa.table({"vector": vectors})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return post(sink.getvalue().to_pybytes(), kind, kind, f"/v1/search?k={k}")


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Ask, read the answer to its end, and return its status."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(lengths[0].split(b":")[1]))
    return int(head[9:12])


async def ask(
    server: Server,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    *,
    each: int = 1,
    pause_s: float = 0.0,
) -> Costs:
    """Ask over some connections, each its next request (of ``each`` queries) when the last is answered."""
    refused = 0
    took_s: list[float] = []
    before, started = server.processor_s(), time.perf_counter()

    async def one(number: int) -> None:
        nonlocal refused
        reader, writer = await asyncio.open_connection(server.host, server.port)
        while (began := time.perf_counter()) < started + seconds:
            status = await exchange(reader, writer, requests[number % len(requests)])
            if status == 200:
                took_s.append(time.perf_counter() - began)
            else:
                refused += 1
            number += 1
            if pause_s:
                await asyncio.sleep(pause_s)
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    elapsed_s = time.perf_counter() - started
    gateway_s, shards_s = np.subtract(server.processor_s(), before).tolist()
    return Costs(each * len(took_s), refused, elapsed_s, gateway_s, shards_s, took_s)


def in_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run in an event loop of the kind that gateways have."""
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def in_turns(asks: dict[str, Callable[[], Coroutine[Any, Any, Costs]]]) -> list[Row]:
    """Turns of each, one after another; the first warms up and is left out."""
    found: dict[str, list[Costs]] = {what: [] for what in asks}
    for number in range(TURNS + 1):
        for what, turn in asks.items():
            costs = in_loop(turn())
            if number > 0:
                found[what].append(costs)
    return [row_of(what, turns) for what, turns in found.items()]


def gateway(
    collection: Path, queries: np.ndarray, seconds: float, kind: str = "processes", workers: int = 1
) -> list[Row]:
    """A server asked over keep-alive connections: JSON with one query each, and npy with 64."""
    singles, batch = json_requests(queries[:200]), [arrow_request(queries[:64], K)]
    with served(collection, kind, workers) as server:
        together = f"JSON, {CALLERS} connections, {kind}" + (f", {workers} workers" if workers > 1 else "")
        asks = {together: lambda: ask(server, singles, CALLERS, seconds)}
        if kind == "processes" and workers == 1:
            asks["JSON, 1 connections, processes"] = lambda: ask(server, singles, 1, seconds)
            asks["npy bodies of 64, 4 connections"] = lambda: ask(server, batch, 4, seconds, each=64)
        return in_turns(asks)


def overload(collection: Path, queries: np.ndarray, seconds: float) -> list[Row]:
    """The peak, and multiples of it over many connections; late answers count as refused."""
    kind = "application/json"
    limits = {"k": K, "timeout_ms": int(1e3 * DEADLINE_S)}
    requests = [
        post(json.dumps({"vector": one.tolist(), **limits}).encode(), kind, kind) for one in queries[:200]
    ]
    with served(collection) as server:

        async def times(factor: float, peak: float) -> Costs:
            ways = [await asyncio.open_connection(server.host, server.port) for _ in range(CROWD)]
            took_s: list[float] = []
            asked = refused = 0
            before, started = server.processor_s(), time.perf_counter()

            async def one(way: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> None:
                nonlocal refused
                began = time.perf_counter()
                status = await exchange(*way, request)
                took = time.perf_counter() - began
                if status == 200 and took <= DEADLINE_S + LATE_S:
                    took_s.append(took)
                else:
                    refused += 1
                ways.append(way)

            tasks: set[asyncio.Task[None]] = set()
            while (now := time.perf_counter()) < started + seconds:
                while asked < (now - started) * factor * peak:
                    asked += 1
                    if ways:
                        tasks.add(asyncio.create_task(one(ways.pop(), requests[asked % len(requests)])))
                await asyncio.sleep(0.001)
            await asyncio.gather(*tasks)
            for _, writer in ways:
                writer.close()
            gateway_s, shards_s = np.subtract(server.processor_s(), before).tolist()
            return Costs(len(took_s), refused, seconds, gateway_s, shards_s, took_s or [math.nan])

        in_loop(ask(server, requests, CALLERS, seconds))  # warms up
        peak = in_loop(ask(server, requests, CALLERS, seconds))
        rate = peak.queries / peak.seconds
        found = {f"{CALLERS} connections, deadline {DEADLINE_S} s": peak}
        for factor in (2, 4):
            found[f"{factor} × that load over {CROWD} connections"] = in_loop(times(factor, rate))
        return [row_of(what, [costs]) for what, costs in found.items()]


def heavy_beside(collection: Path, queries: np.ndarray, seconds: float) -> list[Row]:
    """Light queries alone, and beside a caller that asks for 500 × k = 1,000 again and again."""
    heavy, lights = arrow_request(queries[:HEAVY_QUERIES], HEAVY_K), json_requests(queries[:200])
    with served(collection) as server:

        async def alone() -> Costs:
            return await ask(server, lights, 1, seconds, pause_s=LIGHT_EVERY_S)

        async def beside() -> Costs:
            async def much() -> None:
                ways = await asyncio.open_connection(server.host, server.port)
                while True:
                    await exchange(*ways, heavy)

            task = asyncio.ensure_future(much())
            await asyncio.sleep(0.3)  # until it is under way
            costs = await alone()
            task.cancel()
            await asyncio.sleep(0.5)  # the canceled request ends
            return costs

        return in_turns({"light queries alone": alone, "light queries beside heavy ones": beside})


_OWN_RATE = f"import sys; from {__name__} import own_rate; own_rate(*sys.argv[1:])"


def library(collection: Path, queries: np.ndarray, queries_path: Path, seconds: float) -> list[Row]:
    """One process over all shards; single queries of the slowest shard; the four at once, a process each."""
    with velo.open(collection, threads=1) as shards:
        rate = _rate_of(shards, queries, seconds)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    singles, children = [], []
    for number in range(SHARDS):
        path = collection / f"shard-{number:05d}"
        with velo.open(path, threads=1) as index:
            index.search(queries[:64], k=K)
            took_ms = []
            for query in queries[:200]:
                began = time.perf_counter()
                index.search(query, k=K)
                took_ms.append((time.perf_counter() - began) * 1e3)
            singles.append(float(np.median(took_ms)))
        command = [sys.executable, "-c", _OWN_RATE, str(path), str(queries_path), str(seconds)]
        children.append(subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment))
    for one in children:
        assert one.stdout is not None
        one.stdout.readline()
    for one in children:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    rates = [float(one.communicate()[0]) for one in children]
    load = os.getloadavg()[0]
    return [
        {"what": "library", "queries_per_s": rate, "slowest_shard_p50_ms": max(singles), "load": load},
        {"what": "shards at once", "queries_per_s": sum(rates), "load": load},
    ]


def own_rate(path: str, queries_path: str, seconds: str) -> None:
    """The program of a process that asks one shard alone: begins when told, and prints its rate."""
    queries = open_vectors(Path(queries_path)).read().astype(np.float32)
    with velo.open(path, threads=1) as index:
        print("ready", flush=True)
        sys.stdin.readline()
        print(_rate_of(index, queries, float(seconds)), flush=True)


def _rate_of(index: Any, queries: np.ndarray, seconds: float) -> float:
    index.search(queries[:64], k=K)
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        index.search(np.roll(queries, -done, axis=0)[:64], k=K)
        done += 64
    return done / (time.perf_counter() - started)


EVENTS: Final = {"nothing": None, "a shard is killed": signal.SIGKILL, "a shard is stopped": signal.SIGSTOP}


def events(collection: Path, queries: np.ndarray) -> list[Row]:
    """Queries every ten milliseconds while a shard is killed, and while one is stopped."""
    rows = []
    for what, number in EVENTS.items():
        timeline = in_loop(_scene(collection, queries, number))
        took_ms = [seconds * 1e3 for _, seconds, _ in timeline]
        rows.append(
            {
                "what": what,
                **spread(took_ms),
                "longest_ms": max(took_ms),
                "above_250_ms": sum(took > 250 for took in took_ms),
                "partial": sum(shards < SHARDS for _, _, shards in timeline),
                "asked": len(timeline),
                "timeline": [(round(at_s, 4), round(seconds, 6)) for at_s, seconds, _ in timeline],
            }
        )
    return rows


async def _scene(
    collection: Path, queries: np.ndarray, number: signal.Signals | None
) -> list[tuple[float, float, int]]:
    """When each query was asked, its seconds, and the number of shards that answered."""
    shards = open_processes(collection, threads=1)
    backend, victim = shards.backend(), shards.shards[shards.records[0].name][1]
    await backend.start()
    router = backend.collection().router
    timeline: list[tuple[float, float, int]] = []
    began = time.perf_counter()

    async def one(place: int) -> None:
        started = time.perf_counter()
        answer = await router.search(SearchRequest(queries[[place % len(queries)]], K, timeout_s=5.0))
        timeline.append((started - began, time.perf_counter() - started, answer.shards_answered))

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
