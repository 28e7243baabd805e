"""Binding of a condition tree to the columns of an index: names, types and constants are checked here.

``not`` is moved to the leaves on the way, so that the bound tree tests for "true" alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import FilterError, FilterTypeError, UnknownColumnError
from velo.filters import tree
from velo.filters.arrow_values import numpy_of, texts_of
from velo.filters.columns import FilterColumn
from velo.filters.constants import constant
from velo.filters.domain import Domain, Intervals, RankSpace, WholeSpace, complement, intersection, normal
from velo.filters.program import (
    CONTAINS_ALL_MAX,
    Fixed,
    ListContains,
    ListNull,
    Node,
    Rows,
    joined,
    scalar_node,
)
from velo.filters.values import VALUES_MAX, refusal, refuse
from velo.types import AnyArray

#: From this number of strings on they are looked up all at once.
_BULK: Final = 64


class Binder:
    """Binds conditions to columns.

    `made` returns a column that is derived from a stored one (a list's length, a field of a struct, a
    decimal), `listed` the rows of ``Ids`` or ``Mask`` as a bool for each vertex. With `unknown_is_missing` a
    column that does not exist is null in every row instead of being an error.
    """

    def __init__(
        self,
        columns: Mapping[str, FilterColumn],
        made: Callable[[str, str], FilterColumn | None] | None = None,
        listed: Callable[[tree.Ids | tree.Mask], AnyArray] | None = None,
        *,
        unknown_is_missing: bool = False,
    ) -> None:
        self._columns = columns
        self._made = made
        self._listed = listed
        self._unknown_is_missing = unknown_is_missing

    def bind(self, expr: tree.Expr, want: tree.Want = tree.Want.TRUE, position: str = "$") -> Node:
        """The node of the rows that `want` asks for."""
        match expr:
            case tree.Not(child):
                return self.bind(child, want.of_not, f"{position}.$not")
            case tree.IsNotTrue(child):
                return self.bind(child, want.of_not_true, position)
            case tree.And(children) | tree.Or(children):
                every = isinstance(expr, tree.And) == want.positive
                inside = f"{position}.${'and' if isinstance(expr, tree.And) else 'or'}"
                bound = [self.bind(child, want, f"{inside}[{at}]") for at, child in enumerate(children)]
                return joined(every, bound)
            case tree.Ids() | tree.Mask():
                if self._listed is None:
                    refuse(FilterError, "ids and masks need an index", position)
                passes = self._listed(expr)
                return Rows(passes if want.positive else ~passes)
        assert isinstance(expr, tree.Leaf)
        place = expr.position or f"{position}.{expr.column}"
        column = self._column(expr.column, expr.of, place)
        if column is None:
            passing = want.positive if isinstance(expr, tree.IsNull) else want.null
            return Fixed(passing)
        if isinstance(expr, tree.IsNull):
            return _null_test(column, not want.positive)
        if isinstance(expr, tree.Contains) or column.is_list:
            return _in_list(column, expr, want, place)
        if isinstance(expr, tree.ElementMatch):
            _no_list(column, place)
        if isinstance(expr, tree.Compare) and expr.op == "ne":
            want = want.of_not
        domain = Domain(_intervals(column, expr, place))
        if not want.positive:
            domain = domain.negated(column.space, column.has_nan)
        if want.null and column.has_nulls:
            domain |= Domain((), null=True)
        return scalar_node(column, domain)

    def _column(self, name: str, of: str, position: str) -> FilterColumn | None:
        column = self._columns.get(name)
        if of == "value" and column is not None and column.native_type is not None:
            return column
        made = None if self._made is None else self._made(name, of)
        if made is not None:
            return made
        if column is None:
            if self._unknown_is_missing:
                return None
            near = difflib.get_close_matches(name, self._columns, 1)
            known = (
                ", ".join(map(repr, list(self._columns)[:20])) or "none: the index was built without metadata"
            )
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {known}"
            refuse(UnknownColumnError, f"there is no column {name!r}; {hint}", position)
        if of == "length":
            message = f"column {name!r} of type {column.arrow_type} holds no lists, so it has no length"
        else:
            message = (
                f"column {name!r} of type {column.arrow_type} is returned with hits but cannot be filtered on"
            )
            if pa.types.is_struct(column.arrow_type):
                fields = ", ".join(f"{name}.{field.name}" for field in column.arrow_type)
                message = f"column {name!r} holds structs; ask for one of their fields: {fields}"
            elif pa.types.is_decimal(column.arrow_type):
                message = f"column {name!r} of type {column.arrow_type} has values beyond 64 bits"
        raise refusal(FilterTypeError, message, position)


def _null_test(column: FilterColumn, negated: bool) -> Node:
    if not column.has_nulls:
        return Fixed(negated)
    if column.is_list:
        return ListNull(column, not negated)
    if negated:
        full: Intervals = ((column.space.low, column.space.high),)
        there = full if column.space.high >= column.space.low else ()
        return scalar_node(column, Domain(there, column.has_nan))
    return scalar_node(column, Domain((), null=True))


def _intervals(column: FilterColumn, expr: tree.Leaf, place: str) -> Intervals:
    """The values, or the elements of lists, that meet a condition."""
    space = column.space
    match expr:
        case tree.StartsWith(prefix=prefix):
            return _texts(column, place).with_prefix(prefix)
        case tree.Like(pattern=pattern, any_case=any_case):
            return _texts(column, place).with_form(pattern, any_case)
        case tree.IsIn(values=values):
            return normal((rank, rank) for rank in _ranks(column, _constants(column, values, place)))
        case tree.Between(low=low, high=high):
            first, last = constant(column, low, place), constant(column, high, place)
            _ordered(column, place)
            return normal([(space.ceil(first), space.floor(last))])
        case tree.Compare(op=op, value=given):
            return _compared(column, op, given, place)
    raise AssertionError(expr)


def _compared(column: FilterColumn, op: str, literal: Any, place: str) -> Intervals:
    space = column.space
    value = constant(column, literal, place)
    if op not in ("eq", "ne"):
        _ordered(column, place)
    match op:
        case "eq" | "ne":
            pair = (space.ceil(value), space.floor(value))
        case "ge":
            pair = (space.ceil(value), space.high)
        case "gt":
            pair = (space.floor(value) + 1, space.high)
        case "le":
            pair = (space.low, space.floor(value))
        case _:
            pair = (space.low, space.ceil(value) - 1)
    return normal([pair])


def _texts(column: FilterColumn, place: str) -> RankSpace:
    space = column.space
    if column.kind != "string" or not isinstance(space, RankSpace):
        message = f"column {column.name!r} of type {column.arrow_type} has no strings"
        refuse(FilterTypeError, message, place)
    return space


def _constants(column: FilterColumn, values: tuple[Any, ...], place: str) -> list[Any]:
    kinds = set(map(type, values))
    if (column.kind == "int" and kinds <= {int}) or (column.kind == "string" and kinds <= {str}):
        return list(values)
    return [constant(column, value, f"{place}[{at}]") for at, value in enumerate(values)]


def _ordered(column: FilterColumn, place: str) -> None:
    if column.kind == "bool":
        refuse(
            FilterTypeError,
            f"column {column.name!r} of type bool has no order; compare it with == or !=",
            place,
        )


def _ranks(column: FilterColumn, values: list[Any]) -> list[int]:
    """The ranks of those constants that the column's type, or its dictionary, has."""
    space = column.space
    if isinstance(space, RankSpace):
        if len(values) < _BULK or column.kind != "string":
            return list(space.ranks(values))
        found = pc.index_in(texts_of(values), value_set=space.dictionary)
        bulk: list[int] = np.unique(numpy_of(found.drop_null(), np.int32)).tolist()
        return bulk
    if isinstance(space, WholeSpace) and set(map(type, values)) <= {int}:
        return [value for value in values if space.low <= value <= space.high]
    ranks = []
    for value in values:
        rank = space.ceil(value)
        if rank == space.floor(value):
            ranks.append(rank)
    return ranks


# ---- lists


def _no_list(column: FilterColumn, place: str) -> NoReturn:
    hint = "ask with == or isin ($eq, $in)"
    message = f"column {column.name!r} of type {column.arrow_type} holds no lists; {hint}"
    refuse(FilterTypeError, message, place)


def _in_list(column: FilterColumn, expr: tree.Leaf, want: tree.Want, place: str) -> Node:
    """The rows whose list holds what a condition asks for."""
    if not column.is_list:
        _no_list(column, place)
    every = False
    if isinstance(expr, tree.Contains):
        checked = _constants(column, expr.values, place)
        found = sorted(set(_ranks(column, checked)))
        every = expr.mode == "all"
        if every and not found:
            return _whole(column, not checked, want)  # nothing asked for; or a value that no list has
        if every and len(found) < len(set(checked)):
            return _whole(column, False, want)
    elif isinstance(expr, tree.Compare | tree.IsIn) and (
        isinstance(expr, tree.IsIn) or expr.op in ("eq", "ne")
    ):
        values = expr.values if isinstance(expr, tree.IsIn) else (expr.value,)
        found = sorted(set(_ranks(column, _constants(column, values, place))))
        if isinstance(expr, tree.Compare) and expr.op == "ne":
            want = want.of_not
    else:
        found = _members(column, _element_intervals(column, expr, place), place)
    if every and len(found) > CONTAINS_ALL_MAX:
        refuse(FilterError, f"contains_all takes at most {CONTAINS_ALL_MAX} values", place)
    if not found:
        return _whole(column, False, want)
    loose = want.null and column.has_nulls
    return ListContains(column, every or len(found) == 1, tuple(found), not want.positive, loose)


def _whole(column: FilterColumn, holds: bool, want: tree.Want) -> Node:
    """The node of a condition that holds for every list, or for none."""
    parts = [_null_test(column, False)] if want.null else []
    if holds == want.positive:
        parts.append(_null_test(column, True))
    return joined(False, parts)


def _element_intervals(column: FilterColumn, expr: tree.Leaf, place: str) -> Intervals:
    if not isinstance(expr, tree.ElementMatch):
        return _intervals(column, expr, place)
    space = column.space
    intervals: Intervals = normal([(space.low, space.high)])
    for test, negated in expr.tests:
        meeting = _intervals(column, test, test.position or place)
        intervals = intersection(intervals, complement(meeting, space) if negated else meeting)
    return intervals


def _members(column: FilterColumn, intervals: Intervals, place: str) -> list[int]:
    """The elements that the lists of a column have within intervals."""
    if all(low == high for low, high in intervals):
        return [low for low, _ in intervals]
    there = column.distinct
    found: list[int] = []
    for low, high in intervals:
        first, last = (int(at) for at in np.searchsorted(there, [low, min(high, 2**63 - 1)], "left"))
        last += int(last < len(there) and int(there[last]) == high)
        if len(found) + last - first > VALUES_MAX:
            refuse(FilterError, f"more than {VALUES_MAX} different elements meet this", place)
        found += there[first:last].tolist()
    return found
