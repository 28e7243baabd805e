"""The tree of conditions that every dress of a filter becomes, and the expressions that make it."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, TypeAlias

import numpy as np

from velo.errors import FilterError, FilterTypeError

__all__ = [
    "COMPARE_KEYS",
    "DEPTH_MAX",
    "NODES_MAX",
    "VALUES_MAX",
    "And",
    "Between",
    "Column",
    "Compare",
    "CompareOp",
    "Contains",
    "Expr",
    "IsIn",
    "IsNull",
    "Not",
    "Or",
    "StartsWith",
    "Value",
    "col",
    "refusal",
    "refuse",
    "to_dict",
]

#: How deeply conditions may be nested.
DEPTH_MAX: Final = 64
#: How many conditions a tree may hold; lists of values count as one.
NODES_MAX: Final = 4096
#: How many values one list may hold.
VALUES_MAX: Final = 1 << 20

#: What a column is compared with.
Value: TypeAlias = (
    bool | int | float | str | dt.datetime | dt.date | dt.time | dt.timedelta | np.datetime64 | np.timedelta64
)
CompareOp: TypeAlias = Literal["eq", "ne", "lt", "le", "gt", "ge"]

_SYMBOLS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def refusal(kind: type[FilterError], message: str, position: str | None = None) -> FilterError:
    """An error of `kind` with the place in the filter that is at fault."""
    return kind(f"filter at {position}: {message}" if position else f"filter: {message}", argument="filter")


def refuse(kind: type[FilterError], message: str, position: str | None = None) -> NoReturn:
    """Raise `kind` with the place in the filter that is at fault."""
    raise refusal(kind, message, position)


# ---- values


def _scalar(value: Any, position: str | None) -> Any:
    """A value in one of the types of ``Value``; anything else is refused."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            refuse(FilterError, "the text holds half a surrogate pair, so it is not UTF-8", position)
        return str(value)
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            refuse(FilterError, "NaN compares with nothing, not even with itself", position)
        return float(value)
    if value is None:
        refuse(
            FilterTypeError, "None compares with nothing; ask with is_null() or {'$exists': false}", position
        )
    if isinstance(value, dt.datetime | dt.date | dt.time | dt.timedelta):
        if value != value:  # pandas.NaT
            refuse(FilterError, "NaT compares with nothing; ask with is_null()", position)
        return value
    if isinstance(value, np.datetime64 | np.timedelta64):
        if np.isnat(value):
            refuse(FilterError, "NaT compares with nothing; ask with is_null()", position)
        return value
    if isinstance(value, np.generic):
        return _scalar(value.item(), position)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            return _scalar(float(value), position)
        return int(value) if value == value.to_integral_value() else float(value)
    as_py = getattr(value, "as_py", None)  # a pyarrow scalar
    if callable(as_py):
        return _scalar(as_py(), position)
    refuse(FilterTypeError, f"a {type(value).__name__} is not a value to compare with", position)


def _values(values: Any, position: str | None, what: str) -> tuple[Value, ...]:
    to_pylist = getattr(values, "to_pylist", None)  # an Arrow array
    if callable(to_pylist):
        values = to_pylist()
    elif isinstance(values, np.ndarray):
        if values.ndim != 1:
            refuse(FilterTypeError, f"{what} takes a flat list, not one of shape {values.shape}", position)
        # datetime64 stays: as Python objects nanoseconds would become plain integers.
        values = list(values) if values.dtype.kind in "mM" else values.tolist()
    elif isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        refuse(FilterTypeError, f"{what} takes a list of values, not a {type(values).__name__}", position)
    values = list(values)
    if len(values) <= VALUES_MAX and set(map(type, values)) == {int}:
        return tuple(values)
    checked = []
    for at, value in enumerate(values):
        if at == VALUES_MAX:
            refuse(FilterError, f"{what} takes at most {VALUES_MAX} values", position)
        checked.append(_scalar(value, f"{position}[{at}]" if position else f"{what}[{at}]"))
    return tuple(checked)


def _typed(value: Any) -> tuple[str, Any]:
    """A key that tells 1, 1.0 and True apart."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value.dtype), value.view(np.int64).item()
    if isinstance(
        value, dt.datetime | dt.time
    ):  # equal instants in two zones are equal, yet not the same filter
        return type(value).__name__, value.isoformat()
    return type(value).__name__, value


def _all_typed(values: tuple[Any, ...]) -> tuple[Any, ...]:
    kinds = set(map(type, values))
    if kinds <= {int} or kinds <= {str}:
        return (*map(str, kinds), values)
    return tuple(map(_typed, values))


# ---- the tree


class Expr:
    """A condition. Combine with ``&``, ``|`` and ``~``."""

    __slots__ = ()

    depth: int
    nodes: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes this condition this one; equal for trees that are written equally."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __and__(self, other: Expr | Column) -> Expr:
        return And(_joined(And, self, _expr(other)))

    def __or__(self, other: Expr | Column) -> Expr:
        return Or(_joined(Or, self, _expr(other)))

    def __invert__(self) -> Expr:
        return self.child if isinstance(self, Not) else Not(self)

    def __bool__(self) -> NoReturn:
        refuse(
            FilterTypeError,
            "a condition is neither true nor false before it meets a row: write & | ~ in place of and, or, "
            "not, put comparisons in parentheses, and .between(a, b) in place of a < col < b",
        )

    def to_dict(self) -> dict[str, Any]:
        """Write the condition as a dict of plain JSON values. :func:`velo.filters.from_dict` reads it back.

        Returns
        -------
        dict
        """
        return to_dict(self)


def _expr(other: Any) -> Expr:
    if isinstance(other, Expr):
        return other
    if isinstance(other, Column):
        return Compare(other.name, "eq", True)
    refuse(FilterTypeError, f"a condition combines with conditions, not with a {type(other).__name__}")


def _joined(kind: type[And] | type[Or], left: Expr, right: Expr) -> tuple[Expr, ...]:
    """Children of a new node of `kind`, nested ones of the same kind taken apart (a & b & c is one node)."""
    parts: list[Expr] = []
    for one in (left, right):
        parts.extend(one.children if isinstance(one, kind) else (one,))
    return tuple(parts)


def _measure(node: Expr, children: tuple[Expr, ...]) -> None:
    depth = 1 + max((child.depth for child in children), default=0)
    nodes = 1 + sum(child.nodes for child in children)
    if depth > DEPTH_MAX:
        refuse(FilterError, f"it is nested deeper than {DEPTH_MAX}")
    if nodes > NODES_MAX:
        refuse(FilterError, f"it has more than {NODES_MAX} conditions; isin takes many values at once")
    object.__setattr__(node, "depth", depth)
    object.__setattr__(node, "nodes", nodes)


@dataclass(frozen=True, eq=False)
class _Leaf(Expr):
    """A condition on one column."""

    column: str
    #: Where it stood in the dict that it was read from, for errors.
    position: str | None = field(default=None, repr=False, kw_only=True)
    depth = 1
    nodes = 1

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            refuse(
                FilterTypeError,
                f"a column's name is a str, not a {type(self.column).__name__}",
                self.position,
            )


@dataclass(frozen=True, eq=False)
class Compare(_Leaf):
    """``column op value``."""

    op: CompareOp
    value: Value

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "value", _scalar(self.value, self.position or f"{self.column} {_SYMBOLS[self.op]}")
        )

    @property
    def key(self) -> tuple[Any, ...]:
        return ("compare", self.column, self.op, _typed(self.value))


@dataclass(frozen=True, eq=False)
class Between(_Leaf):
    """``low <= column <= high``."""

    low: Value
    high: Value

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            checked = _scalar(getattr(self, name), self.position or f"{self.column}.between")
            object.__setattr__(self, name, checked)

    @property
    def key(self) -> tuple[Any, ...]:
        return ("between", self.column, _typed(self.low), _typed(self.high))


@dataclass(frozen=True, eq=False)
class IsIn(_Leaf):
    """``column`` is one of ``values``; no row passes an empty list."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "values", _values(self.values, self.position, f"{self.column}.isin"))

    @property
    def key(self) -> tuple[Any, ...]:
        return ("isin", self.column, _all_typed(self.values))


@dataclass(frozen=True, eq=False)
class IsNull(_Leaf):
    """``column`` is null."""

    @property
    def key(self) -> tuple[Any, ...]:
        return ("is_null", self.column)


@dataclass(frozen=True, eq=False)
class StartsWith(_Leaf):
    """``column``, a string, begins with ``prefix``."""

    prefix: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prefix, str):
            kind = type(self.prefix).__name__
            refuse(FilterTypeError, f"{self.column}.starts_with takes a str, not a {kind}", self.position)

    @property
    def key(self) -> tuple[Any, ...]:
        return ("starts_with", self.column, self.prefix)


@dataclass(frozen=True, eq=False)
class Contains(_Leaf):
    """The list in ``column`` holds any, or all, of ``values``; its null elements count for nothing."""

    values: tuple[Value, ...]
    mode: Literal["any", "all"]

    def __post_init__(self) -> None:
        super().__post_init__()
        what = f"{self.column}.contains_{self.mode}"
        object.__setattr__(self, "values", _values(self.values, self.position, what))

    @property
    def key(self) -> tuple[Any, ...]:
        return ("contains", self.mode, self.column, _all_typed(self.values))


@dataclass(frozen=True, eq=False)
class And(Expr):
    """All of ``children``; true where there are none."""

    children: tuple[Expr, ...]
    depth: int = field(default=1, init=False, repr=False)
    nodes: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        _measure(self, self.children)

    @property
    def key(self) -> tuple[Any, ...]:
        return ("and", *(child.key for child in self.children))


@dataclass(frozen=True, eq=False)
class Or(Expr):
    """Any of ``children``; false where there are none."""

    children: tuple[Expr, ...]
    depth: int = field(default=1, init=False, repr=False)
    nodes: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        _measure(self, self.children)

    @property
    def key(self) -> tuple[Any, ...]:
        return ("or", *(child.key for child in self.children))


@dataclass(frozen=True, eq=False)
class Not(Expr):
    """``child`` is false."""

    child: Expr
    depth: int = field(default=1, init=False, repr=False)
    nodes: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        _measure(self, (self.child,))

    @property
    def key(self) -> tuple[Any, ...]:
        return ("not", self.child.key)


class Column:
    """A column of the metadata. It makes conditions; :func:`velo.col` makes it.

    ``==``, ``!=``, ``<``, ``<=``, ``>`` and ``>=`` compare it with a value. A column of booleans is a
    condition by itself in ``&``, ``|`` and ``~``.

    Parameters
    ----------
    name : str
        Its name in the metadata.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            refuse(FilterTypeError, f"a column's name is a str, not a {type(name).__name__}")
        self.name = name

    def __repr__(self) -> str:
        return f"col({self.name!r})"

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, value: object) -> Expr:  # type: ignore[override]
        return Compare(self.name, "eq", value)  # type: ignore[arg-type]

    def __ne__(self, value: object) -> Expr:  # type: ignore[override]
        return Compare(self.name, "ne", value)  # type: ignore[arg-type]

    def __lt__(self, value: Value) -> Expr:
        return Compare(self.name, "lt", value)

    def __le__(self, value: Value) -> Expr:
        return Compare(self.name, "le", value)

    def __gt__(self, value: Value) -> Expr:
        return Compare(self.name, "gt", value)

    def __ge__(self, value: Value) -> Expr:
        return Compare(self.name, "ge", value)

    def isin(self, values: Iterable[Any]) -> Expr:
        """Pass rows whose value is one of some values.

        Parameters
        ----------
        values : list, set, numpy or Arrow array

        Returns
        -------
        Expr

        Examples
        --------
        >>> hits = index.search(query, k=3, filter=velo.col("label").isin([1, 2]), return_metadata=["label"])
        >>> set(hits.metadata["label"].to_pylist()) <= {1, 2}
        True
        """
        return IsIn(self.name, values)  # type: ignore[arg-type]

    def between(self, low: Value, high: Value) -> Expr:
        """Pass rows whose value lies between two values, both included.

        Parameters
        ----------
        low, high : value

        Returns
        -------
        Expr

        Examples
        --------
        >>> index.explain(query, filter=velo.col("price").between(0.2, 0.4)).matches
        438
        """
        return Between(self.name, low, high)

    def is_null(self) -> Expr:
        """Pass rows that have no value.

        Returns
        -------
        Expr

        Examples
        --------
        >>> index.explain(query, filter=velo.col("brand").is_null()).matches
        34
        """
        return IsNull(self.name)

    def is_valid(self) -> Expr:
        """Pass rows that have a value.

        Returns
        -------
        Expr
        """
        return Not(IsNull(self.name))

    not_null = is_valid

    def contains_any(self, values: Iterable[Any]) -> Expr:
        """Pass rows whose list holds at least one of some values.

        Parameters
        ----------
        values : list, set, numpy or Arrow array

        Returns
        -------
        Expr

        Examples
        --------
        >>> animals = velo.col("tags").contains_any(["cat", "dog"])
        >>> hits = index.search(query, k=3, filter=animals, return_metadata=["tags"])
        >>> all(set(tags) & {"cat", "dog"} for tags in hits.metadata["tags"].to_pylist())
        True
        """
        return Contains(self.name, values, "any")  # type: ignore[arg-type]

    def contains_all(self, values: Iterable[Any]) -> Expr:
        """Pass rows whose list holds every one of some values.

        Parameters
        ----------
        values : list, set, numpy or Arrow array

        Returns
        -------
        Expr
        """
        return Contains(self.name, values, "all")  # type: ignore[arg-type]

    def starts_with(self, prefix: str) -> Expr:
        """Pass rows whose string begins with a text.

        Parameters
        ----------
        prefix : str

        Returns
        -------
        Expr
        """
        return StartsWith(self.name, prefix)

    def __and__(self, other: Expr | Column) -> Expr:
        return _expr(self) & other

    def __or__(self, other: Expr | Column) -> Expr:
        return _expr(self) | other

    def __invert__(self) -> Expr:
        return ~_expr(self)

    __bool__ = Expr.__bool__


def col(name: str) -> Column:
    """Name a column of the metadata, to make a filter of it.

    Conditions join with ``&`` (and), ``|`` (or) and ``~`` (not). Each needs parentheses.

    Parameters
    ----------
    name : str
        Its name in the metadata.

    Returns
    -------
    Column

    Examples
    --------
    >>> (velo.col("year") >= 2020) & ~velo.col("brand").isin(["acme", "zenith"])
    And(children=(Compare(column='year', op='ge', value=2020), Not(child=IsIn(...))))
    >>> cheap = index.search(query, k=3, filter=velo.col("price") < 0.2, return_metadata=["price"])
    >>> max(cheap.metadata["price"].to_pylist()) < 0.2
    True
    """
    return Column(name)


# ---- the tree as plain values

#: How the dicts write each comparison.
COMPARE_KEYS: Final[dict[CompareOp, str]] = {
    "eq": "$eq",
    "ne": "$ne",
    "lt": "$lt",
    "le": "$lte",
    "gt": "$gt",
    "ge": "$gte",
}


def to_dict(expr: Expr) -> dict[str, Any]:
    """Write a condition as a dict of plain JSON values. :func:`velo.filters.from_dict` reads it back.

    Parameters
    ----------
    expr : Expr

    Returns
    -------
    dict

    Examples
    --------
    >>> velo.filters.to_dict(velo.col("year") >= 2020)
    {'year': {'$gte': 2020}}
    """
    match expr:
        case And(children):
            return {"$and": [to_dict(child) for child in children]}
        case Or(children):
            return {"$or": [to_dict(child) for child in children]}
        case Not(IsNull(column)):
            return {_key(column): {"$exists": True}}
        case Not(IsIn(column, values=values)):
            return {_key(column): {"$nin": [_plain(value) for value in values]}}
        case Not(child):
            return {"$not": to_dict(child)}
        case Compare(column, op=op, value=value):
            return {_key(column): {COMPARE_KEYS[op]: _plain(value)}}
        case Between(column, low=low, high=high):
            return {_key(column): {"$between": [_plain(low), _plain(high)]}}
        case IsIn(column, values=values):
            return {_key(column): {"$in": [_plain(value) for value in values]}}
        case IsNull(column):
            return {_key(column): {"$exists": False}}
        case StartsWith(column, prefix=prefix):
            return {_key(column): {"$starts_with": prefix}}
        case Contains(column, values=values, mode=mode):
            return {_key(column): {f"${mode}": [_plain(value) for value in values]}}
    raise AssertionError(expr)


def _key(column: str) -> str:
    return f"${column}" if column.startswith("$") else column


def _plain(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value))
    if isinstance(value, np.timedelta64):
        return _seconds(int(value / np.timedelta64(1, "ns")))
    if isinstance(value, dt.timedelta):
        return _seconds(
            1000 * (value // dt.timedelta(microseconds=1)) + int(getattr(value, "nanoseconds", 0))
        )
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    return value


def _seconds(nanoseconds: int) -> str:
    """An ISO 8601 duration in seconds, exact."""
    whole, rest = divmod(abs(nanoseconds), 10**9)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{'-' if nanoseconds < 0 else ''}PT{whole}{fraction}S"
