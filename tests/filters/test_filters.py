"""Expressions, dicts and what is wrong with some of them."""

from __future__ import annotations

import datetime as dt
import decimal
import gc
import json
import math
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from velo import filters
from velo.errors import FilterError, FilterTypeError, UnknownColumnError, VeloError
from velo.filters import (
    And,
    Compare,
    Contains,
    IsIn,
    IsNull,
    Not,
    Or,
    col,
    from_dict,
    from_json,
    ids,
    mask,
    to_dict,
)
from velo.filters.bind import Binder
from velo.filters.compiler import FilterCompiler
from velo.filters.program import program_of

# ---- the tree


def test_operators_make_the_tree() -> None:
    a, b, c = col("a"), col("b"), col("c")
    assert (a == 1) == Compare("a", "eq", 1)
    assert (a != 1) == Compare("a", "ne", 1)
    assert (1 < a) == Compare("a", "gt", 1)  # noqa: SIM300
    assert ((a < 1) & (b < 2) & (c < 3)) == And((a < 1, b < 2, c < 3))
    assert ((a < 1) | (b < 2) | (c < 3)) == Or((a < 1, b < 2, c < 3))
    assert ~~(a < 1) == (a < 1)
    assert a.not_null() == a.is_valid() == Not(IsNull("a"))
    assert (a & ~b) == And((Compare("a", "eq", True), Not(Compare("b", "eq", True))))
    assert a.isin({3}) == IsIn("a", (3,))
    assert a.isin(np.array([1, 2])) == a.isin(pa.array([1, 2])) == a.isin(range(1, 3)) == IsIn("a", (1, 2))


def test_trees_that_differ_in_type_alone_differ() -> None:
    assert (col("a") == 1) != (col("a") == True)  # noqa: E712
    assert (col("a") == 1) != (col("a") == 1.0)
    assert len({col("a") == 1, col("a") == 1, col("a") == 1.0}) == 2


def test_and_of_python_is_refused_with_advice() -> None:
    with pytest.raises(FilterTypeError, match=r"write & \| ~"):
        (col("a") > 1) and (col("b") > 1)
    with pytest.raises(FilterTypeError, match="between"):
        1 < col("a") < 3  # noqa: B015
    with pytest.raises(TypeError):
        not col("a")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.str_("x"), "x"),
        (np.bool_(True), True),
        (decimal.Decimal("3"), 3),
        (decimal.Decimal("0.5"), 0.5),
        (pa.scalar(7), 7),
        (np.datetime64("2020-01-01"), np.datetime64("2020-01-01")),
    ],
)
def test_values_become_plain(value: Any, kept: Any) -> None:
    made = col("a") == value
    assert isinstance(made, Compare)
    assert made.value == kept
    assert type(made.value) is type(kept)


@pytest.mark.parametrize(
    ("value", "error", "part"),
    [
        (None, FilterTypeError, "is_null"),
        (math.nan, FilterError, "NaN"),
        (np.float32("nan"), FilterError, "NaN"),
        (np.datetime64("NaT", "s"), FilterError, "NaT"),
        ([1], FilterTypeError, "list"),
        (b"x", FilterTypeError, "bytes"),
        (object(), FilterTypeError, "object"),
        ("\ud800", FilterError, "UTF-8"),
        (1j, FilterTypeError, "complex"),
    ],
)
def test_values_that_compare_with_nothing(value: Any, error: type[Exception], part: str) -> None:
    for make in (col("x").__ge__, lambda v: col("x").isin([1, v]), lambda v: col("x").between(v, 3)):
        with pytest.raises(error, match=part) as caught:
            make(value)
        assert "x" in str(caught.value)
    if not isinstance(value, list) and value is not None:
        with pytest.raises(error, match=part) as caught:
            from_dict({"year": {"$gte": value}})
        assert "$.year.$gte" in str(caught.value)


# ---- dicts


def test_dicts_read_as_they_should() -> None:
    year, tags, brand = col("year"), col("tags"), col("brand")
    pairs = [
        ({"year": 2020}, year == 2020),
        ({"year": {"$gte": 2020, "$lt": 2024}}, (year >= 2020) & (year < 2024)),
        ({"year": 1, "brand": "x"}, (year == 1) & (brand == "x")),
        ({"$or": [{"year": 1}, {"brand": {"$ne": "x"}}]}, (year == 1) | (brand == "x").is_not_true()),
        ({"$nor": [{"year": 1}, {"brand": "x"}]}, ((year == 1) | (brand == "x")).is_not_true()),
        ({"$not": {"year": 1}}, (year == 1).is_not_true()),
        ({"year": {"$not": {"$gt": 3}}}, (year > 3).is_not_true()),
        ({"year": {"$in": [1, 2]}}, year.isin([1, 2])),
        ({"year": {"$nin": [1, 2]}}, year.isin([1, 2]).is_not_true()),
        ({"year": {"$in": [1, None]}}, year.isin([1]) | year.is_null()),
        ({"year": {"$nin": [None, 1]}}, (year.isin([1]) | year.is_null()).is_not_true()),
        ({"year": {"$in": [None]}}, year.is_null()),
        ({"tags": "a"}, tags == "a"),
        ({"tags": {"$size": 2}}, tags.length == 2),
        ({"tags": {"$size": {"$gte": 2, "$ne": 4}}}, (tags.length >= 2) & (tags.length == 4).is_not_true()),
        ({"brand": {"$like": "%a_"}}, brand.like("%a_")),
        ({"brand": {"$ilike": "%A%"}}, brand.ilike("%A%")),
        ({"$ids": [1, 2], "year": 1}, ids([1, 2]) & (year == 1)),
        ({"year": {"$between": [1, 2]}}, year.between(1, 2)),
        ({"tags": {"$all": ["a", "b"]}}, tags.contains_all(["a", "b"])),
        ({"tags": {"$any": ["a", "b"]}}, tags.contains_any(["a", "b"])),
        ({"brand": {"$starts_with": "ac"}}, brand.starts_with("ac")),
        ({"year": {"$exists": True}}, year.is_valid()),
        ({"year": {"$exists": False}}, year.is_null()),
        ({"year": None}, year.is_null()),
        ({"year": {"$ne": None}}, year.is_valid()),
        ({"$$odd": 1}, col("$odd") == 1),
        ({}, And(())),
    ]
    for written, expr in pairs:
        assert from_dict(written) == expr
        assert from_dict(to_dict(from_dict(to_dict(expr)))) == from_dict(to_dict(expr))
        assert from_json(json.dumps(written)) == expr
        assert expr.to_dict() == to_dict(expr)


def test_the_other_manner_of_dicts() -> None:
    year, color = col("year"), col("color")
    same = [
        ({"type": "eq", "key": "color", "value": "red"}, color == "red"),
        ({"type": "ne", "key": "year", "value": 2020}, (year == 2020).is_not_true()),
        ({"type": "gt", "key": "year", "value": 1.5}, year > 1.5),
        ({"type": "gte", "key": "year", "value": 1}, year >= 1),
        ({"type": "lt", "key": "year", "value": 1}, year < 1),
        ({"type": "lte", "key": "year", "value": 1}, year <= 1),
        ({"type": "eq", "key": "new", "value": True}, col("new") == True),  # noqa: E712
        ({"type": "in", "key": "color", "value": ["red", "blue"]}, color.isin(["red", "blue"])),
        ({"type": "nin", "key": "year", "value": [1, 2]}, year.isin([1, 2]).is_not_true()),
        ({"type": "and", "filters": []}, And(())),
        (
            {
                "type": "or",
                "filters": [
                    {"type": "eq", "key": "color", "value": "red"},
                    {
                        "type": "and",
                        "filters": [
                            {"type": "gte", "key": "year", "value": 2020},
                            {"type": "lt", "key": "year", "value": 2024},
                        ],
                    },
                ],
            },
            (color == "red") | ((year >= 2020) & (year < 2024)),
        ),
        ({"$not": {"type": "eq", "key": "year", "value": 1}}, (year == 1).is_not_true()),
        ({"type": "and", "filters": [{"year": {"$gt": 3}}]}, And((year > 3,))),
        # Columns that bear these names: by another key beside them, another type, or $and.
        ({"type": "shoe"}, col("type") == "shoe"),
        (
            {"type": {"$eq": "eq"}, "key": 1, "value": 2},
            And((col("type") == "eq", col("key") == 1, col("value") == 2)),
        ),
        ({"$and": [{"type": "eq"}, {"key": 1}]}, And((col("type") == "eq", col("key") == 1))),
    ]
    for written, expr in same:
        assert from_dict(written) == expr
        assert from_json(json.dumps(written)) == expr


@pytest.mark.parametrize(
    ("written", "error", "position", "part"),
    [
        ({"type": "like", "key": "a", "value": "x"}, FilterError, "$.type", "unknown"),
        ({"type": "not", "filters": []}, FilterError, "$.type", "unknown"),
        ({"type": "and", "filters": {"a": 1}}, FilterTypeError, "$.filters", "list"),
        ({"type": "and", "filters": [{"a": 1}, 3]}, FilterTypeError, "$.filters[1]", "int"),
        ({"type": "eq", "key": 3, "value": 1}, FilterTypeError, "$.key", "int"),
        ({"type": "eq", "key": "a", "value": [1]}, FilterTypeError, "$.value", "$in"),
        ({"type": "in", "key": "a", "value": "x"}, FilterTypeError, "$.value", "str"),
        ({"type": "gt", "key": "a", "value": float("nan")}, FilterError, "$.value", "NaN"),
        ({"year": {"$gtee": 1}}, FilterError, "$.year.$gtee", "did you mean $gte"),
        ({"$xor": []}, FilterError, "$.$xor", "unknown"),
        ({"$and": [{"year": {"gt": 1}}]}, FilterError, "$.$and[0].year", "'gt'"),
        ({"$and": {"year": 1}}, FilterTypeError, "$.$and", "list"),
        ({"$or": [1]}, FilterTypeError, "$.$or[0]", "int"),
        ({"year": {}}, FilterError, "$.year", "no operator"),
        ({"year": {"$in": "abc"}}, FilterTypeError, "$.year.$in", "str"),
        ({"year": {"$in": [1, [2]]}}, FilterTypeError, "$.year.$in[1]", "list"),
        ({"year": {"$gt": None}}, FilterTypeError, "$.year.$gt", "$exists"),
        ({"name": {"$regex": "^a"}}, FilterError, "$.name.$regex", "$like takes %"),
        ({"name": {"$regex": "^a", "$options": "i"}}, FilterError, "$.name.$regex", "regular"),
        ({"$where": "1"}, FilterError, "$.$where", "no code"),
        ({"$expr": {}}, FilterError, "$.$expr", "pyarrow"),
        ({"tags": {"$size": {}}}, FilterError, "$.tags.$size", "no operator"),
        ({"tags": {"$size": {"$like": "x"}}}, FilterError, "$.tags.$size.$like", "unknown"),
        ({"tags": {"$elemMatch": 3}}, FilterTypeError, "$.tags.$elemMatch", "operators"),
        ({"tags": {"$elemMatch": {"$any": [1]}}}, FilterError, "$.tags.$elemMatch.$any", "unknown"),
        ({"$ids": 3}, FilterTypeError, "$.$ids", "list of ids"),
        ({"year": [1, 2]}, FilterTypeError, "$.year", "$in"),
        ({"year": {"$exists": 1}}, FilterTypeError, "$.year.$exists", "true or false"),
        ({"year": {"$between": [1]}}, FilterTypeError, "$.year.$between", "two"),
        ({"year": {"$not": 3}}, FilterTypeError, "$.year.$not", "operators"),
        ({"year": {"$starts_with": 3}}, FilterTypeError, "$.year.$starts_with", "int"),
        ({3: 1}, FilterTypeError, "$", "int"),
        ([1], FilterTypeError, "$", "list"),
    ],
)
def test_dicts_that_are_wrong_say_where(
    written: Any, error: type[VeloError], position: str, part: str
) -> None:
    with pytest.raises(error) as caught:
        from_dict(written)
    assert f"filter at {position}:" in str(caught.value)
    assert part in str(caught.value)
    assert caught.value.argument == "filter"


@pytest.mark.parametrize("depth", [65, 1000, 20_000])
def test_deep_nesting_is_an_error_and_no_crash(depth: int) -> None:
    for wrap in (
        lambda inner: {"$not": inner},
        lambda inner: {"$and": [inner]},
        lambda inner: {"$or": [inner, {"a": 1}]},
    ):
        written: Any = {"a": 1}
        for _ in range(depth):
            written = wrap(written)
        with pytest.raises(FilterError, match="nested deeper than 64"):
            from_dict(written)
    operators: Any = {"$gt": 1}
    for _ in range(depth):
        operators = {"$not": operators}
    with pytest.raises(FilterError, match="nested deeper than 64"):
        from_dict({"a": operators})
    with pytest.raises(FilterError, match="nested deeper than 64"):
        from_json('{"$not":' * depth + '{"a":1}' + "}" * depth)


def test_deep_expressions_are_refused_where_they_grow() -> None:
    expr = col("a") == 1
    for _ in range(31):
        expr = Not(And((expr, col("b") == 2)))
    assert expr.depth == 63
    assert Not(expr).depth == 64
    with pytest.raises(FilterError, match="nested deeper than 64"):
        Not(And((expr,)))


def test_sixty_four_levels_are_fine(world: Any) -> None:
    written: Any = {"int32": 1}
    for at in range(63):
        written = {"$not": written} if at % 2 else {"$or": [written, {"word": f"w{at}"}]}
    expr = from_dict(written)
    np.testing.assert_array_equal(world.passing(to_dict(expr)), world.passing(expr))


def test_json_that_is_not(world: Any) -> None:
    for text in ("{", "nonsense", b"\xff\xfe{", ""):
        with pytest.raises(FilterError, match="not JSON"):
            from_json(text)


def test_many_conditions_are_refused_and_many_values_are_not(world: Any) -> None:
    with pytest.raises(FilterError, match="isin"):
        Or(tuple(col("int64") == i for i in range(filters.NODES_MAX)))
    wide = list(range(0, 400_000, 2))
    np.testing.assert_array_equal(
        world.passing(col("int64").isin(wide)),
        world.passing((col("int64") >= 0) & ~col("int64").isin([1, 3, 5, 7, 9])),
    )
    with pytest.raises(FilterError, match="at most"):
        col("a").isin(range(filters.VALUES_MAX + 1))


# ---- against a schema


@pytest.mark.parametrize(
    ("condition", "error", "part"),
    [
        (col("int31") == 1, UnknownColumnError, "did you mean 'int32'"),
        (col("int32") == "1", FilterTypeError, "column 'int32' of type int32"),
        (col("int32") == True, FilterTypeError, "but with a number"),  # noqa: E712
        (col("int32").isin([1, "x"]), FilterTypeError, "$.int32[1]"),
        (col("word") >= 3, FilterTypeError, "but with a str"),
        (col("brand").isin(["x", 3]), FilterTypeError, "brand"),
        (col("flag") == 1, FilterTypeError, "True or False"),
        (col("flag") < True, FilterTypeError, "no order"),
        (col("flag").between(False, True), FilterTypeError, "no order"),
        (col("tags") == 3, FilterTypeError, "elements of column 'tags'"),
        (col("numbers").starts_with("c"), FilterTypeError, "no strings"),
        (col("numbers").like("c%"), FilterTypeError, "no strings"),
        (col("word").length > 2, FilterTypeError, "no lists, so it has no length"),
        (col("tags").length == "x", FilterTypeError, "length of tags"),
        ({"word": {"$elemMatch": {"$gt": "a"}}}, FilterTypeError, "holds no lists"),
        (col("tags").contains_any([1]), FilterTypeError, "elements of column 'tags'"),
        (col("numbers").contains_all(["1"]), FilterTypeError, "numbers"),
        (col("word").contains_any(["a"]), FilterTypeError, "holds no lists"),
        (col("int32").starts_with("a"), FilterTypeError, "no strings"),
        (col("price") < "cheap", FilterTypeError, "decimal128(6, 2) cannot be compared"),
        (col("shape").is_null(), FilterTypeError, "one of their fields: shape.x"),
        (col("shape.y") == 1, UnknownColumnError, "'shape.y'"),
        (mask([True, False]), FilterError, "shape (2,)"),
        (mask([1, 2]), FilterTypeError, "bool for every row"),
        (col("raw") == "a", FilterTypeError, "binary"),
        (col("when") > "yesterday", FilterError, "ISO 8601"),
        (col("when") > "2020-02-30", FilterError, "ISO 8601"),
        (col("when") > "2020-02-03T25:00", FilterError, "ISO 8601"),
        (col("when") > 5, FilterTypeError, "timestamp[ms]"),
        (col("span") > "3 hours", FilterError, "PT3600.5S"),
        (col("span") > np.timedelta64(1, "M"), FilterTypeError, "fixed length"),
        (col("span") > 3, FilterTypeError, "timedelta"),
        (col("clock") > "8 o'clock", FilterError, "08:30:00"),
        (col("clock") > dt.datetime(2020, 1, 1), FilterTypeError, "datetime.time"),
        (
            col("numbers").contains_all(list(range(-5, 6)) * 2) & (col("no") == 1),
            UnknownColumnError,
            "$.$and[1].no",
        ),
        ({"$or": [{"int32": 1}, {"day": {"$lt": 3}}]}, FilterTypeError, "$.$or[1].day.$lt"),
        ({"nope": {"$exists": True}}, UnknownColumnError, "$.nope.$exists"),
    ],
)
def test_conditions_that_do_not_fit_the_columns(
    world: Any, condition: Any, error: type[VeloError], part: str
) -> None:
    with pytest.raises(error) as caught:
        world.compiler.compile(condition)
    assert part in str(caught.value)
    assert caught.value.argument == "filter"
    assert isinstance(caught.value, FilterError)


def test_extremes_are_exact(make_world: Any) -> None:
    whole = {
        "i8": (pa.int8(), -(2**7), 2**7 - 1),
        "i64": (pa.int64(), -(2**63), 2**63 - 1),
        "u8": (pa.uint8(), 0, 2**8 - 1),
        "u64": (pa.uint64(), 0, 2**64 - 1),
    }
    columns: dict[str, Any] = {}
    for name, (kind, low, high) in whole.items():
        near = [low, low + 1, 0, 1, 7, high - 1, high]
        columns[name] = pa.array([*near, 2**53 % (high + 1), (2**53 + 1) % (high + 1), None], kind)
    tiny = np.finfo(np.float64).smallest_subnormal
    columns["f64"] = pa.array([0.0, -0.0, tiny, -tiny, 1e308, math.inf, -math.inf, math.nan, 2.0**53, None])
    columns["f32"] = pa.array(
        [0.1, 1.5, -0.1, 0.0, 3e38, math.inf, -math.inf, math.nan, 2.0**24, None], pa.float32()
    )
    table = pa.table(columns)
    world = make_world(table)
    constants: list[Any] = [
        0,
        1,
        -1,
        7,
        6.5,
        7.5,
        -0.5,
        0.0,
        -0.0,
        tiny,
        -tiny,
        2**53 + 1,
        float(2**53),
        2**63,
        2**63 - 1,
    ]
    constants += [
        -(2**63),
        2**64,
        2**64 - 1,
        10**400,
        -(10**400),
        1e308,
        math.inf,
        -math.inf,
        127,
        128,
        255,
        256,
        2**24 + 1,
    ]
    tests = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }
    for name in columns:
        values = table.column(name).to_pylist()
        for constant in constants:
            for op, test in tests.items():
                against = constant
                if name == "f32" and isinstance(constant, float) and abs(constant) < 1e30:
                    against = float(np.float32(constant))
                expected = [value is not None and test(value, against) for value in values]
                negation = [value is not None and not test(value, against) for value in values]
                condition = Compare(name, op, constant)  # type: ignore[arg-type]
                assert world.passing(condition).tolist() == expected, condition
                assert world.passing(~condition).tolist() == negation, condition
    assert world.passing(col("f32") == 0.1).sum() == 1


def test_nulls_follow_kleene(world: Any) -> None:
    missing = np.asarray(world.table.column("int32").is_null())
    assert missing.any()
    value = col("int32")
    assert not (world.passing(value == 3) & missing).any()
    assert not (world.passing(value != 3) & missing).any()
    assert not (world.passing(~(value == 3)) & missing).any()
    assert not (world.passing(~value.isin([])) & missing).any()
    assert (world.passing(~value.isin([])) == ~missing).all()
    assert not world.passing(value.isin([])).any()
    assert (world.passing((value == 3) | value.is_null()) & missing).sum() == missing.sum()
    held = world.table.column("tags")
    assert (world.passing(col("tags").contains_all([])) == np.asarray(held.is_valid())).all()
    assert not world.passing(col("tags").contains_any([])).any()


def test_what_the_docs_say_of_folding(world: Any) -> None:
    binder = Binder(world.store.filter_columns)
    same = [
        ((col("int32") > 3.5) & (col("int32") < 6), col("int32").isin([4, 5])),
        (col("uint8") < 1000, col("uint8").is_valid()),
        (col("uint8") == -1, Or(())),
        (col("full").is_valid(), And(())),
        (col("int8").between(1, 3) | col("int8").between(4, 6), col("int8").between(1, 6)),
        (~(col("word") >= "b"), col("word") < "b"),
        (col("word").starts_with(""), col("word").is_valid()),
        (col("tags").contains_any(["a", "nowhere"]), col("tags").contains_any(["a"])),
        (col("day") == "2020-01-01", col("day") == dt.date(2020, 1, 1)),
        (col("when") >= "2020-01-01", col("when") > dt.datetime(2019, 12, 31, 23, 59, 59, 999999)),
        (col("zoned") >= "2020-01-01T01:00:00+01:00", col("zoned") >= dt.datetime(2020, 1, 1)),
        (col("span") > "PT3600S", col("span") > dt.timedelta(hours=1)),
    ]
    for one, other in same:
        assert program_of(binder.bind(one)) == program_of(binder.bind(other)), (one, other)


# ---- masks, ids, expressions


@pytest.mark.parametrize(
    ("given", "error", "part"),
    [
        (np.zeros(499, bool), FilterError, "499"),
        (np.zeros((500, 1), bool), FilterError, "mask of shape"),
        ([True] * 3, FilterError, "(3,)"),
        (b"year > 3", FilterTypeError, "bytes"),
        (3, FilterTypeError, "int"),
        ([1, "x"], FilterTypeError, "ids"),
        (pc.field("nope") > 3, UnknownColumnError, "nope"),
        (pc.field("word") > 3, FilterError, "evaluated"),
        (pc.field("int32"), FilterTypeError, "int32"),
    ],
)
def test_masks_and_ids_that_are_wrong(world: Any, given: Any, error: type[VeloError], part: str) -> None:
    with pytest.raises(error) as caught:
        world.compiler.compile(given)
    assert part in str(caught.value)


def test_no_ids_pass_nothing(world: Any) -> None:
    for nothing in ([], np.zeros(0, np.int64), set()):
        assert world.compiler.compile(nothing).count() == 0


def test_without_metadata_only_masks_and_ids_filter() -> None:
    compiler = FilterCompiler(3, rows=lambda: np.array([2, 0, 1]))
    with pytest.raises(UnknownColumnError, match="without metadata"):
        compiler.compile(col("a") == 1)
    with pytest.raises(FilterError, match="no ids"):
        compiler.compile([1, 2])
    assert compiler.compile([True, False, True]).matches().tolist() == [True, True, False]
    assert compiler.compile({}).count() == 3
    assert compiler.compile(Or(())).count() == 0


# ---- the cache


def test_equal_filters_are_compiled_once_and_forgotten_in_turn(world: Any) -> None:
    compiler = FilterCompiler(world.table.num_rows, world.store)
    first = compiler.compile(col("int64") > 3)
    assert compiler.compile({"int64": {"$gte": 4}}) is first
    assert compiler.compile({"int64": {"$gt": 3}}) is first
    for value in range(1000):
        compiler.compile(col("f64") > value)
    assert compiler.compile(col("int64") > 3) is not first
    assert first.count() == compiler.compile(col("int64") > 3).count()


def test_a_filter_outlives_its_store(make_world: Any, make_table: Any) -> None:
    world = make_world(make_table(100, 3))
    expected = world.passing(col("word") >= "b")
    rows = world.rows
    kept = world.compiler.compile(col("word") >= "b")
    del world
    gc.collect()
    assert kept.matches()[np.argsort(rows)].tolist() == expected.tolist()


def test_threads_share_a_compiler(world: Any) -> None:
    compiler = FilterCompiler(world.table.num_rows, world.store)
    expected = [world.compiler.compile(col("int64") > value).count() for value in range(-5, 5)]
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(30):
            found = [compiler.compile(col("int64") > value).count() for value in range(-5, 5)]
            if found != expected:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_contains_all_of_more_than_fits(make_world: Any) -> None:
    held = list(range(1100))
    world = make_world(pa.table({"n": pa.array([held, [1]])}))
    assert world.passing(col("n").contains_all(held[:1024])).tolist() == [True, False]
    with pytest.raises(FilterError, match="1024"):
        world.compiler.compile(Contains("n", tuple(held), "all"))
    both = col("n").contains_all(held[:700]) & col("n").contains_all(held[600:])
    assert world.passing(both).tolist() == [True, False]
