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
from bench.harness import datasets
from bench.harness.curves import Row
from bench.harness.datasets import Dataset
from bench.harness.pages import ROOT
from bench.harness.sections import Context
from velo_serving.hosting.processes import open_processes
from velo_serving.protocol.types import SearchRequest

SHARDS: Final = 4
K: Final = 10
#: Callers of the largest rate of JSON queries.
CALLERS: Final = 32
#: Turns of each server.
TURNS: Final = 5
#: The recall at which several shards and one index are compared.
RECALL: Final = 0.95
#: Distinct values of the column that heavy requests group by.
GROUPS: Final = 1000
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

#: The program of a server: its index or collection, and ``processes`` or ``threads``.
SERVE: Final = """
import sys, velo_serving as s
processes = sys.argv[2] == "processes"
ready = lambda url: print(url, flush=True)
s.serve_local(sys.argv[1], port=0, threads=1, processes=processes, on_ready=ready)
"""

#: The server that a user of the library would write.
PLAIN: Final = """
import socket, sys, uvicorn, velo
from fastapi import FastAPI
from pydantic import BaseModel

class Query(BaseModel):
    vector: list[float]
    k: int
    recall: float

index, app = velo.open(sys.argv[1], threads=1), FastAPI()

@app.post("/v1/search")
async def search(query: Query):
    found = await index.search_async(query.vector, query.k, recall=query.recall)
    return {"ids": found.ids.tolist(), "distances": found.distances.tolist()}

listener = socket.create_server(("127.0.0.1", 0))
print("http://127.0.0.1:%d" % listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error", loop="uvloop")).run(sockets=[listener])
"""


def made(context: Context, dataset: Dataset, name: str) -> Path:
    """The set as ``one`` index or as ``four`` shards, with columns and vectors; built once."""
    path = context.folder / "serve" / f"{dataset.name}-{dataset.n}" / f"{name}.velo"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = np.arange(dataset.n)
        columns = {
            "number": rows,
            "price": np.sqrt(rows).astype(np.float32),
            "label": rows % GROUPS,
            "name": [f"row {row}" for row in rows],
        }
        how: dict[str, Any] = {"metric": dataset.metric, "metadata": columns, "store_vectors": True}
        if name == "one":
            velo.build(path, dataset.base, threads=context.threads, **how).close()
        else:
            velo.build_collection(path, dataset.base, shards=SHARDS, threads=context.threads, **how)
    return path


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
def served(path: Path, kind: str = "processes", program: str = SERVE) -> Iterator[Server]:
    """A server in a process of its own, until the block ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "serving")])}
    with tempfile.TemporaryDirectory() as folder:  # Python would look for modules in the working folder
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path.resolve()), kind],
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
    late: int = 0


def row_of(what: str, turns: Sequence[Costs]) -> Row:
    queries = sum(turn.queries for turn in turns)
    us = 1e6 / max(1, queries)
    gateway_us, shards_us = us * sum(t.gateway_s for t in turns), us * sum(t.shards_s for t in turns)
    took_ms = 1e3 * np.concatenate([turn.took_s for turn in turns])
    return {
        "what": what,
        "queries": queries,
        "refused": sum(turn.refused for turn in turns),
        "late": sum(turn.late for turn in turns),
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


def json_request(**body: Any) -> bytes:
    kind = "application/json"
    return post(json.dumps(body).encode(), kind, kind)


def json_requests(queries: np.ndarray, **options: Any) -> list[bytes]:
    """Requests of one query each."""
    return [json_request(vector=query.tolist(), k=K, **options) for query in queries]


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


def gateway(context: Context) -> list[Row]:
    """Four shards in processes of their own, asked over keep-alive connections."""
    dataset, seconds = context.dataset(), context.options["seconds"]
    singles, batch = json_requests(dataset.queries[:200]), [arrow_request(dataset.queries[:64], K)]
    with served(made(context, dataset, "four")) as server:
        return in_turns(
            {
                f"JSON, {CALLERS} connections": lambda: ask(server, singles, CALLERS, seconds / 2),
                "JSON, 1 connection": lambda: ask(server, singles, 1, seconds / 2),
                "Arrow bodies of 64, 4 connections": lambda: ask(server, batch, 4, seconds / 2, each=64),
            }
        )


def one_process(context: Context) -> list[Row]:
    """One index, the same rows in four shards of one process, and a plain FastAPI application."""
    dataset, seconds = context.dataset(), context.options["seconds"]
    requests = json_requests(dataset.queries[:200], recall=RECALL)
    one, four = made(context, dataset, "one"), made(context, dataset, "four")
    with (
        served(one, "threads") as alone,
        served(four, "threads") as shards,
        served(one, "", PLAIN) as plain,
    ):
        servers = {"one index": alone, "four shards in one process": shards, "FastAPI over one index": plain}

        def asking(server: Server) -> Callable[[], Coroutine[Any, Any, Costs]]:
            return lambda: ask(server, requests, CALLERS, seconds / 2)

        rows = in_turns({name: asking(server) for name, server in servers.items()})
    queries = dataset.queries[: context.query_count]
    for row, path in zip(rows, (one, four, one), strict=True):
        with velo.open(path, threads=1) as index:
            found = index.search(queries, K, recall=RECALL)
        row["recall"] = float(datasets.recall(dataset, found.ids).mean())
    return rows


PEAK: Final = f"{CALLERS} connections, deadline {DEADLINE_S} s"


def times_the_peak(factor: int) -> str:
    return f"{factor} × that load over {CROWD} connections"


def overload(context: Context) -> list[Row]:
    """The peak, and multiples of it over many connections."""
    dataset, seconds = context.dataset(), context.options["seconds"]
    requests = json_requests(dataset.queries[:200], timeout_ms=int(1e3 * DEADLINE_S))
    with served(made(context, dataset, "four")) as server:

        async def times(factor: float, peak: float) -> Costs:
            ways = [await asyncio.open_connection(server.host, server.port) for _ in range(CROWD)]
            took_s: list[float] = []
            asked = refused = late = 0
            before, started = server.processor_s(), time.perf_counter()

            async def one(way: tuple[asyncio.StreamReader, asyncio.StreamWriter], request: bytes) -> None:
                nonlocal refused, late
                began = time.perf_counter()
                status = await exchange(*way, request)
                took = time.perf_counter() - began
                if status != 200:
                    refused += 1
                elif took > DEADLINE_S + LATE_S:
                    late += 1
                else:
                    took_s.append(took)
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
            return Costs(len(took_s), refused, seconds, gateway_s, shards_s, took_s or [math.nan], late)

        in_loop(ask(server, requests, CALLERS, seconds))  # warms up
        peak = in_loop(ask(server, requests, CALLERS, seconds))
        rate = peak.queries / peak.seconds
        found = {PEAK: peak}
        for factor in (2, 4):
            found[times_the_peak(factor)] = in_loop(times(factor, rate))
        return [row_of(what, [costs]) for what, costs in found.items()]


#: Heavy requests, by the names that targets use.
HEAVY: Final = {
    "batch": "500 × k = 1,000",
    "exact": "64 exact queries",
    "metadata": "5,000 hits with metadata",
    "long": "k = 10,000",
    "groups": "20 groups of 10",
}


def beside_heavy(name: str) -> str:
    return f"light queries beside {HEAVY[name]}"


def heavy_requests(queries: np.ndarray) -> dict[str, bytes]:
    """Requests that take long, by name."""
    one = queries[0].tolist()
    return {
        "batch": arrow_request(queries[:500], 1000),
        "exact": json_request(vectors=queries[:64].tolist(), k=K, exact=True),
        "metadata": json_request(vector=one, k=5000, return_metadata=True),
        "long": json_request(vector=one, k=10_000),
        "groups": json_request(vector=one, k=20, group_by="label", group_size=10),
    }


def heavy_beside(context: Context) -> list[Row]:
    """Light queries alone, and beside a caller that repeats a heavy request."""
    dataset, seconds = context.dataset(), context.options["seconds"]
    lights = json_requests(dataset.queries[:200])
    with served(made(context, dataset, "four")) as server:

        async def alone() -> Costs:
            return await ask(server, lights, 1, seconds / 2, pause_s=LIGHT_EVERY_S)

        def beside(heavy: bytes) -> Callable[[], Coroutine[Any, Any, Costs]]:
            async def measured() -> Costs:
                answered: list[int] = []

                async def much() -> None:
                    ways = await asyncio.open_connection(server.host, server.port)
                    while True:
                        answered.append(await exchange(*ways, heavy))

                task = asyncio.ensure_future(much())
                await asyncio.sleep(0.3)  # until it is under way
                costs = await alone()
                task.cancel()
                await asyncio.sleep(0.5)  # the canceled request ends
                if wrong := set(answered) - {200}:
                    raise RuntimeError(f"a heavy request was answered with {wrong}")
                return costs

            return measured

        requests = heavy_requests(np.asarray(dataset.queries))
        asks = {beside_heavy(name): beside(heavy) for name, heavy in requests.items()}
        return in_turns({"light queries alone": alone, **asks})


EVENTS: Final = {"nothing": None, "a shard is killed": signal.SIGKILL, "a shard is stopped": signal.SIGSTOP}


def events(context: Context) -> list[Row]:
    """Queries every ten milliseconds while a shard is killed, and while one is stopped."""
    dataset = context.dataset()
    collection, queries = made(context, dataset, "four"), np.asarray(dataset.queries)
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
