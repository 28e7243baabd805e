"""Rows that come while an index answers: inserted, replaced, folded into segments, and refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.live.rows import DIM, SCHEMA, table, vectors_of
from velo import _native, errors


def ids_in(index: velo.Index, **how: Any) -> set[Any]:
    found = index.search(np.zeros(DIM, np.float32), max(1, index.n), list_size=2000, **how)
    return set(found.ids[: int(found.counts[0])].tolist())


def test_inserted_rows_are_found_at_once_and_after_a_flush(index: velo.Index) -> None:
    vectors = vectors_of(600)
    assert len(index) == 0
    assert ids_in(index) == set()
    assert index.count() == 0
    assert index.range_search(vectors[0], 1e9).ids.tolist() == []
    done = index.insert(vectors[:200], metadata=table(range(200)))
    assert (done.rows, done.first_id, done.sequence, done.durable) == (200, 0, 1, True)
    assert 0 < done.pressure < 1
    for turn in range(3):
        found = index.search(vectors[17], 3, return_metadata=True)
        assert found.ids[0] == 17
        assert found.metadata["n"].to_pylist() == found.ids.tolist()
        assert found.metadata.schema.field("name").type == SCHEMA.field("name").type
        condition = velo.col("name") == "x3"
        assert ids_in(index, filter=condition) == {row for row in range(200) if row % 5 == 3}
        assert ids_in(index, filter=[3, 7, 999]) == {3, 7}
        assert index.count({"n": {"$lt": 50}}) == 50
        assert index.get([5, 3])["n"].to_pylist() == [5, 3]
        assert index.get_vectors([5, 3]) == pytest.approx(vectors[[5, 3]])
        groups = index.search(vectors[:2], 5, group_by="name", group_size=2)
        assert sorted(groups.groups[0]) == [f"x{i}" for i in range(5)]
        _lims, _distances, ids = index.range_search(vectors[17], 8.0, filter=condition)
        exact = ((vectors[:200] - vectors[17]) ** 2).sum(1)
        wanted = {row for row in range(200) if exact[row] <= 8.0 and row % 5 == 3}
        assert len(set(ids.tolist()) ^ wanted) <= (0 if turn == 0 else 2)  # codes near the rim
        told = index.explain(vectors[17], 3, filter=condition)
        assert told.matches == 40
        assert "found       3" in str(told)
        assert asyncio.run(index.search_async(vectors[17], 3)).ids[0] == 17
        several = index.search(vectors[:3], 2, filter=[condition, None, [1, 2]])
        assert several.ids[1, 0] == 1
        assert set(several.ids[2].tolist()) == {1, 2}
        if turn == 0:
            index.flush()
        elif turn == 1:
            index.optimize()
    info = index.info()["live"]
    assert info["delta"]["n"] == 0
    assert [segment["n"] for segment in info["parts"]] == [200]


def test_segments_and_delta_are_searched_as_one_index(index: velo.Index, tmp_path: Path) -> None:
    vectors = vectors_of(400)
    for start in range(0, 400, 100):
        index.insert(vectors[start : start + 100], metadata=table(range(start, start + 100)))
        if start < 300:
            index.flush()
    assert len(index.info()["live"]["parts"]) == 3
    found = index.search(vectors, 1, list_size=500)
    assert (found.ids[:, 0] == np.arange(400)).all()
    exact = np.argsort(((vectors[:5, None] - vectors[None]) ** 2).sum(2), axis=1)[:, :10]
    near = index.search(vectors[:5], 10, list_size=500).ids
    assert sum(len(set(a) & set(b)) for a, b in zip(exact.tolist(), near.tolist(), strict=True)) >= 48
    page = index.rows({"n": {"$gte": 250}}, limit=1000)
    assert sorted(page["id"].to_pylist()) == list(range(250, 400))
    done = index.upsert(vectors_of(2, 9), ids=[50, 350], metadata=table([1050, 1350]))
    assert (done.rows, done.replaced) == (2, 2)
    assert len(index) == 400
    assert ids_in(index, filter=velo.col("n") > 1000) == {50, 350}
    assert index.delete(filter=velo.col("n") > 1000).rows == 2
    assert index.delete([0, 100, 399, 50]) == velo.Written(
        3, 1, 7, True, pressure=index.info()["live"]["pressure"]
    )
    assert len(index) == 395
    assert len(ids_in(index)) == 395
    with velo.open(tmp_path / "a.velo", threads=1) as reader:
        assert len(reader) == 395
        assert velo.verify(tmp_path / "a.velo") > 0
        index.optimize()
        assert len(index) == 395
        assert len(ids_in(index)) == 395
        segments = list((tmp_path / "a.velo").glob("part-*"))
        assert len(segments) == 4, "a reader holds three of them"
        assert len(ids_in(reader)) == 395
        assert not reader.refresh() or len(reader) == 395
        assert len(ids_in(reader)) == 395
    index.flush()
    assert len(list((tmp_path / "a.velo").glob("part-*"))) == 1


def test_an_index_that_was_built_takes_rows(tmp_path: Path) -> None:
    vectors = vectors_of(300)
    names = [f"id-{row}" for row in range(300)]
    path = tmp_path / "built.velo"
    velo.build(path, vectors[:200], ids=names[:200], store_vectors=True, threads=1).close()
    with (
        velo.open(path, threads=1, follow=False) as reader,
        velo.open(path, writable=True, threads=1) as index,
    ):
        assert index.insert(vectors[200:], names[200:]).rows == 100
        with pytest.raises(errors.DuplicateIdError, match="'id-7' of row 1"):
            index.insert(vectors[:2], ["new", "id-7"])
        assert index.search(vectors[250], 1).ids.tolist() == ["id-250"]
        assert index.search(vectors[250], 1, filter=["id-3", "id-4"]).ids[0] in ("id-3", "id-4")
        mask = np.arange(200) < 5
        with pytest.raises(errors.FilterError, match="mask"):
            index.search(vectors[0], 1, filter=mask)
        assert len(reader) == 200
        assert reader.refresh()
        assert len(reader) == 300
        assert reader.search(vectors[250], 1).ids.tolist() == ["id-250"]
        index.flush()
        index.upsert(vectors[:1], ids=["id-250"])
        assert reader.refresh()
        assert reader.search(vectors[250], 1).ids.tolist() != ["id-250"]
        assert set(reader.search(vectors[0], 2).ids.tolist()) == {"id-0", "id-250"}
        assert not reader.refresh()
        index.optimize()
    with velo.open(path, threads=1) as index:
        assert len(index) == 300
        assert index.info()["ids"] == "string"


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_types_and_metrics(tmp_path: Path, metric: Any, dtype: str) -> None:
    vectors = np.random.default_rng(3).integers(1, 100, size=(150, DIM)).astype(dtype)
    with velo.create(tmp_path / "a", dim=DIM, metric=metric, dtype=dtype, threads=1) as index:
        assert index.info()["dtype"] == dtype
        assert index.metric == metric
        index.insert(vectors)
        before = index.search(vectors[:20], 5)
        index.flush()
        after = index.search(vectors[:20], 5, exact=True, list_size=200)
        assert after.distances == pytest.approx(before.distances, rel=1e-3, abs=1e-3)
        assert (index.get_vectors(list(range(150))) == vectors).all()
        if dtype in ("uint8", "int8"):
            with pytest.raises(errors.DtypeError, match=dtype):
                index.insert(vectors.astype(np.float32))


def test_refused_calls_change_nothing(index: velo.Index, tmp_path: Path) -> None:
    vectors = vectors_of(10)
    good = table(range(10))
    index.insert(vectors, metadata=good)
    before = index.info()["live"]["sequence"]

    def refused(kind: type[Exception], match: str, *given: Any, verb: str = "insert", **more: Any) -> None:
        with pytest.raises(kind, match=match):
            getattr(index, verb)(*given, **more)

    invalid = errors.InvalidArgumentError
    refused(errors.DimensionMismatchError, "takes", vectors[:, :5], metadata=good)
    refused(errors.DtypeError, "int64", np.ones((10, DIM), np.int64), metadata=good)
    bad = vectors.copy()
    for value in (np.nan, np.inf, 1e17):
        bad[3, 2] = value
        refused(errors.NotFiniteError, "row 3", bad, metadata=good)
    refused(invalid, "lacks the column 'n'", vectors, metadata=good.select(["name"]))
    refused(invalid, "metadata is missing", vectors)
    refused(invalid, "9 rows", vectors, metadata=good.slice(1))
    extra = good.append_column("more", pa.array(range(10)))
    refused(errors.UnknownColumnError, "'more'", vectors, metadata=extra)
    refused(invalid, "column 'n'", vectors, metadata={"name": ["a"] * 10, "n": ["one"] * 10})
    refused(invalid, "numbers its rows", vectors, list(range(100, 110)), good)
    refused(errors.UnknownIdError, "77", vectors[:1], [77], good.slice(0, 1), verb="upsert")
    refused(invalid, "whole numbers", vectors[:1], ["a"], good.slice(0, 1), verb="upsert")
    refused(invalid, "upsert takes ids", vectors, metadata=good, verb="upsert")
    refused(invalid, "request", vectors, metadata=good, request="")
    refused(invalid, "timeout_s", vectors, metadata=good, timeout_s=-1)
    refused(invalid, "null", vectors[:1], [None], good.slice(0, 1), verb="upsert")
    refused(invalid, "id -1", vectors[:1], [-1], good.slice(0, 1), verb="upsert")
    assert index.insert(np.zeros((0, DIM)), metadata=good.slice(0, 0)).rows == 0
    assert index.info()["live"]["sequence"] == before
    assert len(index) == 10
    with velo.open(tmp_path / "a.velo", threads=1) as reader:
        for call in (lambda: reader.insert(vectors), reader.flush, reader.optimize):
            with pytest.raises(errors.ReadOnlyError, match="writable=True"):
                call()
    index.close()
    with pytest.raises(errors.ClosedError):
        index.insert(vectors, metadata=good)


def test_ids_twice_and_nulls(tmp_path: Path) -> None:
    vectors = vectors_of(4)
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with velo.create(tmp_path / "a", dim=DIM, metadata=schema, threads=1) as index:
        with pytest.raises(errors.DuplicateIdError, match="was given to row 0"):
            index.insert(vectors[:2], [5, 5], {"n": [1, 2]})
        with pytest.raises(errors.InvalidArgumentError, match="no nulls, and row 1"):
            index.insert(vectors[:2], [5, 6], {"n": [1, None]})
        done = index.upsert(vectors[:3], [5, 6, 5], {"n": [1, 2, 3]})
        assert done.rows == 2
        assert index.get([5, 6])["n"].to_pylist() == [3, 2]
        with pytest.raises(errors.InvalidArgumentError, match="give one for each row"):
            index.insert(vectors, metadata={"n": [1, 2, 3, 4]})
        with pytest.raises(errors.DuplicateIdError, match="6 of row 0 is there"):
            index.insert(vectors[:1], [6], {"n": [1]})
        index.delete([6])
        assert index.insert(vectors[:1], [6], {"n": [4]}).rows == 1, "ids that were given may return"


def test_a_request_is_done_once(tmp_path: Path) -> None:
    vectors = vectors_of(4)
    with velo.create(tmp_path / "a", dim=DIM, threads=1) as index:
        first = index.insert(vectors, request="r1")
        assert not first.repeated
        again = index.insert(vectors, request="r1")
        assert again.repeated
        assert (again.rows, again.sequence, again.first_id) == (4, 1, 0)
        index.flush()
    with velo.open(tmp_path / "a", writable=True, threads=1) as index:
        assert index.insert(vectors, request="r1").repeated
        assert len(index) == 4


def test_create_refuses(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for kind, how in (
        (errors.IndexExistsError, {"path": tmp_path / "full", "dim": 3}),
        (errors.InvalidArgumentError, {"path": tmp_path / "no" / "parent", "dim": 3}),
        (errors.InvalidArgumentError, {"path": tmp_path / "a", "dim": 0}),
        (errors.InvalidArgumentError, {"path": tmp_path / "a", "dim": 3, "metric": "hamming"}),
        (errors.InvalidArgumentError, {"path": tmp_path / "a", "dim": 3, "dtype": "int64"}),
        (errors.InvalidArgumentError, {"path": tmp_path / "a", "dim": 3, "metadata": {"n": "int"}}),
    ):
        with pytest.raises(kind):
            velo.create(**how)
    assert not (tmp_path / "a").exists()


def test_memory_for_new_rows_is_bounded(tmp_path: Path) -> None:
    vectors = np.random.default_rng(5).normal(size=(1_400, 300)).astype(np.float32)
    with velo.create(tmp_path / "a", dim=300, memory="1MiB", durability="process", threads=1) as index:
        bound = index.info()["live"]["delta"]["bytes_max"]
        assert bound == 1 << 20
        waited = 0
        for start in range(0, 1_400, 350):
            done = index.insert(vectors[start : start + 350])
            waited += done.pressure >= 0.5
            assert index.info()["live"]["delta"]["bytes"] <= bound
        index.flush()
        assert len(index) == 1_400
        assert index.search(vectors[1_377], 1).ids.tolist() == [1_377]


def test_the_delta_becomes_a_segment_while_segments_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that needs room waits for no merge; replaced and deleted rows are so in the merged segment."""
    from velo.compaction.segment_builder import SegmentBuilder, Sources

    vectors = vectors_of(2_000)
    commit, guard = SegmentBuilder._commit, threading.Event()
    under_way = threading.Event()

    def late(self: SegmentBuilder, sources: Sources, made: Any) -> None:
        if sources.segments:
            under_way.set()
            assert guard.wait(60)
        commit(self, sources, made)

    monkeypatch.setattr(SegmentBuilder, "_commit", late)
    with velo.create(tmp_path / "a", dim=DIM, durability="process", threads=1) as index:
        index.insert(vectors[:500], ids=np.arange(500))
        index.flush()
        index.insert(vectors[500:1_000], ids=np.arange(500, 1_000))
        index.flush()
        index.optimize(wait=False)
        assert under_way.wait(60)
        index.delete([3, 700])
        index.upsert(vectors[1_000:1_010], ids=np.arange(10, 20))
        index.insert(vectors[1_010:], ids=np.arange(1_010, 2_000))
        assert index._folders[0].compactor is not None
        assert index._folders[0].compactor.wait(60)  # the delta, while the merge still stands
        live = index.info()["live"]
        assert [segment["n"] for segment in live["parts"]] == [500, 500, 1_000]
        guard.set()
        index._folders[0].compactor.join()
        live = index.info()["live"]  # then all became one: the young segment was large
        assert [(segment["n"], segment["dead"]) for segment in live["parts"]] == [(2_000 - 12, 0)]
        assert len(index) == 2_000 - 12
        wanted = [index.search(vectors[row], k=1, recall=1.0).ids[0] for row in (0, 1_000, 1_500)]
        assert wanted == [0, 10, 1_500]
    assert velo.verify(tmp_path / "a") > 0


def test_a_write_without_room_times_out_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from velo.compaction.compactor import Compactor

    vectors = np.random.default_rng(5).normal(size=(1_200, 300)).astype(np.float32)
    guard = threading.Event()
    folded = Compactor._flush_delta
    monkeypatch.setattr(
        Compactor, "_flush_delta", lambda self, share: (guard.wait(20), folded(self, share))[1]
    )
    with velo.create(tmp_path / "a", dim=300, memory="1MiB", durability="process", threads=1) as index:
        index.insert(vectors[:650])
        index.insert(vectors[650:670])
        with pytest.raises(errors.BusyError, match="try again"):
            index.insert(np.zeros((650, 300), np.float32), timeout_s=0.05)
        assert len(index) == 670, "nothing of it was written"
        guard.set()
        assert index.insert(vectors[670:], timeout_s=60).rows == 530
        assert len(index) == 1_200


def test_writes_and_searches_go_on_while_segments_are_made(tmp_path: Path) -> None:
    vectors = vectors_of(3_000)
    with velo.create(tmp_path / "a", dim=DIM, durability="process", threads=1) as index:
        index.insert(vectors[:1_500], list(range(1_500)))
        failures: list[BaseException] = []
        stop = threading.Event()

        def search() -> None:
            try:
                while not stop.is_set():
                    found = index.search(vectors[700], 5, list_size=200)
                    assert found.ids[0] == 700
                    assert len(set(found.ids.tolist())) == 5
                    assert index.count([1, 2, 3]) == 3
                    time.sleep(0.002)
            except BaseException as error:
                failures.append(error)

        searchers = [threading.Thread(target=search) for _ in range(2)]
        for thread in searchers:
            thread.start()
        try:
            for turn in range(4):
                index.optimize(wait=False)
                start = 1_500 + 300 * turn
                for row in range(start, start + 300, 50):
                    index.insert(vectors[row : row + 50], list(range(row, row + 50)))
                    index.upsert(vectors[row : row + 1], [turn + 10])
                    index.delete([row + 49, 100 + turn])
                time.sleep(0.05)
            index.optimize()
        finally:
            stop.set()
            for thread in searchers:
                thread.join()
        assert failures == []
        gone = {100 + turn for turn in range(4)} | {row + 49 for row in range(1_500, 2_700, 50)}
        assert ids_in(index) == set(range(2_700)) - gone
        assert len(index) == 2_700 - len(gone)
        assert index.get_vectors([10, 13]) == pytest.approx(vectors[[1_750, 2_650]])


def test_a_commit_in_the_background_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that link have less priority meanwhile, and none of those that search has afterwards."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    set_priority = os.setpriority
    seen: list[int] = []

    def priorities() -> set[int]:
        found = set()
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                found.add(os.getpriority(os.PRIO_PROCESS, int(thread)))
        return found

    def watched(which: int, who: int, priority: int) -> None:
        set_priority(which, who, priority)
        assert who == threading.get_native_id()
        seen.append(os.getpriority(which, who))

    monkeypatch.setattr(os, "setpriority", watched)
    with velo.create(tmp_path / "a", dim=DIM, durability="process", threads=1) as index:
        index.insert(vectors_of(900))
        index.flush()
        assert seen == [usual]  # a writer waits for it
        index.insert(vectors_of(900))
        assert index._folders[0].compactor is not None
        index._folders[0].compactor.begin()
        while index.info()["live"]["delta"]["n"] or len(index.info()["live"]["parts"]) == 2:
            time.sleep(0.01)
        assert seen == [usual, max(usual, 5), max(usual, 10)]  # of the delta, then of the merge
        index.optimize()  # has nothing to do
        index.search(vectors_of(1), 3)
        assert priorities() == {usual}


def test_info_describes_one_snapshot(tmp_path: Path) -> None:
    """The library has the part of a commit before a search of this process sees it."""
    with velo.create(tmp_path / "a", dim=DIM, durability="process") as index:
        index.insert(vectors_of(1_000))
        live = index._folders[0].live
        assert live is not None
        before = live.view()
        index.flush()
        live._view = _native.lib.velo_live_version(live._handle), before
        told = index.info()["live"]
        assert [segment["n"] for segment in told["parts"]] + [told["delta"]["n"]] == [1_000]


def test_merges_have_a_budget_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from velo.compaction import segment_builder

    budgets: list[int] = []
    builder = segment_builder.build_segment
    assert builder is not None

    def build(*arguments: Any, **options: Any) -> None:
        budgets.append(options["build_memory"])
        builder(*arguments, **options)

    monkeypatch.setattr(segment_builder, "build_segment", build)
    with pytest.raises(errors.InvalidArgumentError, match="merge_memory"):
        velo.create(tmp_path / "a", dim=DIM, merge_memory="much")
    for number, (named, budget) in enumerate(((None, 8 << 20), ("16MiB", 16 << 20))):
        options: dict[str, Any] = {"memory": "8MiB", "merge_memory": named}
        with velo.create(tmp_path / str(number), dim=DIM, durability="process", **options) as index:
            index.insert(vectors_of(100))
            index.flush()
            assert budgets.pop() == budget - 8 * len(index)  # what the merge itself keeps of its rows
        with velo.open(tmp_path / str(number), writable=True, **options) as index:
            index.insert(vectors_of(100))
            index.optimize()
            assert 7 / 8 * budget <= budgets.pop() + 20 * len(index) <= budget  # the rest is for the delta


def test_dead_rows_give_back_their_room(tmp_path: Path) -> None:
    vectors = vectors_of(1_000)
    path = tmp_path / "a"
    with velo.create(path, dim=DIM, threads=1) as index:
        index.insert(vectors)
        index.flush()
        before = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        index.delete(list(range(0, 1_000, 2)))
        index.optimize()
        assert index.n == len(index) == 500
        assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 0.75 * before
        index.delete(list(range(1_000)))
        index.optimize()
        assert len(index) == 0
        assert index.info()["live"]["parts"] == []
        assert index.insert(vectors[:3]).first_id == 1_000, "numbers are never given again"
        assert index.search(vectors[0], 1).ids.tolist() == [1_000]


def test_a_commit_that_fails_fails_no_write_that_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A written row must not look missing; `info` and calls that need the room report the failure."""
    from velo.compaction import segment_builder

    def fail(path: Path, *_: Any, **__: Any) -> None:
        raise errors.NoSpaceError("the device is full", file=str(path))

    with velo.create(tmp_path / "i", dim=768, memory=3_000_000) as index:
        rows = np.random.default_rng(6).normal(size=(1_500, 768)).astype(np.float32)
        written = 0

        def write() -> None:
            nonlocal written
            while True:
                index.insert(rows[written : written + 20])
                written += 20

        with monkeypatch.context() as patch:
            patch.setattr(segment_builder, "build_segment", fail)
            with pytest.raises(errors.NoSpaceError):
                write()
            live = index.info()["live"]
            assert live["pressure"] > 0.9, "the write that failed was the one that had no room"
            assert len(index) == written
            with pytest.raises(errors.NoSpaceError):
                index.flush()
        index.flush()
        assert index.info()["live"]["upkeep_failure"] is None
        assert index.insert(rows[written : written + 20]).rows == 20
        assert len(index) == written + 20


def test_a_commit_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from velo.compaction import segment_builder

    vectors = vectors_of(100)

    def fail(path: Path, *_: Any, **__: Any) -> None:
        assert not list(path.iterdir())  # it is there, and held
        (path / "half").write_bytes(b"built")
        raise errors.NoSpaceError("the device is full", file=str(path))

    with velo.create(tmp_path / "a", dim=DIM, threads=1) as index:
        index.insert(vectors)
        with monkeypatch.context() as patch:
            patch.setattr(segment_builder, "build_segment", fail)
            with pytest.raises(errors.NoSpaceError):
                index.flush()
        assert len(index) == 100
        assert not list((tmp_path / "a").glob("part-*"))
        index.insert(vectors[:1])
        index.flush()
        assert len(index) == 101
        assert len(index.info()["live"]["parts"]) == 1


def test_contains_tells_which_ids_live(tmp_path: Path) -> None:
    vectors = np.random.default_rng(5).normal(size=(40, 8)).astype(np.float32)
    with velo.build(tmp_path / "index.velo", vectors, ids=list(range(100, 140)), threads=1) as index:
        assert index.contains([100, 7, 139]).tolist() == [True, False, True]
        assert index.contains(100).tolist() == [True]
    with velo.open(tmp_path / "index.velo", writable=True, durability="process") as index:
        assert index.info()["live"]["numbered"] is False
        index.delete([100])
        index.insert(vectors[:2], ids=[7, 8])
        index.delete([8])
        assert index.contains([100, 101, 7, 8, 9]).tolist() == [False, True, True, False, False]
        assert index.contains([]).tolist() == []
        with pytest.raises(errors.InvalidArgumentError, match="whole numbers"):
            index.contains(["a"])
    velo.build(tmp_path / "numbered.velo", vectors, threads=1).close()
    with velo.open(tmp_path / "numbered.velo", writable=True, durability="process") as index:
        assert index.info()["live"]["numbered"] is True  # before a row came, and after
        index.insert(vectors[:1])
        assert index.info()["live"]["numbered"] is True


@pytest.mark.parametrize("ids", [["a", "b"], [1, 2]])
@pytest.mark.parametrize("verb", ["insert", "upsert"])
def test_a_call_without_rows_changes_nothing_whatever_the_kind_of_ids(
    tmp_path: Path, ids: list[Any], verb: str
) -> None:
    with velo.create(tmp_path / "a.velo", dim=DIM, threads=1) as index:
        index.insert(vectors_of(2), ids=ids)
        for none in ([], pa.array([], pa.string()), np.zeros(0, np.int64)):
            assert getattr(index, verb)(vectors_of(0), ids=none).rows == 0
        assert index.rows()["id"].to_pylist() == ids


def test_an_id_larger_than_the_memory_for_new_rows_is_taken(tmp_path: Path) -> None:
    with velo.create(tmp_path / "a.velo", dim=DIM, threads=1, memory="64MiB") as index:
        assert index.insert(vectors_of(1), ids=["x" * (8 << 20)]).rows == 1
        assert index.info()["live"]["delta"]["n"] == 0
        assert index.rows()["id"].to_pylist() == ["x" * (8 << 20)]


@pytest.mark.parametrize("name", ["live.json", "log"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.velo"
    with velo.create(path, dim=DIM, threads=1) as index:
        index.insert(vectors_of(2))
    target = path / name if name == "live.json" else next(path.glob("log-*.velolog"))
    target.unlink()
    os.mkfifo(target)
    for writable in (False, True):
        with pytest.raises((errors.CorruptIndexError, errors.DeviceError, errors.NotAnIndexError)):
            velo.open(path, writable=writable)
