"""What ``filter=`` takes: one filter for all queries, or a list with one for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from velo.errors import FilterError, InvalidArgumentError
from velo.filters.compiler import FilterCompiler
from velo.filters.native import NativeFilter
from velo.filters.text import read_condition
from velo.filters.tree import And, Expr
from velo.types import AnyArray

__all__ = ["filters_of", "restricted", "trees_of"]


def _one_each(filters: Any) -> bool:
    """True for a list of filters; a flat list of numbers, strings or bools is ids or a mask: one filter."""
    if isinstance(filters, np.ndarray):
        return filters.ndim == 2 or filters.dtype == object
    if not isinstance(filters, list | tuple):
        return False
    return not all(isinstance(one, str | int | np.integer | np.bool_) for one in filters) or len(filters) == 0


def filters_of(filters: Any, compiler: FilterCompiler) -> list[NativeFilter | None]:
    """Compiled filters: none, one for all queries, or one (or None) a query.

    Parameters
    ----------
    filters : what ``search(filter=)`` was given
    compiler : FilterCompiler
    """
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
    """What ``search(filter=)`` was given, one a query: trees where there are, else what was compiled of it.

    Parameters
    ----------
    filters : what ``search(filter=)`` was given
    count : int
        Queries.
    compiler : FilterCompiler
        Refuses what is no filter.
    """
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
