"""Removing an index: what velo made goes, whatever was written there; all else stays."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo.errors import BusyError, NotAnIndexError
from velo.folder.remove import is_half_removed, remove_index

ROWS = np.random.default_rng(2).standard_normal((600, 8)).astype(np.float32)


def _built(path: Path) -> None:
    velo.build(path, ROWS, metadata={"year": range(600)}, calibrate=False, store_vectors=True).close()
    with velo.open(path) as index:
        index.set_metadata({"year": range(1, 601)})


def _sharded(path: Path) -> None:
    velo.build_collection(path, ROWS, shards=2, calibrate=False)


def _written(path: Path) -> None:
    """Segments, a log, what is dead, and a part of what was built."""
    with velo.create(path, dim=8, metadata=pa.schema([("year", pa.int32())])) as index:
        for _ in range(2):
            index.insert(ROWS, metadata={"year": pa.array(range(600), pa.int32())})
            index.delete([3, 700])
            index.flush()
        index.insert(ROWS[:5], metadata={"year": pa.array(range(5), pa.int32())})


def _sharded_and_written(path: Path) -> None:
    _sharded(path)
    with velo.open(path, writable=True) as index:
        index.delete([5])
        index.upsert(ROWS[:3], [7, 8, 9])


MADE = (_built, _sharded, _written, _sharded_and_written)


@pytest.mark.parametrize("make", MADE)
def test_all_that_velo_made_is_gone(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "one.velo")
    assert remove_index(tmp_path / "one.velo") == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", MADE)
def test_what_others_put_there_stays(make: Callable[[Path], None], tmp_path: Path) -> None:
    path, outside = tmp_path / "one.velo", tmp_path / "outside"
    make(path)
    outside.write_text("mine")
    inner = next(entry for entry in sorted(path.iterdir(), reverse=True) if entry.is_dir() or make is _built)
    folder = inner if inner.is_dir() else path
    mine = {"notes.txt", "log-1.velolog", "pages.bin.bak", "columns.arrow.old"}
    for name in mine:
        (folder / name).write_text("mine")
    (path / "more").mkdir()
    (path / "more" / "manifest.json").write_text("{}")
    (path / "dead-0000000000000099.bin").symlink_to(outside)
    kept = {str((folder / name).relative_to(path)) for name in mine}
    assert set(remove_index(path)) == kept | {"more/manifest.json", "dead-0000000000000099.bin"}
    assert all((path / name).exists() for name in kept)
    assert outside.read_text() == "mine"
    with pytest.raises(NotAnIndexError):
        remove_index(path)


def test_a_collection_that_names_folders_outside_removes_none_of_them(tmp_path: Path) -> None:
    _sharded(tmp_path / "one.velo")
    _built(tmp_path / "two.velo")
    file = tmp_path / "one.velo" / "collection.json"
    file.write_text(file.read_text().replace("shard-00001", "../two.velo"))
    left = remove_index(tmp_path / "one.velo")
    assert velo.verify(tmp_path / "two.velo") > 0
    assert any(name.startswith("shard-00001/") for name in left)


def test_a_removal_that_was_killed_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.velo"
    _sharded_and_written(path)
    unlinked = 0
    unlink = Path.unlink

    def killed(self: Path, missing_ok: bool = False) -> None:
        nonlocal unlinked
        unlinked += 1
        if unlinked == turn:
            raise KeyboardInterrupt
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    for turn in (1, 2, 4, 8):  # noqa: B007 - `killed` reads it
        unlinked = 0
        with pytest.raises(KeyboardInterrupt):
            remove_index(path)
        assert is_half_removed(path)
    monkeypatch.undo()
    assert remove_index(path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_to_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "one.velo"
    _written(path)
    with velo.open(path, writable=True), pytest.raises(BusyError, match="writes"):
        remove_index(path)
    _sharded(tmp_path / "two.velo")
    handle = os.open(tmp_path / "two.velo" / "shard-00001", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(BusyError):
        remove_index(tmp_path / "two.velo")
    os.close(handle)
    assert not is_half_removed(tmp_path / "two.velo")
    assert velo.verify(path) > 0


def test_what_is_no_index_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "one.velo").mkdir()
    (tmp_path / "one.velo" / "pages.bin").write_text("mine")
    _built(tmp_path / "real.velo")
    (tmp_path / "link.velo").symlink_to(tmp_path / "real.velo")
    for name in ("one.velo", "link.velo", "none.velo"):
        with pytest.raises(NotAnIndexError):
            remove_index(tmp_path / name)
    assert (tmp_path / "one.velo" / "pages.bin").read_text() == "mine"
    assert velo.verify(tmp_path / "real.velo") > 0
