"""Frames that are broken in every way, and strangers: each is a typed error, and the service goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from tests.long import count
from tests.serving.fakes import ExactIndex
from velo.errors import VeloError
from velo.filters import from_dict
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import (
    FrameTooLargeError,
    ProtocolError,
    ProtocolVersionError,
    ShardUnavailableError,
    WrongTokenError,
)
from velo_serving.protocol.types import Failure, Hits, SearchRequest
from velo_serving.shard.shard import Shard
from velo_serving.transport import frames
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.codec import (
    Hello,
    _Search,
    decode,
    decode_hits,
    decode_replies,
    decode_search,
    encode,
    encode_each,
    encode_hits,
    encode_replies,
    encode_search,
)
from velo_serving.transport.endpoint import Endpoint, abstract_path, this_host
from velo_serving.transport.frames import Frame, FrameReader, frame_start
from velo_serving.transport.server import HELLO_BYTES_MAX, ServerLimits, ShardHost, ShardServer

VECTORS = np.random.default_rng(5).standard_normal((60, 4)).astype(np.float32)


def frame(kind: int, number: int, head: bytes, body: bytes = b"") -> bytes:
    return frame_start(kind, number, len(head), len(body), timeout_us=10**6) + head + body


HELLO = frame(frames.HELLO, 0, encode(Hello("secret")))


def search(number: int, row: int = 0) -> bytes:
    return frame(frames.SEARCH, number, *encode_search(SearchRequest(VECTORS[[row]], 3)))


def each(number: int, rows: list[int]) -> bytes:
    requests = [SearchRequest(VECTORS[[row]], 3) for row in rows]
    return frame(frames.EACH, number, *encode_each(requests))


class Scene:
    """A server, and raw connections to it."""

    def __init__(self, server: ShardServer, endpoint: Endpoint) -> None:
        self.server = server
        self.endpoint = endpoint

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self.endpoint.path is not None
        return await asyncio.open_unix_connection(self.endpoint.path)

    async def tell(self, data: bytes, *, end: bool = False) -> list[Frame]:
        """Send bytes on a new connection; return the frames until the server ends it."""
        reader, writer = await self.connect()
        writer.write(data)
        if end:
            writer.write_eof()
        try:
            told = await asyncio.wait_for(reader.read(), 10)
        except ConnectionResetError:
            told = b""
        writer.close()
        return FrameReader(1 << 20).feed(told)

    async def works(self) -> None:
        channel = SocketChannel("7", at(self.endpoint))
        await channel.health()
        reply = await channel.submit(SearchRequest(VECTORS[[9]], 3), 5.0)
        assert isinstance(reply, Hits)
        assert reply.ids[0, 0] == 9
        await channel.close()


@asynccontextmanager
async def staged(folder: Path, limits: ServerLimits | None = None) -> AsyncIterator[Scene]:
    """A server that still works at the end, and has no peers left."""
    shard = Shard(ShardSpec("7", str(folder)), lambda spec: ExactIndex(VECTORS))
    shard.open()
    server = ShardServer(shard, token="secret", limits=limits)
    stage = Scene(server, await server.start(path=str(folder / "s")))
    yield stage
    await stage.works()
    await server.close()
    assert not server.peers


def failure_of(told: list[Frame]) -> VeloError:
    assert told[-1].kind == frames.REFUSAL
    return decode(told[-1].head, Failure).to_error()


# ---- strangers ----


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for token in ("", "wrong", "secret ", "ß"):
            told = await stage.tell(frame(frames.HELLO, 0, encode(Hello(token))) + search(1))
            assert isinstance(failure_of(told), WrongTokenError)
            assert len(told) == 1
            channel = SocketChannel("7", at(Endpoint(token, this_host(), stage.endpoint.path)))
            with pytest.raises(WrongTokenError, match="token"):
                await channel.health()
        assert isinstance(failure_of(await stage.tell(search(1))), ProtocolError)


async def test_another_version_of_the_protocol_is_named(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        other = bytearray(HELLO)
        other[2] = 9
        error = failure_of(await stage.tell(bytes(other)))
        assert isinstance(error, ProtocolVersionError)
        assert "version 9" in error.message


async def test_unauthenticated_connections_are_limited_in_bytes_and_time(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("velo_serving.transport.server.HELLO_S", 0.1)

    async with staged(tmp_path) as stage:
        claim = frame_start(frames.HELLO, 0, HELLO_BYTES_MAX, 1)
        assert isinstance(failure_of(await stage.tell(claim)), FrameTooLargeError)
        assert await stage.tell(b"") == []  # the server ends it
        assert await stage.tell(HELLO[:10]) == []


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with staged(tmp_path, ServerLimits(connections_max=3)) as stage:
        kept = [await stage.connect() for _ in range(3)]
        for _, writer in kept:
            writer.write(HELLO)
        await asyncio.sleep(0.1)
        error = failure_of(await stage.tell(HELLO))
        assert "3 connections" in error.message
        for _, writer in kept:
            writer.close()
        await asyncio.sleep(0.1)


# ---- broken frames ----


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"GET / HTTP/1.1\r\nHost: velo\r\n\r\n", ProtocolError),
        (frame(77, 1, b""), ProtocolError),
        (frame(frames.REPLY, 1, b""), ProtocolError),
        (frame(frames.WELCOME, 1, b""), ProtocolError),
        (frame(frames.REPLIES, 1, b""), ProtocolError),
        (frame(frames.EACH, 1, b"\xc1"), ProtocolError),
        (each(1, [1, 2])[:-4] + search(3), ProtocolError),
        (frame(frames.EACH, 1, *encode_search(SearchRequest(VECTORS[:0], 3))), ProtocolError),
        (frame(frames.EACH, 1, *encode_search(SearchRequest(VECTORS[:2], 3, exact=True))), ProtocolError),
        (
            frame(frames.EACH, 1, *encode_search(SearchRequest(VECTORS[:2], 3, filters=("parity = 1",)))),
            ProtocolError,
        ),
        (each(frames.NUMBER_MAX, [1, 2]), ProtocolError),
        (frame_start(frames.SEARCH, 1, 1 << 31, 1 << 31), FrameTooLargeError),
        (frame_start(frames.SEARCH, 1, 10, 1 << 20), FrameTooLargeError),
    ],
)
async def test_an_invalid_frame_ends_only_its_connection(
    tmp_path: Path, data: bytes, kind: type[VeloError]
) -> None:
    async with staged(tmp_path, ServerLimits(frame_bytes_max=1 << 16)) as stage:
        beside = SocketChannel("7", at(stage.endpoint))
        await beside.health()
        assert isinstance(failure_of(await stage.tell(HELLO + data)), kind)
        assert isinstance(await beside.submit(SearchRequest(VECTORS[[1]], 3), 5.0), Hits)
        await beside.close()


async def test_a_request_number_in_use_is_refused(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for twice in (
            search(1) + search(1),
            search(2) + each(1, [1, 2, 3]),
            each(1, [1, 2, 3]) + search(3),
            each(1, [1, 2, 3]) + each(3, [4, 5]),
        ):
            error = failure_of(await stage.tell(HELLO + twice))
            assert isinstance(error, ProtocolError)
            assert "under way" in error.message


async def test_batched_requests_are_answered_and_canceled_by_number(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path) as stage:
        reader, writer = await stage.connect()
        writer.write(HELLO + each(10, [4, 5, 6, 7]) + frame(frames.CANCEL, 11, b"") + search(1, 8))
        cut = FrameReader(1 << 20)
        found: dict[int, int] = {}
        while len(found) < 4:
            for one in cut.feed(await asyncio.wait_for(reader.read(1 << 16), 10)):
                if one.kind == frames.REPLY:
                    found[one.request] = int(decode_hits(one.head, one.body).ids[0, 0])
                elif one.kind == frames.REPLIES:
                    for number, hits in zip(*decode_replies(one.head, one.body), strict=True):
                        assert hits.reads == 3  # as of one query
                        found[number] = int(hits.ids[0, 0])
        writer.write(each(10, [9]))  # its number is free again
        told: list[Frame] = []
        while not told:  # the WELCOME waits for the shard and may come last
            arrived = cut.feed(await asyncio.wait_for(reader.read(1 << 16), 10))
            told = [one for one in arrived if one.kind == frames.REPLIES]
        writer.close()
        assert found == {10: 4, 12: 6, 13: 7, 1: 8}
        assert decode_replies(told[0].head, told[0].body)[0] == [10]


async def test_a_batch_above_the_limit_of_a_connection_fails_whole(tmp_path: Path) -> None:
    async with staged(tmp_path, ServerLimits(requests_max=4)) as stage:
        reader, writer = await stage.connect()
        writer.write(HELLO + each(1, [1, 2]) + each(5, [3, 4, 5]))
        cut = FrameReader(1 << 20)
        failed, answered = [], []
        while len(failed) + len(answered) < 5:
            for one in cut.feed(await asyncio.wait_for(reader.read(1 << 16), 10)):
                if one.kind == frames.FAILURE:
                    failed.append(one.request)
                    assert "under way" in decode(one.head, Failure).message
                elif one.kind == frames.REPLIES:
                    answered += decode_replies(one.head, one.body)[0]
        writer.close()
        assert sorted(failed) == [5, 6, 7]
        assert sorted(answered) == [1, 2]


def bad_heads() -> list[tuple[bytes, bytes]]:
    good = SearchRequest(VECTORS[:2], 3)
    head, body = encode_search(good)
    return [
        (b"", body),
        (b"\xc1", body),
        (head[:-3], body),
        (head, body[:-4]),
        (head, b""),
        (head_with(k=0), body),
        (head_with(group_by="a", radius=0.5), body),
        (head_with(group_by="a", group_size=0), body),
        (head_with(rows=-2, dim=-4), body),
        (head_with(filters=["sa", "sb", "sc"]), body),
        (head_with(filters=["x"]), body),
        (head_with(text=["a"]), body),
        (head_with(rows="2"), body),
    ]


def head_with(**changed: Any) -> bytes:
    """The head of a search for two vectors of four numbers, with other fields."""
    fields: dict[str, Any] = dict.fromkeys(_Search.__struct_fields__)
    fields |= {"rows": 2, "dim": 4, "k": 3, "return_vectors": False, "allow_partial": True, "heavy": False}
    fields |= changed
    return encode(list(fields.values()))


def test_a_valid_head_is_read() -> None:
    _, body = encode_search(SearchRequest(VECTORS[:2], 3))
    assert decode_search(head_with(text=["a", "b"], exact=True), body).exact is True


@pytest.mark.parametrize("number", range(len(bad_heads())))
async def test_an_invalid_search_fails_alone(tmp_path: Path, number: int) -> None:
    head, body = bad_heads()[number]
    with pytest.raises(ProtocolError):
        decode_search(head, body)

    async with staged(tmp_path) as stage:
        reader, writer = await stage.connect()
        writer.write(HELLO + frame(frames.SEARCH, 1, head, body) + search(2))
        cut = FrameReader(1 << 20)
        told: list[Frame] = []
        while len(told) < 3:
            told += cut.feed(await asyncio.wait_for(reader.read(1 << 16), 10))
        writer.close()
        kinds = {one.request: one for one in told}
        assert decode(kinds[1].head, Failure).kind == "ProtocolError"
        assert kinds[2].kind == frames.REPLY


async def test_a_connection_that_ends_within_a_frame_leaves_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        whole = HELLO + search(1)
        for length in range(0, len(whole), 7):
            await stage.tell(whole[:length], end=True)


async def test_random_frames_do_no_harm(tmp_path: Path, random: np.random.Generator) -> None:
    whole = HELLO + search(1, 3) + frame(frames.CANCEL, 1, b"") + search(2, 4) + each(3, [1, 2, 3])

    async with staged(tmp_path) as stage:
        for _ in range(count(100, 300)):
            data = bytearray(whole if random.random() < 0.8 else bytes(random.bytes(200)))
            for _ in range(int(random.integers(1, 6))):
                place = int(random.integers(len(data)))
                what = random.integers(4)
                if what == 0:
                    data[place] = int(random.integers(256))
                elif what == 1:
                    del data[place : place + int(random.integers(1, 30))]
                elif what == 2:
                    data[place:place] = random.bytes(int(random.integers(1, 30)))
                else:
                    data[place : place + 4] = struct.pack("<I", int(random.integers(1 << 32)))
                if not data:
                    break
            for one in await stage.tell(bytes(data), end=True):
                assert one.kind in (
                    frames.WELCOME,
                    frames.REFUSAL,
                    frames.REPLY,
                    frames.REPLIES,
                    frames.FAILURE,
                )


def test_frames_are_read_wherever_bytes_are_split(random: np.random.Generator) -> None:
    given = [
        Frame(frames.SEARCH, number, 10**6, bytes(random.bytes(number % 40)), bytes(random.bytes(number * 7)))
        for number in range(200)
    ]
    stream = b"".join(frame(one.kind, one.request, one.head, one.body) for one in given)
    reader = FrameReader(1 << 20)
    told: list[Frame] = []
    place = 0
    while place < len(stream):
        step = int(random.choice([1, 3, 20, 100, 5000]))
        told += reader.feed(stream[place : place + step])
        place += step
    assert told == given
    assert not reader.within_frame


def test_damaged_replies_are_typed_errors(random: np.random.Generator) -> None:
    reply = Hits(
        ids=np.arange(6, dtype=np.int64).reshape(2, 3),
        distances=np.zeros((2, 3), np.float32),
        counts=np.array([3, 1]),
        groups=[[("a", 2), ("b", 1)], [("c", 1)]],
        limited=np.array([True, False]),
    )
    head, pieces = encode_hits(reply)
    body = b"".join(pieces)
    assert decode_hits(head, body).groups == reply.groups
    for _ in range(count(400, 2000)):
        parts = [bytearray(head), bytearray(body)]
        broken = parts[int(random.integers(2))]
        for _ in range(int(random.integers(1, 4))):
            broken[int(random.integers(len(broken)))] = int(random.integers(256))
        try:
            found = decode_hits(bytes(parts[0]), bytes(parts[1]))
        except ProtocolError:
            continue
        assert found.counts.max(initial=0) <= found.distances.shape[1]


def test_damaged_batched_replies_are_typed_errors(random: np.random.Generator) -> None:
    hits = Hits(
        ids=np.arange(6, dtype=np.int64).reshape(2, 3),
        distances=np.zeros((2, 3), np.float32),
        counts=np.array([3, 1]),
    )
    head, pieces = encode_replies([7, 9], hits, [[1, 2], [3, 4], [5, 6], [7, 8]])
    body = b"".join(pieces)
    numbers, parts = decode_replies(head, body)
    assert numbers == [7, 9]
    assert [(one.reads, one.bytes_read, one.shared_reads, one.cache_hits) for one in parts] == [
        (1, 3, 5, 7),
        (2, 4, 6, 8),
    ]
    assert [one.ids.tolist() for one in parts] == [[[0, 1, 2]], [[3, 4, 5]]]
    for _ in range(count(400, 2000)):
        broken = bytearray(head)
        for _ in range(int(random.integers(1, 4))):
            broken[int(random.integers(len(broken)))] = int(random.integers(256))
        try:
            numbers, parts = decode_replies(bytes(broken), body)
        except ProtocolError:
            continue
        assert len(numbers) == len(parts)
        assert all(one.counts.shape == (1,) and one.counts[0] <= one.ids.shape[1] for one in parts)


# ---- shards that misbehave ----


async def impostor(answer: bytes, *, path: str, end: bool = False) -> asyncio.Server:
    """A shard that welcomes, and then says `answer` to the first search."""
    health = encode({"uuid": "u", "n": 1, "dim": 4, "metric": "l2"})

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cut = FrameReader(1 << 20)
        while data := await reader.read(1 << 16):
            for one in cut.feed(data):
                if one.kind == frames.HELLO:
                    writer.write(frame(frames.WELCOME, 0, health))
                elif one.kind in (frames.SEARCH, frames.EACH):
                    writer.write(answer)
                    if end:
                        writer.close()
                        return
        writer.close()

    return await asyncio.start_unix_server(talk, path)


@pytest.mark.parametrize(
    ("answer", "end", "error", "message"),
    [
        (b"\x00" * 64, False, ShardUnavailableError, "begins with"),
        (frame(frames.REPLY, 1, b"\xc1"), False, ProtocolError, "no Hits"),
        (frame(frames.REPLY, 1, encode([1, 3] + [None] * 9), b"123"), False, ProtocolError, "no Hits"),
        (frame(frames.REPLIES, 0, b"\xc1"), False, ShardUnavailableError, "no Replies"),
        (
            frame(frames.REPLIES, 0, encode([[1], [[1]] * 3, [1, 0] + [None] * 9])),
            False,
            ShardUnavailableError,
            "Replies",
        ),
        (frame(frames.REPLY, 1, b"")[:-4], True, ShardUnavailableError, "within a frame"),
        (b"", True, ShardUnavailableError, "ended"),
        (frame_start(frames.REPLY, 1, 1 << 31, 1 << 31), False, ShardUnavailableError, "above the limit"),
        (frame(frames.SEARCH, 1, b""), False, ShardUnavailableError, "no frame of kind 4"),
    ],
)
async def test_a_shard_that_answers_nonsense_is_a_typed_error(
    tmp_path: Path, answer: bytes, end: bool, error: type[VeloError], message: str
) -> None:
    path = str(tmp_path / "i")
    server = await impostor(answer, path=path, end=end)
    lost: list[str] = []
    channel = SocketChannel("7", at(Endpoint("secret", this_host(), path)))
    channel.watch(lost.append)
    await channel.health()
    with pytest.raises(error, match=message):
        await asyncio.wait_for(channel.submit(SearchRequest(VECTORS[:1], 3), 5.0), 10)
    assert bool(lost) == (error is ShardUnavailableError)
    await channel.close()
    server.close()
    await asyncio.sleep(0.05)


async def test_an_unreachable_shard_is_a_typed_error_with_its_address_apart(tmp_path: Path) -> None:
    channel = SocketChannel("7", at(Endpoint("t", this_host(), str(tmp_path / "none"), "127.0.0.1", 1)))
    with pytest.raises(ShardUnavailableError, match=r"cannot be reached$") as told:
        await channel.health()
    assert re.search(r"none.*127\.0\.0\.1:1", told.value.detail)
    with pytest.raises(ShardUnavailableError, match="not connected"):
        await channel.submit(SearchRequest(VECTORS[:1], 3), 1.0)


# ---- what travels ----


def test_filters_in_every_syntax_survive_the_transport() -> None:
    forms: list[Any] = [
        {"year": {"$gte": 2020}, "tag": {"$in": ["a", "b"]}},
        "year >= 2020 AND tag IN ('a', 'b')",
        {"big": {"$lt": 2**80}},
        {"price": {"$gt": 0.1}},
        {"when": {"$gte": dt.datetime(2024, 2, 29, 12, 0, 0, 5)}},
        {"day": dt.date(2024, 2, 29)},
        {"count": {"$in": (np.int64(3), np.int32(4))}},
        None,
    ]
    request = SearchRequest(np.zeros((len(forms), 4), np.float32), 3, tuple(forms))
    told = decode_search(*encode_search(request)).filters
    assert told is not None
    assert told[:4] == tuple(forms[:4])
    assert told[4] == {"when": {"$gte": "2024-02-29T12:00:00.000005"}}
    assert from_dict(told[5]) == from_dict({"day": "2024-02-29"})  # type: ignore[arg-type]
    assert from_dict(told[6]) == from_dict({"count": {"$in": [3, 4]}})  # type: ignore[arg-type]
    assert told[7] is None


def test_a_request_is_encoded_only_once() -> None:
    request = SearchRequest(VECTORS[:3], 3)
    assert encode_search(request) is encode_search(request)


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_shard_in_a_thread_of_its_own(tmp_path: Path, make: Any) -> None:
    shard = Shard(ShardSpec("7", str(tmp_path)), lambda spec: ExactIndex(VECTORS))
    host = ShardHost(ShardServer(shard, token="secret", version="v1"))
    endpoint = host.start(path=abstract_path("7"), host="127.0.0.1")
    elsewhere = dataclasses.replace(endpoint, host_id="another machine")

    async def run() -> None:
        channel = SocketChannel("7", at(elsewhere))
        assert (await channel.health()).version == "v1"
        await channel.close()
        channel = SocketChannel("7", at(endpoint))
        lost: list[str] = []
        channel.watch(lost.append)
        assert (await channel.health()).version == "v1"
        assert isinstance(await channel.submit(SearchRequest(VECTORS[:1], 3), 5.0), Hits)
        await asyncio.to_thread(host.close)
        for _ in range(100):
            if lost:
                break
            await asyncio.sleep(0.01)
        assert "ended" in lost[0]
        await channel.close()

    loop = make()
    loop.run_until_complete(run())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    host.close()
    shard.close()


@pytest.mark.parametrize(
    "values",
    [
        ["a", None, "ö", ""],
        [1, None, -(2**63)],
        [2**63, None, 1],
        [0.5, None, float("inf")],
        [True, None, False],
    ],
    ids=str,
)
def test_groups_of_every_type_survive_the_transport(values: list[Any]) -> None:
    ids = np.arange(len(values), dtype=np.int64)[None, :]
    groups = [[(value, 1) for value in values]]
    hits = Hits(ids=ids, distances=ids.astype(np.float32), counts=np.array([len(values)]), groups=groups)
    head, pieces = encode_hits(hits)
    assert decode_hits(head, b"".join(pieces)).groups == groups
