"""Conditions on fields of documents, as velo's filters over the columns that hold the fields."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Final

from velo import filters
from velo.errors import FilterTypeError
from velo.integrations.values import TEXTS, Columns, as_date

#: No row passes.
NOTHING: Final = filters.Or(())

_NUMBERS: Final = ("int", "float", "ints", "floats")
_TIMES: Final = ("time", "instant", "date")
_LISTS: Final = ("texts", "ints", "floats")


def kinds_for(value: Any) -> tuple[str, ...]:
    """The kinds of columns that a value can be compared with."""
    if isinstance(value, bool):
        return ("bool",)
    if isinstance(value, int | float):
        return _NUMBERS
    if isinstance(value, date):
        return _TIMES
    return (*TEXTS, *_TIMES) if as_date(value) is not None else TEXTS


def is_missing(field: str, columns: Columns) -> filters.Expr:
    """No value, neither in the field nor in fields inside it."""
    return filters.And(tuple(filters.IsNull(name) for name in columns.within(field)))


def of_fields(expr: filters.Expr, columns: Columns) -> filters.Expr:
    """A filter over columns for a filter that names fields.

    If a field has values of several kinds, a condition tests those that its operand can be compared with. It
    is null if the field is missing, and false for values of other kinds.
    """
    tree: Any = expr
    if isinstance(expr, filters.And | filters.Or):
        return replace(expr, children=tuple(of_fields(one, columns) for one in expr.children))
    if isinstance(expr, filters.Not | filters.IsNotTrue):
        return replace(expr, child=of_fields(expr.child, columns))
    if isinstance(expr, filters.Ids | filters.Mask):
        return expr
    if isinstance(expr, filters.IsNull):
        return is_missing(tree.column, columns) if columns.within(tree.column) else expr
    if isinstance(expr, filters.IsIn):
        return _is_in(expr, columns)
    return _spread(tree, _kinds_of(tree), columns, _named)


def _kinds_of(leaf: Any) -> tuple[str, ...]:
    if leaf.of == "length" or isinstance(leaf, filters.ElementMatch):
        return _LISTS
    if isinstance(leaf, filters.Compare):
        return kinds_for(leaf.value)
    if isinstance(leaf, filters.Between):
        return tuple(kind for kind in kinds_for(leaf.low) if kind in kinds_for(leaf.high))
    if isinstance(leaf, filters.StartsWith | filters.Like):
        return TEXTS
    if isinstance(leaf, filters.Contains):
        kinds = [kinds_for(value) for value in leaf.values]
        return tuple(kind for kind in _LISTS if all(kind in one for one in kinds))
    raise FilterTypeError(f"a condition {type(leaf).__name__} is not known here")


def _named(leaf: Any, name: str) -> filters.Expr:
    if isinstance(leaf, filters.ElementMatch):
        tests = tuple((replace(test, column=name), negated) for test, negated in leaf.tests)
        return replace(leaf, column=name, tests=tests)
    named: filters.Expr = replace(leaf, column=name)
    return named


def _is_in(leaf: filters.IsIn, columns: Columns) -> filters.Expr:
    """Each kind of column is asked for the values that it can have."""
    there = columns.of(leaf.column)
    kinds = tuple(
        kind for kind in there if not leaf.values or any(kind in kinds_for(value) for value in leaf.values)
    )

    def of_kind(leaf: filters.IsIn, name: str) -> filters.Expr:
        kind = next(kind for kind, other in there.items() if other == name)
        return replace(
            leaf, column=name, values=tuple(value for value in leaf.values if kind in kinds_for(value))
        )

    return _spread(leaf, kinds, columns, of_kind)


def _spread(
    leaf: Any, kinds: Sequence[str], columns: Columns, of_column: Callable[[Any, str], filters.Expr]
) -> filters.Expr:
    there = columns.of(leaf.column)
    if not there:
        return _named(leaf, leaf.column)  # a nonexistent column is null in every row
    names = [there[kind] for kind in kinds if kind in there]
    if not names:
        raise FilterTypeError(
            f"filter: the field {leaf.column!r} holds values of kind {', '.join(there)}, with which this "
            f"condition cannot be met: {leaf}",
            argument="filter",
        )
    leaves = tuple(of_column(leaf, name) for name in names)
    everything = columns.within(leaf.column)
    if len(everything) == 1:
        return leaves[0]
    # True where one of them is; null where the field is missing, since the first is null there; else false.
    missing = filters.And(tuple(filters.IsNull(name) for name in everything))
    return filters.Or(
        (*(filters.Not(filters.IsNotTrue(one)) for one in leaves), filters.And((missing, leaves[0])))
    )


# ---- conditions that are true or false of every document, as Python compares values


def equal_to_one_of(field: str, values: Sequence[Any], columns: Columns) -> tuple[filters.Expr, ...]:
    """A field has one of some single values: 1 is 1.0 and True, and None is a missing one."""
    there = columns.of(field)
    texts = tuple(one for one in values if isinstance(one, str))
    numbers = [one for one in values if isinstance(one, int | float) and not is_nan(one)]
    found: list[filters.Expr] = []
    if any(one is None for one in values):
        found.append(is_missing(field, columns))
    if texts and "text" in there:
        found.append(filters.IsIn(there["text"], texts))
    if "int" in there:
        whole = tuple(int(one) for one in numbers if not _is_infinite(one) and int(one) == one)
        found.append(filters.IsIn(there["int"], whole))
    if "float" in there:
        found.append(filters.IsIn(there["float"], tuple(_exact_floats(numbers))))
    if "bool" in there:
        found.append(filters.IsIn(there["bool"], tuple({bool(one) for one in numbers if one in (0, 1)})))
    return tuple(found)


def in_order(field: str, op: Any, value: float, columns: Columns) -> filters.Expr:
    """A field is above or below a number; bools are 0 and 1."""
    there = columns.of(field)
    number = int(value) if isinstance(value, bool) else value
    found: list[filters.Expr] = [
        filters.Compare(there[kind], op, number) for kind in ("int", "float") if kind in there
    ]
    if "bool" in there:
        meets = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}[op]
        found.append(filters.IsIn(there["bool"], tuple(one for one in (False, True) if meets(one, number))))
    return filters.Or(tuple(found))


def is_nan(value: Any) -> bool:
    """Whether a value is no number, which equals nothing."""
    return isinstance(value, float) and math.isnan(value)


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def _exact_floats(numbers: Sequence[Any]) -> Iterator[float]:
    """Those that a float is equal to, as floats."""
    for one in numbers:
        with contextlib.suppress(OverflowError):
            if float(one) == one:
                yield float(one)
