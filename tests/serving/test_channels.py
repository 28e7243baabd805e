"""What every channel to a shard must do: one in this process, over a socket, or in a test's hands."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.serving.fakes import CommandedChannel, ExactIndex
from velo.errors import CorruptIndexError
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import ShardUnavailableError
from velo_serving.protocol.types import Failure, Hits, SearchRequest, ShardChannel
from velo_serving.routing.local_backend import LocalChannel
from velo_serving.shard.shard import Shard
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.endpoint import Endpoint
from velo_serving.transport.server import ShardServer

VECTORS = np.random.default_rng(5).standard_normal((60, 4)).astype(np.float32)
MOMENT = np.datetime64("2024-02-29T12:00:00.123456789", "ns")


class Index(ExactIndex):
    """An exact index that can be held up, with groups and ranges as plain as they can be."""

    def __init__(self) -> None:
        super().__init__(VECTORS)
        self.hold: Callable[[Any], Awaitable[None]] | None = None
        self.canceled = 0
        self.names = False

    def info(self) -> dict[str, Any]:
        return super().info() | {"uuid": "one"}

    async def search_async(self, queries: Any, k: int = 10, **options: Any) -> Any:
        if self.hold is not None:
            try:
                await self.hold(queries)
            except asyncio.CancelledError:
                self.canceled += 1
                raise
        options.pop("group_size", None)
        group_by = options.pop("group_by", None)
        found = await super().search_async(queries, k, **options)
        if self.names:
            found.ids = np.array(
                [[None if one < 0 else f"Ü{one}" for one in row] for row in found.ids.tolist()], dtype=object
            )
        if group_by is not None:
            values = {"when": MOMENT, "text": "ü", "large": 2**63 + 1, "day": dt.date(2024, 2, 29)}
            found.groups = [[values[group_by], None][:1] for _ in queries]
            found.group_sizes = np.full((len(queries), 1), k)
            found.ids, found.distances = found.ids[:, None, :], found.distances[:, None, :]
        return found

    async def range_search_async(self, queries: Any, radius: float, *, limit: int, **options: Any) -> Any:
        found = await self.search_async(queries, limit, **options)
        inside = found.distances <= radius
        counts = inside.sum(axis=1)
        return SimpleNamespace(
            ids=found.ids[inside],
            distances=found.distances[inside],
            lims=np.concatenate([[0], np.cumsum(counts)]),
            counts=counts,
            limited=counts == limit,
            stats=found.stats,
            metadata=None,
        )


class Place:
    """A shard, its index, and a channel to it."""

    def __init__(self, shard: Shard, index: Index, channel: ShardChannel) -> None:
        self.shard = shard
        self.index = index
        self.channel = channel

    async def ask(self, row: int = 0, k: int = 3, **options: Any) -> Any:
        return await self.channel.submit(SearchRequest(VECTORS[[row]], k, **options), 5.0)


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Place]:
    index = Index()
    shard = Shard(ShardSpec("7", str(folder)), lambda spec: index)
    shard.open()
    server = None
    channel: ShardChannel
    if kind == "local":
        channel = LocalChannel(shard)
    elif kind == "fake":
        channel = fake = CommandedChannel(7)

        async def answer(request: SearchRequest) -> Any:
            return await shard.search(request)

        async def say() -> Any:
            return shard.health()

        fake.answer, fake.say = answer, say
    else:
        server = ShardServer(shard, token="secret", version="")
        places: dict[str, Any] = {
            "unix socket": {"path": str(folder / "7.sock")},
            "tcp": {"host": "127.0.0.1"},
        }[kind]
        channel = SocketChannel("7", at(await server.start(**places)))
    assert (await channel.health()).n == len(VECTORS)
    yield Place(shard, index, channel)
    await channel.close()
    if server is not None:
        await server.close()
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.fixture(params=["local", "unix socket", "tcp", "fake"])
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of channel."""
    return str(request.param)


def same(got: Any, expected: Any) -> None:
    assert isinstance(got, Hits)
    assert got.ids.dtype == expected.ids.dtype
    assert got.ids.tolist() == expected.ids.tolist()
    assert got.distances.dtype == np.float32
    assert np.array_equal(got.distances, expected.distances)
    assert got.counts.tolist() == expected.counts.tolist()
    assert got.metadata == expected.metadata
    assert got.groups == expected.groups
    assert (got.limited is None) == (expected.limited is None)
    if got.limited is not None:
        assert got.limited.tolist() == expected.limited.tolist()
    for name in ("reads", "bytes_read", "shared_reads", "cache_hits"):
        assert getattr(got, name) == getattr(expected, name)


async def test_every_kind_of_answer_arrives_as_the_shard_gave_it(kind: str, tmp_path: Path) -> None:
    requests = [
        SearchRequest(VECTORS[:1], 3),
        SearchRequest(VECTORS[:7], 5, return_metadata=("parity",)),
        SearchRequest(VECTORS[:150], 2, filters=({"parity": 1},)),
        SearchRequest(VECTORS[:2], 80, filters=({"parity": 0}, None), return_metadata=("parity",)),
        SearchRequest(VECTORS[:2], 40, filters=({"parity": {"$lt": 0}},)),
        SearchRequest(VECTORS[:4], 60, radius=2.0),
        *(SearchRequest(VECTORS[:2], 3, group_by=name) for name in ("when", "text", "large", "day")),
    ]

    async with opened(kind, tmp_path) as place:
        for place.index.names in (False, True):
            for request in requests:
                expected = await place.shard.search(request)
                got = await place.channel.submit(request, 5.0)
                if isinstance(expected, Failure):
                    assert got == expected
                else:
                    same(got, expected)


async def test_failures_of_the_shard_arrive_unchanged(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as place:
        failure = await place.ask(filters=({"colour": 1},))
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.fault, failure.argument) == ("UnknownColumnError", "caller", "filter")
        damaged = CorruptIndexError("page 9 is damaged", file="pages.bin", page=9)
        place.index.fail = lambda call: damaged
        failure = await place.ask()
        assert failure == Failure.of(damaged)
        place.index.fail = lambda call: None
        assert isinstance(await place.ask(), Hits)


async def test_each_reply_leaves_when_it_is_ready(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as place:
        gate = asyncio.Event()

        async def hold(queries: Any) -> None:
            if bool((queries == VECTORS[7]).all()):
                await gate.wait()

        place.index.hold = hold
        slow = asyncio.ensure_future(place.ask(7))
        light = await asyncio.wait_for(asyncio.gather(*(place.ask(row) for row in range(5))), 5)
        assert [one.ids[0, 0] for one in light] == list(range(5))
        assert not slow.done()
        gate.set()
        assert (await slow).ids[0, 0] == 7


async def test_a_search_that_is_canceled_ends_at_the_index(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as place:
        holding = asyncio.Event()

        async def hold(queries: Any) -> None:
            holding.set()
            await asyncio.Event().wait()

        place.index.hold = hold
        future = place.channel.submit(SearchRequest(VECTORS[:1], 3), 5.0)
        await holding.wait()
        future.cancel()
        for _ in range(200):
            if place.index.canceled:
                break
            await asyncio.sleep(0.001)
        assert place.index.canceled == 1
        place.index.hold = None
        assert (await place.ask(3)).ids[0, 0] == 3


async def test_health_identifies_the_index(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as place:
        health = await place.channel.health()
        assert health == place.shard.health()
        assert (health.uuid, health.dim, health.metric, health.n) == ("one", 4, "l2", 60)
        assert list(health.details["columns"]) == ["parity"]


async def test_a_shard_without_an_index_is_unavailable(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as place:
        place.shard.close()
        with pytest.raises(ShardUnavailableError, match="no open index"):
            await place.ask()
        failure = (await place.channel.health()).failure
        assert failure is not None
        assert failure.kind == "ShardUnavailableError"


async def test_after_a_reset_health_makes_a_new_way(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as place:
        for _ in range(3):
            place.channel.reset()
            assert (await place.channel.health()).n == 60
            assert (await place.ask(4)).ids[0, 0] == 4


def test_metadata_keeps_its_types(tmp_path: Path) -> None:
    """Over a socket; a table that Arrow wrote is a table that Arrow reads."""
    day = dt.datetime(2024, 2, 29, 12)
    rows = {
        "when": pa.array([day, None], pa.timestamp("us", tz="UTC")),
        "score": pa.array([float("nan"), 1.5]),
        "title": pa.array(["Ü", None]),
        "tags": pa.array([["a", "b"], []]),
        "blob": pa.array([b"\x00\xff", b""]),
        "whole": pa.array([2**63 + 5, 0], pa.uint64()),
    }

    async def run() -> None:
        async with opened("unix socket", tmp_path) as place:
            table = pa.table(rows)

            async def answer(queries: Any, k: int, **options: Any) -> Any:
                return SimpleNamespace(
                    ids=np.array([[1, 2]]),
                    distances=np.zeros((1, 2)),
                    counts=np.array([2]),
                    stats={},
                    metadata=[table],
                )

            place.index.search_async = answer  # type: ignore[method-assign]
            reply = await place.ask(k=2, return_metadata=tuple(rows))
            assert str(reply.metadata[0].to_pylist()) == str(table.to_pylist())  # NaN is not equal to itself

    asyncio.run(run())


async def test_a_host_that_does_not_answer_is_asked_again_soon() -> None:
    """As behind a cable that is pulled: nothing comes back, not even a refusal."""

    loop = asyncio.get_running_loop()
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # the system leaves unanswered what comes after these
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        channel = SocketChannel("0", at(Endpoint("token", host="127.0.0.1", port=full.getsockname()[1])))
        began = loop.time()
        with pytest.raises(ShardUnavailableError, match=r"cannot be reached$") as told:
            await asyncio.wait_for(channel.health(), 20)
        assert "nothing within 0.5 s" in told.value.detail
        assert loop.time() - began < 10
