"""Live data of a folder: its native handle, its open segments, and the view that a search gets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import InvalidArgumentError
from velo.folder.ids import IdColumn
from velo.folder.opened import OpenedFolder
from velo.segments.added import LiveColumns, NewColumns
from velo.segments.columns import NativeIds, schema_text
from velo.segments.delta import DeltaStretches, NativeView, segment_names
from velo.segments.rows import DTYPES, NUMBERS, ROW, STRINGS, GivenRows, RowShape, left_ms
from velo.segments.segment import Segment
from velo.segments.view import View
from velo.types import AnyArray, DurabilityName

DURABILITY_CODES: Final[dict[str, int]] = {"sync": 0, "interval": 1, "process": 2}
DONE, DUPLICATE, FULL, STALE, REPEATED, NO_ROW_NUMBER, OUTDATED = range(7)
#: What `refresh` finds where segments came and went: as after ``OUTDATED`` the folder is to be opened again.
MOVED: Final = 2


class LiveData:
    """The segments of an index and the changes that its log holds.

    Once another process has exchanged segments, each write is ``OUTDATED``: nothing was done, and the caller
    repeats it with what :meth:`again` returns. What was seen before stays.

    Which rows and segments there are only the library knows: what is kept here is looked up by what it says,
    so an exception at any place leaves nothing behind that is not so.

    `delta_bytes`: Limit of the memory of the delta; 0: 64 MiB.
    """

    def __init__(
        self, folder: OpenedFolder, durability: DurabilityName | None = None, delta_bytes: int = 0
    ) -> None:
        options = _native.new("velo_live_options")
        options.writable = durability is not None
        options.delta_bytes = delta_bytes
        options.folder = folder.native
        if durability is not None:
            code = DURABILITY_CODES.get(durability)
            if code is None:
                known = ", ".join(repr(name) for name in DURABILITY_CODES)
                raise InvalidArgumentError(
                    f"durability must be one of {known}, not {durability!r}", argument="durability"
                )
            options.durability = code
        self.folder = folder
        self.durability = durability
        self._delta_bytes = delta_bytes
        #: Where the library puts the handle, and from where it takes it when it closes.
        self._place = _native.ffi.gc(_native.ffi.new("velo_live *"), _native.lib.velo_live_close)
        _native.check(_native.lib.velo_live_open(bytes(folder.at), options, self._place), "path")
        self._handle = int(self._place[0])
        #: Limit of the memory of the delta.
        self.delta_bytes_max = int(self.info().delta_bytes_max)
        #: Open segments by name, including one being added or removed, with the ids that the library borrows.
        self._opened: dict[str, tuple[Segment, NativeIds]] = {}
        self._stretches: DeltaStretches | None = None
        self._columns = LiveColumns()
        self._unknown_is_missing = False
        #: Held while a segment is put into its place.
        self._replacing = threading.Lock()
        #: Held by who looks at the rows of the delta.
        self._looking = threading.Lock()
        #: The last view, and the library's version before it was taken.
        self._view: tuple[int, View] | None = None
        self._shape: RowShape | None = None
        #: How full the memory for rows that no segment holds was after the last write or flush.
        self.pressure = 0.0

    def again(self) -> LiveData:
        """The folder as it is now, opened in the same way."""
        return LiveData(self.folder, self.durability, self._delta_bytes)

    @property
    def seen(self) -> tuple[Segment, ...]:
        """The segments of the last view: a view takes longer than a write, and some may be a merge behind."""
        known = self._view
        return () if known is None else known[1].segments

    @property
    def opened(self) -> list[Segment]:
        return [segment for segment, _ in self._opened.values()]

    def has(self, segment: Segment) -> bool:
        """Whether the library has this segment, or may get it."""
        return segment.name in self._opened

    def names(self) -> list[tuple[str, str]]:
        """Name and uuid of each segment before :meth:`begin`."""
        count = int(self.info().segment_count)
        return [segment_names(_native.lib.velo_live_segment, self._handle, number) for number in range(count)]

    def folder_of(self, name: str) -> Path:
        """The folder of a segment's files; those of a build get one of their own with the first write."""
        return self.folder.at / name if self.info().is_written else self.folder.at

    def begin(self, segments: Sequence[Segment], unknown_is_missing: bool = False) -> None:
        """Read tombstones and log, with the segments that `names` named, in that order."""
        for number, segment in enumerate(segments):
            ids = NativeIds(segment.ids.column)
            self._opened[segment.name] = segment, ids
            _native.check(_native.lib.velo_live_attach(self._handle, number, ids.struct))
        kind, next_row = _ids_of(segments)
        # Without columns in the manifest those of the first segment count.
        built = segments[0].metadata if segments else None
        schema = _native.ffi.NULL if built is None else schema_text(built.schema).encode()
        _native.check(_native.lib.velo_live_begin(self._handle, kind, next_row, schema), "path")
        self._unknown_is_missing = unknown_is_missing
        with self._looking:
            columns = self._look_at_columns(-1)
        for segment in segments:
            columns.of_segment(segment)

    def _look_at_columns(self, version: int) -> LiveColumns:
        """The columns of this version, or later ones; with the lock of who looks."""
        if self._columns.version >= version >= 0:
            return self._columns
        size, found = _native.ffi.new("uint64_t *"), _native.ffi.new("uint64_t *")
        room = 0
        while True:
            text = _native.ffi.new("char[]", room)
            _native.check(_native.lib.velo_live_schema(self._handle, text, room, size, found))
            if int(size[0]) <= room:
                break
            room = int(size[0])
        told = bytes(_native.ffi.buffer(text, int(size[0]))).decode(errors="replace")
        columns = LiveColumns(told, int(found[0]), self._unknown_is_missing)
        self._stretches = DeltaStretches(columns, self._unknown_is_missing)
        self._columns = columns
        return columns

    @property
    def schema(self) -> Any:
        """The columns of the metadata as they are given; None: there are none."""
        return self._columns.schema

    def shape(self) -> RowShape:
        """The shape that new rows must have."""
        return self._shape_of(self._columns)

    def _shape_of(self, columns: LiveColumns) -> RowShape:
        known = self._shape
        if known is not None and known.columns is columns:
            return known
        info = self.info()
        shape = RowShape(int(info.dim), DTYPES[int(info.dtype)], int(info.id_kind), columns)
        if shape.id_kind >= 0:  # then no row makes it another
            self._shape = shape
        return shape

    # ---- looking

    def view(self) -> View:
        """What is seen now; the same object while nothing changes."""
        version = _native.lib.velo_live_version(self._handle)
        known = self._view
        if known is not None and known[0] == version:
            return known[1]
        assert self._stretches is not None
        while True:
            with self._looking:
                taken = NativeView(self._handle)
                columns = self._look_at_columns(taken.schema_version)
                delta = self._stretches.of(taken)
            try:
                names = [taken.segment(number)[0] for number in range(taken.segment_count)]
                segments = tuple(self._opened[name][0] for name in names)
            except KeyError:  # a merge took one away since; the library has other segments by now
                continue
            view = View(taken, segments, delta, self._shape_of(columns))
            self._view = version, view
            return view

    def check_delta(self) -> None:
        """Read the ids and columns of all rows that no segment holds."""
        assert self._stretches is not None
        for stretch in self._stretches.of(NativeView(self._handle)):
            _ = stretch.ids, stretch.metadata

    def refresh(self) -> int:
        """See what other processes did since: 0 nothing, 1 something, ``MOVED``."""
        changed = _native.ffi.new("int32_t *")
        _native.check(_native.lib.velo_live_refresh(self._handle, changed), "path")
        return int(changed[0])

    def info(self) -> Any:
        """A ``velo_live_info``."""
        info = _native.new("velo_live_info")
        _native.check(_native.lib.velo_live_info_get(self._handle, info))
        return info

    # ---- writing

    def _write(self, argument: str | None, function: Callable[..., int], *arguments: Any) -> Any:
        done = _native.new("velo_live_done")
        _native.check(function(self._handle, *arguments, done), argument)
        if done.outcome in (DONE, REPEATED):
            self.pressure = min(1.0, done.delta_bytes / max(1, done.delta_bytes_max))
        return done

    def delete_ids(self, column: IdColumn, deadline: float | None) -> Any:
        """Delete by id; a ``velo_live_done``."""
        ids = NativeIds(column)
        return self._write("ids", _native.lib.velo_live_delete, ids.struct, left_ms(deadline))

    def delete_vertices(self, view: View, vertices: AnyArray, deadline: float | None) -> Any:
        """Delete rows of a view; a ``velo_live_done``, ``STALE`` where they have other numbers by now."""
        segments, rows = view.places(vertices)
        count = len(vertices)
        null = _native.ffi.NULL
        return self._write(
            None,
            _native.lib.velo_live_delete_rows,
            view.layout,
            _native.pointer("uint32_t", segments) if count else null,
            _native.pointer("uint32_t", rows) if count else null,
            count,
            left_ms(deadline),
        )

    def insert(self, ids: Any, options: Any) -> Any:
        """Insert or replace rows; a ``velo_live_done``."""
        return self._write("vectors", _native.lib.velo_live_insert, ids, options)

    def reserve(self, rows: GivenRows) -> Any:
        """Reserve row numbers for rows that become a segment of their own; a ``velo_live_done``."""
        return self._write("ids", _native.lib.velo_live_reserve, rows.ids, rows.options)

    def insert_segment(self, rows: GivenRows, first_row: int, made: Segment) -> Any:
        """Insert or replace rows by a segment that was made of them; a ``velo_live_done``."""
        with self._offered(made) as segment:
            return self._write(
                "vectors", _native.lib.velo_live_insert_segment, rows.ids, rows.options, first_row, *segment
            )

    def update(self, ids: Any, options: Any, view: View, vertices: AnyArray) -> Any:
        """Replace rows of a view; a ``velo_live_done``, ``STALE`` where one of them is there no more."""
        segments, rows = view.places(vertices)
        count = len(vertices)
        null = _native.ffi.NULL
        return self._write(
            "ids",
            _native.lib.velo_live_update,
            ids,
            options,
            view.layout,
            _native.pointer("uint32_t", segments) if count else null,
            _native.pointer("uint32_t", rows) if count else null,
        )

    def add_columns(self, new: NewColumns) -> Any:
        """Add columns in one root; rows that are there have the value in them that came with each."""
        while True:
            with self._looking:
                columns = self._look_at_columns(NativeView(self._handle).schema_version)
            new.check_new([] if columns.schema is None else columns.schema.names)
            done = _native.new("velo_live_done")
            text = columns.text_with(new).encode()
            _native.check(
                _native.lib.velo_live_set_schema(self._handle, text, columns.version, done), "columns"
            )
            if done.outcome != STALE:
                break  # else others added some
        self.view()  # rows that are written from now on have them
        return done

    @contextlib.contextmanager
    def segment_to_make(self) -> Iterator[str]:
        """The folder of a segment that is still to be made; while this lasts no process takes it away."""
        name = _native.ffi.new("char[65]")
        _native.check(_native.lib.velo_live_next_segment(self._handle, name, 65))
        try:
            yield _native.text(name)
        finally:
            _native.lib.velo_live_release_segment(self._handle, name)

    def replace(
        self, view: View, segments: Sequence[int], taken: AnyArray, made: Segment | None, *, with_delta: bool
    ) -> Any:
        """Put a segment into the place of those that it was made of, or of the delta.

        `taken`: Of each of them which of its rows were taken: a bit a row, in words of its own.
        """
        numbers = np.array(segments, np.uint32)
        ffi = _native.ffi
        with self._offered(made) as segment:
            return self._write(
                "path",
                _native.lib.velo_live_commit,
                view.native.handle,
                _native.pointer("uint32_t", numbers) if len(numbers) else ffi.NULL,
                len(numbers),
                _native.pointer("uint64_t", taken) if len(taken) else ffi.NULL,
                int(with_delta),
                *segment,
            )

    @contextlib.contextmanager
    def _offered(self, made: Segment | None) -> Iterator[tuple[Any, Any, Any]]:
        """Folder, uuid and ids of a segment that the library may get meanwhile; what it has then is kept."""
        ffi = _native.ffi
        with self._replacing:
            try:
                if made is None:
                    yield ffi.NULL, ffi.NULL, ffi.NULL
                    return
                ids = NativeIds(made.ids.column)
                self._opened[made.name] = made, ids  # at hand before the library can name it
                name, uuid = (ffi.new("char[]", text.encode()) for text in (made.name, made.uuid))
                yield name, uuid, ids.struct
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Keep what the library has; views keep what they show."""
        native = NativeView(self._handle)
        held = {native.segment(number)[0] for number in range(native.segment_count)}
        for name in self._opened.keys() - held:
            del self._opened[name]

    def sweep(self) -> None:
        """Remove segments that were merged and that no reader holds."""
        _native.check(_native.lib.velo_live_sweep(self._handle))

    def flush_log(self) -> None:
        """Put all changes so far on the device."""
        _native.check(_native.lib.velo_live_sync(self._handle))

    @property
    def memory_bytes(self) -> int:
        """Memory of tombstones, of the delta and of the view of both, outside the budget."""
        info = self.info()
        view = self._view
        sets = 1 if self.durability is None else 2
        beside = 0 if view is None else view[1].memory_bytes
        return sets * ((int(info.rows) + 63) // 64 * 8) + int(info.delta_bytes) + beside

    def close(self) -> None:
        """Give the handle back, after the segments; a writer syncs. Twice is once."""
        self._view = None
        _native.close(_native.lib.velo_live_close, self._place)


def _ids_of(segments: Sequence[Segment]) -> tuple[int, int]:
    """The kind of ids of segments, -1 without any; of rows' numbers also the one behind the last."""
    first = next((segment for segment in segments if segment.n), None)
    if first is None:
        return -1, 0
    if first.ids.kind == "string":
        return STRINGS, 0
    return (ROW, first.ids.first_row + first.n) if first.ids.numbered else (NUMBERS, 0)
