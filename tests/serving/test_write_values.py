"""What bodies of writes bring to a real index in this process: kept as it is, or refused."""

from __future__ import annotations

import asyncio
import io
import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.exact_gateway import ARROW_TYPE, checked, client_of, exact_backend, play, serving
from velo.errors import InvalidArgumentError
from velo_serving import Access
from velo_serving.gateway.bodies import table_of_arrow
from velo_serving.protocol.errors import ProtocolError
from velo_serving.routing.local_backend import open_local_backend
from velo_serving.transport.codec import is_compressed, table_of

SCHEMA = pa.schema(
    [
        ("whole", pa.int32()),
        ("when", pa.timestamp("us")),
        ("tags", pa.list_(pa.int16())),
        ("box", pa.struct([("a", pa.uint8())])),
        ("size", pa.float32()),
    ]
)


def writing(folder: Path, scene: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Run a scene against an index without rows."""
    velo.create(folder / "values.velo", dim=2, metadata=SCHEMA).close()
    play(open_local_backend(folder / "values.velo", writable=True, durability="process", threads=1), scene)


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("whole", 1.0, 1),
        ("whole", 1.5, None),
        ("whole", -0.5, None),
        ("when", 1.5, None),
        ("tags", [2.0, 3], [2, 3]),
        ("tags", [2.5], None),
        ("box", {"a": 7}, {"a": 7}),
        ("box", {"a": 7.5}, None),
        ("size", 0.5, 0.5),
        ("size", 1e39, None),
        ("size", True, None),
    ],
)
def test_a_number_that_a_column_does_not_hold_is_refused(
    tmp_path: Path, column: str, value: Any, kept: Any
) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        row = dict.fromkeys(SCHEMA.names) | {column: value}
        body = {"vectors": [[0.0, 1.0]], "metadata": [row]}
        answer = await client.post("/v1/collections/values/insert", json=body)
        if kept is None:
            error = checked(answer, 422)
            assert (error["type"], error["argument"]) == ("InvalidArgumentError", "metadata")
            assert repr(column) in error["message"]
        else:
            assert answer.status_code == 200, answer.text
        found = (await client.post("/v1/collections/values/rows", json={})).json()["rows"]
        assert [one[column] for one in found] == ([] if kept is None else [kept])

    writing(tmp_path, scene)


def compressed(table: pa.Table, compression: str | None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def by_its_metadata(table: pa.Table) -> bytes:
    """As Arrow 0.17 said that buffers are compressed."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_batch(table.to_batches()[0], custom_metadata={"ARROW:experimental_compression": "ZSTD"})
    return sink.getvalue()


def bombs() -> list[bytes]:
    count = 1 << 16
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2 * count, np.float32)), 2)
    names = pa.array(["x" * 1000, "y"]).dictionary_encode()
    return [
        compressed(pa.table({"vector": vectors}), "zstd"),
        compressed(pa.table({"vector": vectors}), "lz4"),
        compressed(pa.table({"id": names}), "zstd"),
        by_its_metadata(pa.table({"vector": vectors})),
    ]


@pytest.mark.parametrize("number", range(4))
def test_compressed_arrow_is_refused_before_it_unfolds(tmp_path: Path, number: int) -> None:
    bomb = bombs()[number]

    async def refused(client: httpx.AsyncClient, path: str) -> None:
        most = pa.default_memory_pool().max_memory()
        answer = await client.post(path, content=bomb, headers={"Content-Type": ARROW_TYPE})
        error = checked(answer, 415)
        assert (error["type"], "compressed" in error["message"]) == ("UnsupportedMediaTypeError", True)
        assert pa.default_memory_pool().max_memory() == most

    async def searched(client: httpx.AsyncClient) -> None:
        await refused(client, "/v1/search")

    async def written(client: httpx.AsyncClient) -> None:
        for verb in ("insert", "upsert", "update", "delete"):
            await refused(client, f"/v1/collections/values/{verb}")

    play(exact_backend(tmp_path), searched)
    writing(tmp_path, written)
    with pytest.raises(ProtocolError, match="compressed"):  # between gateway and shards
        table_of(bomb)


def shared() -> list[Any]:
    """Columns of a few megabytes that would be a gigabyte if each row were expanded."""
    text, count = "x" * (1 << 21), 1000
    codes = pa.array(np.zeros(count, np.int8))
    views = np.zeros((count, 4), "<i4")
    views[:, 0] = len(text)
    views[:, 1] = int.from_bytes(b"xxxx", "little")
    return [
        pa.DictionaryArray.from_arrays(codes, pa.array([text])),
        pa.DictionaryArray.from_arrays(codes, pa.array([[text]])),
        pa.Array.from_buffers(
            pa.string_view(), count, [None, pa.py_buffer(views.tobytes()), pa.py_buffer(text.encode())]
        ),
        pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array([text])),
        pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(codes, pa.array([text]))], ["a"]),
    ]


@pytest.mark.parametrize("number", range(5))
def test_rows_that_share_a_large_value_are_refused(tmp_path: Path, number: int) -> None:
    column = shared()[number]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4 * len(column), np.float32)), 4)
    types = {"Content-Type": ARROW_TYPE}

    async def searched(client: httpx.AsyncClient) -> None:
        body = compressed(pa.table({"vector": vectors, "filter": column}), None)
        error = checked(await client.post("/v1/search", content=body, headers=types), 413)
        assert (error["type"], error["argument"]) == ("BodyTooLargeError", "filter")
        many = pa.table({"vector": pa.chunked_array([vectors] * 2)})
        checked(await client.post("/v1/search", content=compressed(many, None), headers=types), 413)

    async def written(client: httpx.AsyncClient) -> None:
        body = compressed(pa.table({"id": column}), None)
        answer = await client.post("/v1/collections/values/delete", content=body, headers=types)
        assert checked(answer, 413)["argument"] == "id"

    play(exact_backend(tmp_path), searched)
    writing(tmp_path, written)


def test_rows_may_share_values(tmp_path: Path) -> None:
    """What they share is small."""
    names = pa.array(["a", "b", None]).dictionary_encode()
    column = names.take(pa.array([0, 1, 2, 0] * 10))
    for one in (
        column,
        column.cast(pa.string()).cast(pa.string_view()),
        pa.StructArray.from_arrays([column], ["a"]),
    ):
        table = table_of_arrow(compressed(pa.table({"a": one}), None), 40, 1000)
        assert table.column("a").to_pylist() == one.to_pylist()


def test_plain_compressed_and_damaged_arrow_are_distinguished(random: np.random.Generator) -> None:
    table = pa.table({"d": pa.array(["x", "y"] * 50).dictionary_encode(), "v": [[1.0, 2.0]] * 100})
    plain = compressed(table, None)
    assert not is_compressed(plain)
    assert table_of(plain).equals(table)
    for stream in (compressed(table, "zstd"), plain):
        for _ in range(500):
            damaged = bytearray(stream[: random.integers(1, len(stream) + 1)])
            damaged[random.integers(len(damaged))] = random.integers(256)
            try:
                is_compressed(bytes(damaged))
            except ProtocolError:
                continue


def test_one_id_is_one_row_and_a_name_is_text(tmp_path: Path) -> None:
    async def run() -> None:
        backend = open_local_backend(path, writable=True, durability="process", threads=1)
        async with client_of(backend, collection="named") as client:
            await client.insert(np.eye(2), ["row", "r"])
            assert (await client.get("row")).to_pylist() == [{"id": "row"}]
            assert (await client.get(["r", "o"], unknown="skip")).to_pylist() == [{"id": "r"}]
            for wrong in ("\ud800", 5):
                with pytest.raises(InvalidArgumentError, match="request") as told:
                    await client.upsert(np.eye(2), ["a", "b"], request=wrong)  # type: ignore[arg-type]
                assert told.value.argument == "request"
            assert await client.count() == 2

    path = tmp_path / "named.velo"
    velo.create(path, dim=2).close()
    asyncio.run(run())


@pytest.mark.parametrize("text", ["\\ud800", "\\udfff\\ud800"])
def test_a_name_that_is_no_unicode_is_refused(tmp_path: Path, text: str) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        body = f'{{"vectors": [[0.0, 1.0]], "request_id": "{text}"}}'
        answer = await client.post(
            "/v1/collections/values/insert", content=body, headers={"Content-Type": "application/json"}
        )
        assert checked(answer, 400)["type"] == "MalformedBodyError"
        row = {"vectors": [[0.0, 1.0]], "metadata": [dict.fromkeys(SCHEMA.names)]}
        long = await client.post("/v1/collections/values/insert", json=row | {"request_id": "ü" * 200})
        assert checked(long, 422)["argument"] == "request"

    writing(tmp_path, scene)


async def test_a_device_that_fails_is_no_fault_of_the_request(tmp_path: Path) -> None:
    """A publication for which the system has no descriptor left; what was served still is."""
    velo.build(tmp_path / "one.velo", np.eye(8), threads=1, calibrate=False).close()
    keys = tmp_path / "keys.txt"
    keys.write_text(f"admin {'k' * 20}\n")

    backend = open_local_backend(tmp_path / "one.velo", threads=1)
    async with serving(backend, access=Access(str(keys))) as client:
        client.headers["Authorization"] = f"Bearer {'k' * 20}"
        asked = {"path": str(tmp_path / "one.velo"), "version": "2"}
        await asyncio.to_thread(int)  # so that the thread that reads is there
        free = os.dup(0)
        os.close(free)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
            answer = await client.post("/v1/collections/one/publish", json=asked)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert checked(answer, 503)["type"] == "DeviceError"
        assert "Retry-After" in answer.headers
        answer = await client.post("/v1/collections/one/publish", json=asked)
        assert answer.status_code == 200, answer.text
