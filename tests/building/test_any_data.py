"""Recall on data unlike the sets that velo is tuned on: lengths that vary, outliers, copies, far queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo

N, QUERIES, DIM, K = 2000, 100, 32, 10
SEED = 20


def _random() -> np.random.Generator:
    return np.random.default_rng(SEED)


def _normal(count: int, stream: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([SEED, stream]).normal(size=(count, DIM)).astype(np.float32)


def _lognormal(deviation: float) -> np.ndarray[Any, Any]:
    return _normal(N, 0) * np.exp(deviation * _random().normal(size=(N, 1))).astype(np.float32)


def _with_long_row(factor: float) -> np.ndarray[Any, Any]:
    rows = _normal(N, 0)
    rows[7] *= factor
    return rows


def _mostly_copies() -> np.ndarray[Any, Any]:
    rows = _normal(N, 0)
    rows[600:] = rows[_random().integers(60, size=N - 600)]
    return rows


SETS = {
    "one long row": (_with_long_row(100), _normal(QUERIES, 1)),
    "one very long row": (_with_long_row(1e6), _normal(QUERIES, 1)),
    "lognormal 1": (_lognormal(1), _normal(QUERIES, 1)),
    "lognormal 2": (_lognormal(2), _normal(QUERIES, 1)),
    "copies": (_mostly_copies(), _normal(QUERIES, 1)),
    "far from the origin": (_normal(N, 0) + np.float32(1e4), _normal(QUERIES, 1) + np.float32(1e4)),
    "queries outside": (_normal(N, 0), _normal(QUERIES, 1) * np.float32(1000)),
}


def _scores(rows: np.ndarray[Any, Any], queries: np.ndarray[Any, Any], metric: str) -> np.ndarray[Any, Any]:
    wide, asked = rows.astype(np.float64), queries.astype(np.float64)
    if metric == "ip":
        return np.asarray(-(asked @ wide.T))
    return np.stack([((wide - query) ** 2).sum(axis=1) for query in asked])


def _recall(rows: Any, queries: Any, metric: str, ids: np.ndarray[Any, Any]) -> float:
    scores = _scores(rows, queries, metric)
    tenth = np.sort(scores, axis=1)[:, K - 1 : K]
    found = np.take_along_axis(scores, np.maximum(ids, 0), axis=1)
    return float(((found <= tenth + 1e-9 * np.abs(tenth)) & (ids >= 0)).mean())


#: Every set and every metric in a short run, and all of their pairs in a long one.
PAIRS = [
    pytest.param(
        name,
        metric,
        marks=[pytest.mark.long(guarded_by="tests/building/test_any_data.py::test_recall_holds")]
        if (number + (metric == "ip")) % 2
        else [],
    )
    for number, name in enumerate(SETS)
    for metric in ("l2", "ip")
]


@pytest.mark.parametrize(("name", "metric"), PAIRS)
def test_recall_holds(tmp_path: Path, name: str, metric: velo.types.MetricName) -> None:
    rows, queries = SETS[name]
    with velo.build(tmp_path / "i", rows, metric=metric, search_memory="25%", threads=1) as index:
        got = _recall(rows, queries, metric, index.search(queries, K, recall=0.95).ids)
    assert got >= 0.93, f"{name}, {metric}: {got}"


@pytest.fixture(scope="module", params=["l2", "ip"])
def without(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How rows are built, and what is found of them before another comes."""
    options = {"metric": request.param, "search_memory": "25%", "threads": 1, "calibrate": False}
    with velo.build(tmp_path_factory.mktemp("without") / "i", _normal(N, 0), **options) as index:
        return options, index.search(_normal(QUERIES, 1), K, list_size=1000)


@pytest.mark.parametrize("row", ["longer", "zero", "copy", "mean"])
def test_one_row_more_changes_no_answer(tmp_path: Path, row: str, without: Any) -> None:
    """What is added is found where it belongs, and what was found before is found as before."""
    rows, queries = _normal(N, 0), _normal(QUERIES, 1)
    options, before = without
    metric = options["metric"]
    more = {
        "longer": rows[3] * np.float32(1e5),
        "zero": np.zeros(DIM, np.float32),
        "copy": rows[5],
        "mean": rows.mean(axis=0),
    }[row]
    beside = np.concatenate([rows, more[None]])
    with velo.build(tmp_path / "i", beside, **options) as changed:
        after = changed.search(queries, K, list_size=1000)
    assert _recall(beside, queries, metric, after.ids) >= _recall(rows, queries, metric, before.ids) - 0.01
    # The same row is measured as before, up to what its code errs by: centers may have moved a little.
    for query in range(QUERIES):
        old = dict(zip(before.ids[query].tolist(), before.distances[query].tolist(), strict=True))
        for found, distance in zip(after.ids[query].tolist(), after.distances[query].tolist(), strict=True):
            if found in old:
                assert distance == pytest.approx(old[found], rel=0.02, abs=0.02)


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("n", [1, 3, 40])
def test_few_rows_and_equal_rows(tmp_path: Path, n: int, metric: velo.types.MetricName) -> None:
    """Fewer rows than k, all rows equal, a row of zeros: an answer as good as an exact one."""
    for name, rows in {"different": _normal(n, 0), "equal": np.ones((n, DIM), np.float32)}.items():
        rows[-1] = 0
        with velo.build(tmp_path / name, rows, metric=metric) as index:
            found = index.search(_normal(5, 1), K)
            assert (np.sort(found.ids, axis=1)[:, -min(n, K) :] >= 0).all()
            if n < K:  # all of them are found, once each
                assert (np.sort(found.ids[:, :n], axis=1) == np.arange(n)).all()
            elif metric != "cosine":
                assert _recall(rows, _normal(5, 1), metric, found.ids[:, :K]) >= 0.9


def test_vectors_that_a_build_stores_by_itself_take_the_place_of_an_index(tmp_path: Path) -> None:
    """The folder beside the one to replace is locked by the build that fills it."""
    random = np.random.default_rng(3)
    tight = np.repeat(random.normal(size=(120, DIM)), 10, axis=0)
    rows = (tight + random.normal(size=tight.shape) * 1e-3).astype(np.float32)
    velo.build(tmp_path / "i", _normal(N, 0), threads=2).close()
    with velo.build(tmp_path / "i", rows, memory_bits=1, record_bits=1, overwrite=True, threads=2) as index:
        assert index.n == len(rows)
        assert np.array_equal(index.get_vectors([7]), rows[[7]])


def test_queries_unlike_the_rows_have_no_expected_recall(tmp_path: Path) -> None:
    rows, queries = _normal(N, 0), _normal(QUERIES, 1)
    far = queries * np.float32(1000)
    with velo.build(tmp_path / "i", rows, search_memory="25%", store_vectors=True, threads=2) as index:
        near = index.search(queries, K, recall=0.95)
        assert near.expected is not None
        assert near.expected.recall is not None
        assert near.expected.recall >= 0.9
        assert not near.stats["outside"].any()
        # One of them is enough: what is expected is a mean over all.
        for asked in (far, far[0], np.concatenate([queries, far[:1]])):
            outside = index.search(asked, K, recall=0.95)
            assert outside.expected == velo.Expectation(near.expected.list_size)
            assert outside.stats["outside"].sum() == max(1, len(asked) if asked is far else 1)
        every = index.search(far, K, recall=1.0)
        assert every.expected is not None
        assert every.expected.recall == 1
