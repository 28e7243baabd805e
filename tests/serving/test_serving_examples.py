"""The serving examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving.conftest import Served


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


@pytest.mark.ray
def test_ray_job(root: Path, sharded_path: Path) -> None:
    told = run(root, "ray_job.py", str(sharded_path))
    assert "4 of 4 shards answered" in told
    assert told.count("query ") == 5


@pytest.mark.ray
def test_ray_data_batch(root: Path, sample_path: Path) -> None:
    told = run(root, "ray_data_batch.py", str(sample_path))
    assert "200 queries searched" in told
    assert told.count("query ") == 3
