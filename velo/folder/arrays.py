"""Arrow arrays over numpy's memory and back, without pandas.

``pyarrow.array`` and ``numpy.asarray`` of an Arrow array import pandas wherever it is installed, which takes
some 40 MB and a third of a second. Neither a build nor an open index has a use for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from velo.types import AnyArray

__all__ = ["arrow_of", "numpy_of"]


def arrow_of(values: AnyArray) -> Any:
    """An Arrow array without nulls over the memory of `values`.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Of numbers; copied only where they do not lie side by side.

    Returns
    -------
    pyarrow.Array
    """
    together = np.ascontiguousarray(values)
    arrow_type = pa.from_numpy_dtype(together.dtype)
    return pa.Array.from_buffers(arrow_type, len(together), [None, pa.py_buffer(together.data)])


def numpy_of(array: Any, dtype: np.dtype[Any] | type[np.generic]) -> AnyArray:
    """The numbers of an Arrow array without nulls, as a read-only view of its memory.

    Parameters
    ----------
    array : pyarrow.Array
    dtype : dtype
        Of its elements.

    Returns
    -------
    ndarray of shape (n,)
    """
    if len(array) == 0:
        return np.zeros(0, dtype)
    item_bytes = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * item_bytes)
