"""Twice the load that a shard can answer; ``python -m tests.serving.overload --seconds 60`` tells all."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.serving.exact_gateway import SEARCH_SCOPE
from tests.serving.fakes import ExactIndex
from velo_serving.catalog.spec import ShardSpec
from velo_serving.gateway import create_app
from velo_serving.routing.backend import Backend
from velo_serving.routing.local_backend import LocalChannel
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.shard.shard import Shard

#: A shard answers so many queries at once, each in so long: two hundred a second.
AT_ONCE, EACH_S = 4, 0.02

DEADLINE_S = 1.0

BODY = json.dumps({"vector": [0.0] * 4, "k": 1, "timeout_ms": 1000 * DEADLINE_S}).encode()


@dataclass
class Told:
    """What came of the load.

    Attributes
    ----------
    capacity : float
        Queries a second that the shard answers, as measured before.
    took_s : float
        For how long twice as many were asked.
    stalled_s : float
        How late this process itself was at worst.
    good, refused, late : list of float
        How long those took that were answered with 200, 429 and 504.
    retry_after_s : list of float
        What refusals said; NaN where one said nothing.
    others : list of int
        Other statuses.
    memory_bytes : list of int
        Once a second.
    """

    capacity: float = 0.0
    took_s: float = 0.0
    stalled_s: float = 0.0
    good: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    retry_after_s: list[float] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)

    @property
    def longest_s(self) -> float:
        """The latest answer of any kind."""
        return max([*self.good, *self.refused, *self.late])

    @property
    def goodput(self) -> float:
        """What was answered in time, as a share of what could be."""
        return len(self.good) / (self.capacity * self.took_s)

    def summary(self) -> dict[str, float | int]:
        """Return the numbers that are looked at."""
        asked = len(self.good) + len(self.refused) + len(self.late) + len(self.others)
        return {
            "asked": asked,
            "took_s": round(self.took_s, 1),
            "capacity": round(self.capacity, 1),
            "goodput": round(self.goodput, 3),
            "good": len(self.good),
            "good_p50_ms": round(1e3 * float(np.percentile(self.good, 50)), 1),
            "good_p99_ms": round(1e3 * float(np.percentile(self.good, 99)), 1),
            "refused": len(self.refused),
            "refused_p99_ms": round(1e3 * float(np.percentile(self.refused, 99)), 1),
            "refused_without_retry_after": sum(map(math.isnan, self.retry_after_s)),
            "late": len(self.late),
            "others": len(self.others),
            "longest_ms": round(1e3 * self.longest_s, 1),
            "stalled_ms": round(1e3 * self.stalled_s, 1),
            "memory_start_mib": self.memory_bytes[0] >> 20,
            "memory_middle_mib": self.memory_bytes[len(self.memory_bytes) // 2] >> 20,
            "memory_end_mib": self.memory_bytes[-1] >> 20,
        }


async def post(app: Any, body: bytes) -> tuple[int, dict[str, str]]:
    """Ask an app for a search without a client between, which would cost more than the gateway."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    started: dict[str, Any] = {}

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()  # it never hangs up
        return messages.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.update(message)

    await app(dict(SEARCH_SCOPE), receive, send)
    return started["status"], {key.decode(): value.decode() for key, value in started["headers"]}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def overload(folder: Path, seconds: float) -> Told:
    """Measure what a shard can answer, then send twice as much for some seconds, whatever the answers."""
    index = ExactIndex(np.zeros((10, 4), np.float32))
    plain, room = index.search_async, asyncio.Semaphore(AT_ONCE)

    async def limited(*arguments: Any, **options: Any) -> Any:
        async with room:
            await asyncio.sleep(EACH_S)
            found = await plain(*arguments, **options)
        index.calls.clear()
        return found

    index.search_async = limited  # type: ignore[method-assign]
    shard = Shard(ShardSpec("0", str(folder)), lambda spec: index)
    shard.open()
    router = Router("things", [LocalChannel(shard)])
    app = create_app(Backend([ServedCollection("things", Generation(10, 4, "l2", router))]))
    told = Told()

    async def one() -> None:
        began = time.monotonic()
        status, headers = await post(app, BODY)
        took_s = time.monotonic() - began
        if status == 200:
            told.good.append(took_s)
        elif status == 429:
            told.refused.append(took_s)
            told.retry_after_s.append(float(headers.get("retry-after", "nan")))
        elif status == 504:
            told.late.append(took_s)
        else:
            told.others.append(status)

    async with app.router.lifespan_context(app):
        # The best of three: what else runs on this machine takes from one, and is no limit of the shard.
        for _ in range(3):
            began, asked = time.monotonic(), 0
            while time.monotonic() < began + 0.5:
                await asyncio.gather(*(post(app, BODY) for _ in range(AT_ONCE)))
                asked += AT_ONCE
            told.capacity = max(told.capacity, asked / (time.monotonic() - began))
        began = time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        for number in range(int(told.capacity * 2 * seconds)):
            task = asyncio.create_task(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due = began + (number + 1) / (2 * told.capacity)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            told.stalled_s = max(told.stalled_s, time.monotonic() - due)
            if len(told.memory_bytes) <= time.monotonic() - began:
                told.memory_bytes.append(resident_bytes())
        told.took_s = time.monotonic() - began
        while tasks:
            await asyncio.gather(*tasks)
        told.memory_bytes.append(resident_bytes())
        assert router.queries_admitted == 0
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(overload(Path(folder), arguments.seconds))
    print(json.dumps(told.summary(), indent=1))


if __name__ == "__main__":
    main()
