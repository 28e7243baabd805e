"""Tables of metadata, from whatever a caller has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from velo.errors import FormatError, InvalidArgumentError

__all__ = ["as_table"]


def as_table(metadata: Any, row_count: int, argument: str = "metadata") -> pa.Table:
    """A table with one row a vector.

    Parameters
    ----------
    metadata : pyarrow.Table or RecordBatch, dict of columns, list of dicts, pandas.DataFrame, or path
        A path is a Parquet file, or an Arrow IPC file (``.arrow``, ``.feather``).
    row_count : int
        Rows that it must have.
    argument : str
        Its name, for errors.

    Returns
    -------
    pyarrow.Table
    """
    table = _table(metadata, argument)
    if table.num_rows != row_count:
        raise InvalidArgumentError(
            f"{argument} has {table.num_rows} rows for {row_count} vectors", argument=argument
        )
    names = table.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(f"{argument} has two columns named {twice!r}", argument=argument)
    return table


def _table(metadata: Any, argument: str) -> pa.Table:
    if isinstance(metadata, pa.Table):
        return metadata
    try:
        if isinstance(metadata, pa.RecordBatch):
            return pa.Table.from_batches([metadata])
        if isinstance(metadata, str | os.PathLike):
            return _read(Path(metadata))
        if isinstance(metadata, Mapping):
            return pa.table(dict(metadata))
        if isinstance(metadata, list):
            return pa.Table.from_pylist(metadata)
        if hasattr(metadata, "columns") and hasattr(metadata, "iloc"):
            return pa.Table.from_pandas(metadata, preserve_index=False)
    except (pa.ArrowException, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{argument} is no table: {error}", argument=argument) from error
    raise InvalidArgumentError(
        f"{argument} must be a pyarrow.Table, a dict of columns or the path of a Parquet file, "
        f"not {type(metadata).__name__}",
        argument=argument,
    )


def _read(path: Path) -> pa.Table:
    try:
        if path.suffix in (".arrow", ".feather", ".ipc"):
            with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
                return reader.read_all()
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"{path}: {error}", file=str(path)) from error
