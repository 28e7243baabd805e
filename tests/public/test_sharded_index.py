"""A collection of shards opened in one process answers as one index over all rows."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
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
    for k in (1, 10, ROWS + 50, 5000):
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
    listed = velo.mask(mask) & (velo.col("price") < 90) | ~velo.mask(~mask) & (velo.col("price") > 590)
    assert sharded.count(listed) == whole.count(listed) == mask[:90].sum() + mask[591:].sum()
    for short in (mask[:-1], velo.mask(mask[:-1])):
        with pytest.raises(errors.FilterError, match="600"):
            sharded.search(queries, filter=short)


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
    assert sharded.get(ids, unknown="skip").equals(whole.get(ids))
    assert sharded.schema == whole.schema
    with pytest.raises(errors.UnknownIdError):
        sharded.get(["nobody" if isinstance(ids[0], str) else -5])


def test_groups(both: Any) -> None:
    whole, sharded, queries = both
    parity = pa.table({"parity": [row % 7 for row in range(ROWS)], "price": list(range(ROWS))})
    for one in (whole, sharded):
        one.set_metadata(parity)
    asked: dict[str, Any] = {"group_by": "parity", "group_size": 3, "exact": True, **SURE}
    found = sharded.search(queries, 4, return_metadata=["price"], **asked)
    wanted = whole.search(queries, 4, return_metadata=["price"], **asked)
    assert isinstance(found, velo.GroupedResult)
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.group_sizes, wanted.group_sizes)
    assert found.groups == wanted.groups
    assert [one.to_pylist() for one in found.metadata] == [one.to_pylist() for one in wanted.metadata]
    for one in (whole, sharded):
        one.set_metadata(parity.select(["price"]))
    with pytest.raises(errors.UnknownColumnError, match="parity"):
        sharded.search(queries, **asked)


def test_awaited_searches(both: Any) -> None:
    whole, sharded, queries = both

    async def search(index: velo.Index) -> Any:
        return await asyncio.gather(
            *(index.search_async(one, 5, filter="price < 300", exact=True, **SURE) for one in queries),
            index.search_async(queries, 5, group_by="price", exact=True, **SURE),
            index.range_search_async(queries, 1e9, limit=7, exact=True, **SURE),
        )

    for found, wanted in zip(asyncio.run(search(sharded)), asyncio.run(search(whole)), strict=True):
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.distances, wanted.distances)
    with pytest.raises(errors.SearchTimeoutError):
        asyncio.run(sharded.search_async(np.repeat(queries, 4000, axis=0), 50, timeout_s=1e-6))


def test_explain_and_expectation(both: Any) -> None:
    whole, sharded, queries = both
    explained = sharded.explain(queries[0], 5, filter="price < 90", exact=True)
    assert explained.matches == 90
    assert explained.filter_plan is not None
    assert "links_in_memory" in str(explained)
    np.testing.assert_array_equal(
        explained.result.ids, whole.search(queries[0], 5, filter="price < 90", exact=True).ids
    )
    found = sharded.search(queries, 5, list_size=40)
    assert found.expected.list_size == 40
    assert (found.stats["latency_us"] > 0).all()


def test_rows_vectors_and_files(both: Any, tmp_path: Path) -> None:
    whole, sharded, queries = both
    ids = whole.search(queries[0], 9).ids.tolist()
    np.testing.assert_array_equal(sharded.get_vectors(ids), whole.get_vectors(ids))
    nobody = "nobody" if isinstance(ids[0], str) else -5
    assert sharded.contains([*ids, nobody]).tolist() == [True] * 9 + [False]
    with pytest.raises(errors.UnknownIdError):
        sharded.get_vectors([nobody])
    first = sharded.rows("price >= 150", limit=260)
    rest = sharded.rows("price >= 150", limit=260, after=first["id"][-1])
    assert [len(first), len(rest)] == [260, 190]
    assert pa.concat_tables([first, rest]).equals(whole.rows("price >= 150", limit=ROWS))
    assert sharded.verify() == sum(shard.verify() for shard in sharded.shards) > 0
    assert not sharded.refresh()
    sharded.snapshot(tmp_path / "copy")
    with pytest.raises(errors.IndexExistsError):
        sharded.snapshot(tmp_path / "copy")
    with velo.open(tmp_path / "copy") as copy, pickle.loads(pickle.dumps(copy)) as again:
        assert isinstance(copy, velo.ShardedIndex)
        np.testing.assert_array_equal(copy.search(queries, 7).ids, sharded.search(queries, 7).ids)
        np.testing.assert_array_equal(again.search(queries, 7).ids, sharded.search(queries, 7).ids)


def test_metadata_by_id_and_new_columns(both: Any, tmp_path: Path) -> None:
    _, sharded, _ = both
    sharded.snapshot(tmp_path / "c")
    with velo.open(tmp_path / "c") as index:
        ids = index.rows(limit=ROWS, columns=["price"])
        backwards = pa.table({"of": ids["id"][::-1], "price": pa.array(range(ROWS))})
        index.set_metadata(backwards, ids_column="of")
        assert index.get(ids["id"][::-1])["price"].to_pylist() == list(range(ROWS))
        unknown = backwards.set_column(0, "of", pa.array(["x"] * ROWS))
        with pytest.raises(errors.VeloError):
            index.set_metadata(unknown, ids_column="of")
        index.add_columns({"stock": 12})
        assert index.count("stock = 12") == ROWS
    with velo.open(tmp_path / "c", writable=True) as index:
        index.add_columns({"color": pa.string()})
        index.update(filter="price < 3", metadata={"color": "red"})
        assert index.count({"color": "red"}) == 3


def test_a_damaged_list_of_shards_is_a_typed_error(tmp_path: Path) -> None:
    for text in (
        "{",
        "[]",
        '{"dim": 3, "shards": []}',
        '{"dim": 3, "shards": [{"path": "../x", "rows": 1}]}',
    ):
        (tmp_path / "collection.json").write_text(text)
        with pytest.raises(errors.CorruptIndexError, match=r"collection\.json"):
            velo.open(tmp_path)


def test_budget_and_info(both: Any) -> None:
    _, sharded, _ = both
    with velo.open(sharded.path, memory="60%", threads=2) as small:
        info = small.info()
        assert info["memory_within_budget_bytes"] <= 0.6 * ROWS * DIM * 4
        assert [one["n"] for one in info["shards"]] == [200, 200, 200]
        assert info.keys() == {*info["shards"][0], "shards"}
        assert sum(info["disk_bytes"].values()) == sum(
            file.stat().st_size
            for file in sharded.path.rglob("*")
            if file.name != "collection.json" and file.is_file()
        )
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
