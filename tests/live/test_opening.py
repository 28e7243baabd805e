"""An index is opened while others change what its folder holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import errors
from velo.folder.opened import OpenedFolder
from velo.index import open as opening
from velo.segments import rows

ROWS = np.random.default_rng(3).normal(size=(100, 4)).astype(np.float32)


def build(path: Path, first: int) -> None:
    ids = list(range(first, first + len(ROWS)))
    velo.build(path, ROWS, ids=ids, threads=1, calibrate=False, overwrite=True).close()


def write(path: Path) -> None:
    with velo.open(path, writable=True, threads=1) as index:
        index.delete([0])


CHANGES: dict[str, tuple[Callable[[Path], None], int]] = {
    "first write": (write, 99),
    "overwrite": (lambda path: build(path, 1000), 100),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("writable", [False, True])
def test_an_open_starts_over_when_the_index_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, writable: bool
) -> None:
    path = tmp_path / "i"
    build(path, 0)
    change, count = CHANGES[name]
    todo = [change]
    live_of = opening._live_of

    def changed_meanwhile(opened: OpenedFolder, *arguments: Any) -> Any:
        if todo and writable:
            todo.pop()(path)
        live = live_of(opened, *arguments)
        if todo:
            todo.pop()(path)
        return live

    monkeypatch.setattr(opening, "_live_of", changed_meanwhile)
    with velo.open(path, writable=writable, threads=1) as index:
        assert len(index) == count
        assert index.contains([1000]).tolist() == [name == "overwrite"]


def test_what_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(errors.NotAnIndexError, match="does not exist"):
        velo.open(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotAnIndexError):
        velo.open(tmp_path / "empty")


@pytest.mark.parametrize("damage", ["noise", "another call's"])
def test_columns_of_a_log_whose_sums_are_right_may_be_wrong_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    path = tmp_path / "i"
    batch_bytes = rows.batch_bytes

    def wrong(table: Any, schema: Any) -> bytes:
        return b"x" * 200 if damage == "noise" else bytes(batch_bytes(table.slice(1), schema))

    with velo.create(path, dim=4, metadata=pa.schema({"n": pa.int64()}), threads=1) as index:
        with monkeypatch.context() as patch:
            patch.setattr(rows, "batch_bytes", wrong)
            index.insert(ROWS, metadata={"n": list(range(100))})
        for look in (index.rows, lambda: index.count({"n": {"$lt": 5}}), index.flush, index.optimize):
            with pytest.raises(errors.CorruptIndexError, match="log"):
                look()
    with pytest.raises(errors.CorruptIndexError, match="log"):
        velo.verify(path)
