"""A gateway over exact shards, and bodies in the forms that it reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pyarrow as pa

from tests.serving.fakes import ExactIndex
from velo_serving import AsyncClient
from velo_serving.catalog.spec import ShardSpec
from velo_serving.gateway import create_app
from velo_serving.gateway.schemas import ErrorAnswer
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.routing.backend import Backend
from velo_serving.routing.local_backend import LocalChannel
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.shard.shard import Shard

VECTORS = np.random.default_rng(3).standard_normal((40, 4)).astype(np.float32)
SHARDS = 4
VECTOR = [0.0, 0.0, 0.0, 0.0]
ARROW_TYPE = "application/vnd.apache.arrow.stream"
ARROW = {"Content-Type": ARROW_TYPE}
JSON = {"Content-Type": "application/json"}

#: A search as a server hands it to an app, for tests that are themselves the server.
SEARCH_SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "POST",
    "path": "/v1/search",
    "raw_path": b"/v1/search",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
}


def exact_backend(folder: Path, names: tuple[str, ...] = ("things",)) -> Backend:
    """Collections of four exact shards each, all over the same vectors."""
    served = []
    for name in names:
        per_shard = len(VECTORS) // SHARDS
        channels = []
        for number in range(SHARDS):
            part = ExactIndex(VECTORS[number * per_shard : (number + 1) * per_shard], number * per_shard)
            shard = Shard(ShardSpec(str(number), str(folder)), lambda spec, part=part: part)
            shard.open()
            channels.append(LocalChannel(shard))
        served.append(ServedCollection(name, Generation(len(VECTORS), 4, "l2", Router(name, channels))))
    return Backend(served)


@asynccontextmanager
async def serving(backend: Backend, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app that runs in this event loop."""
    app = create_app(backend, **options)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://velo", timeout=60) as client,
    ):
        yield client


@asynccontextmanager
async def client_of(backend: Backend, **options: Any) -> AsyncIterator[AsyncClient]:
    """velo's client of an app that runs in this event loop."""
    app = create_app(backend)
    async with (
        app.router.lifespan_context(app),
        AsyncClient("http://velo", transport=httpx.ASGITransport(app), **options) as client,
    ):
        yield client


def asked(backend: Backend, method: str, *arguments: Any, client: Any = (), **options: Any) -> Any:
    """What velo's client brings from an app over a backend."""

    async def run() -> Any:
        async with client_of(backend, **dict(client)) as asking:
            return await getattr(asking, method)(*arguments, **options)

    return asyncio.run(run())


def play(
    backend: Backend,
    scene: Callable[[httpx.AsyncClient], Awaitable[None]],
    limits: GatewayLimits | None = None,
) -> None:
    """Run a scene against a served backend."""

    async def run() -> None:
        async with serving(backend, limits=limits) as client:
            await scene(client)

    asyncio.run(run())


def exact(queries: np.ndarray, k: int, passing: np.ndarray | None = None) -> list[list[int]]:
    """Row numbers of the nearest vectors."""
    distances = ((VECTORS[None] - np.atleast_2d(queries)[:, None]) ** 2).sum(axis=2)
    if passing is not None:
        distances[:, ~passing] = np.inf
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return [
        [int(one) for one in row if np.isfinite(distances[place, one])] for place, row in enumerate(order)
    ]


def arrow(**columns: Any) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def rows_in_arrow(rows: np.ndarray) -> bytes:
    """A body of vectors alone."""
    return arrow(vector=pa.array(list(rows)))


def checked(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer that must have this status."""
    assert response.status_code == status, response.text
    msgspec.convert(response.json(), ErrorAnswer)
    error: dict[str, Any] = response.json()["error"]
    return error
