"""Vectors, ids and metadata of a build, from one table or given separately."""

from __future__ import annotations

import os
import warnings
from typing import Any

from velo.errors import InvalidArgumentError, LeftOutWarning
from velo.folder.metadata import given_metadata, unfiltered_columns
from velo.formats.files import as_source, open_vectors
from velo.formats.frames import vector_table
from velo.formats.source import Source
from velo.segments.tables import NO_TABLE, taken_apart

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
    """The source, the ids and the metadata of a build, as :func:`velo.segments.tables.taken_apart` reads
    them.

    Warns
    -----
    LeftOutWarning
        Columns of the vectors' table that become neither ids nor metadata, and columns of the metadata that
        filters cannot test.
    """
    held = vector_table(vectors, column)
    source = _source(vectors, column) if held is None else held.source
    ids, metadata = taken_apart(held, source.shape[0], ids, ids_column, metadata)
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
    raise InvalidArgumentError(NO_TABLE, argument="column")


def _tell_unfiltered(columns: dict[str, Any]) -> None:
    if columns:
        shown = ", ".join(f"{name!r} ({kind})" for name, kind in columns.items())
        warnings.warn(
            f"hits bring these columns along, but filters cannot look at them: {shown}",
            LeftOutWarning,
            stacklevel=5,
        )
