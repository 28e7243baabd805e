"""``bench confined``: all of the API runs in a process that the kernel holds to some memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.commands import confined
from bench.harness import cgroup
from bench.harness.datasets import DataError
from bench.harness.sections import Context
from tests.bench.small_set import small_set


def test_every_step_is_told_and_a_process_that_takes_too_much_is_killed(tmp_path: Path) -> None:
    try:
        with cgroup.limited(64 << 20) as group:
            with group.popen([sys.executable, "-c", "b'x' * (200 << 20)"]) as greedy:
                assert greedy.wait() == -9
            assert group.kills == 1
            assert group.peak_bytes <= 64 << 20
    except DataError as refused:
        pytest.skip(str(refused))
    assert not group.path.exists()

    folder = small_set(tmp_path, 30, 3)
    options = {"memory": "40%", "limit_mib": 256, "index": None}
    context = Context(str(folder), str(tmp_path / "work"), None, 20, 0, 1, options)
    confined.run(context, tmp_path / "out", "small", None)
    text = (tmp_path / "out" / "small.md").read_text()
    assert text.count("The process ended well") == len(confined.PARTS), text
    assert "Error" not in text
    assert "insert of 80 rows in one call" in text
    assert not list(cgroup.ROOT.glob("*/velo-bench-*"))
