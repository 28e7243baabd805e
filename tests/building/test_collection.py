"""A collection of shards: what a build makes, what it leaves where it fails, whose ids are whose."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.testing import synthetic_metadata, synthetic_vectors

QUICK: dict[str, Any] = {"degree": 16, "links_kept": 16, "build_list_size": 40, "threads": 1}


def rows_of(n: int) -> np.ndarray:
    return synthetic_vectors(n, 24, seed=5)


def test_a_collection_of_shards(tmp_path: Path) -> None:
    rows, table = rows_of(1000), synthetic_metadata(1000)
    told: list[int] = []
    path = velo.build_collection(
        tmp_path / "c",
        rows,
        shards=3,
        metadata=table,
        progress=lambda done, total: told.append(done),  # type: ignore[arg-type,return-value]
        **QUICK,
    )
    assert path == tmp_path / "c"
    assert told == sorted(told)
    assert told[-1] == 1000
    document = json.loads((path / "collection.json").read_text())
    assert (document["n"], document["dim"], document["metric"]) == (1000, 24, "l2")
    assert sum(shard["rows"] for shard in document["shards"]) == 1000
    found: list[tuple[float, int]] = []
    for shard in document["shards"]:
        with velo.open(path / shard["path"]) as index:
            result = index.search(rows[700], k=5, list_size=200, return_metadata=["label"])
            assert (
                result.metadata.column("label").to_pylist()
                == table.column("label").take(result.ids).to_pylist()
            )
            assert (
                (result.ids >= shard["first_row"]) & (result.ids < shard["first_row"] + shard["rows"])
            ).all()
            found += zip(result.distances.tolist(), result.ids.tolist(), strict=True)
            mask = np.zeros(shard["rows"], bool)
            mask[3] = True
            assert index.search(rows[0], k=2, filter=mask).ids.tolist() == [shard["first_row"] + 3, -1]
    assert sorted(found)[0][1] == 700
    with velo.open(path, threads=1) as whole:
        assert len(whole) == 1000
    assert sorted(os.listdir(path)) == ["collection.json", "shard-00000", "shard-00001", "shard-00002"]


def test_a_shard_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    """Shards of one size, whatever was written to them since; a copy of a shard itself is welcome."""
    rows = rows_of(900)
    path = velo.build_collection(tmp_path / "c", rows, shards=3, store_vectors=True, calibrate=False, **QUICK)
    names = [path / f"shard-0000{number}" for number in range(3)]

    def refused(number: int) -> None:
        with pytest.raises(errors.CorruptIndexError, match=f"shard {number}: .*holds another index"):
            velo.open(path)

    def exchange(number: int, other: Path) -> None:
        shutil.rmtree(names[number])
        shutil.copytree(other, names[number])

    kept = shutil.copytree(names[2], tmp_path / "kept")
    exchange(2, names[1])
    refused(2)
    exchange(2, kept)
    for number in (0, 1):
        with velo.open(names[number], writable=True, threads=1) as index:
            index.delete(list(range(300 * number, 300 * number + 5)))
            index.optimize()
            assert index.info()["live"]["parts"]
            if number == 0:
                index.snapshot(tmp_path / "snapshot")
    with velo.open(path, threads=1) as whole:
        assert len(whole) == 890
    exchange(0, tmp_path / "snapshot")
    with velo.open(path, threads=1) as whole:
        assert len(whole) == 890
    exchange(1, names[0])
    refused(1)


@pytest.mark.parametrize("outside", ["../other", "a/../../other", "/tmp", "", "."])
def test_a_shard_outside_of_its_collection_is_refused(tmp_path: Path, outside: str) -> None:
    velo.build(tmp_path / "other", rows_of(40), calibrate=False, **QUICK).close()
    path = velo.build_collection(tmp_path / "c", rows_of(40), shards=1, calibrate=False, **QUICK)
    document = json.loads((path / "collection.json").read_text())
    document["shards"][0]["path"] = outside
    (path / "collection.json").write_text(json.dumps(document))
    with pytest.raises(errors.CorruptIndexError, match="names a shard outside"):
        velo.open(path)


def test_a_collection_that_fails_leaves_nothing(tmp_path: Path) -> None:
    rows = rows_of(1000)
    rows[900] = np.nan
    with pytest.raises(errors.NotFiniteError):
        velo.build_collection(tmp_path / "c", rows, shards=3, **QUICK)
    assert not (tmp_path / "c").exists()
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build_collection(tmp_path / "c", rows[:2], shards=3, **QUICK)
    assert caught.value.argument == "shards"
    velo.build_collection(tmp_path / "c", rows[:300], shards=2, **QUICK)
    with pytest.raises(errors.IndexExistsError):
        velo.build_collection(tmp_path / "c", rows[:300], shards=2, **QUICK)
    velo.build_collection(tmp_path / "c", rows[:400], shards=4, overwrite=True, **QUICK)
    assert json.loads((tmp_path / "c" / "collection.json").read_text())["n"] == 400
    assert os.listdir(tmp_path) == ["c"]


def test_ids_of_a_collection(tmp_path: Path) -> None:
    rows, ids = rows_of(100), [f"v{number}" for number in range(100)]
    velo.build_collection(tmp_path / "c", rows, shards=2, ids=ids, **QUICK)
    with velo.open(tmp_path / "c" / "shard-00001") as index:
        assert index.search(rows[99], k=1).ids.tolist() == ["v99"]
    ids[99] = "v0"
    with pytest.raises(errors.DuplicateIdError, match="row 99"):
        velo.build_collection(tmp_path / "d", rows, shards=2, ids=ids, **QUICK)
    assert not (tmp_path / "d").exists()
