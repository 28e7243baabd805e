"""Rows that died make their segment worth a merge, with no new row written."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo.compaction import compactor
from velo.compaction.worker import Worker
from velo.testing import brute_force, recall_at_k, synthetic_vectors

N, YOUNG, DIM = 900, 90, 16
VECTORS = synthetic_vectors(N + YOUNG, DIM, seed=3)


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A large segment and a young one."""
    path = tmp_path / "i.velo"
    with velo.create(path, dim=DIM) as index:
        index.insert(VECTORS[:N], np.arange(N))
        index.flush()
        index.insert(VECTORS[N:], np.arange(N, N + YOUNG))
        index.flush()
    return path


def settle(index: velo.Index) -> list[tuple[int, int]]:
    """Wait for what is under way or begins at once; rows and dead rows of each segment then."""
    assert index._folders[0].compactor is not None
    index._folders[0].compactor.join()
    index.refresh()
    return [(segment["n"], segment["dead"]) for segment in index.info()["live"]["parts"]]


def expect(index: velo.Index, ids: np.ndarray) -> None:
    queries = VECTORS[::40]
    near = ids[brute_force(VECTORS[ids], queries, 10)[0]]
    assert recall_at_k(index.search(queries, 10, recall=0.98).ids, near) >= 0.97


@pytest.mark.parametrize("verb", ["delete", "delete by filter", "upsert", "update"])
def test_a_segment_with_a_fifth_of_its_rows_deleted_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    path = tmp_path / "i.velo"
    numbers = np.arange(N)
    with velo.create(path, dim=DIM, metadata=pa.schema({"number": pa.int64()})) as index:
        index.insert(VECTORS[:N], numbers, {"number": numbers})
        index.flush()
        assert settle(index) == [(N, 0)]
        gone = numbers[: N // 4]
        if verb == "delete":
            index.delete(gone)
        elif verb == "delete by filter":
            index.delete(filter=velo.col("number") < len(gone))
        elif verb == "upsert":
            index.upsert(VECTORS[gone], gone, {"number": gone})
        else:
            index.update(gone, {"number": gone + N})
        assert settle(index) == [(N - len(gone), 0)]
        expect(index, numbers if verb in ("upsert", "update") else numbers[len(gone) :])
    velo.verify(path)


def test_a_small_segment_without_live_rows_is_removed(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    with velo.open(grown, writable=True, threads=1) as index:
        index.delete(np.arange(N, N + YOUNG))
        assert settle(index) == [(N, 0)]
        expect(index, np.arange(N))
    velo.verify(grown)


@pytest.mark.parametrize("plan", ["links_in_memory", "links_on_disk"])
def test_a_segment_without_live_rows_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Any
) -> None:
    """Until it is merged away."""
    monkeypatch.setattr(compactor, "_LATER_S", 600.0)
    path = tmp_path / "i.velo"
    numbers = np.arange(N)
    velo.build(path, VECTORS[:N], metadata={"number": numbers}, threads=1, calibrate=False).close()
    with velo.open(path, writable=True, threads=1, plan=plan) as index:
        index.delete(numbers)
        for young in (0, 3):  # alone, and beside rows that live
            index.insert(VECTORS[N : N + young], metadata={"number": numbers[:young]})
            for how in (
                {},
                {"recall": 0.98},
                {"list_size": 200},
                {"filter": velo.col("number") >= 0},
                {"filter": (velo.col("number") >= 0) & (velo.col("number") < N - 1)},
            ):
                found = index.search(VECTORS[:5], 3, **how)
                assert found.counts.tolist() == [young] * 5
                for counter in ("reads", "expanded", "records_scored"):
                    assert not found.stats[counter].any(), (counter, how)
                assert (found.stats["estimates"] == young).all(), how


def test_few_deleted_rows_start_no_merge(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    with velo.open(grown, writable=True, threads=1) as index:
        for row in range(100):
            index.delete(row)
        index.delete(np.arange(N, N + YOUNG // 10))
        assert settle(index) == [(N, 100), (YOUNG, YOUNG // 10)]


def test_closing_at_once_waits_for_no_merge(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "_LATER_S", 60.0)
    with velo.open(grown, writable=True, threads=1) as index:
        index.delete(np.arange(N // 4))
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    with velo.open(grown) as index:
        segments = index.info()["live"]["parts"]
        assert [(segment["n"], segment["dead"]) for segment in segments] == [(N, N // 4), (YOUNG, 0)], (
            "nothing was made anew"
        )
    with velo.open(grown, writable=True, threads=1) as index:
        assert settle(index) == [(N - N // 4, 0), (YOUNG, 0)], "the next writer does what was left"


def test_a_worker_begins_later_sooner_or_never() -> None:
    done: list[int] = []
    worker = Worker(lambda: done.append(1), lambda failure: None)
    worker.ask(after_s=600)
    assert not worker.is_busy
    assert worker.wait(timeout_s=0), "later searches are not waited for"
    worker.ask()
    assert worker.wait(timeout_s=60)
    assert done == [1], "asked twice before it began, it works once"
    worker.ask(after_s=600)
    worker.forget()
    assert worker.wait(timeout_s=60)
    worker.ask(after_s=0.05)
    until = threading.Event()
    while not done[1:]:
        assert not until.wait(0.01)
    assert worker.wait(timeout_s=60)
    assert done == [1, 1]
