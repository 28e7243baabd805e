"""Rows of a call for which the delta has no room: they become a segment of their own.

Their vectors are read from the caller's memory, slice by slice, and never written to the log. The library
puts the segment into place (zig/src/live/folder.zig).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from velo.folder.metadata import as_given
from velo.formats.source import Source, chunk_rows
from velo.segments.columns import given_columns, some_rows
from velo.segments.rows import GivenRows, RowShape, check_finite, checked_row_ids, in_type
from velo.segments.segment import Segment
from velo.segments.view import View
from velo.types import AnyArray

__all__ = ["LargeRows", "SegmentOfCall"]


class CallVectors(Source):
    """The vectors of a call in the element type of the index; only the rows `kept`, if given."""

    def __init__(self, given: AnyArray | Source, shape: RowShape, kept: AnyArray | None = None) -> None:
        # A source is read from front to back alone.
        self._given = given.read() if kept is not None and isinstance(given, Source) else given
        self._row_shape = shape
        self._kept = kept

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        count = self._given.shape[0] if self._kept is None else len(self._kept)
        return int(count), self._row_shape.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the index."""
        return self._row_shape.dtype

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield the rows ``start`` to ``stop``."""
        for chunk in self._slices(rows, start, stop):
            yield in_type(chunk, self._row_shape)

    def _slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        if isinstance(self._given, Source):
            yield from self._given.chunks(rows, start, stop)
            return
        for row in range(start, stop, rows):
            taken = slice(row, min(row + rows, stop))
            yield self._given[taken if self._kept is None else self._kept[taken]]

    def check(self) -> None:
        """Read all of it once: DtypeError, NotFiniteError."""
        row = 0
        for chunk in self.chunks(chunk_rows(self.shape[1] * self.dtype.itemsize)):
            check_finite(chunk, row)
            row += len(chunk)


class LargeRows(GivenRows):
    """Rows of one call that become a segment; vectors are as from :func:`velo.segments.rows.given_vectors`,
    not copied.

    Raises
    ------
    InvalidArgumentError, DtypeError, NotFiniteError, DuplicateIdError, UnknownColumnError
    """

    def __init__(
        self,
        shape: RowShape,
        vectors: AnyArray | Source,
        ids: Any,
        metadata: Any,
        request: Any,
        *,
        upsert: bool,
    ) -> None:
        given = CallVectors(vectors, shape)
        given.check()
        count = len(given)
        kind, column, kept = checked_row_ids(ids, count, shape.id_kind, upsert)
        table = given_columns(metadata, shape.schema, count)
        if table is not None and kept is not None:
            table = some_rows(table, kept)
        super().__init__(len(given if kept is None else kept), kind, column, request, upsert=upsert)
        self.shape = shape
        self.vectors = given if kept is None else CallVectors(vectors, shape, kept)
        # An index may have columns of which there are none.
        has_columns = table is not None and len(shape.schema) > 0
        self.metadata = as_given(table.columns, shape.schema) if has_columns else None

    def ids_from(self, first_row: int) -> Any:
        """Their ids; those that the index numbers begin so."""
        return np.arange(first_row, first_row + self.count) if self.is_numbered else self._column


@dataclass(frozen=True)
class SegmentOfCall:
    """The sources of a call's segment.

    Attributes
    ----------
    view : View
        Of the index when its making begins.
    first_row : int
        The number of the first row, if the index assigns ids.
    """

    view: View
    rows: LargeRows
    first_row: int
    #: Of the budget it leaves a share to the delta, as what is made of segments does.
    takes_segments = True
    #: All of its vectors are there.
    coded = ()

    @property
    def count(self) -> int:
        """The number of its rows."""
        return self.rows.count

    @property
    def of_rows(self) -> int:
        """Rows of the whole index, these among them."""
        return self.view.n + self.rows.count

    @property
    def like(self) -> Segment | None:
        """The largest part of the view, whose bits and degree it gets."""
        return self.view.largest

    @property
    def calibration(self) -> Mapping[str, Any] | None:
        """The calibration to adopt: that of `like`."""
        return None if self.like is None else self.like.calibration

    def vectors(self) -> Source:
        """The rows' vectors."""
        return self.rows.vectors

    def ids(self) -> Any:
        """The rows' ids."""
        return self.rows.ids_from(self.first_row)

    def metadata(self) -> Any:
        """The rows' columns, or None."""
        return self.rows.metadata

    def warm_start(self, _: Path) -> None:
        """There is no graph yet that has them."""
