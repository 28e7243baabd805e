"""Search by groups: the nearest k values of a column, each with its nearest rows.

The first search brings the nearest rows of all groups. Each further one leaves out the groups that are known,
so that it can only bring new ones, however many rows the nearest groups have. Groups come in the order of
their nearest row. Where a group shall have several rows and may have more than were seen, one search
restricted to it brings them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo.errors import InvalidArgumentError, UnknownColumnError
from velo.filters.columns import FilterColumn
from velo.filters.tree import And, Compare, Expr, IsIn, IsNull, Not
from velo.options import in_range, limit_of
from velo.search.request import Request
from velo.search.script import CombinedHits, Round, Script, Totals, blocks
from velo.types import AnyArray

#: Searches for groups that a query may take; each brings at least one new group, where there is one.
ROUNDS_MAX: Final = 16
_KINDS: Final = ("bool", "int", "string", "date", "timestamp")


@dataclass(slots=True, eq=False)
class _Group:
    value: Any
    hits: dict[int, float] = field(default_factory=dict)
    whole: bool = False

    def best(self, count: int) -> list[tuple[float, int]]:
        return sorted((distance, vertex) for vertex, distance in self.hits.items())[:count]


@dataclass(slots=True, eq=False)
class Groups:
    """The groups that a script found."""

    values: list[list[Any]]
    vertices: AnyArray
    distances: AnyArray
    sizes: AnyArray
    complete: AnyArray
    stats: dict[str, AnyArray]


def check_groups(group_by: Any, group_size: Any, k: Any, columns: dict[str, FilterColumn]) -> FilterColumn:
    if not isinstance(group_by, str):
        kind = type(group_by).__name__
        raise InvalidArgumentError(f"group_by is the name of a column, not a {kind}", argument="group_by")
    size = in_range(group_size, "group_size", "group_hits")
    if in_range(k, "k") * (size + 1) > limit_of("group_hits").high:
        raise InvalidArgumentError(
            f"{k} groups of {size} are more than {limit_of('group_hits').high} hits a query",
            argument="group_size",
        )
    column = columns.get(group_by)
    if column is None:
        known = ", ".join(columns) or "none: the index was built without metadata"
        raise UnknownColumnError(f"there is no column {group_by!r}; there are: {known}", argument="group_by")
    if column.native_type is None or column.is_list or column.kind not in _KINDS:
        raise InvalidArgumentError(
            f"column {group_by!r} of type {column.arrow_type} makes no groups: those are of "
            "bools, whole numbers, strings, dates or times",
            argument="group_by",
        )
    return column


def _values_of(column: Any) -> list[Any]:
    """Values as filters take them, hashable; nanoseconds stay whole."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns" and column.type.tz is None:
        return list(np.asarray(column))
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return list(np.asarray(column.cast(pa.timestamp("ns"))))
    values: list[Any] = column.to_pylist()
    return values


def group_script(
    queries: AnyArray,
    k: int,
    group_size: int,
    column: FilterColumn,
    filters: Sequence[Any],
    restrict: Callable[[Any, Expr], Any],
    column_of: Callable[[AnyArray], Any],
) -> Script[Groups]:
    count = len(queries)
    totals = Totals(count)
    name = column.name
    found: list[dict[Any, _Group]] = [{} for _ in range(count)]
    exhausted = np.zeros(count, bool)
    valid = Not(IsNull(name))
    hits = k * (group_size + 1)
    open_rows = list(range(count))

    for number in range(ROUNDS_MAX):
        for rows in blocks(open_rows, hits):
            conditions: list[Expr] = []
            for row in rows:
                known = tuple(group.value for group in found[row].values())
                conditions.append(And((valid, Not(IsIn(name, known)))) if known else valid)
            asked = [restrict(filters[row], one) for row, one in zip(rows, conditions, strict=True)]
            request = yield Round(queries[list(rows)], hits, asked)
            totals.add(rows, request)
            for place, values in enumerate(_each_value(request, column_of)):
                row = rows[place]
                _collect(found[row], values, request, place)
                exhausted[row] = int(request.counts[place]) < hits
                if exhausted[row]:  # nothing was left: what these groups show is all they have
                    for value in set(values):
                        found[row][value].whole = True
        open_rows = [row for row in open_rows if len(found[row]) < k and not exhausted[row]]
        if not open_rows:
            break
        hits = min(2 * hits, limit_of("group_hits").high) if number else hits

    chosen = [sorted(groups.values(), key=lambda group: group.best(1)[0])[:k] for groups in found]
    thin = [
        (row, group)
        for row, groups in enumerate(chosen)
        for group in groups
        if len(group.hits) < group_size and not group.whole
    ]
    for numbers in blocks(range(len(thin)), group_size):
        segment = [thin[number] for number in numbers]
        rows = [row for row, _ in segment]
        asked = [restrict(filters[row], Compare(name, "eq", group.value)) for row, group in segment]
        request = yield Round(queries[rows], group_size, asked)
        totals.add(rows, request)
        for place, (_, group) in enumerate(segment):
            kept = int(request.counts[place])
            vertices, distances = request.vertices[place, :kept], request.distances[place, :kept]
            group.hits.update(zip(vertices.tolist(), distances.tolist(), strict=True))

    complete = exhausted | np.array([len(groups) >= k for groups in found], bool)
    return _arranged(chosen, k, group_size, complete, totals)


def _each_value(request: CombinedHits | Request, column_of: Callable[[AnyArray], Any]) -> list[list[Any]]:
    """The column's value for every hit of every query."""
    counts = request.counts.astype(np.int64)
    flat = _values_of(column_of(request.vertices[np.arange(request.k) < counts[:, None]]))
    ends = np.cumsum(counts)
    return [flat[end - size : end] for end, size in zip(ends.tolist(), counts.tolist(), strict=True)]


def _collect(
    groups: dict[Any, _Group], values: list[Any], request: CombinedHits | Request, place: int
) -> None:
    vertices = request.vertices[place].tolist()
    distances = request.distances[place].tolist()
    for rank, value in enumerate(values):
        group = groups.setdefault(value, _Group(value))
        group.hits[vertices[rank]] = distances[rank]


def _arranged(
    chosen: list[list[_Group]], k: int, group_size: int, complete: AnyArray, totals: Totals
) -> Groups:
    shape = (len(chosen), k, group_size)
    vertices = np.full(shape, -1, np.int64)
    distances = np.full(shape, np.inf, np.float32)
    sizes = np.zeros(shape[:2], np.uint32)
    for row, groups in enumerate(chosen):
        for place, group in enumerate(groups):
            best = group.best(group_size)
            sizes[row, place] = len(best)
            distances[row, place, : len(best)] = [distance for distance, _ in best]
            vertices[row, place, : len(best)] = [vertex for _, vertex in best]
    values = [[group.value for group in groups] for groups in chosen]
    return Groups(values, vertices, distances, sizes, complete, totals.stats)
