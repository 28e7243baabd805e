"""Rows in one table: which of its columns are vectors, ids and metadata."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import InvalidArgumentError, LeftOutWarning, UnknownColumnError
from velo.folder.metadata import given_metadata, read_table
from velo.formats.arrow import ArrowSource, VectorTable, frame_table, vector_table
from velo.formats.source import Source, array_of

#: What is said where a column is named, and there is none.
NO_TABLE = "column names a column of a table, these vectors are none"


def given_rows(vectors: Any, column: Any, ids: Any, ids_column: Any, metadata: Any) -> tuple[Any, Any, Any]:
    """The vectors, the ids and the metadata of a write."""
    names_columns = column is not None or ids_column is not None or metadata is True
    if isinstance(vectors, np.ndarray) and not names_columns:  # as most calls are
        return vectors, ids, metadata
    if isinstance(vectors, str | os.PathLike):
        raise InvalidArgumentError(
            "the vectors of a write come from memory: velo.formats.open_vectors(path).read() reads a file",
            argument="vectors",
        )
    held = None if isinstance(vectors, np.ndarray | Source) else vector_table(vectors, column)
    if held is not None:
        ids, metadata = taken_apart(held, held.source.shape[0], ids, ids_column, metadata)
        return held.source, ids, metadata
    if column is not None:
        raise InvalidArgumentError(NO_TABLE, argument="column")
    if isinstance(vectors, pa.Array | pa.ChunkedArray):
        vectors = ArrowSource(vectors)
    if names_columns:
        if not isinstance(vectors, Source):
            vectors = array_of(vectors, "vectors")
        count = vectors.shape[0] if len(vectors.shape) > 1 else min(1, vectors.size)
        ids, metadata = taken_apart(None, count, ids, ids_column, metadata)
    return vectors, ids, metadata


def taken_apart(
    held: VectorTable | None, row_count: int, ids: Any, ids_column: str | None, metadata: Any
) -> tuple[Any, Any]:
    """The ids and the metadata of vectors, out of their table or given beside it.

    `held`: None: the vectors came without a table.
    `ids_column`: A column of the vectors' table, else of the metadata; it becomes no metadata.
    `metadata`: True: all other columns of the vectors' table.
    """
    if ids is not None and ids_column is not None:
        raise InvalidArgumentError("ids and ids_column do not go together", argument="ids_column")
    if metadata is True and held is None:
        raise InvalidArgumentError(
            "metadata=True takes the other columns of a table; these vectors came without one",
            argument="metadata",
        )
    others = () if held is None else held.others
    if ids_column is not None and ids_column in others:
        assert held is not None
        ids = held.columns([ids_column]).column(0)
        others = tuple(name for name in others if name != ids_column)
    elif ids_column is not None:
        ids, metadata = _from_metadata(row_count, ids_column, metadata, others)
    if metadata is True:
        assert held is not None
        metadata = held.columns(list(others)) if others else None
    elif others:
        _tell(held, others, metadata)
    return ids, metadata


def _from_metadata(row_count: int, name: str, metadata: Any, others: tuple[str, ...]) -> tuple[Any, Any]:
    """A column of the metadata, and the metadata without it."""
    table = None
    if metadata is not None and metadata is not True:
        table = given_metadata(metadata, row_count).table()
    if table is None or name not in table.column_names:
        there = [*others, *([] if table is None else table.column_names)]
        known = ", ".join(map(repr, there)) or "none"
        raise UnknownColumnError(
            f"there is no column {name!r} beside the vectors or in the metadata; there are: {known}",
            argument="ids_column",
        )
    rest = table.drop_columns([name])
    return table.column(name), rest if rest.column_names else None


def _tell(held: VectorTable | None, others: tuple[str, ...], metadata: Any) -> None:
    given = set() if metadata is None else _names(metadata)
    left = [name for name in others if name not in given]
    if held is not None and left:
        shown = ", ".join(map(repr, left))
        warnings.warn(
            f"beside the vectors in {held.column!r} stand columns that the index leaves out: {shown}; "
            "ids_column= takes one of them for ids, metadata=True keeps the others",
            LeftOutWarning,
            stacklevel=_caller_level(),
        )


def _caller_level() -> int:
    """The `stacklevel` of the caller's first frame outside of this package, counted from a warning in it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "velo":
        level, frame = level + 1, frame.f_back
    return level


def _names(metadata: Any) -> set[str]:
    """The columns of what was given as metadata, as far as they are known without reading it whole."""
    if isinstance(metadata, str | os.PathLike):
        return set(read_table(Path(metadata)).column_names)
    table = frame_table(metadata, "metadata")
    return set(metadata if table is None else table.column_names)
