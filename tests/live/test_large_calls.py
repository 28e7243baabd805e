"""Calls of more rows than there is memory for: each becomes a part of its own, and is else as any other."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests import child
from tests.live.rows import DIM, SCHEMA, no_room, table, vectors_of
from velo import errors
from velo.compaction import segment_builder
from velo.segments.data import LiveData

#: Rows of so many dimensions that few of them are more than a delta of 1 MiB takes.
WIDE, MANY = 300, 950


def wide_vectors(count: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(count, WIDE)).astype(np.float32)


IDS: dict[str, Callable[[Any], Any]] = {
    "numbers": lambda rows: np.array([7 * row - 3 for row in rows]),
    "strings": lambda rows: [f"row {row}" for row in rows],
    "numbered": lambda rows: None,
}


def folders_of(path: Path) -> set[str]:
    """The segments that lie in an index."""
    return {one.name for one in path.iterdir() if one.name.startswith(("part-", "merge-"))}


def named_in(path: Path) -> set[str]:
    return {segment["path"] for segment in json.loads((path / "live.json").read_text())["parts"]}


def rows_of(index: velo.Index) -> dict[Any, tuple[Any, ...]]:
    """Each id, its vector and its columns."""
    found = index.rows(limit=100_000)
    ids = found["id"].to_pylist()
    assert len(ids) == len(set(ids)) == len(index)
    if not ids:
        return {}
    columns = [found[name].to_pylist() for name in found.column_names if name != "id"]
    vectors = map(tuple, index.get_vectors(ids).tolist())
    return dict(zip(ids, zip(vectors, *columns, strict=True), strict=True))


def after_a_crash(index: velo.Index, tmp_path: Path) -> dict[Any, tuple[Any, ...]]:
    """What another process finds that opens the index as it lies there."""
    copy = tmp_path / "crashed"
    shutil.copytree(index.path, copy)
    with velo.open(copy, writable=True, threads=1) as other:
        found = rows_of(other)
    velo.verify(copy)
    with velo.open(copy, threads=1) as other:
        assert rows_of(other) == found
    assert folders_of(copy) == named_in(copy)
    shutil.rmtree(copy)
    return found


@pytest.mark.parametrize("kind", IDS)
def test_a_large_call_answers_as_the_same_rows_in_small_calls(tmp_path: Path, kind: str) -> None:
    vectors, ids = wide_vectors(MANY), IDS[kind]
    how: dict[str, Any] = {"dim": WIDE, "metadata": SCHEMA, "memory": "1MiB", "durability": "process"}
    with (
        velo.create(tmp_path / "small.velo", **how) as small,
        velo.create(tmp_path / "large.velo", **how) as large,
    ):
        firsts = []
        for start in range(0, MANY, 190):
            rows = range(start, start + 190)
            firsts.append(small.insert(vectors[rows], ids(rows), table(rows)).first_id)
        done = large.insert(vectors, ids(range(MANY)), table(range(MANY)))  # the first call of the index
        assert (done.rows, done.replaced, done.sequence, done.durable) == (MANY, 0, 1, True)
        assert done.first_id == firsts[0]
        live = large.info()["live"]
        assert [segment["n"] for segment in live["parts"]] == [MANY]
        assert live["delta"]["n"] == 0
        assert live["numbered"] is (kind == "numbered")
        assert rows_of(large) == rows_of(small) == after_a_crash(large, tmp_path)
        assert large.rows({"n": {"$lt": 9}}, limit=99) == small.rows({"n": {"$lt": 9}}, limit=99)
        for how in ({}, {"filter": velo.col("name") == "x0"}):
            found = [index.search(vectors[::100], 5, recall=1.0, **how) for index in (small, large)]
            assert found[0].ids.tolist() == found[1].ids.tolist()
        # What comes next goes on from there.
        after = [index.insert(vectors[:2], ids([-5, -6]), table([0, 1])).first_id for index in (small, large)]
        assert after == ([MANY, MANY] if kind == "numbered" else [None, None])
        if kind != "numbered":
            with pytest.raises(errors.InvalidArgumentError, match="ids"):
                large.insert(vectors, metadata=table(range(MANY)))


def test_a_large_call_takes_tables_of_every_kind(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    vectors = wide_vectors(MANY)
    columns = {"id": [f"{row}" for row in range(MANY)], "vector": list(vectors), "n": list(range(MANY))}
    given = {
        "arrow": pa.table(columns),
        "chunks": pa.concat_tables([pa.table(columns).slice(0, 11), pa.table(columns).slice(11)]),
        "pandas": pd.DataFrame(columns),
        "dicts": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    }
    expected = {f"{row}": (tuple(vectors[row].tolist()), row) for row in range(MANY)}
    for name, rows in given.items():
        with velo.create(
            tmp_path / name, dim=WIDE, metadata=pa.schema({"n": pa.int64()}), memory="1MiB"
        ) as index:
            assert index.upsert(rows, ids_column="id", metadata=True).rows == MANY
            assert index.info()["live"]["delta"]["n"] == 0
            assert rows_of(index) == expected, name


@pytest.mark.parametrize("given", ["float16", "uint8", ">f4", "F", "strided", "list"])
def test_a_large_call_takes_vectors_of_every_layout(index: velo.Index, given: str) -> None:
    rows = np.random.default_rng(3).integers(0, 9, (40, DIM))
    vectors: Any = {
        "F": lambda: np.asfortranarray(rows, np.float32),
        "strided": lambda: np.repeat(rows.astype(np.float64), 2, axis=0)[::2],
        "list": lambda: rows.tolist(),
    }.get(given, lambda: rows.astype(given))()
    with no_room(index):
        index.insert(vectors, np.arange(40), table(range(40)))
    assert (index.get_vectors(np.arange(40)) == rows).all()


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int8"])
@pytest.mark.parametrize("metric", ["cosine", "ip"])
def test_a_large_call_takes_every_type_and_metric(tmp_path: Path, dtype: Any, metric: Any) -> None:
    vectors = np.random.default_rng(3).integers(0, 100, (60, DIM)).astype(dtype)
    vectors[7] = 0
    with velo.create(tmp_path / "a", dim=DIM, dtype=dtype, metric=metric, threads=1) as index:
        index.insert(vectors[:20])
        with no_room(index):
            assert index.insert(vectors[20:]).first_id == 20
            with pytest.raises(errors.DtypeError):
                index.insert(vectors.astype(np.float32))
        assert (index.get_vectors(np.arange(60)) == vectors).all()


def test_a_built_index_takes_a_large_call(tmp_path: Path) -> None:
    vectors = wide_vectors(MANY + 100)
    velo.build(
        tmp_path / "a", vectors[:100], metadata=table(range(100)), threads=1, store_vectors=True
    ).close()
    with velo.open(tmp_path / "a", writable=True, memory="1MiB") as index:
        done = index.insert(vectors[100:], metadata=table(range(100, MANY + 100)))
        assert (done.first_id, done.sequence) == (100, 1)
        assert [segment["n"] for segment in index.info()["live"]["parts"]] == [100, MANY]
        found = rows_of(index)
        assert [found[row][2] for row in range(MANY + 100)] == list(range(MANY + 100))
        assert after_a_crash(index, tmp_path) == found


def test_a_large_upsert_replaces_rows_of_segments_delta_and_itself(index: velo.Index, tmp_path: Path) -> None:
    """Rows of segments, of the delta, of the call itself; also after a log replay and after commits."""
    vectors = vectors_of(200)
    rows = {row: (tuple(vectors[row].tolist()), f"x{row % 5}", row) for row in range(200)}
    for start in (0, 30):
        index.insert(vectors[start : start + 30], range(start, start + 30), table(range(start, start + 30)))
        index.flush()
    index.insert(vectors[60:90], range(60, 90), table(range(60, 90)))  # stay in the delta
    index.delete([61, 5])
    # 89 is twice in the call: the last row counts.
    ids = [2, 31, 61, 62, 89, 150, 89]
    with no_room(index):
        done = index.upsert(vectors[100:107], ids, table(range(100, 107)))
    expected = {row: rows[row] for row in range(90) if row not in (5, 61)}
    expected |= {one: rows[100 + place] for place, one in enumerate(ids)}
    assert (done.rows, done.replaced) == (6, 4)
    assert rows_of(index) == expected == after_a_crash(index, tmp_path)
    # Rows that the log brings behind it, in the place of some of them.
    index.upsert(vectors[110:112], [2, 88], table([110, 111]))
    index.delete([150])
    expected |= {2: rows[110], 88: rows[111]}
    del expected[150]
    assert rows_of(index) == expected == after_a_crash(index, tmp_path)
    index.flush()
    assert rows_of(index) == expected == after_a_crash(index, tmp_path)
    index.optimize()
    assert rows_of(index) == expected == after_a_crash(index, tmp_path)
    assert len(index.info()["live"]["parts"]) == 1


def test_a_call_that_is_repeated_is_not_done_again(tmp_path: Path) -> None:
    vectors = vectors_of(40)
    path = tmp_path / "a"
    with velo.create(path, dim=DIM, threads=1) as index:
        index.insert(vectors[:3], request="small")
        with no_room(index):
            done = index.insert(vectors[3:], request="large")
            assert index.insert(vectors[:3], request="small").repeated
            for _ in range(2):
                again = index.insert(vectors[3:], request="large")
                assert (again.repeated, again.first_id, again.sequence) == (True, 3, done.sequence)
        assert index.insert(vectors[3:], request="large").repeated
    for writable in (False, True):
        with velo.open(path, writable=writable, threads=1) as index:
            assert len(index) == 40
            if writable:
                assert index.insert(vectors[3:], request="large").repeated
                with no_room(index):
                    assert index.insert(vectors[3:], request="large").repeated
                for number in range(1_023):
                    index.insert(vectors[:1], request=f"{number}")
                assert index.insert(vectors[3:], request="large").repeated
                with no_room(index):  # which makes it forget the oldest
                    index.insert(vectors[:1], request="one more")
                assert not index.insert(vectors[3:], request="large").repeated


def refused(index: velo.Index, tmp_path: Path, kind: type[errors.VeloError], *what: Any, **how: Any) -> Any:
    """What a call is refused of that leaves nothing behind."""
    before, sequence = rows_of(index), index.info()["live"]["sequence"]
    verb = how.pop("verb", "insert")
    with no_room(index), pytest.raises(kind) as caught:
        getattr(index, verb)(*what, **how)
    assert rows_of(index) == before == after_a_crash(index, tmp_path)
    assert index.info()["live"]["sequence"] == sequence
    index._folders[0].compactor.sweep()
    assert folders_of(index.path) == named_in(index.path)
    return caught.value


def test_a_large_call_refuses_what_small_calls_refuse(index: velo.Index, tmp_path: Path) -> None:
    vectors = vectors_of(30)
    index.insert(vectors[:5], range(5), table(range(5)))
    index.flush()
    index.insert(vectors[5:9], range(5, 9), table(range(5, 9)))
    columns = table(range(4))
    some = vectors[:4]
    for there in (3, 8):
        told = refused(index, tmp_path, errors.DuplicateIdError, some, [10, 11, there, 12], columns)
        assert (told.argument, told.row) == ("ids", 2)
    assert refused(index, tmp_path, errors.DuplicateIdError, some, [10, 11, 12, 10], columns).row == 3
    bad = some.copy()
    bad[2, 1] = np.nan
    assert refused(index, tmp_path, errors.NotFiniteError, bad, range(10, 14), columns).row == 2
    for kind, what in (
        (errors.InvalidArgumentError, (some, ["a", "b", "c", "d"], columns)),
        (errors.InvalidArgumentError, (some, None, columns)),
        (errors.InvalidArgumentError, (some, range(10, 13), columns)),
        (errors.InvalidArgumentError, (some, range(10, 14), None)),
        (errors.InvalidArgumentError, (some, range(10, 14), table(range(3)))),
        (errors.InvalidArgumentError, (some, range(10, 14), columns, 5)),
        (errors.UnknownColumnError, (some, range(10, 14), columns.append_column("more", [range(4)]))),
        (errors.DimensionMismatchError, (some[:, 1:], range(10, 14), columns)),
        (errors.DtypeError, (some.astype(np.int64), range(10, 14), columns)),
    ):
        refused(index, tmp_path, kind, *what)


def test_row_numbers_of_a_failed_call_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its own call failed; and an id that was never returned is not upserted."""
    vectors = vectors_of(30)
    build = segment_builder.build_segment
    assert build is not None
    with velo.create(tmp_path / "a", dim=DIM, threads=1) as index:
        assert index.insert(vectors[:10]).first_id == 0

        def fails(folder: Path, *what: Any, **how: Any) -> None:
            index._folders[0].live.delta_bytes_max = 64 << 20
            with pytest.raises(errors.UnknownIdError):
                index.upsert(vectors[:1], [12])
            assert index.insert(vectors[10:12]).first_id == 15  # while the large call is under way
            raise errors.NoSpaceError("full")

        monkeypatch.setattr(segment_builder, "build_segment", fails)
        with no_room(index), pytest.raises(errors.NoSpaceError):
            index.insert(vectors[:5])
        monkeypatch.setattr(segment_builder, "build_segment", build)
        with pytest.raises(errors.UnknownIdError):
            index.upsert(vectors[:1], [12])
        assert refused(index, tmp_path, errors.UnknownIdError, vectors[:2], [3, 12], verb="upsert").row == 1
        with no_room(index):
            assert index.insert(vectors[:5]).first_id == 17
            assert index.upsert(vectors[:2], [3, 17]).replaced == 2
        assert index.rows()["id"].to_pylist() == [*range(10), 15, 16, *range(17, 22)]
    with velo.open(tmp_path / "a", writable=True, threads=1) as index:
        assert index.insert(vectors[:1]).first_id == 22


def meanwhile(index: velo.Index, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something when the next segment was made, before it takes its place; there is room for it."""
    live = index._folders[0].live
    assert live is not None
    build = segment_builder.build_segment
    assert build is not None

    def watched(*what: Any, **how: Any) -> None:
        monkeypatch.setattr(segment_builder, "build_segment", build)
        build(*what, **how)
        live.delta_bytes_max, most = 64 << 20, live.delta_bytes_max
        act()
        live.delta_bytes_max = most

    monkeypatch.setattr(segment_builder, "build_segment", watched)


def test_duplicate_ids_are_checked_when_the_segment_is_committed(
    index: velo.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = vectors_of(30)
    index.insert(vectors[:5], range(5), table(range(5)))
    meanwhile(index, monkeypatch, lambda: index.insert(vectors[9:10], [9], table([9])))
    with no_room(index), pytest.raises(errors.DuplicateIdError) as caught:
        index.insert(vectors[7:12], range(7, 12), table(range(7, 12)))
    assert caught.value.row == 2
    assert set(rows_of(index)) == set(after_a_crash(index, tmp_path)) == {*range(5), 9}
    assert folders_of(index.path) == named_in(index.path) == set(), "the part is gone"

    def more() -> None:
        index.upsert(vectors[20:21], [3], table([20]))
        index.delete([1, 9])
        index.flush()
        index.insert(vectors[12:13], [12], table([12]))

    meanwhile(index, monkeypatch, more)
    with no_room(index):
        done = index.upsert(vectors[20:24], [1, 3, 12, 13], table(range(20, 24)))
    assert done.replaced == 2
    found = rows_of(index)
    assert {one: row[2] for one, row in found.items()} == {0: 0, 2: 2, 4: 4, 1: 20, 3: 21, 12: 22, 13: 23}
    assert after_a_crash(index, tmp_path) == found


def test_columns_added_during_a_large_call(
    index: velo.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(index, monkeypatch, lambda: index.add_columns({"more": 5}))
    with no_room(index):
        index.insert(vectors_of(9), range(9), table(range(9)))
        with pytest.raises(errors.InvalidArgumentError, match="more"):
            index.insert(vectors_of(1), [9], table([9]))
        index.insert(vectors_of(1), [9], table([9]).append_column("more", pa.array([6])))
    found = rows_of(index)
    assert [found[row][3] for row in range(10)] == [5] * 9 + [6]
    assert after_a_crash(index, tmp_path) == found


def test_a_merge_of_the_delta_finds_it_after_a_large_call(
    index: velo.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delta becomes a segment before the merge ends, and that of a large call comes before it."""
    vectors = vectors_of(100)
    build = segment_builder.build_segment
    assert build is not None
    merges, goes_on = threading.Event(), threading.Event()

    def watched(*what: Any, **how: Any) -> None:
        if how["warm_start"] is not None and not merges.is_set():
            merges.set()
            assert goes_on.wait(60)
        build(*what, **how)

    monkeypatch.setattr(segment_builder, "build_segment", watched)
    for start in (0, 10):
        index.insert(vectors[start : start + 10], range(start, start + 10), table(range(start, start + 10)))
        index.flush()
    index.insert(vectors[20:30], range(20, 30), table(range(20, 30)))
    index.optimize(wait=False)
    assert merges.wait(60)
    with no_room(index):
        index.upsert(vectors[30:40], range(25, 35), table(range(30, 40)))
    index.insert(vectors[40:45], range(40, 45), table(range(40, 45)))
    assert index._folders[0].compactor is not None
    assert index._folders[0].compactor.wait(60)  # the delta becomes a segment
    index.delete([1, 21, 26, 41])
    expected = rows_of(index)
    goes_on.set()
    index._folders[0].compactor.join()
    assert rows_of(index) == expected == after_a_crash(index, tmp_path)


def test_large_calls_beside_writers_searches_and_commits(tmp_path: Path) -> None:
    """Each thread has ids of its own; large calls of two threads are under way at once."""
    vectors = vectors_of(4_000)
    failures: list[BaseException] = []
    over = threading.Event()
    expected: list[dict[int, int]] = [{} for _ in range(4)]
    with velo.create(tmp_path / "a", dim=DIM, metadata=SCHEMA, threads=1, durability="process") as index:
        live = index._folders[0].live

        def write(number: int, size: int) -> None:
            dice = np.random.default_rng(number)
            ids = np.arange(1_000 * number, 1_000 * number + 300)
            for _ in range(3 if size > 100 else 80):
                if over.is_set():
                    return
                chosen = dice.choice(ids, size, replace=False)
                rows = dice.integers(0, len(vectors), size)
                index.upsert(vectors[rows], chosen, table(rows.tolist()))
                expected[number] |= dict(zip(chosen.tolist(), rows.tolist(), strict=True))
                gone = dice.choice(ids, 7, replace=False).tolist()
                index.delete(gone)
                for one in gone:
                    expected[number].pop(one, None)

        def search() -> None:
            while not over.is_set():
                ids = index.search(vectors[:3], 20, recall=1.0).ids
                for row in ids.tolist():
                    kept = [one for one in row if one != -1]
                    assert len(kept) == len(set(kept))

        def commit() -> None:
            while not over.is_set():
                index.flush()
                index.optimize()

        def run(work: Callable[..., None], *what: Any) -> None:
            try:
                work(*what)
            except BaseException as error:
                failures.append(error)
                over.set()

        live.delta_bytes_max = 100 * 180  # calls of more than a hundred rows are large
        writers = [
            threading.Thread(target=run, args=(write, number, size))
            for number, size in enumerate((150, 150, 5, 40))
        ]
        others = [threading.Thread(target=run, args=(one,)) for one in (search, commit)]
        for thread in (*writers, *others):
            thread.start()
        for thread in writers:
            thread.join(300)
        over.set()
        for thread in others:
            thread.join(300)
        assert not failures, failures
        assert index.info()["live"]["upkeep_failure"] is None
        wanted = {one: row for state in expected for one, row in state.items()}
        assert {one: row[2] for one, row in rows_of(index).items()} == wanted
        index.flush()
        found = after_a_crash(index, tmp_path)
        assert {one: row[2] for one, row in found.items()} == wanted
        for one, row in wanted.items():
            assert found[one][0] == tuple(vectors[row].tolist())


@pytest.mark.parametrize("step", ["segment_to_make", "build", "open", "insert_segment", "full", "full root"])
@pytest.mark.parametrize("verb", ["insert", "upsert"])
def test_a_failed_large_call_leaves_nothing(
    index: velo.Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, verb: str
) -> None:
    vectors = vectors_of(30)
    index.insert(vectors[:5], range(5), table(range(5)))
    index.flush()
    index.insert(vectors[5:9], range(5, 9), table(range(5, 9)))
    ids = range(10, 20) if verb == "insert" else [2, 7, *range(10, 18)]
    columns = table(range(10))
    insert_segment = LiveData.insert_segment
    kind: type[errors.VeloError] = errors.NoSpaceError

    def fails(*what: Any, **how: Any) -> Any:
        raise kind("injected")

    def with_full_disk(self: LiveData, rows: Any, first_row: int, made: Any) -> Any:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        # A root takes more than the ids do.
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 if step == "full" else 300, hard))
        try:
            return insert_segment(self, rows, first_row, made)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)

    with monkeypatch.context() as patch:
        assert index._folders[0].compactor is not None
        if step == "build":
            patch.setattr(segment_builder, "build_segment", fails)
        elif step == "open":
            patch.setattr(index._folders[0], "open_segment", fails)
        elif step.startswith("full"):
            patch.setattr(LiveData, "insert_segment", with_full_disk)
        else:
            patch.setattr(LiveData, step, fails)
        refused(index, tmp_path, kind, vectors[10:20], ids, columns, verb=verb)
    with no_room(index):
        done = getattr(index, verb)(vectors[10:20], ids, columns, request="now")
    assert (done.rows, done.replaced) == (10, 0 if verb == "insert" else 2)
    index.optimize()
    assert len(index) == (19 if verb == "insert" else 17)
    assert rows_of(index) == after_a_crash(index, tmp_path)


PROGRAM = """
import os, sys
import numpy as np
import velo
from velo.compaction import segment_builder
from velo.segments.data import LiveData

path, step = sys.argv[1:]
build, insert_segment = segment_builder.build_segment, LiveData.insert_segment

def half(folder, *what, **how):
    if step == "before":
        os._exit(9)
    build(folder, *what, **how)
    os._exit(9)

def late(*what):
    insert_segment(*what)
    os._exit(9)

if step == "after":
    LiveData.insert_segment = late
else:
    segment_builder.build_segment = half
with velo.open(path, writable=True, threads=1) as index:
    index._folders[0].live.delta_bytes_max = 0
    index.upsert(np.eye(3), ids=[1, 2, 3], request="killed")
"""


@pytest.mark.parametrize("step", ["before", "built", "after"])
def test_a_killed_large_call_is_complete_or_absent(tmp_path: Path, step: str) -> None:
    path = tmp_path / "a"
    with velo.create(path, dim=3, threads=1) as index:
        index.insert(np.ones((1, 3)), ids=[2])
    assert child.run(PROGRAM, path, step).returncode == 9
    assert len(folders_of(path)) == 1, "the part is there, named or not"
    ids = [2] if step != "after" else [1, 2, 3]
    with velo.open(path, threads=1) as index:
        assert index.rows()["id"].to_pylist() == ids
    with velo.open(path, writable=True, threads=1) as index:
        assert folders_of(path) == named_in(path)
        assert index.rows()["id"].to_pylist() == ids
        done_again = index.upsert(np.eye(3), ids=[1, 2, 3], request="killed")
        assert done_again.repeated is (step == "after")
        assert len(index) == 3
    assert velo.verify(path) >= 0


@pytest.mark.parametrize("durability", ["sync", "interval", "process"])
def test_a_large_call_is_durable_when_it_returns(tmp_path: Path, durability: Any) -> None:
    """And with it all earlier writes, including those of calls that wait for a sync."""
    with velo.create(tmp_path / "a", dim=DIM, threads=1, durability=durability) as index:
        before = index.insert(vectors_of(3))
        with no_room(index):
            done = index.insert(vectors_of(4))
        assert done.durable
        assert done.sequence == before.sequence + 1
        assert index.insert(vectors_of(1)).sequence == done.sequence + 1
        assert set(after_a_crash(index, tmp_path)) == set(range(8))


def test_closing_waits_for_a_large_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = threading.Event()
    index = velo.create(tmp_path / "a", dim=DIM, threads=1)
    meanwhile(index, monkeypatch, lambda: (under_way.set(), time.sleep(0.3)))
    told: list[Any] = []
    with no_room(index):
        thread = threading.Thread(target=lambda: told.append(index.insert(vectors_of(9))))
        thread.start()
        assert under_way.wait(60)
        index.close()
    thread.join(60)
    assert told[0].rows == 9
    with velo.open(tmp_path / "a", threads=1) as index:
        assert len(index) == 9


def test_a_reader_sees_a_large_call_after_refresh(tmp_path: Path) -> None:
    with velo.create(tmp_path / "a", dim=DIM, threads=1) as index:
        index.insert(vectors_of(2))
        with velo.open(tmp_path / "a", threads=1, follow=False) as reader:
            with no_room(index):
                index.insert(vectors_of(9))
            assert len(reader) == 2
            assert reader.refresh()
            assert len(reader) == 11
            assert not reader.refresh()


def test_a_large_call_beyond_the_memory_of_merges_is_refused(tmp_path: Path) -> None:
    rows = np.zeros((60_000, DIM), np.float32)
    with velo.create(tmp_path / "a", dim=DIM, memory="1MiB", merge_memory=800_000, threads=1) as index:
        with pytest.raises(errors.BudgetTooSmallError, match="merge_memory") as caught:
            index.insert(rows)
        assert caught.value.needed_bytes > 800_000
        assert len(index) == 0
        assert folders_of(index.path) == set()
        assert index._folders[0].compactor is not None
        with (
            index._folders[0].compactor._maker._memory.share(800_000, 800_000, 800_000),
            pytest.raises(errors.BusyError, match="try again"),
        ):
            index.insert(rows[:16_000], timeout_s=0.05)
        assert len(index) == 0
        assert index.insert(rows[:16_000], timeout_s=60).rows == 16_000


MEMORY = """
import sys
import numpy as np
import velo

count, dim, memory, merge_memory = map(int, sys.argv[2:])
rows = np.random.default_rng(4).random((count, dim), np.float32)
velo.build(sys.argv[1] + "-warm", rows[:1_000], threads=2).close()  # libraries and the first use of them

def resident(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

with velo.create(sys.argv[1], dim=dim, memory=memory, merge_memory=merge_memory, threads=2) as index:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak from now on
    before = resident("VmRSS")
    index.insert(rows)
    print(resident("VmHWM") - before, len(index), index.search(rows[77], 1, recall=1.0).ids[0])
"""


@pytest.mark.long(
    guarded_by="tests/building/test_build_memory.py::test_a_partitioned_build_stays_within_its_memory"
)
def test_a_large_call_stays_within_the_memory_of_merges(run_python: Any, tmp_path: Path) -> None:
    memory, merge_memory = 16 << 20, 8 << 20
    done = run_python(MEMORY, tmp_path / "a", 30_000, 1_024, memory, merge_memory)
    assert done.returncode == 0, done.stderr
    taken, length, found = map(int, done.stdout.split())
    assert (length, found) == (30_000, 77)
    assert taken <= memory + merge_memory + (64 << 20), "the rows are 117 MiB"
