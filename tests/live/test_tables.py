"""Rows that come in one table: vectors, ids and metadata, in the words of a build."""

from __future__ import annotations

import subprocess
import sys
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import velo
from tests.live.rows import DIM, vectors_of
from velo import errors

N = 20
VECTORS = vectors_of(N)
IDS = [f"row {row}" for row in range(N)]
SCHEMA = pa.schema({"name": pa.string(), "n": pa.int64()})


def dicts(ids: list[Any] = IDS) -> list[dict[str, Any]]:
    """Rows as they come out of JSON."""
    return [
        {"key": one, "vector": VECTORS[row].tolist(), "name": f"x{row}", "n": row}
        for row, one in enumerate(ids)
    ]


def columns() -> dict[str, Any]:
    return {"key": IDS, "vector": list(VECTORS), "name": [f"x{row}" for row in range(N)], "n": list(range(N))}


TABLES: dict[str, Callable[[], Any]] = {
    "dicts": dicts,
    "dicts of arrays": lambda: [
        one | {"vector": vector} for one, vector in zip(dicts(), VECTORS, strict=True)
    ],
    "pandas": lambda: pd.DataFrame(columns()),
    "polars": lambda: pl.DataFrame(columns()),
    "polars of arrays": lambda: pl.DataFrame(
        columns(), schema_overrides={"vector": pl.Array(pl.Float32, DIM)}
    ),
    "arrow": lambda: pa.table(columns()),
    "batch": lambda: pa.record_batch(columns()),
    "batches": lambda: pa.table(columns()).to_reader(7),
}


@pytest.fixture
def index(tmp_path: Path) -> Any:
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=SCHEMA, threads=1, durability="process") as made:
        yield made


def check(index: velo.Index, ids: list[Any] = IDS) -> None:
    assert index.get(ids)["n"].to_pylist() == list(range(len(ids)))
    assert index.get(ids)["name"].to_pylist() == [f"x{row}" for row in range(len(ids))]
    assert (index.get_vectors(ids) == VECTORS[: len(ids)]).all()


@pytest.mark.parametrize("verb", ["insert", "upsert"])
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_brings_vectors_ids_and_metadata(index: velo.Index, kind: str, verb: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = getattr(index, verb)(TABLES[kind](), ids_column="key", metadata=True)
    assert (done.rows, len(index)) == (N, N)
    check(index)


def test_the_index_numbers_rows_and_metadata_stands_beside(index: velo.Index) -> None:
    table = pa.table(columns())
    done = index.insert(table.select(["vector", "name", "n"]), metadata=True)
    assert done.first_id == 0
    check(index, list(range(N)))
    index.upsert(table.select(["vector"]), range(N), table.select(["name", "n"]), request="again")
    assert index.upsert(table.select(["vector"]), range(N), {"name": "y", "n": 0}, request="again").repeated
    check(index, list(range(N)))


@pytest.mark.parametrize(
    "given",
    [
        pa.table(columns())["vector"],
        pa.array(list(VECTORS), pa.list_(pa.float32(), DIM)),
        pl.Series(VECTORS, dtype=pl.Array(pl.Float32, DIM)),
    ],
    ids=["chunks of lists", "lists of one size", "polars"],
)
def test_vectors_in_a_column_alone(index: velo.Index, tmp_path: Path, given: Any) -> None:
    index.insert(given, IDS, pa.table(columns()).select(["name", "n"]))
    check(index)
    with velo.build(tmp_path / "b.velo", given, store_vectors=True, calibrate=False) as built:
        assert (built.get_vectors(range(N)) == VECTORS).all()


def test_ids_from_a_column_of_the_metadata(index: velo.Index) -> None:
    table = pa.table(columns())
    for given in (VECTORS, VECTORS.tolist()):
        index.upsert(given, metadata=table.select(["key", "name", "n"]), ids_column="key")
        check(index)
    one = {"key": ["lone"], "name": "one", "n": 1}
    assert index.insert(VECTORS[0], metadata=one, ids_column="key").rows == 1
    assert index.contains("lone").all()


def test_dicts_whose_values_differ_in_kind(tmp_path: Path) -> None:
    schema = pa.schema({"n": pa.float64(), "tags": pa.list_(pa.int64())})
    names = [uuid.uuid5(uuid.NAMESPACE_URL, str(row)) for row in range(3)]
    rows = [
        {"key": names[0], "vector": [1, 0, 0], "n": 1},
        {"key": names[1], "vector": [0, 2, 0], "n": 0.5, "tags": [1, 2]},
        {"vector": [0, 0, 3], "key": names[2], "tags": []},
    ]
    with velo.create(tmp_path / "a.velo", dim=3, metadata=schema, threads=1) as index:
        index.insert(rows, column="vector", ids_column="key", metadata=True)
        assert index.get_vectors(names[:3]).tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 3]]
        found = index.get([str(name) for name in names])
        assert found["n"].to_pylist() == [1, 0.5, None]
        assert found["tags"].to_pylist() == [None, [1, 2], []]
        index.upsert([rows[0] | {"vector": [0, 1, 2**40 + 1], "tags": None}], ids_column="key", metadata=True)
        assert index.get_vectors(names[:1]).tolist() == [[0, 1, 2.0**40]]


def test_a_build_takes_dicts_too(tmp_path: Path) -> None:
    with velo.build(
        tmp_path / "b.velo", dicts(), ids_column="key", metadata=True, store_vectors=True, calibrate=False
    ) as built:
        check(built)


@pytest.mark.parametrize("make", [lambda: pa.table(columns()), lambda: pl.DataFrame(columns())])
def test_a_table_without_rows(index: velo.Index, make: Callable[[], Any]) -> None:
    assert index.insert(make()[:0], ids_column="key", metadata=True).rows == 0
    assert len(index) == 0


def test_columns_that_are_left_out_are_named(tmp_path: Path) -> None:
    with velo.create(tmp_path / "bare.velo", dim=DIM, threads=1) as index:
        with pytest.warns(errors.LeftOutWarning, match="leaves out: 'name', 'n'") as heard:
            index.insert(TABLES["pandas"](), ids_column="key")
        assert heard[0].filename == __file__
        with pytest.warns(errors.LeftOutWarning, match="leaves out: 'name', 'n'") as heard:
            index.upsert(dicts(), ids_column="key")
        assert heard[0].filename == __file__
        assert index.contains(IDS).all()


def _changed(row: int, **values: Any) -> list[dict[str, Any]]:
    rows = dicts()
    rows[row] |= values
    return rows


_INVALID, _UNKNOWN = errors.InvalidArgumentError, errors.UnknownColumnError
BAD: list[tuple[Any, dict[str, Any], type[errors.VeloError], str, str]] = [
    (dicts(), {"ids_column": "id"}, _UNKNOWN, "ids_column", "'key', 'name', 'n'"),
    (dicts(), {"ids_column": "key", "ids": IDS}, _INVALID, "ids_column", "do not go together"),
    (dicts(), {"column": "n"}, _INVALID, "column", "no column 'n' of lists of numbers; there are: vector"),
    (_changed(0, other=[1]), {}, _INVALID, "column", "'vector', 'other' are columns of lists"),
    (_changed(3, more=1), {"ids_column": "key"}, _UNKNOWN, "metadata", "no column 'more'"),
    (_changed(3, n="3"), {"ids_column": "key"}, _INVALID, "vectors", "column 'n' cannot be read"),
    (_changed(3, n=1.5), {"ids_column": "key"}, _INVALID, "metadata", "column 'n'"),
    (_changed(3, key=None), {"ids_column": "key"}, _INVALID, "ids", "row 3 is null"),
    (_changed(3, key=IDS[2]), {"ids_column": "key"}, errors.DuplicateIdError, "ids", "'row 2' of row 3"),
    (_changed(3, vector=None), {"ids_column": "key"}, errors.NotFiniteError, "vectors", "row 3 is null"),
    (_changed(3, vector=[1.0]), {"ids_column": "key"}, errors.DimensionMismatchError, "vectors", "row 3"),
    ([*dicts(), 5], {"ids_column": "key"}, _INVALID, "vectors", "row 20 is a int"),
    ([{5: 1}], {}, _INVALID, "vectors", "names that are strings, not 5"),
    ([{"key": "a"}], {"column": "vector"}, _INVALID, "column", "no column 'vector'"),
    (
        pa.table(columns()).drop_columns("n"),
        {"ids_column": "key"},
        _INVALID,
        "metadata",
        "lacks the column 'n'",
    ),
    (VECTORS, {"column": "vector"}, _INVALID, "column", "these vectors are none"),
    (VECTORS, {"ids_column": "key"}, _INVALID, "metadata", "without one"),
    (VECTORS, {"ids_column": "key", "metadata": {"n": 1}}, _UNKNOWN, "ids_column", "there are: 'n'"),
    ("rows.parquet", {"ids_column": "key"}, _INVALID, "vectors", "come from memory"),
]


@pytest.mark.parametrize(("given", "how", "kind", "argument", "part"), BAD, ids=[one[4] for one in BAD])
def test_unusable_tables_change_nothing(
    index: velo.Index,
    given: Any,
    how: dict[str, Any],
    kind: type[errors.VeloError],
    argument: str,
    part: str,
) -> None:
    with pytest.raises(kind, match=part) as raised:
        index.insert(given, **({"metadata": True} | how))
    assert raised.value.argument == argument
    assert index.info()["live"]["sequence"] == 0


def test_no_library_of_frames_has_to_be_there(tmp_path: Path) -> None:
    program = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "polars"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import pyarrow as pa
import velo
with velo.create({str(tmp_path / "a.velo")!r}, dim=2, metadata=pa.schema({{"n": pa.int64()}})) as index:
    rows = [{{"id": 1, "vector": [0.0, 1.0], "n": 1}}]
    index.insert(rows, ids_column="id", metadata=True)
    index.upsert(pa.Table.from_pylist(rows), ids_column="id", metadata=True)
    assert len(index) == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)
