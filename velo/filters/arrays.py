"""Arrow arrays over numpy's memory and back, without pandas.

``pyarrow.array`` and ``numpy.asarray`` of an Arrow array import pandas wherever it is installed, which takes
some 40 MB and a third of a second. Neither a build nor an open index has a use for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from velo.types import AnyArray

__all__ = [
    "array_bytes",
    "arrow_of",
    "bits_of",
    "mask_of",
    "numpy_of",
    "texts_of",
    "truths_of",
    "valid_of",
]


def array_bytes(array: Any) -> int:
    """Bytes of the buffers of an Arrow array, without those of a dictionary."""
    return sum(buffer.size for buffer in array.buffers() if buffer is not None)


def arrow_of(values: AnyArray, valid: AnyArray | None = None) -> Any:
    """An Arrow array over the memory of numbers, copied if not contiguous; null where `valid` is False."""
    together = np.ascontiguousarray(values)
    arrow_type = pa.from_numpy_dtype(together.dtype)
    missing = 0 if valid is None else len(valid) - int(np.count_nonzero(valid))
    validity = mask_of(valid).buffers()[1] if valid is not None and missing else None
    return pa.Array.from_buffers(arrow_type, len(together), [validity, pa.py_buffer(together.data)], missing)


def mask_of(values: AnyArray) -> Any:
    """An Arrow array of bools without nulls."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits.data)])


def numpy_of(array: Any, dtype: np.dtype[Any] | type[np.generic]) -> AnyArray:
    """The numbers of an Arrow array without nulls, as a read-only view of its memory."""
    if len(array) == 0:
        return np.zeros(0, dtype)
    item_bytes = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * item_bytes)


def bits_of(buffer: Any, start: int, count: int) -> AnyArray:
    """Some bits of a buffer, as an array of 0 and 1."""
    first = start // 8
    some = np.frombuffer(buffer, np.uint8, -(-(start + count) // 8) - first, first)
    return np.unpackbits(some, bitorder="little")[start - 8 * first :][:count]


def valid_of(array: Any) -> AnyArray:
    """An array of bool: which values of an Arrow array are not null."""
    if array.null_count == 0:
        return np.ones(len(array), bool)
    validity = array.buffers()[0]
    if validity is None:  # an array of the type null has no values at all
        return np.zeros(len(array), bool)
    return bits_of(validity, array.offset, len(array)).astype(bool)


def truths_of(array: Any) -> AnyArray:
    """An Arrow array of bools as an array of bool; what is null is False."""
    if len(array) == 0:
        return np.zeros(0, bool)
    return bits_of(array.buffers()[1], array.offset, len(array)).astype(bool) & valid_of(array)


def texts_of(texts: Sequence[str | None]) -> Any:
    """An Arrow array of large strings; None is null."""
    coded = [b"" if text is None else text.encode() for text in texts]
    offsets = np.zeros(len(coded) + 1, np.int64)
    np.cumsum([len(text) for text in coded], out=offsets[1:])
    valid = np.array([text is not None for text in texts], bool)
    missing = len(valid) - int(np.count_nonzero(valid))
    buffers = [
        mask_of(valid).buffers()[1] if missing else None,
        pa.py_buffer(offsets.data),
        pa.py_buffer(b"".join(coded)),
    ]
    return pa.Array.from_buffers(pa.large_string(), len(coded), buffers, missing)
