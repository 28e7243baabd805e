"""Metadata of the rows: the columns that filters test and searches return.

``columns.arrow`` is an Arrow IPC file with one record batch, uncompressed and in placement order, so that a
column's buffers can be mapped and passed to the library as they are; :mod:`velo.filters.columns` describes
how each type is stored. ``columns.postings``, written and mapped by the library, has the rows of each value.
``columns.stats`` is JSON: counts, extremes, frequent values and quantiles of each column.

Metadata that was set later (:mod:`velo.folder.exchange`) is a new generation of these files, with its number
in their names; the manifest has the generation of the index.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo import _native
from velo.errors import CorruptIndexError, InvalidArgumentError, VeloError
from velo.filters.arrow_values import array_bytes, arrow_of, one_array, restore, storage_type
from velo.filters.columns import FilterColumn, check_stored, describe, encode
from velo.filters.made import can_be_filtered, made_column
from velo.filters.native import NativeColumns
from velo.folder.flow import Body, ColumnSource, flowed_columns
from velo.folder.manifest import read_manifest
from velo.folder.replace import durable_file
from velo.folder.statistics import statistics_of
from velo.folder.stored import damage, load_json, mapped_batch
from velo.folder.text_column import with_text_column
from velo.types import AnyArray, PathLike

COLUMNS_FILE: Final = "columns.arrow"
STATISTICS_FILE: Final = "columns.stats"
POSTINGS_FILE: Final = "columns.postings"

_FORMAT: Final = b"1"
_PARQUET: Final = (".parquet", ".pq", ".parq")


class GivenMetadata:
    """Metadata that a caller gave, checked without reading its values."""

    def __init__(self, source: pa.Table | Path, schema: pa.Schema, first_row: int, row_count: int) -> None:
        self._source = source
        self._first_row = first_row
        self._text: str | None = None
        self.row_count = row_count
        self.schema = schema

    def table(self) -> Any:
        """All rows and columns; read now where a path was given."""
        table: Any = self._source if isinstance(self._source, pa.Table) else read_table(self._source)
        rows = table.slice(self._first_row, self.row_count)
        return rows if self._text is None else rows.replace_schema_metadata(self.schema.metadata)

    def with_text(self, column: Any) -> GivenMetadata:
        """The same with `column` marked as the text that full-text searches use."""
        schema = with_text_column(self.schema, column)
        made = GivenMetadata(self._source, schema, self._first_row, self.row_count)
        made._text = column
        return made


def given_metadata(source: Any, row_count: int, first_row: int = 0) -> GivenMetadata:
    """Check metadata that a caller gave, before anything is built.

    `source`: In a mapping a single value instead of a column applies to every row. The path is of a Parquet
      or an Arrow IPC (Feather) file.
    `first_row`: The first of them, if the index is one shard of several over one table.
    """
    table: Any
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        table = path
        schema, found = _look(path)
    else:
        table = _table_of(source, first_row + row_count)
        schema, found = table.schema, table.num_rows
    if found < first_row + row_count or (first_row == 0 and found != row_count):
        last = f" from row {first_row} on" if first_row else ""
        message = f"metadata has {found} rows, {row_count} are needed{last}"
        raise InvalidArgumentError(message, argument="metadata")
    if not schema.names:
        raise InvalidArgumentError("metadata has no columns", argument="metadata")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidArgumentError(f"metadata has two columns {name!r}", argument="metadata")
    return GivenMetadata(table, schema, first_row, row_count)


def unfiltered_columns(schema: Any) -> dict[str, Any]:
    """The columns that filters cannot look at, and their types."""
    return {field.name: field.type for field in schema if not can_be_filtered(field.type)}


def _table_of(source: Any, row_count: int) -> Any:
    if isinstance(source, pa.Table):
        return source
    try:
        if isinstance(source, pa.RecordBatch):
            return pa.Table.from_batches([source])
        if isinstance(source, Mapping):
            return pa.table({name: _column_of(values, row_count) for name, values in source.items()})
        if hasattr(source, "iloc"):  # pandas
            return pa.Table.from_pandas(source, preserve_index=False)
        if hasattr(source, "__arrow_c_stream__"):  # polars, duckdb
            return pa.table(source)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        message = f"metadata cannot be read as a table: {error}"
        raise InvalidArgumentError(message, argument="metadata") from error
    kind = type(source).__name__
    raise InvalidArgumentError(f"metadata is a table or a path, not a {kind}", argument="metadata")


def is_one_value(given: Any) -> bool:
    """Whether this is one value, a text or a mapping too, and not one for each row."""
    if isinstance(given, pa.Scalar | str | bytes | bytearray | Mapping):
        return True
    return given.ndim == 0 if isinstance(given, np.ndarray) else not hasattr(given, "__iter__")


def scalar_of(value: Any) -> Any:
    """One value with a type of Arrow's."""
    if isinstance(value, pa.Scalar):
        return value
    return pa.array([value.item() if isinstance(value, np.ndarray) else value])[0]


def _column_of(values: Any, row_count: int) -> Any:
    """A column; one value is that of every row."""
    return pa.repeat(scalar_of(values), row_count) if is_one_value(values) else values


def _look(path: Path) -> tuple[Any, int]:
    """Schema and rows of a file."""
    with _reading(path):
        if path.suffix in _PARQUET:
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                return file.schema_arrow, file.metadata.num_rows
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as reader:
            return reader.schema, sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))


def read_table(path: Path) -> Any:
    """Read a Parquet or Arrow file as a table; InvalidArgumentError if it cannot be read."""
    with _reading(path):
        if path.suffix in _PARQUET:
            import pyarrow.parquet as pq

            with pq.ParquetFile(path) as file:
                return file.read()
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as reader:
            return reader.read_all()


@contextlib.contextmanager
def _reading(path: Path) -> Any:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"metadata: {path} cannot be read: {error}"
        raise InvalidArgumentError(message, argument="metadata", file=str(path)) from error


# ---- writing


def words_name(generation: int) -> str:
    """The name of the full-text file of a generation; no manifest names it, it is derived (velo.fulltext)."""
    return "columns.words" if generation == 1 else f"columns.{generation}.words"


def file_names(generation: int) -> tuple[str, str, str]:
    """The names of columns, statistics and postings of a generation; the first has none in them."""
    if generation == 1:
        return COLUMNS_FILE, STATISTICS_FILE, POSTINGS_FILE
    return f"columns.{generation}.arrow", f"columns.{generation}.stats", f"columns.{generation}.postings"


def write_metadata(
    folder: PathLike, metadata: GivenMetadata | ColumnSource | pa.Table, rows: AnyArray
) -> list[str]:
    """Write columns, statistics and postings into an index folder, each by rename after fsync.

    ``rows[vertex]`` is the vertex's row of the input. Returns the names of the files.
    """
    if isinstance(metadata, ColumnSource):
        with Body(Path(folder)) as body:
            arrays, schema = flowed_columns(metadata, rows, body)
            return write_batch(folder, arrays, schema, generation=1)
    if isinstance(metadata, pa.Table):
        metadata = given_metadata(metadata, len(rows))
    table = metadata.table()
    return write_batch(folder, encoded_columns(table, rows), table.schema, generation=1)


def encoded_columns(table: Any, rows: AnyArray) -> list[Any]:
    """The columns of a table in stored form, vertex ``v`` with row ``rows[v]``."""
    if len(rows) != table.num_rows:
        raise AssertionError(f"{len(rows)} vertices, {table.num_rows} rows of metadata")
    order = arrow_of(np.asarray(rows))
    arrays = []
    for name, column in zip(table.schema.names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            message = f"metadata: column {name!r} of type {column.type} is damaged: {error}"
            raise InvalidArgumentError(message, argument="metadata") from error
        arrays.append(encode(name, column, order))
    return arrays


def write_batch(folder: PathLike, arrays: list[Any], schema: Any, generation: int) -> list[str]:
    """Write stored columns whose schema was `given`; returns the names of the files."""
    original = base64.b64encode(schema.serialize().to_pybytes())
    fields = [pa.field(name, array.type) for name, array in zip(schema.names, arrays, strict=True)]
    keys: dict[bytes | str, bytes | str] = {b"velo.format": _FORMAT, b"velo.schema": original}
    if generation > 1:
        keys[b"velo.generation"] = str(generation).encode()
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, keys))
    described = [
        describe(field.name, field.type, stored) for field, stored in zip(schema, batch.columns, strict=True)
    ]
    statistics = {"version": 1, "row_count": batch.num_rows, "columns": statistics_of(described, batch)}
    folder = Path(folder)
    columns_file, statistics_file, postings_file = file_names(generation)
    with durable_file(folder / columns_file) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    with durable_file(folder / statistics_file) as file:
        file.write(json.dumps(statistics, ensure_ascii=False, indent=1).encode())
    with durable_file(folder / postings_file) as file:
        _native_columns(described, batch).write_postings(Path(file.name), generation)
    return [columns_file, statistics_file, postings_file]


def _native_columns(described: Sequence[FilterColumn], batch: Any) -> NativeColumns:
    """The library's view of a batch's buffers."""
    columns = NativeColumns(batch.num_rows, batch)
    for column, stored in zip(described, batch.columns, strict=True):
        if column.native_type is not None:
            _add(columns.handle, column, stored)
    return columns


def _add(handle: Any, column: FilterColumn, stored: Any) -> None:
    struct = _native.new("velo_column")
    name = _native.ffi.new("char[]", column.name.encode())
    struct.name = name
    struct.type = int(column.native_type or 0)
    struct.row_count = len(stored)
    validity = stored.buffers()[0]
    if stored.null_count and validity is not None:
        struct.validity = _native.ffi.cast("uint8_t *", validity.address)
        struct.validity_offset = stored.offset
    values = stored
    if column.is_list:
        values = stored.values
        offsets = _native.ffi.cast("int32_t *", stored.buffers()[1].address)
        struct.offsets = offsets + stored.offset
    if pa.types.is_dictionary(values.type):
        values = values.indices
    buffer = values.buffers()[1]
    struct.values_offset = values.offset
    struct.values_count = values.offset + len(values)
    if buffer is not None:
        struct.values = _native.ffi.cast("void *", buffer.address)
    _native.check(_native.lib.velo_columns_add(handle, struct), "metadata")


def _original_schema(schema: Any) -> Any:
    serialized = base64.b64decode((schema.metadata or {})[b"velo.schema"])
    return pa.ipc.read_schema(pa.py_buffer(serialized))


# ---- an open store


def generation_in(folder: Path) -> int:
    """The generation of an index's metadata; 0: none."""
    manifest = read_manifest(folder)
    return manifest.generation if file_names(manifest.generation)[0] in manifest.files else 0


def open_metadata(folder: PathLike, row_count: int) -> MetadataStore | None:
    """Open the metadata of an index; None where it has none.

    Another process may exchange the files meanwhile: callers use
    :func:`velo.folder.replace.at_one_moment`.
    """
    folder = Path(folder)
    generation = generation_in(folder)
    return MetadataStore(folder / file_names(generation)[0], row_count) if generation else None


class StoredColumns(ABC):
    """The columns of some rows, of type `schema` as they were given."""

    schema: Any
    row_count: int

    @property
    def column_names(self) -> list[str]:
        """Names, in the order in which they were given."""
        return list(self.schema.names)

    def table(self) -> Any:
        """All rows, as they were given."""
        return self.rows(np.arange(self.row_count))

    def rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        """A table of some rows, with all or some columns, in the types they were given in."""
        table = self.storage_rows(vertices, columns)
        fields = [self.schema.field(name) for name in table.column_names]
        return as_given(table.columns, pa.schema(fields, self.schema.metadata))

    @abstractmethod
    def storage_rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        """The same rows in types that Arrow can take from and join with others."""


class MetadataStore(StoredColumns):
    """Columns in placement order, mapped from ``columns.arrow``."""

    def __init__(self, path: Path, row_count: int) -> None:
        self.row_count = row_count
        self._path = path
        batch: Any = mapped_batch(path)
        with damage(path.name):
            found = (batch.schema.metadata or {}).get(b"velo.format")
            if found != _FORMAT:
                raise ValueError(f"format {found!r} is unknown")
            self.generation = int((batch.schema.metadata or {}).get(b"velo.generation", b"1"))
            self.schema: Any = _original_schema(batch.schema)
            if self.schema.names != batch.schema.names or batch.num_rows != row_count:
                raise ValueError(f"{batch.num_rows} rows and columns {batch.schema.names}")
            for field, stored in zip(self.schema, batch.columns, strict=True):
                check_stored(field.name, field.type, stored)
            self._hold(path, self.schema, batch)

    def _hold(self, path: Path, schema: Any, batch: Any) -> None:
        """Use stored columns whose schema was `schema`, as if they were in the file `path`."""
        self._path, self.schema, self.row_count = path, schema, batch.num_rows
        self.filter_columns: dict[str, FilterColumn] = {
            field.name: describe(field.name, field.type, stored)
            for field, stored in zip(schema, batch.columns, strict=True)
        }
        self._batch: Any = batch
        self._making = threading.Lock()
        self._made: dict[tuple[str, str], FilterColumn | None] = {}
        self._made_bytes = 0
        self._postings_path = path.with_name(file_names(self.generation)[2])

    @property
    def stored_columns(self) -> list[Any]:
        """All columns as they are stored, in placement order."""
        return list(self._batch.columns)

    def stored_rows(self, name: str, vertices: AnyArray) -> Any:
        with damage(self._path.name):
            return self._batch.column(name).take(arrow_of(vertices))

    def stored_row_bytes(self, name: str) -> float:
        """Average size of a row of a column, without its dictionary."""
        return array_bytes(self._batch.column(name)) / max(1, self.row_count)

    @cached_property
    def native_columns(self) -> NativeColumns:
        """The library's view of the mapped buffers, with the postings where the index has them."""
        try:
            columns = _native_columns(list(self.filter_columns.values()), self._batch)
        except VeloError as error:
            raise CorruptIndexError(f"{self._path.name}: {error}", file=self._path.name) from error
        # Indexes of the first versions have none, and where another process has set new metadata since this
        # was opened they are gone: filters then know what samples tell.
        if self._postings_path.exists():
            columns.load_postings(self._postings_path, self.generation)
        return columns

    def made(self, name: str, of: str) -> FilterColumn | None:
        """A derived column (:mod:`velo.filters.made`) of `name`, a column or ``column.field``; made once."""
        with self._making:
            if (name, of) not in self._made:
                self._made[name, of] = self._make(name, of)
            return self._made[name, of]

    def _make(self, name: str, of: str) -> FilterColumn | None:
        column = name
        path: list[str] = []
        while column not in self.filter_columns:
            column, point, field = column.rpartition(".")
            if not point:
                return None
            path.insert(0, field)
        field_type, stored = self.schema.field(column).type, self._batch.column(column)
        with damage(self._path.name):
            found = made_column(name, of, field_type, stored, path)
        if found is None:
            return None
        described, values = found
        owner = NativeColumns(self.row_count, values)
        _add(owner.handle, described, values)
        self._made_bytes += array_bytes(values)
        return replace(described, owner=owner)

    @property
    def resident_bytes(self) -> int:
        """Memory beside the mapped files; none as long as no filter needed a column."""
        lists = self.native_columns.resident_bytes if "native_columns" in self.__dict__ else 0
        return lists + self._made_bytes

    def rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        return self._taken(vertices, columns, lambda kind: kind)

    def storage_rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        return self._taken(vertices, columns, storage_type)

    def _taken(self, vertices: AnyArray, columns: Sequence[str] | None, type_of: Callable[[Any], Any]) -> Any:
        names = self.column_names if columns is None else columns
        fields = [self.schema.field(name) for name in names]
        wanted = arrow_of(np.asarray(vertices).astype(np.int64, copy=False))
        with damage(self._path.name):
            taken = [self._batch.column(field.name).take(wanted) for field in fields]
            made = [field.with_type(type_of(field.type)) for field in fields]
            return as_given(taken, pa.schema(made, self.schema.metadata))

    def table(self) -> Any:
        with damage(self._path.name):
            return as_given(self._batch.columns, self.schema)

    @cached_property
    def statistics(self) -> dict[str, dict[str, Any]]:
        """Of each column: type, nulls, distinct values, extremes (see :data:`STATISTICS_FILE`)."""
        path = self._path.with_name(file_names(self.generation)[1])
        try:
            return {entry["name"]: entry for entry in load_json(path)["columns"]}
        except (FileNotFoundError, KeyError, TypeError) as error:
            raise CorruptIndexError(f"{path.name} cannot be read: {error}", file=path.name) from error

    @property
    def bytes_by_column(self) -> dict[str, int]:
        """Memory of each column's mapped files once a filter has read all of it, without postings.

        Lists add 8 bytes a row for their signatures, which are mapped too.
        """
        sizes = {}
        for name, stored in zip(self.schema.names, self._batch.columns, strict=True):
            signatures = 8 * self.row_count if self.filter_columns[name].is_list else 0
            sizes[name] = signatures + array_bytes(stored)
        return sizes


def as_given(columns: Sequence[Any], schema: Any) -> Any:
    """Columns, each an array or in chunks, as a table of these types; a dictionary may need wider indices."""
    arrays = [restore(one_array(one), field.type) for one, field in zip(columns, schema, strict=True)]
    fields = [field.with_type(one.type) for one, field in zip(arrays, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, schema.metadata))


class TableColumns(MetadataStore):
    """Metadata of rows in memory, encoded as a segment would hold it."""

    def __init__(self, table: Any, schema: Any) -> None:
        arrays = encoded_columns(table, np.arange(table.num_rows))
        batch = pa.RecordBatch.from_arrays(arrays, names=schema.names)
        self.generation = 1
        self._hold(Path("rows of the delta"), schema, batch)

    @property
    def resident_bytes(self) -> int:
        return int(self._batch.nbytes) + super().resident_bytes

    @property
    def bytes_by_column(self) -> dict[str, int]:
        return dict.fromkeys(self.column_names, 0)
