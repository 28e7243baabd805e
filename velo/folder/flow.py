"""Columns of a segment merged from others: read and written some rows at a time, never whole.

Each row moves from its old column into the new one, in the order of the new segment, and memory holds one
batch of rows. Columns of texts, or of lists of them, are merged by their codes: their dictionaries become
one, a block of each at a time, and their rows are read twice, once to find the texts in use. That takes 5
bytes for each text, for one column at a time.

Two kinds of columns are read whole, one after the other: types that contain dictionaries or views inside of
other types, and lists of integers some of which are null or beyond int64.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow
import pyarrow.compute

from velo.errors import InvalidArgumentError
from velo.filters import arrow_values
from velo.filters.arrow_values import arrow_of, bits_of, numpy_of, valid_of
from velo.filters.columns import CODES_MAX, encode
from velo.types import AnyArray

pa: Any = pyarrow
pc: Any = pyarrow.compute

#: A larger buffer moves from memory into a file.
_IN_MEMORY_BYTES: Final = 1 << 16
_COPIED_BYTES: Final = 1 << 20
#: Arrow's pool keeps freed memory: it is released after this number of bytes.
_PASSED_BYTES: Final = 1 << 20
#: Alignment of buffers, as in Arrow files.
_ALIGNMENT: Final = 64
_OFFSET_MAX: Final = 2**31 - 1

#: Makes the array once the body with its buffers is mapped.
Placed: TypeAlias = Callable[["Body"], Any]


class Body:
    """Complete buffers, one after the other, in an unnamed file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = contextlib.ExitStack()
        self._file = self.opened(tempfile.TemporaryFile, dir=folder)
        self._size = 0
        self._passed = 0
        self._mapped: Any = None

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def opened(self, make: Callable[..., Any], **how: Any) -> Any:
        """Open a file that closes no later than this."""
        return self._files.enter_context(make(**how))

    def passed(self, size: int) -> None:
        """Count bytes of arrays that are no longer needed, and return them to the system now and then."""
        self._passed += size
        if self._passed >= _PASSED_BYTES:
            self._passed = 0
            pa.default_memory_pool().release_unused()

    def take(self, file: Any) -> slice:
        """Append all of a file; returns its place."""
        padding = -self._size % _ALIGNMENT
        self._file.write(bytes(padding))
        start = self._size + padding
        file.seek(0)
        shutil.copyfileobj(file, self._file, _COPIED_BYTES)
        self._size = self._file.tell()
        return slice(start, self._size)

    def stored(self, array: Any) -> Placed:
        """Append a whole array of any type."""
        batch = pa.record_batch([array], names=["column"])
        with tempfile.TemporaryFile(dir=self.folder) as file:
            with pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            place = self.take(file)
        return lambda body: pa.ipc.open_file(body.buffer(place)).get_batch(0).column(0)

    def buffer(self, place: slice) -> Any:
        """The buffer at a place; nothing can be appended afterwards."""
        if place.start == place.stop:
            return pa.py_buffer(b"")
        if self._mapped is None:
            self._file.flush()
            self._mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ))
        return self._mapped.slice(place.start, place.stop - place.start)


class _Bytes:
    """A buffer that grows."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._file = body.opened(
            tempfile.SpooledTemporaryFile, max_size=_IN_MEMORY_BYTES, dir=str(body.folder)
        )

    def append(self, values: AnyArray | memoryview) -> None:
        self._file.write(values)
        self._body.passed(values.nbytes)

    def place(self) -> slice:
        with self._file:
            return self._body.take(self._file)


class _Bits:
    """A bit a value; those of a byte that is not full yet wait."""

    def __init__(self, body: Body) -> None:
        self._bytes = _Bytes(body)
        self._waiting: AnyArray = np.zeros(0, np.uint8)

    def append(self, bits: AnyArray) -> None:
        waiting = np.concatenate([self._waiting, bits])
        whole = len(waiting) & ~7
        self._bytes.append(np.packbits(waiting[:whole], bitorder="little"))
        self._waiting = waiting[whole:]

    def place(self) -> slice:
        self._bytes.append(np.packbits(self._waiting, bitorder="little"))
        return self._bytes.place()


def can_grow(kind: Any) -> bool:
    """Whether arrays of a type can grow: the type contains no dictionary and no view."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return can_grow(kind.storage_type)
    if types.is_struct(kind) or types.is_fixed_size_list(kind) or _offset_type(kind) is not None:
        return all(can_grow(kind.field(at).type) for at in range(kind.num_fields))
    return bool(types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind))


def _offset_type(kind: Any) -> Any:
    """The type of the offsets of texts, bytes and lists; None for other types."""
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_list(kind) or types.is_map(kind):
        return np.int32
    if types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind):
        return np.int64
    return None


class Spool:
    """A growing array of a type that :func:`can_grow`, placed in `body` at the end."""

    def __init__(self, kind: Any, name: str, body: Body) -> None:
        self.kind = kind
        self.count = self.null_count = 0
        self._name, self._body = name, body
        self._validity: _Bits | None = None
        self._storage: Spool | None = None
        self._children: list[Spool] = []
        self._data: _Bytes | _Bits | None = None
        self._offsets: _Bytes | None = None
        self._end = 0
        if isinstance(kind, pa.BaseExtensionType):
            self._storage = Spool(kind.storage_type, name, body)
            return
        self._offset_type = _offset_type(kind)
        if self._offset_type is not None:
            self._offsets = _Bytes(body)
            self._offsets.append(np.zeros(1, self._offset_type))
        if kind.num_fields:
            self._children = [Spool(kind.field(at).type, name, body) for at in range(kind.num_fields)]
        elif not pa.types.is_struct(kind):
            self._data = _Bits(body) if pa.types.is_boolean(kind) else _Bytes(body)

    def append(self, array: Any) -> None:
        count, at = len(array), array.offset
        if self._storage is not None:
            self._storage.append(array.storage)
            return
        if count == 0:
            return
        self._append_validity(array)
        buffers = array.buffers()
        if self._offsets is not None:
            first_byte = at * np.dtype(self._offset_type).itemsize
            offsets = np.frombuffer(buffers[1], self._offset_type, count + 1, first_byte)
            first, last = int(offsets[0]), int(offsets[-1])
            if self._end + last - first > _OFFSET_MAX and self._offset_type is np.int32:
                raise InvalidArgumentError(
                    f"metadata: column {self._name!r} of type {self.kind} holds more than {_OFFSET_MAX} "
                    "bytes or elements in all rows together, and its type counts no more",
                    argument="metadata",
                )
            self._offsets.append(offsets[1:] + self._offset_type(self._end - first))
            self._end += last - first
            if self._children:
                self._children[0].append(array.values.slice(first, last - first))
            elif last > first:
                assert isinstance(self._data, _Bytes)
                self._data.append(memoryview(buffers[2])[first:last])
        elif pa.types.is_fixed_size_list(self.kind):
            size = self.kind.list_size
            self._children[0].append(array.values.slice(at * size, count * size))
        elif self._children:
            for number, child in enumerate(self._children):
                child.append(array.field(number))
        elif isinstance(self._data, _Bits):
            self._data.append(bits_of(buffers[1], at, count))
        elif self._data is not None:
            width = self.kind.bit_width // 8
            if width:
                self._data.append(memoryview(buffers[1])[at * width : (at + count) * width])
        self.count += count

    def _append_validity(self, array: Any) -> None:
        if array.null_count and self._validity is None:
            self._validity = _Bits(self._body)
            for start in range(0, self.count, _COPIED_BYTES):
                self._validity.append(np.ones(min(_COPIED_BYTES, self.count - start), np.uint8))
        if self._validity is not None:
            own = array.buffers()[0] if array.null_count else None
            count = len(array)
            self._validity.append(
                np.ones(count, np.uint8) if own is None else bits_of(own, array.offset, count)
            )
        self.null_count += array.null_count

    def place(self) -> Placed:
        """Move the array into the body; nothing can be appended afterwards."""
        if self._storage is not None:
            storage, kind = self._storage.place(), self.kind
            return lambda body: pa.ExtensionArray.from_storage(kind, storage(body))
        own = [self._validity, self._offsets, self._data]
        has = [True, self._offsets is not None, self._data is not None]
        places = [None if one is None else one.place() for one in own]
        children = [child.place() for child in self._children]

        def array(body: Body) -> Any:
            buffers = [
                None if place is None else body.buffer(place)
                for place, is_there in zip(places, has, strict=True)
                if is_there
            ]
            made = [child(body) for child in children]
            return pa.Array.from_buffers(self.kind, self.count, buffers, self.null_count, 0, made or None)

        return array


# ---- columns

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

    `take`: Returns rows in stored form, by number from `first` on.
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
        plain = arrow_values.plain_type(self._kind)
        is_coded = [one.dictionary is not None for one in self._stored]
        if arrow_values.is_string(plain):
            return self._texts()
        if arrow_values.is_list(plain):
            element = arrow_values.plain_type(plain.value_type)
            if arrow_values.is_string(element):
                return self._lists_of_texts()
            if pa.types.is_integer(element):
                return self._whole() if any(is_coded) else self._row_by_row()
        return self._row_by_row() if arrow_values.storage_type(plain) == plain else self._whole()

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
        is_of_lists = arrow_values.is_list(kind)
        coded = kind.value_type if is_of_lists else kind
        self._coded = coded if pa.types.is_dictionary(coded) else None
        self._of_lists = is_of_lists
        self._most = 0
        if self._coded is not None:
            self._most = arrow_values.indices_max(self._coded.index_type)
        #: Values that were met, as long as narrow indices count them.
        self._met: Any = None
        self._count = 0

    def look_at(self, column: Any) -> None:
        """Count the distinct values of some rows, if the indices are narrow."""
        if self._coded is None or self._most > 2**16 or self._count > self._most:
            return
        values = arrow_values.one_array(column)
        values = pc.unique((values.flatten() if self._of_lists else values).drop_null())
        self._met = values if self._met is None else pc.unique(pa.concat_arrays([self._met, values]))
        self._count = len(self._met)

    def type(self, count: int | None = None) -> Any:
        """The type, with wider indices if its own cannot count all values."""
        count = self._count if count is None else count
        if self._coded is None or count <= self._most:
            return self._kind
        wide = pa.dictionary(pa.int32(), self._coded.value_type, self._coded.ordered)
        return arrow_values.with_element(self._kind, wide) if self._of_lists else wide


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
        # After its block a dictionary may continue with values that precede those of others.
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
