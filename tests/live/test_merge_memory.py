"""The budget of merges: what runs together keeps within it, and so does the process."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from tests.live.rows import DIM, vectors_of
from tests.long import count
from velo import errors
from velo.building.build import build_shard
from velo.compaction import segment_builder
from velo.compaction.merge_memory import MergeMemory
from velo.folder.manifest import read_manifest
from velo.folder.opened import OpenedFolder
from velo.formats.files import as_source
from velo.options import BuildOptions, sizes_of
from velo.segments.data import LiveData
from velo.testing import synthetic_vectors


@pytest.mark.parametrize(
    ("rows", "dim", "degree"), [(1, 4, 8), (900, 100, 48), (5_000, 20, 64), (600_000, 2, 64)]
)
def test_the_least_merge_memory_is_that_of_the_library(
    rows: int, dim: int, degree: int, tmp_path: Path
) -> None:
    vectors = as_source(np.zeros((rows, dim), np.uint8))
    with pytest.raises(errors.BudgetTooSmallError) as caught:
        build_shard(tmp_path / "i", vectors, BuildOptions(degree=degree, links_kept=8), build_memory=1)
    assert caught.value.needed_bytes == sizes_of(rows, dim, degree=degree).build_least_bytes


def live_of(path: Path, delta_bytes: int = 1 << 20) -> LiveData:
    velo.create(path, dim=DIM).close()
    live = LiveData(OpenedFolder(path), "process", delta_bytes)
    live.begin([])
    return live


def test_shares_never_exceed_the_budget(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    total = 1_000
    live = live_of(tmp_path / "i")
    memory = MergeMemory("64MiB", None, live)
    lock = threading.Lock()
    held: list[int] = []
    most: list[int] = []

    def commit(number: int) -> None:
        dice = random.Random(seed + number)
        for _ in range(60):
            least = dice.randint(1, total)
            wanted = dice.randint(1, total)
            with memory.share(total, least, wanted) as given:
                assert given >= least
                assert given <= wanted or wanted < least
                with lock:
                    held.append(given)
                    most.append(sum(held))
                time.sleep(dice.random() * 1e-3)
                with lock:
                    held.remove(given)

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(most) == 6 * 60
    assert max(most) <= total
    assert memory.taken == 0
    live.close()


def test_waiting_merges_are_not_overtaken_and_impossible_ones_are_refused(tmp_path: Path) -> None:
    live = live_of(tmp_path / "i")
    memory = MergeMemory("64MiB", None, live)
    order: list[str] = []

    def commit(name: str, least: int) -> threading.Thread:
        def run() -> None:
            with memory.share(100, least, least):
                order.append(name)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive() and len(memory._waiting) < waiting:
            time.sleep(1e-3)
        return thread

    with memory.share(100, 50, 60) as given:
        assert given == 60
        waiting = 1
        large = commit("large", 90)
        waiting = 2
        small = commit("small", 20)  # there is room for it now, but then the large one might wait for ever
        assert order == []
        with (
            pytest.raises(errors.BudgetTooSmallError, match="merge_memory") as caught,
            memory.share(100, 101, 101),
        ):
            pass
        assert caught.value.needed_bytes == 101
    large.join(60)
    small.join(60)
    assert order == ["large", "small"]
    live.close()


def test_a_budget_that_holds_no_full_delta_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    velo.create(tmp_path / "i", dim=DIM).close()
    before = sorted(path.name for path in (tmp_path / "i").iterdir())
    with pytest.raises(errors.BudgetTooSmallError, match="merge_memory") as caught:
        velo.open(tmp_path / "i", writable=True, memory="20MiB", merge_memory="20KiB")
    needed = caught.value.needed_bytes
    assert needed is not None
    assert sorted(path.name for path in (tmp_path / "i").iterdir()) == before
    with velo.open(tmp_path / "i", writable=True, memory="20MiB", merge_memory=needed) as index:
        rows = vectors_of(8_000)  # about as many as the delta holds
        for start in range(0, len(rows), 1_000):
            index.insert(rows[start : start + 1_000])
        index.flush()
        assert len(index) == 8_000
        assert index.search(rows[777], 1).ids.tolist() == [777]


@pytest.mark.parametrize("share", [None, "1%"])
def test_a_share_is_enough_for_a_delta(tmp_path: Path, share: str | None) -> None:
    """Of few rows it is little, and an index that can be opened can be written to."""
    rows = np.random.default_rng(5).normal(size=(1_000, 300)).astype(np.float32)  # 1.2 MB
    velo.build(tmp_path / "i", rows[:100], threads=1).close()
    with velo.open(
        tmp_path / "i", writable=True, memory="60%", merge_memory=share, durability="process"
    ) as index:
        for start in range(100, len(rows), 100):
            index.insert(rows[start : start + 100])
        index.flush()
        assert index.search(rows[900], 1).ids.tolist() == [900]


PROGRAM = """
import json, os, sys, threading, time
import numpy as np
import velo
from velo.compaction import segment_builder

path, memory, merge_memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
each = int(sys.argv[4])  # rows of a segment
rows = np.random.default_rng(4).normal(size=(3 * each, 32)).astype(np.float32)
build, lock, running, seen = segment_builder.build_segment, threading.Lock(), {}, []
merges, beside = threading.Event(), threading.Event()

def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def watched(folder, *arguments, **how):
    with lock:
        running[folder] = how["build_memory"]
        seen.append(list(running.values()))
    if how["warm_start"] is not None:
        merges.set()
    elif merges.is_set():
        beside.set()
    try:
        build(folder, *arguments, **how)
        if how["warm_start"] is not None:
            assert beside.wait(60)
    finally:
        with lock:
            del running[folder]

velo.build(path + "-warm", rows[:1_000], threads=2).close()  # libraries and the first use of them
peak, done = rss(), threading.Event()
base = peak

def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, rss())

watcher = threading.Thread(target=watch)
watcher.start()
options = {"memory": memory, "merge_memory": merge_memory, "threads": 2, "durability": "process"}
with velo.create(path, dim=32, **options) as index:
    for first in (0, each):
        index.insert(rows[first : first + each])
        index.flush()
    segment_builder.build_segment = watched
    index.optimize(wait=False)
    assert merges.wait(60)
    index.insert(rows[2 * each :])
    index.flush()
    count, found = len(index), index.search(rows[-1], 1).ids.tolist()
done.set()
watcher.join()
print(json.dumps({"count": count, "found": found, "seen": seen, "growth": peak - base}))
"""


def test_recall_is_kept_where_merges_have_as_little_as_searches(tmp_path: Path) -> None:
    """With few dimensions a merge that keeps ids and rows has no room for codes; the new segment has."""
    random = np.random.default_rng(7)
    drawn = random.standard_normal((4_700, 32)) * random.lognormal(0.0, 1.0, (4_700, 1))
    # Rows would be harder to find than queries to come: hardly a link leads to one far from all others.
    vectors, queries = np.split(drawn.astype(np.float32), [4_500])
    distances = ((queries[:, None, :] - vectors[None]) ** 2).sum(-1)
    nearest = np.argpartition(distances, 10, axis=1)[:, :10]
    velo.build(tmp_path / "i", vectors[:4_200], store_vectors=True, threads=1).close()
    with velo.open(tmp_path / "i", memory="20%", merge_memory="20%", writable=True, threads=1) as index:
        index.insert(vectors[4_200:4_350])
        index.flush()
        index.insert(vectors[4_350:])
        index.optimize()
        (segment,) = index.info()["live"]["parts"]
        found = index.search(queries, k=10, recall=0.95)
    assert read_manifest(tmp_path / "i" / segment["path"]).calibration is not None, "it was not measured"
    kept = [len(set(ids) & set(near)) for ids, near in zip(found.ids.tolist(), nearest.tolist(), strict=True)]
    assert np.mean(kept) / 10 >= 0.94


def test_a_flush_beside_a_merge_stays_within_the_memory_promise(tmp_path: Path) -> None:
    memory, merge_memory, each = 16 << 20, 4 << 20, count(1_200, 4_000)
    run = child.run(PROGRAM, tmp_path / "i", memory, merge_memory, each)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["count"] == 3 * each
    assert told["found"] == [3 * each - 1]
    assert max(len(budgets) for budgets in told["seen"]) == 2, "a fold of the delta went on beside a merge"
    assert max(sum(budgets) for budgets in told["seen"]) <= merge_memory
    assert told["growth"] <= memory + merge_memory + (64 << 20), told["growth"]


def test_a_flush_and_a_merge_take_turns_in_a_small_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = segment_builder.build_segment
    assert build is not None
    running: list[str] = []
    seen: list[list[str]] = []
    merges, waits = threading.Event(), threading.Event()

    def watched(folder: Path, *arguments: Any, **how: Any) -> None:
        running.append("delta" if how["warm_start"] is None else "parts")
        seen.append(list(running))
        if how["warm_start"] is not None:
            merges.set()
            assert waits.wait(60)
        build(folder, *arguments, **how)
        running.pop()

    rows = vectors_of(14_000)
    options: dict[str, Any] = {
        "memory": "1MiB",
        "merge_memory": 290_000,
        "durability": "process",
        "threads": 1,
    }
    with velo.create(tmp_path / "i", dim=DIM, **options) as index:
        for start in range(0, 13_200, 2_200):
            index.insert(rows[start : start + 2_200])
            index.flush()
        assert index._folders[0].compactor is not None
        index._folders[0].compactor.join()
        monkeypatch.setattr(segment_builder, "build_segment", watched)
        index.insert(rows[13_200:13_600])
        index.optimize(wait=False)  # with these, and it may have to wait for who waits for its share
        assert merges.wait(60)
        index.insert(rows[13_600:])
        index._folders[0].compactor.suggest()
        memory = index._folders[0].compactor._maker._memory
        deadline = time.monotonic() + 60
        while not memory._waiting:
            assert time.monotonic() < deadline, "a fold of the delta waits for its turn"
            time.sleep(1e-3)
        waits.set()
        index._folders[0].compactor.join()
        assert ["parts", "delta"] not in seen
        assert seen[:2] == [["parts"], ["delta"]]
        assert len(index) == 14_000
        found = index.search(rows[::800], 1, recall=1.0)
        assert found.ids[:, 0].tolist() == list(range(0, 14_000, 800))


#: Prints by how much the memory of this process that is no mapped file grows at most.
GROWN = """
import os, sys, threading
import numpy as np
import pyarrow as pa
import velo
from velo.testing import synthetic_vectors

path, memory, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = synthetic_vectors(count, 64, seed=5)
pa.array([0])  # with the first, pyarrow imports pandas where it is

def own_bytes():
    resident, shared = open("/proc/self/statm").read().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

base = peak = own_bytes()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, own_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
columns = pa.schema([("bucket", pa.int8())])
with velo.create(path, dim=64, metadata=columns, memory=memory, threads=2, durability="process") as index:
    for first in range(0, count, 500):
        ids = np.arange(first, min(first + 500, count))
        index.insert(rows[ids], ids, {"bucket": (ids % 10).astype(np.int8)})
    index.optimize()
    assert len(index) == count
done.set()
watcher.join()
print(peak - base)
"""


@pytest.mark.parametrize("share", [0.1, 0.2, 0.6])
def test_rows_into_an_empty_index_stay_within_the_memory_promise(tmp_path: Path, share: float) -> None:
    """Memory, as much for merges, and 64 MiB."""
    rows = count(6_000, 60_000)
    memory = max(1 << 20, int(share * rows * 64 * 4))
    grown = int(child.run(GROWN, tmp_path / "i", memory, rows, check=True).stdout)
    print(grown / (2 * memory + (64 << 20)))
    assert grown <= 2 * memory + (64 << 20)


#: Prints by how much the memory of this process that is no mapped file grows by an index.
OPENED = """
import os, sys
import velo

def own_bytes():
    resident, shared = open("/proc/self/statm").read().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

velo.open(sys.argv[1], threads=2).close()  # what the first time takes
before = own_bytes()
with velo.open(sys.argv[2], threads=2):
    print(own_bytes() - before)
"""


def test_a_young_segment_takes_little_beside_its_codes(tmp_path: Path) -> None:
    """Each has a state for every query that may run; what no query used yet is not touched."""
    vectors = synthetic_vectors(2_000, 32, seed=5)
    one, many = tmp_path / "one", tmp_path / "many"
    with velo.create(one, dim=32, durability="process", threads=2) as index:
        index.insert(vectors[:1_000])
        index.flush()
        index.snapshot(many)
    with velo.open(many, writable=True, durability="process", threads=2) as index:
        for start in range(1_000, 1_300, 100):
            index.insert(vectors[start : start + 100])
            index.flush()
        assert len(index.info()["live"]["parts"]) == 4

    def grown_by(path: Path) -> int:
        return int(child.run(OPENED, one, path, check=True).stdout)

    assert grown_by(many) - grown_by(one) < 3 * 2 << 20
