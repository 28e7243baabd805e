"""The kernels of GPUs as the library embeds them, and programs over simulated GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hatch_build
from tests import child

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


#: Before each program: `gpus(...)` makes simulated GPUs, in the place of those before.
PRELUDE = '''
import json, sys, warnings
import numpy as np
import velo
from velo import _native
from velo.formats import open_vectors

def gpus(devices=2, version=12040, memory_bytes=1 << 30, **more):
    made = _native.new("velo_gpu_simulation")
    for name, value in {"devices": devices, "version": version, "memory_bytes": memory_bytes, **more}.items():
        setattr(made, name, value.encode() if isinstance(value, str) else value)
    _native.check(_native.lib.velo_gpu_simulate(made))

def free():
    info = _native.new("velo_gpu_info")
    _native.check(_native.lib.velo_gpu_probe(0, info))
    return info.free_bytes

def say(*values):
    print(json.dumps(values[0] if len(values) == 1 else values))

def shared(expected, found):
    """The share of neighbors that both have."""
    pairs = zip(expected.tolist(), found.tolist())
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in pairs]))

path, queries = sys.argv[1], np.tile(open_vectors(sys.argv[2]).read(), (3, 1))
'''


@pytest.fixture(scope="session")
def simulated_library(root: Path) -> Path:
    named = os.environ.get("VELO_SIM_LIBRARY")
    library = Path(named) if named else root / "zig-out" / "lib" / "libvelo_sim.so"
    assert library.is_file(), f"{library} is missing; python hatch_build.py --sim makes it"
    return library


@pytest.fixture
def on_gpu(simulated_library: Path, sample: Any, sample_path: Path) -> Callable[..., list[Any]]:
    """The output of a program with `path`, an index over the sample, and 600 `queries`."""

    def run(
        program: str, path: Path = sample_path, *, arguments: tuple[Any, ...] = (), **options: Any
    ) -> list[Any]:
        env = child.environment() | {"VELO_LIBRARY": str(simulated_library)} | options.pop("env", {})
        queries = sample.folder / "sample_queries.u8bin"
        done = child.run(PRELUDE + textwrap.dedent(program), path, queries, *arguments, env=env, **options)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run
