"""Columns that come to an index that has rows.

Nothing that is written changes for them. A segment, and a record of the log, has the columns that there were
when it was made: the first of those that the root names. In the others each of its rows has one value, which
stands in the root beside the column: missing, or what was given with it.
"""

from __future__ import annotations

import base64
import struct
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from velo.errors import CorruptIndexError, InvalidArgumentError
from velo.filters.arrow_values import storage_type
from velo.folder.live import FOLDER_MANIFEST_FILE
from velo.folder.metadata import as_given, is_one_value, scalar_of
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
from velo.segments.evolved import EvolvedSegment, repeated
from velo.segments.segment import Segment

__all__ = ["LiveColumns", "NewColumns"]

#: Of a field that was added, what rows have in it that were there: a record batch of one row, base64.
_ADDED: Final = b"velo.added"
#: Before a record batch of which the root has to tell how many columns it has. One without it, as Arrow
#: begins it, has those that were there before any was added.
_MARK: Final = struct.Struct("<II")
_ARROW: Final = 2**32 - 1


class NewColumns:
    """Columns, and the one value that rows have in each which are there already.

    Attributes
    ----------
    schema : pyarrow.Schema
    values : dict of str to pyarrow.Array
        Of one value, in its storage type (:mod:`velo.filters.arrow_values`).
    """

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
        """The columns that a caller declared; None: they have a value for each row.

        Raises
        ------
        InvalidArgumentError
        """
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
        """Refuse a name that is there.

        Raises
        ------
        InvalidArgumentError
        """
        for name in self.schema.names:
            if name in names:
                raise InvalidArgumentError(f"the index has a column {name!r} already", argument="columns")

    def table(self, row_count: int) -> Any:
        """The columns of so many rows, as they were given."""
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

    Parameters
    ----------
    text : str
        As the root has them; "": there are none.
    version : int
        The library's.
    unknown_is_missing : bool
        For filters.

    Attributes
    ----------
    schema : pyarrow.Schema or None
        As they are given.
    values : dict of str to pyarrow.Array
        For each added column, the value of older rows: an array of one value, in its storage type.

    Raises
    ------
    CorruptIndexError
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

    def marked(self, batch: bytes) -> bytes:
        """A record batch of all of these columns as the log has it."""
        return _MARK.pack(len(self.schema), 0) + batch if self.values else batch

    def in_record(self, data: Any) -> tuple[Any, Any]:
        """The columns that a record has, and its record batch.

        Raises
        ------
        CorruptIndexError
        """
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
        """A segment as if it had all of these columns.

        Raises
        ------
        CorruptIndexError
            It has others.
        """
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
    """A field as it was given."""
    kept = {key: value for key, value in (field.metadata or {}).items() if key != _ADDED}
    return field.with_metadata(kept or None)
