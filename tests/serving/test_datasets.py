"""Datasets of Ray Data: written to an index, and read from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import RAY_MARKS
from velo.errors import EmptyError, IndexExistsError, InvalidArgumentError, NotAnIndexError, UnsupportedError
from velo_serving import read_velo, write_velo

pytestmark = [*RAY_MARKS, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")]

ROWS, DIM = 9_000, 8  # more than two batches
VECTORS = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
QUICK: dict[str, Any] = {"threads": 1, "store_vectors": True, "calibrate": False}


@pytest.fixture
def data(local_ray: None) -> Any:
    from velo_serving.on_ray.actors import ray

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data


def table_of(ids: Any, vectors: Any, year: int) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    return pa.table({"name": ids, "vector": lists, "year": [year] * len(ids)})


def test_a_dataset_is_written_upserted_and_read_back(data: Any, tmp_path: Path) -> None:
    path, names = tmp_path / "things.velo", [f"n{row:05}" for row in range(ROWS)]
    first = data.from_arrow(table_of(names, VECTORS, 2020))
    assert write_velo(first, path, id_column="name", **QUICK) == ROWS
    assert [one.name for one in tmp_path.iterdir()] == ["things.velo"]  # nothing is left beside it
    newer = data.from_arrow(table_of(["n00007", "new"], -VECTORS[:2], 2021))
    assert write_velo(newer, path, id_column="name", mode="upsert", ray_remote_args={"num_cpus": 1}) == 2
    with velo.open(path, threads=1) as index:
        assert len(index) == ROWS + 1
        assert index.search(-VECTORS[0], 1, exact=True).ids.tolist() == ["n00007"]
    rows = read_velo(path, threads=1).take_all()
    assert sorted(row["id"] for row in rows) == [*names, "new"]
    by_id = {row["id"]: row for row in rows}
    assert (by_id["n00007"]["year"], by_id["n00008"]["year"]) == (2021, 2020)
    np.testing.assert_array_equal(by_id["new"]["vector"], -VECTORS[1])
    np.testing.assert_array_equal(by_id["n08999"]["vector"], VECTORS[8999])
    some = read_velo(path, columns=["year"], filter={"year": 2021}, vector_column=None, threads=1)
    assert sorted(row["id"] for row in some.take_all()) == ["n00007", "new"]
    assert set(some.schema().names) == {"id", "year"}


def test_shards_are_read_by_a_task_each_and_tensors_are_written(data: Any, tmp_path: Path) -> None:
    velo.build_collection(tmp_path / "four.velo", VECTORS[:400], shards=4, **QUICK)
    pool = data.TaskPoolStrategy(size=2)
    rows = read_velo(tmp_path / "four.velo", compute=pool, ray_remote_args={"num_cpus": 0.5}, threads=1)
    found = rows.take_all()
    assert sorted(row["id"] for row in found) == list(range(400))
    for row in found:
        np.testing.assert_array_equal(row["vector"], VECTORS[row["id"]])
    tensors = data.from_numpy(VECTORS[:300].astype(np.float64))  # its column is called data
    assert write_velo(tensors, tmp_path / "numbered.velo", vector_column="data", **QUICK) == 300
    with velo.open(tmp_path / "numbered.velo", threads=1) as index:
        assert index.search(VECTORS[9], 1, exact=True).ids.tolist() == [9]


def test_invalid_datasets_and_options_are_refused(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "few.velo"
    few = data.from_arrow(table_of(["a", "b"], VECTORS[:2], 2020))
    with pytest.raises(InvalidArgumentError, match="'append'"):
        write_velo(few, path, mode="append")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="a column of ids"):
        write_velo(few, path, mode="upsert")
    for argument in ("id_column", "vector_column"):
        wrong: dict[str, Any] = {argument: "colour"}
        with pytest.raises(InvalidArgumentError, match="no column 'colour', only name, vector, year") as told:
            write_velo(few, path, **wrong)
        assert told.value.argument == argument
    with pytest.raises(EmptyError):
        write_velo(data.from_arrow(table_of([], VECTORS[:0], 2020)), path, id_column="name")
    with pytest.raises(NotAnIndexError):
        write_velo(few, path, id_column="name", mode="upsert")
    with pytest.raises(NotAnIndexError):
        read_velo(path)
    assert list(tmp_path.iterdir()) == []
    options = QUICK | {"store_vectors": False}
    assert write_velo(few, path, id_column="name", **options) == 2
    with pytest.raises(IndexExistsError):
        write_velo(few, path, id_column="name", **options)
    with pytest.raises(Exception, match="store") as caught:
        read_velo(path, threads=1).take_all()
    assert UnsupportedError.__name__ in repr(caught.value)
