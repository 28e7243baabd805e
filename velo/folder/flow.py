"""Columns of a part that is made of others: read and written some rows at a time, none of them whole.

A row goes from where it is stored into the column that it gets, in the order of the new part. What the rows
of a batch take is all that is held, whatever the table takes. A column of texts, or of lists of them, is
merged by its codes. Its dictionaries become one, a block of each at a time, and its rows are looked at twice,
once for the texts that they use. Of each text 5 bytes are held, of one column at a time.

Two kinds of columns are read whole, one after the other: what has dictionaries or views inside of other
types, and lists of whole numbers of which some are beyond int64 or missing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
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
    undressed,
    with_element,
)
from velo.filters.columns import CODES_MAX, encode
from velo.folder.dictionaries import merge_dictionaries
from velo.folder.spool import Body, Placed, Spool, can_grow
from velo.types import AnyArray

__all__ = ["ColumnSource", "StoredRows", "flowed_columns"]

pa: Any = pyarrow
pc: Any = pyarrow.compute

#: What the rows of a batch may take of a column, as it is stored, and how many there may be.
_BATCH_BYTES: Final = 1 << 19
_BATCH_ROWS: Final = 1 << 15


@dataclass(frozen=True)
class StoredRows:
    """A column of those rows that lie in one place.

    Attributes
    ----------
    first, last : int
        The first of these rows, and the one after the last.
    dictionary : pyarrow.Array or None
        Behind the codes that it is stored as.
    row_bytes : float
        What a row takes, on average.
    take : callable
        Some of these rows, counted from the first, as they are stored.
    """

    first: int
    last: int
    dictionary: Any
    row_bytes: float
    take: Callable[[AnyArray], Any]


class ColumnSource(ABC):
    """The columns of rows that lie in several places, to be read some rows at a time."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """How many rows there are, one at least."""

    @property
    @abstractmethod
    def schema(self) -> Any:
        """The columns as they were given."""

    @abstractmethod
    def stored(self, name: str) -> list[StoredRows]:
        """A column where it is stored: rows after rows, until all are there."""

    @abstractmethod
    def undressed(self, name: str, rows: AnyArray) -> Any:
        """A column of some rows, in a type that Arrow can take from (velo.filters.arrow_values)."""

    @abstractmethod
    def given(self, name: str) -> Any:
        """A table of the one column of all rows, as it was given."""


def flowed_columns(source: ColumnSource, rows: AnyArray, body: Body) -> tuple[list[Any], Any]:
    """The stored columns of a source, vertex ``v`` with row ``rows[v]``, mapped.

    Parameters
    ----------
    source : ColumnSource
    rows : ndarray of uint32
    body : Body
        Where they lie.

    Returns
    -------
    arrays : list of pyarrow.Array
    schema : pyarrow.Schema
        The columns as they were given; a dictionary may need wider indices.

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
    """One column on its way."""

    def __init__(self, source: ColumnSource, field: Any, rows: AnyArray, body: Body) -> None:
        self._source, self._rows, self._body = source, rows, body
        self._name, self._kind = field.name, field.type
        self._stored = source.stored(field.name)

    def placed(self) -> tuple[Placed, Any]:
        """The column in the body, and its type as it was given."""
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
        return self._row_by_row() if undressed(plain) == plain else self._whole()

    def _batches(self) -> Iterator[AnyArray]:
        """The rows, in the order of the vertices."""
        row_bytes = max(one.row_bytes for one in self._stored)
        size = max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(1.0, row_bytes))))
        for start in range(0, len(self._rows), size):
            yield self._rows[start : start + size]

    def _row_by_row(self) -> tuple[Placed, Any]:
        """Values that stand for themselves."""
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
        """Some rows, undressed and as they are stored."""
        column = self._source.undressed(self._name, rows)
        return column, encode(self._name, column, arrow_of(np.arange(len(rows))))

    def _whole(self) -> tuple[Placed, Any]:
        """All rows at once, in the order of the vertices."""
        table = self._source.given(self._name)
        kind = table.schema.field(0).type
        stored = encode(self._name, table.column(0), arrow_of(self._rows))
        return self._body.stored(stored), kind

    def _codes(self, elements_of: Callable[[Any], Any]) -> tuple[list[AnyArray], Spool]:
        """The code that each value of each place gets, and the values that rows use."""
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
    """Codes of another dictionary in the place of these, 0 where there is none, and which are there."""
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
        # Codes of -1 stand below null elements: the check of codes passes over those.
        elements = pa.DictionaryArray.from_arrays(found.values, texts)
        return pa.Array.from_buffers(
            pa.list_(elements.type), len(found), found.buffers()[:2], found.null_count, 0, [elements]
        )

    return array


class _Coded:
    """The type in which a column was given, whose dictionary may come to need wider indices."""

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
        """Count the values of some rows: those of narrow indices, of which there are few."""
        if self._coded is None or self._most > 2**16 or self._count > self._most:
            return
        values = one_array(column)
        values = pc.unique((values.flatten() if self._of_lists else values).drop_null())
        self._met = values if self._met is None else pc.unique(pa.concat_arrays([self._met, values]))
        self._count = len(self._met)

    def type(self, count: int | None = None) -> Any:
        """The type, with wider indices where there are more values than they count."""
        count = self._count if count is None else count
        if self._coded is None or count <= self._most:
            return self._kind
        wide = pa.dictionary(pa.int32(), self._coded.value_type, self._coded.ordered)
        return with_element(self._kind, wide) if self._of_lists else wide
