"""Scoring is fair: recall by distance, truth that is exact, a set whose parts fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.harness import datasets

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "data"


def made(base: np.ndarray, queries: np.ndarray, metric: str = "l2") -> datasets.Dataset:
    truth = datasets.nearest(base, queries, 3, metric)
    return datasets.Dataset("made", Path(), metric, base, queries, truth)


def test_nearest_agrees_with_direct_computation() -> None:
    rng = np.random.default_rng(5)
    base = rng.integers(0, 256, (500, 16), dtype=np.uint8)
    queries = rng.integers(0, 256, (40, 16), dtype=np.uint8)
    squared = ((base[None].astype(np.int64) - queries[:, None].astype(np.int64)) ** 2).sum(axis=2)
    expected = np.argsort(squared, axis=1, kind="stable")[:, :7]
    assert np.array_equal(datasets.nearest(base, queries, 7, "l2"), expected)


def test_nearest_under_cosine_ignores_length() -> None:
    rng = np.random.default_rng(6)
    base = rng.standard_normal((300, 12)).astype(np.float32)
    queries = rng.standard_normal((20, 12)).astype(np.float32)
    long = base * rng.uniform(0.1, 10, (300, 1)).astype(np.float32)
    assert np.array_equal(
        datasets.nearest(base, queries, 5, "cosine"), datasets.nearest(long, queries, 5, "cosine")
    )


def test_recall_counts_ties_and_neither_repeats_nor_padding() -> None:
    base = np.array([[0], [1], [3], [3], [9], [20]], dtype=np.uint8)
    dataset = made(base, np.array([[0]], dtype=np.uint8))
    assert dataset.truth_ids.tolist() == [[0, 1, 2]]

    def share(*ids: int) -> float:
        return float(datasets.recall(dataset, np.array([ids]), k=3)[0])

    assert share(0, 1, 2) == 1
    assert share(1, 3, 0) == 1  # row 3 lies where row 2 does
    assert share(0, 0, 0) == pytest.approx(1 / 3)
    assert share(0, 1, 4) == pytest.approx(2 / 3)
    assert share(-1, -1, -1) == 0


def test_sample_truth_is_what_this_module_computes() -> None:
    whole = datasets.load(SAMPLE)
    assert (whole.n, whole.dim, len(whole.queries)) == (20_000, 128, 200)
    assert np.array_equal(datasets.nearest(whole.base, whole.queries, datasets.K, "l2"), whole.truth_ids)


def test_limit_brings_truth_of_its_own() -> None:
    part = datasets.load(SAMPLE, limit=1000, query_count=20)
    assert part.n == 1000
    assert part.truth_ids.shape == (20, datasets.K)
    assert part.truth_ids.max() < 1000
    shuffled = replace(part, truth_ids=part.truth_ids[:, ::-1])
    assert datasets.recall(shuffled, part.truth_ids).mean() == 1


def test_a_folder_without_a_set_says_so(tmp_path: Path) -> None:
    with pytest.raises(datasets.DataError, match=r"base\.u8bin"):
        datasets.load(tmp_path)
