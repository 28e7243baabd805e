"""The delta, rows in no segment yet, and native views of live data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo import _native
from velo.filters.compiler import FilterCompiler
from velo.filters.native import NativeFilter
from velo.folder.ids import Ids, checked_ids
from velo.folder.metadata import MetadataStore, TableColumns
from velo.fulltext.file import Words
from velo.fulltext.opening import texts_of
from velo.segments.added import LiveColumns
from velo.segments.columns import read_batch, storage_schema
from velo.types import AnyArray, Int64Array

#: What the name of a segment's folder, or its uuid, takes at most, as velo.h says.
_NAME_BYTES: Final = 65


def segment_names(ask: Callable[..., int], handle: Any, segment: int) -> tuple[str, str]:
    """Name and uuid of a segment, of ``velo_live_segment`` or ``velo_live_view_segment``."""
    name = _native.ffi.new("char[]", _NAME_BYTES)
    uuid = _native.ffi.new("char[]", _NAME_BYTES)
    _native.check(ask(handle, segment, name, uuid, _NAME_BYTES))
    return _native.text(name), _native.text(uuid)


class NativeView:
    """A ``velo_live_view``, taken now; closed when nothing refers to it any more."""

    def __init__(self, live: Any) -> None:
        out = _native.ffi.new("velo_live_view **")
        _native.check(_native.lib.velo_live_view_take(live, out))
        self.handle = _native.ffi.gc(out[0], _native.lib.velo_live_view_close)
        info = _native.new("velo_live_view_info")
        _native.check(_native.lib.velo_live_view_info_get(self.handle, info))
        self.layout = int(info.layout)
        self.sequence = int(info.sequence)
        self.schema_version = int(info.schema_version)
        #: Whether no row came since the build; some may be deleted.
        self.is_as_built = bool(info.is_as_built)
        self.segment_count = int(info.segment_count)
        self.record_count = int(info.record_count)
        self.delta_rows = int(info.delta_rows)
        self.delta_dead = int(info.delta_dead_rows)

    def segment(self, number: int) -> tuple[str, str]:
        """Name and uuid of a segment."""
        return segment_names(_native.lib.velo_live_view_segment, self.handle, number)

    def rows(self, segment: int, row_count: int) -> NativeFilter | None:
        """The rows of a segment that live; None: all of them."""
        out = _native.ffi.new("velo_filter **")
        _native.check(_native.lib.velo_live_view_rows(self.handle, segment, out))
        return None if out[0] == _native.ffi.NULL else NativeFilter(out[0], row_count)

    def alive(self) -> AnyArray:
        """Of each row of the delta whether it lives, as an array of bool."""
        bits = np.empty((self.delta_rows + 7) // 8, np.uint8)
        if len(bits):
            pointer = _native.pointer("uint8_t", bits, writable=True)
            _native.check(_native.lib.velo_live_view_dead(self.handle, pointer))
        return ~np.unpackbits(bits, count=self.delta_rows, bitorder="little").astype(bool)

    def record(self, number: int) -> Any:
        """A ``velo_live_record``, which points into the view."""
        record = _native.new("velo_live_record")
        _native.check(_native.lib.velo_live_view_record(self.handle, number, record))
        return record

    @staticmethod
    def bytes(pointer: Any, size: int) -> Any:
        """Memory of a record; the caller keeps the view."""
        return _native.ffi.buffer(pointer, int(size)) if size else b""

    def asked(
        self, first: int, recall: float, list_size: int, masks: Sequence[AnyArray | None]
    ) -> tuple[Any, Any]:
        """A ``velo_delta``, and the objects that must outlive it.

        `recall`: 1: every row is measured. Below, at least 0.99 of the nearest are found.
        `list_size`: Candidates that a walk keeps at least; 0: as many as the recall takes.
        """
        ffi = _native.ffi
        delta = _native.new("velo_delta")
        delta.view, delta.first = self.handle, first
        delta.recall, delta.list_size = recall, list_size
        bits = [None if mask is None else np.packbits(mask, bitorder="little") for mask in masks]
        pointers = [ffi.NULL if one is None else _native.pointer("uint8_t", one) for one in bits]
        given = ffi.new("uint8_t *[]", pointers) if pointers else ffi.NULL
        delta.masks, delta.mask_count = given, len(pointers)
        return delta, (self, given, pointers, bits)

    def search(self, delta: Any, queries: AnyArray, k: int) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
        """The nearest rows of the delta alone: rows, distances, counts, and how many rows were measured."""
        count = len(queries)
        rows = np.empty((count, k), np.int64)
        distances = np.empty((count, k), np.float32)
        counts = np.empty(count, np.uint32)
        looks = np.empty(count, np.uint32)
        _native.check(
            _native.lib.velo_live_view_search(
                delta,
                _native.pointer("float", np.ascontiguousarray(queries)),
                count,
                k,
                _native.pointer("int64_t", rows, writable=True),
                _native.pointer("float", distances, writable=True),
                _native.pointer("uint32_t", counts, writable=True),
                _native.pointer("uint32_t", looks, writable=True),
            ),
            "queries",
        )
        return rows, distances, counts, looks


#: Records, or rows, of one stretch; a write invalidates only the records after the last stretch.
_CHUNK_RECORDS: Final = 16
_CHUNK_ROWS: Final = 4096


class DeltaIds(Ids):
    """The ids of a stretch of rows; of an id that has several the last is the row."""

    def __init__(self, column: Any) -> None:
        self._numbers = column if isinstance(column, np.ndarray) else None
        self._strings = None if isinstance(column, np.ndarray) else column
        self.kind = "int64" if self._numbers is not None else "string"
        self.kind_known = len(column) > 0
        self.first_row = 0
        self._rows = None
        self._order = None

    @cached_property
    def _places(self) -> dict[Any, int]:
        values = self._numbers.tolist() if self._numbers is not None else self._strings.to_pylist()
        return {value: row for row, value in enumerate(values)}

    def find(self, ids: Any, argument: str = "ids") -> Int64Array:
        self.check_kind(ids, argument)
        places = self._places
        wanted = ids.tolist() if isinstance(ids, np.ndarray) else ids.to_pylist()
        return np.fromiter((places.get(value, -1) for value in wanted), np.int64, len(wanted))

    def having(self, ids: Any) -> Int64Array:
        """Every row that has one of some ids."""
        from_numbers = isinstance(ids, np.ndarray)
        if len(ids) == 0 or not self.kind_known:
            return np.zeros(0, np.int64)
        self.check_kind(ids, "filter")
        if from_numbers and self._numbers is not None:
            return np.flatnonzero(np.isin(self._numbers, ids)).astype(np.int64)
        wanted = set(ids.to_pylist())
        rows = [row for row, value in enumerate(self._strings.to_pylist()) if value in wanted]
        return np.array(rows, np.int64)


class DeltaRows:
    """Some records of the delta: rows with ids, vectors, metadata, and filters over them."""

    def __init__(
        self,
        view: NativeView,
        first: int,
        last: int,
        row_count: int,
        columns: LiveColumns,
        unknown_is_missing: bool = False,
    ) -> None:
        self._view = view  # the records are its memory
        self.first, self.last = first, last
        self.n = row_count
        self._columns = columns
        self._unknown_is_missing = unknown_is_missing
        self._words_lock = threading.Lock()
        self._words: Words | None = None

    def move_to(self, view: NativeView) -> None:
        """Hold a later view of the same delta in memory."""
        self._view = view

    # Records may be as many as rows, and most views are not asked for them: each is read when it is.

    @cached_property
    def _records(self) -> list[Any]:
        return [self._view.record(number) for number in range(self.first, self.last)]

    @cached_property
    def _starts(self) -> AnyArray:
        """The first row of each record, and where the last one ends."""
        return np.cumsum([0, *(int(one.row_count) for one in self._records)])

    @cached_property
    def ids(self) -> DeltaIds:
        return DeltaIds(_ids_of(self._records, self._view))

    @cached_property
    def metadata(self) -> MetadataStore | None:
        """The rows' columns; None where the index has none."""
        schema = self._columns.schema
        if schema is None:
            return None
        batches = [self._batch_of(one) for one in self._records]
        return TableColumns(pa.Table.from_batches(batches, storage_schema(schema)), schema)

    def _batch_of(self, record: Any) -> Any:
        """The columns of a record, those with it that were added since."""
        count = int(record.row_count)
        schema, data = self._columns.in_record(self._view.bytes(record.metadata, record.metadata_size))
        batch = read_batch(data, schema, count) if schema.names else None
        return self._columns.filled(batch, count)

    @cached_property
    def compiler(self) -> FilterCompiler:
        """Makes filters over the rows."""

        ids = self.ids  # not the stretch: a circle of references would hold the delta's memory

        def vertices_of(given: Any) -> Int64Array:
            return ids.having(checked_ids(given))

        return FilterCompiler(
            self.n, self.metadata, vertices_of=vertices_of, unknown_is_missing=self._unknown_is_missing
        )

    def words(self, column: str) -> Words:
        """The words of the rows, made once."""
        assert self.metadata is not None
        with self._words_lock:
            if self._words is None:
                self._words = Words.beside(texts_of(self.metadata, column), self.n, "words of new rows")
            return self._words

    @property
    def words_bytes(self) -> int:
        """Memory of its full-text index."""
        words = self._words
        return 0 if words is None else words.memory_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of the filters and columns made so far."""
        return self.compiler.memory_bytes if "compiler" in self.__dict__ else 0

    def vectors_into(self, out: AnyArray, rows: AnyArray) -> None:
        """Copy the vectors of some rows as they were given; however long its call was, no other is copied."""
        at = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(at, kind="stable")
        numbers, firsts = np.unique(at[order], return_index=True)
        for number, inside in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            record = self._records[number]
            given = self._view.bytes(record.vectors, record.vectors_size)
            vectors = np.frombuffer(given, out.dtype).reshape(-1, out.shape[1])
            out[inside] = vectors[rows[inside] - self._starts[number]]


def _ids_of(records: Sequence[Any], view: NativeView) -> Any:
    if not records or records[0].numbers != _native.ffi.NULL:
        numbers = [
            np.frombuffer(view.bytes(one.numbers, 8 * int(one.row_count)), np.int64) for one in records
        ]
        return np.concatenate([np.zeros(0, np.int64), *numbers])
    columns: list[Any] = []
    for one in records:
        count = int(one.row_count)
        offsets = pa.py_buffer(bytes(view.bytes(one.offsets, 8 * (count + 1))))
        text = pa.py_buffer(bytes(view.bytes(one.bytes, int(one.bytes_size))))
        columns.append(pa.LargeStringArray.from_buffers(count, offsets, text))
    return pa.concat_arrays(columns)


class DeltaStretches:
    """The delta of a folder, in stretches that are kept from one view to the next.

    Whoever writes a row at a time makes a record of each, and to read a record costs about as much as to
    search: so what a search needs of them is read once and kept. Chunks of few records become one, as digits
    carry: there are few stretches, and a record is read again only a few times.
    """

    def __init__(self, columns: LiveColumns, unknown_is_missing: bool = False) -> None:
        self._columns = columns
        self._unknown_is_missing = unknown_is_missing
        #: The layout of the delta, stretches of it, and their records and rows. They change together.
        self._known: tuple[int, tuple[DeltaRows, ...], int, int] = -1, (), 0, 0

    def of(self, view: NativeView) -> list[DeltaRows]:
        """The stretches of a view, which hold all of its rows."""
        layout, kept, records, rows = self._known
        if view.layout != layout:
            kept, records, rows = (), 0, 0
        if view.record_count - records >= _CHUNK_RECORDS or view.delta_rows - rows >= _CHUNK_ROWS:
            kept = self._longer(view, kept, records)
            records, rows = view.record_count, view.delta_rows
        self._known = view.layout, kept, records, rows
        stretches = list(kept)
        for stretch in stretches:
            stretch.move_to(view)
        if view.delta_rows > rows:
            stretches.append(self._stretch(view, records, view.record_count, view.delta_rows - rows))
        return stretches

    def _longer(self, view: NativeView, kept: tuple[DeltaRows, ...], first: int) -> tuple[DeltaRows, ...]:
        """Chunks and those of all records behind them."""
        stretches, rows = list(kept), 0
        for number in range(first, view.record_count):
            rows += int(view.record(number).row_count)
            if rows >= _CHUNK_ROWS or number + 1 == view.record_count:
                stretches.append(self._stretch(view, first, number + 1, rows))
                first, rows = number + 1, 0
        while len(stretches) > 1 and _belong_together(*stretches[-2:]):
            before, last = stretches[-2:]
            stretches[-2:] = [self._stretch(view, before.first, last.last, before.n + last.n)]
        return tuple(stretches)

    def _stretch(self, view: NativeView, first: int, last: int, row_count: int) -> DeltaRows:
        return DeltaRows(view, first, last, row_count, self._columns, self._unknown_is_missing)


def _belong_together(before: DeltaRows, last: DeltaRows) -> bool:
    is_small = before.n + last.n <= _CHUNK_ROWS
    return is_small and before.last - before.first <= last.last - last.first
