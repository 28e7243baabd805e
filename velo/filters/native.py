"""Handles of native columns and filters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from velo import _native
from velo.types import AnyArray


class NativeColumns:
    """An empty ``velo_columns``, and the buffers of the columns added to it."""

    def __init__(self, row_count: int, buffers: Any = None) -> None:
        self.row_count = row_count
        out = _native.ffi.new("velo_columns **")
        _native.check(_native.lib.velo_columns_open(row_count, out), "metadata")
        self.handle = _native.ffi.gc(out[0], _native.lib.velo_columns_close)
        self._buffers = buffers

    def load_postings(self, path: Path, generation: int) -> None:
        """Map the postings (the rows of each value), after all columns were added and before the first
        filter.
        """
        _native.check(_native.lib.velo_columns_load_postings(self.handle, os.fsencode(path), generation))

    def write_postings(self, path: Path, generation: int) -> None:
        """Write the postings (the rows of each value), and sync."""
        _native.check(_native.lib.velo_columns_write_postings(self.handle, os.fsencode(path), generation))

    @property
    def resident_bytes(self) -> int:
        """Memory beside the mapped files: signatures of lists, where no postings were mapped."""
        info = _native.new("velo_columns_info")
        _native.check(_native.lib.velo_columns_info_get(self.handle, info))
        return int(info.resident_bytes)


class NativeFilter:
    """A ``velo_filter``, freed when nothing refers to it."""

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

    def within(self, rows: NativeFilter) -> NativeFilter:
        """The filter that passes what this one does and is in `rows`, a mask."""
        out = _native.ffi.new("velo_filter **")
        _native.check(_native.lib.velo_filter_restrict(self.handle, rows.handle, out), "filter")
        return NativeFilter(out[0], self.row_count, (self, rows))

    def _info(self) -> Any:
        info = _native.new("velo_filter_info")
        _native.check(_native.lib.velo_filter_info_get(self.handle, info), "filter")
        return info

    def estimate(self) -> float:
        """The expected share of rows that pass, 0 to 1; searches plan with it."""
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
        """An array of bool: whether each of some vertices passes, tested one by one as a search does."""
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
        """Memory of the matches found so far."""
        return int(self._info().memory_bytes)

    def matches(self) -> AnyArray:
        """Whether each vertex passes, as an array of bool."""
        bits = np.empty((self.row_count + 7) // 8, np.uint8)
        found = _native.ffi.new("uint64_t *")
        pointer = _native.pointer("uint8_t", bits, writable=True)
        _native.check(_native.lib.velo_filter_count(self.handle, found, pointer), "filter")
        self._count = int(found[0])
        return np.unpackbits(bits, count=self.row_count, bitorder="little").view(bool)
