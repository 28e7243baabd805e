"""Columns of rows change while the rest of each row stays; an index is copied while it is written."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.live.rows import DIM, SCHEMA, table, vectors_of
from velo import errors


@pytest.mark.parametrize("kind", ["numbered", "numbers", "strings"])
def test_columns_change_and_the_rest_of_each_row_stays(index: velo.Index, kind: str) -> None:
    vectors = vectors_of(300)
    names: Any = {
        "numbered": list(range(300)),
        "numbers": [7 * row - 40 for row in range(300)],
        "strings": [f"row {row}" for row in range(300)],
    }[kind]
    index.insert(vectors, None if kind == "numbered" else names, metadata=table(range(300)))
    index.flush()
    expected = {name: row for row, name in enumerate(names)}
    for turn in range(3):  # rows of a segment, of the delta, of both after a commit
        chosen = [names[row] for row in range(turn, 300, 9)]
        absent: Any = {"numbered": 9_999, "numbers": 3_000_000, "strings": "nobody"}[kind]
        values = [1_000 * (turn + 1) + place for place in range(len(chosen) + 1)]
        done = index.update([*chosen, absent], {"n": values})
        assert (done.rows, done.missing, done.durable) == (len(chosen), 1, True)
        expected |= dict(zip(chosen, values, strict=False))
        assert len(index) == 300
        found = index.get(names)
        assert found["n"].to_pylist() == [expected[name] for name in names]
        assert found["name"].to_pylist() == [f"x{row % 5}" for row in range(300)]
        assert (index.get_vectors(names) == vectors).all()
        assert index.count(velo.col("n") >= 1_000) == sum(value >= 1_000 for value in expected.values())
        hit = index.search(
            vectors[turn], 1, filter=velo.col("n") == values[0], list_size=300, return_metadata=True
        )
        assert (hit.ids[0], hit.metadata["n"][0].as_py()) == (names[turn], values[0])
        if turn == 1:
            index.optimize()
    last = index.update([names[4], names[4]], {"n": [1, 2], "name": ["a", "b"]})
    assert (last.rows, last.missing) == (1, 0)
    assert index.get([names[4]]).to_pylist() == [{"id": names[4], "name": "b", "n": 2}]
    path = index.path
    index.close()
    with velo.open(path, threads=1) as again:
        assert again.get([names[4]])["n"].to_pylist() == [2]
        assert (again.get_vectors([names[4]]) == vectors[4]).all()


def test_bad_updates_change_nothing(index: velo.Index, tmp_path: Path) -> None:
    index.insert(vectors_of(20), list(range(20)), table(range(20)))
    sequence = index.info()["live"]["sequence"]
    cases: list[tuple[type[Exception], Any, Any]] = [
        (errors.UnknownColumnError, [1], {"other": [1]}),
        (errors.InvalidArgumentError, [1], {"n": ["text"]}),
        (errors.InvalidArgumentError, [1], {"n": [1, 2]}),
        (errors.InvalidArgumentError, [1], {}),
        (errors.InvalidArgumentError, [1], None),
        (errors.InvalidArgumentError, ["one"], {"n": [1]}),
    ]
    for error, ids, metadata in cases:
        with pytest.raises(error):
            index.update(ids, metadata)
    with pytest.raises(errors.InvalidArgumentError):
        index.update([1], {"n": [1]}, timeout_s=-1)
    assert index.info()["live"]["sequence"] == sequence
    assert index.update([99], {"n": [1]}).missing == 1
    assert index.info()["live"]["sequence"] == sequence
    first = index.update([3], {"n": [50]}, request="once")
    again = index.update([3], {"n": [51]}, request="once")
    assert (again.repeated, again.rows, again.sequence) == (True, 1, first.sequence)
    assert index.get([3])["n"].to_pylist() == [50]
    with velo.open(index.path, threads=1) as reader, pytest.raises(errors.ReadOnlyError):
        reader.update([1], {"n": [1]})
    plain = tmp_path / "plain.velo"
    with velo.build(plain, vectors_of(50), metadata=table(range(50)), threads=1, calibrate=False):
        pass
    with velo.open(plain, writable=True, threads=1) as stores_none:
        assert stores_none.update([1], {"n": [5]}).rows == 1
        assert stores_none.get([1])["n"].to_pylist() == [5]
    with velo.create(tmp_path / "bare.velo", dim=DIM, threads=1) as bare:
        bare.insert(vectors_of(3))
        with pytest.raises(errors.InvalidArgumentError, match="no columns"):
            bare.update([1], {"n": [5]})


def test_a_built_index_takes_updates(tmp_path: Path) -> None:
    vectors = vectors_of(1_000).astype(np.float16)
    path = tmp_path / "a.velo"
    velo.build(
        path, vectors, metadata=table(range(1_000)), store_vectors=True, threads=1, calibrate=False
    ).close()
    with velo.open(path, writable=True, threads=1) as index:
        index.delete([5])
        assert index.update([4, 5], {"n": [70_000, 70_001]}).missing == 1
        assert index.get([4]).to_pylist() == [{"id": 4, "name": "x4", "n": 70_000}]
        assert (index.get_vectors([4]) == vectors[[4]].astype(np.float32)).all()
        assert index.search(vectors[4], 1, list_size=200).ids.tolist() == [4]
        assert len(index) == 999


@pytest.mark.parametrize("durability", ["sync", "process"])
def test_no_update_is_lost_among_writers(tmp_path: Path, durability: Any) -> None:
    schema = pa.schema([(f"of{one}", pa.int64()) for one in range(4)])
    with velo.create(
        tmp_path / "a.velo", dim=DIM, metadata=schema, threads=1, durability=durability
    ) as index:
        index.insert(vectors_of(8), list(range(8)), {f"of{one}": [0] * 8 for one in range(4)})

        def work(one: int) -> None:
            random = np.random.default_rng(one)
            for turn in range(25):  # each has a column of its own in the same rows
                index.update(random.permutation(8)[:5], {f"of{one}": [turn + 1] * 5})
                if turn % 8 == one:
                    index.flush()
            index.update(list(range(8)), {f"of{one}": [100 + one] * 8})

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert len(index) == 8
        rows = index.get(list(range(8)))
        for one in range(4):
            assert rows[f"of{one}"].to_pylist() == [100 + one] * 8


def test_a_snapshot_is_an_index_that_goes_its_own_way(index: velo.Index, tmp_path: Path) -> None:
    vectors = vectors_of(260)
    index.insert(vectors[:200], list(range(200)), table(range(200)))
    index.flush()
    index.insert(vectors[200:], list(range(200, 260)), table(range(200, 260)))
    index.delete([3, 210])
    index.update([4], {"n": [-4]})
    copy = tmp_path / "copy.velo"
    index.snapshot(copy)
    segment = index.info()["live"]["parts"][0]["path"]
    pages = [path / segment / "pages.bin" for path in (index.path, copy)]
    assert os.stat(pages[0]).st_ino == os.stat(pages[1]).st_ino
    index.delete(filter=velo.col("n") < 100)
    index.optimize()
    live = [row for row in range(260) if row not in (3, 210)]
    assert velo.verify(copy) > 0
    with velo.open(copy, writable=True, threads=1) as other:
        assert sorted(other.rows(limit=300)["id"].to_pylist()) == live
        assert other.get([4])["n"].to_pylist() == [-4]
        assert (other.get_vectors(live) == vectors[live]).all()
        other.delete([0])
        other.optimize()
        assert len(other) == 257
    assert velo.verify(copy) > 0
    assert len(index) == 159
    with pytest.raises(errors.IndexExistsError):
        index.snapshot(copy)
    with velo.open(index.path, threads=1) as reader:  # a reader makes one, too
        reader.snapshot(tmp_path / "second.velo")
    assert velo.verify(tmp_path / "second.velo") > 0
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_snapshots_of_an_index_as_it_was_built(tmp_path: Path) -> None:
    vectors = vectors_of(1_200)
    path, copy = tmp_path / "a.velo", tmp_path / "b.velo"
    copy.mkdir()
    with velo.build(path, vectors, metadata=table(range(1_200)), threads=1, calibrate=False) as built:
        built.snapshot(copy)
    with velo.open(path, writable=True, threads=1) as index:
        index.delete([1])
    assert velo.verify(copy) > 0
    with velo.open(copy, threads=1) as other:
        assert len(other) == 1_200
        assert other.get([1])["n"].to_pylist() == [1]
        other.set_metadata(table(range(1_200, 2_400)))
    with velo.open(path, threads=1) as index:
        assert index.get([2])["n"].to_pylist() == [2]
        with pytest.raises(errors.InvalidArgumentError):
            index.snapshot(tmp_path / "nowhere" / "c.velo")


def test_snapshots_while_others_write(tmp_path: Path) -> None:
    """Each holds whole calls only, and all that was done before it began."""
    path = tmp_path / "a.velo"
    with velo.create(path, dim=DIM, metadata=SCHEMA, threads=1, durability="process") as index:
        index.insert(vectors_of(10), list(range(10)), table([0] * 10))
        stop = threading.Event()
        failures: list[BaseException] = []
        reached = 0

        def work() -> None:
            nonlocal reached
            try:
                while not stop.is_set():
                    value = reached + 1
                    index.upsert(vectors_of(10, value), list(range(10)), table([value] * 10))
                    reached = value
                    if value % 5 == 0:
                        index.flush()
                    if value % 20 == 0:
                        index.optimize()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for turn in range(12):
                least = reached
                index.snapshot(tmp_path / f"{turn}.velo")
                most = reached + 1
                with velo.open(tmp_path / f"{turn}.velo", threads=1) as copy:
                    values = copy.get(list(range(10)))["n"].to_pylist()
                    assert len(copy) == 10
                    assert len(set(values)) == 1
                    assert least <= values[0] <= most
                    assert (copy.get_vectors(list(range(10))) == vectors_of(10, values[0] or 5)).all()
                velo.verify(tmp_path / f"{turn}.velo")
        finally:
            stop.set()
            thread.join()
        assert not failures
