"""Updates: some columns of rows change; the rest of each row stays as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from velo.filters.arrays import arrow_of, texts_of
from velo.options import METRIC_CODES
from velo.segments.columns import given_columns
from velo.segments.rows import NewRows, last_of_each
from velo.segments.view import View
from velo.types import AnyArray

__all__ = ["Found", "Update", "UpdateOfIds", "UpdateWhere"]


class Found(NamedTuple):
    """The rows of a view that an update changes.

    Attributes
    ----------
    vertices : ndarray
    ids : ndarray or pyarrow.Array
        Of each, no two equal.
    values : ndarray
        Of each the row of the update's table that has its new values.
    """

    vertices: AnyArray
    ids: Any
    values: AnyArray

    def none(self) -> Found:
        """None of them."""
        return Found(self.vertices[:0], self.ids[:0], self.values[:0])


class Update(ABC):
    """New values for some rows, checked before anything is written.

    Attributes
    ----------
    argument : str
        What says which rows.
    count : int or None
        Distinct ids that were given; None: none were.
    """

    argument: str
    count: int | None

    def __init__(self, table: Any) -> None:
        self._table = table

    @abstractmethod
    def find(self, view: View) -> Found:
        """The rows of a view that change."""

    def rows(self, view: View, found: Found, request: str | None) -> NewRows:
        """The new rows; vectors that no segment stores are decoded from their codes."""
        table = view.metadata.rows(found.vertices)
        values: Any = arrow_of(found.values)
        for name in self._table.column_names:
            table = table.set_column(
                table.schema.get_field_index(name),
                self._table.schema.field(name),
                self._table.column(name).take(values),
            )
        vectors = view.vectors(found.vertices, decoded=True)
        if view.shape.dtype.kind in "iu":
            _lengthen(vectors, view, found.vertices)
        return NewRows(
            view.shape,
            vectors.astype(view.shape.dtype),
            found.ids,
            table,
            request,
            upsert=True,
            is_distinct=True,
        )


def _lengthen(vectors: AnyArray, view: View, vertices: AnyArray) -> None:
    """Give directions, which are what codes of cosine tell, a length that whole numbers can hold."""
    segments = view.places(vertices)[0]
    limits = np.iinfo(view.shape.dtype)
    for number, segment in enumerate(view.segments):
        if segment.stores_vectors or segment.metric != METRIC_CODES["cosine"]:
            continue
        inside = np.flatnonzero(segments == number)
        rows = vectors[inside]
        largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
        scaled = rows * (limits.max / np.where(largest > 0, largest, 1))
        vectors[inside] = np.clip(np.rint(scaled), limits.min, limits.max)


class UpdateOfIds(Update):
    """New values for some ids; of a repeated id the last row counts.

    Parameters
    ----------
    ids : ndarray or pyarrow.Array
        Checked already.
    metadata : table
        Some of the index's columns, a row an id.
    schema : pyarrow.Schema or None

    Raises
    ------
    InvalidArgumentError, UnknownColumnError
    """

    argument = "ids"

    def __init__(self, ids: Any, metadata: Any, schema: Any) -> None:
        table = given_columns(metadata, schema, len(ids), some=True)
        last = last_of_each(ids)
        super().__init__(table.take(arrow_of(last)))
        self._ids = ids[last] if isinstance(ids, np.ndarray) else ids.take(arrow_of(last))
        self.count = len(last)

    def find(self, view: View) -> Found:
        """Those of the ids that live."""
        found = view.ids.find(self._ids)
        places = np.flatnonzero(found >= 0)
        places = places[view.are_alive(found[places])]
        rows: Any = arrow_of(places)
        ids = self._ids[places] if isinstance(self._ids, np.ndarray) else self._ids.take(rows)
        return Found(found[places], ids, places)


class UpdateWhere(Update):
    """New values for all rows that pass a filter.

    Parameters
    ----------
    condition : filter
    metadata : table
        Some of the index's columns, one value each.
    schema : pyarrow.Schema or None

    Raises
    ------
    InvalidArgumentError, UnknownColumnError
    """

    argument = "filter"
    count = None

    def __init__(self, condition: Any, metadata: Any, schema: Any) -> None:
        super().__init__(given_columns(metadata, schema, 1, some=True))
        self._condition = condition

    def find(self, view: View) -> Found:
        """Those that live and pass."""
        vertices = view.passing(self._condition)
        ids: Any = view.ids.of(vertices)
        if ids.dtype == object:
            ids = texts_of(ids)
        return Found(vertices, ids, np.zeros(len(vertices), np.int64))
