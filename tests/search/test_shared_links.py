"""Lists of links that neighbors share: what they find, and that all of the API works over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.options import OpenTuning, links_steps
from velo.testing import brute_force, recall_at_k, synthetic_vectors

N, DIM = 6000, 48


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return synthetic_vectors(N, DIM, seed=3, intrinsic_dim=14)


@pytest.fixture(scope="module")
def queries() -> np.ndarray:
    return synthetic_vectors(60, DIM, seed=3, start=N, intrinsic_dim=14)


@pytest.fixture(scope="module")
def folder(rows: np.ndarray, tmp_path_factory: Any) -> Path:
    path = Path(tmp_path_factory.mktemp("shared")) / "a.velo"
    metadata = {"kind": np.arange(N) % 7, "group": np.arange(N) // 3}
    options: Any = {"memory_bits": 2, "record_bits": 6, "page_links": False, "store_vectors": True}
    velo.build(path, rows, metadata=metadata, threads=1, seed=2, **options).close()
    return path


@pytest.fixture(params=sorted(links_steps(shared=True)))
def index(request: Any, folder: Path) -> Any:
    with velo.open(folder, threads=1, tuning=OpenTuning(links_kept=request.param)) as opened:
        assert opened.info()["links_kept"] == request.param
        assert opened.info()["plan"] == "links_in_memory"
        yield opened


def test_a_recall_is_kept_within_two_rounds_or_little_more(
    index: Any, rows: np.ndarray, queries: np.ndarray
) -> None:
    truth = brute_force(rows, queries, 10)
    for recall in (0.9, 0.98):
        found = index.search(queries, recall=recall)
        assert recall_at_k(found.ids, truth.ids) > recall - 0.03
        assert found.stats["rounds"].mean() < 2.5
        assert found.expected.recall >= recall - 0.005  # of 4 links between the curves of 2 and 6


@pytest.mark.parametrize("share", [7, 2])
def test_filters_find_what_passes(index: Any, rows: np.ndarray, queries: np.ndarray, share: int) -> None:
    passes = np.arange(N) % 7 < 7 // share
    truth = brute_force(rows, queries, 10, mask=passes)
    found = index.search(queries, recall=0.95, filter=velo.col("kind") < 7 // share)
    assert passes[found.ids].all()
    assert recall_at_k(found.ids, truth.ids) > 0.93


def test_groups_ranges_and_exact_distances(index: Any, rows: np.ndarray, queries: np.ndarray) -> None:
    exact = index.search(queries, recall=0.98, exact=True)
    near = ((rows[exact.ids] - queries[:, None]) ** 2).sum(axis=2)
    assert exact.distances == pytest.approx(near, rel=1e-5)
    groups = np.asarray(index.search(queries[:3], 5, recall=0.95, group_by="group").ids)[:, :, 0] // 3
    nearest = np.asarray(exact.ids)[:3] // 3
    for own, near_groups in zip(groups, nearest, strict=True):
        assert len(np.unique(own)) == 5
        assert np.isin(own, near_groups).all()
    assert index.verify() > 0


def test_rows_that_come_and_go_are_seen(folder: Path, rows: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "live.velo"
    options: Any = {"memory_bits": 2, "record_bits": 6, "page_links": False}
    velo.build(path, rows[:3000], threads=1, **options).close()
    with velo.open(path, memory="13%", threads=1) as plain:
        assert 0 < plain.info()["links_kept"] < 8
    with velo.open(path, memory="13%", threads=1, writable=True) as index:
        index.insert(rows[3000:3050])
        index.delete(np.arange(10))
        found = np.asarray(index.search(np.concatenate([rows[3000:3050], rows[:10]]), 1, recall=0.99).ids)[
            :, 0
        ]
        assert (found[:50] == np.arange(3000, 3050)).mean() > 0.95
        assert not np.isin(found[50:], np.arange(10)).any()
        index.optimize(wait=True)


def test_a_budget_below_says_what_would_do(folder: Path) -> None:
    with pytest.raises(errors.BudgetTooSmallError) as raised:
        velo.open(folder, memory=115_000, threads=1)
    needed = raised.value.needed_bytes
    assert needed is not None
    with velo.open(folder, memory=needed, threads=1) as index:
        assert index.info()["links_kept"] == min(links_steps(shared=True))
        assert index.info()["memory_within_budget_bytes"] <= needed
