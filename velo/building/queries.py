"""The sample of queries that a build measures with instead of rows."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from velo.building.held_out import draw_rows, rows_of
from velo.errors import DimensionMismatchError, InvalidArgumentError, NotFiniteError
from velo.formats.files import open_vectors
from velo.options import BuildOptions
from velo.search.answer import native_queries
from velo.types import AnyArray

__all__ = ["SAMPLE_MAX", "SAMPLE_MIN", "query_sample"]

#: Fewer queries are too small a sample.
SAMPLE_MIN: Final = 60

#: More cost time and hardly improve the measurement.
SAMPLE_MAX: Final = 600


def query_sample(queries: Any, dim: int, options: BuildOptions) -> AnyArray | None:
    """Check the queries given to a build, and draw at most 600 of them with its seed.

    Raises
    ------
    InvalidArgumentError
        There are fewer than 60, or the build does not measure.
    DimensionMismatchError, DtypeError, NotFiniteError
        Naming the query.
    """
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
