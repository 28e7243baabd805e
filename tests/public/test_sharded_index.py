"""A collection of shards opened in one process answers as one index over all rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import velo
from velo import errors
from velo.cli.app import app
from velo.testing import synthetic_vectors

ROWS, DIM = 600, 12
SURE: dict[str, Any] = {"list_size": 600}


@pytest.fixture(scope="module", params=["row", "str"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    rows = synthetic_vectors(ROWS + 5, DIM, seed=4)
    folder = tmp_path_factory.mktemp("sharded")
    ids = None if request.param == "row" else [f"r{row:03d}" for row in range(ROWS)]
    options: dict[str, Any] = {
        "metadata": pa.table({"price": list(range(ROWS))}),
        "ids": ids,
        "degree": 16,
        "threads": 1,
        "store_vectors": True,
    }
    velo.build_collection(folder / "c", rows[:ROWS], shards=3, **options)
    with velo.build(folder / "i", rows[:ROWS], **options) as whole, velo.open(folder / "c") as sharded:
        yield whole, sharded, rows[ROWS:]


def test_the_nearest(both: Any) -> None:
    whole, sharded, queries = both
    assert isinstance(sharded, velo.ShardedIndex)
    assert (sharded.n, sharded.dim, sharded.metric, len(sharded), len(sharded.shards)) == (
        ROWS,
        DIM,
        "l2",
        ROWS,
        3,
    )
    for k in (1, 10, ROWS + 50):
        found = sharded.search(queries, k, exact=True, return_metadata=["price"], **SURE)
        wanted = whole.search(queries, k, exact=True, return_metadata=["price"], **SURE)
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.distances, wanted.distances)
        assert found.counts.tolist() == wanted.counts.tolist()
        assert [one.to_pylist() for one in found.metadata] == [one.to_pylist() for one in wanted.metadata]
    one = sharded.search(queries[0], 4, exact=True, return_metadata=True, **SURE)
    assert one.ids.shape == (4,)
    assert one.to_arrow().column_names == ["query", "rank", "id", "distance", "price"]


def test_filters_and_masks(both: Any) -> None:
    whole, sharded, queries = both
    mask = np.arange(ROWS) % 5 == 0
    for condition in (
        "price < 90",
        {"price": {"$gte": 500}},
        mask,
        mask.tolist(),
        [None, *["price < 9"] * 4],
    ):
        found = sharded.search(queries, 7, filter=condition, exact=True, **SURE)
        wanted = whole.search(queries, 7, filter=condition, exact=True, **SURE)
        np.testing.assert_array_equal(found.ids, wanted.ids)
    assert sharded.count("price < 90") == 90
    assert sharded.count(mask) == mask.sum()
    assert sharded.count() == ROWS
    with pytest.raises(errors.InvalidArgumentError):
        sharded.search(queries, filter=mask[:-1])


def test_ranges_and_metadata_by_id(both: Any) -> None:
    whole, sharded, queries = both
    radius = float(whole.search(queries, 40, exact=True, **SURE).distances[:, -1].max())
    found = sharded.range_search(queries, radius, exact=True, return_metadata=["price"], **SURE)
    wanted = whole.range_search(queries, radius, exact=True, return_metadata=["price"], **SURE)
    np.testing.assert_array_equal(found.lims, wanted.lims)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    assert found.metadata.equals(wanted.metadata)
    few = sharded.range_search(queries, math.inf, limit=5)
    assert few.counts.tolist() == [5] * len(queries)
    assert few.limited.all()
    ids = whole.search(queries[0], 6).ids.tolist()
    assert sharded.get(ids).equals(whole.get(ids))
    with pytest.raises(errors.UnknownIdError):
        sharded.get(["nobody" if isinstance(ids[0], str) else -5])


def test_what_a_collection_does_not_do(both: Any, tmp_path: Path) -> None:
    _, sharded, queries = both
    with pytest.raises(errors.UnsupportedError, match="velo serve"):
        sharded.search(queries, group_by="price")
    with pytest.raises(errors.UnsupportedError, match="read"):
        velo.open(sharded.path, writable=True)
    for text in ("{", "[]", '{"dim": 3, "shards": []}'):
        (tmp_path / "collection.json").write_text(text)
        with pytest.raises(errors.CorruptIndexError, match=r"collection\.json"):
            velo.open(tmp_path)


def test_budget_and_info(both: Any) -> None:
    _, sharded, _ = both
    with velo.open(sharded.path, memory="60%", threads=2) as small:
        info = small.info()
        assert info["memory_within_budget_bytes"] <= 0.6 * ROWS * DIM * 4
        assert [one["n"] for one in info["shards"]] == [200, 200, 200]
    with pytest.raises(errors.ClosedError):
        small.shards[0].search(np.zeros(DIM, np.float32))


def test_the_command_searches_it(both: Any, tmp_path: Path) -> None:
    whole, sharded, queries = both
    np.save(tmp_path / "q.npy", queries)
    asked = ["search", str(sharded.path), str(tmp_path / "q.npy"), "--list-size", "600", "--exact", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["ids"] == whole.search(queries, 10, exact=True, **SURE).ids.tolist()
    assert told["queries"] == len(queries)
