"""The only place that knows cffi: ``ffi``, ``lib``, ``check(status)`` and a few typed helpers around them.

The library is opened when it is first needed, so that ``import velo`` and ``velo doctor`` can say what is
wrong with an installation instead of failing before they run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velo._native.abi import CData, Library
from velo._native.library import native
from velo._native.status import check, close, error_of
from velo._native.structs import address, new, pointer, text

if TYPE_CHECKING:
    ffi: Any
    lib: Library

__all__ = [
    "CData",
    "Library",
    "address",
    "build_mode",
    "check",
    "close",
    "error_of",
    "ffi",
    "lib",
    "native",
    "new",
    "pointer",
    "text",
    "version",
]


def __getattr__(name: str) -> Any:
    """Open the library at the first use of ``ffi`` or ``lib``; afterwards both are plain globals."""
    if name not in ("ffi", "lib"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    opened = native()
    globals().update(ffi=opened.ffi, lib=opened.lib)
    return getattr(opened, name)


def version() -> str:
    """Version of the library."""
    return text(native().lib.velo_version())


def build_mode() -> str:
    """The build mode of the library, ``ReleaseSafe`` in releases."""
    return text(native().lib.velo_build_mode())
