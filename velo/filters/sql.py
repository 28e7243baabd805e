"""Filters as SQL text: the condition of a WHERE clause, read into the tree by recursive descent."""

from __future__ import annotations

import datetime as dt
import re
from bisect import bisect_left
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from velo.errors import FilterError, FilterTypeError
from velo.filters import tree
from velo.filters.constants import iso_instant
from velo.filters.values import refuse

#: Longer texts are refused; ids and long lists travel better as arrays.
_LENGTH_MAX: Final = 1 << 20
#: Longer texts are not cached.
_REMEMBERED_LENGTH: Final = 1 << 14

_TOKEN: Final = re.compile(
    r"""(?P<comment>--|/\*)|(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")*")
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[^\W\d]\w*)|(?P<parameter>\?|[:@$]\w+)
    |(?P<symbol><>|!=|==|<=|>=|::|\|\||&&|@>|\S)""",
    re.VERBOSE,
)

_NOT_TEXT: Final = re.compile("[\0\ud800-\udfff]")
#: Words of statements. Those in the second set are common names of columns, too.
_STATEMENT: Final = re.compile(
    "ALTER|ATTACH|BEGIN|CALL|CASE|COMMAND|COMMIT|COPY|CREATE|DELETE|DESCRIBE|DETACH|DROP|EXECUTE|EXPLAIN|FROM|"
    "GRANT|GROUP|HAVING|INSERT|INTO|JOIN|KILL|LIMIT|MERGE|ORDER|OVER|PRAGMA|QUALIFY|REPLACE|REVOKE|ROLLBACK|"
    "SELECT|SET|SHOW|TRUNCATE|UNION|UPDATE|USE|VALUES|WHERE|WITH"
)
_NAMES_AS_WELL: Final = ("BEGIN", "COMMAND", "DESCRIBE", "FROM", "KILL", "REPLACE", "SET", "SHOW", "USE")
_COMPARISONS: Final[dict[str, tree.CompareOp]] = {"=": "eq", "==": "eq", "<>": "ne", "!=": "ne", "<": "lt"}
_COMPARISONS.update({"<=": "le", ">": "gt", ">=": "ge"})
_FLIPPED: Final[dict[tree.CompareOp, tree.CompareOp]] = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
#: Words that are no names unless quoted.
_KEYWORDS: Final = ("AND", "AS", "BETWEEN", "ESCAPE", "ILIKE", "IN", "IS", "LIKE", "NOT", "OR")
_AFTER_A_NAME: Final = frozenset(("", ")", *_COMPARISONS, *_KEYWORDS))

#: Functions on list columns; all take the column first.
_ANY: Final = ("array_contains_any", "array_has_any", "array_overlaps", "has_any", "list_has_any")
_ALL: Final = ("array_contains_all", "array_has_all", "has_all", "list_has_all")
_ONE: Final = ("array_contains", "array_has", "list_contains", "has")
_STARTS: Final = ("starts_with", "startswith")
_LENGTHS: Final = ("array_length", "array_size", "cardinality", "list_length", "len", "length")


def from_sql(text: str) -> tree.Expr:
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

    Examples
    --------
    >>> velo.filters.from_sql("year >= 2020")
    Compare(column='year', op='ge', value=2020)
    """
    if not isinstance(text, str):
        refuse(FilterTypeError, f"SQL is a str, not a {type(text).__name__}")
    return _remembered(text) if len(text) <= _REMEMBERED_LENGTH else _read(text)


def _read(text: str) -> tree.Expr:
    if len(text) > _LENGTH_MAX:
        refuse(FilterError, f"SQL of {len(text)} characters is above the limit of {_LENGTH_MAX}")
    reader = _Reader(text)
    if not reader.symbol:
        refuse(FilterError, "the SQL is empty; no filter is None")
    expr = reader.condition(reader.joined("OR", 0))
    if reader.symbol:
        reader.unexpected()
    return expr


_remembered = lru_cache(maxsize=256)(_read)


class _Node(NamedTuple):
    """An operand, or a condition, and where it begins in the text.

    `kind`: column, any (of a list), length, value, null, list, or condition.
    """

    kind: str
    content: Any
    at: int
    is_quoted: bool = False
    in_parentheses: bool = False


class _Reader:
    """Reads tokens one after another; `symbol` is the next one, in capitals unless quoted; "" at the end."""

    def __init__(self, text: str) -> None:
        self._line_ends = [-1, *(found.start() for found in re.finditer("\n", text))]
        self._tokens: list[tuple[str, str, int]] = []
        for found in _TOKEN.finditer(text):
            kind, shown, at = str(found.lastgroup), found.group(), found.start()
            if kind == "comment":
                self._refuse(at, "a filter holds no comments")
            if shown in ("'", '"'):
                self._refuse(at, "a text or name in quotes does not end")
            if kind in ("text", "quoted"):
                shown = shown[1:-1].replace(shown[0] * 2, shown[0])
                if (wrong := _NOT_TEXT.search(shown)) is not None:
                    fault = (
                        "a NUL character" if wrong[0] == "\0" else "half a surrogate pair, so it is not UTF-8"
                    )
                    self._refuse(text.index(wrong[0], at), f"it holds {fault}")
            self._tokens.append((kind, shown, at))
        self._next, self.kind, self._shown, self._at = 0, "", "", 0
        self._take(0)

    # ---- tokens

    def _take(self, count: int = 1) -> tuple[str, str, int]:
        """Go on by some tokens; returns the first of them."""
        taken = (self.kind, self._shown, self._at)
        self._next += count
        if self._next < len(self._tokens):
            self.kind, self._shown, self._at = self._tokens[self._next]
            self.symbol = self._shown.upper() if self.kind in ("word", "symbol") else self.kind
        else:  # errors name the last token
            self.kind, self._shown, self.symbol = "", "", ""
            self._at = self._tokens[-1][2] if self._tokens else 0
        return taken

    def _peek(self) -> str:
        """The token after the next one, as `symbol` has it."""
        if self._next + 1 >= len(self._tokens):
            return ""
        kind, shown, _ = self._tokens[self._next + 1]
        return shown.upper() if kind in ("word", "symbol") else kind

    def _took(self, symbol: str) -> bool:
        """Take the next token if it is this one."""
        if self.symbol == symbol:
            self._take()
            return True
        return False

    def _expect(self, symbol: str) -> None:
        if not self._took(symbol):
            self.unexpected()

    def _place(self, at: int) -> str:
        line = bisect_left(self._line_ends, at)
        return f"line {line}, character {at - self._line_ends[line - 1]}"

    def _refuse(self, at: int, message: str, kind: type[FilterError] = FilterError) -> NoReturn:
        refuse(kind, message, self._place(at))

    def unexpected(self) -> NoReturn:
        """Refuse the next token."""
        if _STATEMENT.fullmatch(self.symbol) or self.symbol == ";":
            shown = "a semicolon" if self.symbol == ";" else self.symbol
            shown += " BY" if self._peek() == "BY" else ""
            self._refuse(self._at, f"{shown} is not part of a condition: a filter is a single predicate")
        if self.kind == "symbol" and self.symbol not in "()[],.":
            self._refuse(self._at, f"the operator {self.symbol} is not supported in filters")
        message = "this is not a condition of SQL; names that are SQL keywords need double quotes"
        self._refuse(self._at, message)

    # ---- conditions

    def joined(self, word: str, depth: int) -> _Node:
        """Conditions joined by OR or AND; a single operand may be no condition."""
        if depth > tree.DEPTH_MAX:
            self._refuse(self._at, f"it is nested deeper than {tree.DEPTH_MAX}")
        first = self.joined("AND", depth) if word == "OR" else self._negation(depth)
        if self.symbol != word:
            return first
        children = [self.condition(first)]
        while self._took(word):
            child = self.joined("AND", depth) if word == "OR" else self._negation(depth)
            children.append(self.condition(child))
        return _Node("condition", (tree.And if word == "AND" else tree.Or)(tuple(children)), first.at)

    def _negation(self, depth: int) -> _Node:
        at, negated = self._at, 0
        while self._took("NOT"):
            negated += 1
            if depth + negated > tree.DEPTH_MAX:
                self._refuse(self._at, f"it is nested deeper than {tree.DEPTH_MAX}")
        node = self._predicate(depth + negated)
        for _ in range(negated):
            node = _Node("condition", ~self.condition(node), at)
        return node

    def condition(self, node: _Node) -> tree.Expr:
        """A node as a condition: a column of booleans is one by itself."""
        if node.kind == "condition":
            expr: tree.Expr = node.content
            return expr
        if node.kind == "column":
            return tree.Compare(node.content, "eq", True, position=self._place(node.at))
        if node.kind != "value" or not isinstance(node.content, bool):
            self._refuse(node.at, "a value alone is not a condition")
        return tree.And(()) if node.content else tree.Or(())

    def _predicate(self, depth: int) -> _Node:
        node = self._operand(depth)
        if self.symbol in _COMPARISONS:
            op = _COMPARISONS[self._take()[1]]
            return _Node("condition", self._comparison(node, op, self._operand(depth)), node.at)
        while True:
            if self._took("IS"):
                expr = self._is(node)
            else:
                negated = self.symbol == "NOT" and self._peek() in ("IN", "BETWEEN", "LIKE", "ILIKE")
                if negated:
                    self._take()
                if self.symbol not in ("IN", "BETWEEN", "LIKE", "ILIKE"):
                    return node
                word = self._take()[1].upper()
                name, place = self._column(node), self._place(node.at)
                if word == "IN":
                    self._expect("(")
                    expr = tree.IsIn(name, self._values(")", depth), position=place)
                elif word == "BETWEEN":
                    low = self._value(self._operand(depth))
                    self._expect("AND")
                    expr = tree.Between(name, low, self._value(self._operand(depth)), position=place)
                else:
                    expr = self._like(name, place, self._operand(depth), any_case=word == "ILIKE")
                expr = ~expr if negated else expr
            node = _Node("condition", expr, node.at)

    def _comparison(self, left: _Node, op: tree.CompareOp, right: _Node) -> tree.Expr:
        first = left.at
        if left.kind not in ("column", "any", "length"):
            left, right, op = right, left, _FLIPPED.get(op, op)
        if left.kind not in ("column", "any", "length"):
            self._refuse(first, "one side of a comparison is a column; here neither is")
        if right.kind in ("column", "any", "length"):
            hint = ", and strings are written in single quotes" if right.is_quoted else ""
            self._refuse(right.at, f"columns are compared with values, not with other columns{hint}")
        value, place = self._value(right), self._place(left.at)
        if left.kind == "any" and op == "ne":  # some element differs
            return tree.ElementMatch(
                left.content, ((tree.Compare(left.content, "eq", value), True),), position=place
            )
        return tree.Compare(
            left.content, op, value, position=place, of="length" if left.kind == "length" else "value"
        )

    def _is(self, node: _Node) -> tree.Expr:
        negated = self._took("NOT")
        kind, shown, at = self._take()
        against, place = shown.upper() if kind == "word" else "", self._place(node.at)
        if against == "NULL":
            expr: tree.Expr = tree.IsNull(self._column(node), position=place)
        elif against not in ("TRUE", "FALSE"):
            self._refuse(at, "IS takes NULL, TRUE or FALSE")
        elif node.kind == "column":  # true or false, never null
            held = tree.Compare(node.content, "eq", against == "TRUE", position=place)
            expr = tree.And((held, tree.Not(tree.IsNull(node.content, position=place))))
        else:
            whole = self.condition(node)
            expr = ~(whole if against == "TRUE" else ~whole).is_not_true()
        return ~expr if negated else expr

    def _like(self, column: str, place: str, pattern: _Node, *, any_case: bool) -> tree.Expr:
        text, escape = self._value(pattern), None
        if not isinstance(text, str):
            self._refuse(pattern.at, "LIKE takes a text", FilterTypeError)
        if self._took("ESCAPE"):
            kind, escape, at = self._take()
            if kind != "text" or len(escape) != 1:
                self._refuse(at, "ESCAPE takes one character")
        parts: list[tuple[str, bool]] = []  # each character, and whether it is literal
        letters = iter(text)
        for letter in letters:
            if letter != escape:
                parts.append((letter, letter not in "%_"))
            elif (taken := next(letters, None)) is None:
                self._refuse(pattern.at, "the pattern ends after its escape character")
            else:
                parts.append((taken, True))
        wild = [letter for letter, is_literal in parts if not is_literal]
        literal = "".join(letter for letter, is_literal in parts if is_literal)
        if not any_case and not wild:
            return tree.Compare(column, "eq", literal, position=place)
        if not any_case and wild == ["%"] and not parts[-1][1]:
            return tree.StartsWith(column, literal, position=place)
        form = "".join(
            f"\\{letter}" if is_literal and letter in "%_\\" else letter for letter, is_literal in parts
        )
        return tree.Like(column, form, any_case, position=place)

    # ---- operands

    def _operand(self, depth: int) -> _Node:
        node = self._plain_operand(depth)
        while self.symbol == "::":
            self._take()
            node = self._typed(self._take()[1], node)
        if self.kind == "symbol" and self.symbol not in _COMPARISONS and self.symbol not in "()[],;":
            self.unexpected()
        return node

    def _plain_operand(self, depth: int) -> _Node:
        symbol, kind, at = self.symbol, self.kind, self._at
        if self._took("("):
            node = self.joined("OR", depth + 1)
            if self.symbol == ",":
                self._take()
                rest = self._values(")", depth)
                return _Node("list", (self._value(node), *rest), at)
            self._expect(")")
            return node._replace(at=at if node.kind == "condition" else node.at, in_parentheses=True)
        if symbol == "[" or (symbol == "ARRAY" and self._peek() in ("[", "(")):
            self._take(2 if symbol == "ARRAY" else 1)
            closing = "]" if self._tokens[self._next - 1][1] == "[" else ")"
            return _Node("list", self._values(closing, depth), at)
        if kind == "text":
            return _Node("value", self._take()[1], at)
        if kind == "number" or (symbol == "-" and self._peek() == "number"):
            sign = "-" if self._took("-") else ""
            return _Node("value", self._number(sign + self._take()[1], at), at)
        if kind == "parameter":
            self._refuse(at, "parameters are not bound here; write the value")
        if kind == "quoted":
            return self._name()
        if kind != "word" or symbol in _KEYWORDS:
            self.unexpected()
        after = self._peek()
        if _STATEMENT.fullmatch(symbol) and (symbol not in _NAMES_AS_WELL or after not in _AFTER_A_NAME):
            self.unexpected()
        if symbol in ("TRUE", "FALSE"):
            self._take()
            return _Node("value", symbol == "TRUE", at)
        if symbol == "NULL":
            self._take()
            return _Node("null", None, at)
        if after == "text":
            return self._typed(self._take()[1], self._plain_operand(depth))
        return self._call(depth) if after == "(" else self._name()

    def _name(self) -> _Node:
        """A column, or a field of a struct."""
        kind, name, at = self._take()
        while self._took("."):
            if self.kind not in ("word", "quoted"):
                self.unexpected()
            name += f".{self._take()[1]}"
        return _Node("column", name, at, is_quoted=kind == "quoted")

    def _call(self, depth: int) -> _Node:
        _, shown, at = self._take()
        name, place = shown.lower(), self._place(at)
        self._take()
        if name == "cast":
            node = self._operand(depth + 1)
            self._expect("AS")
            node = self._typed(self._take()[1], node)
            self._expect(")")
            return node
        given: list[_Node] = []
        while not self._took(")"):
            if given:
                self._expect(",")
            given.append(self.joined("OR", depth + 1))
        if name in ("any", "some"):
            if len(given) != 1:
                self._refuse(at, f"{name} takes a column")
            return _Node("any", self._column(given[0]), given[0].at)
        if name in _LENGTHS:
            if not given or len(given) > 2 or (len(given) == 2 and given[1].content != 1):
                self._refuse(at, f"{name} has no place in a comparison; array_length(column) does")
            return _Node("length", self._column(given[0]), at)
        if name not in (*_ONE, *_ANY, *_ALL, *_STARTS):
            known = "array_contains, array_contains_any (has_any), array_contains_all (has_all), starts_with"
            self._refuse(at, f"the function {name} is unknown; there are: {known}")
        if len(given) != 2:
            self._refuse(at, f"{name} takes a column and what to look for, not {len(given)} arguments")
        column, wanted = self._column(given[0]), given[1]
        if name in _STARTS:
            return _Node("condition", tree.StartsWith(column, self._value(wanted), position=place), at)
        if name in _ONE:
            return _Node(
                "condition", tree.Contains(column, (self._value(wanted),), "any", position=place), at
            )
        if wanted.kind != "list" and not wanted.in_parentheses:
            self._refuse(wanted.at, f"{name} takes a list such as ARRAY['a', 'b']", FilterTypeError)
        values = wanted.content if wanted.kind == "list" else (self._value(wanted),)
        mode: Any = "any" if name in _ANY else "all"
        return _Node("condition", tree.Contains(column, values, mode, position=place), at)

    # ---- columns and values

    def _column(self, node: _Node) -> str:
        if node.kind != "column":
            self._refuse(node.at, f"a column is expected, not a {node.kind}")
        return str(node.content)

    def _values(self, closing: str, depth: int) -> tuple[Any, ...]:
        """Values separated by commas, and the bracket that closes them."""
        values: list[Any] = []
        while not self._took(closing):
            if values:
                self._expect(",")
            values.append(self._value(self._operand(depth)))
        return tuple(values)

    def _value(self, node: _Node) -> Any:
        if node.kind == "null":
            self._refuse(node.at, "nothing compares with NULL; ask with IS NULL", FilterTypeError)
        if node.kind == "column":
            hint = "strings are written in single quotes" if node.is_quoted else "this is a column"
            self._refuse(node.at, f"a value is expected; {hint}")
        if node.kind != "value":
            self._refuse(node.at, f"a {node.kind} is not a value to compare with")
        return node.content

    def _number(self, text: str, at: int) -> int | float:
        try:
            return int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:  # also a whole number of thousands of digits
            self._refuse(at, f"{text[:40]!r} is not a number")

    def _typed(self, kind: str, node: _Node) -> _Node:
        """``DATE '…'``, ``TIMESTAMP '…'``, ``TIME '…'``, or the same as a cast of a text."""
        if node.kind != "value" or not isinstance(node.content, str):
            self._refuse(node.at, "only texts are cast, as in DATE '2020-01-31'")
        return node._replace(content=self._moment(kind.upper(), node.content, node.at))

    def _moment(self, kind: str, text: str, at: int) -> Any:
        try:
            if kind == "DATE":
                return dt.date.fromisoformat(text)
            if kind == "TIME":
                return dt.time.fromisoformat(text)
        except ValueError:
            self._refuse(at, f"{text!r} is not an ISO 8601 {kind.lower()}")
        if kind not in ("TIMESTAMP", "TIMESTAMPTZ", "DATETIME"):
            self._refuse(at, f"a value of type {kind} cannot be compared with")
        found = iso_instant(text)
        if found is None:
            self._refuse(at, f"{text!r} is not an ISO 8601 date or time")
        nanoseconds, aware = found
        if not aware and kind != "TIMESTAMPTZ":
            return np.datetime64(nanoseconds, "ns")
        if nanoseconds % 1000:
            self._refuse(at, "a time with a zone is exact to the microsecond")
        return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(
            microseconds=nanoseconds // 1000
        )
