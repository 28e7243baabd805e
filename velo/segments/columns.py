"""Ids and metadata in the form that the library and its log have them in."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pyarrow as pa

from velo import _native
from velo.errors import InvalidArgumentError, UnknownColumnError
from velo.filters.arrow_values import arrow_of, one_array, restore, storage_type, valid_of
from velo.filters.columns import check_type
from velo.folder.ids import IdColumn
from velo.folder.metadata import as_given, encoded_columns, given_metadata
from velo.folder.stored import damage
from velo.types import AnyArray


class NativeIds:
    """A ``velo_ids`` over a checked column, and the buffers that it points into."""

    def __init__(self, column: IdColumn) -> None:
        struct = self.struct = _native.new("velo_ids")
        struct.count = len(column)
        if isinstance(column, np.ndarray):
            numbers = np.ascontiguousarray(column, np.int64)
            struct.numbers = numbers_at = _native.pointer("int64_t", numbers)
            self._keep: tuple[Any, ...] = (numbers, numbers_at)
            return
        struct.is_string = 1
        _, offsets_buffer, data = column.buffers()
        if offsets_buffer is None or offsets_buffer.size == 0:
            offsets = np.zeros(1, np.int64)
        else:
            offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
        text = np.zeros(1, np.uint8) if data is None or data.size == 0 else np.frombuffer(data, np.uint8)
        struct.offsets = offsets_at = _native.pointer("int64_t", offsets)
        struct.bytes = text_at = _native.pointer("uint8_t", text)
        struct.bytes_size = 0 if data is None else data.size
        self._keep = (column, offsets, text, offsets_at, text_at)


def schema_text(schema: Any) -> str:
    """A schema as ``live.json`` keeps it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_of(text: str | None) -> Any:
    """A schema from ``live.json``; None: the index has no columns."""
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def plain_schema(schema: Any) -> Any:
    """A schema as record batches of the log have it: a lone one cannot bring dictionaries along."""
    fields = [field.with_type(storage_type(field.type, only=pa.types.is_dictionary)) for field in schema]
    return pa.schema([pa.field(field.name, field.type) for field in fields])


def storage_schema(schema: Any) -> Any:
    """A schema in types that Arrow can take from and join."""
    return pa.schema([pa.field(field.name, storage_type(field.type)) for field in schema])


def check_schema(schema: Any) -> None:
    """Refuse columns that rows could be written to, and not read back."""
    for field in schema:
        check_type(field.name, field.type)
    encoded_columns(storage_schema(schema).empty_table(), np.zeros(0, np.int64))


def given_columns(metadata: Any, schema: Any, row_count: int, *, some: bool = False) -> Any:
    """Metadata of rows as a table of the index's columns, stored (:mod:`velo.filters.arrow_values`)."""
    if schema is None:
        if metadata is None:
            return None
        raise InvalidArgumentError(
            "this index has no columns, so its rows take no metadata", argument="metadata"
        )
    names = ", ".join(map(repr, schema.names))
    if metadata is None:
        raise InvalidArgumentError(
            f"metadata is missing: the index has the columns {names}", argument="metadata"
        )
    table = given_metadata(metadata, row_count).table()
    for name in table.schema.names:
        if name not in schema.names:
            raise UnknownColumnError(f"the index has no column {name!r}; it has {names}", argument="metadata")
    if some and not table.schema.names:
        raise InvalidArgumentError(f"metadata names no column; there are {names}", argument="metadata")
    columns = []
    fields = [field for field in schema if not some or field.name in table.schema.names]
    for field in fields:
        if field.name not in table.schema.names:
            raise InvalidArgumentError(f"metadata lacks the column {field.name!r}", argument="metadata")
        check_type(field.name, field.type)
        column = table.column(field.name)
        kind = storage_type(field.type)
        try:
            column.validate(full=True)
            column = pa.chunked_array([restore(chunk, kind) for chunk in column.chunks], kind)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidArgumentError(
                f"metadata: column {field.name!r} is {column.type}, not {field.type}: {error}",
                argument="metadata",
            ) from error
        if column.null_count and not field.nullable:
            row = int(np.flatnonzero(~valid_of(one_array(column)))[0])
            raise InvalidArgumentError(
                f"metadata: column {field.name!r} takes no nulls, and row {row} has one",
                argument="metadata",
                row=row,
            )
        columns.append(column)
    made = [field.with_type(column.type) for field, column in zip(fields, columns, strict=True)]
    checked = pa.Table.from_arrays(columns, schema=pa.schema(made, schema.metadata))
    encoded_columns(
        checked, np.arange(row_count)
    )  # what cannot be stored is refused now, not by a later flush
    return checked


def some_rows(table: Any, rows: AnyArray) -> Any:
    return table.take(arrow_of(rows))


def batch_bytes(table: Any, schema: Any) -> bytes:
    """Columns as the log has them: one record batch, whose schema the index knows."""
    if table is None:
        return b""
    plain = as_given(table.columns, plain_schema(schema))
    batches = plain.to_batches()
    none = [pa.nulls(0, kind) for kind in plain.schema.types]
    batch = batches[0] if batches else pa.RecordBatch.from_arrays(none, schema=plain.schema)
    data: bytes = batch.serialize().to_pybytes()
    return data


def read_batch(data: Any, schema: Any, row_count: int) -> Any:
    """Read a batch of :func:`batch_bytes`, in types that Arrow can take from and concatenate."""
    storage_columns = storage_schema(schema)
    with damage("log"):  # its sums are right, and yet it is not what a writer wrote
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), plain_schema(schema))
        batch.validate(full=True)
        if batch.num_rows != row_count:
            raise ValueError(f"{batch.num_rows} rows of columns for {row_count} of vectors")
    columns = [restore(one, kind) for one, kind in zip(batch.columns, storage_columns.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=storage_columns)
