"""Searches over given candidates: their distances, and nothing else is found, read or navigated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors

N, DIM = 3_000, 16


def rows() -> np.ndarray:
    return np.random.default_rng(4).normal(size=(N, DIM)).astype(np.float32)


@pytest.fixture(scope="module", params=["memory", "disk"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[velo.Index]:
    path = tmp_path_factory.mktemp("candidates") / "a.velo"
    velo.build(path, rows(), metadata={"n": range(N)}, store_vectors=True, threads=1, calibrate=False).close()
    plan = "links_in_memory" if request.param == "memory" else "links_on_disk"
    with velo.open(path, plan=plan, threads=1) as opened:
        yield opened


def expected(query: np.ndarray, candidates: Any, k: int) -> tuple[list[int], np.ndarray]:
    """The nearest of some rows, by the definition."""
    some = np.unique(np.asarray(candidates, np.int64))
    distances = ((rows()[some].astype(float) - query) ** 2).sum(axis=1)
    order = np.argsort(distances, kind="stable")[:k]
    return some[order].tolist(), distances[order]


def test_one_list_for_all_queries(index: velo.Index) -> None:
    random = np.random.default_rng(1)
    queries = random.normal(size=(6, DIM)).astype(np.float32)
    for count in (1, 9, 64, 500, N):
        candidates = random.choice(N, count, replace=False)
        found = index.search(queries, 10, candidates=candidates, exact=True, recall=1.0)
        for row, query in enumerate(queries):
            ids, distances = expected(query, candidates, 10)
            assert found.ids[row, : len(ids)].tolist() == ids
            np.testing.assert_allclose(found.distances[row, : len(ids)], distances, rtol=1e-5)
            assert (found.ids[row, len(ids) :] == -1).all()
            assert found.counts[row] == len(ids)


def test_a_list_for_each_query(index: velo.Index) -> None:
    random = np.random.default_rng(2)
    queries = random.normal(size=(4, DIM)).astype(np.float32)
    lists = [random.choice(N, count, replace=False).tolist() for count in (3, 50, 1, 20)]
    found = index.search(queries, 5, candidates=lists, exact=True, return_metadata=["n"])
    assert found.metadata is not None
    for row, query in enumerate(queries):
        ids, _ = expected(query, lists[row], 5)
        assert found.ids[row, : len(ids)].tolist() == ids
        assert found.metadata[row]["n"].to_pylist() == ids
    together = index.search(queries[:2], 5, candidates=np.array(lists[1][:20]).reshape(2, 10), exact=True)
    assert together.ids[1].tolist() == expected(queries[1], lists[1][10:20], 5)[0]
    empty = index.search(queries, 5, candidates=[[], lists[1], [], []])
    assert empty.counts.tolist() == [0, 5, 0, 0]
    assert index.search(queries[0], 5, candidates=[]).counts.tolist() == [0]


def test_a_filter_holds_beside_it(index: velo.Index) -> None:
    query = np.zeros(DIM, np.float32)
    candidates = np.arange(0, N, 7)
    found = index.search(query, 10, candidates=candidates, filter="n < 500", exact=True)
    assert found.ids.tolist() == expected(query, candidates[candidates < 500], 10)[0]
    conditions = [velo.col("n") < 500, velo.col("n") >= 2900]
    each = index.search(np.stack([query, query]), 10, candidates=candidates, filter=conditions, exact=True)
    assert each.ids[0].tolist() == found.ids.tolist()
    assert each.ids[1].tolist() == expected(query, candidates[candidates >= 2900], 10)[0]


def test_candidates_are_read_in_one_io_round(index: velo.Index) -> None:
    """Few candidates: their pages at once, and no way to them."""
    random = np.random.default_rng(3)
    for _ in range(5):
        candidates = random.choice(N, 40, replace=False)
        found = index.search(random.normal(size=DIM), 40, candidates=candidates)
        assert sorted(found.ids.tolist()) == sorted(candidates.tolist())
        assert found.stats["expanded"].tolist() == [0]
        assert found.stats["estimates"][0] == 40
        assert found.stats["rounds"][0] <= 1  # none where all pages are in memory
        assert found.stats["reads"][0] + found.stats["cache_hits"][0] <= 40


def test_masks_of_many_queries_stay_small(index: velo.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    from velo.search import hybrid

    random = np.random.default_rng(5)
    queries = random.normal(size=(7, DIM)).astype(np.float32)
    lists = [random.choice(N, 30, replace=False) for _ in queries]
    whole = index.search(queries, 4, candidates=lists)
    monkeypatch.setattr(hybrid, "_MASK_BITS", 2 * N)
    some = index.search(queries, 4, candidates=lists)
    assert whole.ids.tolist() == some.ids.tolist()
    assert whole.stats["estimates"].tolist() == some.stats["estimates"].tolist()


def test_awaited(index: velo.Index) -> None:
    query = np.zeros(DIM, np.float32)
    found = asyncio.run(index.search_async(query, 3, candidates=[5, 6, 7, 9_999], unknown="skip"))
    assert sorted(found.ids.tolist()) == [5, 6, 7]


def test_unknown_ids(index: velo.Index) -> None:
    query = np.zeros(DIM, np.float32)
    with pytest.raises(errors.UnknownIdError):
        index.search(query, candidates=[1, 99_999])
    found = index.search(query, 3, candidates=[1, 99_999, -1], unknown="skip")
    assert found.ids.tolist() == [1, -1, -1]
    padded = np.array([[1, 2, -1], [3, -1, -1]])
    found = index.search(np.stack([query, query]), 3, candidates=padded, unknown="skip")
    assert found.counts.tolist() == [2, 1]


def test_rows_that_come_and_go(tmp_path: Path) -> None:
    vectors, query = rows(), np.zeros(DIM, np.float32)
    names = np.array([f"row-{row}" for row in range(N)])
    with velo.create(tmp_path / "a.velo", dim=DIM, threads=1) as index:
        index.insert(vectors[:1000], names[:1000])
        index.flush()
        index.insert(vectors[1000:2000], names[1000:2000])
        index.flush()
        index.insert(vectors[2000:], names[2000:])
        candidates = np.arange(3, N, 11)
        found = index.search(query, 20, candidates=names[candidates].tolist(), exact=True)
        ids, distances = expected(query, candidates, 20)
        assert found.ids.tolist() == names[ids].tolist()
        np.testing.assert_allclose(found.distances, distances, rtol=1e-5)
        index.delete(names[ids[:5]].tolist())
        with pytest.raises(errors.UnknownIdError):
            index.search(query, candidates=[names[ids[0]]])
        with pytest.raises(errors.InvalidArgumentError) as raised:
            index.search(query, candidates=[1, 2])
        assert raised.value.argument == "candidates"
        left = index.search(query, 15, candidates=names[candidates].tolist(), exact=True, unknown="skip")
        assert left.ids.tolist() == names[ids[5:]].tolist()


def test_shards(tmp_path: Path) -> None:
    velo.build_collection(tmp_path / "a", rows(), shards=3, store_vectors=True, threads=1, calibrate=False)
    query = np.zeros(DIM, np.float32)
    with velo.open(tmp_path / "a", writable=True) as index:
        candidates = np.arange(1, N, 13)
        found = index.search(query, 20, candidates=candidates, exact=True)
        ids, _ = expected(query, candidates, 20)
        assert found.ids.tolist() == ids
        index.delete(ids[:3])
        left = index.search(query, 17, candidates=candidates, exact=True, unknown="skip")
        assert left.ids.tolist() == ids[3:]
