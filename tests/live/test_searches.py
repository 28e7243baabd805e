"""Every kind of search over segments, new rows, dead and replaced ones, against plain arithmetic."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.rungs import RUNGS, Rung
from velo import errors
from velo.segments import segment

DIM = 16
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("year", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("sold", pa.bool_()),
    ]
)
METRICS: tuple[Any, ...] = ("l2", "ip", "cosine")
#: Rows that are built, where an index begins as one that was built for a budget. Codes of few rows take less
#: memory than page codes.
BUILT, BUILT_WITH_PAGE_CODES = 300, 1_600


@dataclass
class Row:
    vector: np.ndarray
    kind: str
    year: int | None
    tags: list[str]
    sold: bool


class World:
    """An index under random calls, and what it must hold."""

    def __init__(self, path: Path, metric: Any, seed: int, rung: Rung | None) -> None:
        self.random = np.random.default_rng(seed)
        self.metric = metric
        self.rows: dict[str, Row] = {}
        self.index: velo.Index
        if rung is None:
            self.index = velo.create(path, dim=DIM, metric=metric, metadata=SCHEMA, threads=1)
            return
        ids = [f"row {one}" for one in range(BUILT_WITH_PAGE_CODES if rung.page_codes else BUILT)]
        vectors, columns = self.drawn(ids)
        build: dict[str, Any] = {"metric": metric, "store_vectors": True, "threads": 1, **rung.build}
        velo.build(path, vectors, ids=ids, metadata=columns, **build).close()
        self.index = velo.open(path, memory=rung.share(path), writable=True, threads=1)

    def made(self, count: int) -> list[Row]:
        random = self.random
        return [
            Row(
                random.normal(size=DIM).astype(np.float32) * np.float32(random.uniform(0.5, 2)),
                f"kind {random.integers(0, 6)}",
                None if random.random() < 0.1 else int(random.integers(1990, 2030)),
                [f"tag {one}" for one in sorted(set(random.integers(0, 5, 2).tolist()))],
                bool(random.random() < 0.4),
            )
            for _ in range(count)
        ]

    def drawn(self, ids: list[str]) -> tuple[np.ndarray, pa.Table]:
        """Vectors and columns that these ids have from now on."""
        rows = self.made(len(ids))
        self.rows |= dict(zip(ids, rows, strict=True))
        columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
        return np.stack([row.vector for row in rows]), pa.table(columns, schema=SCHEMA)

    def upsert(self, ids: list[str]) -> None:
        vectors, columns = self.drawn(ids)
        self.index.upsert(vectors, ids, columns)

    def update(self, ids: list[str]) -> None:
        years = [
            None if self.random.random() < 0.2 else int(one)
            for one in self.random.integers(1990, 2030, len(ids))
        ]
        self.index.update(ids, pa.table({"year": pa.array(years, pa.int32())}))
        for one, year in zip(ids, years, strict=True):
            if one in self.rows:
                self.rows[one].year = year

    def delete(self, ids: list[str]) -> None:
        self.index.delete(ids)
        for one in ids:
            self.rows.pop(one, None)

    def some(self, count: int) -> list[str]:
        return [str(one) for one in self.random.choice(sorted(self.rows), count, replace=False)]

    def distances(self, query: np.ndarray, ids: list[str]) -> np.ndarray:
        if not ids:
            return np.zeros(0)
        rows = np.stack([self.rows[one].vector for one in ids]).astype(np.float64)
        wide = query.astype(np.float64)
        if self.metric == "l2":
            return ((rows - wide) ** 2).sum(axis=1)
        if self.metric == "ip":
            return -(rows @ wide)
        return 1 - rows @ wide / np.linalg.norm(rows, axis=1) / np.linalg.norm(wide)

    def agrees(self, query: np.ndarray, got: list[str], wanted: list[str]) -> None:
        """The same rows; those that lie equally far within float32 come in either order."""
        assert len(set(got)) == len(got) == len(wanted)
        apart = [place for place, (one, other) in enumerate(zip(got, wanted, strict=True)) if one != other]
        far = [
            self.distances(query, [ids[place] for place in apart]).astype(np.float32) for ids in (got, wanted)
        ]
        assert np.array_equal(*far), (got, wanted)

    def nearest(self, query: np.ndarray, passes: Callable[[Row], bool]) -> tuple[list[str], np.ndarray]:
        ids = [one for one, row in self.rows.items() if passes(row)]
        distances = self.distances(query, ids)
        order = np.argsort(distances, kind="stable")
        return [ids[place] for place in order], distances[order]


@pytest.fixture(
    scope="module",
    params=[
        *zip(METRICS, [None] * 3, strict=True),
        *(
            pytest.param(
                (metric, rung),
                marks=[]
                if number % 4 == 1
                else [
                    pytest.mark.long(
                        guarded_by="tests/live/test_searches.py::test_a_recall_of_one_equals_arithmetic"
                    )
                ],
            )
            for number, (metric, rung) in enumerate(zip(cycle(METRICS), RUNGS, strict=False))
        ),
    ],
    ids=lambda of: "-".join(map(str, of)),
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of each metric without a budget, then on each rung, where segments get what is theirs of it."""
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    metric, rung = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "SHARE_FLOOR_BYTES", 1)
        yield from _world(tmp_path_factory.mktemp("searches") / f"{metric}.velo", metric, seed, rung)


def _world(path: Path, metric: Any, seed: int, rung: Rung | None) -> Any:
    made = World(path, metric, seed, rung)
    for turn in range(3):
        made.upsert([f"row {one}" for one in range(250 * turn, 250 * turn + 400)])
        made.delete(made.some(40))
        made.update(made.some(30))
        made.index.flush()
    made.upsert([f"row {one}" for one in range(800, 1_000)])
    made.delete(made.some(60))
    made.update(made.some(50))
    info = made.index.info()["live"]
    assert len(info["parts"]) == (3 if rung is None else 4)
    assert info["delta"]["n"] > 0
    assert all(segment["dead"] for segment in info["parts"])
    assert info["delta"]["dead"]
    yield made
    made.index.close()


#: A condition as it is asked, and as Python means it.
FILTERS: dict[str, tuple[Any, Callable[[Row], bool]]] = {
    "everything": (None, lambda row: True),
    "equal": (velo.col("kind") == "kind 3", lambda row: row.kind == "kind 3"),
    "range": (
        velo.col("year").between(2000, 2010),
        lambda row: row.year is not None and 2000 <= row.year <= 2010,
    ),
    "null": (velo.col("year").is_null(), lambda row: row.year is None),
    "list": (
        velo.col("tags").contains_any(["tag 1", "tag 4"]),
        lambda row: bool({"tag 1", "tag 4"} & {*row.tags}),
    ),
    "both": (
        (velo.col("sold") == True) & velo.col("kind").isin(["kind 0", "kind 5"]),  # noqa: E712
        lambda row: row.sold and row.kind in ("kind 0", "kind 5"),
    ),
    "neither": (
        ~((velo.col("sold") == True) | (velo.col("year") < 2015)),  # noqa: E712
        lambda row: not row.sold and row.year is not None and row.year >= 2015,
    ),
    "dict": (
        {"kind": "kind 1", "year": {"$gte": 2005}},
        lambda row: row.kind == "kind 1" and (row.year or 0) >= 2005,
    ),
    "text": ("year > 2020 AND sold", lambda row: (row.year or 0) > 2020 and row.sold),
    "nobody": (velo.col("kind") == "no such kind", lambda row: False),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_recall_of_one_equals_arithmetic(world: World, name: str) -> None:
    condition, passes = FILTERS[name]
    queries = world.random.normal(size=(6, DIM)).astype(np.float32)
    found = world.index.search(queries, 20, filter=condition, recall=1.0, return_metadata=True)
    for query in range(len(queries)):
        ids, distances = world.nearest(queries[query], passes)
        count = min(20, len(ids))
        assert int(found.counts[query]) == count
        own = found.ids[query, :count].tolist()
        world.agrees(queries[query], own, ids[:count])
        assert found.distances[query, :count] == pytest.approx(distances[:count], rel=1e-5, abs=1e-6)
        table = found.metadata[query]
        assert table["year"].to_pylist() == [world.rows[one].year for one in own]
        assert table["tags"].to_pylist() == [world.rows[one].tags for one in own]
    assert world.index.count(condition) == len(world.nearest(queries[0], passes)[0])


@pytest.mark.parametrize("name", FILTERS)
def test_filtered_searches_by_recall_find_only_matching_rows(world: World, name: str) -> None:
    condition, passes = FILTERS[name]
    queries = world.random.normal(size=(20, DIM)).astype(np.float32)
    found = world.index.search(queries, 10, filter=condition, recall=0.95)
    awaited = asyncio.run(world.index.search_async(queries, 10, filter=condition, recall=0.95))
    for answer in (found, awaited):
        hits = wanted = 0
        for query in range(len(queries)):
            ids, _ = world.nearest(queries[query], passes)
            got = answer.ids[query, : int(answer.counts[query])].tolist()
            assert len(got) == len(set(got)) == min(10, len(ids))
            assert set(got) <= set(ids)
            hits += len(set(got) & set(ids[:10]))
            wanted += min(10, len(ids))
        assert hits >= 0.85 * wanted  # of few rows and queries: bench measures recall
    # Without links in memory an answer may depend on the order in which pages arrive.
    if world.index.info()["plan"] == "links_in_memory":
        assert (awaited.ids == found.ids).all()


def test_several_filters_one_a_query(world: World) -> None:
    queries = world.random.normal(size=(len(FILTERS), DIM)).astype(np.float32)
    found = world.index.search(queries, 7, filter=[one for one, _ in FILTERS.values()], recall=1.0)
    for query, (_, passes) in enumerate(FILTERS.values()):
        ids, _ = world.nearest(queries[query], passes)
        assert found.ids[query, : int(found.counts[query])].tolist() == ids[:7]


def test_ids_as_filters(world: World) -> None:
    query = world.random.normal(size=DIM).astype(np.float32)
    some = world.some(30)
    gone = [f"row {one}" for one in range(1_050) if f"row {one}" not in world.rows][:20]
    ids, _ = world.nearest(query, lambda row: any(row is world.rows[one] for one in some))
    found = world.index.search(query, 60, filter=pa.array(some + gone), recall=1.0)
    assert found.ids[: int(found.counts[0])].tolist() == ids
    with pytest.raises(errors.FilterError):
        world.index.search(query, 3, filter=np.ones(world.index.n, bool))


@pytest.mark.parametrize("name", ["everything", "range", "nobody"])
def test_groups(world: World, name: str) -> None:
    condition, passes = FILTERS[name]
    queries = world.random.normal(size=(4, DIM)).astype(np.float32)
    found = world.index.search(
        queries, 4, group_by="kind", group_size=3, filter=condition, recall=1.0, return_metadata=["kind"]
    )
    for query in range(len(queries)):
        ids, _ = world.nearest(queries[query], passes)
        groups: dict[str, list[str]] = {}
        for one in ids:
            groups.setdefault(world.rows[one].kind, []).append(one)
        wanted = [(kind, members[:3]) for kind, members in list(groups.items())[:4]]
        got = [
            (kind, found.ids[query, place, : int(found.group_sizes[query, place])].tolist())
            for place, kind in enumerate(found.groups[query])
        ]
        assert got == wanted
        assert found.complete[query]


@pytest.mark.parametrize("name", ["everything", "both", "nobody"])
def test_ranges(world: World, name: str) -> None:
    condition, passes = FILTERS[name]
    queries = world.random.normal(size=(4, DIM)).astype(np.float32)
    _, every = world.nearest(queries[0], lambda row: True)
    radius = float((every[120] + every[121]) / 2)
    found = world.index.range_search(queries, radius, filter=condition, recall=1.0, return_metadata=["year"])
    for query in range(len(queries)):
        ids, distances = world.nearest(queries[query], passes)
        wanted = [one for one, distance in zip(ids, distances, strict=True) if distance <= radius]
        world.agrees(queries[query], found[query][0].tolist(), wanted)
    assert found.metadata["year"].to_pylist() == [world.rows[one].year for one in found.ids.tolist()]
    few = world.index.range_search(queries[0], radius, limit=5, filter=condition, recall=1.0)
    ids, distances = world.nearest(queries[0], passes)
    wanted = [one for one, far in zip(ids, distances, strict=True) if far <= radius][:5]
    world.agrees(queries[0], few.ids.tolist(), wanted)


def test_all_rows_in_one_answer(world: World) -> None:
    query = world.random.normal(size=DIM).astype(np.float32)
    found = world.index.search(query, 5_000, recall=1.0)  # more than one search of the library brings
    ids, distances = world.nearest(query, lambda row: True)
    got = found.ids[: int(found.counts[0])].tolist()
    assert sorted(got) == sorted(ids)
    # Rows that lie equally far within float32 come in either order.
    assert np.allclose(world.distances(query, got), distances, rtol=1e-6, atol=1e-6)
    assert int(found.counts[0]) == len(world.index) == world.index.count() == len(world.rows)


def test_explain_counts_what_passes(world: World) -> None:
    query = world.random.normal(size=DIM).astype(np.float32)
    for name in ("equal", "range", "nobody"):
        condition, passes = FILTERS[name]
        told = world.index.explain(query, 5, filter=condition, recall=0.9)
        ids, _ = world.nearest(query, passes)
        assert told.matches == len(ids)
        assert int(told.result.counts[0]) == min(5, len(ids))
        assert "plan" in str(told)
    assert world.index.explain(query, 5).matches is None


def test_rows_by_id_and_page_by_page(world: World) -> None:
    some = world.some(40)
    assert (world.index.get_vectors(some) == np.stack([world.rows[one].vector for one in some])).all()
    table = world.index.get(some)
    assert table["id"].to_pylist() == some
    for name in SCHEMA.names:
        assert table[name].to_pylist() == [getattr(world.rows[one], name) for one in some]
    condition, passes = FILTERS["range"]
    found: list[str] = []
    after = None
    while True:
        page = world.index.rows(condition, limit=17, after=after)
        found += page["id"].to_pylist()
        if len(page) < 17:
            break
        after = page["id"][-1]
    assert found == sorted(found)
    wanted = [one for one, row in world.rows.items() if passes(row)]
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(wanted)
    gone = next(f"row {one}" for one in range(1_050) if f"row {one}" not in world.rows)
    for look in (world.index.get, world.index.get_vectors):
        with pytest.raises(errors.UnknownIdError):
            look([some[0], gone])


def test_a_reader_and_a_snapshot_see_the_same(world: World, tmp_path: Path) -> None:
    query = world.random.normal(size=DIM).astype(np.float32)
    name = f"{world.metric}.velo"
    world.index.snapshot(tmp_path / name)
    ids, _ = world.nearest(query, FILTERS["neither"][1])
    for path in (world.index.path, tmp_path / name):
        with velo.open(path, threads=1) as other:
            found = other.search(query, 50, filter=FILTERS["neither"][0], recall=1.0)
            assert found.ids[: int(found.counts[0])].tolist() == ids[:50]


def test_a_query_is_outside_where_it_is_outside_of_all_segments(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    near = random.normal(size=(1_500, DIM)).astype(np.float32)
    with velo.create(tmp_path / "a.velo", dim=DIM, threads=1) as index:
        index.insert(near)
        index.flush()
        index.insert(near + np.float32(200))
        index.flush()
        assert len(index.info()["live"]["parts"]) == 2
        found = index.search(np.stack([near[3], near[3] + 200, near[3] + 9_000]), 3, recall=0.9)
        assert found.stats["outside"].tolist() == [0, 0, 1]
        assert found.ids[:2, 0].tolist() == [3, 1_503]
        assert found.expected is not None
        assert found.expected.recall is None  # no measured query is like the last
        inside = index.search(near[:4], 3, recall=0.9)
        assert inside.expected is not None
        assert inside.expected.recall is not None
        assert inside.expected.recall >= 0.9


def test_cosine_distances_of_new_rows_are_those_of_the_format(tmp_path: Path) -> None:
    """Zero vectors have a distance of their own, and rows far from the origin are distinguished."""
    rng = np.random.default_rng(8)
    rows = (1000 + rng.normal(size=(1500, 16))).astype(np.float32)
    queries = (1000 + rng.normal(size=(10, 16))).astype(np.float32)
    rows[3] = queries[0] = 0
    wide, asked = rows.astype(np.float64), queries.astype(np.float64)
    with np.errstate(invalid="ignore"):
        products = asked @ wide.T / np.sqrt(np.outer((asked**2).sum(1), (wide**2).sum(1)))
    wanted = np.maximum(0, 1 - np.nan_to_num(products, nan=0.5))
    wanted[0, 3] = 0
    with velo.create(tmp_path / "a.velo", dim=16, metric="cosine", threads=1) as index:
        index.insert(rows)
        for how in ({"exact": True}, {"recall": 1.0}):
            found = index.search(queries, 10, **how)
            nearest = np.sort(wanted, axis=1)[:, :10]
            assert found.distances == pytest.approx(nearest, rel=1e-5, abs=1e-15)
            assert found.ids[0, 0] == 3


def test_segments_without_codes_of_records_are_read_beside_one_with_them(
    tmp_path: Path, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimates of records are smaller than those of pages."""
    monkeypatch.setattr(segment, "SHARE_FLOOR_BYTES", 1)
    rung = next(one for one in RUNGS if one.record_code_bytes)
    rows = random.normal(size=(2_400, DIM)).astype(np.float32)
    path = tmp_path / "i"
    velo.build(path, rows[:1_600], threads=1, calibrate=False, **rung.build).close()
    with velo.open(path, memory=rung.share(path), writable=True, threads=1) as index:
        for part in (rows[1_600:2_000], rows[2_000:]):
            index.insert(part)
            index.flush()
        queries = random.normal(size=(100, DIM)).astype(np.float32)
        nearest = np.argsort(((queries[:, None] - rows[None]) ** 2).sum(axis=2), axis=1)[:, :10]
        found = index.search(queries, 10, list_size=24).ids
        of_segments = nearest >= 1_600
        hits = (nearest[:, :, None] == found[:, None]).any(axis=2)
        assert hits[of_segments].mean() > 0.9
