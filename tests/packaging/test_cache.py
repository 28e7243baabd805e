"""A copy of the tree that took the compiler's cache along is compiled from its own files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging_help import ROOT

import hatch_build

#: Files that others import. Kernels are objects of their own.
CHANGED = ("zig/src/quant/kernels/scalar.zig", "zig/src/base/prng.zig")


def compiled(tree: Path) -> subprocess.CompletedProcess[str]:
    """The smallest room, whose binary holds the kernels."""
    command = [sys.executable, "-m", "ziglang", "build", "install-test-base"]
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(hatch_build.global_cache_dir()))
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)


@pytest.mark.long(
    guarded_by="tests/packaging/test_cache.py::test_compilations_are_cached_by_the_path_of_the_tree"
)
def test_a_copy_with_its_cache_serves_nothing_stale(tmp_path: Path) -> None:
    """The compiler knows imported files by absolute paths: those of the tree that was compiled first."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    shutil.copy2(ROOT / "build.zig", first)
    shutil.copytree(ROOT / "zig", first / "zig")
    done = compiled(first)
    assert done.returncode == 0, done.stderr[-8000:]
    shutil.copytree(first, second)
    for name in CHANGED:
        whole = (second / name).read_bytes()
        (second / name).write_bytes(whole + b"no declaration\n")
        done = compiled(second)
        assert done.returncode != 0, f"{name} of another tree was compiled"
        assert f"{name}:" in done.stderr
        (second / name).write_bytes(whole)


def test_compilations_are_cached_by_the_path_of_the_tree() -> None:
    """Every module that build.zig makes has the path of the tree in its key."""
    text = (ROOT / "build.zig").read_text()
    assert re.search(r'fn key_to_tree\(.*\{\n\s*m\.addCMacro\("VELO_TREE", b\.pathFromRoot\("\."\)\);', text)
    made = re.findall(
        r"const m = [\w.]+createModule\(\.\{(.*?)\n {4,12}key_to_tree\([\w.]+, m\);", text, re.DOTALL
    )
    assert len(made) == text.count("createModule(") >= 2
