"""Storing the vectors of an index that was built without them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from velo import errors
from velo.building.vectors import store_vectors
from velo.folder.exchange import locked
from velo.folder.ids import Ids
from velo.folder.manifest import read_manifest
from velo.formats.files import as_source

N, DIM = 2_000, 20
QUICK: dict[str, Any] = {
    "degree": 16,
    "build_list_size": 30,
    "links_kept": 16,
    "threads": 1,
    "calibrate": False,
}


def order_of(path: Path) -> Any:
    """The row of each vertex."""
    return Ids(path, N, read_manifest(path).first_row).rows()


@pytest.fixture
def rows(random: np.random.Generator) -> Any:
    return random.normal(size=(N + 50, DIM)).astype(np.float16)


def test_vectors_stored_later_equal_vectors_stored_by_a_build(rows: Any, tmp_path: Path) -> None:
    velo.build(tmp_path / "with", rows[:N], store_vectors=True, **QUICK).close()
    velo.build(tmp_path / "later", rows[:N], **QUICK).close()
    assert not (tmp_path / "later" / "vectors.bin").exists()
    told: list[int] = []
    store_vectors(tmp_path / "later", as_source(rows), order_of(tmp_path / "later"), 0, N, told.append)
    assert told[-1] == N
    for name in sorted(entry.name for entry in (tmp_path / "with").iterdir()):
        same = (tmp_path / "with" / name).read_bytes() == (tmp_path / "later" / name).read_bytes()
        assert same or name == "manifest.json", name
    assert len(list((tmp_path / "with").iterdir())) == len(list((tmp_path / "later").iterdir()))
    with velo.open(tmp_path / "later") as index:
        index.verify()
        assert np.array_equal(index.get_vectors(np.arange(N)), rows[:N].astype(np.float32))
        assert not index.search(rows[:20], 1, recall=1.0).distances.any()
    with pytest.raises(errors.InvalidArgumentError, match="already"):
        store_vectors(tmp_path / "later", as_source(rows), order_of(tmp_path / "later"), 0, N)


def test_rows_of_the_middle_and_metadata_stay(rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "i"
    names = [f"r{number}" for number in range(N)]
    velo.build(path, rows[50:], ids=names, metadata={"n": np.arange(N)}, **QUICK).close()
    with velo.open(path) as index:
        # ids in placement order tell the row of each vertex
        order = np.array([int(name[1:]) for name in index._seen().ids.of(np.arange(N))])
        store_vectors(path, as_source(rows), order, 50, N + 50)
        with pytest.raises(errors.UnsupportedError):  # what is open goes on with what it has read
            index.search(rows[50], exact=True)
    with velo.open(path) as index:
        index.verify()
        assert np.array_equal(index.get_vectors(names), rows[50:].astype(np.float32))
        found = index.search(rows[50:70], 1, recall=1.0, return_metadata=True)
        assert found.ids[:, 0].tolist() == names[:20]


def test_vectors_that_do_not_fit_are_refused_and_leave_nothing(rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "i"
    velo.build(path, rows[:N], **QUICK).close()
    order = order_of(path)
    before = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    for source, of, start, stop in (
        (rows, order, 0, N - 1),
        (rows, order, 0, N + 1),
        (rows, order[:-1], 0, N),
        (rows, np.zeros(N, np.uint32), 0, N),
        (rows[:, :-1], order, 0, N),
        (rows.astype(np.float32), order, 0, N),
    ):
        with pytest.raises(errors.InvalidArgumentError):
            store_vectors(path, as_source(source), of, start, stop)
    with pytest.raises(errors.CancelledError):
        store_vectors(path, as_source(rows), order, 0, N, lambda _done: False)
    with pytest.raises(errors.NotAnIndexError):
        store_vectors(tmp_path / "none", as_source(rows), order, 0, N)
    with locked(path), pytest.raises(errors.BusyError):
        store_vectors(path, as_source(rows), order, 0, N)
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == before


KILLED = """
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from velo.building.vectors import store_vectors
    from velo.formats.files import as_source
    path, rows, order, where = sys.argv[1:]
    rows, order = np.load(rows), np.load(order)
    def kill(done):
        if where == "adding":
            os.kill(os.getpid(), signal.SIGKILL)
    store_vectors(Path(path), as_source(rows), order, 0, len(order), kill)
    """


def test_killed_while_it_stores(rows: Any, tmp_path: Path) -> None:
    path = tmp_path / "i"
    velo.build(path, rows[:N], **QUICK).close()
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "order.npy", order_of(path))
    for where in ("adding", "never"):
        done = child.run(KILLED, path, tmp_path / "rows.npy", tmp_path / "order.npy", where)
        killed = where == "adding"
        assert done.returncode == (-signal.SIGKILL if killed else 0)
        with velo.open(path) as index:
            index.verify()
            assert index.info()["stores_vectors"] is not killed
    assert not (path / "vectors.bin.tmp").exists()


def test_a_manifest_that_names_no_vectors_beside_a_file_of_them(rows: Any, tmp_path: Path) -> None:
    """Killed between the two renames: the index is the old one, and the next attempt succeeds."""
    path = tmp_path / "i"
    velo.build(path, rows[:N], **QUICK).close()
    order, manifest = order_of(path), (path / "manifest.json").read_bytes()
    store_vectors(path, as_source(rows), order, 0, N)
    (path / "manifest.json").write_bytes(manifest)
    with velo.open(path) as index:
        index.verify()
        assert not index.info()["stores_vectors"]
    store_vectors(path, as_source(rows), order, 0, N)
    with velo.open(path) as index:
        index.verify()
        assert np.array_equal(index.get_vectors([3]), rows[3:4].astype(np.float32))
