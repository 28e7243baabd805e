"""What a query costs behind the gateway: processor time of every process, beside a former version if asked.

Two servers run side by side and are asked in turns, so that what else the machine does falls on both. Wall
times are the caller's; processor time is the kernel's, so it says the same on a machine that has other work.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from bench.harness.pages import ROOT
from velo.formats import open_vectors

__all__ = ["CALLERS", "SHARDS", "Costs", "K", "costs", "exchange", "gateway_alone", "heavy_beside", "post"]

SHARDS: Final = 4
K: Final = 10

#: The fastest that JSON is asked for: by so many callers at once.
CALLERS: Final = 32

#: Turns of each server.
TURNS: Final = 5

#: What is heavy, and how often a light query is asked beside it.
HEAVY_QUERIES: Final = 500
HEAVY_K: Final = 1000
LIGHT_EVERY_S: Final = 0.02

JSON: Final = "application/json"

#: Words of a shard's command line.
_SHARD: Final = b"velo_serving.shard.process"

#: The program of a server: a collection, ``processes`` or ``threads``, and how many gateways.
SERVE: Final = (
    "import sys, velo_serving as s; s.serve_local(sys.argv[1], port=0, threads=1, workers=int(sys.argv[3]),"
    " processes=sys.argv[2] == 'processes', on_ready=lambda url: print(url, flush=True))"
)


@dataclass(frozen=True)
class Costs:
    """What one turn brought.

    Attributes
    ----------
    queries, refused : int
    seconds : float
    gateway_s, shards_s : float
        Processor time.
    took_s : list of float
        Of each request that was answered.
    """

    queries: int
    refused: int
    seconds: float
    gateway_s: float
    shards_s: float
    took_s: list[float]


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    process: subprocess.Popen[str]
    host: str
    port: int

    def processor_s(self) -> tuple[float, float]:
        """Processor time of its gateway and of its shards' processes until now."""
        gateway = shards = 0.0
        for pid in _tree_of(self.process.pid):
            spent_s = _spent_s(pid)
            if _SHARD in Path(f"/proc/{pid}/cmdline").read_bytes():
                shards += spent_s
            else:
                gateway += spent_s
        return gateway, shards


def _tree_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [
        pid,
        *(one for file in children for word in file.read_text().split() for one in _tree_of(int(word))),
    ]


def _spent_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(tree: Path, program: str, arguments: Sequence[str]) -> Iterator[Server]:
    """A server of a checkout's code, until the block ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "serving")])}
    with tempfile.TemporaryDirectory() as folder:  # where the program stands, Python would look for modules
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
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


def post(body: bytes, kind: str, accept: str, path: str = "/v1/search") -> bytes:
    """A request as bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n"
    return head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Ask, read the answer to its end, and return its status."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(lengths[0].split(b":")[1]))
    return int(head[9:12])


def singles_of(queries: np.ndarray) -> list[bytes]:
    """Requests of one query each, as JSON."""
    return [post(json.dumps({"vector": query.tolist(), "k": K}).encode(), JSON, JSON) for query in queries]


def in_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run in an event loop of the kind that gateways have."""
    import uvloop

    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def ask(server: Server, requests: Sequence[bytes], connections: int, seconds: float) -> Costs:
    """Ask over so many connections for so long, each its next query when the last is answered."""
    refused = 0
    took_s: list[float] = []
    before = server.processor_s()
    started = time.perf_counter()

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
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    elapsed_s = time.perf_counter() - started
    gateway_s, shards_s = np.subtract(server.processor_s(), before).tolist()
    return Costs(len(took_s), refused, elapsed_s, gateway_s, shards_s, took_s)


def _in_turns(
    servers: dict[str, Server], turn: Callable[[Server], Coroutine[Any, Any, Costs]]
) -> dict[str, list[Costs]]:
    """Turns of each server, one after another; the first warms up and is left out."""
    found: dict[str, list[Costs]] = {side: [] for side in servers}
    for number in range(TURNS + 1):
        for side, server in servers.items():
            costs = in_loop(turn(server))
            if number > 0:
                found[side].append(costs)
    return found


def _row(what: str, side: str, turns: Sequence[Costs]) -> dict[str, Any]:
    queries = sum(turn.queries for turn in turns)
    us = 1e6 / max(1, queries)
    gateway_us, shards_us = (
        us * sum(getattr(turn, name) for turn in turns) for name in ("gateway_s", "shards_s")
    )
    took_ms = 1e3 * np.concatenate([turn.took_s for turn in turns])
    return {
        "what": what,
        "side": side,
        "queries": queries,
        "refused": sum(turn.refused for turn in turns),
        "queries_per_s": queries / sum(turn.seconds for turn in turns),
        "gateway_us": gateway_us,
        "shards_us": shards_us,
        "all_us": gateway_us + shards_us,
        "least_us": min(1e6 * (turn.gateway_s + turn.shards_s) / max(1, turn.queries) for turn in turns),
        "p50_ms": float(np.median(took_ms)),
        "p99_ms": float(np.percentile(took_ms, 99)),
        "load": os.getloadavg()[0],
    }


def sides_of(beside: str | None) -> dict[str, Path]:
    """The checkouts whose code is served: this one, and a former one."""
    return {"this": ROOT} if beside is None else {"this": ROOT, "former": Path(beside).resolve()}


def costs(
    collection: Path, queries_path: Path, seconds: float, beside: str | None, kind: str, connections: int
) -> list[dict[str, Any]]:
    """Processor time a query, of JSON with one query each.

    Parameters
    ----------
    collection, queries_path : Path
    seconds : float
        Of each turn.
    beside : str, optional
        A former checkout.
    kind : str
        ``processes``, or ``threads``: all shards in the gateway's process.
    connections : int
    """
    requests = singles_of(open_vectors(queries_path).read()[:200].astype(np.float32))
    with ExitStack() as stack:
        servers = {
            side: stack.enter_context(served(tree, SERVE, [str(collection.resolve()), kind, "1"]))
            for side, tree in sides_of(beside).items()
        }
        found = _in_turns(servers, lambda server: ask(server, requests, connections, seconds))
    what = f"JSON, {connections} connections, {kind}"
    return [_row(what, side, turns) for side, turns in found.items()]


# ---- the gateway alone ----


def gateway_alone(seconds: float, beside: str | None, dim: int = 128) -> list[dict[str, Any]]:
    """A gateway over shards that answer at once, and FastAPI with the schema of its body and nothing else."""
    requests = singles_of(np.random.default_rng(1).random((50, dim), np.float32))
    with ExitStack() as stack:
        servers = {
            side: stack.enter_context(served(tree, _IDLE_GATEWAY, [str(dim)]))
            for side, tree in sides_of(beside).items()
        }
        servers["FastAPI"] = stack.enter_context(served(ROOT, _PLAIN_FASTAPI, []))
        found = _in_turns(servers, lambda server: ask(server, requests, CALLERS, seconds))
    return [_row("shards that answer at once", side, turns) for side, turns in found.items()]


_IDLE_GATEWAY: Final = """
import asyncio, socket, sys
import numpy as np
from velo_serving.hosting.server import bind, run
from velo_serving.routing.backend import Backend
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.words.options import ServeOptions
from velo_serving.words.types import Hits, ShardHealth

K = 10
dim = int(sys.argv[1])

class Idle:
    def __init__(self, place):
        self.name = str(place)
        self._hits = Hits(
            np.arange(K)[None] * 4 + place, np.arange(K, dtype=np.float32)[None] + place, np.array([K])
        )
    def submit(self, request, timeout_s):
        future = asyncio.get_running_loop().create_future()
        future.set_result(self._hits)
        return future
    def submit_each(self, requests, timeouts_s):
        return [self.submit(one, 1.0) for one in requests]
    async def health(self):
        return ShardHealth(uuid=self.name, n=K, dim=dim, metric="l2")
    async def trial(self, timeout_s):
        return True
    def watch(self, lost): pass
    def reset(self): pass
    async def close(self): pass

router = Router("idle", [Idle(place) for place in range(4)])
backend = Backend([ServedCollection("idle", Generation(4 * K, dim, "l2", router))])
run(backend, bind("127.0.0.1", 0), ServeOptions(on_ready=lambda url: print(url, flush=True)))
"""

_PLAIN_FASTAPI: Final = """
import asyncio, socket
import uvicorn
from fastapi import FastAPI
from velo_serving.gateway.schemas import SearchBody

app = FastAPI()

@app.post("/v1/search")
async def search(body: SearchBody):
    return {}

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(256)
print("http://127.0.0.1:%d" % listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
"""


# ---- who asks for much ----


def heavy_beside(
    collection: Path, queries_path: Path, seconds: float, beside: str | None
) -> list[dict[str, Any]]:
    """Light queries alone, and beside one who asks for 500 × k = 1,000 again and again."""
    queries = open_vectors(queries_path).read()[:HEAVY_QUERIES].astype(np.float32)
    file = io.BytesIO()
    np.save(file, queries)
    heavy = post(file.getvalue(), "application/x-npy", "application/x-npz", f"/v1/search?k={HEAVY_K}")
    lights = singles_of(queries[:200])

    async def turn(server: Server, *, is_beside: bool) -> tuple[Costs, int]:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        asked = 0

        async def much() -> None:
            nonlocal asked
            ways = await asyncio.open_connection(server.host, server.port)
            while True:
                asked += await exchange(*ways, heavy) == 200

        task = asyncio.ensure_future(much()) if is_beside else None
        await asyncio.sleep(0.3)  # until it is under way
        took_s, refused = [], 0
        before = server.processor_s()
        started = time.perf_counter()
        number = 0
        while time.perf_counter() < started + seconds:
            began = time.perf_counter()
            status = await exchange(reader, writer, lights[number % len(lights)])
            if status == 200:
                took_s.append(time.perf_counter() - began)
            else:
                refused += 1
            number += 1
            await asyncio.sleep(LIGHT_EVERY_S)
        elapsed_s = time.perf_counter() - started
        gateway_s, shards_s = np.subtract(server.processor_s(), before).tolist()
        writer.close()
        if task is not None:
            task.cancel()
        return Costs(len(took_s), refused, elapsed_s, gateway_s, shards_s, took_s), asked

    rows: dict[tuple[str, str], list[Costs]] = {}
    answered: dict[str, int] = {}
    with ExitStack() as stack:
        servers = {
            side: stack.enter_context(served(tree, SERVE, [str(collection.resolve()), "processes", "1"]))
            for side, tree in sides_of(beside).items()
        }
        for _ in range(TURNS):
            for side, server in servers.items():
                for what, is_beside in (
                    ("light queries alone", False),
                    ("light queries beside heavy ones", True),
                ):
                    turned, asked = in_loop(turn(server, is_beside=is_beside))
                    rows.setdefault((what, side), []).append(turned)
                    answered[side] = answered.get(side, 0) + asked
                    time.sleep(0.5)  # what was canceled ends
    return [
        {**_row(what, side, turns), "heavy_answered": answered[side]} for (what, side), turns in rows.items()
    ]
