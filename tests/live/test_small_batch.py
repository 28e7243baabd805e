"""Metadata of a few rows: the library lays out the record batch that Arrow would have written."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.live.rows import DIM, vectors_of
from velo import errors
from velo.segments.columns import batch_bytes, given_columns, read_batch
from velo.segments.delta import NativeView
from velo.segments.small_batch import SmallBatches

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
KINDS = (*INTEGERS, pa.float32(), pa.float64(), pa.string(), pa.large_string())


def values_of(kind: Any, count: int, dice: random.Random) -> Any:
    if kind in KINDS[-2:]:
        letters = string.ascii_letters + "äß€𝄞 \0"
        return ["".join(dice.choices(letters, k=dice.randint(0, 20))) for _ in range(count)]
    dtype = np.dtype(kind.to_pandas_dtype())
    if dtype.kind == "f":
        values = [dice.choice([0.5, -1.25, float("inf"), 1e-30]) for _ in range(count)]
    else:
        limits = np.iinfo(dtype)
        values = [dice.randint(int(limits.min), int(limits.max)) for _ in range(count)]
    # Arrow takes no list of numbers beyond 63 bits.
    return np.array(values, dtype) if kind == pa.uint64() or dice.random() < 0.5 else values


def test_small_batches_are_read_back_as_those_of_arrow(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    dice = random.Random(seed)
    for number in range(40):
        kinds = dice.choices(KINDS, k=dice.randint(1, 6))
        schema = pa.schema(
            [
                pa.field(f"c{number}", pa.dictionary(pa.int32(), kind) if kind == pa.string() else kind)
                for number, kind in enumerate(kinds)
            ]
        )
        with velo.create(
            tmp_path / str(number), dim=DIM, metadata=schema, threads=1, durability="process"
        ) as index:
            live = index._folders[0].live
            batches = live.shape().small_batches
            assert batches is not None
            for record, count in enumerate((1, 1, dice.randint(1, 32))):
                given = {
                    field.name: values_of(kind, count, dice)
                    for field, kind in zip(schema, kinds, strict=True)
                }
                assert batches.buffers(given, count) is not None
                index.insert(vectors_of(count), metadata=given)
                view = NativeView(live._handle)
                written = view.record(record)
                made = bytes(view.bytes(written.metadata, written.metadata_size))
                usual = batch_bytes(given_columns(given, schema, count), schema)
                assert read_batch(made, schema, count).equals(read_batch(usual, schema, count))
                assert len(made) <= len(usual)


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"n": [1]},
        {"n": [1], "s": ["a"], "t": ["a"]},
        {"n": [1], "t": ["a"]},
        {"n": [1, 2], "s": ["a"]},
        {"n": [1], "s": ["a", "b"]},
        {"n": [128], "s": ["a"]},
        {"n": [None], "s": ["a"]},
        {"n": [True], "s": ["a"]},
        {"n": [1.0], "s": ["a"]},
        {"n": ["1"], "s": ["a"]},
        {"n": [1], "s": [None]},
        {"n": [1], "s": [7]},
        {"n": [1], "s": "a"},
        {"n": [1], "s": ["\ud800"]},
        {"n": 1, "s": ["a"]},
        {"n": np.array([1], np.int16), "s": ["a"]},
        {"n": np.array([1], ">i2").astype(">i8"), "s": ["a"]},
        {"n": np.array([[1]], np.int8), "s": ["a"]},
        {"n": pa.array([1], pa.int8()), "s": ["a"]},
        pa.table({"n": pa.array([1], pa.int8()), "s": ["a"]}),
    ],
)
def test_other_columns_are_left_to_arrow(given: Any) -> None:
    assert SmallBatches(pa.schema([("n", pa.int8()), ("s", pa.string())])).buffers(given, 1) is None


def test_other_types_and_more_rows_are_for_arrow() -> None:
    of_bools = SmallBatches(pa.schema([("b", pa.bool_())]))
    assert of_bools.buffers({"b": [True]}, 1) is None
    of_numbers = SmallBatches(pa.schema([("n", pa.int8())]))
    assert of_numbers.buffers({"n": [1] * 33}, 33) is None
    assert of_numbers.buffers({"n": []}, 0) is None
    assert of_numbers.buffers({"n": np.array([1], ">i8").astype("i1")}, 1) is not None
    assert SmallBatches(pa.schema([("n", pa.int16())])).buffers({"n": np.array([1], ">i2")}, 1) is None


def test_rows_one_by_one(tmp_path: Path) -> None:
    """Written, found by columns, and there after the index was opened again and made a segment of."""
    schema = pa.schema(
        [("name", pa.dictionary(pa.int32(), pa.string())), ("year", pa.int16()), ("price", pa.float32())]
    )
    vectors = vectors_of(40)
    path = tmp_path / "i"

    def check(index: velo.Index) -> None:
        rows = index.get(list(range(40)), columns=["name", "year", "price"])
        assert rows["name"].to_pylist() == [f"n{row % 7}" for row in range(40)]
        assert rows["year"].to_pylist() == [2000 + row for row in range(40)]
        assert rows["price"].to_pylist() == [row / 4 for row in range(40)]
        found = index.search(vectors[9], 6, filter=velo.col("name") == "n2")
        assert sorted(found.ids.tolist()) == list(range(2, 40, 7))

    with velo.create(path, dim=DIM, metadata=schema, threads=1) as index:
        for row in range(40):
            made = {"name": [f"n{row % 7}"], "year": [2000 + row], "price": [row / 4]}
            index.upsert(vectors[row], [row], {"name": ["x"], "year": [1], "price": [0.0]})
            assert index.upsert(vectors[row], [row], made).replaced == 1
            assert index.n == 2 * (row + 1)
        with pytest.raises(errors.InvalidArgumentError, match="'year'"):
            index.upsert(vectors[0], [0], {"name": ["n0"], "year": [40_000], "price": [0.0]})
        with pytest.raises(errors.InvalidArgumentError, match="ids"):
            index.upsert(vectors[0], [2**63], {"name": ["n0"], "year": [1], "price": [0.0]})
        check(index)
    with velo.open(path, writable=True) as index:
        check(index)
        index.flush()
        check(index)
