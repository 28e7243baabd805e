"""Columns of a segment merged from others: read and written some rows at a time, never whole.

Each row moves from its old column into the new one, in the order of the new segment, and memory holds one
batch of rows. Columns of texts, or of lists of them, are merged by their codes: their dictionaries become
one, a block of each at a time, and their rows are read twice, once to find the texts in use. That takes 5
bytes for each text, for one column at a time.

Two kinds of columns are read whole, one after the other: types that contain dictionaries or views inside of
other types, and lists of integers some of which are null or beyond int64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute

from velo.errors import InvalidArgumentError
from velo.filters.arrays import arrow_of, numpy_of, valid_of
from velo.filters.arrow_values import (
    indices_max,
    is_list,
    is_string,
    one_array,
    plain_type,
    storage_type,
    with_element,
)
from velo.filters.columns import CODES_MAX, encode
from velo.folder.spool import Body, Placed, Spool, can_grow
from velo.types import AnyArray

__all__ = ["ColumnSource", "StoredRows", "flowed_columns", "merge_dictionaries"]

pa: Any = pyarrow
pc: Any = pyarrow.compute

#: Bytes of one stored column in a batch of rows at most, and rows.
_BATCH_BYTES: Final = 1 << 19
_BATCH_ROWS: Final = 1 << 15
#: Bytes and values of dictionaries that are merged at a time, at least one value.
_MERGED_BYTES: Final = 1 << 20
_MERGED_BYTES_LEAST: Final = 1 << 16
_MERGED_VALUES: Final = 1 << 15


@dataclass(frozen=True)
class StoredRows:
    """Rows `first` to `last` of a column, stored in one place.

    Attributes
    ----------
    dictionary : pyarrow.Array or None
        The values behind codes.
    row_bytes : float
        Average size of a row.
    take : callable
        Returns rows in stored form, by number from `first` on.
    """

    first: int
    last: int
    dictionary: Any
    row_bytes: float
    take: Callable[[AnyArray], Any]


class ColumnSource(ABC):
    """The columns of rows that are stored in several places, read some rows at a time."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """The number of rows, at least one."""

    @property
    @abstractmethod
    def schema(self) -> Any:
        """The columns as they were given."""

    @abstractmethod
    def stored(self, name: str) -> list[StoredRows]:
        """The stored pieces of a column, in the order of rows."""

    @abstractmethod
    def storage(self, name: str, rows: AnyArray) -> Any:
        """A column of some rows in its storage type (:mod:`velo.filters.arrow_values`)."""

    @abstractmethod
    def given(self, name: str) -> Any:
        """A table of one column with all rows, in the type it was given in."""


def flowed_columns(source: ColumnSource, rows: AnyArray, body: Body) -> tuple[list[Any], Any]:
    """Write the columns of a source into `body`, vertex ``v`` with row ``rows[v]``, and map them.

    Returns the arrays, and their schema as given; a dictionary may get wider indices.

    Raises
    ------
    InvalidArgumentError
        A column that cannot be stored, by name.
    """
    placed: list[Placed] = []
    fields = []
    for field in source.schema:
        one, kind = _Column(source, field, rows, body).placed()
        placed.append(one)
        fields.append(field.with_type(kind))
    return [one(body) for one in placed], pa.schema(fields, source.schema.metadata)


class _Column:
    """One column on its way into the body."""

    def __init__(self, source: ColumnSource, field: Any, rows: AnyArray, body: Body) -> None:
        self._source, self._rows, self._body = source, rows, body
        self._name, self._kind = field.name, field.type
        self._stored = source.stored(field.name)

    def placed(self) -> tuple[Placed, Any]:
        """Write the column; its place in the body, and its type as given."""
        plain = plain_type(self._kind)
        is_coded = [one.dictionary is not None for one in self._stored]
        if is_string(plain):
            return self._texts()
        if is_list(plain):
            element = plain_type(plain.value_type)
            if is_string(element):
                return self._lists_of_texts()
            if pa.types.is_integer(element):
                return self._whole() if any(is_coded) else self._row_by_row()
        return self._row_by_row() if storage_type(plain) == plain else self._whole()

    def _batches(self) -> Iterator[AnyArray]:
        """The rows, in the order of the vertices."""
        row_bytes = max(one.row_bytes for one in self._stored)
        size = max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(1.0, row_bytes))))
        for start in range(0, len(self._rows), size):
            yield self._rows[start : start + size]

    def _row_by_row(self) -> tuple[Placed, Any]:
        """Values that need no dictionary."""
        kind = self._encoded(np.zeros(0, np.int64))[1].type
        if not can_grow(kind):
            return self._whole()
        spool = Spool(kind, self._name, self._body)
        coded = _Coded(self._kind)
        for rows in self._batches():
            column, array = self._encoded(rows)
            coded.look_at(column)
            spool.append(array)
        return spool.place(), coded.type()

    def _encoded(self, rows: AnyArray) -> tuple[Any, Any]:
        """Some rows in the storage type, and as stored."""
        column = self._source.storage(self._name, rows)
        return column, encode(self._name, column, arrow_of(np.arange(len(rows))))

    def _whole(self) -> tuple[Placed, Any]:
        """All rows at once, in the order of the vertices."""
        table = self._source.given(self._name)
        kind = table.schema.field(0).type
        stored = encode(self._name, table.column(0), arrow_of(self._rows))
        return self._body.stored(stored), kind

    def _codes(self, elements_of: Callable[[Any], Any]) -> tuple[list[AnyArray], Spool]:
        """The new code of each value of each piece, and the values in use."""
        used = []
        for one in self._stored:
            of_one = np.zeros(len(one.dictionary), bool)
            size = max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(1.0, one.row_bytes))))
            for start in range(0, one.last - one.first, size):
                some = np.arange(start, min(start + size, one.last - one.first))
                there = elements_of(one.take(some)).indices.drop_null()
                of_one[numpy_of(there, np.int32)] = True
                self._body.passed(there.nbytes)
            used.append(of_one)
        codes = [np.zeros(max(1, len(one.dictionary)), np.int32) for one in self._stored]
        values = Spool(pa.large_string(), self._name, self._body)
        merge_dictionaries([one.dictionary for one in self._stored], used, codes, values)
        self._check_codes(values.count, "distinct values")
        return codes, values

    def _check_codes(self, count: int, what: str) -> None:
        if count > CODES_MAX:
            raise InvalidArgumentError(
                f"metadata: column {self._name!r} has {count} {what}, at most {CODES_MAX} are possible",
                argument="metadata",
            )

    def _texts(self) -> tuple[Placed, Any]:
        codes, values = self._codes(lambda stored: stored)
        indices = Spool(pa.int32(), self._name, self._body)
        for rows in self._batches():
            merged, valid = np.zeros(len(rows), np.int32), np.ones(len(rows), bool)
            for one, of_one in zip(self._stored, codes, strict=True):
                inside = np.flatnonzero((rows >= one.first) & (rows < one.last))
                found = one.take(rows[inside] - one.first).indices
                merged[inside], valid[inside] = _recoded(found, of_one)
            indices.append(arrow_of(merged, valid))
        return _in_dictionary(indices, values), _Coded(self._kind).type(values.count)

    def _lists_of_texts(self) -> tuple[Placed, Any]:
        codes, values = self._codes(lambda stored: stored.flatten())
        kind = pa.list_(pa.int32())
        lists = Spool(kind, self._name, self._body)
        for rows in self._batches():
            pieces, places = [], []
            for one, of_one in zip(self._stored, codes, strict=True):
                inside = np.flatnonzero((rows >= one.first) & (rows < one.last))
                found = one.take(rows[inside] - one.first)
                elements = arrow_of(*_recoded(found.values.indices, of_one))
                pieces.append(
                    pa.Array.from_buffers(
                        kind, len(found), found.buffers()[:2], found.null_count, found.offset, [elements]
                    )
                )
                places.append(inside)
            back = np.empty(len(rows), np.int64)
            back[np.concatenate(places)] = np.arange(len(rows))
            lists.append(_marked(pa.concat_arrays(pieces).take(arrow_of(back))))
        return _in_lists(lists, values), _Coded(self._kind).type(values.count)


def _recoded(indices: Any, codes: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Translated codes, 0 for null, and which are valid."""
    valid = valid_of(indices)
    found = codes[np.where(valid, numpy_of(indices, np.int32), 0)]
    found[~valid] = 0
    return found, valid


def _marked(lists: Any) -> Any:
    """Lists with -1 below every null element: the library looks at the codes alone."""
    elements = lists.values
    if not elements.null_count:
        return lists
    valid = valid_of(elements)
    marked = arrow_of(np.where(valid, numpy_of(elements, np.int32), -1).astype(np.int32), valid)
    return pa.Array.from_buffers(
        lists.type, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [marked]
    )


def _in_dictionary(indices: Spool, values: Spool) -> Placed:
    placed, dictionary = indices.place(), values.place()
    return lambda body: pa.DictionaryArray.from_arrays(placed(body), dictionary(body))


def _in_lists(lists: Spool, values: Spool) -> Placed:
    placed, dictionary = lists.place(), values.place()

    def array(body: Body) -> Any:
        found, texts = placed(body), dictionary(body)
        # Null elements have codes of -1, which the check of codes skips.
        elements = pa.DictionaryArray.from_arrays(found.values, texts)
        return pa.Array.from_buffers(
            pa.list_(elements.type), len(found), found.buffers()[:2], found.null_count, 0, [elements]
        )

    return array


class _Coded:
    """The type that a column was given in; its dictionary may need wider indices."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        is_of_lists = is_list(kind)
        coded = kind.value_type if is_of_lists else kind
        self._coded = coded if pa.types.is_dictionary(coded) else None
        self._of_lists = is_of_lists
        self._most = 0
        if self._coded is not None:
            self._most = indices_max(self._coded.index_type)
        #: Values that were met, as long as narrow indices count them.
        self._met: Any = None
        self._count = 0

    def look_at(self, column: Any) -> None:
        """Count the distinct values of some rows, if the indices are narrow."""
        if self._coded is None or self._most > 2**16 or self._count > self._most:
            return
        values = one_array(column)
        values = pc.unique((values.flatten() if self._of_lists else values).drop_null())
        self._met = values if self._met is None else pc.unique(pa.concat_arrays([self._met, values]))
        self._count = len(self._met)

    def type(self, count: int | None = None) -> Any:
        """The type, with wider indices if its own cannot count all values."""
        count = self._count if count is None else count
        if self._coded is None or count <= self._most:
            return self._kind
        wide = pa.dictionary(pa.int32(), self._coded.value_type, self._coded.ordered)
        return with_element(self._kind, wide) if self._of_lists else wide


class _Reader:
    """The used values of a dictionary, a block at a time: `values`, and their `places` in the dictionary."""

    def __init__(self, dictionary: Any, used: AnyArray, block_bytes: int) -> None:
        self._dictionary, self._used, self._block_bytes = dictionary, used, block_bytes
        self._next = 0
        self.values, self.places = dictionary.slice(0, 0), np.zeros(0, np.int64)

    @property
    def has_more(self) -> bool:
        """Whether further blocks follow."""
        return self._next < len(self._dictionary)

    def fill(self) -> None:
        """Read the next block once this one is taken."""
        while len(self.values) == 0 and self.has_more:
            start, size = self._next, min(_MERGED_VALUES, len(self._dictionary) - self._next)
            some = self._dictionary.slice(start, size)
            offsets = np.frombuffer(some.buffers()[1], np.int64, size + 1, 8 * some.offset)
            size = max(1, int(np.searchsorted(offsets, offsets[0] + self._block_bytes, side="right")) - 1)
            inside = np.flatnonzero(self._used[start : start + size])
            self.values, self.places = some.take(arrow_of(inside)), start + inside
            self._next = start + size

    def taken(self, bound: Any) -> tuple[Any, AnyArray]:
        """Take the values of the block up to and including a bound; all of them without one."""
        count = len(self.values)
        if bound is not None:
            count = pc.sum(pc.less_equal(self.values, bound)).as_py() or 0
        taken = self.values.slice(0, count), self.places[:count]
        self.values, self.places = self.values.slice(count), self.places[count:]
        return taken


def merge_dictionaries(
    dictionaries: Sequence[Any], used: Sequence[AnyArray], codes: Sequence[AnyArray], merged: Spool
) -> None:
    """Append the used values of several sorted dictionaries to `merged` in order, each once.

    `used` has a bool for each value of each dictionary; `codes` receives the code of each value in `merged`.
    """
    block_bytes = max(_MERGED_BYTES_LEAST, _MERGED_BYTES // max(1, len(dictionaries)))
    readers = [_Reader(*both, block_bytes) for both in zip(dictionaries, used, strict=True)]
    while True:
        for reader in readers:
            reader.fill()
        # Beyond the end of its block a dictionary may go on with values that come before those of others.
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
