"""A filter bound to its columns: conditions without ``not``, and the rows for which each is true.

``~`` was moved to the leaves before (De Morgan's laws hold in three-valued logic). Conditions on one column
are merged into one set of values, so that evaluation tests a column once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from velo.filters.columns import FilterColumn
from velo.filters.domain import Domain, complement
from velo.types import AnyArray

__all__ = [
    "CONTAINS_ALL_MAX",
    "Fixed",
    "Join",
    "ListContains",
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
    flat: list[Node] = []
    for node in nodes:
        flat.extend(node.children if isinstance(node, Join) and node.every == every else (node,))
    children: list[Node] = []
    scalars: dict[str, Scalar] = {}
    held: dict[tuple[str, bool, bool], ListContains] = {}
    for node in _null_tests_folded(every, flat):
        if isinstance(node, Scalar):
            before = scalars.get(node.column.name)
            if before is not None:
                one, other = before.domain, node.domain
                node = Scalar(node.column, one & other if every else one | other)
            scalars[node.column.name] = node
        elif isinstance(node, ListContains) and (
            len(node.values) == 1 or node.every == (every != node.negated)
        ):
            key = (node.column.name, node.negated, node.null)
            both = _both_held(held.get(key), node, as_all=every != node.negated)
            if both is None:
                children.append(node)
            else:
                held[key] = both
        else:
            children.append(node)
    children = [*(scalar_node(one.column, one.domain) for one in scalars.values()), *held.values(), *children]
    if any(isinstance(child, Fixed) and child.value != every for child in children):
        return Fixed(not every)
    children = [child for child in children if not isinstance(child, Fixed)]
    if len(children) == 1:
        return children[0]
    return Join(every, tuple(children)) if children else Fixed(every)


def _null_tests_folded(every: bool, nodes: list[Node]) -> Iterator[Node]:
    """`nodes` with "is valid" (of all) and "is null" (of any) folded into other tests of the same list.

    Dicts write both beside negations, since they have no null logic of their own.
    """
    tested = {node.column.name for node in nodes if isinstance(node, ListNull) and node.null != every}
    folded = tested & {node.column.name for node in nodes if isinstance(node, ListContains)}
    for node in nodes:
        if isinstance(node, ListContains) and node.column.name in folded:
            yield replace(node, null=not every)
        elif not (isinstance(node, ListNull) and node.null != every and node.column.name in folded):
            yield node


def _both_held(one: ListContains | None, other: ListContains, *, as_all: bool) -> ListContains | None:
    """Two tests of one list as one, all or any of the values of both; None where these are too many.

    "Holds a" and "holds b" is "holds all of a, b"; "holds none of a" and "not b" is "holds none of a, b".
    """
    if one is None:
        return other
    values = tuple(sorted({*one.values, *other.values}))
    if as_all and len(values) > CONTAINS_ALL_MAX:
        return None
    return ListContains(one.column, as_all or len(values) == 1, values, one.negated, one.null)


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
