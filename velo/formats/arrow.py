"""Vectors in columns of lists: Parquet, Arrow, data sets of pyarrow, and frames of pandas or polars."""

from __future__ import annotations

import glob
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from velo.errors import DimensionMismatchError, DtypeError, FormatError, InvalidArgumentError, NotFiniteError
from velo.formats.source import FileSource, Source, chunk_rows
from velo.types import AnyArray, PathLike

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
        self._dtype = _element(vectors.type)
        if pa.types.is_fixed_size_list(vectors.type):
            dim = int(vectors.type.list_size)
        else:
            dim = len(self._parts[0][0]) if self._parts and self._parts[0][0].is_valid else 0
        self._shape = len(vectors), dim

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        yield from sliced(self._parts, self.shape[1], rows, start, stop, "vectors")


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
        kind = schema.field(self.column).type
        self._dtype = _element(kind)
        self._rows = rows
        self._dim = int(kind.list_size) if pa.types.is_fixed_size_list(kind) else -1

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
        if self._dim < 0:
            first = next((part for part in self.batches(1) if len(part)), None)
            self._dim = 0 if first is None or not first[0].is_valid else len(first[0])
        return self._rows, self._dim

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
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
        for batch in self._record_batches():
            yield batch.column(self.column)

    def names(self) -> list[str]:
        return list(self._schema().names)

    def table(self, names: list[str]) -> pa.Table:
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


def parquet_files(given: Any) -> list[Path] | None:
    """The Parquet files of a folder, a pattern or a list of paths, in order; None for anything else."""
    if isinstance(given, list | tuple):
        if not given or not all(isinstance(one, str | os.PathLike) for one in given):
            return None
        wrong = [one for one in given if Path(one).suffix.lower() != ".parquet"]
        if wrong:
            raise InvalidArgumentError(
                f"{os.fspath(wrong[0])!r} is no Parquet file, and only those come in lists",
                argument="vectors",
            )
        return [Path(one) for one in given]
    if not isinstance(given, str | os.PathLike):
        return None
    path = Path(given)
    if path.is_dir():
        found = [one for one in path.rglob("*.parquet") if not _is_hidden(one.relative_to(path))]
    elif not path.exists() and glob.has_magic(str(path)):
        found = [Path(one) for one in glob.glob(str(path), recursive=True) if one.endswith(".parquet")]
    else:
        return None
    files = sorted(one for one in found if one.is_file())
    if not files:
        raise InvalidArgumentError(f"{path}: there is no Parquet file", argument="vectors", file=str(path))
    return files


def _is_hidden(path: Path) -> bool:
    """Whether a name begins with a dot or an underscore, as those of programs do."""
    return any(part[0] in "._" for part in path.parts)


class ParquetSource(ColumnSource):
    """A list column of a Parquet file, or of several with the same columns, one after the other."""

    def __init__(self, files: Sequence[PathLike], column: str | None = None) -> None:
        import pyarrow.parquet as pq  # 9 MB

        self.files = [Path(one) for one in files]
        first: Any = None
        self._counts: list[int] = []
        for path in self.files:
            try:
                with pq.ParquetFile(str(path)) as file:
                    schema, count = file.schema_arrow.remove_metadata(), file.metadata.num_rows
            except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
                raise FormatError(f"{path}: {error.strerror or error}", file=str(path)) from error
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{path}: not a whole Parquet file: {error}", file=str(path)) from error
            first = schema if first is None else first
            if schema != first:
                raise FormatError(
                    f"{path}: {_difference(first, schema)}, unlike in {self.files[0]}", file=str(path)
                )
            self._counts.append(count)
        self.schema = first
        super().__init__(self.files[0], first, sum(self._counts), column)

    def batches(self, rows: int) -> Iterator[Any]:
        for path in self.files:
            yield from self._column_of(path, rows)

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        first = 0
        for path, count in zip(self.files, self._counts, strict=True):
            begin, end = max(start - first, 0), min(stop - first, count)
            if begin < end:
                try:
                    yield from sliced(self._column_of(path, rows), self.shape[1], rows, begin, end, str(path))
                except (pa.ArrowException, OSError) as error:
                    raise FormatError(f"{path}: {error}", file=str(path)) from error
            first += count

    def _column_of(self, path: Path, rows: int) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=[self.column]):
                yield batch.column(0)

    def names(self) -> list[str]:
        return list(self.schema.names)

    def table(self, names: list[str]) -> Any:
        import pyarrow.parquet as pq

        tables = []
        for path in self.files:
            try:
                with pq.ParquetFile(path) as file:
                    tables.append(file.read(columns=names))
            except (pa.ArrowException, OSError) as error:
                raise FormatError(f"{path}: {error}", file=str(path)) from error
        return pa.concat_tables(tables)


def _difference(first: Any, other: Any) -> str:
    """The first difference between two schemas."""
    for field in first:
        if other.get_field_index(field.name) < 0:
            return f"there is no column {field.name!r}"
        if other.field(field.name).type != field.type:
            return f"the column {field.name!r} is {other.field(field.name).type}, not {field.type}"
    more = [name for name in other.names if name not in first.names]
    return f"there is a column {more[0]!r}" if more else "columns stand in another order"


def dataset_of(given: Any) -> Any:
    """A data set of ``pyarrow.dataset``, or None for anything else, without importing it."""
    module = sys.modules.get("pyarrow.dataset")
    return given if module is not None and isinstance(given, module.Dataset) else None


class DatasetSource(ColumnSource):
    """A list column of a data set of ``pyarrow.dataset``, fragment by fragment."""

    def __init__(self, dataset: Any, column: str | None = None) -> None:
        self.dataset = dataset
        super().__init__("the data set", dataset.schema, int(dataset.count_rows()), column)

    def batches(self, rows: int) -> Iterator[Any]:
        for batch in self.dataset.to_batches(
            columns=[self.column], batch_size=rows, batch_readahead=1, fragment_readahead=1
        ):
            yield batch.column(0)

    def names(self) -> list[str]:
        return list(self.dataset.schema.names)

    def table(self, names: list[str]) -> Any:
        try:
            return self.dataset.to_table(columns=names)
        except (pa.ArrowException, OSError) as error:
            raise self.malformed(str(error)) from error


@dataclass(frozen=True)
class VectorTable:
    """Vectors in `column` of a table, with its other columns."""

    source: Source
    column: str
    others: tuple[str, ...]
    _read: Callable[[list[str]], Any]

    def columns(self, names: list[str]) -> Any:
        """Some of the other columns as an Arrow table, in the order of the vectors."""
        return self._read(names)


def frame_table(frame: Any, argument: str) -> Any:
    """A frame as an Arrow table, or None for anything else.

    Frames are pandas' and lists of dicts, and anything that exports an Arrow stream (polars, DuckDB).
    """
    if isinstance(frame, pa.Table):
        return frame
    if _is_of_dicts(frame):
        return _table_of_dicts(frame, argument)
    try:
        if isinstance(frame, pa.RecordBatch):
            return pa.Table.from_batches([frame])
        if hasattr(frame, "iloc") and hasattr(frame, "columns"):
            return pa.Table.from_pandas(frame, preserve_index=False)
        is_column = isinstance(frame, pa.Array | pa.ChunkedArray) or hasattr(frame, "dtype")
        if hasattr(frame, "__arrow_c_stream__") and not is_column:
            table: Any = pa.table(frame)
            return table
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{argument} cannot be read as a table: {error}", argument=argument
        ) from error
    return None


def _is_of_dicts(given: Any) -> bool:
    return isinstance(given, list | tuple) and len(given) > 0 and isinstance(given[0], Mapping)


def _table_of_dicts(rows: Sequence[Any], argument: str) -> Any:
    """A table of a dict a row; where a dict lacks a column that others have, its value is missing."""
    names: dict[Any, None] = {}
    for row, one in enumerate(rows):
        if not isinstance(one, Mapping):
            raise InvalidArgumentError(
                f"{argument}: row {row} is a {type(one).__name__}, and the first row a dict",
                argument=argument,
                row=row,
            )
        names.update(dict.fromkeys(one))
    columns = {}
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError(
                f"{argument}: columns have names that are strings, not {name!r}", argument=argument
            )
        try:
            columns[name] = pa.array([one.get(name) for one in rows])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"{argument}: column {name!r} cannot be read: {error}", argument=argument
            ) from error
    return pa.table(columns)


def vector_table(vectors: Any, column: str | None = None) -> VectorTable | None:
    """The table in which `vectors` are one of several columns, or None if `vectors` is not a table.

    It may be an Arrow table, a frame of pandas or polars, a list of dicts, a Parquet or Arrow file, a folder,
    pattern or list of Parquet files, or a data set of ``pyarrow.dataset``. `column` decides between several
    columns of vectors.
    """
    source = column_source(vectors, column)
    if source is not None:
        others = tuple(name for name in source.names() if name != source.column)
        return VectorTable(source, source.column, others, source.table)
    if isinstance(vectors, str | os.PathLike):
        return None
    table = frame_table(vectors, "vectors")
    if table is None or (column is None and not any(is_vector_type(kind) for kind in table.schema.types)):
        return None
    name = pick_column(table.schema, column)
    others = tuple(other for other in table.column_names if other != name)
    values = table.column(name)
    if _is_of_dicts(vectors) and values.type.value_type == pa.int64():  # plain numbers, as in other lists
        values = values.cast(pa.list_(pa.float32()), safe=False)
    return VectorTable(ArrowSource(values), name, others, table.select)


def column_source(given: Any, column: str | None) -> ColumnSource | None:
    """A column of files or of a data set; None: it is none of these."""
    if isinstance(given, ColumnSource):
        return given
    files = parquet_files(given)
    if files is not None:
        return ParquetSource(files, column)
    dataset = dataset_of(given)
    if dataset is not None:
        return DatasetSource(dataset, column)
    if not isinstance(given, str | os.PathLike):
        return None
    suffix = Path(given).suffix.lower()
    if suffix == ".parquet":
        return ParquetSource([given], column)
    if suffix not in (".arrow", ".feather", ".ipc"):
        return None
    try:
        return ArrowFileSource(given, column)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise FormatError(f"{given}: {error.strerror or error}", file=str(given)) from error
