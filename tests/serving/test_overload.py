"""More requests than a gateway can answer, over HTTP: it refuses some early and continues to answer others.

``python -m bench serve overload`` measures how many it answers. Here a collapse fails: without admission a
gateway answered a fiftieth to a fifth of its peak in time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.serving.conftest import environment

#: A search takes the gateway's processor for so long.
SEARCH_S = 0.008

DEADLINE_S = 0.5
LATE_S = 0.02
CONNECTIONS = 256

#: Of the answers at the peak.
LEAST_SHARE = 0.3

PROGRAM = f"""
import sys, time
from pathlib import Path
from tests.serving.exact_gateway import VECTORS
from tests.serving.fakes import ExactIndex
from velo_serving.catalog.spec import ShardSpec
from velo_serving.hosting.server import bind, run
from velo_serving.protocol.options import ServeOptions
from velo_serving.routing.backend import Backend
from velo_serving.routing.local_backend import LocalChannel
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.shard.shard import Shard

class Slow(ExactIndex):
    async def search_async(self, *arguments, **options):
        self.calls.clear()
        end = time.perf_counter() + {SEARCH_S}
        while time.perf_counter() < end:
            pass
        return await super().search_async(*arguments, **options)

shard = Shard(ShardSpec("0", sys.argv[1]), lambda spec: Slow(VECTORS))
shard.open()
router = Router("things", [LocalChannel(shard)])
served = ServedCollection("things", Generation(len(VECTORS), 4, "l2", router))
run(Backend([served]), bind("127.0.0.1", 0), ServeOptions(on_ready=lambda url: print(url, flush=True)))
"""

BODY = json.dumps({"vector": [0.0] * 4, "k": 1, "timeout_ms": int(1000 * DEADLINE_S)}).encode()
REQUEST = (
    f"POST /v1/search HTTP/1.1\r\nHost: velo\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY


@dataclass
class Seen:
    """Answers by their status, and the times of those that are hits."""

    statuses: Counter[int] = field(default_factory=Counter)
    good_s: list[float] = field(default_factory=list)


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, seen: Seen) -> None:
        began = time.perf_counter()
        self._writer.write(REQUEST)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.split(b":")[1]))
        status = int(head.split()[1])
        seen.statuses[status] += 1
        if status == 200:
            seen.good_s.append(time.perf_counter() - began)


async def load(connections: list[Connection], per_s: float, seconds: float) -> Seen:
    """Send requests at this rate over free connections, whatever the answers."""
    seen, free = Seen(), list(connections)

    async def one(connection: Connection) -> None:
        await connection.ask(seen)
        free.append(connection)

    began, asked = time.perf_counter(), 0
    tasks: set[asyncio.Task[None]] = set()
    while (now := time.perf_counter()) < began + seconds:
        while asked < (now - began) * per_s:
            asked += 1
            if free:
                task = asyncio.create_task(one(free.pop()))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    return seen


async def play(url: str, times: float) -> tuple[float, Seen]:
    """The share of its peak that a gateway answers in time at a multiple of that load, and all answers."""
    where = urlsplit(url)
    opened = [await asyncio.open_connection(where.hostname, where.port) for _ in range(CONNECTIONS)]
    connections = [Connection(*one) for one in opened]

    async def peak() -> float:
        seen, seconds = Seen(), 1.0
        end = time.perf_counter() + seconds

        async def ask(connection: Connection) -> None:
            while time.perf_counter() < end:
                await connection.ask(seen)

        await asyncio.gather(*map(ask, connections[:4]))
        return len(seen.good_s) / seconds

    before = await peak()
    seconds = 3.0
    seen = await load(connections, times * before, seconds)
    after = await peak()
    for _, writer in opened:
        writer.close()
    good = sum(took_s <= DEADLINE_S + LATE_S for took_s in seen.good_s)
    return good / seconds / ((before + after) / 2), seen


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("slow")
    arguments = [sys.executable, "-c", PROGRAM, str(folder)]
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, text=True, env=environment(), cwd=root
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.mark.parametrize("times", [2, 4])
def test_more_load_than_a_gateway_can_answer_does_not_end_its_answers(url: str, times: int) -> None:
    for _ in range(4):  # other processes, and this one, take the processor from some
        share, seen = asyncio.run(play(url, times))
        assert set(seen.statuses) <= {200, 429, 504}
        assert seen.statuses[429] > 0
        if share >= LEAST_SHARE:
            return
    raise AssertionError(f"{share:.2f} of the peak at {times} times the load: {seen.statuses}")
