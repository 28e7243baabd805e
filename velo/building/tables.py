"""Vectors, ids and metadata out of one table: what becomes of each of its columns."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from velo.errors import InvalidArgumentError, LeftOutWarning, UnknownColumnError
from velo.folder.metadata import given_metadata, read_table, unfiltered_columns
from velo.formats.files import as_source, open_vectors
from velo.formats.frames import VectorTable, frame_table, vector_table
from velo.formats.source import Source

__all__ = ["check_order", "parts_of"]


def check_order(path: Any, vectors: Any) -> None:
    """Refuse vectors where the folder belongs."""
    if not isinstance(path, str | os.PathLike) and isinstance(vectors, str | os.PathLike):
        raise InvalidArgumentError(
            f"the folder to make comes first: build({os.fspath(vectors)!r}, vectors), "
            f"not a {type(path).__name__}",
            argument="path",
        )


def parts_of(
    vectors: Any, *, column: str | None = None, ids: Any = None, ids_column: str | None = None, metadata: Any
) -> tuple[Source, Any, Any]:
    """The source, the ids and the metadata of a build.

    Parameters
    ----------
    vectors : whatever :func:`velo.build` takes
    column : str, optional
        Where the vectors stand in a table or a file.
    ids : optional
    ids_column : str, optional
        A column of the vectors' table, else of the metadata; it becomes no metadata.
    metadata : optional
        True: all other columns of the vectors' table.

    Warns
    -----
    LeftOutWarning
        Columns of the vectors' table that become neither ids nor metadata, and columns of the metadata
        that filters cannot look at.
    """
    if ids is not None and ids_column is not None:
        raise InvalidArgumentError("ids and ids_column do not go together", argument="ids_column")
    held = vector_table(vectors, column)
    source = _source(vectors, column) if held is None else held.source
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
        ids, metadata = _from_metadata(source, ids_column, metadata, others)
    if metadata is True:
        assert held is not None
        metadata = held.columns(list(others)) if others else None
    elif others:
        _tell(held, others, metadata)
    if metadata is not None:
        given = given_metadata(metadata, source.shape[0])
        _tell_unfiltered(unfiltered_columns(given.schema))
        if not isinstance(metadata, str | os.PathLike):
            metadata = given.table()
    return source, ids, metadata


def _source(vectors: Any, column: str | None) -> Source:
    if column is None:
        return as_source(vectors)
    if isinstance(vectors, str | os.PathLike):
        return open_vectors(vectors, column=column)
    raise InvalidArgumentError("column names a column of a table, these vectors are none", argument="column")


def _from_metadata(source: Source, name: str, metadata: Any, others: tuple[str, ...]) -> tuple[Any, Any]:
    """A column of the metadata, and the metadata without it."""
    table = None
    if metadata is not None and metadata is not True:
        table = given_metadata(metadata, source.shape[0]).table()
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
            stacklevel=5,
        )


def _tell_unfiltered(columns: dict[str, Any]) -> None:
    if columns:
        shown = ", ".join(f"{name!r} ({kind})" for name, kind in columns.items())
        warnings.warn(
            f"hits bring these columns along, but filters cannot look at them: {shown}",
            LeftOutWarning,
            stacklevel=5,
        )


def _names(metadata: Any) -> set[str]:
    """The columns of what was given as metadata, as far as they are known without reading it whole."""
    if isinstance(metadata, str | os.PathLike):
        return set(read_table(Path(metadata)).column_names)
    table = frame_table(metadata, "metadata")
    return set(metadata if table is None else table.column_names)
