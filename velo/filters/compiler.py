"""Compilation of filters into native programs, with a cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo import _native
from velo.errors import FilterError, FilterTypeError, InvalidArgumentError, UnknownColumnError
from velo.filters import program as programs
from velo.filters.arrow_values import one_array, truths_of
from velo.filters.bind import Binder
from velo.filters.columns import FilterColumn
from velo.filters.dicts import from_dict, from_json
from velo.filters.expressions import Column
from velo.filters.native import NativeColumns, NativeFilter
from velo.filters.sql import from_sql
from velo.filters.tree import And, Expr, Ids, Mask, as_condition
from velo.filters.values import refuse
from velo.types import AnyArray, Int64Array

#: Compiled filters kept by an index.
_KEPT: Final = 256
#: Memory limit of all their matches together, checked after every 16 new filters.
_MATCHES_BYTES_A_ROW: Final = 2
_MATCHES_BYTES_MIN: Final = 1 << 20
_WEIGHED_EVERY: Final = 16


class Columns(Protocol):
    """The metadata of an index, for filters and for results of filtered searches."""

    @property
    def filter_columns(self) -> Mapping[str, FilterColumn]:
        """The columns by name, as filters see them."""

    @property
    def native_columns(self) -> NativeColumns:
        """The library's view of the columns."""

    @property
    def resident_bytes(self) -> int:
        """Memory beside the mapped files."""

    def made(self, name: str, of: str) -> FilterColumn | None:
        """A column made of a stored one (:mod:`velo.filters.made`), or None where there is none."""

    def table(self) -> Any:
        """All rows in placement order, as they were given."""

    def rows(self, vertices: AnyArray, columns: Sequence[str] | None = None) -> Any:
        """Some rows, as they were given."""


class FilterCompiler:
    """Turns anything that a caller gives as a filter into a :class:`NativeFilter`.

    `store` is None for an index without metadata: only masks and ids filter it. `rows` returns the input's
    row of each vertex, for masks, and `vertices_of` the vertex of each id (-1: none). With
    `unknown_is_missing` a column that does not exist is null in every row instead of being an error.
    """

    def __init__(
        self,
        row_count: int,
        store: Columns | None = None,
        *,
        rows: Callable[[], AnyArray] | None = None,
        vertices_of: Callable[[Any], Int64Array] | None = None,
        unknown_is_missing: bool = False,
    ) -> None:
        self._row_count = row_count
        self._store = store
        self._rows = rows
        self._vertices_of = vertices_of
        self._lock = threading.Lock()
        self._binder = Binder(
            {} if store is None else store.filter_columns,
            None if store is None else store.made,
            self._rows_of,
            unknown_is_missing=unknown_is_missing,
        )
        self._programs: OrderedDict[Any, Any] = OrderedDict()
        self._kept: OrderedDict[Any, NativeFilter] = OrderedDict()
        self._added = 0

    def compile(self, condition: Any) -> NativeFilter:
        """Compile a filter, or return it from the cache.

        A mask has a bool for each row of the input, in the input's order. Unknown ids match nothing.
        """
        if isinstance(condition, NativeFilter):
            return condition
        condition = read_condition(condition)
        if isinstance(condition, Expr):
            return self._compiled(condition)
        if isinstance(condition, pc.Expression):
            return self._evaluated(condition)
        return self._masked(self._listed(condition))

    @property
    def store(self) -> Columns | None:
        """The metadata that conditions are about."""
        return self._store

    @property
    def memory_bytes(self) -> int:
        """Memory of filters: matches of those kept, and of columns beside their files."""
        with self._lock:
            kept = list(self._kept.values())
        columns = 0 if self._store is None else self._store.resident_bytes
        return columns + sum(one.memory_bytes for one in kept)

    def _weigh(self) -> None:
        """Drop the oldest filters while all matches together take too much memory; searches keep theirs."""
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
        node: programs.Node | None = None
        if program is None:
            node = self._bound(expr)
            if programs.has_rows(node):  # what a caller listed is as large as the index: not kept
                return self._masked(self._passing(node))
            # Derived columns have owners of their own, so there is no program over all of them.
            program = programs.program_of(node) if programs.owners_of(node) <= {None} else ("made", key)
        with self._lock:
            made = self._kept.get(program)
            if made is not None:
                self._kept.move_to_end(program)
        if made is None and isinstance(program, bytes):
            made = self._from_program(program)
        elif made is None:
            made = self._masked(self._passing(self._bound(expr) if node is None else node))
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

    def _bound(self, expr: Expr) -> programs.Node:
        return programs.decided(self._binder.bind(expr), self._of_all)

    def _of_all(self, node: programs.Scalar | programs.ListNull | programs.ListContains) -> bool | None:
        """The truth of a condition whose column has one value for all rows; None for other columns."""
        owner = node.column.owner
        if owner is None or owner.row_count != 1:
            return None
        return bool(self._from_program(programs.program_of(node), owner).matches()[0])

    def _passing(self, node: programs.Node) -> AnyArray:
        """A bool for each vertex, by parts that the library can look at: columns of one owner at a time."""
        if isinstance(node, programs.Rows):
            return node.passes
        owners = programs.owners_of(node)
        if len(owners) <= 1 and not programs.has_rows(node):
            owner = next(iter(owners), None)
            return self._from_program(programs.program_of(node), owner).matches()
        assert isinstance(node, programs.Join)
        whole: dict[Any, list[programs.Node]] = {}
        parts: list[AnyArray] = []
        for child in node.children:
            owners = programs.owners_of(child)
            if len(owners) == 1 and not programs.has_rows(child):
                whole.setdefault(id(next(iter(owners))), []).append(child)
            else:
                parts.append(self._passing(child))
        parts += [self._passing(programs.joined(node.every, children)) for children in whole.values()]
        join: Any = np.logical_and if node.every else np.logical_or
        passes: AnyArray = join.reduce(parts)
        return passes

    def _from_program(self, program: bytes, owner: NativeColumns | None = None) -> NativeFilter:
        # Without metadata only what is always or never true gets here.
        if owner is None:
            owner = NativeColumns(self._row_count) if self._store is None else self._store.native_columns
        out = _native.ffi.new("velo_filter **")
        _native.check(_native.lib.velo_filter_compile(owner.handle, program, len(program), out), "filter")
        return NativeFilter(out[0], owner.row_count, owner)

    def _rows_of(self, leaf: Ids | Mask) -> AnyArray:
        """A bool for each vertex: the rows that a tree lists by id or mask."""
        if isinstance(leaf, Ids):
            return self._listed(list(leaf.values))
        passes = self._listed(leaf.rows)
        if not is_mask(_array_of(leaf.rows)):
            refuse(FilterTypeError, "a mask has a bool for every row; ids go into velo.ids")
        return passes

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
        return self._masked(truths_of(one_array(mask)))

    def _listed(self, values: Any) -> AnyArray:
        """A bool for each vertex, of a mask over rows or of ids."""
        array = _array_of(values)
        if is_mask(array):
            if isinstance(array, pa.Array):
                array = truths_of(array)
            if array.shape != (self._row_count,):
                refuse(FilterError, f"a mask of shape {array.shape} was given for {self._row_count} rows")
            if self._rows is None:
                refuse(
                    FilterError, "this index does not know the rows of its input, so a mask cannot be placed"
                )
            placed: AnyArray = array[self._rows()]
            return placed
        if self._vertices_of is None:
            refuse(FilterError, "this index has no ids to filter by")
        vertices = self._vertices_of(array)
        mask = np.zeros(self._row_count, bool)
        mask[vertices[vertices >= 0]] = True
        return mask

    def _masked(self, mask: AnyArray) -> NativeFilter:
        bits = np.packbits(mask, bitorder="little")
        out = _native.ffi.new("velo_filter **")
        pointer = _native.pointer("uint8_t", bits) if len(bits) else _native.ffi.NULL
        _native.check(_native.lib.velo_filter_mask(pointer, self._row_count, out), "filter")
        return NativeFilter(out[0], self._row_count)


def _array_of(values: Any) -> Any:
    """A mask or ids as a numpy or Arrow array."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array | np.ndarray):
        return values
    to_numpy = getattr(values, "to_numpy", None)  # pandas, polars
    if callable(to_numpy):
        column = np.asarray(to_numpy())
        return pa.array(column.tolist()) if column.dtype == object else column
    array: Any
    if isinstance(values, set | frozenset | range):
        values = list(values)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        kinds = "an expression of velo.col, a dict, SQL, a mask, ids or a pyarrow expression"
        refuse(FilterTypeError, f"a {type(values).__name__} is not a filter; it takes {kinds}")
    try:
        array = np.zeros(0, np.int64) if len(values) == 0 else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        refuse(FilterTypeError, f"a list is a mask of bool or ids, all whole numbers or all strings: {error}")
    return array


def read_condition(condition: Any) -> Any:
    """The tree of a filter that is a dict, text or a column; anything else as it is."""
    if isinstance(condition, Mapping):
        return from_dict(condition)
    if isinstance(condition, str):
        return from_text(condition)
    if isinstance(condition, Column):
        return as_condition(condition)
    return condition


def from_text(text: str) -> Expr:
    """Read a filter from text: JSON where it begins with a brace, SQL otherwise.

    Parameters
    ----------
    text : str
        As :func:`velo.filters.from_json` or :func:`velo.filters.from_sql` take it.

    Returns
    -------
    Expr
    """
    return from_json(text) if text.lstrip().startswith("{") else from_sql(text)


def _one_each(filters: Any) -> bool:
    """True for a list of filters; a flat list of numbers, strings or bools is ids or a mask: one filter."""
    if isinstance(filters, np.ndarray):
        return filters.ndim == 2 or filters.dtype == object
    if not isinstance(filters, list | tuple):
        return False
    return not all(isinstance(one, str | int | np.integer | np.bool_) for one in filters) or len(filters) == 0


def filters_of(filters: Any, compiler: FilterCompiler) -> list[NativeFilter | None]:
    """Compile the filters of a search: none, one for all queries, or one (or None) for each query."""
    if filters is None:
        return []
    if not _one_each(filters):
        return [compiler.compile(filters)]
    if len(filters) == 0:
        raise FilterError(
            "filter: a list holds a filter for each query, this one is empty", argument="filter"
        )
    each: Sequence[Any] | AnyArray = filters
    # The same object for several queries, such as one mask, is compiled once; equal conditions are anyway.
    known: dict[int, NativeFilter] = {}
    compiled: list[NativeFilter | None] = []
    for one in each:
        if one is None:
            compiled.append(None)
        elif isinstance(one, Mapping) or isinstance(filters, np.ndarray):
            compiled.append(compiler.compile(one))
        else:
            if id(one) not in known:
                known[id(one)] = compiler.compile(one)
            compiled.append(known[id(one)])
    return compiled


def trees_of(filters: Any, count: int, compiler: FilterCompiler) -> list[Expr | NativeFilter | None]:
    """The filter of each query: a tree where it can be written as one, else the compiled filter."""
    if filters is None:
        return [None] * count
    if not _one_each(filters):
        return [_tree(filters, compiler)] * count
    filters_of(filters, compiler)
    if len(filters) not in (1, count):
        raise InvalidArgumentError(
            f"{len(filters)} filters were given for {count} queries", argument="filter"
        )
    trees = [None if one is None else _tree(one, compiler) for one in filters]
    return trees * count if len(trees) == 1 else trees


def _tree(condition: Any, compiler: FilterCompiler) -> Expr | NativeFilter:
    condition = read_condition(condition)
    compiled = compiler.compile(condition)
    return condition if isinstance(condition, Expr) else compiled


def restricted(first: Expr | NativeFilter | None, condition: Expr, compiler: FilterCompiler) -> Any:
    """A filter that asks for `condition` as well."""
    if first is None:
        return condition
    if isinstance(first, Expr):
        return And((first, condition))
    return compiler.compile_matches(first.matches() & compiler.compile(condition).matches())


def is_mask(given: Any) -> bool:
    """Whether a filter is a bool for each row."""
    if isinstance(given, np.ndarray):
        return bool(given.dtype == np.bool_)
    if isinstance(given, pa.Array | pa.ChunkedArray):
        return bool(pa.types.is_boolean(given.type))
    if isinstance(given, list | tuple):
        return len(given) > 0 and all(isinstance(one, bool | np.bool_) for one in given)
    return str(getattr(given, "dtype", None)) in ("bool", "boolean")


def of_rows(condition: Any, start: int, stop: int, row_count: int) -> Any:
    """Cut a filter to rows `start` to `stop` of an input of `row_count` rows: only masks change."""
    if isinstance(condition, Mask):
        return Mask(of_rows(condition.rows, start, stop, row_count))
    if isinstance(condition, Expr):
        tree: Any = condition
        if children := getattr(tree, "children", ()):
            return replace(tree, children=tuple(of_rows(one, start, stop, row_count) for one in children))
        if (child := getattr(tree, "child", None)) is not None:
            return replace(tree, child=of_rows(child, start, stop, row_count))
        return tree
    if not is_mask(condition):
        return condition
    if len(condition) != row_count:
        refuse(FilterError, f"a mask of {len(condition)} rows was given for {row_count}")
    return getattr(condition, "iloc", condition)[start:stop]  # pandas counts rows there
