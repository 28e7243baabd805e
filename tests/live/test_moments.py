"""A call that reads several files of an index sees one moment of it, at whatever step a writer acts."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import velo
from tests import long
from tests.live import soak
from tests.live.interrupts import Places, places_of
from velo.cli.metadata import metadata_show

#: What is closed late is what a reader holds while a writer acts.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

ROWS = 40


def insert(index: velo.Index, first: int) -> None:
    vectors, ids, metadata = soak.rows_of(range(first, first + 10))
    index.insert(vectors, ids, metadata)


def writer(*verbs: str) -> Callable[[Path], None]:
    """Inserts rows, and then calls other verbs."""

    def write(path: Path) -> None:
        with velo.open(path, writable=True, threads=1) as index:
            insert(index, 1000)
            index.delete([3])
            for verb in verbs:
                getattr(index, verb)()

    return write


def add_columns(path: Path) -> None:
    with velo.open(path, writable=True, threads=1) as index:
        index.add_columns({"added": 0})


def exchange(path: Path) -> None:
    """New files of metadata for an index that was never written to."""
    with contextlib.suppress(velo.UnsupportedError), velo.open(path, threads=1) as index:
        index.set_metadata({"other": list(range(ROWS)), "text": ["word"] * ROWS})


WRITERS: dict[str, Callable[[Path], None]] = {
    "insert": writer(),
    "flush": writer("flush"),
    "optimize": writer("flush", "optimize"),
    "columns": add_columns,
    "exchange": exchange,
}


def act(name: str, path: Path) -> None:
    WRITERS[name](path)


@pytest.fixture(scope="module")
def writers() -> Iterator[ProcessPoolExecutor]:
    """A process that writes while this one waits at any place, with whatever locks it has there."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def _snapshot(path: Path, index: velo.Index) -> None:
    copy = path.with_suffix(".copy")
    try:
        index.snapshot(copy)
        velo.verify(copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)


READERS: dict[str, Callable[[Path, velo.Index], object]] = {
    "open": lambda path, index: velo.open(path, threads=1).close(),
    "verify": lambda path, index: velo.verify(path),
    "refresh": lambda path, index: index.refresh(),
    "snapshot": _snapshot,
    "info": lambda path, index: index.info(),
    "plans": lambda path, index: velo.plans(path),
    "metadata show": lambda path, index: metadata_show(path),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index that was built and never written to, and one of two segments, dead rows and a delta."""
    parent = tmp_path_factory.mktemp("moments")
    vectors, ids, metadata = soak.rows_of(range(ROWS))
    velo.build(
        parent / "built", vectors, ids=ids, metadata=metadata, text="text", store_vectors=True, threads=1
    ).close()
    shutil.copytree(parent / "built", parent / "written")
    with velo.open(parent / "written", writable=True, threads=1) as index:
        insert(index, 500)
        index.flush()
        insert(index, 600)
        index.delete([1, 501])
    return {"built": parent / "built", "written": parent / "written"}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ["built", "written"])
def test_a_reader_sees_one_snapshot_whenever_a_writer_acts(
    folders: dict[str, Path],
    writers: ProcessPoolExecutor,
    tmp_path: Path,
    random: np.random.Generator,
    kind: str,
    read: str,
    write: str,
) -> None:

    def call(path: Path, index: velo.Index) -> None:
        if read == "metadata show":  # refused once it has rows of a delta
            with contextlib.suppress(velo.UnsupportedError):
                READERS[read](path, index)
        else:
            READERS[read](path, index)

    with velo.open(folders[kind], threads=1) as index:
        places = places_of(partial(call, folders[kind], index))
    for turn in range(long.count(1, 60, "VELO_TEST_PLACES")):
        path = tmp_path / f"{turn}.velo"
        shutil.copytree(folders[kind], path)
        with velo.open(path, threads=1) as index:
            at = int(random.integers(1, places + 1))
            written: list[Future[None]] = []

            def write_now(path: Path = path, written: list[Future[None]] = written) -> None:
                written.append(writers.submit(act, write, path))
                wait(written, timeout=60)

            Places(at, write_now).watch(partial(call, path, index))
            if not written:  # it had fewer places than the first time
                write_now()
            written[0].result(timeout=0)
            assert index.count() == len(index.rows(limit=1000)["id"])
        shutil.rmtree(path)


def test_processes_read_beside_a_writer(tmp_path: Path, random: np.random.Generator) -> None:
    calls, errors = soak.run(tmp_path, long.count(2, 150), int(random.integers(1 << 30)), long.count(2, 4))
    assert not errors, errors[0]
    assert set(calls) == {"write", "open", *soak.KINDS}
