"""Search by radius: what lies within it, its limit, its errors."""

from __future__ import annotations

import asyncio
import math
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.rungs import RUNGS
from velo import errors
from velo.search.script import check_radius
from velo.testing import synthetic_metadata, synthetic_vectors

ROWS, DIM = 3_000, 24
#: All codes are looked at: what a graph built by two threads does not reach is not tested here.
SURE: dict[str, Any] = {"list_size": 1000, "tuning": velo.SearchTuning(sigma=20.0, filter_plan="scan")}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (rung, metric),
            marks=[]
            if number in (1, 6, 11)
            else [
                pytest.mark.long(
                    guarded_by="tests/search/test_range.py::test_a_range_search_returns_exactly_the_rows_within"
                )
            ],
        )
        for number, (rung, metric) in enumerate(zip(RUNGS, cycle(("l2", "ip", "cosine")), strict=False))
    ],
    ids=lambda of: "-".join(map(str, of)),
)
def space(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An index of each rung, its queries and its metadata; metrics take turns."""
    rung, metric = request.param
    rows = synthetic_vectors(ROWS + 10, DIM, seed=6)
    path = tmp_path_factory.mktemp("space") / "i"
    table = synthetic_metadata(ROWS, seed=6)
    velo.build(
        path, rows[:ROWS], metadata=table, metric=metric, threads=1, calibrate=False, **rung.build
    ).close()
    with velo.open(path, memory=rung.memory(path), threads=1) as index:
        yield index, rows[ROWS:], table


@pytest.mark.parametrize("rank", [0, 15, 16, 63, 64, 1500])
def test_a_range_search_returns_exactly_the_rows_within(space: Any, rank: int) -> None:
    index, queries, _ = space
    whole = index.search(queries, ROWS, **SURE)
    radius = float(whole.distances[0, rank])
    lims, distances, ids = index.range_search(queries, radius, **SURE)
    assert lims.dtype == np.int64
    assert lims[0] == 0
    assert lims[-1] == len(ids) == len(distances)
    for row in range(len(queries)):
        within = whole.distances[row] <= radius
        assert ids[lims[row] : lims[row + 1]].tolist() == whole.ids[row][within].tolist()
        np.testing.assert_array_equal(distances[lims[row] : lims[row + 1]], whole.distances[row][within])
    assert lims[1] == rank + 1


def test_the_view_of_one_query_and_arrow(space: Any) -> None:
    index, queries, table = space
    radius = float(index.search(queries, 30, **SURE).distances[:, 29].max())
    found = index.range_search(queries, radius, return_metadata=["label"], **SURE)
    assert len(found) == len(queries)
    assert found.counts.tolist() == np.diff(found.lims).tolist()
    for row in range(len(queries)):
        ids, distances = found[row]
        assert ids.tolist() == found.ids[found.lims[row] : found.lims[row + 1]].tolist()
        assert (np.diff(distances) >= 0).all()
    assert found[-1][0].tolist() == found[len(queries) - 1][0].tolist()
    with pytest.raises(IndexError):
        found[len(queries)]
    shown = found.to_arrow()
    assert shown.column_names == ["query", "rank", "id", "distance", "label"]
    assert shown.column("label").to_pylist() == table.column("label").take(found.ids).to_pylist()
    assert not found.limited.any()
    assert found.stats["reads"].shape == (len(queries),)


@pytest.mark.parametrize("limit", [1, 16, 100])
def test_the_limit_keeps_the_nearest_and_says_so(space: Any, limit: int) -> None:
    index, queries, _ = space
    found = index.range_search(queries, math.inf, limit=limit, **SURE)
    assert found.counts.tolist() == [limit] * len(queries)
    assert found.limited.all()
    # Asked for in steps, with as many candidates as hits: the nearest are those of one search.
    assert found.ids.reshape(-1, limit).tolist() == index.search(queries, limit, **SURE).ids.tolist()


def test_everything_and_nothing(space: Any) -> None:
    index, queries, _ = space
    whole = index.range_search(queries[:2], math.inf)
    assert whole.counts.tolist() == [ROWS, ROWS]
    assert sorted(whole[1][0].tolist()) == list(range(ROWS))
    assert not whole.limited.any()
    nothing = index.range_search(queries, -math.inf, return_metadata=True)
    assert nothing.lims.tolist() == [0] * (len(queries) + 1)
    assert nothing.metadata.num_rows == 0
    none = index.range_search(np.zeros((0, DIM), np.float32), 1.0)
    assert none.lims.tolist() == [0]


def test_a_filter_restricts_it(space: Any) -> None:
    index, queries, table = space
    mask = np.asarray(table.column("price")) < 0.3
    whole = index.search(queries, ROWS, filter=mask, **SURE)
    radius = float(whole.distances[0, 200])
    for condition in (
        velo.col("price") < 0.3,
        {"price": {"$lt": 0.3}},
        "price < 0.3",
        mask,
        ["price < 1", *[velo.col("price") < 0.3] * (len(queries) - 1)],
    ):
        found = index.range_search(queries, radius, filter=condition, **SURE)
        for row in range(1, len(queries)):
            within = whole.distances[row] <= radius
            assert found[row][0].tolist() == whole.ids[row][within].tolist()
    assert index.range_search(queries, radius, filter=velo.col("price") > 3).counts.tolist() == [0] * len(
        queries
    )


def test_awaited_and_blocking_range_searches_are_the_same(space: Any) -> None:
    index, queries, _ = space
    radius = float(np.median(index.search(queries, 200, **SURE).distances))
    plain = index.range_search(queries, radius, **SURE)
    waited = asyncio.run(index.range_search_async(queries, radius, **SURE))
    np.testing.assert_array_equal(plain.lims, waited.lims)
    np.testing.assert_array_equal(plain.ids, waited.ids)


def test_strings_as_ids_and_a_single_query(tmp_path: Path) -> None:
    rows = np.eye(6, dtype=np.float32)
    with velo.build(tmp_path / "i", rows, ids=[f"r{row}" for row in range(6)]) as index:
        found = index.range_search(rows[2], 0.5)
        assert found.ids.tolist() == ["r2"]
        assert len(found) == 1
        assert found.to_arrow().column("id").to_pylist() == ["r2"]


@pytest.mark.parametrize(
    ("radius", "options", "error", "part"),
    [
        (math.nan, {}, errors.InvalidArgumentError, "radius"),
        ("far", {}, errors.InvalidArgumentError, "radius"),
        (True, {}, errors.InvalidArgumentError, "radius"),
        (1.0, {"limit": 0}, errors.InvalidArgumentError, "limit"),
        (1.0, {"limit": 2.5}, errors.InvalidArgumentError, "limit"),
        (1.0, {"filter": {"colour": 1}}, errors.UnknownColumnError, "colour"),
        (1.0, {"filter": [None] * 3}, errors.InvalidArgumentError, "3 filters"),
        (1.0, {"filter": []}, errors.FilterError, "empty"),
        (1.0, {"return_metadata": ["colour"]}, errors.UnknownColumnError, "colour"),
        (1.0, {"timeout_s": 0}, errors.InvalidArgumentError, "timeout_s"),
    ],
)
def test_bad_radii_are_refused(
    space: Any, radius: Any, options: Any, error: type[Exception], part: str
) -> None:
    index, queries, _ = space
    with pytest.raises(error, match=part):
        index.range_search(queries, radius, **options)


@pytest.mark.parametrize("limit", [2**24 + 1, 2**32, 2**70])
def test_a_limit_beyond_the_greatest_is_refused(limit: int) -> None:
    """2**24 hits of a query are the most that are asked for."""
    assert check_radius(1.0, 2**24) == (1.0, 2**24)
    with pytest.raises(errors.InvalidArgumentError) as caught:
        check_radius(1.0, limit)
    assert caught.value.argument == "limit"


def test_the_greatest_limit_is_taken(sample: Any, sample_index: velo.Index) -> None:
    assert len(sample_index.range_search(sample.queries[0], 1.0, limit=2**24).limited) == 1
    with pytest.raises(errors.InvalidArgumentError):
        sample_index.range_search(sample.queries[0], 1.0, limit=2**24 + 1)


class TestManyHits:
    """More than one search of the library brings (4,096)."""

    def test_a_range_with_defaults_brings_up_to_its_limit(
        self, sample: Any, sample_index: velo.Index
    ) -> None:
        found = sample_index.range_search(sample.queries[:2], math.inf)
        assert found.counts.tolist() == [10_000, 10_000]
        assert found.limited.all()
        for row in range(2):
            ids, distances = found[row]
            assert len(set(ids.tolist())) == 10_000
            assert (np.diff(distances) >= 0).all()
            exact = ((sample.base.astype(np.int64) - sample.queries[row]) ** 2).sum(axis=1)
            truth = np.argsort(exact, kind="stable")[:10_000]
            assert len(np.intersect1d(ids, truth)) > 9_900

    def test_a_radius_between_ends_the_pages(self, sample: Any, sample_index: velo.Index) -> None:
        exact = ((sample.base.astype(np.int64) - sample.queries[3]) ** 2).sum(axis=1)
        radius = float(np.sort(exact)[6_000])
        ids, distances = sample_index.range_search(sample.queries[3], radius, limit=20_000, exact=True)[0]
        assert (distances <= radius).all()
        assert len(np.intersect1d(ids, np.flatnonzero(exact <= radius))) > 5_950
        assert len(ids) <= 6_001

    def test_everything_there_is(self, sample: Any, sample_index: velo.Index) -> None:
        found = sample_index.range_search(sample.queries[0], math.inf, limit=2**24)
        assert sorted(found.ids.tolist()) == list(range(20_000))
        assert not found.limited[0]

    def test_a_filter_holds_for_every_page(self, sample: Any, sample_index: velo.Index) -> None:
        allowed = np.asarray(sample.labels.column("price")) < 0.4
        found = sample_index.range_search(sample.queries[0], math.inf, filter=velo.col("price") < 0.4)
        assert sorted(found.ids.tolist()) == np.flatnonzero(allowed).tolist()

    @pytest.mark.parametrize("k", [4096, 4097, 9000, 25_000])
    def test_k_above_the_greatest_of_one_search(self, sample: Any, sample_index: velo.Index, k: int) -> None:
        result = sample_index.search(sample.queries[:2], k, return_metadata=["price"])
        assert result.ids.shape == (2, k)
        real = min(k, 20_000)
        assert result.counts.tolist() == [real, real]
        for row in range(2):
            ids = result.ids[row, :real]
            assert len(set(ids.tolist())) == real
            assert (np.diff(result.distances[row, :real]) >= 0).all()
            assert (result.ids[row, real:] == -1).all()
            assert np.isinf(result.distances[row, real:]).all()
            prices = sample.labels.column("price").take(ids).to_pylist()
            assert result.metadata[row].column("price").to_pylist() == prices
        waited = asyncio.run(sample_index.search_async(sample.queries[0], k))
        np.testing.assert_array_equal(waited.ids, result.ids[0])

    def test_k_beyond_the_greatest_is_refused(self, sample: Any, sample_index: velo.Index) -> None:
        for k in (2**24 + 1, 2**70, 0, -5, True, 4097.0):
            with pytest.raises(errors.InvalidArgumentError) as caught:
                sample_index.search(sample.queries[0], k)
            assert caught.value.argument == "k"
