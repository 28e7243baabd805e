"""Filters: conditions on the metadata of the rows that a search may return.

One tree in several syntaxes: expressions, dicts (in the manner of MongoDB or of OpenAI's vector stores),
JSON, and SQL text. They say the same things and cost the same::

    (velo.col("year") >= 2020) & velo.col("tags").contains_all(["cat", "sofa"])
    {"year": {"$gte": 2020}, "tags": {"$all": ["cat", "sofa"]}}
    "year >= 2020 AND array_contains_all(tags, ARRAY['cat', 'sofa'])"

``docs/filters.md`` shows them side by side.

Where a value is missing, expressions and SQL mean what SQL and Arrow mean (Kleene's three-valued logic): a
comparison with a null is null, ``~`` null is null, ``false & null`` is false, ``true | null`` is true, and a
row passes only where the whole is true. So neither ``year == 2020`` nor ``year != 2020`` passes a row whose
year is null; ``is_null()`` does. Dicts mean what MongoDB means: ``{"year": {"$ne": 2020}}`` passes it, as
``$nin``, ``$not`` and ``$nor`` do; ``~`` with that meaning is :meth:`Expr.is_not_true`. NaN is unequal to
everything, itself included: ``x != 1`` passes it, ``x < 1`` and ``x >= 1`` do not.

Comparisons are exact, whatever the types: ``year >= 2019.5`` over whole numbers is ``year >= 2020``, and a
constant beyond a column's type is simply above or below all its values. Only a Python float against a column
of float32 or float16 is rounded to it first, so that ``price == 0.1`` finds what was stored from 0.1.
"""

from __future__ import annotations

from velo.filters.compiler import from_text
from velo.filters.dicts import from_dict, from_json, to_json
from velo.filters.expressions import Column, col, ids, mask
from velo.filters.sql import from_sql
from velo.filters.tree import (
    DEPTH_MAX,
    NODES_MAX,
    And,
    Between,
    Compare,
    Contains,
    ElementMatch,
    Expr,
    Ids,
    IsIn,
    IsNotTrue,
    IsNull,
    Like,
    Mask,
    Not,
    Or,
    StartsWith,
    to_dict,
)
from velo.filters.values import VALUES_MAX, Value, refuse

__all__ = [
    "DEPTH_MAX",
    "NODES_MAX",
    "VALUES_MAX",
    "And",
    "Between",
    "Column",
    "Compare",
    "Contains",
    "ElementMatch",
    "Expr",
    "Ids",
    "IsIn",
    "IsNotTrue",
    "IsNull",
    "Like",
    "Mask",
    "Not",
    "Or",
    "StartsWith",
    "Value",
    "col",
    "from_dict",
    "from_json",
    "from_sql",
    "from_text",
    "ids",
    "mask",
    "refuse",
    "to_dict",
    "to_json",
]
