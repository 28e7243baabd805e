"""Groups and radii over several shards and over HTTP: the answer of one index over all rows."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs

import velo
from tests.serving.conftest import THINGS_DIM, THINGS_SHARDS
from tests.serving.exact_gateway import asked, serving
from velo.errors import NotFiniteError, UnknownColumnError
from velo.testing import synthetic_vectors
from velo_serving import open_local_backend
from velo_serving.protocol.types import Answer, Hits, SearchRequest
from velo_serving.routing.merge import fill_groups, follow_ups, merge_groups, thin_groups
from velo_serving.routing.shard_queue import PendingRequest

ROWS, DIM, SHARDS = 2_000, 16, 4
SURE: dict[str, Any] = {"list_size": 600}


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[velo.Index, Path, np.ndarray]]:
    """One index, and its rows in four shards; brands follow the vectors, so shards see different ones."""
    rows = synthetic_vectors(ROWS + 12, DIM, seed=9)
    rows[:ROWS] = rows[np.argsort(rows[:ROWS, 0], kind="stable")]
    draw = np.random.default_rng(9)
    brand = (np.arange(ROWS) * 30 // ROWS + draw.integers(0, 12, ROWS)).tolist()
    start = np.datetime64("2024-01-01", "ns")
    table = pa.table(
        {
            "brand": pa.array([None if one % 17 == 0 else f"b{one:02d}" for one in brand]),
            "price": pa.array(draw.random(ROWS)),
            "day": pa.array([start + np.timedelta64(one, "D") for one in brand]),
        }
    )
    folder = tmp_path_factory.mktemp("halves")
    options: dict[str, Any] = {"metadata": table, "threads": 2, "memory_bits": 6, "record_bits": 8}
    sharded = velo.build_collection(folder / "sharded.velo", rows[:ROWS], shards=SHARDS, **options)
    with velo.build(folder / "whole.velo", rows[:ROWS], **options) as whole:
        yield whole, sharded, rows[ROWS:]


def ask(path: Path, method: str, *arguments: Any, body_format: Any = "json", **options: Any) -> Any:
    backend = open_local_backend(path, threads=1)
    return asked(backend, method, *arguments, client={"body_format": body_format}, **options)


def overlap(found: Any, wanted: Any) -> float:
    """Of all that should be there, the share that is."""
    pairs = [(set(a), set(b)) for a, b in zip(found, wanted, strict=True)]
    return sum(len(a & b) for a, b in pairs) / max(1, sum(len(b) for _, b in pairs))


@pytest.mark.parametrize(("k", "size"), [(4, 1), (4, 6), (40, 3)])
def test_groups_of_shards_are_those_of_the_whole(halves: Any, k: int, size: int) -> None:
    whole, sharded, queries = halves
    asked: dict[str, Any] = {"group_by": "brand", "group_size": size, **SURE}
    wanted = whole.search(queries, k, **asked)
    found = ask(sharded, "search", queries, k, return_metadata=["brand"], **asked)
    assert found.ids.shape == found.distances.shape == (len(queries), k, size)
    # Shards have codes of their own, so distances differ in the third digit and near ties may swap.
    assert overlap(found.groups, wanted.groups) > 0.95
    assert overlap(*([row.ravel().tolist() for row in one.ids] for one in (found, wanted))) > 0.95
    for row, values in enumerate(found.groups):
        best = found.distances[row, : len(values), 0]
        assert (np.diff(best) >= 0).all()
        named = iter(found.metadata[row].to_pylist())
        for place, value in enumerate(values):
            hits = int((found.ids[row, place] >= 0).sum())
            assert hits
            assert (np.diff(found.distances[row, place, :hits]) >= 0).all()
            assert [next(named)["brand"] for _ in range(hits)] == [value] * hits
        assert next(named, None) is None


def test_every_group_is_full_whatever_shards_its_rows_are_in(halves: Any) -> None:
    """Few groups of many rows: shards whose nearest groups are others are asked again."""
    _, sharded, queries = halves
    queries = queries[:8]
    asked: dict[str, Any] = {"group_by": "brand", "group_size": 25, **SURE}
    found = ask(sharded, "search", queries, 2, **asked)
    for row, values in enumerate(found.groups):
        for place, value in enumerate(values):
            alone = ask(sharded, "search", queries[row], 25, filter={"brand": value}, **SURE)
            assert overlap([found.ids[row, place].tolist()], [alone.ids.tolist()]) > 0.95


async def test_what_a_request_brings_about_has_its_class(things_path: Path) -> None:
    backend = open_local_backend(things_path, threads=1)
    await backend.start()
    router = backend.collection().router
    pending_ones: list[PendingRequest] = []
    for shard in router._shards:
        offer = shard.offer

        def noted(pending: PendingRequest, whole: bool, offer: Any = offer) -> None:
            pending_ones.append(pending)
            offer(pending, whole)

        shard.offer = noted  # type: ignore[method-assign]
    queries = np.ones((1, THINGS_DIM), np.float32)
    groups = SearchRequest(queries, 3, group_by="color", group_size=10)
    assert (await router.search(groups)).hits.counts.tolist() == [30]
    assert len(pending_ones) > THINGS_SHARDS, "shards were asked for more rows of groups"
    assert all(pending.heavy for pending in pending_ones)
    await backend.close()
    light = SearchRequest(queries, 10, return_metadata=("color",))
    assert not light.is_heavy
    for heavy in ({"exact": True}, {"recall": 1.0}, {"k": 10_000}, {"k": 2_000}, {"radius": 1.0}):
        assert structs.replace(light, **heavy).is_heavy


def test_filters_hold_for_groups(halves: Any) -> None:
    whole, sharded, queries = halves
    for condition in ({"price": {"$lt": 0.1}}, "price < 0.1"):
        asked: dict[str, Any] = {"group_by": "brand", "group_size": 3, "filter": condition, **SURE}
        found = ask(sharded, "search", queries, 5, return_metadata=["price"], **asked)
        wanted = whole.search(queries, 5, **asked)
        assert overlap(found.groups, wanted.groups) > 0.95
        assert all(max(hits.column("price").to_pylist()) < 0.1 for hits in found.metadata)


def test_days_and_one_query(halves: Any) -> None:
    _, sharded, queries = halves
    found = ask(sharded, "search", queries[0], 3, group_by="day", body_format="arrow")
    assert found.ids.shape == (3, 1)
    assert all(value.startswith("2024-") for value in found.groups)


@pytest.mark.parametrize("body_format", ["json", "arrow"])
def test_all_within_a_radius_over_shards(halves: Any, body_format: Any) -> None:
    whole, sharded, queries = halves
    radius = float(np.median(whole.search(queries, 100, **SURE).distances))
    wanted = whole.range_search(queries, radius, **SURE)
    found = ask(sharded, "range_search", queries, radius, body_format=body_format, **SURE)
    assert found.lims[-1] == len(found.ids) == len(found.distances)
    assert found.counts.tolist() == np.diff(found.lims).tolist()
    pairs = [(found[row][0].tolist(), wanted[row][0].tolist()) for row in range(len(queries))]
    assert overlap(*zip(*pairs, strict=True)) > 0.95
    assert all((np.diff(found[row][1]) >= 0).all() for row in range(len(queries)))
    assert (found.distances <= radius).all()
    assert not found.limited.any()
    lims, distances, ids = found
    assert (lims is found.lims, distances is found.distances, ids is found.ids) == (True, True, True)
    few = ask(sharded, "range_search", queries, 1e30, limit=7, body_format=body_format)
    assert few.counts.tolist() == [7] * len(queries)
    assert few.limited.all()
    none = ask(sharded, "range_search", queries, -1.0, body_format=body_format)
    assert none.counts.tolist() == [0] * len(queries)


def test_a_radius_with_more_hits_than_one_search_brings(sample: Any, sample_path: Path) -> None:
    found = ask(sample_path, "range_search", sample.queries[:1], 1e30, body_format="arrow")
    assert found.counts.tolist() == [10_000]
    assert len(set(found.ids.tolist())) == 10_000
    assert found.limited.all()
    many = ask(sample_path, "search", sample.queries[:1], 6_000, body_format="arrow")
    assert np.shape(many.ids) == (1, 6_000)


def test_a_radius_with_a_filter_and_metadata(halves: Any) -> None:
    _, sharded, queries = halves
    found = ask(
        sharded,
        "range_search",
        queries,
        1e30,
        filter="price < 0.1",
        return_metadata=["price"],
        limit=500,
    )
    assert max(found.metadata.column("price").to_pylist()) < 0.1
    assert found.metadata.num_rows == found.counts.sum()


async def test_answers_in_every_form(halves: Any) -> None:
    _, sharded, queries = halves

    async with serving(open_local_backend(sharded, threads=1)) as client:
        body = {"vectors": queries[:2].tolist(), "k": 3, "group_by": "brand", "group_size": 2}
        arrow = await client.post(
            "/v1/search", json=body, headers={"Accept": "application/vnd.apache.arrow.stream"}
        )
        table = pa.ipc.open_stream(io.BytesIO(arrow.content)).read_all()
        plain = (await client.post("/v1/search", json=body)).json()
        assert table.column("id").to_pylist() == [one for row in plain["ids"] for one in row]
        values = [group["value"] for row in plain["groups"] for group in row for _ in range(group["size"])]
        assert table.column("value").to_pylist() == values
        for wrong in (
            {"radius": 1.0, "group_by": "brand"},
            {"radius": 1.0, "k": 3},
            {"limit": 3},
            {"group_size": 3},
            {"group_by": "brand", "k": 5000, "group_size": 5},
            {"radius": 1.0, "limit": 20_000},
            {"group_by": 3},
        ):
            answer = await client.post("/v1/search", json={"vector": queries[0].tolist(), **wrong})
            assert answer.status_code == 422, (wrong, answer.text)
        unknown = await client.post("/v1/search", json={"vector": queries[0].tolist(), "group_by": "colour"})
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (400, "UnknownColumnError")


def test_wrong_groups_and_ranges_are_refused(halves: Any) -> None:
    _, sharded, queries = halves
    with pytest.raises(TypeError, match="limit"):
        ask(sharded, "search", queries, 3, limit=3)
    with pytest.raises(TypeError, match="group_by"):
        ask(sharded, "range_search", queries, 3.0, group_by="brand")
    with pytest.raises(NotFiniteError):
        ask(sharded, "range_search", queries, float("inf"))
    with pytest.raises(UnknownColumnError, match="colour"):
        ask(sharded, "search", queries, 3, group_by="colour")


# ---- the pure part, against a plain definition


def made_up(draw: np.random.Generator, shards: int, k: int, size: int) -> tuple[list[Hits], dict[str, Any]]:
    """What shards show of random rows, and all rows: for each value its (distance, id), nearest first."""
    whole: dict[str, list[tuple[float, int]]] = {}
    parts = []
    for shard in range(shards):
        rows = [(float(np.float32(draw.random())), shard * 1000 + at) for at in range(draw.integers(0, 40))]
        own: dict[str, list[tuple[float, int]]] = {}
        for row in sorted(rows):
            value = f"v{draw.integers(0, 9)}"
            own.setdefault(value, []).append(row)
            whole.setdefault(value, []).append(row)
        parts.append(shown({value: own[value][:size] for value in list(own)[:k]}))
    return parts, {value: sorted(rows) for value, rows in whole.items()}


def shown(groups: dict[str, list[tuple[float, int]]]) -> Hits:
    hits = [hit for rows in groups.values() for hit in rows]
    width = max(1, len(hits))
    ids = np.full((1, width), -1, np.int64)
    distances = np.full((1, width), np.inf, np.float32)
    ids[0, : len(hits)] = [one for _, one in hits]
    distances[0, : len(hits)] = [distance for distance, _ in hits]
    sizes = [[(value, len(rows)) for value, rows in groups.items()]]
    return Hits(ids, distances, np.array([len(hits)]), groups=sizes)


def test_merging_and_filling_gives_the_groups_of_all_rows(random: np.random.Generator) -> None:
    for _ in range(300):
        shards, k, size = (int(random.integers(1, high)) for high in (6, 6, 5))
        parts, whole = made_up(random, shards, k, size)
        request = SearchRequest(np.zeros((1, 2), np.float32), k, group_by="v", group_size=size)
        merged = merge_groups(parts, k, size)
        answer = Answer(merged, shards, shards, thin_groups=thin_groups(parts, merged, request))
        for part in follow_ups(request, answer, 2):
            rows = [whole[value][:size] for _, value in part.groups]
            more = shown({str(at): one for at, one in enumerate(rows)})
            counts = np.array([len(one) for one in rows])
            ids = np.full((len(rows), size), -1, np.int64)
            distances = np.full((len(rows), size), np.inf, np.float32)
            for at, one in enumerate(rows):
                ids[at, : len(one)] = [row for _, row in one]
                distances[at, : len(one)] = [distance for distance, _ in one]
            assert more.counts[0] == counts.sum()
            answer = fill_groups(answer, request, part, Answer(Hits(ids, distances, counts), shards, shards))
        expected = dict(sorted(whole.items(), key=lambda item: item[1][0])[:k])
        assert answer.hits.groups == [[(value, len(rows[:size])) for value, rows in expected.items()]]
        assert answer.hits.ids[0, : answer.hits.counts[0]].tolist() == [
            one for rows in expected.values() for _, one in rows[:size]
        ]
