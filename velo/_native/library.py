"""The library, opened when it is first needed, and the table from its statuses to errors."""

from __future__ import annotations

import threading
from typing import Any

from velo._native import loader
from velo.errors import STATUS_ERRORS, NativeLibraryError, VeloError

#: C types of arrays by the name of their element, once the library is open.
ARRAY_TYPES: dict[str, Any] = {}
#: The exception of each status, once the library is open.
ERRORS_BY_STATUS: dict[int, type[VeloError]] = {}

_load_lock = threading.Lock()
_native: loader.Native | None = None


def native() -> loader.Native:
    """The opened library; opened now if nothing needed it before."""
    global _native
    if _native is None:
        with _load_lock:
            if _native is None:
                _native = _bind(loader.load())
    return _native


def _bind(opened: loader.Native) -> loader.Native:
    values = opened.ffi.typeof("velo_status").relements
    unknown = set(values) ^ {"VELO_OK", *STATUS_ERRORS}
    if unknown:
        raise NativeLibraryError(f"velo.h and velo.errors disagree on {', '.join(sorted(unknown))}")
    ERRORS_BY_STATUS.update({values[name]: error for name, error in STATUS_ERRORS.items()})
    for element in ("double", "float", "int8_t", "uint8_t", "int32_t", "uint32_t", "int64_t", "uint64_t"):
        ARRAY_TYPES[element] = opened.ffi.typeof(f"{element}[]")
    return opened
