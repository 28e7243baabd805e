"""Sets of values of a column, and the conversion of constants into members of them.

Every scalar column is seen as whole numbers: integers, dates and times as they are, strings by their rank in
the column's sorted dictionary, floats by their rank among all floats of their width (so that the next number
is the next float). A condition then is a set of disjoint intervals of whole numbers, closed under union,
intersection and complement. NaN and null have no rank; two flags stand for them.
"""

from __future__ import annotations

import bisect
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow.compute

from velo.filters.arrow_values import truths_of

# The stubs know fewer types of arrays than there are here.
pc: Any = pyarrow.compute

Interval: TypeAlias = tuple[int, int]
#: Ascending, disjoint, not adjacent; both ends included.
Intervals: TypeAlias = tuple[Interval, ...]
Number: TypeAlias = int | float | Fraction


class Space(Protocol):
    """The integers that represent a column's values, ``low`` to ``high``."""

    low: int
    high: int

    def ceil(self, value: Any) -> int:
        """The least member at or above `value`; ``high + 1`` if there is none."""
        ...

    def floor(self, value: Any) -> int:
        """The greatest member at or below `value`; ``low - 1`` if there is none."""
        ...


class WholeSpace:
    """Integers of a width."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def ceil(self, value: Number) -> int:
        if isinstance(value, float) and math.isinf(value):
            return self.high + 1 if value > 0 else self.low
        return min(max(math.ceil(value), self.low), self.high + 1)

    def floor(self, value: Number) -> int:
        if isinstance(value, float) and math.isinf(value):
            return self.high if value > 0 else self.low - 1
        return max(min(math.floor(value), self.high), self.low - 1)


class FloatSpace:
    """Floats by rank: 0.0 and -0.0 are 0, the least positive float is 1."""

    def __init__(self, bits: int, given_bits: int | None = None) -> None:
        self.bits = bits
        #: Constants are rounded to the type as it was given (float16 is stored as float32).
        self._given = {16: np.float16, 32: np.float32, 64: np.float64}[given_bits or bits]
        self.high = self._rank(math.inf)
        self.low = -self.high

    def _rank(self, value: float) -> int:
        packed: int
        if self.bits == 32:
            (packed,) = struct.unpack("<i", struct.pack("<f", value))
            return packed if packed >= 0 else -(packed & 0x7FFFFFFF)
        (packed,) = struct.unpack("<q", struct.pack("<d", value))
        return packed if packed >= 0 else -(packed & 0x7FFFFFFFFFFFFFFF)

    def value(self, rank: int) -> float:
        form, whole = ("<f", "<I") if self.bits == 32 else ("<d", "<Q")
        packed = rank if rank >= 0 else -rank | 1 << (self.bits - 1)
        found: float = struct.unpack(form, struct.pack(whole, packed))[0]
        return found

    def _near(self, value: Number) -> tuple[int, Number]:
        """A rank close to `value`, and what to compare its float with."""
        try:
            near = float(value)
        except OverflowError:  # a whole number beyond every float
            near = math.inf if value > 0 else -math.inf
        with np.errstate(over="ignore"):
            rounded = float(self._given(near))
            near = float(np.float32(near)) if self.bits == 32 else near
        # A Python float means the nearest float of the column, unless only that one is infinite.
        if isinstance(value, float) and (math.isfinite(rounded) or math.isinf(value)):
            near = value = rounded
        return self._rank(near), value

    def ceil(self, value: Number) -> int:
        rank, exact = self._near(value)
        while rank <= self.high and self.value(rank) < exact:
            rank += 1
        while rank > self.low and self.value(rank - 1) >= exact:
            rank -= 1
        return rank

    def floor(self, value: Number) -> int:
        rank, exact = self._near(value)
        while rank >= self.low and self.value(rank) > exact:
            rank -= 1
        while rank < self.high and self.value(rank + 1) <= exact:
            rank += 1
        return rank


class RankSpace:
    """Positions in a sorted dictionary."""

    def __init__(self, dictionary: Any) -> None:
        self.dictionary = dictionary
        self.low = 0
        self.high = len(dictionary) - 1

    def _at(self, value: Any, *, after: bool) -> int:
        find = bisect.bisect_right if after else bisect.bisect_left
        return find(_Decoded(self.dictionary), value)

    def ceil(self, value: Any) -> int:
        return self._at(value, after=False)

    def floor(self, value: Any) -> int:
        return self._at(value, after=True) - 1

    def with_prefix(self, prefix: str) -> Intervals:
        """The strings that begin with `prefix`, which are adjacent."""
        heads = _Decoded(self.dictionary, len(prefix))
        first, end = bisect.bisect_left(heads, prefix), bisect.bisect_right(heads, prefix)
        return ((first, end - 1),) if first < end else ()

    def with_form(self, pattern: str, any_case: bool) -> Intervals:
        """The strings that a pattern of LIKE fits."""
        fits = pc.match_substring_regex(self.dictionary, _regex(pattern), ignore_case=any_case)
        found = np.flatnonzero(truths_of(fits)).tolist()
        return normal((rank, rank) for rank in found)

    def ranks(self, values: Iterable[Any]) -> Iterator[int]:
        """The ranks of those `values` that the dictionary has."""
        for value in values:
            rank = self.ceil(value)
            if rank <= self.high and self.dictionary[rank].as_py() == value:
                yield rank


def _regex(pattern: str) -> str:
    """A pattern of LIKE as a regular expression; Arrow's own function leaves doubled backslashes doubled."""
    parts = []
    letters = iter(pattern)
    for letter in letters:
        if letter == "\\":
            parts.append(re.escape(next(letters, letter)))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
    begin, end = "\\A", "\\z"
    if parts and parts[0] == ".*":  # what is found anywhere is found faster
        begin, parts = "", parts[1:]
    if parts and parts[-1] == ".*":
        end, parts = "", parts[:-1]
    return f"(?s){begin}{''.join(parts)}{end}"


class _Decoded:
    """An Arrow array as a sequence of Python values, each cut to `length`."""

    def __init__(self, array: Any, length: int | None = None) -> None:
        self._array = array
        self._length = length

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, at: int) -> Any:
        value = self._array[at].as_py()
        return value if self._length is None else value[: self._length]


# ---- intervals


def normal(intervals: Iterable[Interval]) -> Intervals:
    """Sorted, with what overlaps or touches joined, and what is empty left out."""
    kept: list[Interval] = []
    for low, high in sorted(intervals):
        if low > high:
            continue
        if kept and low <= kept[-1][1] + 1:
            if high > kept[-1][1]:
                kept[-1] = (kept[-1][0], high)
        else:
            kept.append((low, high))
    return tuple(kept)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    kept: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            kept.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(kept)


def complement(intervals: Intervals, space: Space) -> Intervals:
    kept: list[Interval] = []
    after = space.low
    for low, high in intervals:
        if after < low:
            kept.append((after, low - 1))
        after = high + 1
    if after <= space.high:
        kept.append((after, space.high))
    return tuple(kept)


def cardinality(intervals: Intervals) -> int:
    return sum(high - low + 1 for low, high in intervals)


@dataclass(frozen=True, slots=True)
class Domain:
    """The values of one column that pass: ranks, NaN, null."""

    intervals: Intervals
    nan: bool = False
    null: bool = False

    def __and__(self, other: Domain) -> Domain:
        both = intersection(self.intervals, other.intervals)
        return Domain(both, self.nan and other.nan, self.null and other.null)

    def __or__(self, other: Domain) -> Domain:
        either = normal(self.intervals + other.intervals)
        return Domain(either, self.nan or other.nan, self.null or other.null)

    def negated(self, space: Space, has_nan: bool) -> Domain:
        """The values that ``not`` passes: all others except null, since a comparison with null is null."""
        return Domain(complement(self.intervals, space), has_nan and not self.nan, False)

    @property
    def is_empty(self) -> bool:
        return not (self.intervals or self.nan or self.null)
