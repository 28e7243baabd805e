"""Conditions that say the same are one program, however they are written."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.filters.test_random_trees import FLOATS, SCALARS, tree
from velo.filters import And, Between, Compare, Contains, Expr, IsIn, IsNull, Not, Or, from_dict, to_dict
from velo.filters.program import compile_program

OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def rewritten(draw: random.Random, expr: Expr, depth: int = 3) -> Expr:
    """The same condition in other words."""
    match expr:
        case And(children) | Or(children):
            parts = [rewritten(draw, child, depth) for child in children]
            return _joined(draw, type(expr), parts)
        case Not(child):
            return _wrapped(draw, Not(rewritten(draw, child, depth)))
    return _wrapped(draw, _leaf(draw, expr))


def _wrapped(draw: random.Random, expr: Expr) -> Expr:
    match draw.randrange(6):
        case 0:
            return Not(Not(expr))
        case 1:
            return And((expr,))
        case 2:
            return Or((expr, expr))
    return expr


def _joined(draw: random.Random, kind: Any, parts: list[Expr]) -> Expr:
    draw.shuffle(parts)
    if len(parts) > 2 and draw.random() < 0.5:  # a & (b & c)
        parts = [parts[0], kind(tuple(parts[1:]))]
    if parts and draw.random() < 0.2:
        parts.append(draw.choice(parts))
    if draw.random() < 0.4:  # De Morgan
        other = Or if kind is And else And
        return Not(other(tuple(Not(part) for part in parts)))
    return kind(tuple(parts))


def _leaf(draw: random.Random, expr: Expr) -> Expr:
    match expr:
        case Compare(column, op="eq", value=value) if draw.random() < 0.5:
            return IsIn(column, (value, value))
        case Compare(column, op=op, value=value) if draw.random() < 0.5:
            # NaN is neither below nor at or above anything: there only == and != are opposites.
            if op in ("eq", "ne") or column not in FLOATS:
                return Not(Compare(column, OPPOSITE[op], value))  # type: ignore[arg-type]
        case Between(column, low=low, high=high) if draw.random() < 0.5:
            return And((Compare(column, "le", high), Compare(column, "ge", low)))
        case IsIn(column, values=values) if values and draw.random() < 0.7:
            mixed = list(values)
            draw.shuffle(mixed)
            cut = draw.randint(0, len(mixed))
            return Or(
                (IsIn(column, tuple(mixed[:cut])), *(Compare(column, "eq", one) for one in mixed[cut:]))
            )
        case Contains(column, values=values, mode=mode) if values and draw.random() < 0.7:
            mixed = list(values)
            draw.shuffle(mixed)
            parts = tuple(Contains(column, (one,), draw.choice(["any", "all"])) for one in mixed)
            return And(parts) if mode == "all" else Or(parts)
    return expr


def test_other_words_are_the_same_program(world: Any) -> None:
    seed = int(os.environ.get("VELO_TEST_SEED", "0")) or int.from_bytes(os.urandom(4), "little")
    print(f"VELO_TEST_SEED={seed}")
    draw = random.Random(seed)
    columns = world.store.filter_columns
    for _ in range(1500):
        expr = tree(draw, draw.randint(0, 3))
        other = rewritten(draw, expr)
        assert compile_program(other, columns) == compile_program(expr, columns), (expr, other)
        assert compile_program(from_dict(to_dict(other)), columns) == compile_program(expr, columns), other


@pytest.mark.parametrize("column", SCALARS)
def test_a_missing_value_is_told_apart(world: Any, column: str) -> None:
    """Null logic survives the rewriting: not (a or null-test) is not what it would be with two values."""
    columns = world.store.filter_columns
    valid = compile_program(Not(IsNull(column)), columns)
    assert compile_program(Not(IsIn(column, ())), columns) == valid
    assert compile_program(And((Not(IsIn(column, ())), Not(IsNull(column)))), columns) == valid
    either = compile_program(Or((IsNull(column), Not(IsNull(column)))), columns)
    assert either == compile_program(And(()), columns)
