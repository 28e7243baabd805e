"""``bench confined``: all of the API runs in a process that the kernel holds to some memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.commands import confined
from bench.harness import cgroup
from bench.harness.datasets import DataError, nearest
from bench.harness.sections import Context


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

    random = np.random.default_rng(3)
    folder = tmp_path / "small"
    folder.mkdir()
    base = random.integers(0, 255, size=(4_000, 16)).astype(np.uint8)
    queries = random.integers(0, 255, size=(30, 16)).astype(np.float32)
    np.save(folder / "base.npy", base)
    np.save(folder / "query.npy", queries)
    np.savez(folder / "truth.npz", ids=nearest(base, queries, 10, "l2"))
    (folder / "set.json").write_text(json.dumps({"metric": "l2"}))
    options = {"memory": "40%", "limit_mib": 256, "index": None}
    context = Context(str(folder), str(tmp_path / "work"), None, 20, 0, 1, options)
    confined.run(context, tmp_path / "out", "small", None)
    text = (tmp_path / "out" / "small.md").read_text()
    assert text.count("The process ended well") == len(confined.PARTS), text
    assert "Error" not in text
    assert "insert of 80 rows in one call" in text
    assert not list(cgroup.ROOT.glob("*/velo-bench-*"))
