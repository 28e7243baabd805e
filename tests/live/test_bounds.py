"""One bound over all segments: what others have found, a segment need not read for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import SearchTuning
from velo._native.limits import Limit
from velo.search import request as requests
from velo.testing import brute_force, recall_at_k, synthetic_vectors

DIM = 24
K = 10
PLANS: tuple[Any, ...] = ("links_in_memory", "links_on_disk")
#: A worker that has one query at a time shares no read.
ALONE = velo.OpenTuning(queries_in_flight=1, cache_share=0.0)
#: Nothing that an estimate says wrongly is left out.
WIDE = SearchTuning(sigma=4.0)


def rows_of(count: int, seed: int = 3, start: int = 0) -> np.ndarray:
    return synthetic_vectors(count, DIM, seed=seed, start=start, intrinsic_dim=10)


def grown(path: Path, metric: Any, rows: np.ndarray, young: int, each: int) -> None:
    """A segment of most rows, young ones, and some rows that no segment holds."""
    base = len(rows) - (young + 1) * each
    velo.build(path, rows[:base], metric=metric, store_vectors=True, threads=1).close()
    with velo.open(path, writable=True, threads=1) as index:
        for start in range(base, base + young * each, each):
            index.insert(rows[start : start + each])
            index.flush()
        index.insert(rows[base + young * each :])


@pytest.fixture(
    scope="module",
    params=[
        "l2",
        "ip",
        pytest.param(
            "cosine",
            marks=pytest.mark.long(
                guarded_by="tests/live/test_bounds.py::test_young_segments_add_few_reads_and_keep_the_recall"
            ),
        ),
    ],
)
def segments(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("segments")
    rows = rows_of(6_000, seed=5)
    grown(folder / "a.velo", request.param, rows, 6, 120)
    velo.build(folder / "whole.velo", rows, metric=request.param, threads=1).close()
    return folder / "a.velo", request.param, rows, rows_of(200, seed=5, start=6_000)


@pytest.mark.parametrize("plan", PLANS)
def test_young_segments_add_few_reads_and_keep_the_recall(segments: Any, plan: Any) -> None:
    path, metric, rows, queries = segments
    truth = brute_force(rows, queries, K, metric=metric).ids
    with velo.open(path.with_name("whole.velo"), plan=plan, threads=1, tuning=ALONE) as index:
        merged = index.search(queries, K, recall=0.95).stats["reads"].mean()
    with velo.open(path, plan=plan, threads=1, tuning=ALONE) as index:
        assert len(index.info()["live"]["parts"]) == 7
        found = index.search(queries, K, recall=0.95)
        assert recall_at_k(found.ids, truth) >= 0.95
        assert found.stats["reads"].mean() < 1.6 * merged
        exact = index.search(queries, K, recall=0.95, exact=True)
        assert recall_at_k(exact.ids, truth) >= 0.95
        wide = index.search(queries, K, list_size=200, exact=True, tuning=WIDE)
        assert recall_at_k(wide.ids, truth) >= (0.998 if plan == "links_in_memory" else 0.98)


def test_the_nearest_alone_is_found_in_equal_segments(tmp_path: Path) -> None:
    """Of rows of two directions all that lie near err by much the same, in each segment by another."""
    rng = np.random.default_rng(5)
    plane = np.linalg.qr(rng.normal(size=(DIM, 2)))[0].T
    flat = rng.uniform(0, 100, (3_300, 2)) @ plane + rng.normal(0, 0.01, (3_300, DIM))
    rows, queries = np.split(flat.astype(np.float32), [3_000])
    with velo.create(tmp_path / "a", dim=DIM, durability="process", threads=1) as index:
        for some in np.split(rows, 3):
            index.insert(some)
            index.flush()
        found = index.search(queries, 1, recall=0.95)
        assert recall_at_k(found.ids, brute_force(rows, queries, 1).ids) >= 0.95


def test_segments_of_equal_size_reach_the_recall_together(tmp_path: Path) -> None:
    """Of rows without a structure each segment holds its share of the answers."""
    drawn = np.random.default_rng(6).normal(size=(3_200, 64)).astype(np.float32)
    rows, queries = np.split(drawn, [3_000])
    with velo.create(tmp_path / "a", dim=64, durability="process", threads=1) as index:
        for some in np.split(rows, 4):
            index.insert(some)
            index.flush()
        found = index.search(queries, K, recall=0.9)
        assert recall_at_k(found.ids, brute_force(rows, queries, K).ids) >= 0.9


def test_more_segments_than_a_call_takes_are_searched_in_several(
    segments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _, queries = segments
    tuned: Any = {"list_size": 200, "exact": True, "tuning": WIDE}
    with velo.open(path, threads=1, tuning=ALONE) as index:
        whole = index.search(queries, K, **tuned)
        monkeypatch.setattr(requests, "native_limit", lambda _: Limit(1, 3))
        pieces = index.search(queries, K, **tuned)
        waited = asyncio.run(index.search_async(queries, K, **tuned))
    assert recall_at_k(pieces.ids, whole.ids) >= 0.998
    assert (waited.ids == pieces.ids).all()
    # Calls do not share a bound, so together they cost at least as much as one; their counters are added.
    assert (pieces.stats["estimates"] >= 0.9 * whole.stats["estimates"]).all()


def test_expected_costs_of_several_segments_are_their_costs(tmp_path: Path) -> None:
    rows = rows_of(6_000, seed=9)
    velo.build(tmp_path / "a.velo", rows[:4_000], store_vectors=True, threads=1).close()
    with velo.open(tmp_path / "a.velo", writable=True, threads=1, tuning=ALONE) as index:
        for start in (4_000, 5_000):  # a segment of fewer is not calibrated
            index.insert(rows[start : start + 1_000])
            index.flush()
        found = index.search(rows_of(200, seed=9, start=6_000), K, recall=0.95)
        for name in ("reads", "rounds", "records_scored"):
            expected = getattr(found.expected, name)
            assert expected is not None
            assert 0.6 * expected < found.stats[name].mean() < 1.6 * expected


def test_answers_that_are_all_in_one_small_segment_are_found(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    rows = rows_of(4_000, seed=6)
    apart = (random.normal(size=(400, DIM)) * 0.1 + rows[17] * 1.5).astype(np.float32)
    queries = (apart[:80] + random.normal(size=(80, DIM)) * 0.02).astype(np.float32)
    velo.build(tmp_path / "a.velo", rows, metric="l2", store_vectors=True, threads=1).close()
    with velo.open(tmp_path / "a.velo", writable=True, threads=1) as index:
        index.insert(apart)
        index.flush()
        index.insert(rows_of(300, seed=6, start=5_000))
        index.flush()
        truth = brute_force(np.concatenate([rows, apart, rows_of(300, seed=6, start=5_000)]), queries, K)
        assert ((truth.ids >= 4_000) & (truth.ids < 4_400)).all()
        assert recall_at_k(index.search(queries, K, recall=0.95).ids, truth.ids) >= 0.95


def test_awaited_and_blocking_searches_give_the_same_answer(segments: Any) -> None:
    path, _, _, queries = segments
    with velo.open(path, threads=1, tuning=ALONE) as index:
        at_once = index.search(queries, K, recall=0.95)

        async def waited() -> list[velo.SearchResult]:
            halves = (queries[:100], queries[100:])
            return list(await asyncio.gather(*(index.search_async(one, K, recall=0.95) for one in halves)))

        found = asyncio.run(waited())
        assert (np.concatenate([one.ids for one in found]) == at_once.ids).all()
        assert (np.concatenate([one.distances for one in found]) == at_once.distances).all()
        assert (np.concatenate([one.stats["reads"] for one in found]) == at_once.stats["reads"]).all()
        alone = [index.search(one, K, recall=0.95) for one in queries[:20]]
        assert all((one.ids == at_once.ids[place]).all() for place, one in enumerate(alone))


def test_a_segment_of_very_few_rows_is_scanned(tmp_path: Path, random: np.random.Generator) -> None:
    """Of a few rows on one line codes err by more than the rows are apart, whatever others have found."""
    for turn in range(20):
        values = random.integers(1, 1_000_000, 46).astype(np.float32)
        vectors = np.repeat(values[:, None], 6, axis=1)
        with velo.create(tmp_path / str(turn), dim=6, threads=1) as index:
            index.insert(vectors[:6])
            index.flush()
            index.insert(vectors[6:])
            found = index.search(vectors, 1, list_size=500, exact=True)
            assert (found.distances[:, 0] == 0).all(), turn
