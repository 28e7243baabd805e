"""``build_on_ray`` on a real Ray: shards that tasks build, tasks that are killed, and stores of files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import RAY_MARKS
from velo.errors import (
    CorruptIndexError,
    DuplicateIdError,
    IndexExistsError,
    InvalidArgumentError,
    NotFiniteError,
)
from velo.folder.manifest import MANIFEST_FILE
from velo_serving import Cluster, build_on_ray, read_collection
from velo_serving.catalog.locations import checksum_of, stage
from velo_serving.protocol.errors import BuildTaskError, LocationError, PlacementError
from velo_serving.routing.local_backend import open_shards

pytestmark = RAY_MARKS

#: Files that are equal wherever the same rows are built with one thread and one seed.
SAME = ("pages.bin", "codes.bin", "ids.arrow")

OPTIONS: dict[str, Any] = {"threads": 1, "calibrate": False}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process stages shards; those of Ray have a folder of their own."""
    monkeypatch.setenv("VELO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(rows: int, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((rows, dim)).astype(np.float32)


def same_shards(one: Path, other: Path) -> bool:
    names = sorted(entry.name for entry in other.iterdir() if entry.is_dir())
    return all(
        (one / name / file).read_bytes() == (other / name / file).read_bytes()
        for name in names
        for file in SAME
        if (other / name / file).exists()
    )


def killed_when(folder: Path, stage_file: str, kept: list[int]) -> threading.Thread:
    """Kill the process of the task that builds in a folder, once, when its work is there."""

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if (folder / stage_file).exists():
                for entry in Path("/proc").iterdir():
                    if entry.name.isdigit() and _has_open(entry, folder):
                        os.kill(int(entry.name), signal.SIGKILL)
                        kept.append(int(entry.name))
                        return
            time.sleep(0.001)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def _has_open(process: Path, folder: Path) -> bool:
    if int(process.name) == os.getpid():
        return False
    try:
        return any(os.readlink(one).startswith(str(folder)) for one in (process / "fd").iterdir())
    except OSError:
        return False


def test_a_file_is_built_as_one_process_builds_it(local_ray: None, tmp_path: Path) -> None:
    vectors = made(3000)
    np.save(tmp_path / "in.npy", vectors)
    told: list[str] = []
    built = build_on_ray(
        tmp_path / "ray.velo",
        tmp_path / "in.npy",
        shards=2,
        pin="resource:disk-{shard}",
        build_memory="100MiB",
        version="one",
        progress=told.append,
        **OPTIONS,
    )
    alone = velo.build_collection(tmp_path / "alone.velo", tmp_path / "in.npy", shards=2, **OPTIONS)
    assert same_shards(tmp_path / "ray.velo", alone)
    assert (built.n, built.dim, built.metric, built.version) == (3000, 16, "l2", "one")
    assert [str(entry.pin) for entry in built.shards] == ["resource:disk-0", "resource:disk-1"]
    for entry in built.shards:
        assert entry.checksum == checksum_of((Path(entry.path) / MANIFEST_FILE).read_bytes())
        assert entry.uuid
    assert sorted(line.split()[0] for line in told) == ["shard-00000", "shard-00001"]
    with Cluster.start(built, threads=1) as cluster:  # on the nodes that the file names
        assert cluster.search(vectors[[5, 2900]], k=1, list_size=200).ids.tolist() == [[5], [2900]]
    with velo.open(tmp_path / "ray.velo") as opened:
        assert len(opened) == 3000
    with pytest.raises(IndexExistsError, match="already holds a collection"):
        build_on_ray(tmp_path / "ray.velo", vectors, shards=2, **OPTIONS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_tables_and_datasets_bring_ids_and_metadata(local_ray: None, tmp_path: Path) -> None:
    import ray.data

    vectors = made(900, 8)
    table = pa.table(
        {
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8),
            "name": [f"n{row}" for row in range(900)],
            "price": np.arange(900) / 10,
        }
    )
    keywords: dict[str, Any] = {"shards": 3, "ids_column": "name", "metadata": True, **OPTIONS}
    alone = velo.build_collection(tmp_path / "alone.velo", table, **keywords)
    build_on_ray(tmp_path / "table.velo", table, **keywords)
    build_on_ray(tmp_path / "set.velo", ray.data.from_arrow(table), **keywords)
    for path in (tmp_path / "table.velo", tmp_path / "set.velo"):
        assert same_shards(path, alone)
        with velo.open(path) as opened:
            found = opened.search(vectors[700], k=1, filter="price > 60", return_metadata=["price"])
            assert found.ids.tolist() == ["n700"]
            assert found.metadata["price"].to_pylist() == [70.0]

    tensors = ray.data.from_numpy(vectors)  # blocks of a tensor type, and rows that number themselves
    build_on_ray(tmp_path / "tensors.velo", tensors, shards=2, **OPTIONS)
    numbered = velo.build_collection(tmp_path / "numbered.velo", vectors, shards=2, **OPTIONS)
    assert same_shards(tmp_path / "tensors.velo", numbered)

    twice = table.set_column(1, "name", pa.array([f"n{row % 899}" for row in range(900)]))
    with pytest.raises(DuplicateIdError):
        build_on_ray(tmp_path / "twice.velo", ray.data.from_arrow(twice), **keywords)


def test_a_killed_task_resumes_and_finished_shards_are_kept(local_ray: None, tmp_path: Path) -> None:
    vectors = made(12_000, 24)
    np.save(tmp_path / "in.npy", vectors)
    target = tmp_path / "ray.velo"
    keywords: dict[str, Any] = {"shards": 2, "num_cpus": 2, **OPTIONS}  # one task at a time
    killed: list[int] = []
    killer = killed_when(target / "shard-00001", "building", killed)
    build_on_ray(target, tmp_path / "in.npy", **keywords)
    killer.join()
    assert killed, "no task was at work in the second shard"
    alone = velo.build_collection(tmp_path / "alone.velo", tmp_path / "in.npy", shards=2, **OPTIONS)
    assert same_shards(target, alone)

    # The driver died before it wrote collection.json, and one shard is gone: the other one stays.
    (target / "collection.json").unlink()
    shutil.rmtree(target / "shard-00001")
    before = (target / "shard-00000" / MANIFEST_FILE).stat()
    told: list[str] = []
    build_on_ray(target, tmp_path / "in.npy", progress=told.append, **keywords)
    after = (target / "shard-00000" / MANIFEST_FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    # Which of two tasks ends first is Ray's to say.
    assert sorted(one.partition(":")[0] for one in told) == [
        "shard-00000 is there already",
        "shard-00001 is built",
    ]
    assert [one.partition(":")[2] for one in told] == [" 1 of 2", " 2 of 2"]
    assert same_shards(target, alone)

    # Other rows are no rows to keep.
    (target / "collection.json").unlink()
    np.save(tmp_path / "in.npy", vectors[::-1])
    told.clear()
    build_on_ray(target, tmp_path / "in.npy", progress=told.append, **keywords)
    assert all(" is built" in line for line in told), told


@pytest.mark.long(
    guarded_by="tests/serving/test_ray_building.py::test_a_killed_task_resumes_and_finished_shards_are_kept"
)
def test_a_task_that_dies_too_often_leaves_finished_shards(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("velo_serving.on_ray.building.RETRIES", 0)
    np.save(tmp_path / "in.npy", made(12_000, 24))
    target = tmp_path / "ray.velo"
    killed: list[int] = []
    killer = killed_when(target / "shard-00001", "building", killed)
    with pytest.raises(BuildTaskError, match="shard-00001"):
        build_on_ray(target, tmp_path / "in.npy", shards=2, num_cpus=2, **OPTIONS)
    killer.join()
    assert killed
    assert not (target / "collection.json").exists()
    with velo.open(target / "shard-00000") as first:
        assert len(first) == 6000
    told: list[str] = []
    build_on_ray(target, tmp_path / "in.npy", shards=2, num_cpus=2, progress=told.append, **OPTIONS)
    assert "shard-00000 is there already: 1 of 2" in told
    alone = velo.build_collection(tmp_path / "alone.velo", tmp_path / "in.npy", shards=2, **OPTIONS)
    assert same_shards(target, alone)


def test_a_store_takes_shards_and_each_node_stages_and_verifies_them(
    local_ray: None, tmp_path: Path, cache: Path
) -> None:
    vectors = made(1000)
    url = (tmp_path / "store" / "photos.velo").as_uri()
    build_on_ray(url, vectors, shards=2, **OPTIONS)
    collection = read_collection(url)
    assert (collection.name, collection.n) == ("photos", 1000)
    with Cluster.start(url, threads=1) as cluster:
        assert cluster.search(vectors[[990]], k=1, list_size=200).ids.tolist() == [[990]]
    for shard in open_shards(collection, threads=1):  # this process has a cache of its own
        shard.close()
    staged = {entry.name for entry in cache.iterdir() if entry.is_dir()}
    assert staged == {entry.checksum[:32] for entry in collection.shards}
    # A second opening asks the store for nothing.
    shutil.rmtree(tmp_path / "store" / "photos.velo" / "shard-00000")
    for shard in open_shards(collection, threads=1):
        shard.close()
    with pytest.raises(InvalidArgumentError, match="read-only"):
        open_shards(collection, threads=1, writable=True)


def test_damaged_files_of_a_store_are_refused(tmp_path: Path, cache: Path) -> None:
    with velo.build(tmp_path / "one.velo", made(600), **OPTIONS) as index:
        del index
    store = tmp_path / "store"
    shutil.copytree(tmp_path / "one.velo", store / "one.velo")
    url = (store / "one.velo").as_uri()
    with pytest.raises(CorruptIndexError, match="another index"):
        stage(url, checksum="0" * 64)
    pages = store / "one.velo" / "pages.bin"
    whole = pages.read_bytes()
    pages.write_bytes(whole[: len(whole) // 2])  # the store fails halfway
    with pytest.raises(CorruptIndexError, match="is damaged"):
        stage(url)
    pages.unlink()
    with pytest.raises(CorruptIndexError, match="is damaged"):
        stage(url)
    assert [entry for entry in cache.iterdir() if entry.is_dir()] == []
    pages.write_bytes(whole)
    assert velo.verify(stage(url)) > 0
    with pytest.raises(LocationError, match="nothing-here"):
        stage((store / "nothing-here").as_uri())
    with pytest.raises(InvalidArgumentError, match="no place that Arrow knows"):
        stage("gopher://store/one.velo")
    assert read_collection(url).shards[0].checksum == checksum_of(
        (store / "one.velo/manifest.json").read_bytes()
    )


def test_a_shard_is_taken_from_where_it_is_found_first(tmp_path: Path, cache: Path) -> None:
    path = velo.build_collection(tmp_path / "two.velo", made(600), shards=2, **OPTIONS)
    document = json.loads((path / "collection.json").read_bytes())
    shutil.move(path / "shard-00000", tmp_path / "elsewhere")
    document["shards"][0]["locations"] = ["missing", (tmp_path / "elsewhere").as_uri()]
    (path / "collection.json").write_text(json.dumps(document))
    for shard in open_shards(read_collection(path), threads=1):
        shard.close()
    assert len([entry for entry in cache.iterdir() if entry.is_dir()]) == 1


def test_impossible_builds_are_refused_before_they_start(local_ray: None, tmp_path: Path) -> None:
    vectors = made(100)
    target = tmp_path / "no.velo"
    with pytest.raises(PlacementError, match="no node with resource:disk-9"):
        build_on_ray(target, vectors, shards=1, pin="resource:disk-9", start_timeout_s=0.1, **OPTIONS)
    with pytest.raises(PlacementError, match="no node can reserve"):
        build_on_ray(target, vectors, shards=1, build_memory="900GiB", start_timeout_s=0.1, **OPTIONS)
    with pytest.raises(InvalidArgumentError, match="replica"):
        build_on_ray(target, vectors, shards=1, pin="resource:disk-{replica}", **OPTIONS)
    with pytest.raises(InvalidArgumentError, match="101 shards cannot hold 100 vectors"):
        build_on_ray(target, vectors, shards=101, **OPTIONS)
    with pytest.raises(InvalidArgumentError, match="parent folder does not exist"):
        build_on_ray(tmp_path / "a" / "b", vectors, shards=1, **OPTIONS)
    (target / "shard-00000").mkdir(parents=True)
    (target / "shard-00000" / "mine").touch()
    with pytest.raises(IndexExistsError, match="not ours"):
        build_on_ray(target, vectors, shards=1, **OPTIONS)
    assert (target / "shard-00000" / "mine").exists()
    vectors[77, 3] = np.nan
    with pytest.raises(NotFiniteError) as raised:
        build_on_ray(tmp_path / "nan.velo", vectors, shards=2, **OPTIONS)
    assert raised.value.row == 77
    assert not (tmp_path / "nan.velo" / "collection.json").exists()
