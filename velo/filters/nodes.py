"""A filter bound to its columns: conditions without ``not``, of which only "true" matters, in one order.

``~`` was moved to the leaves before (De Morgan's laws hold in three-valued logic), and conditions on one
column are merged into one set of values. What comes out is the same for all trees that differ only in how
they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from velo.filters.columns import FilterColumn
from velo.filters.domain import Domain, complement
from velo.types import AnyArray

__all__ = [
    "CONTAINS_ALL_MAX",
    "Fixed",
    "Held",
    "Join",
    "ListNull",
    "Node",
    "Rows",
    "Scalar",
    "decided",
    "has_rows",
    "joined",
    "owners_of",
    "scalar_node",
]

#: Values that one step of a program looks for in a list, all of them.
CONTAINS_ALL_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Fixed:
    value: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (0, self.value)


@dataclass(frozen=True, slots=True)
class Scalar:
    column: FilterColumn
    domain: Domain

    @property
    def key(self) -> tuple[Any, ...]:
        domain = self.domain
        return (1, self.column.name, domain.null, domain.nan, domain.intervals)


@dataclass(frozen=True, slots=True)
class ListNull:
    column: FilterColumn
    null: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (2, self.column.name, self.null)


@dataclass(frozen=True, slots=True)
class Held:
    """The list holds all (or any) of the values; negated: it is valid and does not; null: or it is null."""

    column: FilterColumn
    every: bool
    values: tuple[int, ...]
    negated: bool
    null: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        return (3, self.column.name, self.every, self.negated, self.null, self.values)


@dataclass(frozen=True, slots=True)
class Join:
    every: bool
    children: tuple[Node, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (4, self.every, tuple(child.key for child in self.children))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows by number: a bool for each vertex."""

    passes: AnyArray

    @property
    def key(self) -> tuple[Any, ...]:
        return (5, id(self.passes))


Node: TypeAlias = Fixed | Scalar | ListNull | Held | Join | Rows


def scalar_node(column: FilterColumn, domain: Domain) -> Node:
    """The node of a set of values, where that is not all or nothing."""
    if domain.is_empty:
        return Fixed(False)
    space = column.space
    whole = complement(domain.intervals, space) == () and domain.nan == column.has_nan
    if whole and (domain.null or not column.has_nulls):
        return Fixed(True)
    return Scalar(column, domain)


# ---- joining


def joined(every: bool, nodes: list[Node]) -> Node:
    """All (or any) of `nodes`: nested joins taken apart, a column's conditions merged, sorted, none twice."""
    flat: list[Node] = []
    for node in nodes:
        flat.extend(node.children if isinstance(node, Join) and node.every == every else (node,))
    flat = _settled(every, flat)
    merged: list[Node] = []
    scalars: dict[str, Domain] = {}
    held: dict[tuple[str, bool, bool], tuple[Held, set[int]]] = {}
    columns: dict[str, FilterColumn] = {}
    for node in flat:
        if isinstance(node, Fixed):
            if node.value != every:
                return node
        elif isinstance(node, Scalar):
            name = node.column.name
            columns[name] = node.column
            before = scalars.get(name)
            if before is None:
                scalars[name] = node.domain
            else:
                scalars[name] = before & node.domain if every else before | node.domain
        elif isinstance(node, Held) and _merges(node, every):
            # "holds a" and "holds b" is "holds all of a, b"; "not any of a" and "not b" is "not any of a, b".
            held.setdefault((node.column.name, node.negated, node.null), (node, set()))[1].update(node.values)
        else:
            merged.append(node)
    for name, domain in scalars.items():
        node = scalar_node(columns[name], domain)
        if isinstance(node, Fixed):
            if node.value != every:
                return node
        else:
            merged.append(node)
    for first, values in held.values():
        merged.extend(_held_parts(first, values, every))
    unique = _absorbed(every, {node.key: node for node in merged})
    if unique is None:
        return Fixed(not every)
    if not unique:
        return Fixed(every)
    if len(unique) == 1:
        return next(iter(unique.values()))
    return Join(every, tuple(unique[key] for key in sorted(unique)))


def _settled(every: bool, nodes: list[Node]) -> list[Node]:
    """`nodes` with what is said of a null list said once: by all conditions on it, or by none."""
    nulls = {node.column.name for node in nodes if isinstance(node, ListNull) and node.null}
    valid = {node.column.name for node in nodes if isinstance(node, ListNull) and not node.null}
    strict = {node.column.name for node in nodes if isinstance(node, Held) and not node.null}
    loose = {node.column.name for node in nodes if isinstance(node, Held) and node.null}
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Held) and every and node.null:
            if node.column.name in valid | strict:
                node = replace(node, null=False)
            elif node.column.name in nulls:
                continue
        elif isinstance(node, Held) and not every and not node.null:
            if node.column.name in nulls | loose:
                node = replace(node, null=True)
        elif isinstance(node, ListNull) and node.null and not every and node.column.name in strict | loose:
            continue
        kept.append(node)
    return kept


def _absorbed(every: bool, nodes: dict[Any, Node]) -> dict[Any, Node] | None:
    """`nodes` without those that say nothing beside the others; None where two of them decide the whole.

    A list that holds something is valid; ``a & (a | b)`` is a, ``a | (a & b)`` is a.
    """
    kept: dict[Any, Node] = {}
    null_tests = {(node.column.name, node.null) for node in nodes.values() if isinstance(node, ListNull)}
    for key, node in nodes.items():
        if isinstance(node, ListNull):
            if (node.column.name, not node.null) in null_tests:
                return None
            held = any(isinstance(one, Held) and one.column is node.column for one in nodes.values())
            if held and every and node.null:
                return None
            if held and every:
                continue
        elif isinstance(node, Held):
            if not every and (node.column.name, False) in null_tests:
                if node.null:
                    return None
                continue
        elif isinstance(node, Join) and any(child.key in nodes for child in node.children):
            continue
        kept[key] = node
    return kept


def _merges(node: Held, every: bool) -> bool:
    wanted = every != node.negated  # which of contains_all and contains_any this join makes one of
    return len(node.values) == 1 or node.every == wanted


def _held_parts(first: Held, values: set[int], every: bool) -> list[Node]:
    ordered = sorted(values)
    as_all = every != first.negated
    step = CONTAINS_ALL_MAX if as_all else len(ordered)
    parts = [tuple(ordered[at : at + step]) for at in range(0, len(ordered), step)]
    return [Held(first.column, as_all or len(part) == 1, part, first.negated, first.null) for part in parts]


def owners_of(node: Node) -> set[Any]:
    """Whose columns a node looks at: None is the index, others are columns made of its columns."""
    if isinstance(node, Join):
        return set().union(*(owners_of(child) for child in node.children))
    if isinstance(node, Scalar | ListNull | Held):
        return {node.column.owner}
    return set()


def decided(node: Node, of_all: Callable[[Scalar | ListNull | Held], bool | None]) -> Node:
    """`node` without the conditions that are true of all rows or of none; `of_all` tells, None elsewhere."""
    if isinstance(node, Join):
        return joined(node.every, [decided(child, of_all) for child in node.children])
    told = of_all(node) if isinstance(node, Scalar | ListNull | Held) else None
    return node if told is None else Fixed(told)


def has_rows(node: Node) -> bool:
    """Whether rows by number are among it."""
    return isinstance(node, Rows) or (isinstance(node, Join) and any(map(has_rows, node.children)))
