"""Metadata of a few rows as the log has it, put together without Arrow.

Arrow gives up the interpreter several times a call. With many threads that each write one row, handing it
around costs more than the write. So plain columns of a few rows are checked and laid out here: a record batch
whose head is one that Arrow wrote, with other sizes in it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo.filters.arrow_values import arrow_of

#: Beyond, Arrow is faster.
_ROWS_MAX: Final = 32

_NUMBERS: Final = {pa.from_numpy_dtype(np.dtype(f"={code}")): code for code in "bhiqBHIQfd"}
_DTYPES: Final = {code: np.dtype(f"={code}") for code in _NUMBERS.values()}
_OFFSETS: Final = {pa.string(): "i", pa.large_string(): "q"}


class SmallBatches:
    """Record batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = {field.name: field.type for field in schema}
        self._is_plain = len(self._columns) == len(schema) and all(
            kind in _NUMBERS or kind in _OFFSETS for kind in self._columns.values()
        )
        self._heads: dict[int, _Head] = {}

    def encode(self, metadata: Any, count: int) -> bytes | None:
        """A record batch; None where Arrow has to look at it, also to say what is wrong with it."""
        columns = self._columns
        if not self._is_plain or not 0 < count <= _ROWS_MAX or type(metadata) is not dict:
            return None
        if len(metadata) != len(columns):
            return None
        buffers: list[bytes] = []
        try:
            for name, kind in columns.items():
                values = metadata[name]
                if len(values) != count:
                    return None
                buffers.append(b"")  # no row is null
                code = _NUMBERS.get(kind)
                if code is not None:
                    buffers.append(_numbers(values, code))
                else:
                    buffers.extend(_strings(values, _OFFSETS[kind]))
        except (KeyError, TypeError, ValueError, OverflowError, struct.error):
            return None
        head = self._heads.get(count)
        if head is None:
            head = self._heads[count] = _Head(self._schema, count)
        return head.batch(buffers)


def _numbers(values: Any, code: str) -> bytes:
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype != _DTYPES[code]:
            raise TypeError
        return values.tobytes()
    wanted = float if code in "fd" else int
    _check_all(values, wanted)
    return struct.pack(f"<{len(values)}{code}", *values)


def _strings(values: Any, code: str) -> tuple[bytes, bytes]:
    _check_all(values, str)
    texts = [text.encode() for text in values]
    ends = [0]
    for text in texts:
        ends.append(ends[-1] + len(text))
    return struct.pack(f"<{len(ends)}{code}", *ends), b"".join(texts)


def _check_all(values: Sequence[Any], kind: type) -> None:
    if not isinstance(values, list | tuple):
        raise TypeError
    for value in values:
        if type(value) is not kind:
            raise TypeError


def _of_nothing(kind: Any, count: int) -> Any:
    """An array of numbers that are 0, or of texts without a character."""
    if kind not in _OFFSETS:
        return arrow_of(np.zeros(count, _DTYPES[_NUMBERS[kind]]))
    offsets = np.zeros(count + 1, f"={_OFFSETS[kind]}")
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets.data), pa.py_buffer(b"")])


class _Head:
    """The bytes before the buffers of a batch (Arrow's Message.fbs), and the offsets of sizes in them."""

    def __init__(self, schema: pa.Schema, count: int) -> None:
        arrays = [_of_nothing(kind, count) for kind in schema.types]
        written = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
        size = 8 + struct.unpack_from("<i", written, 4)[0]
        self._bytes = head = written[:size]
        message = 8 + struct.unpack_from("<I", head, 8)[0]
        batch = self._field(message, 2)
        batch += struct.unpack_from("<I", head, batch)[0]
        self._body_length = self._field(message, 3)
        buffers = self._field(batch, 2)
        buffers += struct.unpack_from("<I", head, buffers)[0]
        self._count = struct.unpack_from("<I", head, buffers)[0]
        self._buffers = buffers + 4

    def _field(self, table: int, number: int) -> int:
        offsets = table - struct.unpack_from("<i", self._bytes, table)[0]
        return table + int(struct.unpack_from("<H", self._bytes, offsets + 4 + 2 * number)[0])

    def batch(self, buffers: list[bytes]) -> bytes:
        """The record batch with these buffers."""
        assert len(buffers) == self._count
        places = []
        at = 0
        for buffer in buffers:
            places += [at, len(buffer)]
            at += -(-len(buffer) // 8) * 8
        head = bytearray(self._bytes)
        struct.pack_into(f"<{len(places)}q", head, self._buffers, *places)
        struct.pack_into("<q", head, self._body_length, at)
        return b"".join([head, *(buffer + bytes(-len(buffer) % 8) for buffer in buffers)])
