"""One dictionary out of several, each in the order of its values: some values of each at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute

from velo.filters.arrays import arrow_of, numpy_of
from velo.folder.spool import Spool
from velo.types import AnyArray

__all__ = ["merge_dictionaries"]

pa: Any = pyarrow
pc: Any = pyarrow.compute

#: Texts that are merged at a time, in bytes and in values; of a text that is longer the one.
_BYTES: Final = 1 << 20
_BYTES_LEAST: Final = 1 << 16
_VALUES: Final = 1 << 15


class _Reader:
    """The used values of a dictionary, a block at a time.

    Attributes
    ----------
    values : pyarrow.Array
        The rest of the block; none: there is nothing left.
    places : ndarray
        Where they are in the dictionary.
    """

    def __init__(self, dictionary: Any, used: AnyArray, block_bytes: int) -> None:
        self._dictionary, self._used, self._block_bytes = dictionary, used, block_bytes
        self._next = 0
        self.values, self.places = dictionary.slice(0, 0), np.zeros(0, np.int64)

    @property
    def has_more(self) -> bool:
        """Whether other blocks come."""
        return self._next < len(self._dictionary)

    def fill(self) -> None:
        """Read the next block once this one is taken."""
        while len(self.values) == 0 and self.has_more:
            start, size = self._next, min(_VALUES, len(self._dictionary) - self._next)
            some = self._dictionary.slice(start, size)
            offsets = np.frombuffer(some.buffers()[1], np.int64, size + 1, 8 * some.offset)
            size = max(1, int(np.searchsorted(offsets, offsets[0] + self._block_bytes, side="right")) - 1)
            inside = np.flatnonzero(self._used[start : start + size])
            self.values, self.places = some.take(arrow_of(inside)), start + inside
            self._next = start + size

    def taken(self, bound: Any) -> tuple[Any, AnyArray]:
        """Take the values up to a bound, itself among them; all of the block without one."""
        count = len(self.values)
        if bound is not None:
            count = pc.sum(pc.less_equal(self.values, bound)).as_py() or 0
        taken = self.values.slice(0, count), self.places[:count]
        self.values, self.places = self.values.slice(count), self.places[count:]
        return taken


def merge_dictionaries(
    dictionaries: Sequence[Any], used: Sequence[AnyArray], codes: Sequence[AnyArray], merged: Spool
) -> None:
    """Write the values of several dictionaries in their order, each once.

    Parameters
    ----------
    dictionaries : sequence of pyarrow.Array
        Of large strings, ascending.
    used : sequence of ndarray of bool
        Of each which of its values are taken.
    codes : sequence of ndarray of int32
        Is given, of each, the code that each value has in the merged one.
    merged : Spool
    """
    block_bytes = max(_BYTES_LEAST, _BYTES // max(1, len(dictionaries)))
    readers = [_Reader(*both, block_bytes) for both in zip(dictionaries, used, strict=True)]
    while True:
        for reader in readers:
            reader.fill()
        # What others have beyond the end of a block may have to come before what that one goes on with.
        ends = [reader.values[-1] for reader in readers if len(reader.values) and reader.has_more]
        bound = min(ends, key=lambda end: end.as_py(), default=None)
        taken = [reader.taken(bound) for reader in readers]
        values = pa.concat_arrays([some for some, _ in taken])
        if len(values) == 0:
            return
        encoded = values.dictionary_encode()
        order = numpy_of(pc.sort_indices(encoded.dictionary), np.uint64)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(merged.count, merged.count + len(order))
        found = rank[numpy_of(encoded.indices, np.int32)]
        at = 0
        for (_, places), of_one in zip(taken, codes, strict=True):
            of_one[places] = found[at : at + len(places)]
            at += len(places)
        merged.append(encoded.dictionary.take(arrow_of(order)))
