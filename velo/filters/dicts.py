"""Filters as dicts and JSON, in the syntax of MongoDB or of OpenAI's vector stores, read and written."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from velo.errors import FilterError, FilterTypeError
from velo.filters import tree
from velo.filters.values import refuse

_COMPARE: Final[dict[str, tree.CompareOp]] = {key: op for op, key in tree.COMPARE_KEYS.items()}
_FIELD_KEYS: Final = (
    *_COMPARE,
    "$in",
    "$nin",
    "$between",
    "$any",
    "$all",
    "$elemMatch",
    "$size",
    "$starts_with",
    "$like",
    "$ilike",
    "$exists",
    "$not",
)
_TREE_KEYS: Final = ("$and", "$or", "$nor", "$not", "$ids")
#: Operators of MongoDB that are not here, and what is.
_ELSEWHERE: Final = {
    "$regex": "there are no regular expressions; $like takes % for any text and _ for one character, "
    "$starts_with a prefix",
    "$options": "there are no regular expressions; $ilike ignores case",
    "$text": "there is no full-text operator; $ilike: '%word%' searches texts",
    "$where": "conditions hold no code",
    "$expr": "columns are compared with values; a pyarrow.compute expression compares columns",
    "$mod": "a pyarrow.compute expression can calculate",
    "$type": "a column has one type; $exists asks whether there is a value",
}
#: The operators that the negated ones negate.
_POSITIVE: Final = {"$ne": "$eq", "$nin": "$in"}
#: The other form, ``{"type": "eq", "key": column, "value": value}``: its comparisons in terms of this one.
_TYPED: Final = {name: f"${name}" for name in ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")}
_TYPED_COMPARISON: Final = frozenset(("type", "key", "value"))
_TYPED_COMPOUND: Final = frozenset(("type", "filters"))


def from_dict(conditions: Mapping[str, Any]) -> tree.Expr:
    """Read a filter in the manner of MongoDB, or in that of OpenAI's vector stores.

    Parameters
    ----------
    conditions : mapping
        Column to value (equal) or to ``{operator: operand}``, all of which must hold; ``$and``, ``$or``,
        ``$nor`` to a list of such mappings, ``$not`` to one, ``$ids`` to a list of ids. Operators: ``$eq $ne
        $lt $lte $gt $gte $in $nin $between``, ``$starts_with``, ``$like``, ``$ilike``, ``$exists``, ``$not``,
        and of lists ``$any``, ``$all``, ``$elemMatch``, ``$size``. A None under ``$eq``, ``$ne``, ``$in`` or
        ``$nin`` is a missing value. A column whose name begins with ``$`` is written with ``$$``. Dates,
        times and durations may be ISO 8601 strings.

        They mean what MongoDB means: what is negated (``$ne``, ``$nin``, ``$not``, ``$nor``) passes where the
        value is missing, and a comparison with a list holds where one of its elements meets it.

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


def _read_tree(conditions: Any, position: str, depth: int) -> tree.Expr:
    if not isinstance(conditions, Mapping):
        refuse(
            FilterTypeError, f"a dict of conditions is expected, not a {type(conditions).__name__}", position
        )
    if depth > tree.DEPTH_MAX:
        shown = position if len(position) < 60 else f"{position[:60]}…"
        refuse(FilterError, f"it is nested deeper than {tree.DEPTH_MAX}", shown)
    if isinstance(conditions.get("type"), str) and conditions.keys() in (_TYPED_COMPARISON, _TYPED_COMPOUND):
        return _read_typed(conditions, position, depth)
    parts: list[tree.Expr] = []
    for key, operand in conditions.items():
        if not isinstance(key, str):
            refuse(FilterTypeError, f"a key is a str, not a {type(key).__name__}", position)
        inside = f"{position}.{key}"
        if key == "$not":
            parts.append(tree.IsNotTrue(_read_tree(operand, inside, depth + 1)))
        elif key == "$ids":
            parts.append(_read_ids(operand, inside))
        elif key in _TREE_KEYS:
            children = _read_list(operand, key, inside, depth)
            parts.append(
                tree.And(children)
                if key == "$and"
                else tree.Or(children)
                if key == "$or"
                else tree.IsNotTrue(tree.Or(children))
            )
        elif key.startswith("$") and not key.startswith("$$"):
            _unknown(key, _TREE_KEYS, inside)
        else:
            parts.append(
                _read_field(key.removeprefix("$") if key[:2] == "$$" else key, operand, inside, depth)
            )
    return parts[0] if len(parts) == 1 else tree.And(tuple(parts))


def _read_typed(conditions: Mapping[str, Any], position: str, depth: int) -> tree.Expr:
    kind = conditions["type"]
    if "filters" in conditions:
        if kind not in ("and", "or"):
            _unknown(kind, ("and", "or"), f"{position}.type")
        children = _read_list(conditions["filters"], kind, f"{position}.filters", depth)
        return tree.And(children) if kind == "and" else tree.Or(children)
    if kind not in _TYPED:
        _unknown(kind, tuple(_TYPED), f"{position}.type")
    column = conditions["key"]
    if not isinstance(column, str):
        refuse(FilterTypeError, f"a column's name is a str, not a {type(column).__name__}", f"{position}.key")
    return _read_operator(column, _TYPED[kind], conditions["value"], f"{position}.value", depth)


def _read_ids(operand: Any, position: str) -> tree.Expr:
    if isinstance(operand, str | bytes | Mapping) or not isinstance(operand, Sequence):
        refuse(FilterTypeError, f"$ids takes a list of ids, not a {type(operand).__name__}", position)
    return tree.Ids(tuple(operand))


def _read_list(operand: Any, key: str, position: str, depth: int) -> tuple[tree.Expr, ...]:
    if isinstance(operand, str | bytes | Mapping) or not isinstance(operand, Sequence):
        refuse(FilterTypeError, f"{key} takes a list of conditions, not a {type(operand).__name__}", position)
    return tuple(_read_tree(one, f"{position}[{at}]", depth + 1) for at, one in enumerate(operand))


def _unknown(key: str, known: Sequence[str], position: str) -> NoReturn:
    if key in _ELSEWHERE:
        refuse(FilterError, f"{key}: {_ELSEWHERE[key]}", position)
    near = difflib.get_close_matches(key, known, 1, 0.6)
    hint = f"did you mean {near[0]}?" if near else f"known here: {' '.join(known)}"
    refuse(FilterError, f"the operator {key!r} is unknown; {hint}", position)


def _read_field(column: str, operand: Any, position: str, depth: int) -> tree.Expr:
    if not isinstance(operand, Mapping):
        return _read_operator(column, "$eq", operand, position, depth)
    if depth > tree.DEPTH_MAX:
        refuse(FilterError, f"it is nested deeper than {tree.DEPTH_MAX}", f"{position[:60]}…")
    if not operand:
        refuse(FilterError, f"no operator is given for column {column!r}", position)
    parts = []
    for key, value in operand.items():
        if not isinstance(key, str) or not key.startswith("$"):
            refuse(FilterError, f"an operator such as $eq is expected, not {key!r}", position)
        parts.append(_read_operator(column, key, value, f"{position}.{key}", depth))
    return parts[0] if len(parts) == 1 else tree.And(tuple(parts))


def _read_operator(column: str, key: str, operand: Any, position: str, depth: int) -> tree.Expr:
    if key in ("$eq", "$ne") and operand is None:
        missing = tree.IsNull(column, position=position)
        return missing if key == "$eq" else tree.Not(missing)
    if key == "$ne":
        return tree.IsNotTrue(_read_operator(column, "$eq", operand, position, depth))
    if key in ("$in", "$nin"):
        member = _read_members(column, operand, position)
        return member if key == "$in" else tree.IsNotTrue(member)
    if key == "$exists":
        if not isinstance(operand, bool):
            refuse(FilterTypeError, f"$exists takes true or false, not {operand!r}", position)
        missing = tree.IsNull(column, position=position)
        return tree.Not(missing) if operand else missing
    if key == "$not":
        if not isinstance(operand, Mapping):
            kind = type(operand).__name__
            refuse(FilterTypeError, f"$not takes a dict of operators, not a {kind}", position)
        return tree.IsNotTrue(_read_field(column, operand, position, depth + 1))
    if key == "$size":
        return _read_size(column, operand, position)
    if key == "$elemMatch":
        return _read_element(column, operand, position)
    leaf = _read_leaf(column, key, operand, position)
    if leaf is None:
        _unknown(key, _FIELD_KEYS, position)
    return leaf


def _read_leaf(column: str, key: str, operand: Any, position: str, of: Any = "value") -> tree.Leaf | None:
    """A condition without negation; None where `key` is no such operator."""
    if key in _COMPARE:
        if isinstance(operand, list | tuple | set | Mapping):
            hint = "; for one of several values use $in, for lists $any or $all" if key == "$eq" else ""
            refuse(FilterTypeError, f"{key} takes one value, not a {type(operand).__name__}{hint}", position)
        return tree.Compare(column, _COMPARE[key], operand, position=position, of=of)
    if key == "$in":
        return tree.IsIn(column, operand, position=position, of=of)
    if key == "$between":
        if isinstance(operand, str) or not isinstance(operand, Sequence) or len(operand) != 2:
            refuse(FilterTypeError, "$between takes a list of two values", position)
        return tree.Between(column, operand[0], operand[1], position=position, of=of)
    if of == "length":
        return None
    if key in ("$any", "$all"):
        return tree.Contains(column, operand, "any" if key == "$any" else "all", position=position)
    if key == "$starts_with":
        return tree.StartsWith(column, operand, position=position)
    if key in ("$like", "$ilike"):
        return tree.Like(column, operand, key == "$ilike", position=position)
    return None


def _read_members(column: str, operand: Any, position: str) -> tree.Expr:
    """One of some values; None among them is a missing one."""
    if isinstance(operand, list | tuple) and any(value is None for value in operand):
        there = tuple(value for value in operand if value is not None)
        missing = tree.IsNull(column, position=position)
        return tree.Or((tree.IsIn(column, there, position=position), missing)) if there else missing
    return tree.IsIn(column, operand, position=position)


def _read_size(column: str, operand: Any, position: str) -> tree.Expr:
    """The length of a list: a number, or operators on it."""
    tests = operand if isinstance(operand, Mapping) else {"$eq": operand}
    if not tests:
        refuse(FilterError, f"no operator is given for the length of column {column!r}", position)
    parts: list[tree.Expr] = []
    for key, value in tests.items():
        if key in ("$ne", "$nin", "$not"):
            inside = value if key == "$not" else {_POSITIVE[key]: value}
            if not isinstance(inside, Mapping):
                refuse(
                    FilterTypeError,
                    f"$not takes a dict of operators, not a {type(inside).__name__}",
                    position,
                )
            parts.append(tree.IsNotTrue(_read_size(column, inside, f"{position}.{key}")))
            continue
        leaf = _read_leaf(column, key, value, f"{position}.{key}" if tests is operand else position, "length")
        if leaf is None:
            _unknown(key, (*_COMPARE, "$in", "$nin", "$between", "$not"), f"{position}.{key}")
        parts.append(leaf)
    return parts[0] if len(parts) == 1 else tree.And(tuple(parts))


def _read_element(column: str, operand: Any, position: str) -> tree.Expr:
    """Operators that one and the same element of a list meets."""
    if not isinstance(operand, Mapping) or not operand:
        refuse(FilterTypeError, "$elemMatch takes a dict of operators on an element", position)
    tests: list[tuple[tree.Leaf, bool]] = []
    for key, value in operand.items():
        inside = f"{position}.{key}"
        if key == "$not" and isinstance(value, Mapping):
            tests += [
                (_element_test(column, name, one, f"{inside}.{name}"), True) for name, one in value.items()
            ]
        else:
            positive = _POSITIVE.get(key, str(key))
            tests.append((_element_test(column, positive, value, inside), key in _POSITIVE))
    return tree.ElementMatch(column, tuple(tests), position=position)


def _element_test(column: str, key: str, operand: Any, position: str) -> tree.Leaf:
    leaf = None if key in ("$any", "$all", "$ne") else _read_leaf(column, key, operand, position)
    if leaf is None:
        known = (
            "$eq",
            "$ne",
            "$lt",
            "$lte",
            "$gt",
            "$gte",
            "$in",
            "$nin",
            "$between",
            "$starts_with",
            "$like",
        )
        _unknown(key, known, position)
    return leaf


def to_json(expr: tree.Expr) -> str:
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
    return json.dumps(tree.to_dict(expr), ensure_ascii=False)


def from_json(text: str | bytes) -> tree.Expr:
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
        refuse(FilterError, f"it is nested deeper than {tree.DEPTH_MAX}")
    except ValueError as error:
        refuse(FilterError, f"it is not JSON: {error}")
    return from_dict(conditions)
