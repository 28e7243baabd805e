"""Columns in expressions, such as ``col("year") >= 2020``, and rows listed by id or mask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from velo.errors import FilterTypeError
from velo.filters import tree
from velo.filters.values import Value, refuse


class Column:
    """A column of the metadata. It makes conditions; :func:`velo.col` makes it.

    ``==``, ``!=``, ``<``, ``<=``, ``>`` and ``>=`` compare it with a value. A column of booleans is a
    condition by itself in ``&``, ``|`` and ``~``.

    Parameters
    ----------
    name : str
        Its name in the metadata.
    """

    __slots__ = ("name", "of")

    def __init__(self, name: str, of: Literal["value", "length"] = "value") -> None:
        if not isinstance(name, str):
            refuse(FilterTypeError, f"a column's name is a str, not a {type(name).__name__}")
        self.name = name
        self.of = of

    def __repr__(self) -> str:
        return f"col({self.name!r})" + (".length" if self.of == "length" else "")

    def __hash__(self) -> int:
        return hash((self.name, self.of))

    def __eq__(self, value: object) -> tree.Expr:  # type: ignore[override]
        return tree.Compare(self.name, "eq", value, of=self.of)  # type: ignore[arg-type]

    def __ne__(self, value: object) -> tree.Expr:  # type: ignore[override]
        return tree.Compare(self.name, "ne", value, of=self.of)  # type: ignore[arg-type]

    def __lt__(self, value: Value) -> tree.Expr:
        return tree.Compare(self.name, "lt", value, of=self.of)

    def __le__(self, value: Value) -> tree.Expr:
        return tree.Compare(self.name, "le", value, of=self.of)

    def __gt__(self, value: Value) -> tree.Expr:
        return tree.Compare(self.name, "gt", value, of=self.of)

    def __ge__(self, value: Value) -> tree.Expr:
        return tree.Compare(self.name, "ge", value, of=self.of)

    def isin(self, values: Iterable[Any]) -> tree.Expr:
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
        return tree.IsIn(self.name, values, of=self.of)  # type: ignore[arg-type]

    def between(self, low: Value, high: Value) -> tree.Expr:
        """Pass rows whose value is between two values, both included.

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
        return tree.Between(self.name, low, high, of=self.of)

    def is_null(self) -> tree.Expr:
        """Pass rows that have no value.

        Returns
        -------
        Expr

        Examples
        --------
        >>> index.explain(query, filter=velo.col("brand").is_null()).matches
        34
        """
        return tree.IsNull(self.name)

    def is_valid(self) -> tree.Expr:
        """Pass rows that have a value.

        Returns
        -------
        Expr
        """
        return tree.Not(tree.IsNull(self.name))

    not_null = is_valid

    def contains_any(self, values: Iterable[Any]) -> tree.Expr:
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
        return tree.Contains(self.name, values, "any")  # type: ignore[arg-type]

    def contains_all(self, values: Iterable[Any]) -> tree.Expr:
        """Pass rows whose list holds every one of some values.

        Parameters
        ----------
        values : list, set, numpy or Arrow array

        Returns
        -------
        Expr
        """
        return tree.Contains(self.name, values, "all")  # type: ignore[arg-type]

    def starts_with(self, prefix: str) -> tree.Expr:
        """Pass rows whose string begins with a text.

        Parameters
        ----------
        prefix : str

        Returns
        -------
        Expr
        """
        return tree.StartsWith(self.name, prefix)

    @property
    def _condition(self) -> tree.Expr:
        return tree.Compare(self.name, "eq", True, of=self.of)

    def like(self, pattern: str) -> tree.Expr:
        r"""Pass rows whose string has a form.

        Parameters
        ----------
        pattern : str
            ``%`` is any text, ``_`` one character. A backslash takes the next character for itself, so
            ``r"C:\\%"`` is every text that begins with ``C:\``.

        Returns
        -------
        Expr

        Examples
        --------
        >>> hits = index.search(query, k=3, filter=velo.col("brand").like("%-0_"), return_metadata=["brand"])
        >>> all(brand < "brand-10" for brand in hits.metadata["brand"].to_pylist())
        True
        """
        return tree.Like(self.name, pattern)

    def ilike(self, pattern: str) -> tree.Expr:
        """Pass rows whose string has a form, whatever the case of its letters.

        Parameters
        ----------
        pattern : str
            As for :meth:`like`.

        Returns
        -------
        Expr
        """
        return tree.Like(self.name, pattern, True)

    @property
    def length(self) -> Column:
        """The number of elements of the list, to be compared: ``col("tags").length >= 2``."""
        return Column(self.name, "length")

    def __and__(self, other: tree.Combinable) -> tree.Expr:
        return tree.as_condition(self) & other

    def __or__(self, other: tree.Combinable) -> tree.Expr:
        return tree.as_condition(self) | other

    def __invert__(self) -> tree.Expr:
        return ~tree.as_condition(self)

    __bool__ = tree.Expr.__bool__


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


def ids(values: Iterable[Any]) -> tree.Expr:
    """Pass rows with some ids. It joins with conditions.

    Parameters
    ----------
    values : array-like of the index's kind of id
        Ids that no row has match nothing.

    Returns
    -------
    Expr

    Examples
    --------
    >>> velo.ids([3, 5]) & (velo.col("year") >= 2020)
    And(children=(Ids(values=(3, 5)), Compare(column='year', op='ge', value=2020)))
    """
    return tree.Ids(values)  # type: ignore[arg-type]


def mask(rows: Any) -> tree.Expr:
    """Pass rows where an array of bools is true. It joins with conditions.

    Parameters
    ----------
    rows : array-like of bool
        One for every row that the index was built from, in that order.

    Returns
    -------
    Expr
    """
    return tree.Mask(rows)
