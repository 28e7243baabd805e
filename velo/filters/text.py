"""Filters as people write them: text, dicts, columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velo.filters.dicts import from_dict, from_json
from velo.filters.expressions import Column
from velo.filters.sql import from_sql
from velo.filters.tree import Expr, as_condition

__all__ = ["from_text", "read_condition"]


def read_condition(condition: Any) -> Any:
    """The tree of a filter that is a dict, text or a column; anything else as it is."""
    if isinstance(condition, Mapping):
        return from_dict(condition)
    if isinstance(condition, str):
        return from_text(condition)
    if isinstance(condition, Column):
        return as_condition(condition)
    return condition


def from_text(text: str) -> Expr:
    """Read a filter from text: JSON where it begins with a brace, SQL otherwise.

    Parameters
    ----------
    text : str
        As :func:`velo.filters.from_json` or :func:`velo.filters.from_sql` take it.

    Returns
    -------
    Expr
    """
    return from_json(text) if text.lstrip().startswith("{") else from_sql(text)
