"""A filter bound to its columns, and its bytecode, which the library runs (docs/FORMAT.md describes it)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from velo.errors import FilterError
from velo.filters.columns import FilterColumn, NativeType
from velo.filters.domain import Domain, Intervals, cardinality, complement
from velo.filters.values import refuse
from velo.types import AnyArray

#: Values that one ``contains_all`` step of a program can test.
CONTAINS_ALL_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Fixed:
    value: bool


@dataclass(frozen=True, slots=True)
class Scalar:
    column: FilterColumn
    domain: Domain


@dataclass(frozen=True, slots=True)
class ListNull:
    column: FilterColumn
    null: bool


@dataclass(frozen=True, slots=True)
class ListContains:
    """The list holds all (or any) of the values; negated: it is valid and does not; null: or it is null."""

    column: FilterColumn
    every: bool
    values: tuple[int, ...]
    negated: bool
    null: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    every: bool
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows by number: a bool for each vertex."""

    passes: AnyArray


Node: TypeAlias = Fixed | Scalar | ListNull | ListContains | Join | Rows


def scalar_node(column: FilterColumn, domain: Domain) -> Node:
    """The node of a set of values; :class:`Fixed` where that is everything or nothing."""
    if domain.is_empty:
        return Fixed(False)
    space = column.space
    whole = complement(domain.intervals, space) == () and domain.nan == column.has_nan
    if whole and (domain.null or not column.has_nulls):
        return Fixed(True)
    return Scalar(column, domain)


def joined(every: bool, nodes: list[Node]) -> Node:
    """All (or any) of `nodes`: nested joins flattened, a column's conditions merged, constants removed."""
    children: list[Node] = []
    scalars: dict[str, Scalar] = {}
    for node in nodes:
        for one in node.children if isinstance(node, Join) and node.every == every else (node,):
            if isinstance(one, Scalar):
                before = scalars.get(one.column.name)
                if before is not None:
                    both = before.domain & one.domain if every else before.domain | one.domain
                    one = Scalar(one.column, both)
                scalars[one.column.name] = one
            else:
                children.append(one)
    children = [*(scalar_node(one.column, one.domain) for one in scalars.values()), *children]
    if any(isinstance(child, Fixed) and child.value != every for child in children):
        return Fixed(not every)
    children = [child for child in children if not isinstance(child, Fixed)]
    if len(children) == 1:
        return children[0]
    return Join(every, tuple(children)) if children else Fixed(every)


def owners_of(node: Node) -> set[Any]:
    """The owners of the columns that a node reads: None is the index, others are derived columns."""
    if isinstance(node, Join):
        return set().union(*(owners_of(child) for child in node.children))
    if isinstance(node, Scalar | ListNull | ListContains):
        return {node.column.owner}
    return set()


def decided(node: Node, of_all: Callable[[Scalar | ListNull | ListContains], bool | None]) -> Node:
    """`node` without the conditions for which `of_all` returns one truth for all rows, not None."""
    if isinstance(node, Join):
        return joined(node.every, [decided(child, of_all) for child in node.children])
    told = of_all(node) if isinstance(node, Scalar | ListNull | ListContains) else None
    return node if told is None else Fixed(told)


def has_rows(node: Node) -> bool:
    """Whether it contains rows by number."""
    return isinstance(node, Rows) or (isinstance(node, Join) and any(map(has_rows, node.children)))


_MAGIC: Final = b"VFLT"
_VERSION: Final = 1
_INSTRUCTIONS_MAX: Final = 4096
#: A set of up to this number of values is written out; a larger one as ranges where those are fewer.
_SET_MAX: Final = 4096

_RANGE, _IN_SET, _IS_NULL, _CONTAINS_ANY, _CONTAINS_ALL = range(1, 6)
_ALWAYS, _NEVER, _ALL, _ANY, _NOT = range(6, 11)


def program_of(node: Node) -> bytes:
    """The program of a bound filter whose columns all have one owner."""
    return _Writer().program(node)


class _Writer:
    def __init__(self) -> None:
        self._columns: dict[str, tuple[int, FilterColumn]] = {}
        self._instructions: list[bytes] = []
        self._operands: list[bytes] = []
        self._operand_count = 0

    def program(self, root: Node) -> bytes:
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

    def _node(self, node: Node) -> None:
        match node:
            case Fixed(value):
                self._put(_ALWAYS if value else _NEVER)
            case Scalar(column, domain):
                self._domain(column, domain)
            case ListNull(column, null):
                self._put(_IS_NULL, column)
                if not null:
                    self._put(_NOT)
            case ListContains(column, every, values, negated, null):
                if null:
                    self._put(_IS_NULL, column)
                packed = np.array(values, np.int64).astype("<i8").tobytes()
                self._put(_CONTAINS_ALL if every else _CONTAINS_ANY, column, packed)
                if negated:
                    self._put(_NOT)
                if null:
                    self._put(_ANY, count=2)
            case Join(every, children):
                for child in children:
                    self._node(child)
                self._put(_ALL if every else _ANY, count=len(children))
            case _:
                raise AssertionError("rows by number are no part of a program")

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
    """The approximate number of instructions of a set; one value costs as much as one range."""
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
