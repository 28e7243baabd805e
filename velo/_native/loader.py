"""Finds ``velo.h`` and the library, and opens it with the types of the header (ABI mode: no compiler)."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, NamedTuple

from velo._native.abi import Library
from velo._native.declarations import MODULE, checksum, parse
from velo.errors import NativeLibraryError

#: Beside this file in a wheel.
PACKAGED = Path(__file__).resolve().parent
#: The root of a source checkout, if this is one.
CHECKOUT = PACKAGED.parent.parent


class Native(NamedTuple):
    """An opened library."""

    ffi: Any
    lib: Library
    path: Path


def header_path() -> Path:
    """Path of ``velo.h``: a checkout's own before the copy that an editable install left there."""
    for path in (CHECKOUT / "zig" / "velo.h", PACKAGED / "velo.h"):
        if path.is_file():
            return path
    raise NativeLibraryError(f"velo.h is neither in {PACKAGED} nor in a checkout's zig/", file="velo.h")


def library_path() -> Path:
    """Path of the library: ``VELO_LIBRARY``, else the newer of a checkout's build and the packaged one."""
    variable = os.environ.get("VELO_LIBRARY")
    if variable:
        path = Path(variable)
        if not path.is_file():
            raise NativeLibraryError(f"VELO_LIBRARY names {variable}, which is not a file", file=variable)
        return path
    checkout_path = CHECKOUT / "zig-out" / "lib" / "libvelo.so"
    paths = [path for path in (PACKAGED / "libvelo.so", checkout_path) if path.is_file()]
    if not paths:
        raise NativeLibraryError(
            f"libvelo.so is neither in {PACKAGED} nor in a checkout's zig-out/lib; "
            "install the wheel, or run `zig build libvelo` in the checkout",
            file="libvelo.so",
        )
    return max(paths, key=lambda path: path.stat().st_mtime_ns)


def types() -> Any:
    """The types and functions of the header, from a build's module unless the header has changed since."""
    header = header_path().read_text(encoding="utf-8")
    try:
        made = importlib.import_module(MODULE)
    except ModuleNotFoundError:
        return parse(header)
    return made.ffi if made.checksum == checksum(header) else parse(header)


def load() -> Native:
    """Open the library."""
    path = library_path()
    ffi = types()
    try:
        # It stays in memory until the process ends: what an exit leaves open is given back by it, and its own
        # threads run in it.
        lib = ffi.dlopen(str(path), os.RTLD_NOW | os.RTLD_NODELETE)
    except OSError as error:
        raise NativeLibraryError(f"{path} cannot be loaded: {error}", file=str(path)) from error
    return Native(ffi, lib, path)
