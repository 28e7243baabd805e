"""Searches with a few codes of each page in memory: each page that is read says which to read next."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.rungs import PAGES, PAGES_LEAST, RECORDS, Rung, budget_of
from velo.testing import brute_force, recall_at_k, synthetic_vectors

N, DIM, QUERIES = 8_000, 32, 60


@pytest.fixture(scope="module")
def vectors() -> tuple[np.ndarray, np.ndarray]:
    rows, queries = np.split(synthetic_vectors(N + QUERIES, DIM, seed=6, intrinsic_dim=14), [N])
    return rows, queries


@pytest.fixture(scope="module")
def path(vectors: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("walk") / "i.velo"
    build: Any = {"page_codes": True, "page_links": False, "store_vectors": True, "threads": 1}
    velo.build(path, vectors[0], calibrate=False, **build).close()
    return path


@pytest.fixture(scope="module")
def records_path(vectors: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "i.velo"
    build: Any = {"page_codes": True, "record_code_bytes": 16, "store_vectors": True, "threads": 1}
    velo.build(path, vectors[0], calibrate=False, page_links=False, **build).close()
    return path


@pytest.fixture(scope="module", params=[PAGES, PAGES_LEAST, RECORDS])
def index(request: pytest.FixtureRequest, path: Path, records_path: Path) -> Any:
    own = records_path if request.param == RECORDS else path
    with velo.open(own, memory=budget_of(own, request.param), threads=2) as opened:
        assert bool(opened.info()["record_code_bytes"]) == (request.param == RECORDS)
        yield opened


def pages_read(result: velo.SearchResult) -> np.ndarray:
    return result.stats["reads"] + result.stats["shared_reads"]


@pytest.mark.parametrize(("k", "list_size", "recall"), [(1, 20, 0.9), (10, 40, 0.9), (1_000, 1_200, 0.97)])
def test_few_pages_lead_to_the_nearest(
    k: int, list_size: int, recall: float, vectors: Any, index: Any
) -> None:
    rows, queries = vectors
    truth = brute_force(rows, queries, k).ids
    found = index.search(queries, k, list_size=list_size)
    assert (found.counts == k).all()
    assert recall_at_k(found.ids, truth) >= recall
    # A list entry leads to a page at most.
    assert pages_read(found).mean() < 2 * list_size
    assert (2 * found.stats["rounds"] <= pages_read(found) + 3).all()
    exact = index.search(queries, k, list_size=list_size, exact=True)
    assert recall_at_k(exact.ids, truth) >= recall
    differences = rows[exact.ids[:, 0]].astype(np.float64) - queries
    assert np.array_equal(exact.distances[:, 0], (differences**2).sum(1).astype(np.float32))


def test_codes_of_records_save_pages_and_rounds(vectors: Any, path: Path, records_path: Path) -> None:
    rows, queries = vectors
    truth = brute_force(rows, queries, 10).ids
    costs = []
    for own in (path, records_path):
        with velo.open(own, plan="walk", memory=budget_of(own, PAGES), threads=1) as few:
            costs.append(few.search(queries, 10, list_size=60))
    with velo.open(records_path, memory=budget_of(records_path, RECORDS), threads=1) as index:
        found = index.search(queries, 10, list_size=30)
        # Such a budget would hold codes of vectors, too.
        assert index.info()["plan"] == "walk"
    assert recall_at_k(found.ids, truth) >= recall_at_k(costs[0].ids, truth) - 0.01
    for cost in costs:
        assert pages_read(found).mean() < 0.8 * pages_read(cost).mean()
        assert found.stats["rounds"].mean() < 0.8 * cost.stats["rounds"].mean()


@pytest.mark.parametrize("share", [0.3, 2.0])
def test_pages_in_memory_are_not_read(share: float, vectors: Any, path: Path) -> None:
    rows, queries = vectors
    truth = brute_force(rows, queries, 10).ids
    pages = next(path.rglob("pages.bin")).stat().st_size
    memory = budget_of(path, PAGES) + int(share * pages)
    with velo.open(path, memory=memory, plan="walk", threads=2) as index:
        assert index.info()["plan"] == "walk"
        assert index.info()["memory_bytes"]["cache"] > 0
        for _ in range(3):
            found = index.search(queries, 10, list_size=60)
            assert recall_at_k(found.ids, truth) > 0.9
        hits = found.stats["cache_hits"].mean()
        assert hits > 0.2 * share * pages_read(found).mean()
        if share > 1:
            assert (pages_read(found) == 0).all()
            assert (found.stats["rounds"] == 0).all()
        some = index.search(queries, 10, list_size=60, filter=np.arange(N) % 3 == 0)
        assert (some.ids % 3 == 0).all()


def test_longer_lists_read_more_and_find_more(vectors: Any, index: Any) -> None:
    rows, queries = vectors
    truth = brute_force(rows, queries, 10).ids
    found = [index.search(queries, 10, list_size=size) for size in (10, 40, 160)]
    reads = [pages_read(one).mean() for one in found]
    assert reads == sorted(reads)
    assert recall_at_k(found[2].ids, truth) > max(0.97, recall_at_k(found[0].ids, truth))


@pytest.mark.parametrize("share", [0.5, 0.1, 0.02])
def test_pages_are_read_for_matches_or_for_their_tables(share: float, vectors: Any, index: Any) -> None:
    rows, queries = vectors
    mask = np.random.default_rng(3).random(N) < share
    matches = np.flatnonzero(mask)
    truth = matches[brute_force(rows[matches], queries, 10).ids]
    found = index.search(queries, 10, filter=mask, list_size=60)
    assert mask[found.ids].all()
    assert recall_at_k(found.ids, truth) >= 0.9
    assert (found.stats["filtered"] <= found.stats["expanded"]).all()
    told = index.explain(queries[0], filter=mask, list_size=60)
    assert told.filter_plan.chosen == "gate"
    assert told.filter_plan.costs["gate"].reads > 0


def test_pages_of_few_matches_are_read_at_once(vectors: Any, index: Any) -> None:
    rows, queries = vectors
    matches = np.sort(np.random.default_rng(4).choice(N, 50, replace=False))
    found = index.search(queries, 10, filter=matches, exact=True)
    assert np.array_equal(found.ids, matches[brute_force(rows[matches], queries, 10).ids])
    coded = index.search(queries, 10, filter=matches)
    assert (coded.stats["rounds"] == 1).all()
    assert (pages_read(coded) <= len(matches)).all()
    assert index.explain(queries[0], filter=matches).filter_plan.chosen == "scan"
    nothing = index.search(queries, 10, filter=np.zeros(N, bool))
    assert (nothing.counts == 0).all()
    assert (pages_read(nothing) == 0).all()


def test_deleted_rows_lead_on_and_new_ones_are_found(vectors: Any, path: Path, tmp_path: Path) -> None:
    rows, queries = vectors
    copy = tmp_path / "i.velo"
    shutil.copytree(path, copy)
    nearest = np.unique(brute_force(rows, queries, 10).ids)
    kept = np.setdiff1d(np.arange(N), nearest)
    memory = Rung(1, 7, False, PAGES).share(copy)
    with velo.open(copy, memory=memory, writable=True, threads=2) as live:
        assert live.info()["page_codes_kept"] > 0
        live.delete(nearest.tolist())
        found = live.search(queries, 10, list_size=60)
        assert not np.isin(found.ids, nearest).any()
        assert recall_at_k(found.ids, kept[brute_force(rows[kept], queries, 10).ids]) >= 0.9
        live.insert(queries)
        found = live.search(queries, 10, list_size=60)
        assert np.array_equal(found.ids[:, 0], np.arange(N, N + QUERIES))


def test_a_page_that_is_damaged_for_good_is_named(path: Path, vectors: Any, tmp_path: Path) -> None:
    copy = tmp_path / "i.velo"
    shutil.copytree(path, copy)
    pages = next(copy.rglob("pages.bin"))
    with velo.open(copy, threads=1) as index:
        size = index.info()["page_size"]
    whole = bytearray(pages.read_bytes())
    for at in range(size + size // 2, len(whole), size):
        whole[at] ^= 1
    pages.write_bytes(whole)
    with (
        velo.open(copy, memory=budget_of(copy, PAGES_LEAST), threads=1) as index,
        pytest.raises(velo.CorruptIndexError) as damaged,
    ):
        index.search(vectors[1][:3], 10)
    assert damaged.value.page is not None
