"""The columns of a part that is made, read from where they are: the files of parts, and rows of the delta."""

from __future__ import annotations

from typing import Any

import numpy as np

from velo.folder.flow import ColumnSource, StoredRows
from velo.parts.many import ManyColumns
from velo.types import AnyArray

__all__ = ["SourceColumns"]


class SourceColumns(ColumnSource):
    """The columns of some vertices.

    Nothing is read before the part is placed, and then some rows at a time.

    Parameters
    ----------
    columns : MetadataStore, WideColumns or ManyColumns
        Of a view.
    vertices : ndarray
        Ascending.
    """

    def __init__(self, columns: Any, vertices: AnyArray) -> None:
        self._columns = columns
        self._vertices = vertices

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self._vertices)

    @property
    def schema(self) -> Any:
        """The columns as they were given."""
        return self._columns.schema

    def stored(self, name: str) -> list[StoredRows]:
        """A column where it is stored, store after store."""
        stores = self._columns.stores if isinstance(self._columns, ManyColumns) else [self._columns]
        starts = np.cumsum([0, *(store.row_count for store in stores)])
        bounds = np.searchsorted(self._vertices, starts)
        return [
            self._rows_of(store, name, int(start), int(first), int(last))
            for store, start, first, last in zip(stores, starts, bounds, bounds[1:], strict=False)
            if last > first
        ]

    def _rows_of(self, store: Any, name: str, start: int, first: int, last: int) -> StoredRows:
        """The rows from one to another, which lie in a store whose first row is the vertex `start`."""
        return StoredRows(
            first,
            last,
            store.filter_columns[name].dictionary,
            store.stored_row_bytes(name),
            lambda rows: store.stored_rows(name, self._vertices[first + rows.astype(np.int64)] - start),
        )

    def undressed(self, name: str, rows: AnyArray) -> Any:
        """A column of some rows, in a type that Arrow can take from."""
        return self._columns.undressed_rows(self._vertices[rows], [name]).column(0)

    def given(self, name: str) -> Any:
        """A table of the one column of all rows, as it was given."""
        return self._columns.rows(self._vertices, [name])
