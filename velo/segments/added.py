"""Columns added to an index that has rows.

No file is rewritten. A segment, or a record of the WAL, has the columns that existed when it was written, the
first ones of the manifest. In later columns its rows have one value, kept in the manifest.
"""

from __future__ import annotations

import base64
import struct
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo.errors import CorruptIndexError, InvalidArgumentError
from velo.filters.arrow_values import arrow_of, storage_type
from velo.filters.columns import FilterColumn
from velo.filters.native import NativeColumns
from velo.folder.manifest import FOLDER_MANIFEST_FILE
from velo.folder.metadata import MetadataStore, StoredColumns, TableColumns, as_given, is_one_value, scalar_of
from velo.folder.stored import damage
from velo.segments.columns import (
    batch_bytes,
    check_schema,
    given_columns,
    read_batch,
    schema_of,
    schema_text,
    storage_schema,
)
from velo.segments.segment import Segment, compiler_for
from velo.types import AnyArray


def repeated(value: Any, count: int) -> Any:
    return value.take(arrow_of(np.zeros(count, np.int64)))


class EvolvedColumns(StoredColumns):
    """Stored columns of a segment, and others in which each row has one value."""

    def __init__(
        self, store: MetadataStore | None, row_count: int, schema: Any, values: Mapping[str, Any]
    ) -> None:
        self._store = store
        self.row_count = row_count
        self.schema = schema
        stored = [] if store is None else store.column_names
        added = list(schema)[len(stored) :]
        self._values = {field.name: values[field.name] for field in added}
        of_one_row = pa.schema(added)
        self._one = TableColumns(pa.table(list(self._values.values()), names=list(self._values)), of_one_row)

    @cached_property
    def filter_columns(self) -> dict[str, FilterColumn]:
        """The storage of each column; an added column has one row, the value of all rows."""
        stored = {} if self._store is None else self._store.filter_columns
        owner = self._one.native_columns
        return stored | {
            name: replace(column, owner=owner) for name, column in self._one.filter_columns.items()
        }

    @cached_property
    def native_columns(self) -> NativeColumns:
        return NativeColumns(self.row_count) if self._store is None else self._store.native_columns

    def made(self, name: str, of: str) -> FilterColumn | None:
        found = self._one.made(name, of)
        return found if found is not None or self._store is None else self._store.made(name, of)

    @property
    def resident_bytes(self) -> int:
        return self._one.resident_bytes + (0 if self._store is None else self._store.resident_bytes)

    @property
    def bytes_by_column(self) -> dict[str, int]:
        """Bytes of mapped files per column; added columns take none."""
        return ({} if self._store is None else self._store.bytes_by_column) | self._one.bytes_by_column

    def stored_rows(self, name: str, vertices: AnyArray) -> Any:
        if name in self._values:
            return self._one.stored_rows(name, np.zeros(len(vertices), np.int64))
        assert self._store is not None
        return self._store.stored_rows(name, vertices)

    def stored_row_bytes(self, name: str) -> float:
        """Bytes per row of a column on average, without its dictionary."""
        store = self._one if name in self._values else self._store
        assert store is not None
        return store.stored_row_bytes(name)

    def storage_rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        names = self.column_names if columns is None else list(columns)
        stored = [name for name in names if name not in self._values]
        table: Any = None
        if self._store is not None and stored:
            table = self._store.storage_rows(vertices, stored)
        arrays = [
            table.column(name) if name in stored else repeated(self._values[name], len(vertices))
            for name in names
        ]
        fields = [self.schema.field(name) for name in names]
        made = [field.with_type(storage_type(field.type)) for field in fields]
        return pa.Table.from_arrays(arrays, schema=pa.schema(made, self.schema.metadata))


class EvolvedSegment:
    """A segment with all columns of the index: the others of its rows have one value each.

    It does not refer to the segment, which goes once nothing else does.
    """

    def __init__(
        self, segment: Segment, schema: Any, values: Mapping[str, Any], unknown_is_missing: bool
    ) -> None:
        self.n, self.ids = segment.n, segment.ids
        self.metadata = EvolvedColumns(segment.metadata, segment.n, schema, values)
        self.filters = compiler_for(self.n, self.metadata, self.ids, unknown_is_missing)
        #: The same without masks, which go by the rows of a build.
        self.compiler = compiler_for(self.n, self.metadata, self.ids, unknown_is_missing, with_masks=False)

    @property
    def memory_bytes(self) -> int:
        """Memory of filters by ids and columns."""
        return self.compiler.memory_bytes


#: In an added field: the value of older rows, a record batch of one row in base64.
_ADDED: Final = b"velo.added"
#: Precedes a record batch: its number of columns. A batch that begins as Arrow's do has the columns that
#: existed before any was added.
_MARK: Final = struct.Struct("<II")
_ARROW: Final = 2**32 - 1


class NewColumns:
    """New columns, and the value of existing rows in each."""

    def __init__(self, fields: list[Any], values: list[Any]) -> None:
        names = [field.name for field in fields]
        for name in names:
            if not isinstance(name, str) or not name:
                raise InvalidArgumentError(
                    f"columns: a name is a str of one character at least, not {name!r}", argument="columns"
                )
            if names.count(name) > 1:
                raise InvalidArgumentError(f"columns has two columns {name!r}", argument="columns")
        self.schema: Any = pa.schema(fields)
        try:
            check_schema(self.schema)
            table = given_columns(dict(zip(names, values, strict=True)), self.schema, 1)
        except InvalidArgumentError as error:  # what says so of rows calls them metadata
            said = error.message.replace("metadata:", "columns:", 1).replace(", and row 0 has one", "")
            raise InvalidArgumentError(said, argument="columns") from error
        self.values = {name: table.column(name).combine_chunks() for name in names}

    @classmethod
    def of(cls, given: Any) -> NewColumns | None:
        """The columns that a caller declared; None: they have a value for each row."""
        if isinstance(given, pa.Field):
            given = [given]
        if isinstance(given, pa.Schema) or (
            isinstance(given, list | tuple) and all(isinstance(one, pa.Field) for one in given)
        ):
            fields: list[Any] = list(given)
            values = [pa.nulls(1, storage_type(field.type)) for field in fields]
        elif isinstance(given, Mapping):
            each = [isinstance(one, pa.DataType) or is_one_value(one) for one in given.values()]
            if each and not any(each):
                return None
            if not all(each):
                raise InvalidArgumentError(
                    "columns: some have a type or one value, some a value for each row: take two calls",
                    argument="columns",
                )
            pairs = [_field_of(name, value) for name, value in given.items()]
            fields, values = [field for field, _ in pairs], [value for _, value in pairs]
        else:
            return None
        if not fields:
            raise InvalidArgumentError("columns names no column", argument="columns")
        return cls(fields, values)

    def check_new(self, names: list[str]) -> None:
        """Refuse a name that is there."""
        for name in self.schema.names:
            if name in names:
                raise InvalidArgumentError(f"the index has a column {name!r} already", argument="columns")

    def table(self, row_count: int) -> Any:
        """The columns for a number of rows, as they were given."""
        return as_given([repeated(one, row_count) for one in self.values.values()], self.schema)


def _field_of(name: Any, value: Any) -> tuple[Any, Any]:
    """A column of a mapping, and an array of its one value."""
    if isinstance(value, pa.DataType):
        return _field(name, value), pa.nulls(1, storage_type(value))
    if value is None:
        raise InvalidArgumentError(
            f"columns: {name!r} is None, which says no type: give a pyarrow.DataType", argument="columns"
        )
    try:
        scalar = scalar_of(value)
        return _field(name, scalar.type), pa.repeat(scalar, 1)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"columns: {name!r} has a value that no column holds: {error}", argument="columns"
        ) from error


def _field(name: Any, kind: Any) -> Any:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"columns: a name is a str, not {name!r}", argument="columns")
    return pa.field(name, kind)


class LiveColumns:
    """The columns of an index, and what segments and records have of them.

    `values`: For each added column, the value of older rows: an array of one value, in its storage type.
    """

    def __init__(self, text: str = "", version: int = 0, unknown_is_missing: bool = False) -> None:
        self.version = version
        self._unknown_is_missing = unknown_is_missing
        self.schema: Any = None
        self._stored: Any = pa.schema([])
        self.values: dict[str, Any] = {}
        if text:
            with damage(FOLDER_MANIFEST_FILE):
                self._stored = schema_of(text)
                for field in self._stored:
                    value = (field.metadata or {}).get(_ADDED)
                    if value is not None:
                        one = pa.schema([field])
                        self.values[field.name] = read_batch(base64.b64decode(value), one, 1).column(0)
                self.schema = pa.schema([_plain(field) for field in self._stored], self._stored.metadata)
        #: Those that were there before any was added.
        self._first = len(self._stored) - len(self.values)
        self._segments: weakref.WeakKeyDictionary[Segment, EvolvedSegment] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def text_with(self, new: NewColumns) -> str:
        """The schema text of the manifest after these columns were added."""
        fields = list(self._stored)
        for field in new.schema:
            value = pa.table({field.name: new.values[field.name]})
            encoded = base64.b64encode(batch_bytes(value, pa.schema([field])))
            fields.append(field.with_metadata({**(field.metadata or {}), _ADDED: encoded}))
        return schema_text(pa.schema(fields, self._stored.metadata))

    # ---- records of the log

    @property
    def mark(self) -> int:
        """Precedes a record batch of all of these columns; 0: nothing does."""
        return len(self.schema) if self.values else 0

    def in_record(self, data: Any) -> tuple[Any, Any]:
        if len(data) < _MARK.size:
            return pa.schema([]), data  # it came before the first column
        count, _ = _MARK.unpack_from(data)
        if count == _ARROW:
            return pa.schema(list(self.schema)[: self._first]), data
        if not self._first <= count <= len(self.schema):
            raise CorruptIndexError(f"the log has rows of {count} columns", file="log")
        return pa.schema(list(self.schema)[:count]), memoryview(data)[_MARK.size :]

    def filled(self, batch: Any, row_count: int) -> Any:
        """`batch` in storage types, completed with the added columns it lacks; None: of no column."""
        columns = [] if batch is None else list(batch.columns)
        if len(columns) == len(self.schema):
            return batch
        columns += [repeated(self.values[name], row_count) for name in self.schema.names[len(columns) :]]
        return pa.RecordBatch.from_arrays(columns, schema=storage_schema(self.schema))

    # ---- segments

    def of_segment(self, segment: Segment) -> Segment | EvolvedSegment:
        """A segment as if it had all of these columns."""
        own = [] if segment.metadata is None else segment.metadata.column_names
        names = [] if self.schema is None else self.schema.names
        if own == names:
            return segment
        if own != names[: len(own)] or len(own) < self._first:
            raise CorruptIndexError(
                f"a part has other columns than {FOLDER_MANIFEST_FILE}: {own}", file=FOLDER_MANIFEST_FILE
            )
        with self._lock:
            wide = self._segments.get(segment)
            if wide is None:
                wide = EvolvedSegment(segment, self.schema, self.values, self._unknown_is_missing)
                self._segments[segment] = wide
        return wide


def _plain(field: Any) -> Any:
    kept = {key: value for key, value in (field.metadata or {}).items() if key != _ADDED}
    return field.with_metadata(kept or None)
