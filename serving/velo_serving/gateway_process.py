"""The program of one gateway among several: ``python -m velo_serving.gateway_process``.

``workers.py`` starts it. It inherits the socket that all of them accept from, asks its parent where shards
are, and ends with it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import sys
import threading
from typing import Any, TextIO

import msgspec
from prometheus_client import values

from velo_serving.backend import Backend, CollectionRecord, served_collection
from velo_serving.child import QUESTION
from velo_serving.errors import ShardUnavailableError
from velo_serving.gateway import GatewayLimits
from velo_serving.router import RouterLimits
from velo_serving.serve import run
from velo_serving.types import Failure
from velo_serving.wire.endpoint import Endpoint

__all__ = ["Located", "Question", "WorkerMessage", "main"]


class WorkerMessage(msgspec.Struct):
    """What a gateway is told as it starts."""

    number: int
    listener: int
    records: list[CollectionRecord]
    limits: RouterLimits
    gateway_limits: GatewayLimits
    ready_shards: int | None
    drain_s: float


class Question(msgspec.Struct):
    """Where is this shard?"""

    number: int
    collection: str
    shard: str


class Located(msgspec.Struct):
    """There, or why nobody knows."""

    number: int
    endpoint: Endpoint | None = None
    failure: Failure | None = None


class _Parent:
    """Who started this process: knows where shards are."""

    def __init__(self, told: TextIO, heard: TextIO) -> None:
        self._told = told
        self._heard = heard
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Endpoint]]] = {}

    def say(self, line: str) -> None:
        self._told.write(line + "\n")
        self._told.flush()

    async def locate(self, collection: str, shard: str) -> Endpoint:
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        future: asyncio.Future[Endpoint] = loop.create_future()
        self._waiting[number] = loop, future
        try:
            self.say(QUESTION + msgspec.json.encode(Question(number, collection, shard)).decode())
            return await future
        finally:
            self._waiting.pop(number, None)

    def listen(self) -> None:
        """Hear answers until the parent is gone; then end as if asked to."""
        for line in self._heard:
            answer = msgspec.json.decode(line, type=Located)
            loop, future = self._waiting.get(answer.number, (None, None))
            if loop is not None and future is not None:
                loop.call_soon_threadsafe(_settle, future, answer)
        os.kill(os.getpid(), signal.SIGTERM)


def _settle(future: asyncio.Future[Endpoint], answer: Located) -> None:
    if future.done():
        return
    if answer.endpoint is not None:
        future.set_result(answer.endpoint)
    else:
        failure = answer.failure
        future.set_exception(ShardUnavailableError("" if failure is None else failure.message))


def main() -> None:
    """Serve until told to end, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print must not be taken for ours
    message = msgspec.json.decode(sys.stdin.readline(), type=WorkerMessage)
    # By its number and not by its pid: the next gateway of this number goes on counting where this one ended.
    value_class: Any = values.MultiProcessValue
    values.ValueClass = value_class(lambda: message.number)
    parent = _Parent(told, sys.stdin)
    backend = Backend(
        [served_collection(record, parent.locate, limits=message.limits) for record in message.records]
    )
    threading.Thread(target=parent.listen, name="velo-parent", daemon=True).start()
    run(
        backend,
        socket.socket(fileno=message.listener),
        gateway_limits=message.gateway_limits,
        on_ready=parent.say,
        ready_shards=message.ready_shards,
        drain_s=message.drain_s,
        # SIGUSR1 is the parent's word for an interrupt: end at once, without a drain.
        signals=(signal.SIGTERM, signal.SIGUSR1),
    )


if __name__ == "__main__":
    main()
