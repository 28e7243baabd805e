"""A segment that was made before columns were added, seen as if it had them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from velo.filters.arrays import arrow_of
from velo.filters.arrow_values import storage_type
from velo.filters.columns import FilterColumn
from velo.filters.native import NativeColumns
from velo.folder.metadata import MetadataStore, as_given
from velo.segments.compiler import compiler_for
from velo.segments.segment import Segment
from velo.segments.table_columns import TableColumns
from velo.types import AnyArray

__all__ = ["EvolvedColumns", "EvolvedSegment", "repeated"]


def repeated(value: Any, count: int) -> Any:
    """An array of one value, so many times."""
    return value.take(arrow_of(np.zeros(count, np.int64)))


class EvolvedColumns:
    """Stored columns of a segment, and others in which each row has one value.

    Parameters
    ----------
    store : MetadataStore or None
        None: all are others.
    row_count : int
    schema : pyarrow.Schema
        All of them: those that are stored, then the others.
    values : mapping of str to pyarrow.Array
        Of the others at least, the one value.
    """

    def __init__(
        self, store: MetadataStore | None, row_count: int, schema: Any, values: Mapping[str, Any]
    ) -> None:
        self._store = store
        self.row_count = row_count
        self.schema = schema
        stored = [] if store is None else store.column_names
        added = list(schema)[len(stored) :]
        self._values = {field.name: values[field.name] for field in added}
        of_one_row = pa.schema(added)
        self._one = TableColumns(pa.table(list(self._values.values()), names=list(self._values)), of_one_row)

    @property
    def column_names(self) -> list[str]:
        """Names, in the order in which they were given."""
        return list(self.schema.names)

    @cached_property
    def filter_columns(self) -> dict[str, FilterColumn]:
        """The storage of each column; added columns have one row, which stands for all."""
        stored = {} if self._store is None else self._store.filter_columns
        owner = self._one.native_columns
        return stored | {
            name: replace(column, owner=owner) for name, column in self._one.filter_columns.items()
        }

    @cached_property
    def native_columns(self) -> NativeColumns:
        """The library's view of the stored columns."""
        return NativeColumns(self.row_count) if self._store is None else self._store.native_columns

    def made(self, name: str, of: str) -> FilterColumn | None:
        """A column made of a stored one (:mod:`velo.filters.made`), or None where there is none."""
        found = self._one.made(name, of)
        return found if found is not None or self._store is None else self._store.made(name, of)

    @property
    def resident_bytes(self) -> int:
        """Memory beside the mapped files."""
        return self._one.resident_bytes + (0 if self._store is None else self._store.resident_bytes)

    @property
    def bytes_by_column(self) -> dict[str, int]:
        """Bytes of mapped files per column; added columns take none."""
        return ({} if self._store is None else self._store.bytes_by_column) | self._one.bytes_by_column

    def stored_rows(self, name: str, vertices: AnyArray) -> Any:
        """Some rows of a column as they are stored."""
        if name in self._values:
            return self._one.stored_rows(name, np.zeros(len(vertices), np.int64))
        assert self._store is not None
        return self._store.stored_rows(name, vertices)

    def stored_row_bytes(self, name: str) -> float:
        """Bytes per row of a column on average, without its dictionary."""
        store = self._one if name in self._values else self._store
        assert store is not None
        return store.stored_row_bytes(name)

    def table(self) -> Any:
        """All rows in placement order, as they were given."""
        return self.rows(np.arange(self.row_count))

    def rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        """Some rows, as they were given."""
        table = self.storage_rows(vertices, columns)
        fields = [self.schema.field(name) for name in table.column_names]
        return as_given(table.columns, pa.schema(fields, self.schema.metadata))

    def storage_rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        """The same rows in types that Arrow can take from and join with others."""
        names = self.column_names if columns is None else list(columns)
        stored = [name for name in names if name not in self._values]
        table: Any = None
        if self._store is not None and stored:
            table = self._store.storage_rows(vertices, stored)
        arrays = [
            table.column(name) if name in stored else repeated(self._values[name], len(vertices))
            for name in names
        ]
        fields = [self.schema.field(name) for name in names]
        made = [field.with_type(storage_type(field.type)) for field in fields]
        return pa.Table.from_arrays(arrays, schema=pa.schema(made, self.schema.metadata))


class EvolvedSegment:
    """A segment with all columns of the index: the others of its rows have one value each.

    It does not refer to the segment, which goes once nothing else does.

    Parameters
    ----------
    segment : Segment
    schema : pyarrow.Schema
    values : mapping of str to pyarrow.Array
    unknown_is_missing : bool
    """

    def __init__(
        self, segment: Segment, schema: Any, values: Mapping[str, Any], unknown_is_missing: bool
    ) -> None:
        self.n, self.ids = segment.n, segment.ids
        self.metadata = EvolvedColumns(segment.metadata, segment.n, schema, values)
        self.filters = compiler_for(self.n, self.metadata, self.ids, unknown_is_missing)
        #: The same without masks, which go by the rows of a build.
        self.compiler = compiler_for(self.n, self.metadata, self.ids, unknown_is_missing, with_masks=False)

    @property
    def memory_bytes(self) -> int:
        """Memory of filters by ids and columns."""
        return self.compiler.memory_bytes
