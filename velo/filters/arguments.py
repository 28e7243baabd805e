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


def _one_each(given: Any) -> bool:
    """True for a list of filters; a flat list of numbers, strings or bools is ids or a mask: one filter."""
    if isinstance(given, np.ndarray):
        return given.ndim == 2 or given.dtype == object
    if not isinstance(given, list | tuple):
        return False
    return not all(isinstance(one, str | int | np.integer | np.bool_) for one in given) or len(given) == 0


def filters_of(given: Any, compiler: FilterCompiler) -> list[NativeFilter | None]:
    """Compiled filters: none, one for all queries, or one (or None) a query.

    Parameters
    ----------
    given : what ``search(filter=)`` was given
    compiler : FilterCompiler
    """
    if given is None:
        return []
    if not _one_each(given):
        return [compiler.compile(given)]
    if len(given) == 0:
        raise FilterError(
            "filter: a list holds a filter for each query, this one is empty", argument="filter"
        )
    each: Sequence[Any] | AnyArray = given
    # The same object for several queries, such as one mask, is compiled once; equal conditions are anyway.
    known: dict[int, NativeFilter] = {}
    compiled: list[NativeFilter | None] = []
    for one in each:
        if one is None:
            compiled.append(None)
        elif isinstance(one, Mapping) or isinstance(given, np.ndarray):
            compiled.append(compiler.compile(one))
        else:
            if id(one) not in known:
                known[id(one)] = compiler.compile(one)
            compiled.append(known[id(one)])
    return compiled


def trees_of(given: Any, count: int, compiler: FilterCompiler) -> list[Expr | NativeFilter | None]:
    """What ``search(filter=)`` was given, one a query: trees where there are, else what was compiled of it.

    Parameters
    ----------
    given : what ``search(filter=)`` was given
    count : int
        Queries.
    compiler : FilterCompiler
        Refuses what is no filter.
    """
    if given is None:
        return [None] * count
    if not _one_each(given):
        return [_tree(given, compiler)] * count
    filters_of(given, compiler)
    if len(given) not in (1, count):
        raise InvalidArgumentError(f"{len(given)} filters were given for {count} queries", argument="filter")
    trees = [None if one is None else _tree(one, compiler) for one in given]
    return trees * count if len(trees) == 1 else trees


def _tree(given: Any, compiler: FilterCompiler) -> Expr | NativeFilter:
    given = read_condition(given)
    compiled = compiler.compile(given)
    return given if isinstance(given, Expr) else compiled


def restricted(given: Expr | NativeFilter | None, condition: Expr, compiler: FilterCompiler) -> Any:
    """A filter that asks for `condition` as well."""
    if given is None:
        return condition
    if isinstance(given, Expr):
        return And((given, condition))
    return compiler.compile_matches(given.matches() & compiler.compile(condition).matches())
