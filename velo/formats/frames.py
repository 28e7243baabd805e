"""Tables that hold vectors beside other columns.

They are of Arrow, pandas or polars, lists of a dict a row, in a Parquet or Arrow file, in folders of Parquet
files, or in data sets of ``pyarrow.dataset``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from velo.errors import FormatError, InvalidArgumentError
from velo.formats.arrow import ArrowFileSource, ArrowSource, ColumnSource, is_vector_type, pick_column
from velo.formats.datasets import DatasetSource, ParquetSource, dataset_of, parquet_files
from velo.formats.source import Source

__all__ = ["VectorTable", "frame_table", "vector_table"]


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

    Raises
    ------
    InvalidArgumentError, FormatError
    """
    source = _column_source(vectors, column)
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


def _column_source(given: Any, column: str | None) -> ColumnSource | None:
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
