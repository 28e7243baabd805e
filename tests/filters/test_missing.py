"""What dicts mean where a value is missing or a list: what MongoDB means, by its manual."""

from __future__ import annotations

import fnmatch
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from velo.errors import FilterTypeError, UnknownColumnError
from velo.filters import col, from_sql, ids, mask, to_dict
from velo.filters.compiler import FilterCompiler

WORDS = ["a", "ab", "b", "ba", "c"]


@pytest.fixture(scope="module")
def docs() -> list[dict[str, Any]]:
    draw = random.Random(11)

    def maybe(value: Any) -> Any:
        return None if draw.random() < 0.25 else value

    return [
        {
            "year": maybe(draw.randint(2018, 2022)),
            "word": maybe(draw.choice(WORDS)),
            "tags": maybe([draw.choice(WORDS) for _ in range(draw.randint(0, 3))]),
            "numbers": maybe([draw.randint(-3, 3) for _ in range(draw.randint(0, 3))]),
            "floats": maybe([draw.randint(-4, 4) / 4 for _ in range(draw.randint(0, 3))]),
            "price": maybe(Decimal(draw.randint(-20, 20)) / 10),
            "shape": maybe({"x": maybe(draw.randint(0, 4)), "name": {"first": maybe(draw.choice(WORDS))}}),
        }
        for _ in range(240)
    ]


@pytest.fixture
def asked(docs: list[dict[str, Any]], make_world: Any) -> Any:
    types = {
        "floats": pa.list_(pa.float32()),
        "price": pa.decimal128(9, 3),
        "numbers": pa.list_(pa.int16()),
        "tags": pa.list_(pa.string()),
    }
    names = list(docs[0])
    table = pa.table({name: pa.array([doc[name] for doc in docs], types.get(name)) for name in names})
    return make_world(table)


# ---- MongoDB, as its manual says


def holds(value: Any, key: str, operand: Any) -> bool:
    """Whether one value (no list) meets an operator."""
    if key == "$eq":
        return value == operand
    if key == "$in":
        return value in operand
    if key == "$like":
        return value is not None and fnmatch.fnmatchcase(value, operand.replace("%", "*").replace("_", "?"))
    if value is None:
        return False
    if key == "$between":
        return bool(operand[0] <= value <= operand[1])
    if key == "$starts_with":
        return value.startswith(operand)
    return {
        "$gt": value > operand,
        "$gte": value >= operand,
        "$lt": value < operand,
        "$lte": value <= operand,
    }[key]


def meets(value: Any, key: str, operand: Any) -> bool:
    if key == "$ne":
        return not meets(value, "$eq", operand)
    if key == "$nin":
        return not meets(value, "$in", operand)
    if key == "$not":
        return not all(meets(value, *one) for one in operand.items())
    if key == "$exists":
        return (value is not None) == operand
    if key == "$size":
        tests = operand if isinstance(operand, dict) else {"$eq": operand}
        length = None if value is None else len(value)
        return all(meets(length, *one) for one in tests.items())
    if key == "$elemMatch":
        return value is not None and any(all(meets(e, *one) for one in operand.items()) for e in value)
    if key == "$any":
        return value is not None and any(one in value for one in operand)
    if key == "$all":
        return value is not None and all(one in value for one in operand)
    if isinstance(value, list):
        return any(holds(one, key, operand) for one in value)
    return holds(value, key, operand)


def field_of(doc: Any, path: str) -> Any:
    for part in path.split("."):
        doc = None if doc is None else doc[part]
    return float(doc) if isinstance(doc, Decimal) else doc


def passes(doc: Any, condition: Any) -> bool:
    for key, operand in condition.items():
        if key == "$and":
            good = all(passes(doc, one) for one in operand)
        elif key == "$or":
            good = any(passes(doc, one) for one in operand)
        elif key == "$nor":
            good = not any(passes(doc, one) for one in operand)
        elif key == "$not":
            good = not passes(doc, operand)
        else:
            tests = operand if isinstance(operand, dict) else {"$eq": operand}
            good = all(meets(field_of(doc, key), *one) for one in tests.items())
        if not good:
            return False
    return True


POOL: dict[str, list[Any]] = {
    "year": [2017, 2018, 2019, 2020, 2022, 2023],
    "word": [*WORDS, "zz"],
    "tags": [*WORDS, "zz"],
    "numbers": [-5, -3, -1, 0, 2, 3, 9],
    "floats": [-1.0, -0.25, 0, 0.5, 1.0, 7.5],
    "price": [-2, -0.5, 0, 0.1, 0.7, 1.9, 2.5],
    "shape.x": [0, 1, 3, 4, 9],
    "shape.name.first": [*WORDS, "zz"],
}
LISTS = ("tags", "numbers", "floats")
TEXTS = ("word", "tags", "shape.name.first")


def simple(draw: random.Random, name: str) -> tuple[str, Any]:
    pool = POOL[name]
    key = draw.choice(["$eq", "$gt", "$gte", "$lt", "$lte", "$in", "$between", "$ne", "$nin"])
    if name in TEXTS and draw.random() < 0.2:
        return draw.choice([("$starts_with", "a"), ("$like", "%b"), ("$like", "_a%")])
    if key in ("$in", "$nin"):
        return key, [draw.choice(pool) for _ in range(draw.randint(0, 3))]
    if key == "$between":
        return key, sorted([draw.choice(pool), draw.choice(pool)])
    return key, draw.choice(pool)


def operator(draw: random.Random, name: str) -> dict[str, Any]:
    kind = draw.randrange(10)
    if kind == 0:
        return {"$exists": draw.random() < 0.5}
    if kind == 1:
        return {"$not": dict([simple(draw, name)])}
    if kind == 2:
        return {draw.choice(["$in", "$nin"]): [draw.choice(POOL[name]), None]}
    if kind == 3:
        return {draw.choice(["$eq", "$ne"]): None}
    if name in LISTS and kind == 4:
        size = draw.randint(0, 3)
        return {"$size": draw.choice([size, {"$gte": size}, {"$ne": size}, {"$not": {"$lt": size}}])}
    if name in LISTS and kind == 5:
        return {"$elemMatch": dict([simple(draw, name), simple(draw, name)])}
    if name in LISTS and kind == 6:
        return {"$elemMatch": {"$not": {"$gt": draw.choice(POOL[name])}}}
    if name in LISTS and kind == 7:
        return {draw.choice(["$any", "$all"]): [draw.choice(POOL[name]) for _ in range(draw.randint(0, 2))]}
    return dict([simple(draw, name), simple(draw, name)])


def condition(draw: random.Random, depth: int) -> dict[str, Any]:
    kind = draw.randrange(10) if depth else 9
    if kind < 5:
        children = [condition(draw, depth - 1) for _ in range(draw.choice([0, 1, 2, 2, 3]))]
        return {draw.choice(["$and", "$or", "$nor"]): children}
    if kind == 5:
        return {"$not": condition(draw, depth - 1)}
    name = draw.choice(list(POOL))
    operand = operator(draw, name) if draw.random() < 0.8 else draw.choice([*POOL[name], None])
    return {name: operand}


@pytest.mark.parametrize("seed", range(6))
def test_dicts_mean_what_mongodb_means(asked: Any, docs: list[dict[str, Any]], seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        written = condition(draw, draw.randrange(3))
        expected = [passes(doc, written) for doc in docs]
        got = asked.passing(written).tolist()
        assert got == expected, (written, docs[np.flatnonzero(np.not_equal(got, expected))[:1][0]])


@pytest.mark.parametrize("written", [{"year": {"$ne": 2020}}, {"year": {"$nin": [2020]}}])
def test_dicts_and_the_others_differ_only_where_values_are_missing(asked: Any, written: Any) -> None:
    years = np.array([-1 if one is None else one for one in asked.table.column("year").to_pylist()])
    missing = years == -1
    assert missing.any()
    assert asked.passing(written).tolist() == (missing | (years != 2020)).tolist()
    for strict in (col("year") != 2020, ~col("year").isin([2020]), "year <> 2020", "year NOT IN (2020)"):
        assert asked.passing(strict).tolist() == (~missing & (years != 2020)).tolist()
    for loose in ("(year = 2020) IS NOT TRUE", (col("year") == 2020).is_not_true()):
        assert asked.passing(loose).tolist() == (missing | (years != 2020)).tolist()


def test_an_expression_as_a_dict_passes_the_same_rows(asked: Any) -> None:
    year, tags = col("year"), col("tags")
    for expr in (
        year != 2020,
        ~(year > 2020),
        ~((year != 2020) | tags.contains_any(["a"])),
        ~~((year == 2019).is_not_true()),
        (~(year == 2019)).is_not_true(),
        (tags.length > 1) & ~(tags == "a"),
        ~col("word").like("%a"),
        ~(year.between(2018, 2019) & col("shape.x").is_null()),
        ~ids([3, 4]) & (year > 2018),
    ):
        assert asked.passing(to_dict(expr)).tolist() == asked.passing(expr).tolist(), expr
        assert asked.passing(~expr).tolist() == asked.passing(to_dict(~expr)).tolist(), expr


def test_lists_in_sql_and_in_expressions(asked: Any, docs: list[dict[str, Any]]) -> None:
    same: list[tuple[Any, Any, Any]] = [
        ("array_length(tags) >= 2", col("tags").length >= 2, {"tags": {"$size": {"$gte": 2}}}),
        ("cardinality(floats) = 1", col("floats").length == 1, {"floats": {"$size": 1}}),
        ("2 <= ANY(numbers)", col("numbers") >= 2, {"numbers": {"$gte": 2}}),
        ("0.5 = ANY(floats)", col("floats") == 0.5, {"floats": 0.5}),
        ("'a' <> ANY(tags)", None, {"tags": {"$elemMatch": {"$ne": "a"}}}),
        ("tags LIKE '%b'", col("tags").like("%b"), {"tags": {"$like": "%b"}}),
        ("shape.x > 2", col("shape.x") > 2, {"shape.x": {"$gt": 2}}),
        ("shape.name.first = 'ab'", col("shape.name.first") == "ab", {"shape.name.first": "ab"}),
        ("price <= 0.7", col("price") <= Decimal("0.7"), {"price": {"$lte": 0.7}}),
        ("word ILIKE 'A_'", col("word").ilike("A_"), {"word": {"$ilike": "A_"}}),
        ("word LIKE '%b%'", col("word").like("%b%"), {"word": {"$like": "%b%"}}),
        ("price = 0.10", col("price") == 0.1, {"price": 0.1}),
    ]
    for sql, expr, written in same:
        found = asked.passing(written).tolist()
        assert 0 < sum(found) < len(found), written
        assert asked.passing(sql).tolist() == found, sql
        if expr is not None:
            assert asked.passing(expr).tolist() == found, expr
            assert asked.passing(to_dict(expr)).tolist() == found, expr


def test_ids_and_masks_beside_conditions(asked: Any) -> None:
    years = np.array([-1 if one is None else one for one in asked.table.column("year").to_pylist()])
    some = np.arange(len(years)) % 3 == 0
    new = years > 2019
    numbers = np.flatnonzero(some).tolist()
    for both in (
        mask(some) & (col("year") > 2019),
        mask(some.tolist()) & (col("year") > 2019),
        ids(numbers) & (col("year") > 2019),
        {"$ids": numbers, "year": {"$gt": 2019}},
        {"$and": [{"$ids": [*numbers, 10**6]}, {"year": {"$gt": 2019}}]},
    ):
        assert asked.passing(both).tolist() == (some & new).tolist()
    assert asked.passing(~mask(some) | (col("year") > 2019)).tolist() == (~some | new).tolist()
    assert (
        asked.passing({"$nor": [{"$ids": numbers}, {"year": {"$lte": 2019}}]}).tolist()
        == (~some & ((years == -1) | new)).tolist()
    )
    mixed = (mask(some) | (col("tags").length > 1)) & (col("year") > 2019)
    lengths = np.array([len(one or []) for one in asked.table.column("tags").to_pylist()])
    assert asked.passing(mixed).tolist() == ((some | (lengths > 1)) & new).tolist()


def test_an_or_of_nothing_passes_nothing(asked: Any) -> None:
    assert not asked.passing({"$or": []}).any()
    assert asked.passing({"$and": []}).all()
    assert asked.passing({"$nor": []}).all()


def test_a_time_without_a_zone_is_utc(make_world: Any) -> None:
    start = np.datetime64("2024-01-01T00:00", "ms")
    hours = start + np.arange(48).astype("timedelta64[h]")
    world = make_world(pa.table({"when": pa.array(hours), "day": pa.array(hours.astype("datetime64[D]"))}))
    for text in ("2024-01-01T12:00:00Z", "2024-01-01T13:00:00+01:00", "2024-01-01T12:00:00"):
        assert world.passing({"when": {"$gte": text}}).sum() == 36
        assert world.passing(col("when") < text).sum() == 12
    assert world.passing({"day": {"$gt": "2024-01-01T00:00:00Z"}}).sum() == 24


def test_columns_that_do_not_exist_can_be_missing_values(asked: Any) -> None:
    loose = FilterCompiler(len(asked.rows), asked.store, unknown_is_missing=True)
    count = len(asked.rows)

    def passing(condition: Any) -> int:
        return loose.compile(condition).count()

    assert passing({"nope": 1}) == 0
    assert passing({"nope": {"$ne": 1}}) == count
    assert passing({"nope": {"$exists": False}}) == count
    assert passing({"nope": {"$exists": True}}) == 0
    assert passing(col("nope") != 1) == 0
    assert passing(~(col("nope") == 1)) == 0
    assert passing(from_sql("nope = 1 OR nope IS NULL")) == count
    assert passing({"nope.deeper": {"$size": 2}}) == 0
    assert passing({"$or": [{"nope": 1}, {"year": 2020}]}) == passing({"year": 2020})
    nothing = FilterCompiler(5, None, unknown_is_missing=True)
    assert nothing.compile({"a": {"$ne": 1}}).count() == 5
    with pytest.raises(UnknownColumnError):
        asked.compiler.compile({"nope": {"$exists": False}})


def test_decimals_beyond_64_bits_say_so(make_world: Any) -> None:
    table = pa.table({"big": pa.array([Decimal(10) ** 30, None], pa.decimal128(38, 0)), "x": [1, 2]})
    world = make_world(table)
    with pytest.raises(FilterTypeError, match="beyond 64 bits"):
        world.compiler.compile({"big": 1})


def test_made_columns_are_made_once_and_counted(asked: Any) -> None:
    before = asked.store.resident_bytes
    asked.passing(col("tags").length > 1)
    after = asked.store.resident_bytes
    assert after - before >= 4 * len(asked.rows)
    asked.passing(col("tags").length < 1)
    assert asked.store.resident_bytes == after
    again = asked.compiler.compile(col("tags").length > 1)
    assert asked.compiler.compile({"tags": {"$size": {"$gt": 1}}}) is not None
    assert asked.compiler.compile(col("tags").length > 1) is again
