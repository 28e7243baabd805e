"""Real indexes in this process: string ids, metadata of every type, several collections, damage."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.exact_gateway import asked, serving
from velo.errors import CorruptIndexError, DimensionMismatchError, VeloError
from velo_serving import VectorSearch, open_local_backend, read_collection
from velo_serving.hosting.processes import open_processes
from velo_serving.routing.backend import Backend
from velo_serving.routing.local_backend import open_shards
from velo_serving.shard.shard import Shard

ROWS, DIM = 400, 16


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """A few random vectors, whose neighbors brute force knows."""
    return np.random.default_rng(11).standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def named(vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards with string ids and columns that JSON has no type for."""
    day = dt.datetime(2024, 2, 29, 12, 0, 0)
    table = pa.table(
        {
            "when": pa.array([day + dt.timedelta(days=row) for row in range(ROWS)], pa.timestamp("us")),
            "score": pa.array(
                [float("nan") if row % 7 == 0 else row / 2 for row in range(ROWS)], pa.float64()
            ),
            "title": pa.array([None if row % 5 == 0 else f"Ü{row}" for row in range(ROWS)]),
            "tags": pa.array([["even"] if row % 2 == 0 else ["odd", "x"] for row in range(ROWS)]),
        }
    )
    return velo.build_collection(
        tmp_path_factory.mktemp("named") / "named.velo",
        vectors,
        shards=3,
        ids=[f"row-{row:04d}" for row in range(ROWS)],
        metadata=table,
        threads=1,
    )


def ask(
    backend: Backend,
    *arguments: Any,
    body_format: Any = "json",
    collection: str | None = None,
    **options: Any,
) -> Any:
    """One search through the gateway and the client."""
    client = {"collection": collection, "body_format": body_format}
    return asked(backend, "search", *arguments, client=client, **options)


def nearest(vectors: np.ndarray, queries: np.ndarray, k: int) -> list[list[str]]:
    """Ids by brute force."""
    distances = ((vectors[None] - queries[:, None]) ** 2).sum(axis=2)
    return [
        [f"row-{row:04d}" for row in rows] for rows in np.argsort(distances, axis=1, kind="stable")[:, :k]
    ]


@pytest.mark.parametrize("body_format", ["json", "arrow"])
def test_string_ids_travel_in_every_form(named: Path, vectors: np.ndarray, body_format: Any) -> None:
    result = ask(
        open_local_backend(named, threads=1), vectors[:20], 1, list_size=100, body_format=body_format
    )
    assert result.ids.tolist() == nearest(vectors, vectors[:20], 1)
    few = ask(
        open_local_backend(named, threads=1),
        vectors[:2],
        5,
        filter={"title": "Ü1"},
        list_size=100,
        body_format=body_format,
    )
    assert few.counts.tolist() == [1, 1]
    assert few.ids.tolist() == [["row-0001", None, None, None, None]] * 2
    assert np.isinf(few.distances[:, 1:]).all()


def test_metadata_of_every_type_becomes_json(named: Path, vectors: np.ndarray) -> None:
    columns = ["when", "score", "title", "tags"]
    result = ask(open_local_backend(named, threads=1), vectors[:8], 1, list_size=100, return_metadata=columns)
    assert result.metadata[0].to_pylist() == [
        {"when": "2024-02-29T12:00:00", "score": None, "title": None, "tags": ["even"]}
    ]
    assert result.metadata[3].to_pylist()[0] == {
        "when": "2024-03-03T12:00:00",
        "score": 1.5,
        "title": "Ü3",
        "tags": ["odd", "x"],
    }


def test_vector_search_with_string_ids(named: Path, vectors: np.ndarray) -> None:
    search = VectorSearch(named, k=2, list_size=100, threads=1)
    found = search({"vector": vectors[:3]})
    assert [list(row) for row in found["ids"]] == nearest(vectors, vectors[:3], 2)
    assert pa.array(found["ids"]).type == pa.list_(pa.string())
    search.close()


def test_several_collections_in_one_server(named: Path, vectors: np.ndarray, tmp_path: Path) -> None:
    velo.build(tmp_path / "other.velo", vectors[:50], metric="cosine", threads=1).close()
    paths = [named, tmp_path / "other.velo"]
    assert ask(open_local_backend(paths, threads=1), vectors[0], 1, collection="other").ids.tolist() == [0]
    result = ask(open_local_backend(paths, threads=1), vectors[0], 1, collection="named")
    assert result.ids.tolist() == ["row-0000"]
    assert (result.shards_answered, result.shards_total) == (3, 3)
    with pytest.raises(VeloError, match="named, other"):
        ask(open_local_backend(paths, threads=1), vectors[0], 1)


def test_a_shard_of_another_collection_is_refused(named: Path, vectors: np.ndarray, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "mixed.velo"
    shutil.copytree(named, copy)
    shutil.rmtree(copy / "shard-00001")
    shutil.copytree(copy / "shard-00002", copy / "shard-00001")
    with pytest.raises(CorruptIndexError, match=r"shard 1: .*/shard-00001 holds another index"):
        open_shards(read_collection(copy), threads=1)
    # A process of its own says it in its health, and so does one that starts again.
    entry = read_collection(copy).shards[1]
    shard = Shard(entry.spec(threads=1))
    failure = shard.health().failure
    assert failure is not None
    assert "shard 1: " in failure.message
    shutil.rmtree(copy / "shard-00001")
    shutil.copytree(named / "shard-00001", copy / "shard-00001")
    assert shard.health().failure is None
    shard.close()
    # One that says no uuid is known by its dimensions alone.
    document = json.loads((copy / "collection.json").read_text())
    for one in document["shards"]:
        del one["uuid"]
    (copy / "collection.json").write_text(json.dumps(document))
    shutil.rmtree(copy / "shard-00001")
    velo.build(copy / "shard-00001", vectors[:, :8], threads=1).close()
    with pytest.raises(DimensionMismatchError, match="shard 1 holds 8 dimensions"):
        open_shards(read_collection(copy), threads=1)


async def test_shards_of_one_process_share_its_threads(
    named: Path, vectors: np.ndarray, tmp_path: Path
) -> None:
    cores = len(os.sched_getaffinity(0))
    velo.build(tmp_path / "single.velo", vectors[:50], threads=1).close()
    for path, options, threads in ((named, {}, cores), (named, {"threads": 2}, 2)):
        shards = open_shards(read_collection(path), **options)
        assert {shard.health().details["threads"] for shard in shards} == {threads}
        for shard in shards:
            shard.close()

    async with serving(open_local_backend([named, tmp_path / "single.velo"])) as client:
        told = (await client.get("/v1/collections/single")).json()["shards"]
        assert [one["threads"] for one in told] == [cores]


def test_processes_of_shards_share_the_processors(named: Path) -> None:
    processors = os.sched_getaffinity(0)
    with open_processes(named) as shards:
        processes = shards.shards["named"]
        threads = max(1, len(processors) // len(processes))
        assert {one.spec.threads for one in processes} == {threads}
        bound: Counter[int] = Counter()
        for one in processes:
            tasks = [int(path.name) for path in Path(f"/proc/{one.pid}/task").iterdir()]
            masks = [os.sched_getaffinity(task) for task in tasks]
            assert processors in masks, "threads that are not of the index run anywhere"
            bound.update({processor for mask in masks if len(mask) == 1 for processor in mask})
    if len(processors) > 1:
        assert len(bound) == min(len(processors), threads * len(processes))
        assert max(bound.values()) - min(bound.values()) <= 1


def test_one_damaged_shard_makes_answers_partial(named: Path, vectors: np.ndarray, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "damaged.velo"
    shutil.copytree(named, copy)
    pages = copy / "shard-00002" / "pages.bin"
    with pages.open("r+b") as file:
        head_bytes = 4096  # opening reads it
        file.seek(head_bytes)
        file.write(b"\x55" * (pages.stat().st_size - head_bytes))
    backend = open_local_backend(copy, threads=1)
    result = ask(backend, vectors[:4], 3, list_size=100)
    assert (result.shards_answered, result.shards_total, result.partial) == (2, 3, True)
    assert result.failures[0]["shard"] == "2"
    assert result.failures[0]["type"] == "CorruptIndexError"
    first_of_last = 2 * ROWS // 3
    assert all(int(one.removeprefix("row-")) < first_of_last for row in result.ids for one in row)
