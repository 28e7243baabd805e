"""Searches of new rows leave the event loop to others, and end when they are to end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import errors
from velo.segments.delta import NativeView

DIM = 16
ROWS = np.random.default_rng(3).normal(size=(3_000, DIM)).astype(np.float32)

CALLS: dict[str, Callable[[velo.Index], Any]] = {
    "search": lambda index: index.search_async(ROWS[:40], 5, recall=1.0),
    "range": lambda index: index.range_search_async(ROWS[:40], 1.0),
    "groups": lambda index: index.search_async(ROWS[:40], 2, group_by="n"),
}


@pytest.fixture
def index(tmp_path: Path) -> Any:
    with velo.create(tmp_path / "i", dim=DIM, metadata=pa.schema({"n": pa.int64()}), threads=1) as made:
        made.insert(ROWS, metadata={"n": list(range(len(ROWS)))})
        yield made


@pytest.mark.parametrize("name", CALLS)
def test_the_loop_goes_on_while_the_delta_is_searched(
    index: velo.Index, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The library's call stands still until the loop has done something else."""
    went_on = threading.Event()
    search = NativeView.search

    def stands_still(self: NativeView, *arguments: Any) -> Any:
        assert went_on.wait(60), "the event loop waits for the search"
        return search(self, *arguments)

    monkeypatch.setattr(NativeView, "search", stands_still)

    async def both() -> Any:
        asyncio.get_running_loop().call_later(0.05, went_on.set)
        return await CALLS[name](index)

    found = asyncio.run(both())
    assert len(found) == 40


def test_a_timeout_holds_for_the_delta_and_all_segments_together(
    index: velo.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    search = NativeView.search

    def slow(self: NativeView, delta: Any, queries: Any, k: int) -> Any:
        asked.append(len(queries))
        threading.Event().wait(0.2)
        return search(self, delta, queries, k)

    monkeypatch.setattr(NativeView, "search", slow)
    with pytest.raises(errors.SearchTimeoutError):
        index.search(np.repeat(ROWS, 2, axis=0), 5, timeout_s=0.1)
    assert len(asked) == 1, "after its end nothing more is looked at"
    index.search(ROWS[:1], 5, timeout_s=100)
