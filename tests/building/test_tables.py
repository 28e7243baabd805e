"""Vectors, ids and metadata out of one table: Arrow, pandas, polars, a file, or whatever streams Arrow."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import velo
from velo.errors import InvalidArgumentError, LeftOutWarning, UnknownColumnError

ROWS, DIM = 60, 8
VECTORS = np.random.default_rng(3).normal(size=(ROWS, DIM)).astype(np.float32)
IDS = [1000 + 7 * row for row in range(ROWS)]
PRICES = [row / 4 for row in range(ROWS)]
QUICK: dict[str, Any] = {"degree": 8, "threads": 1}


def _arrow() -> pa.Table:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.reshape(-1)), DIM)
    return pa.table({"id": IDS, "vector": vectors, "price": PRICES})


class _Stream:
    """Anything that hands itself over as an Arrow stream, and is nothing else."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return _arrow().__arrow_c_stream__(requested_schema)


def _as_file(write: Callable[[Any, str], None], name: str) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        write(_arrow(), str(folder / name))
        return folder / name

    return made


SOURCES: dict[str, Callable[[Path], Any]] = {
    "arrow": lambda _: _arrow(),
    "batch": lambda _: _arrow().to_batches()[0],
    "pandas": lambda _: pd.DataFrame({"id": IDS, "vector": list(VECTORS), "price": PRICES}),
    "pandas of lists": lambda _: pd.DataFrame({"id": IDS, "vector": VECTORS.tolist(), "price": PRICES}),
    "polars": lambda _: pl.DataFrame({"id": IDS, "vector": VECTORS, "price": PRICES}),
    "polars of lists": lambda _: pl.DataFrame({"id": IDS, "vector": VECTORS.tolist(), "price": PRICES}),
    "stream": lambda _: _Stream(),
    "parquet": _as_file(pq.write_table, "t.parquet"),
    "feather": _as_file(lambda table, path: pyarrow.feather.write_feather(table, path), "t.arrow"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_table_brings_ids_and_metadata(kind: str, tmp_path: Path) -> None:
    given = SOURCES[kind](tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index = velo.build(tmp_path / "i", given, ids_column="id", metadata=True, **QUICK)
    with index:
        assert index.info()["columns"] == ["price"]
        found = index.search(VECTORS[11], 1, return_metadata=True)
        assert found.ids.tolist() == [IDS[11]]
        assert found.metadata.column("price").to_pylist() == [PRICES[11]]


@pytest.mark.parametrize("kind", SOURCES)
def test_columns_that_are_left_out_are_named(kind: str, tmp_path: Path) -> None:
    given = SOURCES[kind](tmp_path)
    with pytest.warns(LeftOutWarning, match="'id', 'price'") as heard:
        velo.build(tmp_path / "i", given, **QUICK).close()
    assert heard[0].filename == __file__
    with pytest.warns(LeftOutWarning, match="leaves out: 'price'"):
        velo.build(tmp_path / "j", given, ids_column="id", **QUICK).close()


def test_arguments_beside_a_table_are_used(tmp_path: Path) -> None:
    metadata = {"id": IDS, "price": PRICES}
    velo.build(tmp_path / "i", _arrow(), metadata=metadata, **QUICK).close()
    pq.write_table(pa.table(metadata), tmp_path / "m.parquet")
    velo.build(tmp_path / "j", _arrow(), metadata=tmp_path / "m.parquet", **QUICK).close()


def test_ids_from_a_column_of_the_metadata(tmp_path: Path) -> None:
    metadata = pd.DataFrame({"key": [f"k{row}" for row in range(ROWS)], "price": PRICES})
    with velo.build(tmp_path / "i", VECTORS, metadata=metadata, ids_column="key", **QUICK) as index:
        assert index.search(VECTORS[3], 1).ids.tolist() == ["k3"]
        assert index.info()["columns"] == ["price"]


def test_polars_as_metadata(tmp_path: Path) -> None:
    with velo.build(tmp_path / "i", VECTORS, metadata=pl.DataFrame({"price": PRICES}), **QUICK) as index:
        assert len(index.search(VECTORS[3], ROWS, filter="price < 1").ids) == ROWS
        assert int(index.search(VECTORS[3], ROWS, filter="price < 1").counts[0]) == 4


def test_one_of_several_columns_of_lists(tmp_path: Path) -> None:
    table = _arrow().append_column("other", _arrow().column("vector"))
    with pytest.raises(InvalidArgumentError, match="column=") as caught:
        velo.build(tmp_path / "i", table, **QUICK)
    assert caught.value.argument == "column"
    with pytest.warns(LeftOutWarning, match="'vector'"):
        velo.build(tmp_path / "i", table, column="other", ids_column="id", **QUICK).close()


def test_a_frame_of_plain_numbers_is_a_matrix(tmp_path: Path) -> None:
    with velo.build(tmp_path / "i", pd.DataFrame(VECTORS), **QUICK) as index:
        assert (index.n, index.dim) == (ROWS, DIM)
    with velo.build(tmp_path / "j", pl.DataFrame(VECTORS), **QUICK) as index:
        assert (index.n, index.dim) == (ROWS, DIM)


def test_a_collection_takes_tables(tmp_path: Path) -> None:
    velo.build_collection(tmp_path / "c", _arrow(), shards=2, ids_column="id", metadata=True, **QUICK)
    with velo.open(tmp_path / "c" / "shard-00001") as shard:
        assert shard.search(VECTORS[ROWS - 1], 1).ids.tolist() == [IDS[-1]]
        assert shard.info()["columns"] == ["price"]


@pytest.mark.parametrize(
    ("vectors", "options", "error", "part"),
    [
        (VECTORS, {"metadata": True}, InvalidArgumentError, "metadata=True"),
        (VECTORS, {"ids_column": "id"}, UnknownColumnError, "no column 'id'"),
        (VECTORS, {"column": "vector"}, InvalidArgumentError, "column"),
        (_arrow(), {"ids_column": "key"}, UnknownColumnError, "'id', 'price'"),
        (_arrow(), {"ids_column": "id", "ids": IDS}, InvalidArgumentError, "ids_column"),
        (_arrow(), {"column": "price"}, InvalidArgumentError, "lists of numbers"),
        ("nowhere.parquet", {}, velo.errors.FormatError, "nowhere"),
    ],
)
def test_unusable_tables_are_refused(
    vectors: Any, options: dict[str, Any], error: type[Exception], part: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=part):
        velo.build(tmp_path / "i", vectors, **options, **QUICK)
    assert not (tmp_path / "i").exists()


def test_columns_that_filters_cannot_look_at_are_named(tmp_path: Path) -> None:
    metadata = pa.table(
        {
            "raw": pa.array([b"x"] * ROWS),
            "pairs": pa.array([[("a", 1)]] * ROWS, pa.map_(pa.string(), pa.int8())),
            "price": pa.array([None] * ROWS, pa.decimal128(9, 2)),
            "shape": pa.array([{"x": 1}] * ROWS),
            "scores": pa.array([[0.5]] * ROWS, pa.list_(pa.float32())),
        }
    )
    with pytest.warns(LeftOutWarning, match=r"'raw' \(binary\), 'pairs' \(map<string, int8>\)$") as heard:
        index = velo.build(tmp_path / "i", VECTORS, metadata=metadata, **QUICK)
    assert len(heard) == 1
    with index:
        assert index.count({"shape.x": 1, "scores": {"$gte": 0.5}, "price": None}) == ROWS
        with pytest.raises(velo.errors.FilterTypeError, match="cannot be filtered on"):
            index.count({"raw": "x"})
