"""Several processes write to one index: none loses a row of another, and what one wrote the others see."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from tests.live.rows import DIM, SCHEMA, table, vectors_of
from tests.long import count
from velo import errors
from velo.compaction import compactor
from velo.testing import synthetic_vectors

#: Calls methods: each line of its input has the name of a method and its arguments.
SERVANT = """
    import json, sys
    import numpy as np
    import velo
    from velo.compaction import compactor

    path, how, later_s = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    compactor._LATER_S = later_s
    with velo.open(path, threads=1, **how) as index:
        print(json.dumps("open"), flush=True)
        for line in sys.stdin:
            name, arguments, options = json.loads(line)
            try:
                found = getattr(index, name)(*arguments, **options)
                if name == "search":
                    found = found.ids.tolist()
                elif name == "rows":
                    found = found.to_pylist()
                elif hasattr(found, "sequence"):
                    found = {key: getattr(found, key) for key in ("rows", "missing", "replaced", "sequence")}
                print(json.dumps(found), flush=True)
            except velo.errors.VeloError as error:
                print(json.dumps({"error": type(error).__name__, "message": str(error)}), flush=True)
    """


class Servant:
    """An index in a process of its own."""

    def __init__(self, path: Path, later_s: float = 3600.0, **how: Any) -> None:
        self.process = child.start(SERVANT, path, json.dumps(how), later_s, stdin=subprocess.PIPE)
        assert self.answer() == "open"

    def ask(self, name: str, *arguments: Any, **options: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, arguments, options]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def __call__(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.ask(name, *arguments, **options)
        return self.answer()


@contextlib.contextmanager
def servant(path: Path, **how: Any) -> Iterator[Servant]:
    made = Servant(path, **how)
    try:
        yield made
    finally:
        made.process.send_signal(signal.SIGCONT)
        made.process.kill()
        made.process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "a.velo"
    velo.create(made, dim=DIM, metadata=SCHEMA).close()
    return made


def given(ids: range) -> tuple[list[Any], list[int], dict[str, list[Any]]]:
    """Vectors, ids and columns of some rows, as JSON holds them."""
    return vectors_of(len(ids), ids.start).tolist(), list(ids), table(ids).to_pydict()


def ids_of(index: velo.Index) -> list[int]:
    return index.rows(limit=100_000)["id"].to_pylist()


def test_each_sees_what_the_other_wrote_at_once(path: Path) -> None:
    with (
        velo.open(path, writable=True, threads=1) as index,
        servant(path, writable=True) as other,
        velo.open(path, threads=1) as follower,
        velo.open(path, threads=1, follow=False) as pinned,
    ):
        assert other("insert", *given(range(10)))["rows"] == 10
        assert ids_of(index) == ids_of(follower) == list(range(10))
        with pytest.raises(errors.DuplicateIdError):
            index.insert(vectors_of(1), [3], table([3]))
        assert index.upsert(vectors_of(2), [3, 10], table([3, 4])).replaced == 1
        assert other("rows", "n = 4 or n = 3", columns=["n"]) == [
            {"id": 3, "n": 3},
            {"id": 4, "n": 4},
            {"id": 10, "n": 4},
        ]
        assert other("update", [10, 11], {"n": [77, 78]})["missing"] == 1
        assert follower.get([10])["n"].to_pylist() == [77]
        assert index.update(filter=velo.col("n") == 77, metadata={"n": 78}).rows == 1
        assert other("delete", filter="n = 78")["rows"] == 1
        assert index.delete(list(range(5))).rows == 5
        assert ids_of(index) == ids_of(follower) == list(range(5, 10))
        assert [row["id"] for row in other("rows")] == list(range(5, 10))
        assert follower.search(vectors_of(10, 0)[7], 1).ids.tolist() == [7]
        assert other("search", vectors_of(10, 0)[7].tolist(), 1) == [7]
        assert len(pinned) == 0
        assert pinned.refresh()
        assert ids_of(pinned) == list(range(5, 10))
        index.delete([5])
        assert ids_of(pinned) == list(range(5, 10))
    assert velo.verify(path) >= 0


def test_the_first_write_to_a_built_index_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "built.velo"
    velo.build(path, vectors_of(300), threads=1, calibrate=False, store_vectors=True).close()
    with (
        velo.open(path, threads=1) as follower,
        velo.open(path, writable=True, threads=1) as index,
        servant(path, writable=True) as other,
    ):
        assert len(follower) == len(index) == 300
        assert other("delete", [17])["rows"] == 1
        assert len(follower) == len(index) == 299
        assert index.insert(vectors_of(2)).first_id == 300
        assert other("insert", vectors_of(2).tolist())["rows"] == 2
        assert len(follower) == len(index) == 303
        index.optimize()
        assert len(follower) == 303
        assert other("delete", filter=[300, 301])["rows"] == 2
        assert index.insert(vectors_of(1)).first_id == 304
        assert len(follower) == 302


def test_columns_of_another_process_come_with_the_next_call(path: Path) -> None:
    with velo.open(path, writable=True, threads=1) as index, servant(path, writable=True) as other:
        other("insert", *given(range(3)))
        index.add_columns({"stock": 12})
        vectors, ids, columns = given(range(3, 6))
        assert other("insert", vectors, ids, columns | {"stock": [1, 2, 3]})["rows"] == 3
        assert other("update", [0], {"stock": 5})["rows"] == 1
        assert index.get(range(6))["stock"].to_pylist() == [5, 12, 12, 1, 2, 3]
        assert other("add_columns", {"color": "red"}) is None
        assert index.count("color = 'red'") == 6


def test_one_flushes_and_merges_while_the_other_writes(path: Path) -> None:
    with velo.open(path, writable=True, threads=1) as index, servant(path, writable=True) as other:
        for turn in range(count(6, 30)):
            first = turn * 100
            other.ask(("flush", "optimize")[turn % 2])
            index.insert(vectors_of(40, first), range(first, first + 40), table(range(40)))
            index.delete(range(first, first + 10))
            if turn % 3 == 2:
                index.flush()
            assert other.answer() is None
            assert other("upsert", *given(range(first + 20, first + 60)))["rows"] == 40
        wanted = sorted(
            one for first in range(0, 100 * count(6, 30), 100) for one in range(first + 10, first + 60)
        )
        assert ids_of(index) == wanted
        index.optimize()
        assert [row["id"] for row in other("rows", limit=100_000)] == wanted
        assert len(index.info()["live"]["parts"]) == 1
        found = index.search(vectors_of(40, 20)[5], 1, recall=1.0)
        assert found.ids.tolist() == [25]
    velo.verify(path)


@contextlib.contextmanager
def merging(path: Path) -> Iterator[int]:
    """As if another process merged."""
    handle = os.open(path / "merge.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield handle
    finally:
        os.close(handle)


def fill(index: velo.Index, first: int) -> int:
    """Insert until there is no room; the first id that was not inserted."""
    rows = synthetic_vectors(1000, DIM, seed=3), table(range(1000))
    while True:
        try:
            index.insert(rows[0], range(first, first + 1000), rows[1], timeout_s=0.2)
        except errors.BusyError:
            return first
        first += 1000


def test_a_full_writer_waits_for_the_process_that_merges(path: Path) -> None:
    rows = synthetic_vectors(1000, DIM, seed=3), table(range(1000))
    with velo.open(path, writable=True, memory="2MiB", threads=1, durability="process") as index:
        with merging(path) as handle:
            there = fill(index, 0)
            assert 0 < there == len(index)
            assert index.info()["live"]["parts"] == []
            fcntl.flock(handle, fcntl.LOCK_UN)  # as if it had been killed
            index.insert(rows[0], range(there, there + 1000), rows[1], timeout_s=60)
        assert len(index) == there + 1000
        assert index.info()["live"]["parts"]
        with merging(path), servant(path, writable=True) as other:
            more = fill(index, there + 1000)
            (path / "merge.lock").unlink()
            assert other("flush") is None
            with merging(path):  # nor is it this process that makes room
                index.insert(rows[0], range(more, more + 1000), rows[1], timeout_s=60)
            assert len(index) == more + 1000


def test_a_caller_waits_for_the_process_that_merges(path: Path) -> None:
    with velo.open(path, writable=True, threads=1) as index, servant(path, writable=True) as other:
        index.insert(vectors_of(50), range(50), table(range(50)))
        with merging(path):
            other.ask("flush")
            time.sleep(0.3)
            assert index.info()["live"]["parts"] == []
            index.delete([1])
        assert other.answer() is None
        assert [one["n"] for one in index.info()["live"]["parts"]] == [49]


#: Merges, and says so before it waits to be killed.
MERGER = """
    import sys, time
    import velo
    from velo.building import build
    from velo.compaction import segment_builder

    segment_builder._RESUMED_ROWS = 1
    whole = build.build_shard

    def watched(path, *args, watch=None, **how):
        def stop(now, done, total):
            if now == "commit":  # the stages before may pass between two looks
                print("merging", flush=True)
                time.sleep(600)
            return None if watch is None else watch(now, done, total)

        whole(path, *args, watch=stop, **how)

    build.build_shard = watched
    with velo.open(sys.argv[1], writable=True, threads=1) as index:
        index.optimize()
    """


def test_the_merge_of_a_killed_process_is_resumed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "i.velo"
    vectors = synthetic_vectors(1200, DIM, seed=7)
    velo.build(path, vectors[:1000], ids=np.arange(1000), store_vectors=True, threads=1).close()
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(vectors[1000:], np.arange(1000, 1200))
        index.flush()
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    monkeypatch.setattr(compactor, "_LEFT_S", 0.05)
    with child.start(MERGER, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "merging\n"
        begun = sorted(one.name for one in path.glob("merge-*"))
        assert len(begun) == 2
        with velo.open(path, writable=True, threads=1) as index:
            index.delete(np.arange(100))
            index.insert(vectors[:5], np.arange(2000, 2005))
            with velo.open(path, writable=True, threads=1) as another:  # which takes nothing for litter
                assert len(another) == 1105
                time.sleep(0.2)
                assert sorted(one.name for one in path.glob("merge-*")) == begun
                process.kill()
                process.wait()
                another.optimize()
            assert not list(path.glob("merge-*"))
            assert len(index.info()["live"]["parts"]) == 1
            assert sorted(ids_of(index)) == [*range(100, 1200), *range(2000, 2005)]
            assert (index.get_vectors([100, 1199, 2000]) == vectors[[100, 1199, 0]]).all()
    velo.verify(path)


def test_a_folder_may_be_moved_under_its_processes(path: Path) -> None:
    with velo.open(path, writable=True, threads=1) as index, servant(path, writable=True) as other:
        index.insert(vectors_of(5), range(5), table(range(5)))
        path.rename(path.with_name("moved.velo"))
        assert other("insert", *given(range(5, 10)))["rows"] == 5
        index.flush()
        assert other("delete", [0])["rows"] == 1
        assert ids_of(index) == list(range(1, 10))
        path.mkdir()  # another program's
        assert other("optimize") is None
        index.insert(vectors_of(1), [0], table([0]))
        assert len(other("rows")) == 10
        assert not list(path.iterdir())
    assert velo.verify(path.with_name("moved.velo")) > 0


def test_the_page_and_the_lock_may_be_deleted_by_hand(path: Path) -> None:
    with (
        velo.open(path, writable=True, threads=1) as index,
        servant(path, writable=True) as other,
        velo.open(path, threads=1) as follower,
    ):
        there = 0
        for turn in range(8):
            if turn % 2:
                (path / "live.page").unlink()
                (path / "merge.lock").unlink(missing_ok=True)
            assert other("insert", *given(range(there, there + 3)))["rows"] == 3
            index.insert(vectors_of(2), [there + 3, there + 4], table([3, 4]))
            there += 5
            index.delete([there - 1])
            index.insert(vectors_of(1), [there - 1], table([4]))
            index.flush()
            # All look for the page at most ten times a second; until then each sees what it wrote.
            until = time.monotonic() + 10
            while len(follower) < there or len(other("rows")) < there:
                assert time.monotonic() < until
                index.delete([10**6])
            assert ids_of(index) == ids_of(follower) == list(range(there))
    velo.verify(path)


def test_a_stopped_process_makes_others_busy_and_searches_go_on(path: Path) -> None:
    with velo.open(path, writable=True, threads=1, durability="process") as index:
        index.insert(vectors_of(5), range(5), table(range(5)))
        with (
            servant(path, writable=True) as other,
            velo.open(path, threads=1) as follower,
            ThreadPoolExecutor(1) as pool,
        ):
            handle = os.open(path, os.O_RDONLY)
            pid = other.process.pid
            try:
                other.ask("upsert", *given(range(5, 2000)))  # so that the page names it
                assert other.answer()["rows"] == 1995
                fcntl.flock(handle, fcntl.LOCK_EX)  # as if it were stopped in its call
                other.process.send_signal(signal.SIGSTOP)
                begun = time.monotonic()
                with pytest.raises(errors.BusyError, match=f"process {pid} "):
                    index.insert(vectors_of(1), [9999], table([1]), timeout_s=0.3)
                assert 0.2 < time.monotonic() - begun < 30
                # No call waits for a thread that waits longer.
                patient = pool.submit(index.insert, vectors_of(1), [9998], table([1]), timeout_s=250)
                for how in ({"ids": [1]}, {"filter": "n = 1"}):
                    with pytest.raises(errors.BusyError, match=f"process {pid} "):
                        index.delete(**how, timeout_s=0.3)
                assert not patient.done()
                assert len(index) == len(follower) == 2000
                assert index.search(vectors_of(5)[2], 1).ids.tolist() == [2]
            finally:
                os.close(handle)
            index.insert(vectors_of(1), [9999], table([1]), timeout_s=10)
            assert patient.result().rows == 1
            assert index.delete([1], timeout_s=10).rows == 1
            assert len(follower) == 2001


def test_processes_insert_at_the_same_time(path: Path) -> None:
    calls = count(30, 300)
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(servant(path, writable=True)) for _ in range(3)]
        for call in range(calls):
            for number, other in enumerate(others):
                first = (call * 3 + number) * 10
                other.ask("insert", *given(range(first, first + 10)))
            answers = [other.answer() for other in others]
            assert all(one.get("rows") == 10 for one in answers), answers
            assert len({one["sequence"] for one in answers}) == 3
        for other in others:
            assert [row["id"] for row in other("rows", limit=100_000, columns=[])] == list(range(calls * 30))
    velo.verify(path)


def test_a_collection_gives_an_id_to_one_shard(tmp_path: Path) -> None:
    path = tmp_path / "c.velo"
    velo.build_collection(path, vectors_of(400), shards=3, ids=np.arange(400), threads=1, store_vectors=True)
    with velo.open(path, writable=True, threads=1) as index, servant(path, writable=True) as other:
        new = list(range(1000, 1040))
        for turn in range(count(5, 40)):
            other.ask("upsert", vectors_of(40, turn).tolist(), new)
            index.upsert(vectors_of(40, turn + 500), new)
            assert other.answer()["rows"] == 40
            assert sorted(ids_of(index)) == [*range(400), *new]
            assert len(other("rows", limit=1000)) == 440
            with servant(path / "shard-00001", writable=True) as alone:
                gone = [row["id"] for row in alone("rows", limit=1000) if row["id"] >= 1000]
                assert alone("delete", gone)["rows"] == len(gone)
            assert len(index) == 440 - len(gone)
            assert other("delete", new)["missing"] == len(gone)
        handle = os.open(path, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(errors.BusyError, match="collection"):
            index.upsert(vectors_of(40), new, timeout_s=0.1)
        os.close(handle)
        handle = os.open(path / "shard-00000", os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(errors.BusyError, match="writes to this index"):
            index.delete(list(range(10)), timeout_s=0.1)
        os.close(handle)
    assert velo.verify(path / "shard-00000") > 0
