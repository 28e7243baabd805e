"""Filters as the library runs them, and the cache that keeps them from being made twice."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo import _native
from velo._filter_program import compile_program
from velo.errors import FilterError, FilterTypeError, UnknownColumnError
from velo.filters import Column, Compare, Expr, from_dict, from_text, refuse
from velo.types import AnyArray, Int64Array

if TYPE_CHECKING:
    from velo.metadata import MetadataStore

__all__ = ["FilterCompiler", "NativeColumns", "NativeFilter"]

#: Compiled filters kept by an index.
_KEPT: Final = 256
#: What their matches may take together, looked at every so many new filters.
_MATCHES_BYTES_A_ROW: Final = 2
_MATCHES_BYTES_MIN: Final = 1 << 20
_WEIGHED_EVERY: Final = 16


class NativeColumns:
    """An empty ``velo_columns``, and the buffers of what is added to it.

    Attributes
    ----------
    handle : cdata
        ``velo_columns *``
    """

    def __init__(self, row_count: int, buffers: Any = None) -> None:
        out = _native.ffi.new("velo_columns **")
        _native.check(_native.lib.velo_columns_open(row_count, out), "metadata")
        self.handle = _native.ffi.gc(out[0], _native.lib.velo_columns_close)
        self._buffers = buffers

    def load_postings(self, path: Path, generation: int) -> None:
        """Map which rows have which value; after all columns were added, before the first filter.

        Raises
        ------
        CorruptIndexError, UnsupportedVersionError, DeviceError
        """
        _native.check(_native.lib.velo_columns_load_postings(self.handle, os.fsencode(path), generation))

    def write_postings(self, path: Path, generation: int) -> None:
        """Write which rows have which value, and sync."""
        _native.check(_native.lib.velo_columns_write_postings(self.handle, os.fsencode(path), generation))

    @property
    def resident_bytes(self) -> int:
        """Memory beside the mapped files: signatures of lists, where no postings were mapped."""
        info = _native.new("velo_columns_info")
        _native.check(_native.lib.velo_columns_info_get(self.handle, info))
        return int(info.resident_bytes)


class NativeFilter:
    """A filter in the library's hands; freed when nothing refers to it any more.

    Attributes
    ----------
    handle : cdata
        ``velo_filter *``
    row_count : int
    """

    def __init__(self, handle: Any, row_count: int, owner: Any = None) -> None:
        self.handle = _native.ffi.gc(handle, _native.lib.velo_filter_close)
        self.row_count = row_count
        self._owner = owner  # the columns that the filter looks at
        self._count: int | None = None

    def count(self) -> int:
        """Rows that pass, exactly; found once."""
        if self._count is None:
            found = _native.ffi.new("uint64_t *")
            _native.check(_native.lib.velo_filter_count(self.handle, found, _native.ffi.NULL), "filter")
            self._count = int(found[0])
        return self._count

    def _info(self) -> Any:
        info = _native.new("velo_filter_info")
        _native.check(_native.lib.velo_filter_info_get(self.handle, info), "filter")
        return info

    def estimate(self) -> float:
        """The expected share of rows that pass, 0 to 1: what a search plans with."""
        return float(self._info().expected_share)

    def is_exact(self) -> bool:
        """Whether :meth:`estimate` is the share itself, and not drawn from a sample."""
        return bool(self._info().is_exact)

    def resolve(self) -> None:
        """Find all matches now; searches do so by themselves where it pays."""
        _native.check(_native.lib.velo_filter_resolve(self.handle), "filter")

    def count_matches(self) -> int:
        """Find all matches now, few of them as a list and not as a bit for every row; says how many."""
        found = _native.ffi.new("uint64_t *")
        _native.check(_native.lib.velo_filter_find(self.handle, found), "filter")
        self._count = int(found[0])
        return self._count

    def check(self, vertices: AnyArray) -> AnyArray:
        """Whether each of some vertices passes, asked one by one as a search asks.

        Parameters
        ----------
        vertices : ndarray of uint32

        Returns
        -------
        ndarray of bool
        """
        passes = np.empty(len(vertices), np.uint8)
        asked = np.ascontiguousarray(vertices, np.uint32)
        _native.check(
            _native.lib.velo_filter_check(
                self.handle,
                _native.pointer("uint32_t", asked),
                len(asked),
                _native.pointer("uint8_t", passes, writable=True),
            ),
            "vertices",
        )
        return passes.astype(bool)

    @property
    def memory_bytes(self) -> int:
        """What the matches found so far take."""
        return int(self._info().memory_bytes)

    def matches(self) -> AnyArray:
        """Whether each vertex passes, as an array of bool."""
        bits = np.empty((self.row_count + 7) // 8, np.uint8)
        found = _native.ffi.new("uint64_t *")
        pointer = _native.pointer("uint8_t", bits, writable=True)
        _native.check(_native.lib.velo_filter_count(self.handle, found, pointer), "filter")
        self._count = int(found[0])
        return np.unpackbits(bits, count=self.row_count, bitorder="little").astype(bool)


class FilterCompiler:
    """Turns whatever a caller gives as a filter into a :class:`NativeFilter`.

    Parameters
    ----------
    row_count : int
        Rows of the index.
    store : MetadataStore or None
        None: the index has no metadata, only masks and ids filter it.
    rows : callable, optional
        The input's row of each vertex; masks need it.
    vertices_of : callable, optional
        The vertex of each of some external ids, -1 where there is none.
    """

    def __init__(
        self,
        row_count: int,
        store: MetadataStore | None = None,
        *,
        rows: Callable[[], AnyArray] | None = None,
        vertices_of: Callable[[Any], Int64Array] | None = None,
    ) -> None:
        self._row_count = row_count
        self._store = store
        self._rows = rows
        self._vertices_of = vertices_of
        self._lock = threading.Lock()
        self._programs: OrderedDict[Any, bytes] = OrderedDict()
        self._kept: OrderedDict[bytes, NativeFilter] = OrderedDict()
        self._added = 0

    def compile(self, condition: Any) -> NativeFilter:
        """Make a filter, or find it among those made before.

        Parameters
        ----------
        condition : Expr, mapping, SQL or JSON text, boolean mask, ids, or pyarrow.compute.Expression
            A mask has a bool for each row of the input, in the input's order; ids are those of the index,
            unknown ones match nothing.

        Raises
        ------
        UnknownColumnError, FilterTypeError, FilterError
        """
        if isinstance(condition, NativeFilter):
            return condition
        if isinstance(condition, Mapping):
            condition = from_dict(condition)
        elif isinstance(condition, str):
            condition = from_text(condition)
        elif isinstance(condition, Column):
            condition = Compare(condition.name, "eq", True)
        if isinstance(condition, Expr):
            return self._compiled(condition)
        if isinstance(condition, pc.Expression):
            return self._evaluated(condition)
        return self._listed(condition)

    @property
    def store(self) -> MetadataStore | None:
        """The metadata that conditions are about."""
        return self._store

    @property
    def memory_bytes(self) -> int:
        """Memory that filters take: matches of those kept, and what columns need beside their files."""
        with self._lock:
            kept = list(self._kept.values())
        columns = 0 if self._store is None else self._store.resident_bytes
        return columns + sum(one.memory_bytes for one in kept)

    def _weigh(self) -> None:
        """Forget the oldest filters as long as all matches together take too much; searches keep theirs."""
        sizes = [(program, one.memory_bytes) for program, one in self._kept.items()]
        total = sum(size for _, size in sizes)
        limit = max(_MATCHES_BYTES_MIN, _MATCHES_BYTES_A_ROW * self._row_count)
        for program, size in sizes:
            if total <= limit:
                break
            if size:
                del self._kept[program]
                total -= size

    def compile_matches(self, matches: AnyArray) -> NativeFilter:
        """A filter of a bool for each vertex."""
        return self._masked(matches)

    def close(self) -> None:
        """Forget the filters that were kept."""
        with self._lock:
            self._programs.clear()
            self._kept.clear()

    # A tree is looked up as it is written, then as what it means: its program.

    def _compiled(self, expr: Expr) -> NativeFilter:
        key = expr.key
        with self._lock:
            program = self._programs.get(key)
            if program is not None:
                self._programs.move_to_end(key)
        if program is None:
            program = compile_program(expr, {} if self._store is None else self._store.filter_columns)
        with self._lock:
            made = self._kept.get(program)
            if made is not None:
                self._kept.move_to_end(program)
        if made is None:
            made = self._from_program(program)
        with self._lock:
            made = self._kept.setdefault(program, made)  # another thread may have been first
            self._programs[key] = program
            self._added += 1
            if self._added % _WEIGHED_EVERY == 0:
                self._weigh()
            for kept in (self._kept, self._programs):
                if len(kept) > _KEPT:
                    kept.popitem(last=False)
        return made

    def _from_program(self, program: bytes) -> NativeFilter:
        # Without metadata only what is always or never true gets here.
        owner = NativeColumns(self._row_count) if self._store is None else self._store.native_columns
        out = _native.ffi.new("velo_filter **")
        _native.check(_native.lib.velo_filter_compile(owner.handle, program, len(program), out), "filter")
        return NativeFilter(out[0], self._row_count, owner)

    def _evaluated(self, expression: Any) -> NativeFilter:
        """A pyarrow expression, evaluated once over the columns as they were given."""
        import pyarrow.dataset as ds

        if self._store is None:
            refuse(UnknownColumnError, "the index was built without metadata")
        try:
            table = self._store.table()
            mask = ds.dataset(table).to_table(columns={"mask": expression}).column(0)
        except (pa.ArrowException, KeyError, TypeError) as error:
            kind = UnknownColumnError if "No match for FieldRef" in str(error) else FilterError
            refuse(kind, f"the pyarrow expression cannot be evaluated: {error}")
        if not pa.types.is_boolean(mask.type):
            refuse(FilterTypeError, f"the pyarrow expression gives {mask.type}, not bool")
        return self._masked(np.asarray(mask.fill_null(False)))

    def _listed(self, given: Any) -> NativeFilter:
        """A mask over rows, or ids."""
        array = _array_of(given)
        if isinstance(array, pa.Array) and pa.types.is_boolean(array.type):
            array = np.asarray(array.fill_null(False))
        if isinstance(array, np.ndarray) and array.dtype == bool:
            if array.shape != (self._row_count,):
                refuse(FilterError, f"a mask of shape {array.shape} was given for {self._row_count} rows")
            if self._rows is None:
                refuse(
                    FilterError, "this index does not know the rows of its input, so a mask cannot be placed"
                )
            return self._masked(array[self._rows()])
        if self._vertices_of is None:
            refuse(FilterError, "this index has no ids to filter by")
        vertices = self._vertices_of(array)
        mask = np.zeros(self._row_count, bool)
        mask[vertices[vertices >= 0]] = True
        return self._masked(mask)

    def _masked(self, mask: AnyArray) -> NativeFilter:
        bits = np.packbits(mask, bitorder="little")
        out = _native.ffi.new("velo_filter **")
        pointer = _native.pointer("uint8_t", bits) if len(bits) else _native.ffi.NULL
        _native.check(_native.lib.velo_filter_mask(pointer, self._row_count, out), "filter")
        return NativeFilter(out[0], self._row_count)


def _array_of(given: Any) -> Any:
    """A mask or ids as a numpy or Arrow array."""
    if isinstance(given, pa.ChunkedArray):
        return given.combine_chunks()
    if isinstance(given, pa.Array | np.ndarray):
        return given
    to_numpy = getattr(given, "to_numpy", None)  # pandas, polars
    if callable(to_numpy):
        column = np.asarray(to_numpy())
        return pa.array(column.tolist()) if column.dtype == object else column
    array: Any
    if isinstance(given, set | frozenset | range):
        given = list(given)
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        kinds = "an expression of velo.col, a dict, SQL, a mask, ids or a pyarrow expression"
        refuse(FilterTypeError, f"a {type(given).__name__} is no filter; it takes {kinds}")
    try:
        array = np.zeros(0, np.int64) if len(given) == 0 else pa.array(given)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        refuse(FilterTypeError, f"a list is a mask of bool or ids, all whole numbers or all strings: {error}")
    return array
