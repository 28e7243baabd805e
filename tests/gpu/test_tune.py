"""``velo.tune(..., device=…)`` over simulated GPUs: it measures the GPU, and its memory bounds the links."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import velo
from velo.cli.app import app
from velo.formats import write_vectors

Program = Callable[..., list[Any]]

#: `tune` proposes options for `rows`, and tells where the error is that it raises.
DATA = """
    from velo.testing import synthetic_vectors
    rows = synthetic_vectors(1200, 24, seed=3)

    def tune(device, rows=rows, **how):
        how = {"memory": 0.9, "recall": 0.9, "degrees": (16, 40), "threads": 1, "sample": 4000} | how
        try:
            return velo.tune(rows, scratch=path, device=device, **how)
        except velo.GpuError as error:
            say([error.argument, error.message, error.needed_bytes])
"""


@pytest.fixture
def tuning(on_gpu: Program, tmp_path: Path) -> Program:
    """The output of a program that begins with `DATA`; `path` is a folder for scratch."""

    def run(program: str) -> list[Any]:
        told = on_gpu(textwrap.dedent(DATA) + textwrap.dedent(program), tmp_path)
        assert list(tmp_path.iterdir()) == []
        return told

    return run


def test_a_gpu_navigates_for_the_candidates(tuning: Program) -> None:
    told = tuning(
        """
        gpus()
        before = free()
        found = tune("cuda")
        for one in found.candidates:
            busiest = max(one.busy_us / found.threads, one.reads * 1e6 / found.reads_per_s, one.gpu_us)
            assert one.cost_us == busiest and one.gpu_us > 0
            assert all(point.gpu_us > 0 for point in one.points)
        say(sorted({one.degree for one in found.candidates}), found.open_options, found.open_line())
        say(repr(found).splitlines()[0].split()[-4:], free() == before)
        velo.build(path + "/built", rows, threads=1, **found.build_options).close()
        with velo.open(path + "/built", **found.open_options) as index:
            say(index.info()["gpu"]["resident_bytes"] / found.chosen.gpu_bytes)
        import shutil
        shutil.rmtree(path + "/built")
        """
    )
    degrees, options, line = told[0]
    assert degrees == [16, 40]
    assert options == {"memory": 0.9, "device": "cuda"}
    assert line == 'velo.open("INDEX", memory=0.9, device="cuda")'
    assert told[1] == [["GPU", "µs", "GPU", "memory"], True]
    assert told[2] == pytest.approx(1, abs=0.1)


def test_free_device_memory_bounds_the_links(tuning: Program) -> None:
    """Of 100,000 vertices: 8.5 MB with 16 links, which would be kept, 5.3 MB with 8, the fewest."""
    told = tuning(
        """
        rows = synthetic_vectors(100_000, 16, seed=3)
        for memory_bytes, device in ((1 << 30, "cuda"), (7 << 20, "cuda"), (4 << 20, "auto")):
            gpus(memory_bytes=memory_bytes)
            found = tune(device, rows, degrees=(16,), recall=0.8)
            used = [one.gpu_bytes for one in found.candidates]
            say(found.chosen.links_kept, found.open_options, max(used) <= memory_bytes, min(used) > 0)
        gpus(memory_bytes=4 << 20)
        tune("cuda", rows, degrees=(16,), recall=0.8)
        """
    )
    assert told[:3] == [
        [16, {"memory": 0.9, "device": "cuda"}, True, True],
        [8, {"memory": 0.9, "device": "cuda"}, True, True],
        [16, {"memory": 0.9}, True, False],
    ]
    argument, message, needed = told[3]
    assert argument == "device"
    assert f"take {needed:,} bytes of device memory or more; 4,194,304 are free" in message
    assert needed > 4 << 20


def test_a_gpu_that_fails_is_an_error(tuning: Program) -> None:
    """No measurement mixes the GPU with the CPU that takes over."""
    told = tuning(
        """
        warnings.simplefilter("ignore")
        for world in ({"version": 10020}, {"devices": 0}, {"lost_from": 2, "function": "cuLaunchKernel"}):
            gpus(**world)
            tune("cuda", degrees=(16,))
        gpus(devices=0)
        say(tune("auto", degrees=(16,)).open_options)
        """
    )
    for (argument, message, _), words in zip(
        told[:3],
        (
            "CUDA 10.2; velo needs 11.0",
            "CUDA_VISIBLE_DEVICES",
            "Simulated GPU 0 failed while it was measured",
        ),
        strict=True,
    ):
        assert argument == "device"
        assert words in message
    assert told[3] == {"memory": 0.9}


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this machine, or of one with a GPU where none is visible; by the command, too."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = np.random.default_rng(1).standard_normal((1000, 16), dtype=np.float32)
    with pytest.raises(velo.GpuError, match=r"libcuda\.so\.1|CUDA_VISIBLE_DEVICES"):
        velo.tune(rows, memory=0.9, device="cuda")
    with pytest.raises(velo.InvalidArgumentError, match="device must be"):
        velo.tune(rows, memory=0.9, device="gpu")
    write_vectors(tmp_path / "rows.fbin", rows)
    line = [
        "tune",
        str(tmp_path / "rows.fbin"),
        "--memory",
        "90%",
        "--recall",
        "0.9",
        "--degree",
        "16",
        "--json",
    ]
    refused = CliRunner().invoke(app, [*line, "--device", "cuda"])
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)["error"]["argument"] == "device"
    found = json.loads(CliRunner().invoke(app, [*line, "--device", "auto"]).stdout)
    assert found["device"] == "auto"
    assert found["open_options"] == {"memory": "90%"}
    assert found["chosen"]["gpu_bytes"] == 0
