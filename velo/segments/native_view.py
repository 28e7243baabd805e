"""A moment of live data in the library's hands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from velo import _native
from velo.filters.native import NativeFilter
from velo.types import AnyArray

__all__ = ["NativeView", "segment_names"]

#: What the name of a segment's folder, or its uuid, takes at most, as velo.h says.
_NAME_BYTES: Final = 65


def segment_names(ask: Callable[..., int], handle: Any, segment: int) -> tuple[str, str]:
    """Folder and uuid of a segment, of ``velo_live_segment`` or ``velo_live_view_segment``."""
    name = _native.ffi.new("char[]", _NAME_BYTES)
    uuid = _native.ffi.new("char[]", _NAME_BYTES)
    _native.check(ask(handle, segment, name, uuid, _NAME_BYTES))
    return _native.text(name), _native.text(uuid)


class NativeView:
    """A ``velo_live_view``, taken now; closed when nothing refers to it any more.

    Parameters
    ----------
    live : velo_live

    Attributes
    ----------
    layout, sequence, schema_version, segment_count, record_count, delta_rows, delta_dead : int
    """

    def __init__(self, live: Any) -> None:
        out = _native.ffi.new("velo_live_view **")
        _native.check(_native.lib.velo_live_view_take(live, out))
        self.handle = _native.ffi.gc(out[0], _native.lib.velo_live_view_close)
        info = _native.new("velo_live_view_info")
        _native.check(_native.lib.velo_live_view_info_get(self.handle, info))
        self.layout = int(info.layout)
        self.sequence = int(info.sequence)
        self.schema_version = int(info.schema_version)
        self.segment_count = int(info.segment_count)
        self.record_count = int(info.record_count)
        self.delta_rows = int(info.delta_rows)
        self.delta_dead = int(info.delta_dead_rows)

    def segment(self, number: int) -> tuple[str, str]:
        """Folder and uuid of a segment; "" is the folder itself."""
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
        """A ``velo_delta``, and what is to be kept as long as it is.

        Parameters
        ----------
        first : int
            What its rows are counted from in the answer.
        recall : float
            1: every row is measured. Below, at least 0.99 of the nearest are found.
        list_size : int
            Candidates that a walk keeps at least; 0: as many as the recall takes.
        masks : sequence of ndarray of bool
            Of the rows that pass: none, one for all queries, or one (or None) each.
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
        """The nearest rows of the delta alone: rows, distances, counts, and how many rows were measured.

        Parameters
        ----------
        delta : velo_delta
        queries : ndarray of shape (nq, dim), float32
        k : int
        """
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
