"""External ids: int64 or string, one a vector, stored in placement order in ``ids.arrow``."""

from __future__ import annotations

import bisect
import contextlib
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import CorruptIndexError, DuplicateIdError, InvalidArgumentError, UnknownIdError
from velo.filters.arrow_values import arrow_of, is_string, numpy_of, texts_of, valid_of
from velo.folder.replace import durable_file
from velo.folder.stored import check_permutation, damage, mapped_batch, released_batch, unnamed_array
from velo.types import AnyArray, Int64Array

FILE_NAME = "ids.arrow"

#: Rows of a page are first searched for among this number of vertices.
_PAGE_STEP = 1024

#: Lookups after which resident pages of a mapped file are given back. Linux maps 64 KiB or more for each.
_LOOKUPS_RESIDENT = 16

#: Ids that are placed or ordered at once: temporary arrays stay small.
_IDS_AT_ONCE = 1 << 16

_ID_MAX = int(np.iinfo(np.int64).max)

#: Value of a missing hit in results.
NO_ID = -1

#: A checked column of ids: int64, or an Arrow array of large strings (``Any`` to the stubs of pyarrow).
IdColumn: TypeAlias = Int64Array | Any
#: The ids of some rows.
IdsOfRows: TypeAlias = Callable[[AnyArray], IdColumn]


def given_ids(ids: Any, row_count: int) -> IdColumn:
    """Check the ids that a caller gave: one for each row, none missing, no duplicates."""
    column = _column(ids)
    check_each(column, row_count)
    twice = _first_duplicate(column)
    if twice is not None:
        row, first = twice
        raise DuplicateIdError(
            f"ids: {_shown(column, row)} of row {row} was given to row {first} already",
            argument="ids",
            row=row,
        )
    return column


def check_each(column: IdColumn, row_count: int) -> None:
    """Refuse another number of ids than rows, and the id of missing hits."""
    if len(column) != row_count:
        raise InvalidArgumentError(f"{len(column)} ids were given for {row_count} vectors", argument="ids")
    if isinstance(column, np.ndarray) and len(column) and bool((column == NO_ID).any()):
        row = int(np.flatnonzero(column == NO_ID)[0])
        raise InvalidArgumentError(
            f"ids: row {row} has the id {NO_ID}, which stands for a missing hit in results",
            argument="ids",
            row=row,
        )


def checked_ids(ids: Any) -> IdColumn:
    """Check ids to look up: all integers or all strings, duplicates allowed; a single id is a list of one.

    A UUID becomes its text.
    """
    if isinstance(ids, str | int | np.integer | UUID) and not isinstance(ids, bool):
        ids = [ids]
    if not hasattr(ids, "__len__"):
        raise InvalidArgumentError(f"ids must be a list of ids, not {ids!r:.80}", argument="ids")
    if not isinstance(ids, np.ndarray | pa.Array | pa.ChunkedArray) and len(ids) == 0:
        return np.zeros(0, np.int64)
    return _column(ids)


def _column(ids: Any) -> IdColumn:
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu":
        return _int64(ids)
    if not isinstance(ids, pa.Array | pa.ChunkedArray):
        if isinstance(ids, str | bytes | bytearray | Mapping):
            raise InvalidArgumentError(f"ids must be a list of ids, not {ids!r:.80}", argument="ids")
        try:
            ids = _plain_ids(ids)
            if isinstance(ids, np.ndarray) and ids.dtype == np.int64:
                return _int64(ids)
            ids = ids if isinstance(ids, pa.Array) else pa.array(ids)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"ids must be whole numbers or strings: {error}", argument="ids"
            ) from error
    if isinstance(ids, pa.ChunkedArray):
        ids = ids.combine_chunks()
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    if str(ids.type) == "extension<arrow.uuid>":
        ids = texts_of([None if one is None else str(one) for one in ids.to_pylist()])
    if ids.null_count:
        row = int(np.flatnonzero(~valid_of(ids))[0])
        raise InvalidArgumentError(f"ids: row {row} is null", argument="ids", row=row)
    if pa.types.is_integer(ids.type):
        return _int64(numpy_of(ids, np.dtype(str(ids.type))))
    if is_string(ids.type):
        return ids.cast(pa.large_string())
    raise InvalidArgumentError(f"ids must be whole numbers or strings, not {ids.type}", argument="ids")


def _plain_ids(ids: Any) -> Any:
    """Ids of Python without what Arrow takes for something else."""
    if isinstance(ids, np.ndarray) and ids.dtype != np.object_:
        return ids
    ids = list(ids)
    kinds = set(map(type, ids))
    if not kinds.isdisjoint((bool, np.bool_)):
        raise TypeError("a bool is neither")
    if UUID in kinds:
        ids = [str(one) if isinstance(one, UUID) else one for one in ids]
        kinds = set(map(type, ids))
    if kinds == {int}:
        with contextlib.suppress(OverflowError):  # Arrow says which
            return np.array(ids, np.int64)
    return texts_of(ids) if kinds == {str} else ids


def _int64(values: AnyArray) -> Int64Array:
    if values.ndim != 1:
        raise InvalidArgumentError(f"ids must have the shape (n,), not {values.shape}", argument="ids")
    if values.dtype == np.uint64 and len(values) and int(values.max()) > 2**63 - 1:
        row = int(values.argmax())
        raise InvalidArgumentError(
            f"ids: {int(values[row])} of row {row} does not fit in 64 signed bits", argument="ids", row=row
        )
    return values.astype(np.int64, copy=False)


def _first_duplicate(column: IdColumn) -> tuple[int, int] | None:
    """The first row whose id an earlier row has, and that row."""
    if len(column) < 2:
        return None
    if isinstance(column, np.ndarray):
        keys: AnyArray = column
        if bool(np.all(keys[1:] > keys[:-1])):
            return None
    else:
        encoded = column.dictionary_encode()
        if len(encoded.dictionary) == len(column):
            return None
        keys = numpy_of(encoded.indices, np.int32)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1]) + 1
    if len(repeated) == 0:
        return None
    row = int(order[repeated].min())
    return row, int(np.flatnonzero(keys == keys[row])[0])


def _shown(column: IdColumn, row: int) -> str:
    return str(int(column[row])) if isinstance(column, np.ndarray) else repr(column[row].as_py())


def write_ids(folder: Path, column: IdColumn | IdsOfRows | None, rows: AnyArray, first_row: int = 0) -> str:
    """Write ``ids.arrow`` in placement order, and return the kind: "row", "int64" or "string".

    `column` is None for row numbers, which begin at `first_row`; ``rows[vertex]`` is the vertex's row of the
    input.
    """
    if column is None:
        kind = "row"
        numbers = rows.astype(np.int64)
        numbers += first_row
        placed: Any = arrow_of(numbers)
    else:
        placed = _placed(column, rows, folder) if callable(column) else take_ids(column, rows)
        kind = "int64" if isinstance(placed, np.ndarray) else "string"
        if isinstance(placed, np.ndarray):
            placed = arrow_of(placed)
    columns = {"id": placed}
    if column is not None:
        columns["row"] = arrow_of(rows)  # for masks, which go by row
    batch = pa.record_batch(columns)
    with durable_file(folder / FILE_NAME) as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return kind


def take_ids(column: IdColumn, rows: AnyArray) -> IdColumn:
    """The ids of some rows."""
    if isinstance(column, np.ndarray):
        return column[rows]
    taken = column.take(arrow_of(rows))
    return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken


def _placed(ids_of: IdsOfRows, rows: AnyArray, folder: Path) -> IdColumn:
    """The ids of all `rows`, which a function returns for some."""
    parts: list[Any] = []
    numbers, _ = unnamed_array(folder, len(rows), np.int64)
    for start in range(0, len(rows), _IDS_AT_ONCE):
        some = _column(ids_of(rows[start : start + _IDS_AT_ONCE]))
        if isinstance(some, np.ndarray):
            numbers[start : start + len(some)] = some
        else:
            parts.append(some)
    return pa.concat_arrays(parts) if parts else numbers


class Ids:
    """The ids of an open index, mapped from its file. `kind_known`: some row has decided the kind.

    `is_released`: Few of the file's pages stay resident. The order of the ids is in a file without a name, if
      the folder is writable. Each lookup takes a few microseconds more.
    """

    kind_known: bool = True
    _folder: Path | None = None
    #: Their pages are resident only during a call.
    _mapped: mmap.mmap | None = None
    _mapped_order: mmap.mmap | None = None

    def __init__(
        self, folder: Path, row_count: int, first_row: int = 0, *, is_released: bool = False
    ) -> None:
        self.first_row = first_row
        if is_released:
            self._folder = folder
            batch, self._mapped = released_batch(folder / FILE_NAME)
        else:
            batch = mapped_batch(folder / FILE_NAME)
        with damage(FILE_NAME):
            column = batch.column("id")
            rows = batch.column("row") if "row" in batch.schema.names else None
            if len(column) != row_count or column.null_count or (rows is not None and rows.null_count):
                raise CorruptIndexError(
                    f"{FILE_NAME} holds {len(column)} ids for {row_count} vectors", file=FILE_NAME
                )
            self._numbers: Int64Array | None = None
            self._strings: Any = None
            if pa.types.is_int64(column.type):
                self.kind = "int64"
                self._numbers = numpy_of(column, np.int64)
            elif pa.types.is_large_string(column.type):
                self.kind = "string"
                self._strings = column
            else:
                raise CorruptIndexError(f"{FILE_NAME} holds {column.type}", file=FILE_NAME)
            self._rows: AnyArray | None = None
            if rows is not None:
                if not pa.types.is_uint32(rows.type):
                    raise CorruptIndexError(f"{FILE_NAME} holds rows of {rows.type}", file=FILE_NAME)
                self._rows = numpy_of(rows, np.uint32)
            elif self._numbers is None:
                raise CorruptIndexError(f"{FILE_NAME} has no rows", file=FILE_NAME)
        self._rows_checked = False
        self._order: AnyArray | None = None

    @property
    def column(self) -> IdColumn:
        """The id of each vertex."""
        return self._strings if self._numbers is None else self._numbers

    @property
    def numbered(self) -> bool:
        """Whether the ids are the rows' numbers, because none were given."""
        return self._rows is None

    def check_kind(self, column: IdColumn, argument: str) -> None:
        """Refuse ids of another kind than this index has; no ids, or no rows, have no kind."""
        if self.kind_known and len(column) and isinstance(column, np.ndarray) != (self.kind == "int64"):
            wanted = "whole numbers" if self.kind == "int64" else "strings"
            raise InvalidArgumentError(f"{argument}: the ids of this index are {wanted}", argument=argument)

    def rows(self) -> AnyArray:
        """The row of the input, counted from the first of this index, that each vertex holds."""
        rows = self._rows
        if rows is None:
            assert self._numbers is not None
            rows = self._numbers - self.first_row if self.first_row else self._numbers
        self.check_rows()  # masks and metadata are put into their order by it
        return rows

    def check_rows(self) -> None:
        """Refuse rows that are no permutation."""
        if self._rows_checked:
            return
        if self._rows is not None:
            check_permutation(self._rows, FILE_NAME)
        else:
            assert self._numbers is not None
            check_permutation(self._numbers, FILE_NAME, self.first_row)
        self._rows_checked = True

    def of(self, vertices: Int64Array, complete: bool = False) -> AnyArray:
        """The ids of vertices, an array of any shape: -1 (strings: None) for -1, unless it is `complete`."""
        if self._mapped is None:
            return self._of(vertices, complete)
        flat = vertices.reshape(-1)
        found = np.empty(len(flat), np.int64 if self._strings is None else object)
        # Lookups of one page follow one another.
        order = np.argsort(flat) if len(flat) > _LOOKUPS_RESIDENT else np.arange(len(flat))
        for start in range(0, len(flat), _LOOKUPS_RESIDENT):
            some = order[start : start + _LOOKUPS_RESIDENT]
            found[some] = self._of(flat[some], complete)
            self._mapped.madvise(mmap.MADV_DONTNEED)
        return found.reshape(vertices.shape)

    def _of(self, vertices: Int64Array, complete: bool) -> AnyArray:
        if self._numbers is not None:
            if complete:
                ids: AnyArray = self._numbers[
                    vertices
                ]  # unlike take(), keeps the interpreter's lock for a few
                return ids
            if len(self._numbers) == 0:
                return np.full(vertices.shape, -1, np.int64)
            missing = vertices < 0
            found = self._numbers.take(vertices, mode="clip")
            if missing.any():
                found[missing] = -1
            return found
        flat = vertices.reshape(-1)
        found = np.empty(len(flat), object)
        found[:] = self._strings.take(arrow_of(flat, flat >= 0)).to_pylist()
        return found.reshape(vertices.shape)

    def vertices(self, ids: Any, argument: str = "ids") -> Int64Array:
        """The vertex of each id."""
        found = self.find(ids, argument)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            at = int(unknown[0])
            value = ids[at] if isinstance(ids, Sequence | np.ndarray) else list(ids)[at]
            raise UnknownIdError(f"no vector has the id {value!r}", argument=argument, row=at)
        return found

    def find(self, ids: Any, argument: str = "ids") -> Int64Array:
        """The vertex of each id, -1 where no vector has it."""
        if isinstance(ids, str | bytes) or not hasattr(ids, "__len__"):
            raise InvalidArgumentError(f"{argument} must be a list of ids, not {ids!r}", argument=argument)
        if len(ids) == 0:
            return np.zeros(0, np.int64)
        column = _column(ids)
        self.check_kind(column, argument)
        if isinstance(column, np.ndarray):
            return self._find_numbers(column)
        positions = pc.index_in(self._strings, value_set=column)
        placed = np.flatnonzero(valid_of(positions))
        found = np.full(len(column), -1, np.int64)
        found[numpy_of(positions.drop_null(), np.int32)] = placed
        # An id asked for twice has one position in the value set: the first.
        first = numpy_of(pc.index_in(column, value_set=column), np.int32)
        self._release()
        vertices: Int64Array = found[first]
        return vertices

    def page(self, after: int | str | None, most: int, passing: AnyArray | None) -> Int64Array:
        """At most `most` vertices in the order of their ids, which no merge changes, after the id `after`."""
        order = self._ordered()
        found = self._page(order, after, most, passing)
        self._release()
        return found

    def _page(
        self, order: AnyArray, after: int | str | None, most: int, passing: AnyArray | None
    ) -> Int64Array:
        start = 0
        if isinstance(after, str):
            strings = self._strings
            start = bisect.bisect_right(order, after, key=lambda vertex: strings[int(vertex)].as_py())
        elif after is not None:
            start = len(order) if after == _ID_MAX else int(self._count_below(np.array([after + 1]))[0])
        if passing is None:
            return order[start : start + most].astype(np.int64)
        found, step = np.zeros(0, np.int64), max(_PAGE_STEP, most)
        while len(found) < most and start < len(order):
            looked_at = order[start : start + step]
            found = np.concatenate([found, looked_at[passing[looked_at]].astype(np.int64)])
            start, step = start + step, 2 * step
        return found[:most]

    def _ordered(self) -> AnyArray:
        """The vertices by id."""
        if self._order is None:
            order, mapped = self._empty_order()
            if self._numbers is None:
                order[:] = numpy_of(pc.sort_indices(self._strings), np.uint64)
            elif not _put_order_of_consecutive(self._numbers, order):
                order[:] = np.argsort(self._numbers)
            self._mapped_order = mapped
            self._order = order
        return self._order

    def _empty_order(self) -> tuple[AnyArray, mmap.mmap | None]:
        count = len(self.column)
        if self._folder is None:
            return np.empty(count, np.uint32), None
        return unnamed_array(self._folder, count, np.uint32)

    def _release(self) -> None:
        """Remove the pages that a call has touched from the resident set."""
        for mapped in (self._mapped, self._mapped_order):
            if mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)

    def _count_below(self, numbers: Int64Array) -> Int64Array:
        """For each number, how many ids are smaller. Unlike ``np.searchsorted``, which would copy the order
        of all ids to int64, it allocates by the length of `numbers` alone.
        """
        assert self._numbers is not None
        order = self._ordered()
        below = np.zeros(len(numbers), np.int64)
        for bit in reversed(range(len(order).bit_length())):
            more = below + (1 << bit)
            last = order[np.minimum(more, len(order)) - 1]
            below = np.where((more <= len(order)) & (self._numbers[last] < numbers), more, below)
        return below

    def _find_numbers(self, numbers: Int64Array) -> Int64Array:
        assert self._numbers is not None
        if len(self._numbers) == 0:
            return np.full(len(numbers), -1, np.int64)
        order = self._ordered()
        vertices = order[np.minimum(self._count_below(numbers), len(order) - 1)].astype(np.int64)
        found = np.where(self._numbers[vertices] == numbers, vertices, -1)
        self._release()
        return found


def _put_order_of_consecutive(numbers: Int64Array, order: AnyArray) -> bool:
    """Put the order of ids without gaps, which takes no sort, into an array. False for others.

    Ids that velo gave are such.
    """
    count = len(numbers)
    if not count or int(numbers.max()) - (low := int(numbers.min())) + 1 != count:
        return False
    order[:] = count
    for start in range(0, count, _IDS_AT_ONCE):
        some = numbers[start : start + _IDS_AT_ONCE]
        order[some - low] = np.arange(start, start + len(some), dtype=np.uint32)
    return int(order.max()) < count
