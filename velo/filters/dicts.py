"""Filters as dicts and JSON, in the manner of MongoDB or of OpenAI's vector stores, read and written."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from velo.errors import FilterError, FilterTypeError
from velo.filters.tree import (
    COMPARE_KEYS,
    DEPTH_MAX,
    And,
    Between,
    Compare,
    CompareOp,
    Contains,
    Expr,
    IsIn,
    IsNull,
    Not,
    Or,
    StartsWith,
    refuse,
    to_dict,
)

__all__ = ["from_dict", "from_json", "to_json"]

_COMPARE: Final[dict[str, CompareOp]] = {key: op for op, key in COMPARE_KEYS.items()}
_FIELD_KEYS: Final = (
    *_COMPARE,
    "$in",
    "$nin",
    "$between",
    "$any",
    "$all",
    "$starts_with",
    "$exists",
    "$not",
)
_TREE_KEYS: Final = ("$and", "$or", "$nor", "$not")
#: The other form, ``{"type": "eq", "key": column, "value": value}``: its comparisons in terms of this one.
_TYPED: Final = {name: f"${name}" for name in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")}
_TYPED_COMPARISON: Final = frozenset(("type", "key", "value"))
_TYPED_COMPOUND: Final = frozenset(("type", "filters"))


def from_dict(conditions: Mapping[str, Any]) -> Expr:
    """Read a filter in the manner of MongoDB, or in that of OpenAI's vector stores.

    Parameters
    ----------
    conditions : mapping
        Column to value (equal) or to ``{operator: operand}``, all of which must hold; ``$and``, ``$or``,
        ``$nor`` to a list of such mappings, ``$not`` to one. Operators: ``$eq $ne $lt $lte $gt $gte $in $nin
        $between``, ``$any`` and ``$all`` (lists), ``$starts_with``, ``$exists``, ``$not``. A None under
        ``$eq`` or ``$ne`` asks for null. A column whose name begins with ``$`` is written with ``$$``. Dates,
        times and durations may be ISO 8601 strings.

        Or in the manner of OpenAI's vector stores: ``{"type": "eq", "key": column, "value": value}`` with
        ``eq ne gt gte lt lte in nin``, and ``{"type": "and", "filters": [...]}`` with ``and or``. A dict with
        exactly these keys, whose ``type`` is a str, is read so; conditions on columns that are really called
        ``type``, ``key`` and ``value`` are joined by ``$and`` instead.

    Returns
    -------
    Expr

    Raises
    ------
    FilterError
        Unknown operators, nesting beyond ``DEPTH_MAX``; the message has the position, as ``$.year.$gte``.
    FilterTypeError
        An operand of the wrong kind.

    Examples
    --------
    >>> velo.filters.from_dict({"year": {"$gte": 2020}})
    Compare(column='year', op='ge', value=2020)
    """
    return _read_tree(conditions, "$", 1)


def _read_tree(conditions: Any, position: str, depth: int) -> Expr:
    if not isinstance(conditions, Mapping):
        refuse(
            FilterTypeError, f"a dict of conditions is expected, not a {type(conditions).__name__}", position
        )
    if depth > DEPTH_MAX:
        shown = position if len(position) < 60 else f"{position[:60]}…"
        refuse(FilterError, f"it is nested deeper than {DEPTH_MAX}", shown)
    if isinstance(conditions.get("type"), str) and conditions.keys() in (_TYPED_COMPARISON, _TYPED_COMPOUND):
        return _read_typed(conditions, position, depth)
    parts: list[Expr] = []
    for key, operand in conditions.items():
        if not isinstance(key, str):
            refuse(FilterTypeError, f"a key is a str, not a {type(key).__name__}", position)
        inside = f"{position}.{key}"
        if key == "$not":
            parts.append(Not(_read_tree(operand, inside, depth + 1)))
        elif key in _TREE_KEYS:
            children = _read_list(operand, key, inside, depth)
            parts.append(
                And(children) if key == "$and" else Or(children) if key == "$or" else Not(Or(children))
            )
        elif key.startswith("$") and not key.startswith("$$"):
            _unknown(key, _TREE_KEYS, inside)
        else:
            parts.append(
                _read_field(key.removeprefix("$") if key[:2] == "$$" else key, operand, inside, depth)
            )
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _read_typed(conditions: Mapping[str, Any], position: str, depth: int) -> Expr:
    kind = conditions["type"]
    if "filters" in conditions:
        if kind not in ("and", "or"):
            _unknown(kind, ("and", "or"), f"{position}.type")
        children = _read_list(conditions["filters"], kind, f"{position}.filters", depth)
        return And(children) if kind == "and" else Or(children)
    if kind not in _TYPED:
        _unknown(kind, tuple(_TYPED), f"{position}.type")
    column = conditions["key"]
    if not isinstance(column, str):
        refuse(FilterTypeError, f"a column's name is a str, not a {type(column).__name__}", f"{position}.key")
    return _read_operator(column, _TYPED[kind], conditions["value"], f"{position}.value", depth)


def _read_list(operand: Any, key: str, position: str, depth: int) -> tuple[Expr, ...]:
    if isinstance(operand, str | bytes | Mapping) or not isinstance(operand, Sequence):
        refuse(FilterTypeError, f"{key} takes a list of conditions, not a {type(operand).__name__}", position)
    return tuple(_read_tree(one, f"{position}[{at}]", depth + 1) for at, one in enumerate(operand))


def _unknown(key: str, known: Sequence[str], position: str) -> NoReturn:
    near = difflib.get_close_matches(key, known, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"known here: {' '.join(known)}"
    refuse(FilterError, f"the operator {key!r} is unknown; {hint}", position)


def _read_field(column: str, operand: Any, position: str, depth: int) -> Expr:
    if not isinstance(operand, Mapping):
        return _read_operator(column, "$eq", operand, position, depth)
    if depth > DEPTH_MAX:
        refuse(FilterError, f"it is nested deeper than {DEPTH_MAX}", f"{position[:60]}…")
    if not operand:
        refuse(FilterError, f"no operator is given for column {column!r}", position)
    parts = []
    for key, value in operand.items():
        if not isinstance(key, str) or not key.startswith("$"):
            refuse(FilterError, f"an operator such as $eq is expected, not {key!r}", position)
        parts.append(_read_operator(column, key, value, f"{position}.{key}", depth))
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _read_operator(column: str, key: str, operand: Any, position: str, depth: int) -> Expr:
    if key in ("$eq", "$ne") and operand is None:
        missing = IsNull(column, position=position)
        return missing if key == "$eq" else Not(missing)
    if key in _COMPARE:
        if isinstance(operand, list | tuple | set | Mapping):
            hint = "; for one of several values use $in, for lists $any or $all" if key == "$eq" else ""
            refuse(FilterTypeError, f"{key} takes one value, not a {type(operand).__name__}{hint}", position)
        return Compare(column, _COMPARE[key], operand, position=position)
    if key in ("$in", "$nin"):
        member = IsIn(column, operand, position=position)
        return member if key == "$in" else Not(member)
    if key in ("$any", "$all"):
        return Contains(column, operand, "any" if key == "$any" else "all", position=position)
    if key == "$between":
        if isinstance(operand, str) or not isinstance(operand, Sequence) or len(operand) != 2:
            refuse(FilterTypeError, "$between takes a list of two values", position)
        return Between(column, operand[0], operand[1], position=position)
    if key == "$starts_with":
        return StartsWith(column, operand, position=position)
    if key == "$exists":
        if not isinstance(operand, bool):
            refuse(FilterTypeError, f"$exists takes true or false, not {operand!r}", position)
        missing = IsNull(column, position=position)
        return Not(missing) if operand else missing
    if key == "$not":
        if not isinstance(operand, Mapping):
            kind = type(operand).__name__
            refuse(FilterTypeError, f"$not takes a dict of operators, not a {kind}", position)
        return Not(_read_field(column, operand, position, depth + 1))
    _unknown(key, _FIELD_KEYS, position)


def to_json(expr: Expr) -> str:
    """Write a condition as JSON text.

    Parameters
    ----------
    expr : Expr

    Returns
    -------
    str

    Examples
    --------
    >>> velo.filters.to_json(velo.col("year") >= 2020)
    '{"year": {"$gte": 2020}}'
    """
    return json.dumps(to_dict(expr), ensure_ascii=False)


def from_json(text: str | bytes) -> Expr:
    """Read a filter from JSON text.

    Parameters
    ----------
    text : str or bytes
        A dict as :func:`velo.filters.from_dict` takes it.

    Returns
    -------
    Expr

    Raises
    ------
    FilterError
        It is not JSON, or not a filter.
    """
    try:
        conditions = json.loads(text)
    except RecursionError:
        refuse(FilterError, f"it is nested deeper than {DEPTH_MAX}")
    except ValueError as error:
        refuse(FilterError, f"it is not JSON: {error}")
    return from_dict(conditions)
