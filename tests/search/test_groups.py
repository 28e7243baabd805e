"""Search by groups, against a plain scan of all rows."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.rungs import RUNGS
from velo import GroupedResult, errors
from velo.testing import synthetic_vectors

ROWS, DIM = 3_000, 24
#: All codes are looked at: what a graph built by two threads does not reach is not tested here.
SURE: dict[str, Any] = {"list_size": 1000, "tuning": velo.SearchTuning(sigma=20.0, filter_plan="scan")}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            rung,
            marks=[]
            if number in (0, 4, 5)
            else [
                pytest.mark.long(guarded_by="tests/search/test_groups.py::test_groups_are_those_of_a_scan")
            ],
        )
        for number, rung in enumerate(RUNGS[::2])
    ],
    ids=str,
)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An index whose nearest rows belong to few groups: brands follow the vectors, one has half of all."""
    rows = synthetic_vectors(ROWS + 20, DIM, seed=5)
    draw = np.random.default_rng(5)
    order = np.argsort(rows[:ROWS, 0])
    brand = np.empty(ROWS, np.int64)
    brand[order] = np.arange(ROWS) * 40 // ROWS
    brand[draw.random(ROWS) < 0.5] = 99
    names = [None if draw.random() < 0.05 else f"brand-{one:02d}" for one in brand]
    start = dt.datetime(2024, 1, 1)
    table = pa.table(
        {
            "brand": pa.array(names).dictionary_encode(),
            "year": pa.array((brand % 7 + 2000).astype(np.int16)),
            "sold": pa.array([bool(one % 2) for one in brand]),
            "when": pa.array([start + dt.timedelta(days=int(one)) for one in brand], pa.timestamp("ns")),
            "price": pa.array(draw.random(ROWS)),
            "tags": pa.array([["a"]] * ROWS),
        }
    )
    path = tmp_path_factory.mktemp("shop") / "shop.velo"
    velo.build(path, rows[:ROWS], metadata=table, threads=1, calibrate=False, **request.param.build).close()
    with velo.open(path, memory=request.param.memory(path), threads=2) as index:
        yield index, rows[ROWS:], table


def by_scan(index: velo.Index, queries: Any, column: list[Any], k: int, size: int, mask: Any = None) -> Any:
    """For each query [(value, [(distance, id), …]), …], from the distances that the index itself reports."""
    found = index.search(queries, ROWS, filter=mask)
    answers = []
    for ids, distances, count in zip(found.ids, found.distances, found.counts, strict=True):
        groups: dict[Any, list[tuple[float, int]]] = {}
        for one, distance in zip(ids[:count].tolist(), distances[:count].tolist(), strict=True):
            if column[one] is not None:
                groups.setdefault(column[one], []).append((distance, one))
        answers.append([(value, hits[:size]) for value, hits in list(groups.items())[:k]])
    return answers


def as_answers(result: GroupedResult) -> Any:
    answers = []
    for row, values in enumerate(result.groups):
        assert len(values) == result.counts[row]
        groups = []
        for place, value in enumerate(values):
            size = int(result.group_sizes[row, place])
            hits = zip(
                result.distances[row, place, :size].tolist(),
                result.ids[row, place, :size].tolist(),
                strict=True,
            )
            groups.append((value, list(hits)))
            assert (result.ids[row, place, size:] == -1).all()
            assert np.isinf(result.distances[row, place, size:]).all()
        assert (result.ids[row, len(values) :] == -1).all()
        assert (result.group_sizes[row, len(values) :] == 0).all()
        answers.append(groups)
    return answers


@pytest.mark.parametrize(("k", "size"), [(1, 1), (3, 1), (10, 1), (5, 3), (20, 2), (2, 40)])
@pytest.mark.parametrize("column", ["brand", "year", "sold"])
def test_groups_are_those_of_a_scan(shop: Any, column: str, k: int, size: int) -> None:
    index, queries, table = shop
    result = index.search(queries, k, group_by=column, group_size=size, **SURE)
    assert isinstance(result, GroupedResult)
    assert result.ids.shape == result.distances.shape == (len(queries), k, size)
    assert result.complete.all()
    assert as_answers(result) == by_scan(index, queries, table.column(column).to_pylist(), k, size)


def test_more_groups_than_there_are(shop: Any) -> None:
    index, queries, table = shop
    result = index.search(queries[:3], 60, group_by="brand", group_size=2, **SURE)
    names = set(table.column("brand").to_pylist()) - {None}
    assert result.complete.all()
    assert all(set(values) == names for values in result.groups)
    assert as_answers(result) == by_scan(index, queries[:3], table.column("brand").to_pylist(), 60, 2)


@pytest.mark.parametrize("form", ["expression", "dict", "sql", "mask", "one each"])
def test_groups_under_a_filter(shop: Any, form: str) -> None:
    index, queries, table = shop
    mask = np.asarray(table.column("price")) < 0.2
    condition: Any = {
        "expression": velo.col("price") < 0.2,
        "dict": {"price": {"$lt": 0.2}},
        "sql": "price < 0.2",
        "mask": mask,
        "one each": [{"price": {"$lt": 0.2}}] * len(queries),
    }[form]
    result = index.search(queries, 6, group_by="brand", group_size=2, filter=condition, **SURE)
    assert as_answers(result) == by_scan(index, queries, table.column("brand").to_pylist(), 6, 2, mask)


def test_a_filter_that_matches_nothing_has_no_groups(shop: Any) -> None:
    index, queries, _ = shop
    result = index.search(
        queries, 3, group_by="brand", filter=velo.col("price") > 7, return_metadata=["price"]
    )
    assert result.counts.tolist() == [0] * len(queries)
    assert (result.ids == -1).all()
    assert result.groups == [[] for _ in queries]
    assert result.complete.all()
    assert [table.num_rows for table in result.metadata] == [0] * len(queries)


def test_a_single_query_metadata_and_arrow(shop: Any) -> None:
    index, queries, table = shop
    result = index.search(
        queries[0], 4, group_by="brand", group_size=2, return_metadata=["brand", "year"], **SURE
    )
    assert result.ids.shape == (4, 2)
    assert len(result.groups) == 4
    ids, distances = result
    assert ids is result.ids
    assert distances is result.distances
    hits = [one for one in result.ids.reshape(-1).tolist() if one >= 0]
    assert result.metadata.to_pylist() == table.select(["brand", "year"]).take(hits).to_pylist()
    shown = result.to_arrow()
    assert shown.column_names == ["query", "group", "value", "rank", "id", "distance", "brand", "year"]
    assert shown.column("id").to_pylist() == hits
    assert shown.column("value").to_pylist() == shown.column("brand").to_pylist()
    assert "GroupedResult" in repr(result)


def test_times_are_groups_to_the_nanosecond(shop: Any) -> None:
    index, queries, table = shop
    result = index.search(queries[:2], 5, group_by="when", group_size=2, **SURE)
    column = list(np.asarray(table.column("when").combine_chunks()))
    assert as_answers(result) == by_scan(index, queries[:2], column, 5, 2)


def test_awaited_groups_are_the_same(shop: Any) -> None:
    index, queries, _ = shop
    options: dict[str, Any] = {"group_by": "brand", "group_size": 2, **SURE}
    waited = asyncio.run(index.search_async(queries, 7, **options))
    assert as_answers(waited) == as_answers(index.search(queries, 7, **options))


def test_groups_count_what_their_searches_cost(shop: Any) -> None:
    index, queries, _ = shop
    plain = index.search(queries, 12)
    grouped = index.search(queries, 12, group_by="brand", group_size=2)
    # With codes of records a search of so few rows has estimated all of them.
    cost = "records_scored" if index.info()["record_code_bytes"] else "estimates"
    more = grouped.stats[cost] > plain.stats[cost]
    # A walk depends on the order of arrivals, so a few queries may cost less the second time.
    assert more.mean() > 0.5 if index.info()["plan"] == "walk" else more.all()
    assert grouped.stats[cost].sum() > plain.stats[cost].sum()
    assert set(grouped.stats) == set(plain.stats)


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"group_by": "colour"}, errors.UnknownColumnError, "colour"),
        ({"group_by": 3}, errors.InvalidArgumentError, "name of a column"),
        ({"group_by": "price"}, errors.InvalidArgumentError, "makes no groups"),
        ({"group_by": "tags"}, errors.InvalidArgumentError, "makes no groups"),
        ({"group_by": "brand", "group_size": 0}, errors.InvalidArgumentError, "group_size"),
        ({"group_by": "brand", "group_size": 1 << 20}, errors.InvalidArgumentError, "hits a query"),
        ({"group_size": 2}, errors.InvalidArgumentError, "goes with group_by"),
        ({"group_by": "brand", "filter": {"colour": 1}}, errors.UnknownColumnError, "colour"),
        ({"group_by": "brand", "filter": [None] * 3}, errors.InvalidArgumentError, "3 filters"),
        ({"group_by": "brand", "list_size": -1}, errors.InvalidArgumentError, "list_size"),
        ({"group_by": "brand", "timeout_s": -1}, errors.InvalidArgumentError, "timeout_s"),
    ],
)
def test_bad_arguments_of_groups_are_refused(
    shop: Any, options: Any, error: type[Exception], part: str
) -> None:
    index, queries, _ = shop
    with pytest.raises(error, match=part):
        index.search(queries, 3, **options)


def test_without_metadata_there_are_no_groups(tmp_path: Path) -> None:
    with (
        velo.build(tmp_path / "i", np.eye(8, dtype=np.float32)) as index,
        pytest.raises(errors.UnknownColumnError, match="without metadata"),
    ):
        index.search(np.ones(8), 2, group_by="brand")


def test_only_the_rows_of_the_hits_are_read(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``return_metadata`` costs k rows, whatever the index holds."""
    index, queries, _ = shop
    read: list[Any] = []
    rows = type(index._seen().metadata).rows

    def spy(store: Any, vertices: Any, columns: Any = None) -> Any:
        found = rows(store, vertices, columns)
        read.append((np.asarray(vertices).copy(), columns, found.num_rows))
        return found

    monkeypatch.setattr(type(index._seen().metadata), "rows", spy)
    monkeypatch.setattr(
        type(index._seen().metadata), "table", lambda store: pytest.fail("the whole table was read")
    )
    result = index.search(queries, 5, return_metadata=["year"], filter=velo.col("price") < 0.001)
    assert len(read) == 1
    vertices, columns, count = read[0]
    assert columns == ["year"]
    assert count == len(vertices) == int(result.counts.sum())
    assert index._seen().ids.of(vertices).tolist() == result.ids[result.ids >= 0].tolist()
    index.search(queries, 5)
    assert len(read) == 1
