"""`optimize` makes one segment of all that is there in one pass, whatever is written meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo.compaction import compactor, segment_builder
from velo.compaction.worker import Worker
from velo.errors import CancelledError, NoSpaceError
from velo.testing import synthetic_vectors

N, DIM = 2_000, 16
VECTORS = synthetic_vectors(2 * N, DIM, seed=11)


class Passes:
    """Builds of segments: how many rows each has, and a gate where merges wait once they are built.

    Those of fewer rows than `least_rows` do not wait.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.least_rows = 0
        self.under_way, self.guard = threading.Event(), threading.Event()
        self.guard.set()
        builder = segment_builder.build_segment
        assert builder is not None
        self._builder = builder

    def __call__(self, path: Path, vectors: Any, **how: Any) -> None:
        self.rows.append(vectors.shape[0])
        self._builder(path, vectors, **how)
        if how["warm_start"] is None or vectors.shape[0] < self.least_rows:
            return
        self.under_way.set()
        end = time.monotonic() + 60
        while not self.guard.wait(0.01):
            assert time.monotonic() < end
            if how["watch"] is not None and how["watch"]("commit", 0, 1) is False:
                raise CancelledError("not wanted any more")


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    found = Passes()
    monkeypatch.setattr(segment_builder, "build_segment", found)
    return found


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[velo.Index]:
    """An index as it was built, of the rows below N; no merge begins by itself."""
    monkeypatch.setattr(compactor, "_LATER_S", 600.0)
    path = tmp_path / "i.velo"
    velo.build(path, VECTORS[:N], ids=np.arange(N), store_vectors=True, calibrate=False, threads=1).close()
    with velo.open(path, writable=True, durability="process", threads=1) as index:
        yield index
    assert velo.verify(path) > 0


def insert(index: velo.Index, start: int, stop: int, piece: int = 100) -> None:
    for first in range(start, stop, piece):
        last = min(first + piece, stop)
        index.insert(VECTORS[first:last], np.arange(first, last))


def segments_of(index: velo.Index) -> list[tuple[int, int]]:
    return [(segment["n"], segment["dead"]) for segment in index.info()["live"]["parts"]]


def folds_of(index: velo.Index) -> Any:
    assert index._folders[0].compactor is not None
    return index._folders[0].compactor


def expect(index: velo.Index, ids: np.ndarray, moved: np.ndarray | None = None) -> None:
    """Exactly these rows are there with their vectors; those that moved have the next id's."""
    vectors = VECTORS.copy()
    if moved is not None:
        vectors[moved] = VECTORS[moved + 1]
    assert len(index) == len(ids)
    assert index.rows(limit=2 * N)["id"].to_pylist() == ids.tolist()
    assert (index.get_vectors(ids) == vectors[ids]).all()


def test_new_rows_go_through_one_pass(index: velo.Index, passes: Passes) -> None:
    insert(index, N, 2 * N)
    index.optimize()
    assert passes.rows == [2 * N]
    assert segments_of(index) == [(2 * N, 0)]
    index.optimize()
    assert passes.rows == [2 * N], "there was nothing to do"
    expect(index, np.arange(2 * N))


def test_young_segments_dead_rows_and_the_delta_go_through_one_pass(
    index: velo.Index, passes: Passes
) -> None:
    for start in range(N, N + 200, 100):
        insert(index, start, start + 100)
        index.flush()
    insert(index, N + 200, N + 300)
    index.delete([3, N + 50, N + 250])
    moved = np.array([7, N + 60, N + 260])
    index.upsert(VECTORS[moved + 1], moved)
    passes.rows.clear()
    index.optimize()
    assert passes.rows == [N + 297]
    assert segments_of(index) == [(N + 297, 0)]
    expect(index, np.setdiff1d(np.arange(N + 300), [3, N + 50, N + 250]), moved)


@pytest.mark.parametrize("flushes", [0, 1, 2])
def test_rows_written_during_optimize_stay_apart(index: velo.Index, passes: Passes, flushes: int) -> None:
    """Also where what the pass took of the delta becomes a segment before the pass ends."""
    insert(index, N, N + 300)
    index.delete([N + 1])
    passes.guard.clear()
    index.optimize(wait=False)
    assert passes.under_way.wait(60)
    moved = np.array([5, N + 10, N + 20])
    index.delete([3, N + 2])
    index.upsert(VECTORS[moved[:2] + 1], moved[:2])
    insert(index, N + 300, N + 400)
    for turn in range(flushes):
        index.flush()
        if turn == 0:
            assert segments_of(index)[1:] == [(299, 2), (102, 0)]
        index.delete([30 + turn, N + 30 + turn, N + 330 + turn])
        insert(index, N + 400 + turn, N + 401 + turn)
    index.upsert(VECTORS[moved[2:] + 1], moved[2:])
    passes.guard.set()
    folds_of(index)._segments_worker.wait()
    gone = [3, N + 1, N + 2] + [one + turn for turn in range(flushes) for one in (30, N + 30, N + 330)]
    ids = np.setdiff1d(np.arange(N + 400 + flushes), gone)
    assert passes.rows[0] == N + 299
    assert segments_of(index)[0] == (N + 299, 2 + len(moved) + 2 * flushes)
    assert len(segments_of(index)) == 1 + flushes
    expect(index, ids, moved)
    index.optimize()
    assert segments_of(index) == [(len(ids), 0)]
    expect(index, ids, moved)


def test_optimize_with_only_deleted_rows_in_the_delta(index: velo.Index, passes: Passes) -> None:
    """The pass takes none of it, and it becomes no segment, before the pass ends or after."""
    insert(index, N, N + 10)
    index.delete([*range(N, N + 10), 3])
    passes.guard.clear()
    index.optimize(wait=False)
    assert passes.under_way.wait(60)
    insert(index, N + 10, N + 20)
    index.flush()
    assert segments_of(index) == [(N, 1), (10, 0)]
    passes.guard.set()
    folds_of(index)._segments_worker.wait()
    assert segments_of(index) == [(N - 1, 0), (10, 0)]
    index.delete(np.arange(N + 10, N + 20))
    insert(index, N + 20, N + 30)
    index.delete(np.arange(N + 20, N + 30))
    index.optimize()
    assert segments_of(index) == [(N - 1, 0)]
    assert index.info()["live"]["delta"]["n"] == 0
    insert(index, N, N + 10)
    index.delete(np.arange(N, N + 10))
    passes.rows.clear()
    index.optimize()
    assert passes.rows == [], "what is one part is not made anew for dead rows that none holds"
    assert index.info()["live"]["delta"]["n"] == 0


@pytest.mark.parametrize("rows", [320, 400])
def test_optimize_cancels_other_merges(
    index: velo.Index, passes: Passes, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Of four young segments of a size, or of all, once the young ones are a fifth of the largest."""
    monkeypatch.setattr(compactor, "_CALM", 0.0)
    for start in range(N, N + rows, 80):
        insert(index, start, start + 80)
        index.flush()
    passes.rows.clear()
    passes.guard.clear()
    own = folds_of(index)
    (own._sizes_worker if rows == 320 else own._segments_worker).ask()
    assert passes.under_way.wait(60)
    insert(index, N + rows, N + rows + 10)
    index.optimize(wait=False)
    end = time.monotonic() + 60
    while len(passes.rows) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    passes.guard.set()
    own.join()
    assert passes.rows == [rows if rows == 320 else N + rows, N + rows + 10]
    assert segments_of(index) == [(N + rows + 10, 0)]
    expect(index, np.arange(N + rows + 10))
    assert index.info()["live"]["upkeep_failure"] is None


def test_young_segments_become_one_beside_a_merge_of_all(
    index: velo.Index, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what dies meanwhile is dead in both."""
    monkeypatch.setattr(compactor, "_CALM", 0.0)
    insert(index, N, N + 400)
    index.flush()
    passes.guard.clear()
    passes.least_rows = N
    own = folds_of(index)
    own._segments_worker.ask()
    assert passes.under_way.wait(60)
    for start in range(N + 400, N + 720, 80):
        insert(index, start, start + 80)
        index.flush()
    index.delete([1, N + 1, N + 401])
    own._sizes_worker.wait(own._sizes_worker.ask())
    assert segments_of(index) == [(N, 1), (400, 1), (319, 0)]
    index.delete([2, N + 2, N + 402])
    passes.guard.set()
    own._segments_worker.wait()
    assert segments_of(index) == [(N + 400, 4), (319, 1)]
    expect(index, np.setdiff1d(np.arange(N + 720), [1, 2, N + 1, N + 2, N + 401, N + 402]))


def test_nothing_begins_once_an_index_is_closed(
    index: velo.Index, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that ends while the index closes asks for nothing more."""
    monkeypatch.setattr(compactor, "_CALM", 0.0)
    own = folds_of(index)
    insert(index, N, N + 400)
    index.flush()
    passes.guard.clear()
    own._segments_worker.ask()
    assert passes.under_way.wait(60)
    closing = threading.Thread(target=own.close)
    closing.start()
    time.sleep(0.1)
    passes.guard.set()
    closing.join(60)
    assert not closing.is_alive()
    workers = (own._delta_worker, own._segments_worker, own._sizes_worker)
    assert [worker._wanted_at_s for worker in workers] == [None, None, None]
    assert segments_of(index) == [(N + 400, 0)]


def test_while_rows_come_the_largest_segment_is_left_alone(
    index: velo.Index, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = folds_of(index)
    insert(index, N, N + 400)
    index.flush()
    passes.rows.clear()
    own._segments_worker.wait(own._segments_worker.ask())
    assert passes.rows == []
    monkeypatch.setattr(compactor, "_CALM", 0.0)
    own._segments_worker.wait(own._segments_worker.ask())
    assert passes.rows == [N + 400]


def test_optimize_on_a_full_disk_changes_nothing(
    index: velo.Index, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise NoSpaceError("the device is full", file="part")

    insert(index, N, N + 100)
    with monkeypatch.context() as patch:
        patch.setattr(segment_builder, "build_segment", fail)
        with pytest.raises(NoSpaceError):
            index.optimize()
    assert segments_of(index) == [(N, 0)]
    insert(index, N + 100, N + 200)
    index.flush()
    assert passes.rows == [200]
    expect(index, np.arange(N + 200))


def test_a_caller_waiting_behind_failed_work_gets_its_error() -> None:
    """What was asked for does not begin then."""
    begun, guard = threading.Event(), threading.Event()
    fails = NoSpaceError("the device is full", file="part")
    told: list[BaseException] = []

    def work() -> None:
        begun.set()
        assert guard.wait(60)
        raise fails

    worker = Worker(work, told.append)
    worker.ask()
    assert begun.wait(60)
    number = worker.ask()
    guard.set()
    with pytest.raises(NoSpaceError):
        worker.wait(number)
    assert told == [fails]
