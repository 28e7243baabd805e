"""A set of 4,000 rows in a folder of its own, for commands that take the place of a set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.harness.datasets import nearest


def small_set(folder: Path, query_count: int, seed: int) -> Path:
    """Make it below ``folder``, with the true neighbors of its queries."""
    random = np.random.default_rng(seed)
    small = folder / "small"
    small.mkdir()
    base = random.integers(0, 255, size=(4_000, 16)).astype(np.uint8)
    queries = random.integers(0, 255, size=(query_count, 16)).astype(np.float32)
    np.save(small / "base.npy", base)
    np.save(small / "query.npy", queries)
    np.savez(small / "truth.npz", ids=nearest(base, queries, 10, "l2"))
    (small / "set.json").write_text(json.dumps({"metric": "l2"}))
    return small
