"""Ends of an index that are not a plain close."""

from __future__ import annotations

import _thread
import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.compaction import segment_builder

DIM = 4
ROWS = np.random.default_rng(3).normal(size=(200, DIM)).astype(np.float32)


def test_an_index_may_be_collected_in_the_thread_of_its_own_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing refers to it any more, and who finds that out is the thread that a close waits for."""
    builder = segment_builder.build_segment
    assert builder is not None
    dropped, collected = threading.Event(), threading.Event()

    def build(*arguments: Any, **how: Any) -> None:
        assert dropped.wait(60)
        gc.collect()
        collected.set()
        builder(*arguments, **how)

    monkeypatch.setattr(segment_builder, "build_segment", build)
    index = velo.create(tmp_path / "i", dim=DIM, threads=1)
    index.insert(ROWS)
    index.optimize(wait=False)
    gc.disable()
    try:
        index.circle = index  # type: ignore[attr-defined]
        del index
        dropped.set()
        assert collected.wait(60)
    finally:
        gc.enable()
    with velo.open(tmp_path / "i", writable=True, threads=1) as again:
        again.optimize()  # after the canceled merge
        assert len(again) == len(ROWS)
        assert len(again.info()["live"]["parts"]) == 1


def test_a_thread_that_cannot_start_is_started_by_the_next_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    with velo.create(tmp_path / "i", dim=DIM, memory="1MiB", durability="process", threads=1) as index:
        index.insert(ROWS)
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", refused)
            with pytest.raises(errors.OutOfMemoryError, match="no thread starts"):
                index.flush()
            with pytest.raises(errors.OutOfMemoryError, match="no thread starts"):
                index.optimize()
            index.optimize(wait=False)  # it is not needed yet
            index.insert(ROWS)
            index.delete(list(range(100)))
            assert len(index) == 300
        index.flush()
        index.optimize()
        assert len(index.info()["live"]["parts"]) == 1
        assert len(index) == 300
