"""An index is opened while others change what its folder holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.folder.opened import OpenedFolder
from velo.index import open as opening

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
def test_what_changes_under_an_open_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, writable: bool
) -> None:
    path = tmp_path / "i"
    build(path, 0)
    change, rows = CHANGES[name]
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
        assert len(index) == rows
        assert index.contains([1000]).tolist() == [name == "overwrite"]


def test_what_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(errors.NotAnIndexError, match="does not exist"):
        velo.open(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.NotAnIndexError):
        velo.open(tmp_path / "empty")
