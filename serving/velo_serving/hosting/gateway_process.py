"""The program of one gateway among several, which ``workers.py`` starts.

It accepts from an inherited socket, asks its parent for the endpoints of shards, and ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TextIO

import msgspec
from prometheus_client import values

from velo_serving.catalog.records import CollectionRecord, Place
from velo_serving.hosting.server import run
from velo_serving.protocol.errors import ShardUnavailableError, SupersededError
from velo_serving.protocol.limits import GatewayLimits, RouterLimits
from velo_serving.protocol.options import ServeOptions
from velo_serving.protocol.types import Failure, Shape
from velo_serving.routing.backend import Backend
from velo_serving.routing.served import served_collection
from velo_serving.shard.process import QUESTION, end_with_parent
from velo_serving.transport.endpoint import Endpoint

#: How long a restarted gateway waits for its shards before it accepts connections; others accept them.
START_S = 5.0

#: The number under which a gateway is asked whether it is at work, and what it says if its loop is.
PING = -1
AT_WORK = "at work"


class WorkerMessage(msgspec.Struct):
    """The first message to a gateway."""

    number: int
    listener: int
    has_root: bool
    records: list[CollectionRecord]
    options: dict[str, Any]
    limits: RouterLimits
    gateway_limits: GatewayLimits


class Question(msgspec.Struct):
    """A question to the parent, which starts shards: a method of its directory, one of ``ASKED``."""

    number: int
    what: str
    arguments: list[Any]


class Reply(msgspec.Struct):
    """The answer to a question, or its failure. Number 0 is unsolicited: the new records."""

    number: int
    value: Any = None
    records: list[CollectionRecord] | None = None
    failure: Failure | None = None
    successor: int | None = None

    def settle(self, future: asyncio.Future[Reply]) -> None:
        if not future.done():
            future.set_result(self)


#: What a gateway may ask, with the types of arguments.
ASKED: Final[dict[str, Any]] = {
    "locate": tuple[Place],
    "record": tuple[str, int],
    "exchange": tuple[str, str, str],
    "snapshot": tuple[str, str],
    "move": tuple[str, str, str, str | None],
    "create": tuple[str, Shape],
    "drop": tuple[str],
}


class _Parent:
    """The process that started this one, and knows the endpoints of shards."""

    def __init__(self, output: TextIO, lines: TextIO, records: Sequence[CollectionRecord]) -> None:
        self._records = tuple(records)
        self._output = output
        self._input = lines
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Reply]]] = {}

    def say(self, line: str) -> None:
        self._output.write(line + "\n")
        self._output.flush()

    @property
    def records(self) -> tuple[CollectionRecord, ...]:
        return self._records

    async def locate(self, place: Place) -> Endpoint:
        return msgspec.convert(await self._ask("locate", place), Endpoint)

    async def record(self, collection: str, generation: int) -> CollectionRecord:
        return msgspec.convert(await self._ask("record", collection, generation), CollectionRecord)

    async def exchange(self, collection: str, path: str, version: str) -> int:
        return int(await self._ask("exchange", collection, path, version))

    async def snapshot(self, collection: str, path: str) -> None:
        await self._ask("snapshot", collection, path)

    async def move(self, collection: str, shard: str, path: str, pin: str | None) -> float:
        return float(await self._ask("move", collection, shard, path, pin))

    async def create(self, name: str, shape: Shape) -> None:
        await self._ask("create", name, shape)

    async def drop(self, name: str) -> list[str]:
        return msgspec.convert(await self._ask("drop", name), list[str])

    async def _ask(self, what: str, *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        future: asyncio.Future[Reply] = loop.create_future()
        self._waiting[number] = loop, future
        try:
            self.say(QUESTION + msgspec.json.encode(Question(number, what, list(arguments))).decode())
            reply = await future
        finally:
            self._waiting.pop(number, None)
        if reply.failure is None:
            return reply.value
        if what not in ("locate", "record"):
            raise reply.failure.to_error()
        if reply.successor is not None:
            raise SupersededError(reply.failure.message, generation=reply.successor)
        raise ShardUnavailableError(reply.failure.message)

    def listen(self, backend: Backend) -> None:
        """Read answers and new records until the parent ends; then end as on SIGTERM."""
        for line in self._input:
            answer = msgspec.json.decode(line, type=Reply)
            if answer.number == PING and backend.loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    backend.loop.call_soon_threadsafe(self.say, AT_WORK)
            if answer.records is not None:
                self._records = tuple(answer.records)
                if backend.loop is not None:  # else it begins with these
                    asyncio.run_coroutine_threadsafe(backend.follow(answer.records), backend.loop)
            loop, future = self._waiting.get(answer.number, (None, None))
            if loop is not None and future is not None:
                loop.call_soon_threadsafe(answer.settle, future)
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until a signal arrives or the parent ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print must not be taken for ours
    message = msgspec.json.decode(sys.stdin.readline(), type=WorkerMessage)
    # By its number and not by its pid: the next gateway of this number goes on counting where this one ended.
    value_class: Any = values.MultiProcessValue
    values.ValueClass = value_class(lambda: message.number)
    parent = _Parent(reply, sys.stdin, message.records)
    serve = partial(served_collection, directory=parent, limits=message.limits)
    keeper = parent if message.has_root else None
    backend = Backend([serve(one) for one in parent.records], start_s=START_S, keeper=keeper, serve=serve)
    threading.Thread(target=parent.listen, args=(backend,), name="velo-parent", daemon=True).start()
    run(
        backend,
        socket.socket(fileno=message.listener),
        ServeOptions(**message.options, gateway_limits=message.gateway_limits, on_ready=parent.say),
        # SIGUSR1 is the parent's word for an interrupt: end at once, without a drain.
        signals=(signal.SIGTERM, signal.SIGUSR1),
    )


if __name__ == "__main__":
    main()
