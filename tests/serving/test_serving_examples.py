"""The serving examples run as they stand."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serving.conftest import RAY_MARKS, Served


def on_ray(test: Any) -> Any:
    """The marks of tests on Ray, and of its data sets."""
    for mark in (*RAY_MARKS, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")):
        test = mark(test)
    return test


def run(root: Path, name: str, *arguments: str) -> str:
    """What an example prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, str(root / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_http_client(root: Path, served_index: Served) -> None:
    told = run(root, "http_client.py", served_index.url)
    assert "1 of 1 shards answered" in told
    assert told.count("query ") == 4


@pytest.fixture
def in_this_process(local_ray: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a program here, on the Ray that runs already; gives what it prints."""

    def run(path: Path, *arguments: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [str(path), *arguments])
            capsys.readouterr()
            runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


@on_ray
def test_ray_job(root: Path, sharded_path: Path, in_this_process: Callable[..., str]) -> None:
    copy = sharded_path.with_name("examples.velo")  # of another name than what other tests serve
    shutil.copytree(sharded_path, copy)
    told = in_this_process(root / "examples" / "ray_job.py", str(copy))
    assert "2 of 2 shards answered" in told
    assert told.count("query ") == 5


@on_ray
def test_ray_data_batch(root: Path, sample_path: Path, in_this_process: Callable[..., str]) -> None:
    told = in_this_process(root / "examples" / "ray_data_batch.py", str(sample_path))
    assert "200 queries searched" in told
    assert told.count("query ") == 3
