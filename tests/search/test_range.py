"""Search by radius: what lies within it, its limit, its errors."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.testing import synthetic_metadata, synthetic_vectors

ROWS, DIM = 3_000, 24
SURE: dict[str, Any] = {"list_size": 1000, "tuning": velo.SearchTuning(sigma=20.0)}


@pytest.fixture(scope="module", params=["l2", "ip", "cosine"])
def space(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An index of each metric, its queries and its metadata."""
    rows = synthetic_vectors(ROWS + 10, DIM, seed=6)
    path = tmp_path_factory.mktemp("space") / "i"
    table = synthetic_metadata(ROWS, seed=6)
    with velo.build(path, rows[:ROWS], metadata=table, metric=request.param, threads=2) as index:
        yield index, rows[ROWS:], table


@pytest.mark.parametrize("rank", [0, 5, 15, 16, 63, 64, 1500])
def test_all_within_and_none_beyond(space: Any, rank: int) -> None:
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


def test_awaited_it_is_the_same(space: Any) -> None:
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
def test_what_is_no_radius(space: Any, radius: Any, options: Any, error: type[Exception], part: str) -> None:
    index, queries, _ = space
    with pytest.raises(error, match=part):
        index.range_search(queries, radius, **options)


def test_a_limit_beyond_the_greatest_is_refused(sample: Any, sample_index: velo.Index) -> None:
    """2**24 hits of a query are the most that are asked for."""
    assert len(sample_index.range_search(sample.queries[0], 1.0, limit=2**24).limited) == 1
    for limit in (2**24 + 1, 2**32, 2**70):
        with pytest.raises(errors.InvalidArgumentError) as caught:
            sample_index.range_search(sample.queries[0], 1.0, limit=limit)
        assert caught.value.argument == "limit"
