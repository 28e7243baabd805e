"""Exact distances: those of float64, rounded once, whatever the metric, the element and the plan."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.rungs import ON_DISK, RUNGS, Rung
from velo import errors
from velo.testing import brute_force
from velo.types import MetricName

N, DIM = 2_400, 37
QUICK: dict[str, Any] = {
    "degree": 24,
    "build_list_size": 40,
    "links_kept": 24,
    "threads": 2,
    "calibrate": False,
}
METRICS: tuple[MetricName, ...] = ("l2", "ip", "cosine")
SHIFTS = {"float32": 0.0, "float16": 0.0, "uint8": 120.0, "int8": 0.0}


def rows_of(dtype: str, random: np.random.Generator) -> Any:
    centers = random.normal(size=(30, DIM)) * 2
    rows = centers[random.integers(0, 30, size=N)] + random.normal(size=(N, DIM))
    if dtype.endswith("int8"):
        rows = np.clip(np.rint(rows * 12 + SHIFTS[dtype]), np.iinfo(dtype).min, np.iinfo(dtype).max)
    return rows.astype(dtype)


def distances_of(metric: str, rows: Any, query: Any) -> Any:
    """In float64, rounded to float32."""
    x, q = rows.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        return ((x - q) ** 2).sum(-1).astype(np.float32)
    if metric == "ip":
        return (-(x * q).sum(-1)).astype(np.float32)
    return (1 - (x * q).sum(-1) / np.sqrt((x * x).sum(-1) * (q * q).sum(-1))).astype(np.float32)


def check(metric: str, rows: Any, queries: Any, ids: Any, distances: Any) -> None:
    for query, found, told in zip(queries, ids, distances, strict=True):
        real = found >= 0
        expected = distances_of(metric, rows[found[real]], query)
        if metric == "cosine":  # 1 - cosine itself is rounded where it is small
            assert np.allclose(told[real], expected, rtol=6e-8, atol=3e-16)
        else:
            assert np.array_equal(told[real], expected)
        assert (np.diff(told[real]) >= 0).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", list(SHIFTS))
def test_distances_are_those_of_float64(
    metric: MetricName, dtype: str, tmp_path: Path, random: np.random.Generator
) -> None:
    rows = rows_of(dtype, random)
    picked = random.integers(0, N, size=40)
    queries = (rows[picked] + random.normal(size=(40, DIM))).astype(np.float32)
    velo.build(tmp_path / "i", rows, metric=metric, store_vectors=True, **QUICK).close()
    with velo.open(tmp_path / "i", tuning=velo.OpenTuning(cache_share=0.0)) as index:
        found = index.search(queries, 10, list_size=400, exact=True)
        check(metric, rows, queries, found.ids, found.distances)
        truth = brute_force(rows, queries, 10, metric=metric)
        estimated = index.search(queries, 10, list_size=400, exact=False)
        assert not np.array_equal(estimated.distances, found.distances)
        # Stats include the reads of vectors.
        pages = [one.stats["reads"] + one.stats["shared_reads"] for one in (estimated, found)]
        assert (pages[1] > pages[0]).all()
        assert (found.stats["rounds"] > estimated.stats["rounds"]).all()
        assert found.stats["bytes_read"].sum() > estimated.stats["bytes_read"].sum()
        # By codes of all rows: how many a walk finds is the graph's affair, and two threads made it.
        scan: dict[str, Any] = {
            "filter": np.ones(N, bool),
            "tuning": velo.SearchTuning(filter_plan="scan"),
            "list_size": 400,
        }
        shares = [
            np.mean([len(np.intersect1d(*pair)) for pair in zip(one.ids, truth.ids, strict=True)]) / 10
            for one in (estimated, found, index.search(queries, 10, exact=True, **scan))
        ]
        assert shares[1] >= shares[0]
        assert shares[2] >= 0.97
        every = index.search(queries, 10, recall=1.0)
        check(metric, rows, queries, every.ids, every.distances)
        nearest = np.sort([distances_of(metric, rows, query) for query in queries], axis=1)[:, :10]
        assert np.allclose(every.distances, nearest, rtol=6e-8, atol=3e-16)
        # Asked in the rows' own type, each row is its own nearest. A graph of two threads may miss it.
        for how in ({"list_size": 100, "exact": True}, {"recall": 1.0}):
            own = index.search(rows[picked], 1, **how)
            check(metric, rows, rows[picked], own.ids, own.distances)
        if metric != "ip":
            assert not own.distances.any()


@pytest.mark.parametrize(
    ("rung", "cached"),
    [
        *(
            pytest.param(
                rung,
                False,
                marks=[]
                if number in (1, 5, 9, 10)
                else [pytest.mark.long(guarded_by="tests/search/test_exact.py::test_every_kind_of_search")],
            )
            for number, rung in enumerate(RUNGS)
        ),
        (ON_DISK, True),
    ],
    ids=str,
)
def test_every_kind_of_search(rung: Rung, cached: bool, tmp_path: Path, random: np.random.Generator) -> None:
    rows = rows_of("float32", random)
    groups = random.integers(0, 5, size=N)
    build: dict[str, Any] = {"metadata": {"group": groups}, "store_vectors": True} | QUICK | rung.build
    velo.build(tmp_path / "i", rows, **build).close()
    queries = (rows[:20] + random.normal(size=(20, DIM)) / 2).astype(np.float32)
    how: dict[str, Any] = {"memory": rung.memory(tmp_path / "i")}
    if cached:
        how = {"memory": "70%", "plan": "links_on_disk"}
    elif not rung.cached:  # memory that a rung leaves over would hold pages
        how["tuning"] = velo.OpenTuning(cache_share=0.0)
    with velo.open(tmp_path / "i", threads=2, **how) as index:
        assert (index.info()["memory_bytes"]["cache"] > 0) == (cached or rung.cached > 0)
        assert index.info()["memory_within_budget_bytes"] <= index.info()["memory_budget_bytes"]
        asked: dict[str, Any] = {"list_size": 300, "exact": True}
        found = index.search(queries, 10, **asked)
        check("l2", rows, queries, found.ids, found.distances)
        later = asyncio.run(index.search_async(queries, 10, **asked))
        check("l2", rows, queries, later.ids, later.distances)
        single = index.search(queries[3], 10, **asked)
        check("l2", rows, queries[3:4], single.ids[None], single.distances[None])
        if rung.links:
            assert np.array_equal(later.ids, found.ids)
            assert np.array_equal(single.ids, found.ids[3])

        filtered = index.search(queries, 10, filter={"group": 2}, **asked)
        check("l2", rows, queries, filtered.ids, filtered.distances)
        assert (groups[filtered.ids] == 2).all()
        truth = brute_force(rows, queries, 10, mask=groups == 2)
        assert np.mean([len(np.intersect1d(*pair)) for pair in zip(filtered.ids, truth.ids, strict=True)]) > 9
        none = index.search(queries, 10, filter={"group": 9}, **asked)
        assert not none.counts.any()
        few = index.search(queries, 10, filter=[7, 8, 9], **asked)
        assert (np.sort(few.ids[:, :3]) == [7, 8, 9]).all()
        check("l2", rows, queries, few.ids, few.distances)

        grouped = index.search(queries, 3, group_by="group", group_size=2, **asked)
        for place in range(3):
            check("l2", rows, queries, grouped.ids[:, place], grouped.distances[:, place])
        radius = float(found.distances[0, 6])
        expected = np.flatnonzero(distances_of("l2", rows, queries[0]) <= radius)
        for how in (asked, {"recall": 1.0}):
            ids, distances = index.range_search(queries[0], radius, **how)[0]
            check("l2", rows, queries[:1], [ids], [distances])
            assert set(ids.tolist()) <= set(expected.tolist())
        assert np.array_equal(np.sort(ids), expected)  # the graph may miss one, exact search may not
        explained = index.explain(queries[0], 10, **asked)
        assert np.array_equal(explained.result.distances, index.search(queries[0], 10, **asked).distances)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", list(SHIFTS))
@pytest.mark.parametrize("plan", ["links_in_memory", "links_on_disk"])
def test_a_recall_of_one_is_exact_search(
    plan: Any, metric: MetricName, dtype: str, tmp_path: Path, random: np.random.Generator
) -> None:
    rows = rows_of(dtype, random)
    rows[N // 2 :] = rows[random.integers(0, N // 2, size=N - N // 2)]  # and copies, whose order is by row
    groups = random.integers(0, 60, size=N)
    queries = random.normal(size=(12, DIM)).astype(np.float32) * np.float32(
        3 if dtype.startswith("f") else 30
    )
    build: dict[str, Any] = {"metadata": {"group": groups}, "store_vectors": True} | QUICK
    velo.build(tmp_path / "i", rows, metric=metric, **build).close()
    truth = np.stack([distances_of(metric, rows, query) for query in queries])
    with velo.open(tmp_path / "i", plan=plan, threads=2) as index:
        for k in (1, 10, N, 4096):
            found = index.search(queries, k, recall=1.0)
            check(metric, rows, queries, found.ids, found.distances)
            nearest = np.sort(truth, axis=1)[:, :k]
            told = found.distances[:, : nearest.shape[1]]
            assert np.allclose(told, nearest, rtol=6e-8, atol=3e-16)
            assert (found.counts == min(k, N)).all()
        assert found.expected.recall == 1
        pages = found.stats["reads"] + found.stats["shared_reads"] + found.stats["cache_hits"]
        assert (pages == found.expected.reads).all()
        assert (found.stats["records_scored"] == N).all()

        for filter_, mask in (({"group": 7}, groups == 7), ({"group": {"$lt": 40}}, groups < 40)):
            found = index.search(queries, 10, filter=filter_, recall=1.0)
            nearest = np.sort(np.where(mask, truth, np.inf), axis=1)[:, :10]
            assert np.allclose(found.distances, nearest, rtol=6e-8, atol=3e-16)
            assert mask[found.ids].all()
            assert (found.stats["records_scored"] == mask.sum()).all(), "nothing else was looked at"
        assert not index.search(queries, 10, filter={"group": 99}, recall=1.0).counts.any()
        grouped = index.search(queries, 3, group_by="group", recall=1.0)
        firsts = np.stack([[truth[:, groups == g].min(axis=1)] for g in range(60)])[:, 0].T
        assert np.allclose(grouped.distances[..., 0], np.sort(firsts, axis=1)[:, :3], rtol=6e-8, atol=3e-16)


def test_a_recall_of_one_needs_vectors_and_is_exact(tmp_path: Path, random: np.random.Generator) -> None:
    rows = rows_of("float32", random)
    with velo.build(tmp_path / "i", rows, store_vectors=False, **QUICK) as index:
        with pytest.raises(errors.UnsupportedError, match="store_vectors") as caught:
            index.search(rows[:2], recall=1.0)
        assert caught.value.argument == "recall"
    with velo.build(tmp_path / "j", rows, store_vectors=True, **QUICK) as index:
        with pytest.raises(errors.InvalidArgumentError) as refused:
            index.search(rows[:2], recall=1.0, exact=False)
        assert refused.value.argument == "exact"
        for wrong in (1.0000001, 0, float("nan"), True):
            with pytest.raises(errors.InvalidArgumentError) as refused:
                index.search(rows[:2], recall=wrong)
            assert refused.value.argument == "recall"


@pytest.mark.parametrize("dim", [1, 300, 1_030, 8_192])
def test_pages_of_vectors_of_every_size(dim: int, tmp_path: Path, random: np.random.Generator) -> None:
    rows = random.normal(size=(120, dim)).astype(np.float32)
    with velo.build(tmp_path / "i", rows, store_vectors=True, **QUICK) as index:
        assert np.array_equal(index.get_vectors(np.arange(120)), rows)
        found = index.search(rows[::7], 5, list_size=120, exact=True)
        check("l2", rows, rows[::7], found.ids, found.distances)
        assert not found.distances[:, 0].any()
        index.verify()


def test_copies_beyond_count_and_zero_rows(tmp_path: Path, random: np.random.Generator) -> None:
    """More copies than candidates are held: answers are right, if not complete."""
    rows = np.repeat(random.normal(size=(3, 8)), 700, axis=0).astype(np.float32)
    rows[5] = 0
    with velo.build(tmp_path / "i", rows, metric="cosine", store_vectors=True, **QUICK) as index:
        found = index.search(rows[[0, 700, 1400]], 10, list_size=500, exact=True)
        assert not found.distances.any()
        assert (found.ids // 700 == [[0], [1], [2]]).all()
        for query, expected in ((rows[5], 0.0), (rows[0], 0.5)):
            alone = index.search(query, 1, filter=[5], exact=True)
            assert alone.ids.tolist() == [5]
            assert alone.distances[0] == expected


def test_exact_needs_stored_vectors_and_a_bool(tmp_path: Path, random: np.random.Generator) -> None:
    rows = rows_of("float32", random)
    with velo.build(tmp_path / "i", rows, store_vectors=False, **QUICK) as index:
        with pytest.raises(errors.UnsupportedError, match="store_vectors") as caught:
            index.search(rows[:2], exact=True)
        assert caught.value.argument == "exact"
        with pytest.raises(errors.UnsupportedError) as caught:
            asyncio.run(index.search_async(rows[0], exact=True))
        assert caught.value.argument == "exact"
        assert index.search(rows[:2], exact=False).ids[:, 0].tolist() == [0, 1]
        for wrong in (1, "yes"):
            with pytest.raises(errors.InvalidArgumentError) as refused:
                index.search(rows[0], exact=wrong)  # type: ignore[arg-type]
            assert refused.value.argument == "exact"


def test_damage_to_vectors_is_named(tmp_path: Path, random: np.random.Generator) -> None:
    rows = rows_of("float32", random)
    path = tmp_path / "i"
    velo.build(path, rows, store_vectors=True, **QUICK).close()
    whole = bytearray((path / "vectors.bin").read_bytes())
    pages = len(whole) // 4096
    damaged = pages // 2
    whole[damaged * 4096 + 16 + int(random.integers(0, 2000))] ^= 1 << int(random.integers(0, 8))
    (path / "vectors.bin").write_bytes(whole)
    failed = []
    with velo.open(path, threads=1) as index:
        for row in range(N):
            try:
                found = index.search(rows[row], 3, exact=True)
                check("l2", rows, rows[row : row + 1], found.ids[None], found.distances[None])
            except errors.CorruptIndexError as error:
                failed.append((error.file, error.page, error.message))
            index.search(rows[row], 3)  # without vectors nothing is wrong
        with pytest.raises(errors.CorruptIndexError) as caught:
            asyncio.run(index.search_async(rows, 3, exact=True))
        assert (caught.value.file, caught.value.page) == ("vectors.bin", damaged)
        with pytest.raises(errors.CorruptIndexError) as caught:
            index.get_vectors(np.arange(N))
        assert (caught.value.file, caught.value.page) == ("vectors.bin", damaged)
        with pytest.raises(errors.CorruptIndexError) as caught:
            index.verify()
        assert (caught.value.file, caught.value.page) == ("vectors.bin", damaged)
    assert 0 < len(failed) < N // 5
    assert set(failed) == {("vectors.bin", damaged, f"page {damaged} of vectors.bin is damaged")}
