"""Metadata: given back as it was given, and refused or reported where it is wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from velo.errors import CorruptIndexError, InvalidArgumentError, VeloError
from velo.filters import col
from velo.filters.compiler import FilterCompiler
from velo.folder.metadata import (
    COLUMNS_FILE,
    POSTINGS_FILE,
    STATISTICS_FILE,
    MetadataStore,
    given_metadata,
    write_metadata,
)


def equal(one: Any, other: Any) -> bool:
    """Equality of tables in which NaN is itself."""
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return False
    pairs = zip(one.columns, other.columns, strict=True)
    return all(
        left.equals(right) or repr(left.to_pylist()) == repr(right.to_pylist()) for left, right in pairs
    )


def reversed_rows(count: int) -> Any:
    return np.arange(count, dtype=np.uint32)[::-1].copy()


def test_every_type_comes_back_as_it_was_given(world: Any) -> None:
    draw = np.random.default_rng(3)
    vertices = draw.integers(0, len(world.rows), 300)
    assert equal(world.store.rows(vertices), world.table.take(pa.array(world.rows[vertices])))
    assert equal(world.store.table(), world.table.take(pa.array(world.rows)))
    some = world.store.rows(vertices, ["brand", "tags"])
    assert some.schema == world.table.select(["brand", "tags"]).schema
    nothing = world.store.rows(np.zeros(0, np.int64))
    assert nothing.num_rows == 0
    assert nothing.schema == world.table.schema


def test_stranger_types_come_back_too(make_world: Any) -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["x", "y"]))
    table = pa.table(
        {
            "view": pa.array(["a", None, "b"], pa.string_view()),
            "list_view": pa.array([["a"], None, []], pa.list_view(pa.string())),
            "fixed": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
            "ordered": pa.array(["a", "b", None]).cast(pa.dictionary(pa.int8(), pa.string(), ordered=False)),
            "number_codes": pa.array([3, None, 3]).dictionary_encode(),
            "runs": runs,
            "beyond": pa.array([[2**64 - 1], [1], None], pa.list_(pa.uint64())),
            "month": pa.array([None, (1, 2, 3), None], pa.month_day_nano_interval()),
            "empty": pa.array([None, None, None], pa.string()),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        },
        metadata={"origin": "here"},
    )
    world = make_world(table)
    back = world.store.table()
    assert back.schema == table.schema  # pyarrow cannot take() all of these itself
    assert back.to_pylist() == [table.to_pylist()[row] for row in world.rows]
    assert world.store.table().schema.metadata == {b"origin": b"here"}
    assert world.passing(col("view") >= "a").tolist() == [True, False, True]
    assert world.passing(col("list_view").contains_any(["a"])).tolist() == [True, False, False]
    assert world.passing(col("number_codes") == 3).tolist() == [True, False, True]
    assert world.passing(col("runs") == "y").tolist() == [False, True, True]
    assert world.passing(col("beyond").contains_all([2**64 - 1])).tolist() == [True, False, False]
    assert world.passing(col("empty").is_null()).all()
    assert not world.passing(col("empty") != "x").any()
    for name in ("fixed", "month", "map"):
        assert world.store.filter_columns[name].native_type is None


def test_extension_types_are_stored_by_what_is_behind_them(make_world: Any) -> None:
    table = pa.table(
        {
            "flag": pa.array([1, 0, None], pa.int8()).cast(pa.int8()),
            "id": pa.array([b"0" * 16] * 3, pa.uuid()),
        }
    )
    table = table.append_column(
        "eight", pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
    )
    world = make_world(table)
    assert equal(world.store.table(), table.take(pa.array(world.rows)))
    assert world.passing(col("eight") == 1).tolist() == [True, False, False]


def test_chunks_and_slices_do_not_matter(make_world: Any, make_table: Any) -> None:
    table = make_table(90, 11)
    pieces = pa.concat_tables([table.slice(0, 10), table.slice(10, 1), table.slice(11, 50), table.slice(61)])
    world = make_world(pieces.slice(5, 80))
    assert equal(world.store.table(), table.slice(5, 80).take(pa.array(world.rows)))
    for condition in (col("tags").contains_any(["ab"]), col("brand") == "cat", col("flag") == True):  # noqa: E712
        name = condition.column
        expected = [
            value is not None
            and ("ab" in value if name == "tags" else value == ("cat" if name == "brand" else True))
            for value in table.slice(5, 80).column(name).to_pylist()
        ]
        assert world.passing(condition).tolist() == expected


@pytest.mark.parametrize("kind", ["table", "batch", "mapping", "parquet", "feather", "stream"])
def test_sources(kind: str, tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
    source: Any = table
    if kind == "batch":
        source = table.to_batches()[0]
    elif kind == "mapping":
        source = {"a": [1, 2, 3], "b": ["x", None, "z"]}
    elif kind == "parquet":
        source = tmp_path / "m.parquet"
        pq.write_table(table, source)
    elif kind == "feather":
        source = str(tmp_path / "m.arrow")
        with pa.OSFile(source, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    elif kind == "stream":

        class Stream:
            def __arrow_c_stream__(self, requested_schema: object = None) -> object:
                return table.__arrow_c_stream__(requested_schema)

        source = Stream()
    given = given_metadata(source, 3)
    assert given.row_count == 3
    assert given.schema.names == ["a", "b"]
    assert write_metadata(tmp_path, given, reversed_rows(3)) == [COLUMNS_FILE, STATISTICS_FILE, POSTINGS_FILE]
    store = MetadataStore(tmp_path / COLUMNS_FILE, 3)
    assert store.rows(np.array([0, 2])).to_pydict() == {"a": [3, 1], "b": ["z", "x"]}
    shard = given_metadata(source, 2, first_row=1)
    assert shard.table().to_pydict() == {"a": [2, 3], "b": [None, "z"]}


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (pa.table({"a": [1, 2]}), "2 rows, 3 are needed"),
        (pa.table({"a": [1, 2, 3, 4]}), "4 rows, 3 are needed"),
        (pa.Table.from_arrays([pa.array([1, 2, 3])] * 2, names=["a", "a"]), "two columns 'a'"),
        (pa.table({}), "0 rows"),
        ({"a": [1, 2, 3], "b": [1]}, "table"),
        (7, "int"),
        ("nowhere.parquet", "nowhere.parquet"),
        ("nowhere.arrow", "nowhere.arrow"),
        (__file__, "test_metadata.py"),
    ],
)
def test_sources_that_are_wrong(source: Any, part: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        given_metadata(source, 3)
    assert part in str(caught.value)
    assert caught.value.argument == "metadata"


def test_text_that_is_not_utf8_names_its_column(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    )
    table = pa.table({"fine": ["x"], "broken": bad})
    with pytest.raises(InvalidArgumentError, match="'broken'"):
        write_metadata(tmp_path, given_metadata(table, 1), reversed_rows(1))
    assert list(tmp_path.iterdir()) == []


def test_statistics(world: Any) -> None:
    found = world.store.statistics
    table = world.table
    assert list(found) == table.schema.names
    for name in ("int32", "uint64", "full"):
        values = [value for value in table.column(name).to_pylist() if value is not None]
        entry = found[name]
        assert (entry["min"], entry["max"]) == (min(values), max(values))
        assert entry["distinct"] == len(set(values))
        assert entry["nulls"] == table.num_rows - len(values)
    words = {word for word in table.column("word").to_pylist() if word is not None}
    assert found["word"]["distinct"] == len(words)
    assert found["word"]["max"] == max(words)
    lists = [tags for tags in table.column("tags").to_pylist() if tags is not None]
    assert found["tags"]["elements"] == sum(map(len, lists))
    assert found["tags"]["longest"] == max(map(len, lists))
    assert found["price"]["stored_as"] is None
    assert np.isfinite([found["f64"]["min"], found["f64"]["max"]]).all()
    assert all(size > 0 for size in world.store.bytes_by_column.values())


def test_damaged_files_are_reported_and_crash_nothing(tmp_path: Path, make_table: Any) -> None:
    table = make_table(40, 5).drop_columns(["raw", "shape", "price"])
    write_metadata(tmp_path, given_metadata(table, 40), reversed_rows(40))
    path = tmp_path / COLUMNS_FILE
    whole = path.read_bytes()
    draw = random.Random(1)
    refused = 0
    for _ in range(60):
        path.unlink()  # the file that an earlier round mapped stays as it is
        path.write_bytes(whole[: draw.randrange(len(whole))])
        with pytest.raises(CorruptIndexError, match=r"columns\.arrow"):
            MetadataStore(path, 40)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 8])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.unlink()
        path.write_bytes(damaged)
        try:
            store = MetadataStore(path, 40)
            for condition in (col("tags").contains_any(["ab"]), col("int32") > 3, col("word") >= "b"):
                assert 0 <= FilterCompiler(40, store).compile(condition).count() <= 40
        except (VeloError, UnicodeDecodeError):
            refused += 1
    assert refused > 5
    with pytest.raises(CorruptIndexError):
        MetadataStore(path, 41)
    (tmp_path / STATISTICS_FILE).write_text("{")
    path.unlink()
    path.write_bytes(whole)
    store = MetadataStore(path, 40)
    with pytest.raises(CorruptIndexError, match=r"columns\.stats"):
        _ = store.statistics


def test_a_format_from_the_future_says_so(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int8())], {b"velo.format": b"2", b"velo.schema": b""})
    with pa.OSFile(str(tmp_path / COLUMNS_FILE), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array([1], pa.int8())], schema=schema))
    with pytest.raises(VeloError, match="format"):
        MetadataStore(tmp_path / COLUMNS_FILE, 1)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3]})
    (tmp_path / STATISTICS_FILE).mkdir()  # a name that cannot be taken
    with pytest.raises(OSError, match="columns"):
        write_metadata(tmp_path, given_metadata(table, 3), reversed_rows(3))
    assert not list(tmp_path.glob("*.part"))


def test_statistics_are_plain_json(world: Any) -> None:
    json.dumps(world.store.statistics, allow_nan=False)
