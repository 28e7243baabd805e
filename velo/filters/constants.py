"""Constants of a filter in the terms of a column: a whole number, a fraction of its unit, or a string."""

from __future__ import annotations

import datetime as dt
import math
import re
from fractions import Fraction
from typing import Any, Final

import numpy as np

from velo.errors import FilterError, FilterTypeError
from velo.filters.columns import FilterColumn
from velo.filters.values import refuse

_EPOCH: Final = dt.datetime(1970, 1, 1)
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_NS: Final = {"W": 7 * 86400 * 10**9, "D": 86400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9}
_NS_SMALL: Final = {"ms": 10**6, "us": 10**3, "ns": 1}
_PARTS: Final = {"ps": 10**3, "fs": 10**6, "as": 10**9}

_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[T ](.+?))?(Z|[+-]\d\d:?\d\d)?", re.ASCII)
_TIME: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?", re.ASCII)
_DURATION: Final = re.compile(r"(-?)PT(\d+)(?:\.(\d{1,9}))?S", re.ASCII)

_EXPECTED: Final = {
    "bool": "True or False",
    "int": "a number",
    "float": "a number",
    "decimal": "a number",
    "string": "a str",
    "timestamp": "a datetime, a date, a numpy.datetime64 or an ISO 8601 string",
    "date": "a date, a datetime, a numpy.datetime64 or an ISO 8601 string",
    "time": "a datetime.time or a string such as '08:30:00'",
    "duration": "a timedelta, a numpy.timedelta64 or a string such as 'PT3600S'",
}


def constant(column: FilterColumn, value: Any, position: str) -> Any:
    """Convert `value` to int, float, Fraction or str, as the column's space takes it."""
    kind = column.kind
    if kind == "string" and isinstance(value, str):
        return value
    if kind in ("int", "float", "decimal") and isinstance(value, int | float) and not isinstance(value, bool):
        if kind == "decimal":
            return _decimal(column, value)
        if column.is_list and kind == "float":
            return _rounded(column, value)
        return value
    if kind == "bool" and isinstance(value, bool):
        return int(value)
    nanoseconds: int | Fraction | None = None
    if kind in ("timestamp", "date"):
        nanoseconds = _instant(column, value, position)
    elif kind == "time":
        nanoseconds = _time_of_day(value, position)
    elif kind == "duration":
        nanoseconds = _duration(value, position)
    if nanoseconds is None:
        what = f"the elements of column {column.name!r}" if column.is_list else f"column {column.name!r}"
        refuse(
            FilterTypeError,
            f"{what} of type {column.arrow_type} cannot be compared with {_shown(value)}, "
            f"but with {_EXPECTED[str(kind)]}",
            position,
        )
    units = Fraction(nanoseconds, column.unit_ns)
    return units.numerator if units.denominator == 1 else units


def _decimal(column: FilterColumn, value: int | float) -> int | float | Fraction:
    """In units of the last place; a float is the decimal that it is written as."""
    if isinstance(value, float) and math.isinf(value):
        return value
    return Fraction(repr(value)) * Fraction(10) ** column.scale


def _rounded(column: FilterColumn, value: int | float) -> float | int:
    """A Python float, rounded to the width of a list's elements."""
    if column.float_bits == 64 or not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):
        near = float(np.dtype(f"float{column.float_bits}").type(value))
    return near if math.isfinite(near) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"the {type(value).__name__} {text if len(text) <= 60 else text[:60] + '…'}"


def _from_numpy(value: Any) -> int | Fraction:
    unit, step = np.datetime_data(value.dtype)
    if unit in ("Y", "M"):
        if isinstance(value, np.timedelta64):
            raise ValueError("a month has no fixed length")
        value, unit, step = value.astype("datetime64[D]"), "D", 1
    ticks = int(value.view(np.int64)) * step
    if unit in _PARTS:
        return Fraction(ticks, _PARTS[unit])
    return ticks * (_NS | _NS_SMALL)[unit]


def _instant(column: FilterColumn, value: Any, position: str) -> int | Fraction | None:
    """Nanoseconds since 1970; what has no zone, of column and value, is UTC."""
    found: int | Fraction
    if isinstance(value, str):
        parsed = iso_instant(value)
        if parsed is None:
            refuse(FilterError, f"{value!r} is not an ISO 8601 date or time", position)
        found, _ = parsed
    elif isinstance(value, dt.datetime):
        aware = value.tzinfo is not None
        to_datetime64 = getattr(value, "to_datetime64", None)
        if callable(to_datetime64):  # pandas counts nanoseconds
            found = _from_numpy(to_datetime64())
        else:
            utc = value.astimezone(dt.timezone.utc).replace(tzinfo=None) if aware else value
            found = (utc - _EPOCH) // _MICROSECOND * 1000
    elif isinstance(value, dt.date):
        found = (value - _EPOCH.date()).days * _NS["D"]
    elif isinstance(value, np.datetime64):
        found = _from_numpy(value)
    else:
        return None
    return found


def iso_instant(text: str) -> tuple[int, bool] | None:
    """Nanoseconds since 1970 and whether the text names a zone; None where it is no ISO 8601 date or time."""
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day, time, zone = match.groups()
    try:
        days = (dt.date(int(year), int(month), int(day)) - _EPOCH.date()).days
    except ValueError:
        return None
    within = _iso_time(time) if time is not None else 0
    if within is None or (zone is not None and time is None):
        return None
    offset = 0
    if zone not in (None, "Z"):
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        if hours > 23 or minutes > 59:
            return None
        offset = (60 * hours + minutes) * (-1 if zone[0] == "-" else 1)
    return days * _NS["D"] + within - offset * _NS["m"], zone is not None


def _iso_time(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    return hour * _NS["h"] + minute * _NS["m"] + second * _NS["s"] + int((match[4] or "0").ljust(9, "0"))


def _time_of_day(value: Any, position: str) -> int | None:
    if isinstance(value, str):
        found = _iso_time(value)
        if found is None:
            refuse(FilterError, f"{value!r} is not a time of day such as '08:30:00'", position)
        return found
    if isinstance(value, dt.time):
        if value.tzinfo is not None:
            refuse(FilterTypeError, "a time of day in a column has no time zone", position)
        whole = value.hour * _NS["h"] + value.minute * _NS["m"] + value.second * _NS["s"]
        return whole + value.microsecond * 1000
    return None


def _duration(value: Any, position: str) -> int | Fraction | None:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            refuse(FilterError, f"{value!r} is not a duration such as 'PT3600.5S'", position)
        size = int(match[2]) * _NS["s"] + int((match[3] or "0").ljust(9, "0"))
        return -size if match[1] else size
    if isinstance(value, np.timedelta64):
        try:
            return _from_numpy(value)
        except (ValueError, KeyError):
            refuse(FilterTypeError, f"{value!r} has no fixed length", position)
    if isinstance(value, dt.timedelta):
        return value // _MICROSECOND * 1000 + int(getattr(value, "nanoseconds", 0))
    return None
