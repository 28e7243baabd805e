"""The declarations of ``velo.h`` for cffi, and a module of them that needs no parser.

A parser of C takes 7 MB of memory and 0.2 s in each process that opens the library, so a build runs it once.
``hatch_build.py`` runs this file by its path: it imports nothing of velo.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

#: The module that a build makes, beside this file.
MODULE = "velo._native.header"


def declarations(header: str) -> str:
    """The header without its preprocessor lines and comments, as cffi reads it."""
    without_comments = re.sub(r"/\*.*?\*/", " ", header, flags=re.DOTALL)
    return "\n".join(line for line in without_comments.splitlines() if not line.lstrip().startswith("#"))


def checksum(header: str) -> int:
    """The checksum by which a module names its header."""
    return zlib.crc32(header.encode())


def parse(header: str) -> Any:
    """A cffi.FFI with the types and functions of the header."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations(header))
    return ffi


def write_module(header: str, path: Path) -> None:
    """Write the module of this header: its ``ffi``, and the checksum of the header."""
    ffi = parse(header)
    ffi.set_source(MODULE, None)
    ffi.emit_python_code(str(path))
    with path.open("a", encoding="utf-8") as file:
        file.write(f"checksum = {checksum(header)}\n")
