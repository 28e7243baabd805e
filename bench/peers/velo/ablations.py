"""What searches are compared with: ideas that ``libvelo_bench`` can take away (docs/HACKING.md)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from velo.errors import NativeLibraryError

#: The shipped library with ``velo_ablate``; ``python hatch_build.py --bench`` makes it.
LIBRARY = Path(__file__).resolve().parents[3] / "zig-out" / "lib" / "libvelo_bench.so"


def use_library() -> None:
    """Make velo load ``libvelo_bench``, here and in processes that are started from here."""
    if "VELO_LIBRARY" not in os.environ and not LIBRARY.is_file():
        raise NativeLibraryError(
            f"{LIBRARY} is missing; `python hatch_build.py --bench` makes it", file=str(LIBRARY)
        )
    os.environ.setdefault("VELO_LIBRARY", str(LIBRARY))


def apply(names: str) -> None:
    """Take these away from indexes that are opened from now on: ``"record_only cache_unit=page"``."""
    path = os.environ.get("VELO_LIBRARY", "")
    library = ctypes.CDLL(path)
    if not hasattr(library, "velo_ablate"):
        raise NativeLibraryError(f"VELO_LIBRARY names {path!r}, which is not libvelo_bench", file=path)
    if library.velo_ablate(names.encode()) != 0:
        raise ValueError(f"libvelo_bench knows no such ablation: {names!r}")
