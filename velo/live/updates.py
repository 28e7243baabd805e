"""Updates: some columns of rows change; the rest of each row stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import UnsupportedError
from velo.live.columns import given_columns
from velo.live.rows import NewRows, RowShape, last_of_each
from velo.live.view import View
from velo.types import AnyArray

__all__ = ["Update"]


class Update:
    """What some ids get, checked before anything is written.

    Of an id that is there twice the last row counts.

    Parameters
    ----------
    ids : ndarray or pyarrow.Array
        Checked already.
    metadata : table
        Some of the index's columns, a row an id.
    schema : pyarrow.Schema or None

    Attributes
    ----------
    count : int
        Distinct ids.

    Raises
    ------
    InvalidArgumentError, UnknownColumnError
    """

    def __init__(self, ids: Any, metadata: Any, schema: Any) -> None:
        table = given_columns(metadata, schema, len(ids), some=True)
        last = last_of_each(ids)
        self._ids = ids[last] if isinstance(ids, np.ndarray) else ids.take(pa.array(last))
        self._table = table.take(pa.array(last))
        self.count = len(last)

    def rows(self, view: View, shape: RowShape, request: str | None) -> tuple[NewRows, AnyArray]:
        """The rows of a view that have these ids, with the new values, and where they are.

        Raises
        ------
        UnsupportedError
            A part stores no vectors, so its rows cannot be written anew.
        """
        found = view.ids.find(self._ids)
        places = np.flatnonzero(found >= 0)
        places = places[view.are_alive(found[places])]
        vertices = found[places]
        for number in np.unique(view.places(vertices)[0]).tolist():
            if number < len(view.segments) and not view.segments[number].stores_vectors:
                raise UnsupportedError(
                    "an update writes its rows anew, and this index stores no vectors: build it with "
                    "store_vectors=True, or exchange its columns by set_metadata before the first write"
                )
        table = view.metadata.rows(vertices)
        rows: Any = pa.array(places)
        for name in self._table.column_names:
            table = table.set_column(
                table.schema.get_field_index(name),
                self._table.schema.field(name),
                self._table.column(name).take(rows),
            )
        ids = self._ids[places] if isinstance(self._ids, np.ndarray) else self._ids.take(rows)
        vectors = view.vectors(vertices).astype(shape.dtype)
        return NewRows(shape, vectors, ids, table, request, upsert=True), vertices
