"""The only place that knows cffi: ``ffi``, ``lib``, ``check(status)`` and a few typed helpers around them.

The library is opened when it is first needed, so that ``import velo`` and ``velo doctor`` can say what is
wrong with an installation instead of failing before they run.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

from velo._native import loader
from velo._native.abi import CData, Library
from velo.errors import STATUS_ERRORS, IndexExistsError, NativeLibraryError, NotAnIndexError, VeloError

if TYPE_CHECKING:
    from velo.types import AnyArray

    ffi: Any
    lib: Library

__all__ = [
    "CData",
    "Library",
    "address",
    "check",
    "error_of",
    "ffi",
    "lib",
    "native",
    "new",
    "pointer",
    "text",
    "version",
]

#: Errors for which a caller of `check` may name the argument that the library does not know by its name.
_ABOUT_ARGUMENTS = (ValueError, NotAnIndexError, IndexExistsError)

_load_lock = threading.Lock()
_native: loader.Native | None = None
_array_types: dict[str, Any] = {}
_errors_by_status: dict[int, type[VeloError]] = {}


def __getattr__(name: str) -> Any:
    """Open the library at the first use of ``ffi`` or ``lib``; afterwards both are plain globals."""
    if name not in ("ffi", "lib"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(native(), name)


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
    _errors_by_status.update({values[name]: error for name, error in STATUS_ERRORS.items()})
    for element in ("float", "int8_t", "uint8_t", "int32_t", "uint32_t", "int64_t", "uint64_t"):
        _array_types[element] = opened.ffi.typeof(f"{element}[]")
    globals().update(ffi=opened.ffi, lib=opened.lib)
    return opened


def check(status: int, argument: str | None = None) -> None:
    """Raise the exception of the status table unless `status` is VELO_OK.

    Parameters
    ----------
    status : int
        What a native call returned, in this thread, just now.
    argument : str, optional
        The name to report where the library knows none.
    """
    if status != 0:
        _raise_last(status, argument)


def _raise_last(status: int, argument: str | None) -> NoReturn:
    last = new("velo_error")
    native().lib.velo_last_error(last)
    if not issubclass(_errors_by_status.get(status, VeloError), _ABOUT_ARGUMENTS):
        argument = None  # the device, the clock or a file is at fault, not what was given
    if last.status != status:
        raise error_of(status, argument=argument)
    raise error_of(
        status,
        text(last.message),
        argument=text(last.argument) or argument,
        file=text(last.file) or None,
        page=int(last.page) if last.page >= 0 else None,
        row=int(last.row) if last.row >= 0 else None,
        needed_bytes=int(last.needed_bytes) or None,
    )


def error_of(
    status: int,
    message: str = "",
    *,
    argument: str | None = None,
    file: str | None = None,
    page: int | None = None,
    row: int | None = None,
    needed_bytes: int | None = None,
) -> VeloError:
    """The exception for `status`, not raised."""
    kind = _errors_by_status.get(status, VeloError)
    sentence = message or (kind.__doc__ or "unknown error").strip().partition("\n")[0]
    return kind(sentence, argument=argument, file=file, page=page, row=row, needed_bytes=needed_bytes)


def new(struct: str) -> CData:
    """A zeroed `struct` whose ``struct_size`` is set."""
    ffi = native().ffi
    made = ffi.new(f"{struct} *")
    made.struct_size = ffi.sizeof(struct)
    return made


def pointer(element: str, array: AnyArray, *, writable: bool = False) -> CData:
    """The memory of a C-contiguous array as ``element[]``, which keeps the array alive."""
    return native().ffi.from_buffer(_array_types[element], array, require_writable=writable)


def address(array: AnyArray) -> CData:
    """The first element of an array of any layout as ``void *``; the caller keeps the array alive."""
    return native().ffi.cast("void *", array.__array_interface__["data"][0])


def text(field: CData) -> str:
    """A NUL-terminated char array or pointer as str."""
    value: bytes = native().ffi.string(field)
    return value.decode("utf-8", "replace")


def version() -> str:
    """Version of the library."""
    return text(native().lib.velo_version())
