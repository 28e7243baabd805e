"""The columns of a few rows for the log, without Arrow.

Arrow gives up the interpreter several times a call. With many threads that each write one row, handing it
around costs more than the write. So plain columns of a few rows are checked here, and the library lays the
record batch out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

#: Beyond, Arrow is faster.
_ROWS_MAX: Final = 32

_NUMBERS: Final = {pa.from_numpy_dtype(np.dtype(f"={code}")): code for code in "bhiqBHIQfd"}
_DTYPES: Final = {code: np.dtype(f"={code}") for code in _NUMBERS.values()}
_OFFSETS: Final = {pa.string(): "i", pa.large_string(): "q"}


class SmallBatches:
    """Record batches of one schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name: field.type for field in schema}
        self._is_plain = len(self._columns) == len(schema) and all(
            kind in _NUMBERS or kind in _OFFSETS for kind in self._columns.values()
        )

    def buffers(self, metadata: Any, count: int) -> list[bytes] | None:
        """The buffers of a record batch; None where Arrow makes it, or has to say what is wrong."""
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
        return buffers


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
