"""What is created and written within a share that holds no codes of the usual bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import velo
from velo.testing import brute_force, recall_at_k, synthetic_vectors

DIM = 64


@pytest.mark.parametrize(("memory", "bits"), [("4%", 1), ("12%", 2)])
def test_the_first_segment_fits_the_memory_share(memory: str, bits: int, tmp_path: Path) -> None:
    rows, queries = np.split(synthetic_vectors(8_040, DIM, seed=3, intrinsic_dim=16), [8_000])
    velo.create(tmp_path / "i", dim=DIM).close()
    with velo.open(tmp_path / "i", memory=memory, merge_memory="64MiB", writable=True, threads=1) as index:
        for begin in range(0, 8_000, 4_000):
            index.insert(rows[begin : begin + 4_000], ids=np.arange(begin, begin + 4_000))
            index.flush()
        assert index.info()["memory_bits"] == bits
        index.delete(np.arange(100))
        index.optimize()
        info = index.info()
        assert (info["memory_bits"], info["page_codes"]) == (bits, memory == "4%")
        assert info["memory_within_budget_bytes"] <= info["memory_budget_bytes"]
        truth = brute_force(rows[100:], queries, 10).ids + 100
        found = index.search(queries, 10, list_size=300)
        assert recall_at_k(found.ids, truth) > 0.95
    with velo.open(tmp_path / "i", memory=memory, threads=1) as index:
        assert np.array_equal(index.search(queries, 10, list_size=300, exact=True).ids[:, 0], truth[:, 0])
