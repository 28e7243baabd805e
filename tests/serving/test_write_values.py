"""What bodies of writes bring to a real index in this process: kept as it is, or refused."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.exact_gateway import ARROW_TYPE, checked, exact_backend, play
from velo_serving.errors import ProtocolError
from velo_serving.local_backend import open_local_backend
from velo_serving.wire.codec import is_compressed, table_of

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


def test_plain_arrow_is_told_from_compressed_and_from_nonsense(random: np.random.Generator) -> None:
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
