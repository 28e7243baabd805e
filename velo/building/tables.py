"""Inputs of a build: vectors, ids, metadata, queries for calibration, and the progress report."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Final

import numpy as np

from velo.building.held_out import draw_rows, rows_of
from velo.errors import DimensionMismatchError, InvalidArgumentError, LeftOutWarning, NotFiniteError
from velo.folder.metadata import given_metadata, unfiltered_columns
from velo.formats.arrow import vector_table
from velo.formats.files import as_source, open_vectors
from velo.formats.source import Source
from velo.options import BuildOptions
from velo.search.answer import native_queries
from velo.segments.tables import NO_TABLE, taken_apart
from velo.types import AnyArray, ProgressCallback


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


def progress_of(given: ProgressCallback | bool | None) -> ProgressCallback | None:
    """The progress function of a build: the caller's, or with True one that writes to stderr.

    On a terminal it keeps one line current. Elsewhere, in a notebook or a log, it writes a few lines.
    """
    if given is True:
        return _Line()
    return None if given is False else given


class _Line:
    def __init__(self) -> None:
        self._shown = -1
        self._step, self._start = (1, "\r") if sys.stderr.isatty() else (25, "")

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // max(1, total) // self._step * self._step
        if percent > self._shown:
            self._shown = percent
            end = "\n" if percent == 100 or not self._start else ""
            sys.stderr.write(f"{self._start}building: {percent} % of {total:,} rows{end}")
            sys.stderr.flush()


#: Fewer queries are too small a sample.
SAMPLE_MIN: Final = 60

#: More cost time and hardly improve the measurement.
SAMPLE_MAX: Final = 600


def query_sample(queries: Any, dim: int, options: BuildOptions) -> AnyArray | None:
    """Check the queries given to a build, and draw at most 600 of them with its seed."""
    if queries is None:
        return None
    if not options.calibrate:
        raise InvalidArgumentError(
            "queries are what a build measures with; calibrate=False measures nothing", argument="queries"
        )
    if isinstance(queries, str | os.PathLike):
        source = open_vectors(queries)
        count = source.shape[0]
        if source.shape[1] != dim:
            raise DimensionMismatchError(
                f"queries have {source.shape[1]} dimensions, the vectors {dim}", argument="queries"
            )
        rows = draw_rows(count, SAMPLE_MAX, options.seed)
        drawn, _ = native_queries(rows_of(source, rows, 0, count), dim)
    else:
        native, _ = native_queries(queries, dim)
        count = len(native)
        rows = draw_rows(count, SAMPLE_MAX, options.seed)
        drawn = native[rows]
    if count < SAMPLE_MIN:
        raise InvalidArgumentError(
            f"{count} queries are too few: a build measures with {SAMPLE_MIN} or more", argument="queries"
        )
    bad = np.flatnonzero(~np.isfinite(drawn).all(axis=1))
    if len(bad):
        row = int(rows[bad[0]])
        raise NotFiniteError(f"query {row} holds infinity or NaN", argument="queries", row=row)
    return drawn
