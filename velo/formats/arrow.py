"""Vectors in Parquet and Arrow: a column of fixed-size lists (or lists of equal length) of numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from velo.errors import DimensionMismatchError, DtypeError, FormatError, InvalidArgumentError, NotFiniteError
from velo.formats.source import FileSource, Source, chunk_rows
from velo.types import AnyArray, PathLike

__all__ = [
    "ArrowFileSource",
    "ArrowSource",
    "ColumnSource",
    "is_vector_type",
    "pick_column",
    "sliced",
    "write_arrow",
    "write_parquet",
]


#: A list array of any of the three kinds; the stubs of pyarrow have no common name for them.
ArrowArray: TypeAlias = Any


def is_vector_type(kind: Any) -> bool:
    """Whether a column of this type can hold vectors."""
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    value = kind.value_type
    return bool(pa.types.is_floating(value) or pa.types.is_integer(value))


def pick_column(schema: pa.Schema, column: str | None) -> str:
    """The name of the vectors' column: `column`, else the only one that can be it."""
    candidates = [field.name for field in schema if is_vector_type(field.type)]
    if column is not None:
        if column not in candidates:
            raise InvalidArgumentError(
                f"no column {column!r} of lists of numbers; there are: {', '.join(candidates) or 'none'}",
                argument="column",
            )
        return column
    if len(candidates) != 1:
        found = ", ".join(map(repr, candidates))
        message = (
            f"{found} are columns of lists of numbers: say with column= which holds the vectors"
            if candidates
            else "no column holds lists of numbers, as vectors do"
        )
        raise InvalidArgumentError(message, argument="column")
    return candidates[0]


def _values(array: ArrowArray, dim: int | None, first_row: int, where: str) -> AnyArray:
    """The elements of a list array as (rows, dim), without a copy where Arrow's buffers allow it."""
    if array.null_count:
        row = first_row + int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise NotFiniteError(f"{where}: row {row} is null", argument="vectors", row=row)
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        flat = array.values[array.offset * width : (array.offset + len(array)) * width]
    else:
        lengths = np.diff(np.asarray(array.offsets))
        width = dim if dim is not None else int(lengths[0]) if len(lengths) else 0
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            row = first_row + int(wrong[0])
            raise DimensionMismatchError(
                f"{where}: row {row} has {int(lengths[wrong[0]])} elements, not {width}",
                argument="vectors",
                row=row,
            )
        flat = array.flatten()
    if flat.null_count:
        row = first_row + int(np.flatnonzero(np.asarray(flat.is_null()))[0]) // max(1, width)
        raise NotFiniteError(f"{where}: row {row} holds a null", argument="vectors", row=row)
    return np.asarray(flat).reshape(len(array), width)


def _element(kind: Any) -> np.dtype[Any]:
    """The element type of a list type; Arrow's own way to ask for it needs pandas."""
    name = str(kind.value_type)
    return np.dtype({"halffloat": "float16", "float": "float32", "double": "float64"}.get(name, name))


class ArrowSource(Source):
    """Rows of an Arrow list array, chunked array, or of the one list column of a table."""

    def __init__(self, vectors: Any, argument: str = "vectors") -> None:
        if isinstance(vectors, pa.Table | pa.RecordBatch):
            vectors = vectors.column(pick_column(vectors.schema, None))
        parts = vectors.chunks if isinstance(vectors, pa.ChunkedArray) else [vectors]
        if not is_vector_type(vectors.type):
            raise DtypeError(
                f"{argument} is an Arrow array of {vectors.type}, not of lists", argument=argument
            )
        self._parts: list[ArrowArray] = [part for part in parts if len(part)]
        self._type = vectors.type
        self._rows = len(vectors)
        if pa.types.is_fixed_size_list(self._type):
            self._dim = int(self._type.list_size)
        else:
            self._dim = len(self._parts[0][0]) if self._parts and self._parts[0][0].is_valid else 0

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        return self._rows, self._dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return _element(self._type)

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield views of Arrow's own buffers."""
        yield from sliced(self._parts, self._dim, rows, start, stop, "vectors")


def sliced(
    parts: Iterable[ArrowArray], dim: int, rows: int, start: int, stop: int, where: str
) -> Iterator[AnyArray]:
    """Rows ``start`` to ``stop`` of list arrays, at most `rows` at a time; errors name `where`."""
    row = 0
    for part in parts:
        first, last = max(start - row, 0), min(stop - row, len(part))
        for at in range(first, last, rows):
            piece = part.slice(at, min(rows, last - at))
            yield _values(piece, dim, row + at, where)
        row += len(part)
        if row >= stop:
            return


class ColumnSource(FileSource):
    """A list column of a file; what differs is how batches are read."""

    def __init__(self, path: PathLike, schema: pa.Schema, rows: int, column: str | None) -> None:
        super().__init__(path)
        try:
            self.column = pick_column(schema, column)
        except InvalidArgumentError as error:
            raise self.malformed(error.message) from error
        self._type = schema.field(self.column).type
        self._rows = rows
        self._dim = -1
        if pa.types.is_fixed_size_list(self._type):
            self._dim = int(self._type.list_size)

    @abstractmethod
    def batches(self, rows: int) -> Iterator[ArrowArray]:
        """Yield the column in order."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all columns."""

    @abstractmethod
    def table(self, names: list[str]) -> pa.Table:
        """Some columns, whole."""

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        if self._dim < 0:
            first = next((part for part in self.batches(1) if len(part)), None)
            self._dim = 0 if first is None or not first[0].is_valid else len(first[0])
        return self._rows, self._dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return _element(self._type)

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield the rows ``start`` to ``stop``, batch by batch."""
        try:
            yield from sliced(self.batches(rows), self.shape[1], rows, start, stop, str(self.path))
        except (pa.ArrowException, OSError) as error:
            raise self.malformed(str(error)) from error


class ArrowFileSource(ColumnSource):
    """A list column of an Arrow IPC file (``.arrow``, ``.feather``) or stream."""

    def __init__(self, path: PathLike, column: str | None = None) -> None:
        self.path = Path(path)
        schema: pa.Schema | None = None
        rows = 0
        try:
            for batch in self._record_batches():
                schema = batch.schema
                rows += batch.num_rows
            if schema is None:
                schema = self._schema()
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path}: not a whole Arrow file: {error}", file=str(path)) from error
        super().__init__(path, schema, rows, column)

    def _schema(self) -> pa.Schema:
        with pa.memory_map(str(self.path)) as mapped:
            reader = pa.ipc.open_file(mapped) if self._is_file() else pa.ipc.open_stream(mapped)
            return reader.schema

    def _is_file(self) -> bool:
        with open(self.path, "rb") as file:
            return file.read(6) == b"ARROW1"

    def _record_batches(self) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self.path)) as mapped:
            if self._is_file():
                reader = pa.ipc.open_file(mapped)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
            else:
                yield from pa.ipc.open_stream(mapped)

    def batches(self, rows: int) -> Iterator[ArrowArray]:
        """Yield the column batch by batch, as the file holds them."""
        for batch in self._record_batches():
            yield batch.column(self.column)

    def names(self) -> list[str]:
        """The names of all columns."""
        return list(self._schema().names)

    def table(self, names: list[str]) -> pa.Table:
        """Some columns, whole."""
        schema = self._schema()
        try:
            return pa.Table.from_batches(self._record_batches(), schema).select(names)
        except (pa.ArrowException, OSError) as error:
            raise self.malformed(str(error)) from error


def _list_batches(source: Source, column: str) -> Iterator[pa.RecordBatch]:
    dim = source.shape[1]
    kind = pa.list_(pa.from_numpy_dtype(source.dtype), dim)
    schema = pa.schema([pa.field(column, kind)])
    for chunk in source.chunks(chunk_rows(dim * source.dtype.itemsize)):
        flat = pa.array(np.ascontiguousarray(chunk).reshape(-1))
        yield pa.record_batch([pa.FixedSizeListArray.from_arrays(flat, dim)], schema=schema)


def write_parquet(path: PathLike, source: Source, column: str = "vector") -> None:
    """Write the vectors as the column `column` of a Parquet file."""
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(column, pa.list_(pa.from_numpy_dtype(source.dtype), source.shape[1]))])
    with pq.ParquetWriter(str(path), schema) as writer:
        for batch in _list_batches(source, column):
            writer.write_batch(batch)


def write_arrow(path: PathLike, source: Source, column: str = "vector") -> None:
    """Write the vectors as the column `column` of an Arrow IPC file."""
    schema = pa.schema([pa.field(column, pa.list_(pa.from_numpy_dtype(source.dtype), source.shape[1]))])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in _list_batches(source, column):
            writer.write_batch(batch)
