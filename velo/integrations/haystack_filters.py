"""Haystack's filters as velo's, with Haystack's meaning of missing values, numbers and dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from haystack.errors import FilterError

from velo.filters import And, Compare, Expr, Ids, IsIn, IsNotTrue, IsNull, Or
from velo.integrations.conditions import NOTHING, equal_to_one_of, in_order, is_nan
from velo.integrations.documents import EMBEDDED, TEXT
from velo.integrations.values import Columns, as_date

#: How deeply conditions may be nested, as in velo's own filters.
_DEPTH_MAX: Final = 64
_ORDERS: Final = {">": "gt", ">=": "ge", "<": "lt", "<=": "le"}
_OPERATORS: Final = ("==", "!=", *_ORDERS, "in", "not in")
#: Fields of a document that are none of its metadata.
_OWN_FIELDS: Final = ("id", "content", "blob", "score", "embedding", "sparse_embedding")


def bare(field: str) -> str:
    """The name of a metadata field without its prefix ``meta.``."""
    return field.removeprefix("meta.")


def condition_to_change(filters: Any, columns: Columns) -> Expr:
    """A condition, of calls that change the documents that pass it: an empty one is refused."""
    condition = condition_of(filters, columns)
    if condition is None:
        raise FilterError("a filter is needed; delete_all_documents deletes all")
    return condition


def condition_of(filters: Any, columns: Columns) -> Expr | None:
    """A filter over columns for Haystack's filter, true or false for every document."""
    return _read(filters, columns, 1) if filters else None


def _read(filters: Any, columns: Columns, depth: int) -> Expr:
    if not isinstance(filters, Mapping):
        raise FilterError(f"a filter is a dict, not a {type(filters).__name__}")
    if depth > _DEPTH_MAX:
        raise FilterError(f"a filter is nested deeper than {_DEPTH_MAX}")
    if "field" in filters:
        return _compared(filters, columns)
    operator, conditions = _part(filters, "operator"), _part(filters, "conditions")
    if operator not in ("AND", "OR", "NOT"):
        raise FilterError(f"the operator {operator!r} is unknown; conditions are joined by AND, OR or NOT")
    if not isinstance(conditions, list):
        raise FilterError(f"conditions are a list, not a {type(conditions).__name__}")
    children = tuple(_read(one, columns, depth + 1) for one in conditions)
    if operator == "OR":
        return Or(children)
    return And(children) if operator == "AND" else IsNotTrue(And(children))


def _part(filters: Mapping[str, Any], name: str) -> Any:
    if name not in filters:
        raise FilterError(f"{name!r} is missing in the filter {filters}")
    return filters[name]


def _compared(filters: Mapping[str, Any], columns: Columns) -> Expr:
    field, operator, value = filters["field"], _part(filters, "operator"), _part(filters, "value")
    if not isinstance(field, str):
        raise FilterError(f"a field is a text, not {field!r}")
    if operator not in _OPERATORS:
        raise FilterError(f"the operator {operator!r} is unknown; there are {', '.join(_OPERATORS)}")
    if field in _OWN_FIELDS:
        return _of_document(field, operator, value)
    if not isinstance(value, list) and operator in ("in", "not in"):
        raise FilterError(f"{operator!r} takes a list, not a {type(value).__name__}")
    name = bare(field)
    if operator in ("==", "!="):
        found = _one_of(name, [value], columns)
        return found if operator == "==" else IsNotTrue(found)
    if operator in ("in", "not in"):
        found = _one_of(name, value, columns)
        return found if operator == "in" else IsNotTrue(found)
    return _ordered(name, _ORDERS[operator], value, columns)


def _of_document(field: str, operator: str, value: Any) -> Expr:
    """A condition on what is no metadata: ids and texts are looked up, embeddings are there or not."""
    values = value if operator in ("in", "not in") and isinstance(value, list) else [value]
    found: Expr
    if operator in _ORDERS:
        raise FilterError(f"{field!r} has no order; there are ==, !=, in and not in")
    if field == "id" and all(isinstance(one, str) for one in values):
        found = Ids(tuple(values))
    elif field == "content" and all(one is None or isinstance(one, str) for one in values):
        there = tuple(one for one in values if one is not None)
        found = Or((IsIn(TEXT, there), *([IsNull(TEXT)] if None in values else [])))
    elif field == "embedding" and value is None:
        found = IsNotTrue(Compare(EMBEDDED, "eq", True))
    else:
        raise FilterError(f"{field!r} is not compared with {value!r:.80}")
    return IsNotTrue(found) if operator in ("!=", "not in") else found


def _one_of(field: str, values: Sequence[Any], columns: Columns) -> Expr:
    """A field has one of some values, as Haystack has it: 1 is 1.0 and True, dates are moments."""
    there = columns.of(field)
    found: list[Expr] = []
    for value in values:
        moment = value if isinstance(value, datetime) else as_date(value)
        if moment is not None:
            found.append(_at(there, "eq", moment))
        if value is not None and not isinstance(value, int | float | str | datetime):
            raise FilterError(f"{field}: values are compared with single values, not with {value!r:.80}")
    single = [one for one in values if not isinstance(one, datetime)]
    return Or((*equal_to_one_of(field, single, columns), *found))


def _ordered(field: str, op: Any, value: Any, columns: Columns) -> Expr:
    """A field is above or below a number, or before or after a date; a missing one is neither."""
    there = columns.of(field)
    if value is None or is_nan(value):
        return NOTHING
    if isinstance(value, str | datetime):
        moment = value if isinstance(value, datetime) else as_date(value)
        if moment is None:
            raise FilterError(
                f"{field}: texts have an order only where they are dates of ISO 8601: {value!r:.80}"
            )
        return _at(there, op, moment)
    if not isinstance(value, int | float):
        raise FilterError(f"{field}: a {type(value).__name__} has no order: {value!r:.80}")
    return in_order(field, op, value, columns)


def _at(there: Mapping[str, str], op: Any, moment: datetime) -> Expr:
    """Compare moments; if one of two has a zone, the other is taken to be in it."""
    if "time" not in there:
        return NOTHING
    reading = Compare(there["time"], op, moment.replace(tzinfo=None))
    if moment.tzinfo is None or "instant" not in there:
        return reading
    name = there["instant"]
    return Or((Compare(name, op, moment.astimezone(timezone.utc)), And((IsNull(name), reading))))
