"""The tree of conditions, which every filter syntax is read into."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Literal, NoReturn, Protocol, TypeAlias

from velo.errors import FilterError, FilterTypeError
from velo.filters.values import Value, plain, refusal, refuse, scalar, typed, values_of

#: How deeply conditions may be nested.
DEPTH_MAX: Final = 64
#: How many conditions a tree may hold; lists of values count as one.
NODES_MAX: Final = 4096

CompareOp: TypeAlias = Literal["eq", "ne", "lt", "le", "gt", "ge"]

_SYMBOLS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Want(Enum):
    """The rows asked for while ``not`` moves to the leaves: (where it is true or false, where it is null)."""

    TRUE = (True, False)
    FALSE = (False, False)
    NOT_FALSE = (True, True)
    NOT_TRUE = (False, True)

    @property
    def positive(self) -> bool:
        """Whether rows are wanted where the condition is true."""
        return self.value[0]

    @property
    def null(self) -> bool:
        """Whether rows are wanted where it is null."""
        return self.value[1]

    @property
    def of_not(self) -> Want:
        """The rows to ask `x` for, given those asked of ``NOT x``, which is null where `x` is."""
        return Want((not self.positive, self.null))

    @property
    def of_not_true(self) -> Want:
        """The rows to ask `x` for, given those asked of ``x IS NOT TRUE``, which is never null."""
        return Want.NOT_TRUE if self.positive else Want.TRUE


class Combinable(Protocol):
    """An operand of ``&``, ``|`` and ``~``: a condition, or a column of bools."""

    @property
    def _condition(self) -> Expr: ...


class Expr:
    """A condition. Combine with ``&``, ``|`` and ``~``."""

    __slots__ = ()

    depth: int
    nodes: int

    @property
    def _condition(self) -> Expr:
        return self

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity of this condition: equal for trees that are written equally."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __and__(self, other: Combinable) -> Expr:
        return And(_joined(And, self, as_condition(other)))

    def __or__(self, other: Combinable) -> Expr:
        return Or(_joined(Or, self, as_condition(other)))

    def __invert__(self) -> Expr:
        return self.child if isinstance(self, Not) else Not(self)

    def __bool__(self) -> NoReturn:
        refuse(
            FilterTypeError,
            "a condition is neither true nor false before it meets a row: write & | ~ in place of and, or, "
            "not, put comparisons in parentheses, and .between(a, b) in place of a < col < b",
        )

    def is_not_true(self) -> Expr:
        """Pass rows for which the condition is false or null.

        That is what ``$not`` means in a dict and ``IS NOT TRUE`` in SQL. ``~`` keeps null null.

        Returns
        -------
        Expr

        Examples
        --------
        >>> is_five = velo.col("label") == 5
        >>> index.count(is_five) + index.count(is_five.is_not_true()) == len(index)
        True
        """
        return IsNotTrue(self)

    def to_dict(self) -> dict[str, Any]:
        """Write a dict of plain JSON values that passes the same rows.

        :func:`velo.filters.from_dict` reads it.

        Dicts have two-valued logic, so nulls are written out: ``~(col("x") == 1)`` becomes
        ``{"x": {"$ne": 1, "$exists": True}}``.

        Returns
        -------
        dict
        """
        return self._written(Want.TRUE)

    def _written(self, want: Want) -> dict[str, Any]:
        """The rows that `want` asks for, as a dict."""
        raise NotImplementedError


def as_condition(other: Any) -> Expr:
    """A condition, or what a column of bools says by itself."""
    made = getattr(other, "_condition", None)
    if isinstance(made, Expr):
        return made
    raise refusal(FilterTypeError, f"a condition combines with conditions, not with a {type(other).__name__}")


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
class Leaf(Expr):
    """A condition on one column.

    On a column of lists it holds where any element meets it; with ``of="length"`` it is about their number.
    """

    column: str
    #: Its position in the dict that it was read from, for errors.
    position: str | None = field(default=None, repr=False, kw_only=True)
    of: Literal["value", "length"] = field(default="value", repr=False, kw_only=True)
    depth = 1
    nodes = 1

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            refuse(
                FilterTypeError,
                f"a column's name is a str, not a {type(self.column).__name__}",
                self.position,
            )

    @property
    def key(self) -> tuple[Any, ...]:
        column, _, of, *own = vars(self).values()  # in the order of the fields
        return (type(self), column, of, *map(typed, own))

    def operator(self) -> tuple[str, Any]:
        """Operator and operand in the dict syntax."""
        raise NotImplementedError

    def _written(self, want: Want) -> dict[str, Any]:
        operator, operand = self.operator()
        if want.positive:
            tested = {operator: operand}
        else:
            opposite = _OPPOSITE.get(operator)
            tested = {opposite: operand} if opposite else {"$not": {operator: operand}}
        if self.of == "length":
            tested = {"$size": tested}
        column = dict_key(self.column)
        if want in (Want.TRUE, Want.NOT_TRUE):
            return {column: tested}
        if want is Want.FALSE:
            return {column: {**tested, "$exists": True}}
        return {"$or": [{column: tested}, {column: {"$exists": False}}]}


@dataclass(frozen=True, eq=False)
class Compare(Leaf):
    """``column op value``."""

    op: CompareOp
    value: Value

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "value", scalar(self.value, self.position or f"{self.column} {_SYMBOLS[self.op]}")
        )

    def operator(self) -> tuple[str, Any]:
        return COMPARE_KEYS[self.op], plain(self.value)

    def _written(self, want: Want) -> dict[str, Any]:
        if self.op == "ne":  # null where the value is, as in SQL
            return replace(self, op="eq")._written(want.of_not)
        return super()._written(want)


@dataclass(frozen=True, eq=False)
class Between(Leaf):
    """``low <= column <= high``."""

    low: Value
    high: Value

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("low", "high"):
            checked = scalar(getattr(self, name), self.position or f"{self.column}.between")
            object.__setattr__(self, name, checked)

    def operator(self) -> tuple[str, Any]:
        return "$between", [plain(self.low), plain(self.high)]


@dataclass(frozen=True, eq=False)
class IsIn(Leaf):
    """``column`` is one of ``values``; no row passes an empty list."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "values", values_of(self.values, self.position, f"{self.column}.isin"))

    def operator(self) -> tuple[str, Any]:
        return "$in", [plain(value) for value in self.values]


@dataclass(frozen=True, eq=False)
class IsNull(Leaf):
    """``column`` is null."""

    def _written(self, want: Want) -> dict[str, Any]:
        return {dict_key(self.column): {"$exists": not want.positive}}


@dataclass(frozen=True, eq=False)
class StartsWith(Leaf):
    """``column``, a string, begins with ``prefix``."""

    prefix: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_text(self, self.prefix, "starts_with")

    def operator(self) -> tuple[str, Any]:
        return "$starts_with", self.prefix


@dataclass(frozen=True, eq=False)
class Like(Leaf):
    """``column``, a string, has the form of ``pattern``: ``%`` is any text, ``_`` one character.

    A backslash takes the next character for itself.
    """

    pattern: str
    any_case: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_text(self, self.pattern, "like")

    def operator(self) -> tuple[str, Any]:
        return "$ilike" if self.any_case else "$like", self.pattern


def _check_text(leaf: Leaf, text: Any, name: str) -> None:
    if not isinstance(text, str):
        kind = type(text).__name__
        refuse(FilterTypeError, f"{leaf.column}.{name} takes a str, not a {kind}", leaf.position)
    scalar(text, leaf.position or f"{leaf.column}.{name}")


@dataclass(frozen=True, eq=False)
class Contains(Leaf):
    """The list in ``column`` holds any, or all, of ``values``; its null elements count for nothing."""

    values: tuple[Value, ...]
    mode: Literal["any", "all"]

    def __post_init__(self) -> None:
        super().__post_init__()
        what = f"{self.column}.contains_{self.mode}"
        object.__setattr__(self, "values", values_of(self.values, self.position, what))

    def operator(self) -> tuple[str, Any]:
        return f"${self.mode}", [plain(value) for value in self.values]


@dataclass(frozen=True, eq=False)
class ElementMatch(Leaf):
    """One element of the list in ``column`` meets all of ``tests``, each a leaf and whether it is negated."""

    tests: tuple[tuple[Leaf, bool], ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return ("element", self.column, *((leaf.key, negated) for leaf, negated in self.tests))

    def operator(self) -> tuple[str, Any]:
        written: dict[str, Any] = {}
        for leaf, negated in self.tests:
            operator, operand = leaf.operator()
            opposite = _OPPOSITE.get(operator)
            if not negated:
                written[operator] = operand
            elif opposite:
                written[opposite] = operand
            else:
                written["$not"] = {**written.get("$not", {}), operator: operand}
        return "$elemMatch", written


class _TwoValued(Expr):
    """A condition that is true or false of every row."""

    __slots__ = ()

    def _written(self, want: Want) -> dict[str, Any]:
        return self.plain() if want.positive else {"$not": self.plain()}

    def plain(self) -> dict[str, Any]:
        """The dict of the rows where it is true."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Ids(_TwoValued):
    """The row has one of these ids of the index; unknown ones match nothing."""

    values: tuple[int, ...] | tuple[str, ...]
    depth = 1
    nodes = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", values_of(self.values, None, "ids"))

    @property
    def key(self) -> tuple[Any, ...]:
        return ("ids", typed(self.values))

    def plain(self) -> dict[str, Any]:
        return {"$ids": list(self.values)}


@dataclass(frozen=True, eq=False)
class Mask(_TwoValued):
    """A bool for every row of the input, in its order."""

    rows: Any
    depth = 1
    nodes = 1

    @property
    def key(self) -> tuple[Any, ...]:
        return ("mask", id(self.rows))

    def plain(self) -> dict[str, Any]:
        refuse(FilterError, "a mask cannot be written as a dict; ids can, as {'$ids': [...]}")


@dataclass(frozen=True, eq=False)
class _Branch(Expr):
    """A condition on others."""

    children: tuple[Expr, ...]
    depth: int = field(default=1, init=False, repr=False)
    nodes: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        _measure(self, self.children)

    @property
    def key(self) -> tuple[Any, ...]:
        return (type(self), *(child.key for child in self.children))


@dataclass(frozen=True, eq=False)
class _Wrapper(Expr):
    """A condition on another one."""

    child: Expr
    depth: int = field(default=1, init=False, repr=False)
    nodes: int = field(default=1, init=False, repr=False)

    def __post_init__(self) -> None:
        _measure(self, (self.child,))

    @property
    def key(self) -> tuple[Any, ...]:
        return (type(self), self.child.key)


@dataclass(frozen=True, eq=False)
class And(_Branch):
    """All of ``children``; true where there are none."""

    def _written(self, want: Want) -> dict[str, Any]:
        return {"$and" if want.positive else "$or": [child._written(want) for child in self.children]}


@dataclass(frozen=True, eq=False)
class Or(_Branch):
    """Any of ``children``; false where there are none."""

    def _written(self, want: Want) -> dict[str, Any]:
        return {"$or" if want.positive else "$and": [child._written(want) for child in self.children]}


@dataclass(frozen=True, eq=False)
class Not(_Wrapper):
    """``child`` is false; null where that is."""

    def _written(self, want: Want) -> dict[str, Any]:
        return self.child._written(want.of_not)


@dataclass(frozen=True, eq=False)
class IsNotTrue(_Wrapper):
    """``child`` is false or null."""

    def _written(self, want: Want) -> dict[str, Any]:
        return self.child._written(want.of_not_true)


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
#: Operators that dicts have a negation of; it passes rows without a value, too.
_OPPOSITE: Final = {"$eq": "$ne", "$in": "$nin"}


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
    return expr.to_dict()


def dict_key(column: str) -> str:
    """A column's name as dicts write it."""
    return f"${column}" if column.startswith("$") else column
