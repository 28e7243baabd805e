"""The kernels of GPUs assemble for cards of today, without spills. No GPU is needed, only NVIDIA's assembler:
``ptxas`` on the path, or from the package ``nvidia-cuda-nvcc-cu12``. Skipped where neither is there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import pytest

#: Registers that leave a multiprocessor 25 warps or more.
REGISTERS_MAX = 80


@pytest.fixture(scope="module")
def ptxas() -> Path:
    try:
        found = [
            Path(str(one.locate())) for one in files("nvidia-cuda-nvcc-cu12") or () if one.name == "ptxas"
        ]
    except PackageNotFoundError:
        found = []
    named = found[0] if found else shutil.which("ptxas")
    if named is None:
        pytest.skip("LOUD: ptxas is missing: pip install nvidia-cuda-nvcc-cu12")
    return Path(named)


@pytest.mark.long(guarded_by="zig/src/gpu/gpu.zig::embedded kernels keep nothing in local memory")
@pytest.mark.parametrize("card", ["sm_80", "sm_90"])
def test_kernels_assemble_without_spills(ptxas: Path, kernels: Path, tmp_path: Path, card: str) -> None:
    cubin = tmp_path / "kernels.cubin"
    command = [str(ptxas), f"-arch={card}", "-v", "--output-file", str(cubin), str(kernels)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    entries = re.findall(r"\.visible \.entry (\w+)\(", kernels.read_text())
    assert {"velo_search", "velo_insert"} <= set(entries)
    assert sorted(re.findall(r"Compiling entry function '(\w+)'", done.stderr)) == sorted(entries)
    kept = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr
    )
    assert kept == [("0", "0", "0")] * len(entries), done.stderr
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", done.stderr)]
    assert len(registers) == len(entries)
    assert max(registers) <= REGISTERS_MAX, done.stderr
