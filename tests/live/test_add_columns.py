"""Columns that come to an index that has rows."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests import child
from tests.live.interrupts import interrupted, places_of
from tests.long import count
from velo.errors import InvalidArgumentError, ReadOnlyError, UnknownColumnError, UnsupportedError

DIM = 6
VECTORS = np.random.default_rng(3).normal(size=(64, DIM)).astype(np.float32)


def rows(start: int, stop: int, **more: Any) -> dict[str, Any]:
    """Rows whose id is their number, as `insert` takes them."""
    metadata = {"n": list(range(start, stop))} | {name: [one] * (stop - start) for name, one in more.items()}
    return {"vectors": VECTORS[start:stop], "ids": list(range(start, stop)), "metadata": metadata}


@pytest.fixture(scope="module", params=["built", "written", "bare"])
def made(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 rows: as built, in two segments and a delta with deleted rows, or built without columns."""
    path: Path = tmp_path_factory.mktemp("columns") / str(request.param)
    how: dict[str, Any] = {"threads": 1, "calibrate": False, "store_vectors": True, "ids": range(40)}
    if request.param == "bare":
        velo.build(path, VECTORS[:40], **how).close()
    elif request.param == "built":
        velo.build(path, VECTORS[:40], metadata={"n": list(range(40))}, **how).close()
    else:
        with velo.create(path, dim=DIM, metadata=pa.schema({"n": pa.int64()}), threads=1) as index:
            for start, stop in ((0, 20), (20, 33), (33, 40)):
                index.insert(**rows(start, stop))
                if stop < 40:
                    index.flush()
            index.upsert(**rows(5, 6))
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "a.velo")
    return tmp_path / "a.velo"


@pytest.fixture
def index(path: Path) -> Iterator[velo.Index]:
    with velo.open(path, writable=True, threads=1) as opened:
        yield opened


def bring(index: velo.Index, one: int, **values: Any) -> None:
    """A row with all columns of the index."""
    columns = index.info()["columns"]
    given = {"n": one, **values}
    index.upsert(VECTORS[one : one + 1], [one], {name: [given[name]] for name in columns})


def check(index: velo.Index) -> None:
    """Rows before 40 were there before the columns, 40 and 41 came with them, 3 was updated."""
    assert index.count({"stock": 7}) == 39
    assert index.count("stock in (1, 2)") == 2
    assert index.count("stock = 3 or color = 'red'") == 2
    assert index.count("color is null") == 40
    assert index.count("NOT (color = 'red')") == 1
    assert index.count("stock != 7 and color is null") == 1
    assert index.count(velo.col("tags").contains_any(["a"])) == 41
    assert index.count(velo.col("tags").length == 2) == 41
    assert index.count(velo.col("tags") == "c") == 1
    table = index.get([0, 3, 22, 39, 40, 41], columns=["color", "stock"])
    assert table["color"].to_pylist() == [None, None, None, None, "red", "blue"]
    assert table["stock"].to_pylist() == [7, 3, 7, 7, 1, 2]
    page = index.rows("stock < 3", columns=True)
    assert page.select(["id", "stock", "tags"]).to_pylist() == [
        {"id": 40, "stock": 1, "tags": ["c"]},
        {"id": 41, "stock": 2, "tags": ["a", "b"]},
    ]
    hits = index.search(VECTORS[[1, 40]], 1, filter="stock > 0", return_metadata=["stock"], exact=True)
    assert hits.ids.tolist() == [[1], [40]]
    assert [one["stock"].to_pylist() for one in hits.metadata] == [[7], [1]]
    few = index.search(VECTORS[40], 5, filter={"color": "red"})
    assert few.ids[few.ids >= 0].tolist() == [40]


def test_old_rows_answer_with_the_value_and_new_ones_with_their_own(index: velo.Index, path: Path) -> None:
    before = index.info()["columns"]
    tags = pa.scalar(["a", "b"], pa.list_(pa.string()))
    index.add_columns({"stock": 7, "tags": tags})
    index.add_columns([pa.field("color", pa.dictionary(pa.int8(), pa.string()), metadata={"unit": "none"})])
    assert index.info()["columns"] == [*before, "stock", "tags", "color"]
    assert index.count({"stock": 7}) == index.count("color is null") == 40
    bring(index, 40, stock=1, tags=["c"], color="red")
    bring(index, 41, stock=2, tags=["a", "b"], color="blue")
    assert index.update([3], {"stock": 3}).rows == 1
    check(index)
    field = index.search(VECTORS[0], 42, return_metadata=["color"]).metadata.schema.field("color")
    assert (field.type, field.metadata) == (pa.dictionary(pa.int8(), pa.string()), {b"unit": b"none"})
    with velo.open(path, threads=1) as reader:
        check(reader)
        index.flush()
        check(index)
        check(reader)
    index.snapshot(path.with_name("copy.velo"))
    index.optimize()
    check(index)
    index.close()
    for folder in (path, path.with_name("copy.velo")):
        assert velo.verify(folder) > 0
        with velo.open(folder, writable=True, threads=1) as again:
            check(again)
            with pytest.raises(InvalidArgumentError, match="lacks the column"):
                again.insert(VECTORS[50:51], [50], {name: [1] for name in [*before, "stock"]})


def test_groups_go_over_old_and_new_rows(index: velo.Index) -> None:
    index.add_columns({"stock": 7})
    bring(index, 40, stock=1)
    found = index.search(VECTORS[0], 3, group_by="stock")
    assert sorted(found.groups) == [1, 7]


def test_updates_by_filter_reach_rows_that_have_the_value(index: velo.Index) -> None:
    index.add_columns({"stock": 7, "sold": pa.int32()})
    assert index.update(filter="stock = 7", metadata={"sold": 1}).rows == 40
    assert index.count("sold = 1 and stock = 7") == 40


@pytest.mark.parametrize(
    ("kind", "value", "condition"),
    [
        (pa.bool_(), True, "x = true"),
        (pa.int8(), -3, "x < 0"),
        (pa.uint64(), 2**63, "x > 5"),
        (pa.float32(), 0.5, "x = 0.5"),
        (pa.float16(), 0.5, "x = 0.5"),
        (pa.decimal128(9, 2), None, "x is null"),
        (pa.large_string(), "é", "x like 'é%'"),
        (pa.string_view(), "b", "x = 'b'"),
        (pa.timestamp("us", "UTC"), 5, "x is not null"),
        (pa.date32(), 5, "x < '2000-01-01'"),
        (pa.struct({"a": pa.int32()}), {"a": 5}, "x.a = 5"),
        (pa.list_(pa.float32()), [0.5], "x = 0.5"),
        (pa.list_(pa.int64()), [1, None], "x = 1"),
        (pa.null(), None, "x is null"),
    ],
    ids=str,
)
def test_a_new_column_of_each_type_is_filtered_and_returned(
    index: velo.Index, kind: Any, value: Any, condition: str
) -> None:
    scalar = pa.scalar(value, kind)
    index.add_columns({"x": scalar})
    assert index.count(condition) == 40
    if not pa.types.is_struct(kind):
        assert index.count("x is null") == (40 if value is None else 0)
    assert index.get([0, 39], columns=["x"])["x"].to_pylist() == [scalar.as_py()] * 2
    assert index.get([39], columns=["x"])["x"].type == kind


def test_a_merge_that_was_under_way_keeps_what_came_meanwhile(
    path: Path, index: velo.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its segment lacks the column; rows that were written since are not in it."""
    from velo.compaction import segment_builder

    build = segment_builder.build_segment
    assert build is not None
    index.update([39], {"n": 39}) if "n" in index.info()["columns"] else index.upsert(VECTORS[39:40], [39])

    def slow(*arguments: Any, **how: Any) -> None:
        if "stock" not in index.info()["columns"]:
            index.add_columns({"stock": 7})
            index.update([1, 39], {"stock": 8})
        build(*arguments, **how)

    monkeypatch.setattr(segment_builder, "build_segment", slow)
    index.optimize()
    assert index.count("stock = 7") == 38
    assert index.get([0, 1, 39], columns=["stock"])["stock"].to_pylist() == [7, 8, 8]
    index.close()
    with velo.open(path, threads=1) as again:
        assert again.count("stock = 8") == 2
    assert velo.verify(path) > 0


def test_a_reader_sees_columns_when_it_refreshes(path: Path, index: velo.Index) -> None:
    with velo.open(path, threads=1, follow=False) as reader:
        before = reader.info()["columns"]
        index.add_columns({"stock": 7})
        assert reader.info()["columns"] == before
        with pytest.raises(UnknownColumnError):
            reader.count("stock = 7")
        assert reader.refresh()
        assert reader.count("stock = 7") == 40
        assert not reader.refresh()
        with pytest.raises(ReadOnlyError, match="writable"):
            reader.add_columns({"more": 7})


def test_a_built_index_takes_new_columns_without_a_writer(made: Path, path: Path) -> None:
    if made.name == "written":
        return  # it is none
    with velo.open(path, threads=1) as index:
        index.add_columns({"stock": 7, "color": pa.string()})
        index.add_columns(pa.schema({"more": pa.int8()}))
        assert index.count("stock = 7 and color is null and more is null") == 40
        with pytest.raises(InvalidArgumentError, match="already") as caught:
            index.add_columns({"stock": 8})
        assert caught.value.argument == "columns"
        index.add_columns({"stock": 8}, overwrite=True)
        assert index.count("stock = 8") == 40
    with velo.open(path, writable=True, threads=1) as index:
        bring(index, 40, stock=1, color="red", more=1)
        assert index.count("stock = 8") == 40


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({}, "names no column"),
        ([], "names no column"),
        (pa.schema([]), "names no column"),
        ({"": 1}, "one character"),
        ({3: 1}, "a name is a str"),
        ([pa.field("x", pa.int8()), pa.field("x", pa.int8())], "two columns 'x'"),
        ({"taken": 1}, "a column 'taken' already"),
        ({"x": None}, "says no type"),
        ({"x": object()}, "no column holds"),
        ({"x": pa.int8(), "y": [1, 2]}, "take two calls"),
        ({"x": pa.dense_union([pa.field("a", pa.int8())])}, "cannot be stored"),
        ([pa.field("x", pa.int8(), nullable=False)], "takes no nulls"),
        ({"x": "a" * (9 << 20)}, "at most"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_bad_columns_are_refused_and_change_nothing(index: velo.Index, columns: Any, match: str) -> None:
    index.add_columns({"taken": 1})
    with pytest.raises(InvalidArgumentError, match=match) as caught:
        index.add_columns(columns)
    assert caught.value.argument == "columns"
    index.add_columns({"x": 1})
    assert index.count("x = 1 and taken = 1") == 40


def test_values_for_each_row_are_refused_in_a_live_index(index: velo.Index) -> None:
    for given in ({"x": list(range(40))}, pa.table({"x": list(range(40))})):
        with pytest.raises(UnsupportedError, match="update"):
            index.add_columns(given)
    for how in ({"overwrite": True}, {"ids_column": "id"}):
        with pytest.raises(InvalidArgumentError) as caught:
            index.add_columns({"x": 1}, **how)
        assert caught.value.argument in how


def test_threads_that_add_and_write_lose_nothing(index: velo.Index) -> None:
    before = len(index.info()["columns"])

    def add(thread: int) -> None:
        for number in range(5):
            index.add_columns({f"c{thread}_{number}": thread})
            index.update([thread], {f"c{thread}_{number}": 100 + number})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert len(index.info()["columns"]) == before + 20
    table = index.get(list(range(5)))
    for thread in range(4):
        for number in range(5):
            values = [thread] * 5
            values[thread] = 100 + number
            assert table[f"c{thread}_{number}"].to_pylist() == values


def test_an_interrupted_call_adds_all_columns_or_none(
    path: Path, tmp_path: Path, random: np.random.Generator
) -> None:
    def add(index: velo.Index) -> None:
        index.add_columns({"stock": 7, "color": "red"})

    shutil.copytree(path, tmp_path / "first")
    with velo.open(tmp_path / "first", writable=True, threads=1) as index:
        places = places_of(lambda: add(index))
    for at in random.choice(places, min(places, count(2, 60, "VELO_TEST_PLACES")), replace=False).tolist():
        copy = tmp_path / f"at-{at}"
        shutil.copytree(path, copy)
        with velo.open(copy, writable=True, threads=1) as index:
            ended = interrupted(at + 1, lambda index=index: add(index))
            there = "stock" in index.info()["columns"]
            assert there or not ended
            if not there:
                add(index)
            bring(index, 40, stock=1, color="blue")
            assert index.count("stock = 7 and color = 'red'") == 40
        with velo.open(copy, threads=1) as index:
            assert index.count("stock = 7 and color = 'red'") == 40
        shutil.rmtree(copy)


#: Adds columns one after the other and says which; each row that it writes has all of them.
CHILD = """
import sys
import numpy as np
import velo

with velo.open(sys.argv[1], writable=True, threads=1) as index:
    print("open", flush=True)
    while True:
        names = [name for name in index.info()["columns"] if name != "n"]
        print("asked", len(names), flush=True)
        index.add_columns({f"c{len(names)}": len(names), f"d{len(names)}": "d"})
        print("done", len(names), flush=True)
        metadata = {name: ["new" if name[0] == "d" else 0] for name in index.info()["columns"]}
        index.upsert(np.ones((1, 6), np.float32), [1000], metadata)
"""


def test_a_killed_process_added_all_columns_of_a_call_or_none(
    path: Path, random: np.random.Generator
) -> None:
    for _ in range(count(1, 12, "VELO_TEST_KILLS")):
        with child.start(CHILD, path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n", "it opens after every kill"
            told = [process.stdout.readline() for _ in range(int(random.integers(1, 12)))]
            time.sleep(float(random.uniform(0, 0.004)))
            process.send_signal(signal.SIGKILL)
            told += process.stdout.readlines()
        told = [line for line in told if line.endswith("\n")]  # the kill may cut the last one
        done = [int(line.split()[1]) for line in told if line.startswith("done")]
        asked = [int(line.split()[1]) for line in told if line.startswith("asked")]
        with velo.open(path, threads=1) as index:
            names = [name for name in index.info()["columns"] if name != "n"]
            assert len(names) in (asked[-1], asked[-1] + 2)
            assert not done or len(names) >= done[-1] + 2, "columns that were acknowledged are lost"
            for name in names:
                assert index.count({name: "d" if name[0] == "d" else int(name[1:])}) in (40, 41)
    assert velo.verify(path) > 0
