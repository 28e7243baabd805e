"""Storage of the vectors of an index that was built without them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from velo import _native
from velo.errors import CancelledError
from velo.folder.exchange import locked
from velo.formats.source import Source, chunk_rows, native_dtype, native_layout
from velo.options import DTYPE_CODES
from velo.types import AnyArray


def store_vectors(
    folder: Path,
    source: Source,
    order: AnyArray,
    start: int,
    stop: int,
    tell: Callable[[int], bool | None] | None = None,
    *,
    lock_held: bool = False,
) -> None:
    """Write the vectors of a finished index into its folder, as a build with ``store_vectors`` would have.

    The rows `start` to `stop` of the source stream through once, each to its place in a file; memory holds a
    few megabytes and four bytes a row. Then a manifest that names the file replaces the old one: a process
    that is killed leaves the index as it was, or with all of its vectors. An open index continues without
    them.
    """
    dtype = native_dtype(source.dtype)
    rows = np.ascontiguousarray(order, np.uint32)
    with contextlib.nullcontext() if lock_held else locked(folder):
        out = _native.ffi.new("velo_vectors **")
        _native.check(
            _native.lib.velo_vectors_open(
                os.fsencode(folder),
                source.shape[1],
                DTYPE_CODES[dtype.name],
                _native.pointer("uint32_t", rows),
                len(rows),
                out,
            )
        )
        try:
            done = 0
            for rows_of_chunk in source.chunks(chunk_rows(source.shape[1] * dtype.itemsize), start, stop):
                chunk = native_layout(rows_of_chunk, dtype)
                address = _native.address(chunk)
                status = _native.lib.velo_vectors_add(out[0], address, len(chunk), chunk.strides[0])
                _native.check(status, "vectors")
                done += len(chunk)
                if tell is not None and tell(done) is False:
                    raise CancelledError("the build was canceled while it stored vectors")
            _native.check(_native.lib.velo_vectors_commit(out[0]))
        finally:
            _native.lib.velo_vectors_close(out[0])
