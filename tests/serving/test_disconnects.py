"""A client that disconnects, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn

from tests.serving.test_faults import VECTORS, Index
from velo_serving.catalog.spec import ShardSpec
from velo_serving.gateway import create_app
from velo_serving.routing.backend import Backend
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.shard.shard import Shard
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.endpoint import abstract_path
from velo_serving.transport.server import ShardHost, ShardServer

#: DESIGN: the engine drops a request within this time after its client has gone.
IDLE_S = 0.01

#: A busy machine has slow moments of its own: one of these tries must be fast.
TRIES = 30


@asynccontextmanager
async def gateway(index: Index, folder: Path) -> AsyncIterator[tuple[int, Router]]:
    """A gateway at a port, and a shard behind a socket of its own, in another thread."""
    shard = Shard(ShardSpec("0", str(folder)), lambda spec: index)
    shard.open()
    host = ShardHost(ShardServer(shard, token="secret"))
    endpoint = host.start(path=abstract_path("0"))
    router = Router("things", [SocketChannel("0", at(endpoint))])
    app = create_app(Backend([ServedCollection("things", Generation(len(VECTORS), 4, "l2", router))]))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1], router
    finally:
        server.should_exit = True
        await serving
        host.close()
        shard.close()


def ask(vector: np.ndarray) -> bytes:
    body = json.dumps({"vector": vector.tolist(), "k": 3, "timeout_ms": 30_000}).encode()
    return (
        b"POST /v1/search HTTP/1.1\r\nHost: velo\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


def test_the_engine_stops_when_the_client_disconnects(tmp_path: Path) -> None:
    index = Index()
    begun = asyncio.Event()
    ended_at: list[float] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        async def hold(queries: Any) -> None:
            if not bool((queries == VECTORS[7]).all()):
                return  # a probe search
            loop.call_soon_threadsafe(begun.set)
            try:
                await asyncio.sleep(30.0)
            finally:
                ended_at.append(time.monotonic())

        index.hold = hold
        waits: list[float] = []
        async with gateway(index, tmp_path) as (port, router):
            for _ in range(TRIES):
                begun.clear()
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(ask(VECTORS[7]))
                await asyncio.wait_for(begun.wait(), 10.0)
                assert router.queries_admitted == 1
                count = len(ended_at)
                gone_at = time.monotonic()
                writer.transport.abort()
                while len(ended_at) == count or router.queries_admitted:
                    assert time.monotonic() - gone_at < 5.0, "it went on searching without a client"
                    await asyncio.sleep(0.0005)
                waits.append(ended_at[-1] - gone_at)
                assert router.shards()[0].calls_in_flight == 0
                if waits[-1] < IDLE_S:
                    break
        assert min(waits) < IDLE_S, waits

    asyncio.run(run())
