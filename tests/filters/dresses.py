"""Random conditions over the sample's labels, each as a tree, a dict and SQL text that say the same."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

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
)

START = dt.datetime(2023, 1, 1)
OPS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FLIPPED = {"eq": "=", "ne": "!=", "lt": ">", "le": ">=", "gt": "<", "ge": "<="}


def _value(draw: random.Random, column: str) -> Any:
    if column.endswith("10"):
        return draw.choice([draw.randint(0, 9), draw.randint(0, 9), draw.randint(-2, 18) / 2])
    if column == "price":
        return draw.choice([round(draw.random(), 3), draw.randint(0, 1), draw.random()])
    if column == "ts":
        return START + dt.timedelta(hours=draw.randint(-100, 17_000))
    return f"brand{draw.randint(0, 499):03d}"


def leaf(draw: random.Random) -> Expr:
    column = draw.choice(["uniform10", "zipf10", "cluster10", "price", "ts", "brand"])
    match draw.randrange(8):
        case 0 | 1 | 2:
            return Compare(column, draw.choice(list(OPS)), _value(draw, column))
        case 3:
            return Between(column, *sorted((_value(draw, column), _value(draw, column))))
        case 4:
            return IsIn(column, tuple(_value(draw, column) for _ in range(draw.randint(0, 6))))
        case 5:
            return IsNull(draw.choice(["brand", "tags", "price"]))
        case 6 if draw.random() < 0.5:
            return Like("brand", draw.choice(["%1_", "b%0%", "_rand01%", "%"]), draw.random() < 0.3)
        case 6:
            return StartsWith("brand", f"brand{draw.randint(0, 49):02d}"[: draw.randint(0, 7)])
    tags = tuple(f"tag{int(40 * draw.random() ** 3):05d}" for _ in range(draw.randint(0, 3)))
    return Contains("tags", tags, draw.choice(["any", "all"]))


def tree(draw: random.Random, depth: int = 3) -> Expr:
    kind = draw.randrange(8) if depth else 7
    if kind < 5:
        children = tuple(tree(draw, depth - 1) for _ in range(draw.randint(1, 3)))
        return And(children) if kind < 3 else Or(children)
    if kind == 5:
        return (Not if draw.random() < 0.6 else IsNotTrue)(tree(draw, depth - 1))
    return leaf(draw)


# ---- SQL


def _name(draw: random.Random, column: str) -> str:
    return f'"{column}"' if draw.random() < 0.3 else column


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literal(draw: random.Random, value: Any) -> str:
    if isinstance(value, dt.datetime):
        text = value.isoformat(sep=draw.choice([" ", "T"]))
        return draw.choice(["TIMESTAMP ", ""]) + _text(text)
    if isinstance(value, bool):
        return str(value).upper()
    return _text(value) if isinstance(value, str) else repr(value)


def _word(draw: random.Random, word: str) -> str:
    return draw.choice([word, word, word.lower()])


def sql(draw: random.Random, expr: Expr) -> str:
    """`expr` as SQL text, in one of the ways to write it."""
    match expr:
        case And(children) | Or(children):
            word = _word(draw, "AND" if isinstance(expr, And) else "OR")
            return "(" + f" {word} ".join(sql(draw, child) for child in children) + ")"
        case Not(IsIn(column, values=values)) if draw.random() < 0.5:
            listed = ", ".join(_literal(draw, value) for value in values)
            return f"{_name(draw, column)} {_word(draw, 'NOT IN')} ({listed})"
        case Not(child):
            return f"{_word(draw, 'NOT')} ({sql(draw, child)})"
        case IsNotTrue(child):
            return f"({sql(draw, child)}) {_word(draw, 'IS NOT TRUE')}"
        case Like(column, pattern=pattern, any_case=any_case):
            word = _word(draw, "ILIKE" if any_case else "LIKE")
            return f"{_name(draw, column)} {word} {_text(pattern)}"
        case Compare(column, op=op, value=value):
            name, literal = _name(draw, column), _literal(draw, value)
            if draw.random() < 0.2:
                return f"{literal} {FLIPPED[op]} {name}"
            return f"{name} {OPS[op]} {literal}"
        case Between(column, low=low, high=high):
            name, first, last = _name(draw, column), _literal(draw, low), _literal(draw, high)
            return draw.choice(
                [f"{name} BETWEEN {first} AND {last}", f"({name} >= {first} AND {name} <= {last})"]
            )
        case IsIn(column, values=values):
            return f"{_name(draw, column)} IN ({', '.join(_literal(draw, value) for value in values)})"
        case IsNull(column):
            return f"{_name(draw, column)} {_word(draw, 'IS NULL')}"
        case StartsWith(column, prefix=prefix):
            name = _name(draw, column)
            return draw.choice(
                [f"{name} LIKE {_text(prefix + '%')}", f"starts_with({name}, {_text(prefix)})"]
            )
        case Contains(column, values=values, mode=mode):
            name, listed = _name(draw, column), ", ".join(map(_text, values))
            if len(values) == 1 and draw.random() < 0.5:
                return f"array_contains({name}, {listed})"
            function = draw.choice([f"array_contains_{mode}", f"has_{mode}", f"array_has_{mode}"])
            return f"{function}({name}, {draw.choice(['ARRAY', ''])}[{listed}])"
    raise AssertionError(expr)


# ---- dicts


def openai(expr: Expr) -> dict[str, Any] | None:
    """`expr` in the manner of OpenAI's vector stores, or None where that has no words for it."""
    match expr:
        case And(children) | Or(children):
            inside = [openai(child) for child in children]
            if None in inside:
                return None
            return {"type": "and" if isinstance(expr, And) else "or", "filters": inside}
        case IsNotTrue(IsIn(column, values=values)):
            return {"type": "nin", "key": column, "value": [_plain(value) for value in values]}
        case IsNotTrue(Compare(column, op="eq", value=value)):
            return {"type": "ne", "key": column, "value": _plain(value)}
        case Compare(column, op=op, value=value) if op != "ne":
            kind = {"le": "lte", "ge": "gte"}.get(op, op)
            return {"type": kind, "key": column, "value": _plain(value)}
        case IsIn(column, values=values):
            return {"type": "in", "key": column, "value": [_plain(value) for value in values]}
    return None


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else value
