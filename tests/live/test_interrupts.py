"""An exception at any place of any verb loses no row and doubles none; a folder that moves stays the same."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests import long
from tests.live.interrupts import Places, interrupted, places_of
from tests.live.rows import no_room

#: An exception between `open` and its `with` leaves a file to the collector, as everywhere in Python.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

DIM = 4
VECTORS = np.random.default_rng(5).normal(size=(64, DIM)).astype(np.float32)
#: What each id's column says.
Rows = dict[int, int]


def metadata(ids: list[int], plus: int = 0) -> dict[str, list[int]]:
    return {"n": [one + plus for one in ids]}


@dataclass(frozen=True)
class Verb:
    """A call, and the rows after its return."""

    call: Callable[[velo.Index], object]
    after: Callable[[Rows], Rows] = dict


def _flush_here(index: velo.Index) -> None:
    """What the delta's own thread does, in this one."""
    compactor = index._folders[0].compactor
    assert compactor is not None
    compactor._flush_delta(compactor._how(compactor._delta_worker, 0, gives_way=False))


def _optimize_here(index: velo.Index) -> None:
    """Run the work of the background thread for segments in this thread."""
    compactor = index._folders[0].compactor
    assert compactor is not None
    compactor._merge_all(compactor._how(compactor._segments_worker, 0, gives_way=False))


def _large(index: velo.Index, verb: str, ids: list[int], plus: int = 0) -> None:
    with no_room(index):
        getattr(index, verb)(VECTORS[ids], ids, metadata(ids, plus))


NEW = [50, 51, 52]
VERBS = {
    "insert": Verb(
        lambda index: index.insert(VECTORS[NEW], NEW, metadata(NEW)),
        lambda rows: rows | {one: one for one in NEW},
    ),
    "upsert": Verb(
        lambda index: index.upsert(VECTORS[[3, 30, 50]], [3, 30, 50], metadata([3, 30, 50], 100)),
        lambda rows: rows | {3: 103, 30: 130, 50: 150},
    ),
    "large insert": Verb(
        lambda index: _large(index, "insert", NEW), lambda rows: rows | {one: one for one in NEW}
    ),
    "large upsert": Verb(
        lambda index: _large(index, "upsert", [3, 30, 39, 50], 100),
        lambda rows: rows | {3: 103, 30: 130, 39: 139, 50: 150},
    ),
    "update": Verb(
        lambda index: index.update([4, 31], metadata([4, 31], 200)), lambda rows: rows | {4: 204, 31: 231}
    ),
    "update by filter": Verb(
        lambda index: index.update(filter=velo.col("n") < 8, metadata={"n": 300}),
        lambda rows: {one: 300 if n < 8 else n for one, n in rows.items()},
    ),
    "delete": Verb(
        lambda index: index.delete([5, 32]),
        lambda rows: {one: n for one, n in rows.items() if one not in (5, 32)},
    ),
    "delete by filter": Verb(
        lambda index: index.delete(filter=velo.col("n") < 8),
        lambda rows: {one: n for one, n in rows.items() if n >= 8},
    ),
    "flush": Verb(lambda index: index.flush()),
    "optimize": Verb(lambda index: index.optimize()),
    "the delta's own thread": Verb(_flush_here),
    "the parts' own thread": Verb(_optimize_here),
    "search": Verb(lambda index: index.search(VECTORS[:2], 3)),
    "rows": Verb(lambda index: index.rows({"n": {"$gt": 3}})),
    "info": Verb(lambda index: index.info()),
}


def rows_of(index: velo.Index) -> Rows:
    table = index.rows(limit=1000)
    ids = table["id"].to_pylist()
    assert len(ids) == len(set(ids)), "a row twice"
    return dict(zip(ids, table["n"].to_pylist(), strict=True))


def check(index: velo.Index, expected: list[Rows]) -> Rows:
    """It has the rows of one of some states, and all that tells of rows says the same."""
    rows = rows_of(index)
    assert rows in expected
    assert len(index) == index.count() == len(rows)
    found = index.search(VECTORS[sorted(rows)], 1, recall=1.0).ids[:, 0].tolist()
    assert found == sorted(rows), "each vector finds its own row"
    return rows


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An index that was built and never written to, and one of two segments, dead rows and a delta."""
    parent = tmp_path_factory.mktemp("interrupts")
    ids = list(range(40))
    velo.build(
        parent / "built",
        VECTORS[:40],
        ids=ids,
        metadata=metadata(ids),
        store_vectors=True,
        calibrate=False,
        threads=1,
    ).close()
    with velo.create(parent / "written", dim=DIM, metadata=pa.schema({"n": pa.int64()}), threads=1) as index:
        for start, stop in ((0, 20), (20, 34), (34, 40)):
            index.insert(VECTORS[start:stop], ids[start:stop], metadata(ids[start:stop]))
            if stop < 40:
                index.flush()
        index.upsert(VECTORS[:1], [0], metadata([0]))
    return {"built": parent / "built", "written": parent / "written"}


def opened(path: Path) -> velo.Index:
    return velo.open(path, writable=True, threads=1)


def points(places: int, random: np.random.Generator, few: int = 2) -> list[int]:
    """Some of them; VELO_TEST_PLACES=100000 takes all."""
    wanted = min(places, long.count(few, 100, "VELO_TEST_PLACES"))
    return sorted(random.choice(places, wanted, replace=False).tolist())


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("kind", ["built", "written"])
def test_an_interrupted_call_loses_and_doubles_no_row(
    folders: dict[str, Path], tmp_path: Path, random: np.random.Generator, kind: str, name: str
) -> None:
    verb = VERBS[name]
    before = {one: one for one in range(40)}
    shutil.copytree(folders[kind], tmp_path / "first")
    with opened(tmp_path / "first") as index:
        places = places_of(lambda: verb.call(index))
        check(index, [verb.after(before)])
    for at in points(places, random):
        path = tmp_path / f"at-{at}"
        shutil.copytree(folders[kind], path)
        index = opened(path)
        ended = interrupted(at + 1, lambda index=index: verb.call(index))
        states = [verb.after(before)] if ended else [before, verb.after(before)]
        rows = check(index, states)
        index.insert(VECTORS[60:61], [60], metadata([60]))
        rows[60] = 60
        if random.random() < 0.3:
            index.optimize()
        check(index, [rows])
        index.close()
        with velo.open(path, threads=1) as index:
            check(index, [rows])
        if random.random() < 0.2:
            velo.verify(path)
        shutil.rmtree(path)
    print(f"{kind}, {name}: {places} places")


@pytest.mark.parametrize("kind", ["built", "written"])
def test_an_index_interrupted_while_opening_or_closing_opens_again(
    folders: dict[str, Path], tmp_path: Path, random: np.random.Generator, kind: str
) -> None:
    path = tmp_path / "i"
    rows = {one: one for one in range(40)}
    shutil.copytree(folders[kind], path)
    index = opened(path)
    closing = places_of(index.close)
    opening = places_of(lambda: opened(path).close()) - closing
    for at in points(opening, random):
        half: list[velo.Index] = []
        interrupted(at + 1, lambda half=half: half.append(opened(path)))
        for index in half:
            index.close()
        gc.collect()  # what was half open
        with opened(path) as index:
            check(index, [rows])
    for at in points(closing, random):
        index = opened(path)
        index.delete([1000])
        interrupted(at + 1, index.close)
        index.close()
        with opened(path) as index:
            check(index, [rows])
    print(f"{kind}: {opening} places of open, {closing} of close")


def test_an_interrupted_build_is_complete_or_absent(tmp_path: Path, random: np.random.Generator) -> None:
    """Its thread is at work where the caller is interrupted, and ends with it."""
    how: dict[str, Any] = {"store_vectors": True, "calibrate": False, "threads": 1}
    velo.build(tmp_path / "first", VECTORS[:40], **how).close()  # what is made once a process is made
    places = places_of(lambda: velo.build(tmp_path / "second", VECTORS[:40], **how).close())
    for at in points(places, random):
        path = tmp_path / f"i-{at}"
        ended = interrupted(at + 1, lambda path=path: velo.build(path, VECTORS[:40], **how).close())
        gc.collect()  # what was half open
        if not ended:
            velo.build(path, VECTORS[:40], overwrite=True, **how).close()
        with velo.open(path, threads=1) as index:
            assert index.search(VECTORS[:40], 1, exact=True).ids[:, 0].tolist() == list(range(40))
        shutil.rmtree(path)
    print(f"{places} places")


def test_an_interrupted_snapshot_is_complete_or_absent(
    folders: dict[str, Path], tmp_path: Path, random: np.random.Generator
) -> None:
    rows = {one: one for one in range(40)}
    with opened(folders["written"]) as index:
        places = places_of(lambda: index.snapshot(tmp_path / "first"))
        for at in points(places, random):
            ended = interrupted(at + 1, lambda at=at: index.snapshot(tmp_path / f"copy-{at}"))
            assert not ended or (tmp_path / f"copy-{at}").is_dir()
            if (tmp_path / f"copy-{at}").exists():
                with opened(tmp_path / f"copy-{at}") as copy:
                    check(copy, [rows])
        check(index, [rows])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()
    }


@pytest.mark.parametrize("name", [*VERBS, "snapshot", "add_columns", "verify"])
@pytest.mark.parametrize("kind", ["built", "written"])
def test_calls_stay_in_the_opened_folder_after_it_moves(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: Any, random: Any, kind: str, name: str
) -> None:
    """It is opened by a relative path; then the directory changes, it is renamed, another takes its place."""
    before = {one: one for one in range(40)}
    verb = VERBS.get(name) or Verb(
        {
            "snapshot": lambda index: index.snapshot(
                tmp_path / "copies" / str(len(os.listdir(tmp_path / "copies")))
            ),
            "add_columns": lambda index: index.add_columns({"m": list(range(40))}),
            "verify": lambda index: index.verify(),
        }[name]
    )
    only_read = name in ("add_columns", "verify")
    if name == "add_columns" and kind == "written":
        return  # refused there
    (tmp_path / "copies").mkdir()
    (tmp_path / "elsewhere").mkdir()
    velo.build(tmp_path / "other", VECTORS[40:50], threads=1, calibrate=False, store_vectors=True).close()
    with opened(tmp_path / "other") as other:
        other.delete([0])
    whole = contents(tmp_path / "other")
    monkeypatch.chdir(tmp_path)

    def open_it() -> velo.Index:
        os.chdir(tmp_path)
        shutil.copytree(folders[kind], "i")
        return velo.open("i", writable=not only_read, threads=1)

    def move() -> None:
        os.chdir(tmp_path / "elsewhere")
        os.rename(tmp_path / "i", tmp_path / "moved")
        shutil.copytree(tmp_path / "other", tmp_path / "i")
        shutil.copytree(tmp_path / "other", tmp_path / "elsewhere" / "i")

    with open_it() as index:
        places = places_of(lambda: verb.call(index))
    shutil.rmtree("i")
    for at in points(places, random, few=1):
        index = open_it()
        Places(at + 1, move).watch(lambda index=index: verb.call(index))
        if not (tmp_path / "moved").exists():  # it had fewer places this time
            move()
        check(index, [verb.after(before)])
        if not only_read:
            index.flush()
            index.optimize()
        index.close()
        with velo.open(tmp_path / "moved", threads=1) as index:
            check(index, [verb.after(before)])
        for one in (tmp_path / "i", tmp_path / "elsewhere" / "i"):
            assert contents(one) == whole, "the other index is as it was"
            shutil.rmtree(one)
        shutil.rmtree(tmp_path / "moved")
    assert all(len(list((tmp_path / "copies" / one).iterdir())) for one in os.listdir(tmp_path / "copies"))
