"""Filters as text: JSON or SQL."""

from __future__ import annotations

from velo.filters.dicts import from_json
from velo.filters.sql import from_sql
from velo.filters.tree import Expr

__all__ = ["from_text"]


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
