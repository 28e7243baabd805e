"""Structs, arrays and texts in the form that the library uses."""

from __future__ import annotations

from velo._native.abi import CData
from velo._native.library import ARRAY_TYPES, native
from velo.types import AnyArray


def new(struct: str) -> CData:
    """A zeroed `struct` whose ``struct_size`` is set."""
    ffi = native().ffi
    value = ffi.new(f"{struct} *")
    value.struct_size = ffi.sizeof(struct)
    return value


def pointer(element: str, array: AnyArray, *, writable: bool = False) -> CData:
    """The memory of a C-contiguous array as ``element[]``, which keeps the array alive."""
    return native().ffi.from_buffer(ARRAY_TYPES[element], array, require_writable=writable)


def address(array: AnyArray) -> CData:
    """The first element of an array of any layout as ``void *``; the caller keeps the array alive."""
    return native().ffi.cast("void *", array.__array_interface__["data"][0])


def text(field: CData) -> str:
    """A NUL-terminated char array or pointer as str."""
    value: bytes = native().ffi.string(field)
    return value.decode("utf-8", "replace")
