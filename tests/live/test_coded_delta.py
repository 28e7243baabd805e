"""Many rows that no segment holds: estimates from their codes find the rows that exact distances find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo

DIM = 16
ROWS = 8_000


@pytest.fixture(scope="module", params=["l2", "ip", "cosine"])
def made(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[tuple[velo.Index, np.ndarray]]:
    random = np.random.default_rng(8)
    middles = random.normal(size=(40, DIM))
    vectors = (middles[random.integers(0, 40, ROWS)] + 0.5 * random.normal(size=(ROWS, DIM))).astype(
        np.float32
    )
    vectors[random.integers(0, ROWS, 1200)] = vectors[7]  # copies of one vector
    path = tmp_path_factory.mktemp("delta") / "a.velo"
    with velo.create(path, dim=DIM, metric=request.param, durability="process", threads=1) as index:
        for start in range(0, ROWS, 1000):
            index.insert(vectors[start : start + 1000])
        assert index.info()["live"]["parts"] == []
        yield index, vectors


def queries_of(vectors: np.ndarray, count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    rows = vectors[random.integers(0, len(vectors), count)]
    return rows + 0.3 * random.normal(size=rows.shape).astype(np.float32)


def share_found(got: Any, exact: Any) -> float:
    slack = 1e-5 * np.abs(exact.distances[:, -1:]) + 1e-6
    return float((got.distances <= exact.distances[:, -1:] + slack).mean())


@pytest.mark.parametrize("k", [1, 10, 100])
def test_estimates_find_nearly_all_answers(made: tuple[velo.Index, np.ndarray], k: int) -> None:
    index, vectors = made
    queries = queries_of(vectors, 200, seed=k)
    exact = index.search(queries, k=k, exact=True)
    assert (exact.stats["estimates"] == ROWS).all()
    assert (index.search(queries, k=k, recall=1.0).stats["estimates"] == ROWS).all()
    got = index.search(queries, k=k, recall=0.9)
    assert (got.stats["estimates"] == ROWS).all()
    assert share_found(got, exact) >= 0.999
    for again in (index.search(queries, k=k, recall=0.9), index.search(queries, k=k)):
        assert (again.ids == got.ids).all()


def test_rows_are_found_by_their_own_vectors(made: tuple[velo.Index, np.ndarray]) -> None:
    index, vectors = made
    rows = np.random.default_rng(3).choice(ROWS, 500, replace=False)
    got = index.search(vectors[rows], k=1)
    exact = index.search(vectors[rows], k=1, exact=True)
    # By product a row's own vector need not be its nearest.
    assert share_found(got, exact) >= (0.99 if index.info()["metric"] == "ip" else 1.0)


def test_a_radius_finds_every_row(made: tuple[velo.Index, np.ndarray]) -> None:
    index, vectors = made
    if index.info()["metric"] != "l2":
        return
    squared = ((vectors - vectors[7]) ** 2).sum(axis=1)
    lims, _, _ = index.range_search(vectors[7], radius=1e-6)
    assert lims[-1] == (squared <= 1e-6).sum()


def test_filters_and_deleted_rows(tmp_path: Path) -> None:
    """Whatever share of rows lives or passes, no other is found, and few answers are missed."""
    random = np.random.default_rng(12)
    vectors = random.normal(size=(ROWS, 8)).astype(np.float32)
    numbers = random.integers(0, 100, ROWS)
    schema = pa.schema([("n", pa.int64())])
    with velo.create(tmp_path / "a", dim=8, metadata=schema, durability="process", threads=1) as index:
        for start in range(0, ROWS, 2000):
            index.insert(
                vectors[start : start + 2000], metadata={"n": numbers[start : start + 2000].tolist()}
            )
        queries = queries_of(vectors, 50, seed=1)
        alive = np.ones(ROWS, bool)
        for dead_share in (0.0, 0.3, 0.8):
            gone = np.flatnonzero(alive & (random.random(ROWS) < dead_share))
            index.delete(gone)
            alive[gone] = False
            for below in (100, 60, 3):
                condition = velo.col("n") < below
                exact = index.search(queries, k=10, filter=condition, exact=True)
                got = index.search(queries, k=10, filter=condition)
                assert alive[got.ids].all()
                assert (numbers[got.ids] < below).all()
                assert share_found(got, exact) >= 0.99
                passing = int((alive & (numbers < below)).sum())
                assert (got.stats["estimates"] == passing).all()


def test_rows_replayed_from_the_log_are_found_while_searches_code_them(tmp_path: Path) -> None:
    vectors = np.random.default_rng(4).normal(size=(4_000, 4)).astype(np.float32)
    with velo.create(tmp_path / "a", dim=4, durability="process", threads=1) as index:
        index.insert(vectors)
    with velo.open(tmp_path / "a", threads=1) as index:
        for row in range(0, 4_000, 10):
            found = index.search(vectors[row], k=1)
            assert (found.ids[0], found.distances[0]) == (row, 0)


def cluster_order(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Numbers of the rows, one cluster of 64 after the other: some rounds of k-means."""
    rows = vectors.astype(np.float32)
    centers = rows[np.random.default_rng(seed).choice(len(rows), 64, replace=False)]
    for _ in range(4):
        labels = ((centers**2).sum(axis=1) - 2 * rows @ centers.T).argmin(axis=1)
        centers = np.stack(
            [
                rows[labels == one].mean(axis=0) if (labels == one).any() else center
                for one, center in enumerate(centers)
            ]
        )
    return np.argsort(labels, kind="stable")


def test_rows_inserted_cluster_by_cluster_are_found(tmp_path: Path, sample: Any) -> None:
    """Queries for every cluster, those that are still to come among them, find what is promised."""
    rows = len(sample.base)
    vectors = sample.base[cluster_order(sample.base, seed=5)]
    with velo.create(tmp_path / "a", dim=128, dtype="uint8", durability="process", threads=1) as index:
        for start in range(0, rows, 500):
            index.insert(vectors[start : start + 500])
            end = start + 500
            if end % 2500:
                continue
            asked = [sample.queries]
            if end < rows:
                asked.append(vectors[np.random.default_rng(end).integers(end, rows, 200)])
            for queries in asked:
                exact = index.search(queries, k=10, exact=True)
                assert share_found(index.search(queries, k=10), exact) >= 0.999, end
        for effort in ({"recall": 0.5}, {"recall": 0.995}, {"list_size": 400}):
            assert share_found(index.search(sample.queries, k=10, **effort), exact) >= 0.999
        assert share_found(index.search(sample.queries, k=10, list_size=8192), exact) == 1


@pytest.mark.parametrize(
    ("metric", "dtype"),
    [
        pytest.param(
            metric,
            dtype,
            marks=[]
            if (metric, dtype) in (("l2", np.float32), ("ip", np.uint8), ("cosine", np.float16))
            else [
                pytest.mark.long(
                    guarded_by="tests/live/test_coded_delta.py::test_beside_a_segment_estimates_miss_no_nearer_row"
                )
            ],
        )
        for metric in ("l2", "ip", "cosine")
        for dtype in (np.float32, np.float16, np.uint8)
    ],
)
def test_beside_a_segment_estimates_miss_no_nearer_row(tmp_path: Path, metric: str, dtype: Any) -> None:
    random = np.random.default_rng(9)
    middles = random.uniform(20, 80, size=(40, DIM))
    rows = middles[random.integers(0, 40, 6_000)] + 4 * random.normal(size=(6_000, DIM))
    vectors = np.clip(rows, 0, 255).astype(dtype)
    queries = np.clip(rows[::60] + 2 * random.normal(size=(100, DIM)), 0, 255).astype(dtype)
    velo.build(tmp_path / "a", vectors[:4_000], metric=metric, threads=1, memory="100%").close()
    with velo.open(tmp_path / "a", writable=True, durability="process", threads=2, memory="64MiB") as index:
        for start in range(4_000, 6_000, 500):
            index.insert(vectors[start : start + 500])
        assert index.info()["live"]["delta"]["n"] == 2_000
        all_rows = index.search(queries, 10, recall=0.95, tuning=velo.SearchTuning(filter_plan="scan"))
        got = index.search(queries, 10, recall=0.95)
        found = index.search(queries, 10, recall=0.95, filter=velo.ids(range(2_000, 6_000)))
    young = all_rows.ids >= 4_000
    assert 0.2 < young.mean() < 0.5
    kept = [len(set(a[b]) & set(c)) for a, b, c in zip(all_rows.ids, young, got.ids, strict=True)]
    assert sum(kept) >= 0.99 * young.sum()
    assert (found.ids >= 2_000).all()
