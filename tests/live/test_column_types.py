"""Columns of every Arrow type: refused before anything is written, or given back as they came."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pytest

import velo
from tests.live.rows import DIM, vectors_of
from velo import errors

# Every Arrow type passes through here: the stubs, generic in it, have nothing to check.
pa: Any = pyarrow
pc: Any = pyarrow.compute

_NOON = datetime.datetime(2026, 1, 2, 12)
_LEAVES: dict[Any, list[Any]] = {
    pa.null(): [None],
    pa.bool_(): [True, False, None],
    **{
        pa.type_for_alias(f"{sign}int{bits}"): [1, None, 2**7 - 1]
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    pa.float16(): [np.float16(1.5), None, np.float16(-2)],
    pa.float32(): [1.5, None, -2.0],
    pa.float64(): [0.1, None, 1e300],
    pa.string(): ["a", None, "", "b" * 40],
    pa.large_string(): ["a", None, "b" * 40],
    pa.string_view(): ["a", None, "b" * 40],
    pa.binary(): [b"a", None, b"\xff"],
    pa.large_binary(): [b"a", None, b"\xff"],
    pa.binary_view(): [b"a", None, b"\xff"],
    pa.binary(3): [b"abc", None, b"xyz"],
    pa.date32(): [_NOON.date(), None],
    pa.date64(): [_NOON.date(), None],
    pa.time32("s"): [_NOON.time(), None],
    pa.time64("us"): [_NOON.time(), None],
    pa.timestamp("us"): [_NOON, None],
    pa.timestamp("ns", "Europe/Berlin"): [_NOON.astimezone(datetime.UTC), None],
    pa.duration("ms"): [datetime.timedelta(seconds=3), None],
    pa.month_day_nano_interval(): [pa.MonthDayNano([1, 2, 3]), None],
    pa.decimal32(5, 2): [decimal.Decimal("1.25"), None],
    pa.decimal64(9, 2): [decimal.Decimal("1.25"), None],
    pa.decimal128(20, 2): [decimal.Decimal("1.25"), None],
    pa.decimal256(50, 2): [decimal.Decimal("1.25"), None],
}
#: What no version may begin to refuse.
_TAKEN = [
    *(
        pa.dictionary(pa.int8(), kind)
        for kind in (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.date32())
    ),
    *(pa.struct([("p", pa.dictionary(pa.int32(), kind))]) for kind in (pa.int64(), pa.string())),
    *(pa.run_end_encoded(pa.int32(), kind) for kind in (pa.int64(), pa.string())),
    *(pa.string_view(), pa.list_(pa.string_view()), pa.list_(pa.dictionary(pa.int32(), pa.int64()))),
    *(pa.map_(pa.string(), pa.dictionary(pa.int16(), pa.string())), pa.list_view(pa.int32())),
]
_ROWS = 6


def array_of(values: list[Any], kind: Any) -> Any:
    """Values as an array of a type; Arrow makes not all of them itself."""
    if pa.types.is_dictionary(kind):
        encoded = array_of(values, kind.value_type).dictionary_encode()
        indices = encoded.indices.cast(kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(array_of(values, kind.value_type), kind.run_end_type)
    missing = pa.array([value is None for value in values])
    if pa.types.is_struct(kind):
        fields = [array_of([value and value[one.name] for value in values], one.type) for one in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=missing)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        offsets = pa.array(np.cumsum([0, *(len(value or ()) for value in values)]), pa.int32())
        flat = [one for value in values for one in value or ()]
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(offsets, array_of(flat, kind.value_type), type=kind, mask=missing)
        keys = array_of([key for key, _ in flat], kind.key_type)
        items = array_of([item for _, item in flat], kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=missing)
    return pa.array(values, kind)


def drawn(draw: np.random.Generator, depth: int) -> tuple[Any, list[Any]]:
    """A type and some of its values."""
    if depth == 0:
        kinds = list(_LEAVES)
        kind = kinds[draw.integers(len(kinds))]
        return kind, [_LEAVES[kind][at] for at in draw.integers(len(_LEAVES[kind]), size=_ROWS)]
    inner, values = drawn(draw, depth - 1 if draw.random() < 0.7 else 0)
    gaps = draw.random(_ROWS) < 0.2
    match draw.integers(7):
        case 0:
            return pa.dictionary([pa.int8(), pa.uint16(), pa.int32()][draw.integers(3)], inner), values
        case 1:
            return pa.run_end_encoded(pa.int32(), inner), values
        case 2:
            return pa.struct([("p", inner), ("q", pa.int64())]), [
                None if gap else {"p": value, "q": 7} for gap, value in zip(gaps, values, strict=True)
            ]
        case 3:
            return pa.map_(pa.string(), inner), [
                None if gap else [("k", value)] for gap, value in zip(gaps, values, strict=True)
            ]
        case 4:
            return pa.list_(inner, 2), [
                None if gap else [value] * 2 for gap, value in zip(gaps, values, strict=True)
            ]
        case 5:
            made = [pa.large_list, pa.list_view, pa.large_list_view][draw.integers(3)]
        case _:
            made = pa.list_
    return made(inner), [
        None if gap else [value] * int(draw.integers(3)) for gap, value in zip(gaps, values, strict=True)
    ]


def kinds_and_values(draw: np.random.Generator) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    for depth, count in ((1, 60), (2, 30), (3, 20)):
        found.extend(drawn(draw, depth) for _ in range(count))
    columns: list[tuple[Any, Any]] = [(kind, (values * _ROWS)[:_ROWS]) for kind, values in _LEAVES.items()]
    made = []
    for kind, values in columns + found:
        try:
            made.append((kind, array_of(values, kind)))
        except (pa.ArrowException, TypeError):  # no such array can be made, so none can be given
            continue
    return made


def test_a_column_of_any_type_is_refused_at_once_or_given_back(
    tmp_path: Path, random: np.random.Generator
) -> None:
    given: dict[str, Any] = {}
    for number, (kind, array) in enumerate(kinds_and_values(random)):
        schema = pa.schema([("column", kind)])
        folder = tmp_path / f"{number}.velo"
        try:
            velo.create(folder, dim=DIM, metadata=schema).close()
        except errors.InvalidArgumentError:
            assert not folder.exists(), kind
        else:
            given[f"{number}: {kind}"] = array
    assert len(given) > len(_LEAVES)
    table = pa.table(given)
    values = {name: array.to_pylist() for name, array in given.items()}
    vectors = vectors_of(_ROWS)
    index = velo.create(tmp_path / "all.velo", dim=DIM, metadata=table.schema, threads=1)
    rows = {}

    def check() -> None:
        found = index.get(list(rows))
        for name, kind in zip(table.schema.names, table.schema.types, strict=True):
            assert found[name].type == kind, name
            assert found[name].to_pylist() == [values[name][row] for row in rows.values()], name
        everything = index.rows()
        order = everything["id"].to_pylist()
        for name in given:
            assert everything[name].to_pylist() == [values[name][rows[one]] for one in order], name
        assert index.count(list(rows)) == len(rows)

    def insert(first: int, last: int) -> None:
        ids = np.arange(first, last) + 10
        index.insert(vectors[first:last], ids=ids, metadata=table.slice(first, last - first))
        rows.update(zip(ids.tolist(), range(first, last), strict=True))
        check()

    insert(0, 3)
    insert(3, 4)
    index.update([10], table.slice(2, 1))
    rows[10] = 2
    check()
    index.flush()
    check()
    insert(4, 5)
    index.upsert(vectors[:2], ids=[11, 20], metadata=table.slice(2, 2))
    rows |= {11: 2, 20: 3}
    index.update([13, 20], table.slice(0, 2))
    rows |= {13: 0, 20: 1}
    check()
    index.optimize()
    check()
    insert(5, 6)
    index.close()
    index = velo.open(tmp_path / "all.velo", writable=True)
    check()
    index.close()


@pytest.mark.parametrize("kind", _TAKEN, ids=str)
def test_accepted_column_types(tmp_path: Path, kind: Any) -> None:
    velo.create(tmp_path / "a.velo", dim=DIM, metadata=pa.schema([("a", kind)])).close()


def test_a_built_index_of_such_columns_takes_rows(tmp_path: Path) -> None:
    fields = {
        "category": array_of([1, 2, 1, None], pa.dictionary(pa.int8(), pa.int64())),
        "within": array_of(
            [{"p": "a"}, None] * 2, pa.struct([("p", pa.dictionary(pa.int32(), pa.string()))])
        ),
        "view": pa.array(["a", "b" * 30, None, "c"], pa.string_view()),
    }
    table = pa.table(fields)
    with velo.build(tmp_path / "a.velo", vectors_of(4), metadata=table, store_vectors=True) as built:
        assert built.get([0])["category"].to_pylist() == [1]
    with velo.open(tmp_path / "a.velo", writable=True) as index:
        index.insert(vectors_of(4, 6), metadata=table)
        assert index.count(velo.col("category") == 1) == 4
        index.optimize()
        found = index.get(list(range(8)))
        assert found["within"].to_pylist() == table["within"].to_pylist() * 2
        assert found.schema.field("category").type == table.schema.field("category").type


def test_a_dictionary_that_outgrows_its_indices_gets_wider_ones(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    with velo.create(tmp_path / "a.velo", dim=DIM, metadata=pa.schema([("a", kind)])) as index:
        for start in (0, 100, 200):
            names = [f"x{row}" for row in range(start, start + 100)]
            index.insert(vectors_of(100, start), metadata={"a": names})
        assert index.get([7])["a"].type == kind
        for _ in range(2):
            assert index.get(list(range(300)))["a"].to_pylist() == [f"x{row}" for row in range(300)]
            index.optimize()
        index.insert(vectors_of(1), metadata={"a": ["y"]})
        assert index.get([300, 3])["a"].to_pylist() == ["y", "x3"]


def test_a_type_that_cannot_be_stored_is_refused_where_it_comes(tmp_path: Path) -> None:
    kind = pa.list_(pa.dictionary(pa.int32(), pa.float64()))
    table = pa.table({"a": array_of([[0.5], [0.25]], kind)})
    with pytest.raises(errors.InvalidArgumentError, match=r"'a'.*cannot be stored"):
        velo.build(tmp_path / "a.velo", vectors_of(2), metadata=table)
    with pytest.raises(errors.InvalidArgumentError, match=r"'a'.*cannot be stored"):
        velo.create(tmp_path / "a.velo", dim=DIM, metadata=table.schema)
    assert not (tmp_path / "a.velo").exists()
