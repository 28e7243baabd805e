"""Filters as SQL text: the condition of a WHERE clause, parsed by sqlglot and read into the tree.

Only the operators of filters are accepted, first by token (so that the parser never sees a statement, a
comment or bottomless nesting), then by node; all else is a typed error with the line and character.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np

from velo.errors import FilterError, FilterTypeError, MissingDependencyError
from velo.filters.constants import iso_instant
from velo.filters.tree import (
    DEPTH_MAX,
    And,
    Between,
    Compare,
    CompareOp,
    Contains,
    ElementMatch,
    Expr,
    IsIn,
    IsNull,
    Like,
    Not,
    Or,
    StartsWith,
)
from velo.filters.values import refusal, refuse

__all__ = ["from_sql"]

#: Longer texts are refused; ids and long lists travel better as arrays.
_LENGTH_MAX: Final = 1 << 20
#: Longer texts are not remembered.
_REMEMBERED_LENGTH: Final = 1 << 14

#: Keywords of statements, which are refused; in quotes they are names or strings.
_NOT_A_PREDICATE: Final = frozenset(
    (
        *("ALTER", "ATTACH", "BEGIN", "CALL", "CASE", "COMMAND", "COMMIT", "COPY", "CREATE", "DELETE"),
        *(
            "DESCRIBE",
            "DETACH",
            "DROP",
            "EXECUTE",
            "EXPLAIN",
            "FROM",
            "GRANT",
            "GROUP_BY",
            "HAVING",
            "INSERT",
        ),
        *("INTO", "JOIN", "KILL", "LIMIT", "MERGE", "ORDER_BY", "OVER", "PRAGMA", "QUALIFY", "REPLACE"),
        *("REVOKE", "ROLLBACK", "SELECT", "SEMICOLON", "SET", "SHOW", "TRUNCATE", "UNION", "UPDATE", "USE"),
        *("VALUES", "WHERE", "WITH"),
    )
)
#: Of these, those that are also common names of columns: refused only where a statement may begin.
_NAMES_AS_WELL: Final = frozenset(
    ("BEGIN", "COMMAND", "DESCRIBE", "FROM", "KILL", "REPLACE", "SET", "SHOW", "USE")
)

_COMPARISONS: Final[dict[str, CompareOp]] = {
    "EQ": "eq",
    "NEQ": "ne",
    "LT": "lt",
    "LTE": "le",
    "GT": "gt",
    "GTE": "ge",
}
_FLIPPED: Final[dict[CompareOp, CompareOp]] = {
    "eq": "eq",
    "ne": "ne",
    "lt": "gt",
    "le": "ge",
    "gt": "lt",
    "ge": "le",
}

#: Functions on list columns, by what they ask; all take the column first.
_ANY: Final = ("array_contains_any", "array_has_any", "has_any", "list_has_any")
_ALL: Final = ("array_contains_all", "array_has_all", "has_all", "list_has_all")
_ONE: Final = ("array_contains", "array_has", "list_contains", "has")
#: The number of a list's elements.
_LENGTHS: Final = ("array_length", "array_size", "cardinality", "list_length", "len", "length")
#: Nodes that a comparison may have in place of a column.
_COLUMN_SIDE: Final = ("Column", "Any", "ArraySize", "Length", "Anonymous")
#: Functions that sqlglot knows by a class of their own.
_KNOWN_CLASSES: Final = {
    "ArrayContains": "array_contains",
    "ArrayContainsAll": "array_contains_all",
    "ArrayOverlaps": "array_contains_any",
    "StartsWith": "starts_with",
}


def from_sql(text: str) -> Expr:
    """Read a filter from SQL text: the condition of a WHERE clause.

    Parameters
    ----------
    text : str
        Comparisons of a column with a literal (``= <> != < <= > >=``), ``BETWEEN``, ``IN``,
        ``IS [NOT] NULL``, ``IS [NOT] TRUE``, ``LIKE 'a%b_'``, ``ILIKE``, ``AND OR NOT`` and parentheses; a
        column of booleans by itself; ``5 <= ANY(numbers)`` of some element of a list,
        ``array_length(tags) > 2``, ``shape.x = 1`` of a field of a struct;
        ``array_contains(tags, 'a')``, ``array_contains_any(tags, ARRAY['a', 'b'])`` (or ``has_any``),
        ``array_contains_all(tags, ARRAY['a', 'b'])`` (or ``has_all``), ``starts_with(name, 'a')``. Literals:
        numbers, ``'text'``, ``TRUE``, ``DATE '2020-01-31'``, ``TIMESTAMP '2020-01-31 08:30:00'``,
        ``TIME '08:30:00'``; texts compare with dates and times where they are ISO 8601. Names keep their
        case; ``"a name"`` between double quotes may hold anything.

    Returns
    -------
    Expr
        The tree that the same condition has as an expression or as a dict.

    Raises
    ------
    FilterError, FilterTypeError
        It is no such condition; the message has the line and the character, both counted from 1.
    MissingDependencyError
        sqlglot is not installed (``pip install 'veloann[sql]'``).

    Examples
    --------
    >>> velo.filters.from_sql("year >= 2020")
    Compare(column='year', op='ge', value=2020)
    """
    if not isinstance(text, str):
        refuse(FilterTypeError, f"SQL is a str, not a {type(text).__name__}")
    return _remembered(text) if len(text) <= _REMEMBERED_LENGTH else _read(text)


def _read(text: str) -> Expr:
    try:
        import sqlglot
        from sqlglot import errors, expressions
    except ImportError as error:
        raise MissingDependencyError(
            "filters as SQL text need sqlglot: pip install 'veloann[sql]'; dicts and velo.col do without",
            argument="filter",
        ) from error
    if len(text) > _LENGTH_MAX:
        refuse(FilterError, f"SQL of {len(text)} characters is above the limit of {_LENGTH_MAX}")
    for at, letter in enumerate(text):
        if "\ud800" <= letter <= "\udfff":
            refuse(FilterError, "it holds half a surrogate pair, so it is not UTF-8", _place(text, at))
        if letter == "\0":
            refuse(FilterError, "it holds a NUL character", _place(text, at))
    try:
        tokens = sqlglot.tokenize(text)
    except errors.SqlglotError:
        refuse(FilterError, "a text or name in quotes does not end", _place(text, _open_quote(text)))
    if not tokens:
        refuse(FilterError, "the SQL is empty; no filter is None")
    _admit(tokens, text)
    try:
        root = sqlglot.parse_one(text, into=expressions.Condition)
    except errors.ParseError as error:
        refuse(
            FilterError,
            "this is not a condition of SQL; names that are SQL keywords need double quotes",
            _place_of_error(error),
        )
    except RecursionError:
        refuse(FilterError, f"it is nested deeper than {DEPTH_MAX}")
    return _Reader(text).condition(root, 0)


_remembered = lru_cache(maxsize=256)(_read)


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    return f"line {line}, character {at - (text.rfind(chr(10), 0, at) + 1) + 1}"


def _open_quote(text: str) -> int:
    """The position of the quote that is never closed."""
    opened, quote = 0, ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote  # a doubled quote ends and begins: the same in the end
        elif letter in "'\"":
            opened, quote = at, letter
    return opened


def _place_of_error(error: Any) -> str | None:
    for found in error.errors:
        line, column = found.get("line"), found.get("col")
        if line and column:
            # sqlglot names the end of the token.
            return f"line {line}, character {max(1, column - len(found.get('highlight') or ' ') + 1)}"
    return None


def _admit(tokens: Any, text: str) -> None:
    """Refuse by token what is no part of a condition, and nesting that the parser would follow down."""
    depth = run = 0
    before = ""
    for at, token in enumerate(tokens):
        kind = token.token_type.name
        if token.comments:
            refuse(FilterError, "a filter holds no comments", _place(text, token.end + 1))
        if kind in _NOT_A_PREDICATE:
            after = tokens[at + 1].token_type.name if at + 1 < len(tokens) else ""
            named = kind in _NAMES_AS_WELL and before in ("", "AND", "OR", "NOT", "L_PAREN")
            if not (named and after in _AFTER_A_NAME):
                shown = token.text.upper() if kind != "SEMICOLON" else "a semicolon"
                refuse(
                    FilterError,
                    f"{shown} is not part of a condition: a filter is a single predicate",
                    _place(text, token.start),
                )
        depth += (kind in ("L_PAREN", "L_BRACKET")) - (kind in ("R_PAREN", "R_BRACKET"))
        # Operators, names and keywords one after another nest without parentheses (NOT NOT …, - - …).
        run = 0 if kind in _ENDS_A_RUN else run + 1
        if depth > DEPTH_MAX or run > DEPTH_MAX:
            refuse(FilterError, f"it is nested deeper than {DEPTH_MAX}", _place(text, token.start))
        before = kind


_AFTER_A_NAME: Final = frozenset(
    ("", "EQ", "NEQ", "LT", "LTE", "GT", "GTE", "IS", "IN", "NOT", "BETWEEN", "LIKE", "AND", "OR", "R_PAREN")
)
_ENDS_A_RUN: Final = frozenset(("NUMBER", "STRING", "COMMA", "R_PAREN", "R_BRACKET", "L_PAREN", "L_BRACKET"))


class _Reader:
    """From sqlglot's nodes to the tree; whatever has no reader here is refused."""

    def __init__(self, text: str) -> None:
        self._text = text

    # ---- where

    def _place(self, node: Any, near: Any = None) -> str | None:
        """Line and character where a node begins: the least of its tokens that sqlglot remembers."""
        for one in (node, near):
            if one is not None and hasattr(one, "walk"):
                starts = [part.meta["start"] for part in one.walk() if "start" in part.meta]
                if starts:
                    return _place(self._text, min(starts))
        return None

    def _wrong(
        self, node: Any, message: str, kind: type[FilterError] = FilterError, near: Any = None
    ) -> FilterError:
        return refusal(kind, message, self._place(node, near))

    # ---- conditions

    def condition(self, node: Any, depth: int) -> Expr:
        name = type(node).__name__
        if depth > DEPTH_MAX:
            raise self._wrong(node, f"it is nested deeper than {DEPTH_MAX}")
        if name == "Paren":
            return self.condition(node.this, depth + 1)
        if name in ("And", "Or"):
            children = tuple(self.condition(child, depth + 1) for child in _chain(node))
            return And(children) if name == "And" else Or(children)
        if name == "Not":
            return ~self.condition(node.this, depth + 1)
        if name in _COMPARISONS:
            return self._comparison(node, _COMPARISONS[name])
        reader: Callable[[Any], Expr] | None = getattr(self, f"_read_{name.lower()}", None)
        if reader is not None:
            return reader(node)
        function = _KNOWN_CLASSES.get(name) or (node.name.lower() if name == "Anonymous" else "")
        if function:
            return self._function(node, function)
        if name in ("Literal", "Neg", "Null", "Cast"):
            raise self._wrong(node, "a value alone is not a condition")
        raise self._wrong(node, f"{_shown(node)} is not supported in filters")

    def _comparison(self, node: Any, op: CompareOp) -> Expr:
        self._only(node, "this", "expression")
        left, right = _bare(node.this), _bare(node.expression)
        if type(left).__name__ not in _COLUMN_SIDE:
            left, right, op = right, left, _FLIPPED[op]
        name = type(left).__name__
        if name not in _COLUMN_SIDE:
            raise self._wrong(node, "one side of a comparison is a column; here neither is")
        if type(right).__name__ in _COLUMN_SIDE:
            hint = ""
            if type(right).__name__ == "Column" and getattr(right.this, "quoted", False):
                hint = ", and strings are written in single quotes"
            raise self._wrong(right, f"columns are compared with values, not with other columns{hint}")
        place, value = self._place(left), self._value(right, node)
        if name == "Column":
            return Compare(self._column(left), op, value, position=place)
        if name == "Any":
            # Some element meets it; of "<>" that is one that differs.
            column = self._column(left.this, node)
            if op == "ne":
                return ElementMatch(column, ((Compare(column, "eq", value), True),), position=place)
            return Compare(column, op, value, position=place)
        return Compare(self._measured(left, node), op, value, position=place, of="length")

    def _measured(self, node: Any, near: Any) -> str:
        """The column whose length a function asks for."""
        given = node.expressions if type(node).__name__ == "Anonymous" else [node.this]
        known = _function_name(node) in _LENGTHS
        more = [one for one in (node.args.get("expression"),) if one is not None and known]
        if not known or len(given) != 1 or any(str(one.this) != "1" for one in more):
            raise self._wrong(
                node, f"{_shown(node)} has no place in a comparison; array_length(column) does", near=near
            )
        return self._column(given[0], near)

    def _read_column(self, node: Any) -> Expr:
        return Compare(self._column(node), "eq", True, position=self._place(node))

    def _read_boolean(self, node: Any) -> Expr:
        return And(()) if node.this else Or(())

    def _read_between(self, node: Any) -> Expr:
        self._only(node, "this", "low", "high", "negate")
        low, high = (self._value(node.args[end], node) for end in ("low", "high"))
        return _negated(node, Between(self._column(node.this, node), low, high, position=self._place(node)))

    def _read_in(self, node: Any) -> Expr:
        if node.args.get("query") is not None:
            raise self._wrong(node.args["query"], "a subquery is not a list of values")
        self._only(node, "this", "expressions", "negate")
        values = tuple(self._value(one, node) for one in node.expressions)
        return _negated(node, IsIn(self._column(node.this, node), values, position=self._place(node)))

    def _read_is(self, node: Any) -> Expr:
        self._only(node, "this", "expression")
        against = type(node.expression).__name__
        if against == "Boolean" and type(_bare(node.this)).__name__ != "Column":
            held = self.condition(node.this, 1)
            return ~(held if node.expression.this else ~held).is_not_true()
        column, place = self._column(node.this, node), self._place(node)
        if against == "Null":
            return IsNull(column, position=place)
        if against == "Boolean":
            # True or false, never null.
            held = Compare(column, "eq", bool(node.expression.this), position=place)
            return And((held, Not(IsNull(column, position=place))))
        raise self._wrong(node.expression, "IS takes NULL, TRUE or FALSE", near=node)

    def _read_like(self, node: Any) -> Expr:
        return self._like(node, None)

    _read_ilike = _read_like

    def _read_escape(self, node: Any) -> Expr:
        if type(node.this).__name__ not in ("Like", "ILike"):
            raise self._wrong(node, "ESCAPE belongs to LIKE and ILIKE")
        escape = self._value(node.expression, node)
        if not isinstance(escape, str) or len(escape) != 1:
            raise self._wrong(node.expression, "ESCAPE takes one character", near=node)
        return self._like(node.this, escape)

    def _like(self, node: Any, escape: str | None) -> Expr:
        self._only(node, "this", "expression", "negate")
        column, place = self._column(node.this, node), self._place(node)
        pattern = self._value(node.expression, node)
        if not isinstance(pattern, str):
            raise self._wrong(node.expression, "LIKE takes a text", FilterTypeError, node)
        parts = self._pattern(node, pattern, escape)
        form = "".join(_escaped(text) if literal else text for text, literal in parts)
        if type(node).__name__ == "ILike":
            return _negated(node, Like(column, form, True, position=place))
        wild = [text for text, literal in parts if not literal]
        text = "".join(text for text, literal in parts if literal)
        if not wild:
            return _negated(node, Compare(column, "eq", text, position=place))
        if wild == ["%"] and not parts[-1][1]:
            return _negated(node, StartsWith(column, text, position=place))
        return _negated(node, Like(column, form, position=place))

    def _pattern(self, node: Any, pattern: str, escape: str | None) -> list[tuple[str, bool]]:
        """The characters of a pattern, each with whether it is literal."""
        parts: list[tuple[str, bool]] = []
        letters = iter(pattern)
        for letter in letters:
            if letter == escape:
                taken = next(letters, None)
                if taken is None:
                    raise self._wrong(
                        node.expression, "the pattern ends after its escape character", near=node
                    )
                parts.append((taken, True))
            else:
                parts.append((letter, letter not in "%_"))
        return parts

    def _function(self, node: Any, name: str) -> Expr:
        if type(node).__name__ == "Anonymous":
            self._only(node, "this", "expressions")
            given = list(node.expressions)
        else:
            self._only(node, "this", "expression")
            given = [one for one in (node.args.get("this"), node.args.get("expression")) if one is not None]
        if name not in (*_ONE, *_ANY, *_ALL, "starts_with"):
            known = "array_contains, array_contains_any (has_any), array_contains_all (has_all), starts_with"
            raise self._wrong(node, f"the function {name} is unknown; there are: {known}")
        if len(given) != 2:
            raise self._wrong(node, f"{name} takes a column and what to look for, not {len(given)} arguments")
        column, place = self._column(given[0], node), self._place(node)
        if name == "starts_with":
            return StartsWith(column, self._value(given[1], node), position=place)
        if name in _ONE:
            return Contains(column, (self._value(given[1], node),), "any", position=place)
        if type(given[1]).__name__ not in ("Array", "Tuple", "Paren"):
            raise self._wrong(given[1], f"{name} takes a list such as ARRAY['a', 'b']", FilterTypeError, node)
        listed = (
            given[1].expressions or [given[1].this] if given[1].args.get("this") else given[1].expressions
        )
        values = tuple(self._value(one, node) for one in listed)
        return Contains(column, values, "any" if name in _ANY else "all", position=place)

    # ---- columns and values

    def _column(self, node: Any, near: Any = None) -> str:
        node = _bare(node)
        if type(node).__name__ != "Column":
            raise self._wrong(node, f"a column is expected, not {_shown(node)}", near=near)
        parts = [part for part in (*map(node.args.get, ("catalog", "db", "table")), node.this) if part]
        if any(type(part).__name__ != "Identifier" for part in parts):
            raise self._wrong(node, f"a column is expected, not {_shown(node)}", near=near)
        return ".".join(str(part.this) for part in parts)  # fields of a struct

    def _value(self, node: Any, near: Any) -> Any:
        node = _bare(node)
        match type(node).__name__:
            case "Literal":
                return str(node.this) if node.is_string else self._number(node, str(node.this), near)
            case "Neg" if type(node.this).__name__ == "Literal" and not node.this.is_string:
                return self._number(node, f"-{node.this.this}", near)
            case "Boolean":
                return bool(node.this)
            case "Cast":
                return self._typed(node, near)
            case "Null":
                raise self._wrong(node, "nothing compares with NULL; ask with IS NULL", FilterTypeError, near)
            case "Column":
                hint = "strings are written in single quotes" if node.this.quoted else "this is a column"
                raise self._wrong(node, f"a value is expected; {hint}", near=near)
            case "Placeholder" | "Parameter":
                raise self._wrong(node, "parameters are not bound here; write the value", near=near)
            case "Select" | "Subquery" | "Exists":
                raise self._wrong(node, "a subquery is not a value", near=near)
        raise self._wrong(node, f"{_shown(node)} is not a value to compare with", near=near)

    def _number(self, node: Any, text: str, near: Any) -> int | float:
        try:
            return int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:  # also a whole number of thousands of digits
            raise self._wrong(node, f"{text[:40]!r} is not a number", near=near) from None

    def _typed(self, node: Any, near: Any) -> Any:
        """``DATE '…'``, ``TIMESTAMP '…'``, ``TIME '…'``, or the same as a CAST of a text."""
        self._only(node, "this", "to")
        kind = node.args["to"].sql().upper()
        if type(node.this).__name__ != "Literal" or not node.this.is_string:
            raise self._wrong(node, "only texts are cast, as in DATE '2020-01-31'", near=near)
        text = str(node.this.this)
        try:
            if kind == "DATE":
                return dt.date.fromisoformat(text)
            if kind == "TIME":
                return dt.time.fromisoformat(text)
        except ValueError:
            raise self._wrong(node, f"{text!r} is not an ISO 8601 {kind.lower()}", near=near) from None
        if kind not in ("TIMESTAMP", "TIMESTAMPTZ", "DATETIME"):
            raise self._wrong(node, f"a value of type {kind} cannot be compared with", near=near)
        found = iso_instant(text)
        if found is None:
            raise self._wrong(node, f"{text!r} is not an ISO 8601 date or time", near=near)
        nanoseconds, aware = found
        if not aware and kind != "TIMESTAMPTZ":
            return np.datetime64(nanoseconds, "ns")
        if nanoseconds % 1000:
            raise self._wrong(node, "a time with a zone is exact to the microsecond", near=near)
        return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(
            microseconds=nanoseconds // 1000
        )

    def _only(self, node: Any, *known: str) -> None:
        """Refuse a node that says more than is read of it."""
        for name, value in node.args.items():
            if value not in (None, False, []) and name not in known and not name.startswith("_"):
                raise self._wrong(node, f"{name.replace('_', ' ').upper()} is not possible here")


def _escaped(letter: str) -> str:
    """A literal letter in the syntax of :class:`Like`."""
    return f"\\{letter}" if letter in "%_\\" else letter


def _chain(node: Any) -> list[Any]:
    """The members of ``a AND b AND c``, which sqlglot nests to the left, without following it down."""
    members: list[Any] = []
    kind = type(node)
    while type(node) is kind:
        members.append(node.expression)
        node = node.this
    members.append(node)
    members.reverse()
    return members


def _bare(node: Any) -> Any:
    """A node without the parentheses around it."""
    while type(node).__name__ == "Paren":
        node = node.this
    return node


def _negated(node: Any, expr: Expr) -> Expr:
    """`expr`, or its negation where sqlglot notes ``a NOT LIKE …`` in the node itself."""
    return ~expr if node.args.get("negate") else expr


def _function_name(node: Any) -> str:
    name = type(node).__name__
    return {"ArraySize": "array_length", "Length": "length"}.get(name) or str(node.name).lower()


def _shown(node: Any) -> str:
    name = type(node).__name__
    if name == "Column":
        return f"the column {node.name!r}"
    text = node.sql() if name in ("Literal", "Anonymous") else name.upper()
    return text if len(text) <= 40 else f"{text[:40]}…"
