"""The changes of an open index: the library's handle, and the view that a search takes of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from velo import _native
from velo.errors import InvalidArgumentError, UnsupportedVersionError
from velo.filters.native import NativeFilter
from velo.folder.ids import IdColumn, Ids
from velo.live.columns import NativeIds
from velo.types import AnyArray, DurabilityName

__all__ = ["DURABILITY_CODES", "LiveData", "View"]

DURABILITY_CODES: Final[dict[str, int]] = {"sync": 0, "interval": 1, "process": 2}

#: Filters of callers that a view keeps together with its rows.
_KEPT: Final = 64


class View:
    """The rows that live at one moment.

    Attributes
    ----------
    rows : NativeFilter or None
        None: all of them do.
    """

    def __init__(self, rows: NativeFilter | None) -> None:
        self.rows = rows
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, NativeFilter] = OrderedDict()

    def applied(self, filters: Sequence[NativeFilter | None]) -> list[NativeFilter | None]:
        """The filters of a search, none of which lets a dead row pass."""
        if self.rows is None:
            return list(filters)
        return [self.rows if one is None else self._restricted(one) for one in filters or [None]]

    def _restricted(self, inner: NativeFilter) -> NativeFilter:
        assert self.rows is not None
        with self._lock:
            known = self._kept.get(id(inner))
            if known is not None:
                self._kept.move_to_end(id(inner))
                return known
        made = inner.within(self.rows)
        with self._lock:
            # What is kept keeps the inner filter, so that no other one takes its place in memory.
            self._kept[id(inner)] = made
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made

    @property
    def memory_bytes(self) -> int:
        """What the rows and the filters kept with them take."""
        if self.rows is None:
            return 0
        with self._lock:
            kept = list(self._kept.values())
        return self.rows.memory_bytes + sum(one.memory_bytes for one in kept)


class LiveData:
    """What changed in an index since it was built, and for a writer the right to change more.

    Parameters
    ----------
    folder : Path
    durability : {"sync", "interval", "process"} or None
        None: to read.

    Attributes
    ----------
    part : Path
        The folder of the index itself.

    Raises
    ------
    NotAnIndexError, CorruptIndexError, UnsupportedVersionError, BusyError, DeviceError
    """

    def __init__(self, folder: Path, durability: DurabilityName | None = None) -> None:
        options = _native.new("velo_live_options")
        options.writable = durability is not None
        if durability is not None:
            code = DURABILITY_CODES.get(durability)
            if code is None:
                known = ", ".join(repr(name) for name in DURABILITY_CODES)
                raise InvalidArgumentError(
                    f"durability must be one of {known}, not {durability!r}", argument="durability"
                )
            options.durability = code
        self.durability = durability
        out = _native.ffi.new("velo_live **")
        _native.check(_native.lib.velo_live_open(bytes(folder), options, out), "path")
        self._handle: Any = out[0]
        try:
            self.part = folder / self._part_name()
        except BaseException:
            self.close()
            raise
        self._ids: NativeIds | None = None
        self._lock = threading.Lock()
        self._version = 0
        self._view: View | None = None

    def _part_name(self) -> str:
        info = self.info()
        if info.part_count != 1:
            raise UnsupportedVersionError(f"an index of {info.part_count} parts is of a newer velo")
        name = _native.ffi.new("char[65]")
        _native.check(
            _native.lib.velo_live_part(self._handle, 0, _native.ffi.cast("uint8_t *", name), len(name))
        )
        return _native.text(name)

    def begin(self, ids: Ids) -> None:
        """Read tombstones and log, with the ids of the part."""
        self._ids = NativeIds(ids.column)
        _native.check(_native.lib.velo_live_attach(self._handle, 0, self._ids.struct))
        _native.check(_native.lib.velo_live_begin(self._handle), "path")

    def view(self) -> View:
        """The rows that live now; the same view as long as nothing changes."""
        view = self._view
        if view is not None:
            return view
        version = self._version
        out = _native.ffi.new("velo_filter **")
        _native.check(_native.lib.velo_live_rows(self._handle, 0, out))
        rows = None if out[0] == _native.ffi.NULL else NativeFilter(out[0], int(self.info().rows))
        view = View(rows)
        with self._lock:
            if self._version == version:  # else something changed meanwhile, and the next search looks again
                self._view = view
        return view

    def _forget_view(self) -> None:
        with self._lock:
            self._version += 1
            self._view = None

    def delete_ids(self, column: IdColumn) -> Any:
        """Delete by id; a ``velo_live_done``."""
        done = _native.new("velo_live_done")
        ids = NativeIds(column)
        try:
            _native.check(_native.lib.velo_live_delete(self._handle, ids.struct, done), "ids")
        finally:
            self._forget_view()
        return done

    def delete_vertices(self, vertices: AnyArray) -> Any:
        """Delete by vertex; a ``velo_live_done``."""
        done = _native.new("velo_live_done")
        pointer = _native.pointer("uint32_t", vertices) if len(vertices) else _native.ffi.NULL
        try:
            _native.check(
                _native.lib.velo_live_delete_vertices(self._handle, 0, pointer, len(vertices), done)
            )
        finally:
            self._forget_view()
        return done

    def refresh(self) -> bool:
        """See what a writer in another process did since; whether it did anything."""
        changed = _native.ffi.new("int32_t *")
        try:
            _native.check(_native.lib.velo_live_refresh(self._handle, changed), "path")
        finally:
            self._forget_view()
        return bool(changed[0])

    def flush(self) -> None:
        """Put all changes so far on the device."""
        _native.check(_native.lib.velo_live_sync(self._handle))

    def info(self) -> Any:
        """A ``velo_live_info``."""
        info = _native.new("velo_live_info")
        _native.check(_native.lib.velo_live_info_get(self._handle, info))
        return info

    @property
    def memory_bytes(self) -> int:
        """What tombstones and the view of them take, outside the budget: n/8 bytes each."""
        rows = int(self.info().rows)
        view = self._view
        sets = 1 if self.durability is None else 2
        return sets * ((rows + 63) // 64 * 8) + (0 if view is None else view.memory_bytes)

    def close(self) -> None:
        """Give the handle back; a writer syncs."""
        handle, self._handle = self._handle, _native.ffi.NULL
        _native.check(_native.lib.velo_live_close(handle))
