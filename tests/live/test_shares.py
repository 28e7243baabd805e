"""What is created and written within a share that holds no codes of the usual bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.segments.segment import segment_bytes
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


def test_small_segments_get_a_part_of_the_budget_at_least() -> None:
    assert segment_bytes("0.3%", 20_000, 1_000_000, 128) == 1 << 18
    assert segment_bytes(4 << 20, 1_000, 100_000, 64) == 1 << 19
    assert segment_bytes("20%", 2_000, 1_000_000, 128) == 5 << 18
    assert segment_bytes("1%", 400_000, 1_000_000, 128) == 2_048_000
    assert segment_bytes("1%", 1_000, 1_000, 128) == 5_120


def test_the_segments_of_a_small_index_get_what_they_need(tmp_path: Path) -> None:
    """Codebooks of many dimensions take more than a segment's share of a budget that is a number of bytes."""
    rows = synthetic_vectors(2_500, 1536, seed=5, intrinsic_dim=16)
    build: Any = {"page_codes": True, "calibrate": False, "degree": 8, "build_list_size": 16}
    velo.build(tmp_path / "i", rows[:2_100], **build).close()
    with pytest.raises(errors.BudgetTooSmallError) as caught:
        velo.open(tmp_path / "i", memory=1)
    needed = caught.value.needed_bytes
    assert needed is not None
    with velo.open(tmp_path / "i", memory=needed, merge_memory="64MiB", writable=True, threads=1) as index:
        index.insert(rows[2_100:])
        index.flush()
    with velo.open(tmp_path / "i", memory=needed, threads=1) as index:
        assert len(index.info()["live"]["parts"]) == 2
        found = index.search(rows[2_000::10], 1, list_size=64).ids[:, 0]
        assert (found == np.arange(2_000, 2_500, 10)).mean() > 0.9
