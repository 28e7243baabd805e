"""From a tree of conditions to the byte code that the library runs (drawn in docs/FORMAT.md).

The tree is checked against the columns, ``~`` is moved to the leaves (De Morgan's laws hold in three-valued
logic; from there on only "true" matters), and conditions on one column are merged into one set of values.
What comes out is the same for all trees that differ only in how they are written.
"""

from __future__ import annotations

import difflib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import FilterError, FilterTypeError, UnknownColumnError
from velo.filters.columns import FilterColumn, NativeType
from velo.filters.constants import constant
from velo.filters.domain import Domain, Intervals, RankSpace, WholeSpace, cardinality, complement, normal
from velo.filters.tree import (
    And,
    Between,
    Compare,
    Contains,
    Expr,
    IsIn,
    IsNull,
    Not,
    Or,
    StartsWith,
    refuse,
)

__all__ = ["compile_program"]

_MAGIC: Final = b"VFLT"
_VERSION: Final = 1
_INSTRUCTIONS_MAX: Final = 4096
_CONTAINS_ALL_MAX: Final = 1024
#: Up to so many values a set is written out; beyond, as ranges where those are fewer.
_SET_MAX: Final = 4096
#: From so many strings on they are looked up all at once.
_BULK: Final = 64

_RANGE, _IN_SET, _IS_NULL, _CONTAINS_ANY, _CONTAINS_ALL = range(1, 6)
_ALWAYS, _NEVER, _ALL, _ANY, _NOT = range(6, 11)


# ---- conditions without `not`: "true" is all that matters


@dataclass(frozen=True, slots=True)
class _Fixed:
    value: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (0, self.value)


@dataclass(frozen=True, slots=True)
class _Scalar:
    column: FilterColumn
    domain: Domain

    @property
    def key(self) -> tuple[Any, ...]:
        domain = self.domain
        return (1, self.column.name, domain.null, domain.nan, domain.intervals)


@dataclass(frozen=True, slots=True)
class _ListNull:
    column: FilterColumn
    null: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (2, self.column.name, self.null)


@dataclass(frozen=True, slots=True)
class _Held:
    """The list holds all (or any) of the values; negated: it is valid and does not."""

    column: FilterColumn
    every: bool
    values: tuple[int, ...]
    negated: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (3, self.column.name, self.every, self.negated, self.values)


@dataclass(frozen=True, slots=True)
class _Join:
    every: bool
    children: tuple[_Node, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (4, self.every, tuple(child.key for child in self.children))


_Node: TypeAlias = _Fixed | _Scalar | _ListNull | _Held | _Join


def compile_program(expr: Expr, columns: Mapping[str, FilterColumn]) -> bytes:
    """The program of `expr` over `columns`.

    Raises
    ------
    UnknownColumnError, FilterTypeError, FilterError
        With the position in the filter.
    """
    return _Writer().program(_Binder(columns).bind(expr, False, "$"))


class _Binder:
    def __init__(self, columns: Mapping[str, FilterColumn]) -> None:
        self._columns = columns

    def bind(self, expr: Expr, negated: bool, position: str) -> _Node:
        match expr:
            case Not(child):
                return self.bind(child, not negated, f"{position}.$not")
            case And(children) | Or(children):
                every = isinstance(expr, And) != negated
                inside = f"{position}.${'and' if isinstance(expr, And) else 'or'}"
                bound = [self.bind(child, negated, f"{inside}[{at}]") for at, child in enumerate(children)]
                return _join(every, bound)
        assert isinstance(expr, Compare | Between | IsIn | IsNull | StartsWith | Contains)
        place = expr.position or f"{position}.{expr.column}"
        column = self._column(expr.column, place)
        if isinstance(expr, IsNull):
            return _null_test(column, negated)
        if isinstance(expr, Contains):
            return _held(column, expr, negated, place)
        if column.is_list:
            hint = "ask with contains_any or contains_all ($any, $all)"
            refuse(
                FilterTypeError,
                f"column {column.name!r} of type {column.arrow_type} holds lists; {hint}",
                place,
            )
        domain = Domain(_intervals(column, expr, place))
        if isinstance(expr, Compare) and expr.op == "ne":
            negated = not negated
        return _scalar(column, domain.negated(column.space, column.has_nan) if negated else domain)

    def _column(self, name: str, position: str) -> FilterColumn:
        column = self._columns.get(name)
        if column is None:
            near = difflib.get_close_matches(name, self._columns, 1)
            known = (
                ", ".join(map(repr, list(self._columns)[:20])) or "none: the index was built without metadata"
            )
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {known}"
            refuse(UnknownColumnError, f"there is no column {name!r}; {hint}", position)
        if column.native_type is None:
            message = (
                f"column {name!r} of type {column.arrow_type} is returned with hits but cannot be filtered on"
            )
            refuse(FilterTypeError, message, position)
        return column


def _null_test(column: FilterColumn, negated: bool) -> _Node:
    if not column.has_nulls:
        return _Fixed(negated)
    if column.is_list:
        return _ListNull(column, not negated)
    if negated:
        full: Intervals = ((column.space.low, column.space.high),)
        return _scalar(column, Domain(full if column.space.high >= column.space.low else (), column.has_nan))
    return _scalar(column, Domain((), null=True))


def _intervals(column: FilterColumn, expr: Compare | Between | IsIn | StartsWith, place: str) -> Intervals:
    space = column.space
    match expr:
        case StartsWith(prefix=prefix):
            if not isinstance(space, RankSpace):
                refuse(
                    FilterTypeError,
                    f"column {column.name!r} of type {column.arrow_type} has no strings",
                    place,
                )
            return space.with_prefix(prefix)
        case IsIn(values=values):
            return normal((rank, rank) for rank in _ranks(column, _constants(column, values, place)))
        case Between(low=low, high=high):
            first, last = constant(column, low, place), constant(column, high, place)
            _ordered(column, place)
            return normal([(space.ceil(first), space.floor(last))])
    value = constant(column, expr.value, place)
    if expr.op not in ("eq", "ne"):
        _ordered(column, place)
    match expr.op:
        case "eq" | "ne":
            pair = (space.ceil(value), space.floor(value))
        case "ge":
            pair = (space.ceil(value), space.high)
        case "gt":
            pair = (space.floor(value) + 1, space.high)
        case "le":
            pair = (space.low, space.floor(value))
        case "lt":
            pair = (space.low, space.ceil(value) - 1)
    return normal([pair])


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
        found = pc.index_in(pa.array(values, pa.large_string()), value_set=space.dictionary)
        bulk: list[int] = np.unique(np.asarray(found.drop_null())).tolist()
        return bulk
    if isinstance(space, WholeSpace) and set(map(type, values)) <= {int}:
        return [value for value in values if space.low <= value <= space.high]
    ranks = []
    for value in values:
        rank = space.ceil(value)
        if rank == space.floor(value):
            ranks.append(rank)
    return ranks


def _held(column: FilterColumn, expr: Contains, negated: bool, place: str) -> _Node:
    if not column.is_list:
        hint = "ask with == or isin ($eq, $in)"
        message = f"column {column.name!r} of type {column.arrow_type} holds no lists; {hint}"
        refuse(FilterTypeError, message, place)
    checked = _constants(column, expr.values, place)
    found = sorted(set(_ranks(column, checked)))
    every = expr.mode == "all"
    valid = _null_test(column, True)
    if every:
        missing = len(found) < len(set(checked))
        if missing or not found:  # a value that no list has; or nothing asked for
            holds = not missing
            return valid if holds != negated else _Fixed(False)
        if len(found) > _CONTAINS_ALL_MAX:
            refuse(FilterError, f"contains_all takes at most {_CONTAINS_ALL_MAX} values", place)
    elif not found:
        return valid if negated else _Fixed(False)
    return _Held(column, every or len(found) == 1, tuple(found), negated)


def _scalar(column: FilterColumn, domain: Domain) -> _Node:
    if domain.is_empty:
        return _Fixed(False)
    space = column.space
    whole = complement(domain.intervals, space) == () and domain.nan == column.has_nan
    if whole and (domain.null or not column.has_nulls):
        return _Fixed(True)
    return _Scalar(column, domain)


# ---- joining


def _join(every: bool, nodes: list[_Node]) -> _Node:
    """All (or any) of `nodes`: nested joins taken apart, a column's conditions merged, sorted, none twice."""
    flat: list[_Node] = []
    for node in nodes:
        flat.extend(node.children if isinstance(node, _Join) and node.every == every else (node,))
    merged: list[_Node] = []
    scalars: dict[str, Domain] = {}
    held: dict[tuple[str, bool], tuple[_Held, set[int]]] = {}
    columns: dict[str, FilterColumn] = {}
    for node in flat:
        if isinstance(node, _Fixed):
            if node.value != every:
                return node
        elif isinstance(node, _Scalar):
            name = node.column.name
            columns[name] = node.column
            before = scalars.get(name)
            if before is None:
                scalars[name] = node.domain
            else:
                scalars[name] = before & node.domain if every else before | node.domain
        elif isinstance(node, _Held) and _merges(node, every):
            # "holds a" and "holds b" is "holds all of a, b"; "not any of a" and "not b" is "not any of a, b".
            held.setdefault((node.column.name, node.negated), (node, set()))[1].update(node.values)
        else:
            merged.append(node)
    for name, domain in scalars.items():
        node = _scalar(columns[name], domain)
        if isinstance(node, _Fixed):
            if node.value != every:
                return node
        else:
            merged.append(node)
    for first, values in held.values():
        merged.extend(_held_parts(first, values, every))
    unique = _absorbed(every, {node.key: node for node in merged})
    if unique is None:
        return _Fixed(not every)
    if not unique:
        return _Fixed(every)
    if len(unique) == 1:
        return next(iter(unique.values()))
    return _Join(every, tuple(unique[key] for key in sorted(unique)))


def _absorbed(every: bool, nodes: dict[Any, _Node]) -> dict[Any, _Node] | None:
    """`nodes` without those that say nothing beside the others; None where two of them decide the whole.

    A list that holds something is valid; ``a & (a | b)`` is a, ``a | (a & b)`` is a.
    """
    kept: dict[Any, _Node] = {}
    null_tests = {(node.column.name, node.null) for node in nodes.values() if isinstance(node, _ListNull)}
    for key, node in nodes.items():
        if isinstance(node, _ListNull):
            if (node.column.name, not node.null) in null_tests:
                return None
            held = any(isinstance(one, _Held) and one.column is node.column for one in nodes.values())
            if held and every and node.null:
                return None
            if held and every:
                continue
        elif isinstance(node, _Held):
            if not every and (node.column.name, False) in null_tests:
                continue
        elif isinstance(node, _Join) and any(child.key in nodes for child in node.children):
            continue
        kept[key] = node
    return kept


def _merges(node: _Held, every: bool) -> bool:
    wanted = every != node.negated  # which of contains_all and contains_any this join makes one of
    return len(node.values) == 1 or node.every == wanted


def _held_parts(first: _Held, values: set[int], every: bool) -> list[_Node]:
    ordered = sorted(values)
    as_all = every != first.negated
    step = _CONTAINS_ALL_MAX if as_all else len(ordered)
    parts = [tuple(ordered[at : at + step]) for at in range(0, len(ordered), step)]
    return [_Held(first.column, as_all or len(part) == 1, part, first.negated) for part in parts]


# ---- bytes


class _Writer:
    def __init__(self) -> None:
        self._columns: dict[str, tuple[int, FilterColumn]] = {}
        self._instructions: list[bytes] = []
        self._operands: list[bytes] = []
        self._operand_count = 0

    def program(self, root: _Node) -> bytes:
        self._node(root)
        if len(self._instructions) > _INSTRUCTIONS_MAX:
            count = len(self._instructions)
            refuse(FilterError, f"it takes {count} steps, at most {_INSTRUCTIONS_MAX} are possible")
        names = b""
        table = b""
        for name, (_, column) in self._columns.items():
            encoded = name.encode()
            if len(encoded) > 0xFFFF:
                refuse(FilterError, f"a column's name of {len(encoded)} bytes is too long to be filtered on")
            assert column.native_type is not None
            table += struct.pack("<IHH", len(names), len(encoded), column.native_type)
            names += encoded
        names += bytes(-len(names) % 8)
        instructions = b"".join(self._instructions)
        operands = b"".join(self._operands)
        size = 32 + len(table) + len(names) + len(instructions) + len(operands)
        counts = (len(self._columns), len(self._instructions), len(names), self._operand_count, size)
        header = struct.pack("<4sHHIIQQ", _MAGIC, _VERSION, *counts)
        return b"".join((header, table, names, instructions, operands))

    def _put(
        self, opcode: int, column: FilterColumn | None = None, operands: bytes = b"", count: int | None = None
    ) -> None:
        index = 0
        if column is not None:
            index = self._columns.setdefault(column.name, (len(self._columns), column))[0]
        first = self._operand_count
        if count is None:
            count = len(operands) // 8
            self._operand_count += count
            self._operands.append(operands)
        self._instructions.append(struct.pack("<BBHIQ", opcode, 0, index, count, first))

    def _node(self, node: _Node) -> None:
        match node:
            case _Fixed(value):
                self._put(_ALWAYS if value else _NEVER)
            case _Scalar(column, domain):
                self._domain(column, domain)
            case _ListNull(column, null):
                self._put(_IS_NULL, column)
                if not null:
                    self._put(_NOT)
            case _Held(column, every, values, negated):
                packed = np.array(values, np.int64).astype("<i8").tobytes()
                self._put(_CONTAINS_ALL if every else _CONTAINS_ANY, column, packed)
                if negated:
                    self._put(_NOT)
            case _Join(every, children):
                for child in children:
                    self._node(child)
                self._put(_ALL if every else _ANY, count=len(children))

    def _domain(self, column: FilterColumn, domain: Domain) -> None:
        parts = 0
        if domain.null:
            self._put(_IS_NULL, column)
            parts += 1
        if domain.intervals or domain.nan:
            self._values(column, domain)
            parts += 1
        if parts > 1:
            self._put(_ANY, count=parts)

    def _values(self, column: FilterColumn, domain: Domain) -> None:
        """The valid values of `domain`, directly or as what is left without the others."""
        others = complement(domain.intervals, column.space)
        if not others and domain.nan == column.has_nan:
            self._put(_IS_NULL, column)
            self._put(_NOT)
        elif column.has_nan and domain.nan:
            self._put_not(column, others)  # a negated leaf passes NaN, a plain one does not
        elif _steps(others) >= _steps(domain.intervals):
            self._set(column, domain.intervals)
        elif column.has_nan:
            self._set(column, ((column.space.low, column.space.high),))
            self._put_not(column, others)
            self._put(_ALL, count=2)
        else:
            self._put_not(column, others)

    def _put_not(self, column: FilterColumn, intervals: Intervals) -> None:
        self._set(column, intervals)
        self._put(_NOT)

    def _set(self, column: FilterColumn, intervals: Intervals) -> None:
        pack = _packer(column)
        if len(intervals) > 1 and cardinality(intervals) <= max(_SET_MAX, 2 * len(intervals)):
            self._put(
                _IN_SET, column, pack([rank for low, high in intervals for rank in range(low, high + 1)])
            )
            return
        ranges = [pair for pair in intervals if pair[0] != pair[1]]
        points = [low for low, high in intervals if low == high]
        for pair in ranges:
            self._put(_RANGE, column, pack(list(pair)))
        parts = len(ranges)
        if points or not ranges:
            self._put(_IN_SET, column, pack(points))
            parts += 1
        if parts > 1:
            self._put(_ANY, count=parts)


def _steps(intervals: Intervals) -> int:
    """How many instructions a set takes, roughly; one value is as good as one range."""
    if len(intervals) > 1 and cardinality(intervals) <= max(_SET_MAX, 2 * len(intervals)):
        return 2
    return 1 + sum(low != high for low, high in intervals)


def _packer(column: FilterColumn) -> Callable[[list[int]], bytes]:
    space = column.space
    if column.native_type in (NativeType.F32, NativeType.F64):
        value = space.value  # type: ignore[attr-defined]
        return lambda ranks: np.array([value(rank) for rank in ranks], "<f8").tobytes()
    if column.native_type in (NativeType.U8, NativeType.U16, NativeType.U32, NativeType.U64):
        return lambda ranks: np.array(ranks, np.uint64).astype("<u8").tobytes()
    return lambda ranks: np.array(ranks, np.int64).astype("<i8").tobytes()
