"""The argument ``filter=``: one filter for all queries, or a list with one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import FilterError, InvalidArgumentError
from velo.filters.compiler import FilterCompiler, read_condition
from velo.filters.native import NativeFilter
from velo.filters.tree import And, Expr, Mask
from velo.filters.values import refuse
from velo.types import AnyArray

__all__ = ["filters_of", "is_mask", "of_rows", "restricted", "trees_of"]


def _one_each(filters: Any) -> bool:
    """True for a list of filters; a flat list of numbers, strings or bools is ids or a mask: one filter."""
    if isinstance(filters, np.ndarray):
        return filters.ndim == 2 or filters.dtype == object
    if not isinstance(filters, list | tuple):
        return False
    return not all(isinstance(one, str | int | np.integer | np.bool_) for one in filters) or len(filters) == 0


def filters_of(filters: Any, compiler: FilterCompiler) -> list[NativeFilter | None]:
    """Compile the filters of a search: none, one for all queries, or one (or None) for each query."""
    if filters is None:
        return []
    if not _one_each(filters):
        return [compiler.compile(filters)]
    if len(filters) == 0:
        raise FilterError(
            "filter: a list holds a filter for each query, this one is empty", argument="filter"
        )
    each: Sequence[Any] | AnyArray = filters
    # The same object for several queries, such as one mask, is compiled once; equal conditions are anyway.
    known: dict[int, NativeFilter] = {}
    compiled: list[NativeFilter | None] = []
    for one in each:
        if one is None:
            compiled.append(None)
        elif isinstance(one, Mapping) or isinstance(filters, np.ndarray):
            compiled.append(compiler.compile(one))
        else:
            if id(one) not in known:
                known[id(one)] = compiler.compile(one)
            compiled.append(known[id(one)])
    return compiled


def trees_of(filters: Any, count: int, compiler: FilterCompiler) -> list[Expr | NativeFilter | None]:
    """The filter of each query: a tree where it can be written as one, else the compiled filter."""
    if filters is None:
        return [None] * count
    if not _one_each(filters):
        return [_tree(filters, compiler)] * count
    filters_of(filters, compiler)
    if len(filters) not in (1, count):
        raise InvalidArgumentError(
            f"{len(filters)} filters were given for {count} queries", argument="filter"
        )
    trees = [None if one is None else _tree(one, compiler) for one in filters]
    return trees * count if len(trees) == 1 else trees


def _tree(condition: Any, compiler: FilterCompiler) -> Expr | NativeFilter:
    condition = read_condition(condition)
    compiled = compiler.compile(condition)
    return condition if isinstance(condition, Expr) else compiled


def restricted(first: Expr | NativeFilter | None, condition: Expr, compiler: FilterCompiler) -> Any:
    """A filter that asks for `condition` as well."""
    if first is None:
        return condition
    if isinstance(first, Expr):
        return And((first, condition))
    return compiler.compile_matches(first.matches() & compiler.compile(condition).matches())


def is_mask(given: Any) -> bool:
    """Whether a filter is a bool for each row."""
    if isinstance(given, np.ndarray):
        return bool(given.dtype == np.bool_)
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return bool(pa.types.is_boolean(given.type))
    if isinstance(given, list | tuple):
        return len(given) > 0 and all(isinstance(one, bool | np.bool_) for one in given)
    return str(getattr(given, "dtype", None)) in ("bool", "boolean")


def of_rows(condition: Any, start: int, stop: int, row_count: int) -> Any:
    """Cut a filter to rows `start` to `stop` of an input of `row_count` rows: only masks change.

    Raises
    ------
    FilterError
        A mask of another length.
    """
    if isinstance(condition, Mask):
        return Mask(of_rows(condition.rows, start, stop, row_count))
    if isinstance(condition, Expr):
        tree: Any = condition
        if children := getattr(tree, "children", ()):
            return replace(tree, children=tuple(of_rows(one, start, stop, row_count) for one in children))
        if (child := getattr(tree, "child", None)) is not None:
            return replace(tree, child=of_rows(child, start, stop, row_count))
        return tree
    if not is_mask(condition):
        return condition
    if len(condition) != row_count:
        refuse(FilterError, f"a mask of {len(condition)} rows was given for {row_count}")
    return getattr(condition, "iloc", condition)[start:stop]  # pandas counts rows there
