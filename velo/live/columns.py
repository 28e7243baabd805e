"""Ids in the library's form: the buffers that Arrow has them in."""

from __future__ import annotations

from typing import Any

import numpy as np

from velo import _native
from velo.folder.ids import IdColumn

__all__ = ["NativeIds"]


class NativeIds:
    """A ``velo_ids`` over a checked column, and the buffers that it points into.

    Attributes
    ----------
    struct : velo_ids
    """

    def __init__(self, column: IdColumn) -> None:
        struct = self.struct = _native.new("velo_ids")
        struct.count = len(column)
        if isinstance(column, np.ndarray):
            numbers = np.ascontiguousarray(column, np.int64)
            struct.numbers = numbers_at = _native.pointer("int64_t", numbers)
            self._keep: tuple[Any, ...] = (numbers, numbers_at)
            return
        struct.is_string = 1
        _, offsets_buffer, data = column.buffers()
        if offsets_buffer is None or offsets_buffer.size == 0:
            offsets = np.zeros(1, np.int64)
        else:
            offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
        text = np.zeros(1, np.uint8) if data is None or data.size == 0 else np.frombuffer(data, np.uint8)
        struct.offsets = offsets_at = _native.pointer("int64_t", offsets)
        struct.bytes = text_at = _native.pointer("uint8_t", text)
        struct.bytes_size = 0 if data is None else data.size
        self._keep = (column, offsets, text, offsets_at, text_at)
