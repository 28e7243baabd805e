"""Deleting rows of an index that answers meanwhile."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import errors

N, DIM = 1_200, 24


def vectors_of(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return vectors_of()


def labels() -> pa.Table:
    return pa.table({"number": np.arange(N) % 10, "name": [f"n{row % 7}" for row in range(N)]})


def make(path: Path, vectors: np.ndarray, **how: Any) -> Path:
    velo.build(
        path, vectors, metadata=labels(), threads=1, calibrate=False, store_vectors=True, **how
    ).close()
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> Path:
    return make(tmp_path_factory.mktemp("live") / "a.velo", vectors)


@pytest.fixture
def folder(tmp_path: Path, built: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "a.velo"))


def exact(vectors: np.ndarray, query: np.ndarray, rows: np.ndarray, k: int) -> list[int]:
    distances = ((vectors[rows] - query) ** 2).sum(axis=1)
    return rows[np.argsort(distances, kind="stable")[:k]].tolist()


def all_ids(index: velo.Index, query: np.ndarray, **how: Any) -> set[int]:
    found = index.search(query, N, list_size=4096, **how)
    return set(found.ids[: int(found.counts[0])].tolist())


def test_deleted_rows_are_found_by_nothing(folder: Path, vectors: np.ndarray) -> None:
    with velo.open(folder, writable=True) as index:
        query = vectors[17]
        assert index.search(query, 1).ids.tolist() == [17]
        done = index.delete([17, 5, 5, 99_999])
        assert done == velo.Written(rows=2, missing=1, sequence=1, durable=True)
        assert len(index) == N - 2
        live = set(range(N)) - {17, 5}
        assert all_ids(index, query) == live
        assert all_ids(index, query, filter=velo.col("number") == 5) == {i for i in live if i % 10 == 5}
        assert all_ids(index, query, filter=[17, 18, 5, 19]) == {18, 19}
        mask = np.arange(N) < 30
        assert all_ids(index, query, filter=mask) == {i for i in live if i < 30}
        batch = index.search(vectors[:40], 3, filter=[None, velo.col("number") < 9] * 20)
        assert not {5, 17} & set(batch.ids.ravel().tolist())
        assert asyncio.run(index.search_async(query, 3)).ids.tolist()[0] != 17
        lims, _, ids = index.range_search(query, 1e9)
        assert set(ids.tolist()) == live
        assert lims[-1] == N - 2
        groups = index.search(query, 3, group_by="number", group_size=200)
        assert not {5, 17} & set(groups.ids.ravel().tolist())
        assert index.explain(query, filter=velo.col("number") == 7).matches == N // 10 - 1
        with pytest.raises(errors.UnknownIdError, match="deleted"):
            index.get_vectors([4, 5])
        assert index.get_vectors([4]).tolist() == vectors[[4]].tolist()
        again = index.delete([17])
        assert (again.rows, again.missing, again.sequence) == (0, 1, 1)
    with velo.open(folder) as index:
        assert all_ids(index, query) == live
        assert index.info()["live"]["dead"] == 2


def test_delete_by_filter(folder: Path, vectors: np.ndarray) -> None:
    with velo.open(folder, writable=True) as index:
        assert index.delete(filter=(velo.col("number") >= 5) & (velo.col("name") == "n3")).rows > 0
        gone = {row for row in range(N) if row % 10 >= 5 and row % 7 == 3}
        assert all_ids(index, vectors[0]) == set(range(N)) - gone
        assert index.delete(filter={"number": 1}).rows == len({r for r in range(N) if r % 10 == 1} - gone)
        assert index.delete(filter={"number": 1}).rows == 0
        assert index.delete(filter=velo.col("number") > 100).rows == 0
        assert index.delete(filter=velo.col("number") >= 0).rows == len(set(range(N)) - gone) - N // 10
        assert len(index) == 0
        nothing = index.search(vectors[:2], 5)
        assert nothing.counts.tolist() == [0, 0]
        assert (nothing.ids == -1).all()
        assert nothing.stats["reads"].tolist() == [0, 0]
        assert index.search(vectors[:2], 5, filter=velo.col("number") == 3).counts.tolist() == [0, 0]


def test_strings_are_ids_too(tmp_path: Path, vectors: np.ndarray) -> None:
    names = [f"row {row} of {'x' * (row % 50)}" for row in range(N)]
    make(tmp_path / "s.velo", vectors, ids=names)
    with velo.open(tmp_path / "s.velo", writable=True) as index:
        assert index.delete(names[3]).rows == 1
        assert index.delete(pa.array([names[8], "nobody", names[9]])).rows == 2
        with pytest.raises(errors.InvalidArgumentError, match="strings"):
            index.delete([3])
        assert index.delete([]).rows == 0
    with velo.open(tmp_path / "s.velo", writable=True) as index:
        assert index.search(vectors[3], 1).ids[0] != names[3]
        assert index.delete([names[3], names[4]]).rows == 1


def test_the_first_delete_makes_the_folder_live(folder: Path, vectors: np.ndarray) -> None:
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    with velo.open(folder, writable=True) as index:
        index.delete([999_999])
        after = {entry.name for entry in folder.iterdir()}
        assert after == {*before, "live.page"}, "nothing was to be written"
        index.delete([1])
    assert not (folder / "manifest.json").exists(), "an older velo finds no index rather than a wrong one"
    segment = folder / "part-0000000000000001"
    assert {name: (segment / name).read_bytes() for name in before} == before
    assert velo.verify(folder) > 0
    with velo.open(folder, memory="50%") as index, pickle.loads(pickle.dumps(index)) as copy:
        assert 1 not in all_ids(copy, vectors[1])
    with pytest.raises(errors.UnsupportedError, match="metadata"), velo.open(folder) as index:
        index.set_metadata(labels())
    with pytest.raises(errors.IndexExistsError):
        velo.build(folder, vectors)


def test_a_live_index_is_replaced_as_a_whole_and_not_while_somebody_writes(
    folder: Path, vectors: np.ndarray
) -> None:
    with velo.open(folder, writable=True) as index:
        index.delete([1])
        with pytest.raises(errors.BusyError, match="writes"):
            velo.build(folder, vectors[:900], overwrite=True, calibrate=False)
        assert len(index) == N - 1
    with velo.open(folder) as reader:
        velo.build(folder, vectors[:900], overwrite=True, calibrate=False).close()
        with pytest.raises(errors.UnsupportedError, match="another index"):
            reader.refresh()
        assert len(reader) == N - 1
    with velo.open(folder) as index:
        assert len(index) == 900
    assert not (folder / "live.json").exists()


def test_readers_that_follow_nothing_see_it_when_they_refresh(folder: Path, vectors: np.ndarray) -> None:
    with velo.open(folder, follow=False) as early, velo.open(folder, writable=True) as writer:
        assert not early.refresh()
        writer.delete([3])
        assert 3 in all_ids(early, vectors[3])
        assert early.refresh()
        assert 3 not in all_ids(early, vectors[3])
        with velo.open(folder, follow=False) as late:
            writer.delete([4])
            assert 4 in all_ids(late, vectors[4])
            assert late.refresh()
            assert early.refresh()
            assert not early.refresh()
            assert all_ids(early, vectors[4]) == all_ids(late, vectors[4]) == set(range(N)) - {3, 4}
        assert not writer.refresh()


def test_who_opened_it_to_write_may_write(folder: Path) -> None:
    with velo.open(folder) as reader:
        for call in (lambda: reader.delete([1]), reader.flush):
            with pytest.raises(errors.ReadOnlyError, match="writable"):
                call()
    with velo.open(folder, writable=True) as writer:
        with pytest.raises(errors.InvalidArgumentError, match="follow"):
            velo.open(folder, writable=True, follow=False)
        with pytest.raises(errors.UnsupportedError):
            writer.set_metadata(labels())
        if os.fork() == 0:
            try:
                writer.delete([1])
            except errors.ForkedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        writer.delete([1])
    with pytest.raises(errors.ClosedError):
        writer.delete([2])
    with velo.open(folder, writable=True) as writer:
        assert writer.delete([1, 2]).rows == 1


@pytest.mark.parametrize("durability", ["sync", "interval", "process"])
def test_durability(folder: Path, durability: Any) -> None:
    with velo.open(folder, writable=True, durability=durability) as index:
        assert index.delete([1]).sequence == 1
        second = index.delete([2])
        assert second.durable == (durability == "sync")
        index.flush()
        assert index.delete([2]).durable
        live = index.info()["live"]
        assert (live["durability"], live["dead"], live["sequence"]) == (durability, 2, 2)
        assert live["log_durable_bytes"] == live["log_bytes"]
    with velo.open(folder, writable=True) as index:
        assert len(index) == N - 2


def test_bad_arguments(folder: Path) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="durability"):
        velo.open(folder, writable=True, durability="never")  # type: ignore[arg-type]
    with pytest.raises(errors.NotAnIndexError):
        velo.open(folder / "nowhere", writable=True)
    with velo.open(folder, writable=True) as index:
        for wrong in ({}, {"ids": [1], "filter": {"number": 1}}):
            with pytest.raises(errors.InvalidArgumentError, match="one of them"):
                index.delete(**wrong)
        for ids in ([1, None], ["a"], [1.5], [[1]], np.array([[1, 2]])):
            with pytest.raises(errors.InvalidArgumentError, match="ids"):
                index.delete(ids)
        with pytest.raises(errors.UnknownColumnError):
            index.delete(filter=velo.col("nothing") == 1)
        assert index.delete(np.array([], np.int64)).rows == 0
        assert len(index) == N
    assert not (folder / "live.json").exists()


@pytest.mark.parametrize("name", ["live.json", "dead", "log", "ids.find"])
def test_damage_is_named(folder: Path, random: np.random.Generator, name: str) -> None:
    for delete in (range(10), range(10, 20)):
        with velo.open(folder, writable=True) as index:
            index.delete(list(delete))
    with velo.open(folder, writable=True) as index:
        index.delete([30])
    paths = [path for path in folder.rglob("*") if path.name.startswith(name) and path.suffix != ".torn"]
    (path,) = paths
    whole = path.read_bytes()
    last_record = 64 if name == "log" else 0  # a log's last record is a promise, whose loss loses nothing
    for _ in range(12):
        damaged = bytearray(whole)
        damaged[int(random.integers(len(whole) - last_record))] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(errors.VeloError) as caught:
            velo.verify(folder)
        assert isinstance(caught.value, errors.CorruptIndexError), caught.value
        assert path.name in str(caught.value)
        with pytest.raises(errors.CorruptIndexError):
            velo.open(folder, writable=True).close()
    path.unlink()
    with pytest.raises((errors.CorruptIndexError, errors.NotAnIndexError)):
        velo.verify(folder)


def test_threads_write_and_search(folder: Path, vectors: np.ndarray) -> None:
    with velo.open(folder, writable=True, threads=2) as index:

        def work(number: int) -> None:
            for turn in range(15):
                row = number * 100 + turn
                assert index.delete([row]).rows == 1
                assert row not in index.search(vectors[row], 5).ids
                assert row not in index.search(vectors[row], 5, filter=velo.col("number") >= 0).ids

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert len(index) == N - 90


@pytest.mark.parametrize("plan", ["gate", "scan", "auto"])
def test_no_page_is_read_for_a_dead_row(folder: Path, vectors: np.ndarray, plan: Any) -> None:
    tuning = velo.SearchTuning(filter_plan=plan)
    with velo.open(folder, writable=True, tuning=velo.OpenTuning(cache_share=0.0)) as index:
        pages = index.info()["page_count"]
        placed = index._seen().ids.column  # in the order in which pages hold them
        assert index.search(vectors[0], 300, tuning=tuning, exact=False).stats["reads"][0] > 0.9 * pages
        index.delete(placed[: N // 2])
        live = np.sort(placed[N // 2 :])
        hits = []
        for query in vectors[:30]:
            found = index.search(query, 300, tuning=tuning, exact=False)
            assert found.stats["reads"][0] <= 0.6 * pages
            hits.append(len(set(found.ids.tolist()) & set(exact(vectors, query, live, 300))) / 300)
        assert np.mean(hits) >= 0.95


def test_a_full_disk_stops_the_write_alone(folder: Path, run_python: Any) -> None:
    program = """
        import resource, signal, sys
        import velo
        from velo import errors
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with velo.open(sys.argv[1], writable=True) as index:
            index.delete([0])
            log = next(p for p in index.path.iterdir() if p.suffix == ".velolog")
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 100, hard))
            for _ in range(3):
                try:
                    index.delete(list(range(1, 200)))
                except errors.NoSpaceError:
                    pass
                else:
                    raise SystemExit("the write went through")
            assert len(index) == 1199
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert index.delete(list(range(1, 200))).rows == 199
        with velo.open(sys.argv[1]) as index:
            assert len(index) == 1000
    """
    ran = run_python(program, folder)
    assert ran.returncode == 0, ran.stderr
