"""Rows without a query: count, get, rows, with ids of both kinds, filters, deleted rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import errors
from velo.testing import synthetic_vectors

ROWS = 300
PRICES = [None if row % 7 == 0 else row / 10 for row in range(ROWS)]
NAMES = [f"k{row:03d}" for row in range(ROWS)]
QUICK: dict[str, Any] = {"degree": 8, "threads": 1}


@pytest.fixture(scope="module", params=["int", "str"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    ids = NAMES if request.param == "str" else [5 * row + 1 for row in range(ROWS)]
    path = tmp_path_factory.mktemp("lookups") / "i"
    metadata = {"price": PRICES, "id": list(range(ROWS))}
    velo.build(path, synthetic_vectors(ROWS, 12, seed=1), ids=ids, metadata=metadata, **QUICK).close()
    return path, ids


@pytest.fixture
def index(built: tuple[Path, list[Any]]) -> Iterator[velo.Index]:
    with velo.open(built[0], threads=1) as opened:
        yield opened


def test_count(index: velo.Index, built: tuple[Path, list[Any]]) -> None:
    ids = built[1]
    above = sum(price is not None and price > 20 for price in PRICES)
    missing = sum(price is None for price in PRICES)
    assert index.count() == ROWS
    assert index.count({"price": {"$gt": 20}}) == above
    assert index.count("price > 20") == above
    assert index.count({"price": {"$not": {"$gt": 20}}}) == ROWS - above
    assert index.count(~(velo.col("price") > 20)) == ROWS - above - missing
    assert index.count(ids[:10]) == 10
    assert index.count(np.arange(ROWS) < 7) == 7
    assert index.count({"$ids": ids[:10], "price": None}) == 2
    assert index.count({"$or": []}) == 0


def test_get(index: velo.Index, built: tuple[Path, list[Any]]) -> None:
    ids = built[1]
    wanted = [ids[9], ids[3], ids[9]]
    table = index.get(wanted)
    assert table.column_names == ["id", "price", "metadata.id"]
    assert table.column("id").to_pylist() == wanted
    assert table.column("price").to_pylist() == [PRICES[9], PRICES[3], PRICES[9]]
    assert table.column("metadata.id").to_pylist() == [9, 3, 9]
    assert index.get(ids[4], columns=["price"]).to_pylist() == [{"id": ids[4], "price": PRICES[4]}]
    assert index.get([]).num_rows == 0
    with pytest.raises(errors.UnknownIdError):
        index.get([ids[0], "nobody" if isinstance(ids[0], str) else -77])
    with pytest.raises(errors.UnknownColumnError):
        index.get(ids[:1], columns=["nothing"])


def test_rows_page_by_page(index: velo.Index, built: tuple[Path, list[Any]]) -> None:
    ids = built[1]
    for condition, expected in ((None, ids), ({"price": {"$lt": 5}}, None)):
        if expected is None:
            expected = [ids[row] for row in range(ROWS) if PRICES[row] is not None and PRICES[row] < 5]
        seen: list[Any] = []
        after = None
        while True:
            page = index.rows(condition, limit=37, after=after)
            seen += page.column("id").to_pylist()
            if page.num_rows < 37:
                break
            after = page["id"][-1]
        assert seen == sorted(expected)
        again = index.rows(condition, limit=ROWS).column("id").to_pylist()
        assert again == seen
    page = index.rows({"price": {"$lt": 5}}, limit=3)
    places = [ids.index(one) for one in page.column("id").to_pylist()]
    assert page.column("price").to_pylist() == [PRICES[place] for place in places]
    assert index.rows(limit=2, columns=["price"]).column_names == ["id", "price"]
    assert index.rows({"$or": []}).num_rows == 0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda index: index.rows(limit=0), errors.InvalidArgumentError),
        (lambda index: index.rows(limit=2**24 + 1), errors.InvalidArgumentError),
        (lambda index: index.rows({"nope": 1}), errors.UnknownColumnError),
        (lambda index: index.rows([{"price": 1}, None]), errors.InvalidArgumentError),
        (lambda index: index.count(3.5), errors.FilterTypeError),
        (lambda index: index.count([None]), errors.InvalidArgumentError),
        (lambda index: index.rows(after=object()), errors.InvalidArgumentError),
        (lambda index: index.get(None), errors.InvalidArgumentError),
    ],
)
def test_what_cannot_be_looked_up(index: velo.Index, call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call(index)


def test_after_close(built: tuple[Path, list[Any]]) -> None:
    index = velo.open(built[0], threads=1)
    index.close()
    for call in (index.count, index.rows, lambda: index.get(built[1][:1])):
        with pytest.raises(errors.ClosedError):
            call()


def test_deleted_rows_are_gone(tmp_path: Path) -> None:
    velo.build(
        tmp_path / "i", synthetic_vectors(50, 8, seed=2), metadata={"x": list(range(50))}, **QUICK
    ).close()
    with velo.open(tmp_path / "i", writable=True, durability="process") as index:
        index.delete([3, 4])
        assert index.count() == 48
        assert index.count({"x": {"$lt": 5}}) == 3
        assert sorted(index.rows({"x": {"$lt": 5}}).column("id").to_pylist()) == [0, 1, 2]
        assert index.rows(limit=50).num_rows == 48
        with pytest.raises(errors.UnknownIdError, match="deleted"):
            index.get([2, 3])
        last = index.rows(limit=5).column("id")[-1].as_py()
        index.delete([last])  # its place is still where the next page begins
        assert index.rows(limit=50, after=last).num_rows == 43


def test_columns_that_do_not_exist_can_be_missing_values(built: tuple[Path, list[Any]]) -> None:
    with velo.open(built[0], threads=1, unknown_columns="missing") as index:
        assert index.count({"nope": {"$ne": 3}}) == ROWS
        assert index.count({"nope": 3}) == 0
        assert (
            int(index.search(np.zeros(12, np.float32), 5, filter={"nope": {"$exists": False}}).counts[0]) == 5
        )
        index.set_metadata({"price": list(range(ROWS))})
        assert index.count({"nope": None}) == ROWS
    with velo.open(built[0], threads=1) as index, pytest.raises(errors.UnknownColumnError):
        index.count({"nope": {"$ne": 3}})
    with pytest.raises(errors.InvalidArgumentError, match="unknown_columns"):
        velo.open(built[0], unknown_columns="maybe")


def test_without_metadata(tmp_path: Path) -> None:
    with velo.build(tmp_path / "i", synthetic_vectors(20, 8, seed=2), **QUICK) as index:
        assert index.rows(limit=3).column_names == ["id"]
        assert index.get([5]).to_pylist() == [{"id": 5}]
        assert isinstance(index.rows(), pa.Table)


def test_get_that_leaves_out_what_is_not_there(index: velo.Index, built: tuple[Path, list[Any]]) -> None:
    ids = built[1]
    nobody = "nobody" if isinstance(ids[0], str) else 10**9
    found = index.get([ids[9], nobody, ids[3], nobody, ids[9]], columns=["price"], unknown="skip")
    assert found.column_names == ["id", "price"]
    assert found["id"].to_pylist() == [ids[9], ids[3], ids[9]]
    assert found == index.get([ids[9], ids[3], ids[9]], columns=["price"])
    assert index.get([nobody], unknown="skip").num_rows == index.get([], unknown="skip").num_rows == 0
    assert index.get(ids[4], unknown="skip")["id"].to_pylist() == [ids[4]]
    with pytest.raises(errors.UnknownIdError):
        index.get([ids[9], nobody])
    with pytest.raises(errors.InvalidArgumentError, match="unknown"):
        index.get(ids[:1], unknown="null")  # type: ignore[arg-type]


def test_get_leaves_out_rows_that_were_deleted(tmp_path: Path) -> None:
    with velo.create(tmp_path / "i", dim=2, metadata=pa.schema({"x": pa.int64()}), threads=1) as index:
        assert index.get(["a"], unknown="skip").num_rows == 0
        index.insert(np.eye(2, dtype=np.float32), ids=["a", "b"], metadata={"x": [1, 2]})
        index.delete(["a"])
        assert index.get(["a", "b"], unknown="skip").to_pylist() == [{"id": "b", "x": 2}]
        index.flush()
        index.delete(["b"])
        assert index.get(["a", "b"], unknown="skip").num_rows == 0


def test_create_for_data_without_a_schema(tmp_path: Path) -> None:
    for unknown_columns, missing in (("missing", 2), ("error", None)):
        path = tmp_path / unknown_columns
        with velo.create(path, dim=2, threads=1, unknown_columns=unknown_columns) as index:  # type: ignore[arg-type]
            index.insert(np.eye(2, dtype=np.float32), ids=["a", "b"])
            if missing is None:
                with pytest.raises(errors.UnknownColumnError):
                    index.count({"year": None})
            else:
                assert index.count({"year": None}) == missing
                index.add_columns({"year": 2020})
                assert index.count({"year": None}) == 0
    with pytest.raises(errors.InvalidArgumentError, match="unknown_columns"):
        velo.create(tmp_path / "x", dim=2, unknown_columns="null")  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


def test_schema(index: velo.Index, tmp_path: Path) -> None:
    assert index.schema.names == index.info()["columns"]
    assert index.schema.field("price").type == index.get([])["price"].type
    given = pa.schema({"when": pa.timestamp("s", "UTC"), "tags": pa.dictionary(pa.int8(), pa.string())})
    with velo.create(tmp_path / "i", dim=2, metadata=given, threads=1) as made:
        assert made.schema == given
        made.add_columns({"stock": pa.int16()})
        assert made.schema == given.append(pa.field("stock", pa.int16()))
        assert made.schema is made.schema
        with velo.open(tmp_path / "i", threads=1, follow=False) as reader:
            made.add_columns({"late": pa.bool_()})
            assert "late" not in reader.schema.names
            assert reader.refresh()
            assert reader.schema == made.schema
    with velo.create(tmp_path / "bare", dim=2, threads=1) as bare:
        assert bare.schema == pa.schema([])
    with pytest.raises(errors.ClosedError):
        _ = bare.schema
