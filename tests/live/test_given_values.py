"""Values that are given for columns: what becomes what, and one value for all rows."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.live.rows import DIM, vectors_of
from velo import errors

_DAY = datetime.datetime(2026, 1, 2)


def schema_of(kind: Any) -> pa.Schema:
    return pa.schema([("a", kind)])


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        (pa.float32(), [0.1], float(np.float32(0.1))),
        (pa.float32(), np.array([0.1]), float(np.float32(0.1))),
        (pa.float16(), np.array([0.1], np.float32), float(np.float16(0.1))),
        (pa.float16(), [0.1], float(np.float16(0.1))),
        (pa.float32(), [float("inf")], float("inf")),
        (pa.float32(), [None], None),
        (pa.float64(), [2], 2.0),
        (pa.int8(), np.array([5], np.uint64), 5),
        (pa.int64(), [2.0], 2),
        (pa.timestamp("us"), ["2026-01-02"], _DAY),
        (pa.timestamp("s"), [_DAY], _DAY),
        (pa.date32(), [_DAY], _DAY.date()),
        (pa.decimal128(5, 2), ["1.25"], decimal.Decimal("1.25")),
        (pa.dictionary(pa.int8(), pa.int64()), [7], 7),
        (pa.list_(pa.float32()), [[0.1]], [float(np.float32(0.1))]),
        (pa.struct([("x", pa.float32())]), [{"x": 0.5}], {"x": 0.5}),
    ],
)
def test_values_that_convert(tmp_path: Path, kind: Any, given: Any, stored: Any) -> None:
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=schema_of(kind), durability="process") as index:
        index.insert(vectors_of(1), ids=[1], metadata={"a": given})
        assert index.get([1])["a"].to_pylist() == [stored]
        index.update([1], {"a": given})
        assert index.get([1])["a"].to_pylist() == [stored]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.int64(), [1.5]),
        (pa.int64(), ["2"]),
        (pa.int64(), [True]),
        (pa.int64(), np.array([True])),
        (pa.float32(), ["0.5"]),
        (pa.float32(), [False]),
        (pa.float32(), [2**24 + 1]),
        (pa.float32(), [1e300]),
        (pa.float16(), np.array([1e5], np.float32)),
        (pa.int8(), [200]),
        (pa.bool_(), [1]),
        (pa.bool_(), ["true"]),
        (pa.string(), [5]),
        (pa.string(), [True]),
        (pa.date32(), [_DAY + datetime.timedelta(hours=1)]),
        (pa.timestamp("s"), [_DAY + datetime.timedelta(microseconds=1)]),
        (pa.list_(pa.int64()), [[1.5]]),
        (pa.list_(pa.int64()), [["2"]]),
        (pa.list_(pa.string()), ["abc"]),
        (pa.struct([("x", pa.int64())]), [{"x": "2"}]),
        (pa.dictionary(pa.int8(), pa.int64()), ["7"]),
    ],
)
def test_values_that_would_become_others_are_refused(tmp_path: Path, kind: Any, given: Any) -> None:
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=schema_of(kind), durability="process") as index:
        for write in (index.insert, index.upsert):
            with pytest.raises(errors.InvalidArgumentError, match="'a'"):
                write(vectors_of(1), ids=[1], metadata={"a": given})
        assert len(index) == 0
        index.insert(vectors_of(1), ids=[1], metadata={"a": [None]})
        with pytest.raises(errors.InvalidArgumentError, match="'a'"):
            index.update([1], {"a": given})
        assert index.get([1])["a"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.string(), "attic"),
        (pa.string(), None),
        (pa.large_string(), np.str_("attic")),
        (pa.binary(), b"attic"),
        (pa.int64(), 7),
        (pa.int32(), np.int64(7)),
        (pa.float32(), 0.5),
        (pa.float64(), np.array(0.5)),
        (pa.bool_(), True),
        (pa.timestamp("us"), _DAY),
        (pa.date32(), _DAY.date()),
        (pa.duration("s"), datetime.timedelta(seconds=3)),
        (pa.decimal128(5, 2), decimal.Decimal("1.25")),
        (pa.struct([("x", pa.int64())]), {"x": 1}),
        (pa.string(), pa.scalar("attic")),
        (pa.list_(pa.string()), pa.scalar(["a", "b"])),
    ],
)
def test_one_value_is_that_of_every_row(tmp_path: Path, kind: Any, given: Any) -> None:
    plain = (
        given.as_py() if isinstance(given, pa.Scalar) else given.item() if hasattr(given, "item") else given
    )
    schema = pa.schema([("a", kind), ("n", pa.int64())])
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=schema, durability="process") as index:
        ids = list(range(5))
        index.insert(vectors_of(5), ids=ids, metadata={"a": given, "n": ids})
        index.upsert(vectors_of(5), ids=range(5, 10), metadata={"n": 3, "a": given})
        assert index.get(range(10))["a"].to_pylist() == [plain] * 10
        assert index.get(range(10))["n"].to_pylist() == [*ids, *[3] * 5]
        index.insert(vectors_of(5), ids=range(10, 15), metadata={"a": [None] * 5, "n": ids})
        index.update(range(10, 15), {"a": given})
        assert index.get(range(10, 15))["a"].to_pylist() == [plain] * 5
        index.update(10, {"a": given})


def test_text_is_not_cut_into_letters(tmp_path: Path) -> None:
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=schema_of(pa.string())) as index:
        index.insert(vectors_of(5), metadata={"a": "attic"})
        assert index.count({"a": "attic"}) == 5
    with velo.build(tmp_path / "b.velo", vectors_of(5), metadata={"a": "attic"}, calibrate=False) as built:
        assert built.count({"a": "attic"}) == 5
