"""The kernels of GPUs as the library embeds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of PTX."""
    prefix = tmp_path_factory.mktemp("ptx")
    command = [sys.executable, "-m", "ziglang", "build", "ptx", "--prefix", str(prefix)]
    env = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(hatch_build.global_cache_dir()))
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-8000:]
    return prefix / "kernels.ptx"
