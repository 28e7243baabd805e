"""Random conditions over a random table: the library says of every row what pyarrow.compute says.

``VELO_FILTER_TREES=10000 pytest tests/filters/test_random_trees.py`` looks at more of them.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from velo.filters import (
    And,
    Between,
    Compare,
    Contains,
    Expr,
    IsIn,
    IsNotTrue,
    IsNull,
    Like,
    Not,
    Or,
    StartsWith,
    col,
    from_dict,
    from_json,
    to_dict,
    to_json,
)

TREES = int(os.environ.get("VELO_FILTER_TREES", "1000"))
PER_SEED = 50

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "full"]
FLOATS = ["f16", "f32", "f64"]
WORD_COLUMNS = ["word", "large_word", "brand"]
TIMES = ["when", "zoned", "day", "day64", "span", "clock"]
WORD_LISTS = ["tags", "holes", "coded"]
NUMBER_LISTS = ["numbers", "sparse"]
SCALARS = [*INTEGERS, *FLOATS, *WORD_COLUMNS, *TIMES, "flag"]
WORDS = ["ab", "abc", "b", "ba", "bé", "c", "cat", "d", "", "nowhere", "a", "zzz"]
OPS = ["eq", "ne", "lt", "le", "gt", "ge"]
START = dt.datetime(2020, 1, 1)


def value_for(draw: random.Random, name: str) -> Any:
    if name in INTEGERS:
        return draw.choice(
            [draw.randint(-12, 12), draw.randint(-12, 12) / 2, draw.choice([-1000, 300, 10**30])]
        )
    if name in FLOATS:
        return draw.choice(
            [draw.randint(-40, 40) / 10, draw.randint(-4, 4), draw.choice([float("inf"), 1e300, 0.0])]
        )
    if name in WORD_COLUMNS:
        return draw.choice(WORDS)
    if name == "flag":
        return draw.random() < 0.5
    moment = START + dt.timedelta(hours=draw.randint(-60, 60))
    if name == "when":
        return draw.choice([moment, moment.date(), np.datetime64(moment, "ns")])
    if name == "zoned":
        return draw.choice([moment.replace(tzinfo=dt.timezone.utc), moment])
    if name in ("day", "day64"):
        return draw.choice([moment, moment.date()])
    if name == "span":
        return moment - START
    return dt.time(moment.hour, draw.choice([0, 30]))


def leaf(draw: random.Random) -> Expr:
    kind = draw.randrange(12)
    if kind < 5:
        name = draw.choice(SCALARS)
        ops = ["eq", "ne"] if name == "flag" else OPS
        return Compare(name, draw.choice(ops), value_for(draw, name))
    if kind == 5:
        name = draw.choice([name for name in SCALARS if name != "flag"])
        return Between(name, value_for(draw, name), value_for(draw, name))
    if kind == 6 or kind == 7:
        name = draw.choice(SCALARS)
        return IsIn(name, tuple(value_for(draw, name) for _ in range(draw.randint(0, 8))))
    if kind == 8:
        return IsNull(draw.choice([*SCALARS, *WORD_LISTS, *NUMBER_LISTS, "nothing"]))
    if kind == 9 and draw.random() < 0.4:
        return Like(
            draw.choice(WORD_COLUMNS), draw.choice(["%b%", "_", "a%c", "%", "C_%"]), draw.random() < 0.3
        )
    if kind == 9:
        return StartsWith(draw.choice(WORD_COLUMNS), draw.choice(["", "a", "ab", "b", "c", "z", "é"]))
    if draw.random() < 0.6:
        name, pool = draw.choice(WORD_LISTS), WORDS
    else:
        name, pool = draw.choice(NUMBER_LISTS), [-5, -1, 0, 1, 2, 2.0, 2.5, 99]
    values = tuple(draw.choice(pool) for _ in range(draw.choice([0, 1, 1, 2, 2, 3, 6])))
    return Contains(name, values, draw.choice(["any", "all"]))


def tree(draw: random.Random, depth: int) -> Expr:
    kind = draw.randrange(10) if depth else 9
    if kind < 5:
        children = tuple(tree(draw, depth - 1) for _ in range(draw.choice([0, 1, 2, 2, 3, 4])))
        return And(children) if kind < 3 else Or(children)
    if kind < 7:
        return (Not if draw.random() < 0.6 else IsNotTrue)(tree(draw, depth - 1))
    return leaf(draw)


# ---- what pyarrow.compute says


def reference(expr: Expr, table: Any) -> Any:
    """A BooleanArray with nulls, in Kleene's logic."""
    match expr:
        case And(children):
            all_true = pa.array([True] * table.num_rows)
            return functools.reduce(pc.and_kleene, (reference(child, table) for child in children), all_true)
        case Or(children):
            all_false = pa.array([False] * table.num_rows)
            return functools.reduce(pc.or_kleene, (reference(child, table) for child in children), all_false)
        case Not(child):
            return pc.invert(reference(child, table))
        case IsNotTrue(child):
            return pc.invert(pc.fill_null(reference(child, table), False))
    assert isinstance(expr, Compare | Between | IsIn | IsNull | StartsWith | Like | Contains)
    column = table.column(expr.column).combine_chunks()
    if isinstance(expr, IsNull):
        return pc.is_null(column)
    if isinstance(expr, Contains):
        judge = any if expr.mode == "any" else all
        return pa.array(
            [None if held is None else judge(v in held for v in expr.values) for held in column.to_pylist()],
            pa.bool_(),
        )
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if isinstance(expr, StartsWith):
        return pc.starts_with(column, expr.prefix)
    if isinstance(expr, Like):
        return pc.match_like(column, expr.pattern, ignore_case=expr.any_case)
    if isinstance(expr, Between):
        return pc.and_kleene(compare(column, "ge", expr.low), compare(column, "le", expr.high))
    if isinstance(expr, IsIn):
        none = pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), False)
        return functools.reduce(pc.or_kleene, (compare(column, "eq", value) for value in expr.values), none)
    return compare(column, expr.op, expr.value)


def compare(column: Any, op: str, value: Any) -> Any:
    names = {
        "eq": "equal",
        "ne": "not_equal",
        "lt": "less",
        "le": "less_equal",
        "gt": "greater",
        "ge": "greater_equal",
    }
    kernel = getattr(pc, names[op])
    kind = column.type
    if pa.types.is_integer(kind):  # small numbers: float64 holds them all
        return kernel(column.cast(pa.float64()), pa.scalar(float(value)))
    if pa.types.is_floating(kind):
        wide = (
            column.cast(pa.float32()).cast(pa.float64())
            if kind == pa.float16()
            else column.cast(pa.float64())
        )
        narrow = {"halffloat": np.float16, "float": np.float32, "double": np.float64}[str(kind)]
        with np.errstate(over="ignore"):
            rounded = float(narrow(value)) if abs(value) < 1e30 or np.isinf(value) else float(value)
        return kernel(wide, pa.scalar(rounded))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        # A time without a zone is UTC where the column has one.
        if isinstance(value, np.datetime64):
            value = value.astype("datetime64[us]").item()
        if not isinstance(value, dt.datetime):
            value = dt.datetime(value.year, value.month, value.day)
        utc = pa.timestamp("us", None if pa.types.is_date(kind) or kind.tz is None else "UTC")
        wide = column.cast(pa.timestamp("ms")).cast(utc) if pa.types.is_date(kind) else column.cast(utc)
        return kernel(wide, pa.scalar(value, utc))
    if pa.types.is_duration(kind) or pa.types.is_time(kind) or pa.types.is_boolean(kind):
        return kernel(column, pa.scalar(value, kind))
    return kernel(column, pa.scalar(value, kind))


# ---- the same condition, written otherwise


def rewritten(draw: random.Random, expr: Expr) -> Expr:
    """An equivalent tree: reordered, nested, doubled, negated twice, by De Morgan's laws."""
    match expr:
        case And(children) | Or(children):
            kind = type(expr)
            parts = [rewritten(draw, child) for child in children]
            draw.shuffle(parts)
            if parts and draw.random() < 0.3:
                parts.append(parts[0])
            if len(parts) > 2 and draw.random() < 0.5:
                parts = [kind(tuple(parts[:2])), *parts[2:]]
            if draw.random() < 0.3:
                other = Or if kind is And else And
                return Not(other(tuple(Not(part) for part in parts)))
            return kind(tuple(parts))
        case Not(child):
            return Not(rewritten(draw, child))
        case IsNotTrue(child):
            return IsNotTrue(rewritten(draw, child))
        case Between(column, low=low, high=high):
            return And((Compare(column, "le", high), Compare(column, "ge", low)))
        case IsIn(column, values=values) if values:
            return Or(tuple(Compare(column, "eq", value) for value in draw.sample(values, len(values))))
        case Compare(column, op="ne", value=value):
            return Not(IsIn(column, (value, value)))
        case Contains(column, values=values, mode=mode) if values:
            kind = And if mode == "all" else Or
            return kind(tuple(Contains(column, (value,), "any") for value in values))
    return Not(Not(expr)) if draw.random() < 0.2 else expr


@pytest.mark.parametrize("seed", range(-(-TREES // PER_SEED)))
def test_every_row_agrees_with_pyarrow(world: Any, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(PER_SEED):
        expr = tree(draw, draw.randrange(4))
        expected = np.asarray(reference(expr, world.table).fill_null(False))
        got = world.passing(expr)
        differing = np.flatnonzero(got != expected)
        assert len(differing) == 0, (expr, differing[:5], world.table.slice(int(differing[0]), 1).to_pylist())


@pytest.mark.parametrize("seed", range(10))
def test_rewritten_filters_pass_the_same_rows(world: Any, seed: int) -> None:
    draw = random.Random(1000 + seed)
    matches = lambda condition: world.compiler.compile(condition).matches()  # noqa: E731
    for _ in range(PER_SEED):
        expr = tree(draw, draw.randrange(4))
        expected = matches(expr)
        other = rewritten(draw, expr)
        for same in (from_dict(to_dict(expr)), from_json(to_json(expr)), other, from_dict(to_dict(other))):
            np.testing.assert_array_equal(matches(same), expected, f"{expr} as {same}")


def test_the_trees_are_not_all_trivial(world: Any) -> None:
    draw = random.Random(5)
    counts = [world.compiler.compile(tree(draw, 2)).count() for _ in range(200)]
    between = sum(0 < count < world.table.num_rows for count in counts)
    assert between > 80


def test_an_arrow_expression_and_a_mask_say_the_same(world: Any) -> None:
    both = (pc.field("int32") > 3) & (pc.field("word") == "ab") | pc.field("f64").is_null()
    expr = (col("int32") > 3) & (col("word") == "ab") | col("f64").is_null()
    expected = world.passing(expr)
    assert 0 < expected.sum() < len(expected)
    np.testing.assert_array_equal(world.passing(both), expected)
    np.testing.assert_array_equal(world.passing(expected), expected)
    np.testing.assert_array_equal(world.passing(pa.array(expected)), expected)
    np.testing.assert_array_equal(world.passing(expected.tolist()), expected)
    ids = np.flatnonzero(expected)
    np.testing.assert_array_equal(world.passing(ids), expected)
    np.testing.assert_array_equal(world.passing([*ids.tolist(), 10**6, -1]), expected)
