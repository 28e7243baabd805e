"""Several stretches seen as one index: vertices of the first, then those of the second, and so on.

A stretch is a segment, or rows of the delta that came one after the other. Each brings its ids, its columns
and what makes filters over them; here stands what does the same over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from velo.errors import FilterError, InvalidArgumentError
from velo.filters.arrow_values import arrow_of
from velo.filters.columns import FilterColumn
from velo.filters.compiler import Columns, FilterCompiler, is_mask
from velo.filters.native import NativeColumns, NativeFilter
from velo.filters.values import refuse
from velo.folder.ids import Ids, checked_ids
from velo.folder.metadata import StoredColumns
from velo.types import AnyArray, Int64Array


class Stretch(Protocol):
    """The interface that a segment shares with rows of the delta."""

    @property
    def n(self) -> int:
        """Rows, deleted ones included."""

    @property
    def ids(self) -> Ids: ...

    @property
    def metadata(self) -> Columns | None: ...

    @property
    def memory_bytes(self) -> int:
        """Memory of its filters."""

    @property
    def compiler(self) -> FilterCompiler:
        """Makes filters over its rows, by ids and by columns."""


class ChunkedFilter(NativeFilter):
    """A filter over several stretches: one of the library's for each."""

    def __init__(self, segments: Sequence[NativeFilter]) -> None:
        self.segments = list(segments)
        self.row_count = sum(segment.row_count for segment in segments)

    def count(self) -> int:
        return sum(segment.count() for segment in self.segments)

    def matches(self) -> AnyArray:
        return np.concatenate([np.zeros(0, bool), *(segment.matches() for segment in self.segments)])

    def within(self, rows: NativeFilter) -> ChunkedFilter:
        assert isinstance(rows, ChunkedFilter)
        return ChunkedFilter(
            [segment.within(mask) for segment, mask in zip(self.segments, rows.segments, strict=True)]
        )

    def check(self, vertices: AnyArray) -> AnyArray:
        passes: AnyArray = self.matches()[vertices]
        return passes

    @property
    def memory_bytes(self) -> int:
        return sum(segment.memory_bytes for segment in self.segments)


class ChunkedIds(Ids):
    """The ids of several stretches.

    `alive`: Of each stretch: whether each of some of its rows lives; None: all do. An id is that of its row
      that lives.
    """

    def __init__(
        self,
        stretches: Sequence[Stretch],
        kind: str | None,
        alive: Sequence[Callable[[AnyArray], AnyArray] | None],
    ) -> None:
        self._stretches = stretches
        self._alive = alive
        self.kind = kind or "int64"
        self.kind_known = kind is not None
        self._starts = np.cumsum([0, *(stretch.n for stretch in stretches)])

    @property
    def column(self) -> Any:
        columns = [stretch.ids.column for stretch in self._stretches]
        if self.kind == "string":
            arrays: Any = [pa.nulls(0, pa.large_string()), *columns]
            return pa.concat_arrays(arrays)
        return np.concatenate([np.zeros(0, np.int64), *columns])

    def rows(self) -> AnyArray:
        raise FilterError("rows that came one by one are in no order: filter by ids or by columns")

    def of(self, vertices: Int64Array, complete: bool = False) -> AnyArray:
        flat = vertices.reshape(-1)
        found: AnyArray = (
            np.full(len(flat), -1, np.int64) if self.kind == "int64" else np.full(len(flat), None, object)
        )
        for start, stretch in zip(self._starts, self._stretches, strict=False):
            inside = (flat >= start) & (flat < start + stretch.n)
            if inside.any():
                found[inside] = stretch.ids.of(flat[inside] - start)
        return found.reshape(vertices.shape)

    def find(self, ids: Any, argument: str = "ids") -> Int64Array:
        if isinstance(ids, str | bytes) or not hasattr(ids, "__len__"):
            raise InvalidArgumentError(f"{argument} must be a list of ids, not {ids!r}", argument=argument)
        column = checked_ids(ids)
        self.check_kind(column, argument)
        vertices = np.full(len(column), -1, np.int64)
        if len(column) == 0:
            return vertices
        for start, stretch, alive in zip(self._starts, self._stretches, self._alive, strict=False):
            found = stretch.ids.find(column, argument)
            lives = found >= 0
            if alive is not None:
                lives[lives] = alive(found[lives])
            vertices[lives] = found[lives] + start
        return vertices

    def page(self, after: int | str | None, most: int, passing: AnyArray | None) -> Int64Array:
        pages = [np.zeros(0, np.int64)]
        for start, stretch in zip(self._starts, self._stretches, strict=False):
            own = None if passing is None else passing[start : start + stretch.n]
            pages.append(stretch.ids.page(after, most, own) + start)
        vertices = np.concatenate(pages)
        first: Int64Array = vertices[np.argsort(self.of(vertices), kind="stable")[:most]]
        return first


class ChunkedColumns(StoredColumns):
    """The metadata of several stretches; the first one defines the columns."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self._stretches = stretches
        self._starts = np.cumsum([0, *(stretch.n for stretch in stretches)])
        self.row_count = int(self._starts[-1])

    @cached_property
    def stores(self) -> list[Any]:
        """Those of each stretch."""
        return [stretch.metadata for stretch in self._stretches]

    @cached_property
    def schema(self) -> Any:
        return self.stores[0].schema

    @property
    def filter_columns(self) -> Mapping[str, FilterColumn]:
        columns: Mapping[str, FilterColumn] = self.stores[0].filter_columns
        return columns

    @property
    def native_columns(self) -> NativeColumns:
        raise AssertionError("filters over several stretches are compiled stretch by stretch")

    def made(self, name: str, of: str) -> FilterColumn | None:
        column: FilterColumn | None = self.stores[0].made(name, of)
        return column

    @property
    def resident_bytes(self) -> int:
        return sum(store.resident_bytes for store in self.stores)

    @property
    def bytes_by_column(self) -> dict[str, int]:
        """Bytes of mapped files per column after a filter has touched all of it."""
        sizes: dict[str, int] = {}
        for store in self.stores:
            for name, size in store.bytes_by_column.items():
                sizes[name] = sizes.get(name, 0) + size
        return sizes

    def storage_rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        tables: list[Any] = []
        places: list[AnyArray] = []
        for start, stretch, store in zip(self._starts, self._stretches, self.stores, strict=False):
            inside = np.flatnonzero((vertices >= start) & (vertices < start + stretch.n))
            if len(inside) or not tables:
                tables.append(store.storage_rows(vertices[inside] - start, columns))
                places.append(inside)
        back = np.empty(len(vertices), np.int64)
        back[np.concatenate(places)] = np.arange(len(vertices))
        rows = pa.concat_tables(tables)
        tables.clear()  # what is copied next is all that is held
        if (np.diff(back) < 0).any():
            rows = rows.take(arrow_of(back))
        return rows


class ChunkedCompiler(FilterCompiler):
    """Filters over several stretches, made by the compiler of each."""

    def __init__(self, stretches: Sequence[Stretch], store: Columns | None) -> None:
        # Nothing of a compiler of its own: its circle of references would hold segments that were merged.
        self._stretches = stretches
        self._columns = store

    @property
    def store(self) -> Columns | None:
        return self._columns

    def compile(self, condition: Any) -> NativeFilter:
        if isinstance(condition, NativeFilter):
            return condition
        if is_mask(condition):
            refuse(
                FilterError,
                "a mask goes by the rows of a build, and rows came since: filter by ids or by columns",
            )
        return ChunkedFilter([stretch.compiler.compile(condition) for stretch in self._stretches])

    def compile_matches(self, matches: AnyArray) -> NativeFilter:
        ends = np.cumsum([stretch.n for stretch in self._stretches])
        cut = np.split(matches, ends[:-1])
        return ChunkedFilter(
            [stretch.compiler.compile_matches(one) for stretch, one in zip(self._stretches, cut, strict=True)]
        )

    @property
    def memory_bytes(self) -> int:
        return sum(stretch.memory_bytes for stretch in self._stretches)

    def close(self) -> None:
        """Compilers are closed with their stretches."""
