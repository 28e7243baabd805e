"""The boundary: the header, the typed surface, finding the library."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cffi
import pytest

from velo._native import abi, loader
from velo._native.declarations import declarations
from velo.errors import NativeLibraryError


def test_the_typed_surface_names_every_function_of_the_header() -> None:
    text = declarations(loader.header_path().read_text())
    declared = set(re.findall(r"\b(velo_\w+)\(", text))
    typed = {name for name in vars(abi.Library) if name.startswith("velo_")}
    assert typed == declared


def test_the_typed_surface_has_as_many_parameters_as_the_header() -> None:
    ffi = cffi.FFI()
    text = declarations(loader.header_path().read_text())
    ffi.cdef(text)
    for name in re.findall(r"\b(velo_\w+)\(", text):
        parameters = re.search(rf"\b{name}\(([^)]*)\)", text)[1].strip()
        count = 0 if parameters == "void" else parameters.count(",") + 1
        assert vars(abi.Library)[name].__code__.co_argcount - 1 == count, name


def test_structs_start_with_their_size() -> None:
    text = declarations(loader.header_path().read_text())
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        # An element of an array and a part of a struct: the library fills both.
        if name in ("velo_completion", "velo_filter_cost", "velo_segment"):
            continue
        assert body.split(";")[0].strip() == "uint32_t struct_size", name


def test_a_named_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VELO_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(NativeLibraryError, match="VELO_LIBRARY names"):
        loader.library_path()


def test_a_library_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libvelo.so"
    broken.write_bytes(b"not an ELF file")
    monkeypatch.setenv("VELO_LIBRARY", str(broken))
    with pytest.raises(NativeLibraryError, match="cannot be loaded"):
        loader.load()


def test_no_library_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VELO_LIBRARY", raising=False)
    monkeypatch.setattr(loader, "PACKAGED", tmp_path)
    monkeypatch.setattr(loader, "CHECKOUT", tmp_path)
    with pytest.raises(NativeLibraryError, match="zig build libvelo"):
        loader.library_path()


def test_importing_velo_needs_neither_ray_nor_fastapi_nor_the_library(root: Path, tmp_path: Path) -> None:
    program = (
        "import sys, velo\n"
        "heavy = {'ray', 'fastapi', 'uvicorn', 'pydantic', 'h5py', 'pandas', 'velo_serving'}\n"
        "loaded = heavy & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "assert [name for name in velo.__all__ if not hasattr(velo, name)] == []\n"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=root,
        env={"PYTHONPATH": str(root), "VELO_LIBRARY": str(tmp_path / "none.so")},
        check=True,
        timeout=60,
    )


def test_the_version_is_that_of_the_distribution_and_of_the_library(root: Path) -> None:
    import velo
    from velo import _native

    assert re.search(
        r"\[tool\.hatch\.version\]\s+path = \"velo/__init__\.py\"", (root / "pyproject.toml").read_text()
    )
    assert _native.version() == velo.__version__
