"""Checks of the values that conditions compare with, and errors that name their place in a filter."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeAlias
from uuid import UUID

import numpy as np

from velo.errors import FilterError, FilterTypeError

#: Values of one list at most.
VALUES_MAX: Final = 1 << 20

#: A value to compare a column with.
Value: TypeAlias = (
    bool | int | float | str | dt.datetime | dt.date | dt.time | dt.timedelta | np.datetime64 | np.timedelta64
)


def refusal(kind: type[FilterError], message: str, position: str | None = None) -> FilterError:
    """An error of `kind` with the place in the filter that is at fault."""
    return kind(f"filter at {position}: {message}" if position else f"filter: {message}", argument="filter")


def refuse(kind: type[FilterError], message: str, position: str | None = None) -> NoReturn:
    """Raise `kind` with the place in the filter that is at fault."""
    raise refusal(kind, message, position)


def scalar(value: Any, position: str | None) -> Any:
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
        return scalar(value.item(), position)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite():
            return scalar(float(value), position)
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, UUID):
        return str(value)
    as_py = getattr(value, "as_py", None)  # a pyarrow scalar
    if callable(as_py):
        return scalar(as_py(), position)
    refuse(FilterTypeError, f"a {type(value).__name__} is not a value to compare with", position)


def values_of(values: Any, position: str | None, what: str) -> tuple[Value, ...]:
    """A list of values, each checked."""
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
        checked.append(scalar(value, f"{position}[{at}]" if position else f"{what}[{at}]"))
    return tuple(checked)


def typed(value: Any) -> Any:
    """A key that differs for 1, 1.0 and True."""
    kind = type(value)
    if kind is str or kind is int:
        return value
    if kind is tuple:
        kinds = set(map(type, value))
        return value if kinds <= {int} or kinds <= {str} else tuple(map(typed, value))
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value.dtype), value.view(np.int64).item()
    if isinstance(value, dt.datetime | dt.time):  # equal instants in two zones are not the same filter
        return kind, value.isoformat()
    return kind, value


def plain(value: Any) -> Any:
    """A value as JSON has it."""
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
