"""Counts and extremes of stored columns, the contents of ``columns.stats``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute

from velo.filters.arrow_values import numpy_of, valid_of
from velo.filters.columns import FilterColumn, NativeType
from velo.types import AnyArray

pa: Any = pyarrow
pc: Any = pyarrow.compute

#: Most frequent values kept in the statistics, and number of intervals between the quantiles.
_TOP: Final = 10
_QUANTILES: Final = 10
#: Values that are looked at together: what is copied of a column is copied in pieces.
_AT_ONCE: Final = 1 << 15
_NUMBERS: Final[dict[NativeType, Any]] = {
    one: np.dtype(f"{one.name[0].lower()}{int(one.name[1:]) // 8}").type
    for one in list(NativeType)[NativeType.I8 : NativeType.CODE32]
}


def statistics_of(described: Sequence[FilterColumn], batch: Any) -> list[dict[str, Any]]:
    """The entry of each column of a batch; 8 bytes are taken for each value of one column at a time."""
    entries = []
    for column, stored in zip(described, batch.columns, strict=True):
        entry: dict[str, Any] = {
            "name": column.name,
            "type": str(column.arrow_type),
            "stored_as": None if column.native_type is None else column.native_type.name.lower(),
            "nulls": stored.null_count,
        }
        entry.update(_extremes(column, stored))
        entries.append(entry)
    return entries


def _extremes(column: FilterColumn, stored: Any) -> dict[str, Any]:
    """Distinct values, least and greatest; of lists, those of their elements and the lengths.

    Times are in the column's own unit. NaN counts for nothing.
    """
    found: dict[str, Any] = {}
    if column.native_type is None:
        return found
    values = stored
    if column.is_list:
        found["elements"], found["longest"] = _lengths(stored)
        values = stored.values
    if column.dictionary is not None:
        return found | _of_codes(column.dictionary, values.indices)
    if column.native_type == NativeType.BOOL:
        return found | _of_bools(values)
    kind = np.int64 if column.is_list else _NUMBERS[column.native_type]
    return found | _of_numbers(values, kind)


def _pieces(array: Any) -> Iterator[Any]:
    for start in range(0, len(array), _AT_ONCE):
        yield array.slice(start, _AT_ONCE)


def _there(numbers: Any, dtype: type[np.generic]) -> AnyArray:
    """The numbers of an array that are not null."""
    found = numpy_of(numbers, dtype)
    return found[valid_of(numbers)] if numbers.null_count else found


def _lengths(lists: Any) -> tuple[int, int]:
    """The elements of all lists, and of the longest."""
    elements = longest = 0
    for some in _pieces(lists):
        lengths = np.diff(numpy_of(some.offsets, np.int32))[valid_of(some)]
        elements += int(lengths.sum(dtype=np.int64))
        longest = max(longest, int(lengths.max(initial=0)))
    return elements, longest


def _of_codes(dictionary: Any, codes: Any) -> dict[str, Any]:
    # Placement took every value along, so each is used by some row.
    found: dict[str, Any] = {"distinct": len(dictionary)}
    if len(dictionary):
        found["min"], found["max"] = dictionary[0].as_py(), dictionary[-1].as_py()
        counts = np.zeros(len(dictionary), np.int64)
        for some in _pieces(codes):
            np.add.at(counts, _there(some, np.int32), 1)
        places = (np.arange(at, min(at + _AT_ONCE, len(counts))) for at in range(0, len(counts), _AT_ONCE))
        counted = ((some, counts[some]) for some in places)
        found["top"] = [[dictionary[at].as_py(), count] for at, count in _most(counted)]
    return found


def _of_bools(values: Any) -> dict[str, Any]:
    counts = [pc.sum(pc.equal(values, one)).as_py() or 0 for one in (False, True)]
    there = [one for one in (False, True) if counts[one]]
    found: dict[str, Any] = {"distinct": len(there)}
    if there:
        found["min"], found["max"] = there[0], there[-1]
        found["top"] = [[bool(at), count] for at, count in _most([(np.arange(2), np.array(counts))])]
    return found


def _of_numbers(values: Any, dtype: type[np.generic]) -> dict[str, Any]:
    ordered = np.empty(len(values) - values.null_count, dtype)
    count = 0
    for some in _pieces(values):
        there = _there(some, dtype)
        if ordered.dtype.kind == "f":
            there = there[np.isfinite(there)]
        ordered[count : count + len(there)] = there
        count += len(there)
    ordered = ordered[:count]
    ordered.sort()
    found: dict[str, Any] = {"distinct": sum(len(firsts) for firsts, _ in _runs(ordered))}
    if count:
        found["min"], found["max"] = ordered[0].item(), ordered[-1].item()
        found["top"] = [[ordered[at].item(), times] for at, times in _most(_runs(ordered))]
        shares = [step / _QUANTILES for step in range(_QUANTILES + 1)]
        found["quantiles"] = [ordered[int((count - 1) * share)].item() for share in shares]
    return found


def _runs(ordered: AnyArray) -> Iterator[tuple[AnyArray, AnyArray]]:
    """The first position and the count of each distinct value, in batches."""
    begun = 0
    for start in range(1, len(ordered), _AT_ONCE):
        end = min(start + _AT_ONCE, len(ordered))
        changes = np.flatnonzero(ordered[start:end] != ordered[start - 1 : end - 1]) + start
        firsts = np.concatenate([[begun], changes])
        yield firsts[:-1], np.diff(firsts)
        begun = int(firsts[-1])
    if len(ordered):
        yield np.array([begun]), np.array([len(ordered) - begun])


def _most(counted: Iterable[tuple[AnyArray, AnyArray]]) -> list[tuple[int, int]]:
    """The most frequent of some values, each with its count; none where no value occurs twice."""
    places, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for more, times in counted:
        often = times >= max(1, int(counts.min()) if len(counts) == _TOP else 1)
        places, counts = np.concatenate([places, more[often]]), np.concatenate([counts, times[often]])
        best = np.lexsort((places, -counts))[:_TOP]
        places, counts = places[best], counts[best]
    if counts.max(initial=0) < 2:
        return []
    return list(zip(places.tolist(), counts.tolist(), strict=True))
