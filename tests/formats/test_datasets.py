"""Many Parquet files: folders as of Hugging Face, patterns, lists, data sets of pyarrow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import velo
from velo.errors import FormatError, InvalidArgumentError
from velo.formats import open_vectors

ROWS, DIM = 50, 6
VECTORS = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)
ENDS = (0, 0, 7, 30, ROWS)
QUICK: dict[str, Any] = {"degree": 8, "threads": 1, "calibrate": False, "store_vectors": True}


def table_of(start: int, stop: int, kind: Any = None) -> Any:
    rows = list(range(start, stop))
    vectors = pa.array(VECTORS[start:stop].tolist(), kind or pa.list_(pa.float32()))
    ids = pa.array([f"k{row:02d}" for row in rows], pa.string())
    return pa.table({"id": ids, "emb": vectors, "year": pa.array(rows, pa.int64())})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a data set of Hugging Face: numbered files below data, one of them empty, and others beside."""
    data = tmp_path / "set" / "data"
    data.mkdir(parents=True)
    for number, (start, stop) in enumerate(pairwise(ENDS)):
        pq.write_table(table_of(start, stop), data / f"train-{number:05d}-of-00004.parquet", row_group_size=5)
    (tmp_path / "set" / "README.md").write_text("a card")
    (tmp_path / "set" / ".cache").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "set" / ".cache" / "other.parquet")
    return tmp_path / "set"


def given_in(folder: Path, form: str) -> Any:
    if form == "pattern":
        return str(folder / "data" / "train-*.parquet")
    if form == "deep pattern":
        return folder / "**" / "*.parquet"
    if form == "list":
        return sorted((folder / "data").iterdir())
    return ds.dataset(folder / "data") if form == "data set" else folder


FORMS = ("folder", "pattern", "deep pattern", "list", "data set")


@pytest.mark.parametrize("form", FORMS)
def test_a_build_of_many_files(folder: Path, tmp_path: Path, form: str) -> None:
    given = given_in(folder, form)
    with velo.build(tmp_path / "i", given, ids_column="id", metadata=True, **QUICK) as index:
        assert len(index) == ROWS
        ids = [f"k{row:02d}" for row in range(ROWS)]
        assert index.get(ids)["year"].to_pylist() == list(range(ROWS))
        np.testing.assert_array_equal(index.get_vectors(ids), VECTORS)
        assert index.search(VECTORS[31], k=1).ids[0] == "k31"


@pytest.mark.parametrize("form", FORMS)
def test_an_insert_of_many_files(folder: Path, tmp_path: Path, form: str) -> None:
    with velo.create(tmp_path / "i", dim=DIM, metadata=pa.schema({"year": pa.int64()}), threads=1) as index:
        given = given_in(folder, form)
        if form != "data set":
            given = open_vectors(given) if form != "list" else ds.dataset([str(one) for one in given])
        if form in ("folder", "pattern", "deep pattern"):
            ids = [f"k{row:02d}" for row in range(ROWS)]
            index.insert(given, ids=ids, metadata={"year": range(ROWS)})
        else:
            index.insert(given, ids_column="id", metadata=True)
        assert index.rows({"year": {"$gte": 45}})["id"].to_pylist() == [
            f"k{row:02d}" for row in range(45, 50)
        ]
        np.testing.assert_array_equal(index.get_vectors(["k29", "k30"]), VECTORS[29:31])


def test_rows_are_read_from_the_middle(folder: Path) -> None:
    source = open_vectors(folder)
    assert source.shape == (ROWS, DIM)
    for rows, start, stop in ((3, 5, 33), (50, 0, 50), (1, 29, 31), (10, 49, 99)):
        chunks = list(source.chunks(rows, start, stop))
        assert max(map(len, chunks)) <= rows
        np.testing.assert_array_equal(np.concatenate(chunks), VECTORS[start:stop])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (table_of(0, 2).drop_columns(["year"]), "no column 'year'"),
        (table_of(0, 2, pa.list_(pa.float64())), "'emb' is list<element: double>, not list<element: float>"),
        (table_of(0, 2).append_column("more", [[1, 2]]), "there is a column 'more'"),
        (table_of(0, 2).select(["emb", "id", "year"]), "another order"),
        (None, "not a whole Parquet file"),
    ],
)
def test_files_that_do_not_fit(folder: Path, tmp_path: Path, other: Any, said: str) -> None:
    path = folder / "data" / "train-00009.parquet"
    if other is None:
        path.write_bytes(b"PAR1 and no more")
    else:
        pq.write_table(other, path)
    with pytest.raises(FormatError, match=said) as caught:
        velo.build(tmp_path / "i", folder, ids_column="id", metadata=True, **QUICK)
    assert caught.value.file == str(path)
    assert not (tmp_path / "i").exists()


def test_a_row_of_another_length_is_named_with_its_file(folder: Path, tmp_path: Path) -> None:
    vectors = pa.array([[1.0] * (DIM + 1)], pa.list_(pa.float32()))
    path = folder / "data" / "train-00009.parquet"
    pq.write_table(pa.table({"id": ["x"], "emb": vectors, "year": [1]}), path)
    with pytest.raises(velo.errors.DimensionMismatchError, match=r"train-00009.*row 0 has 7 elements"):
        velo.build(tmp_path / "i", folder, ids_column="id", metadata=True, **QUICK)


def test_paths_that_name_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for given in (tmp_path / "empty", tmp_path / "*.parquet", str(tmp_path / "empty" / "**" / "x-?.parquet")):
        with pytest.raises(InvalidArgumentError, match="there is no Parquet file"):
            velo.build(tmp_path / "i", given)
        with pytest.raises(InvalidArgumentError, match="there is no Parquet file"):
            open_vectors(given)
    with pytest.raises(InvalidArgumentError, match="is no Parquet file"):
        velo.build(tmp_path / "i", ["a.npy", "b.parquet"])
    with pytest.raises(FormatError, match=r"nothing\.parquet"):
        velo.build(tmp_path / "i", ["nothing.parquet"])
