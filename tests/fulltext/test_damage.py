"""Files of words that are damaged, missing, of others, or have no room: rows tell what they hold."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import velo
from velo import errors
from velo.errors import RebuiltWarning
from velo.fulltext.file import Words
from velo.fulltext.tokens import CACHE_BYTES

DIM, N = 6, 400
BY_WORDS = velo.RRF(vectors=0.0)


def build(path: Path, word: str = "word", rows: int = N) -> Path:
    """An index whose row i has the words `word` and ``n<i>``; its file of words."""
    vectors = np.random.default_rng(3).normal(size=(rows, DIM)).astype(np.float32)
    table = pa.table({"text": [f"{word} n{row}" for row in range(rows)]})
    velo.build(path, vectors, metadata=table, text="text", threads=1, calibrate=False).close()
    return path / "columns.words"


def check(index: velo.Index, *rows: int) -> None:
    query = np.zeros(DIM, np.float32)
    for row in rows or (0, 7, N - 1):
        assert index.search(query, 5, text=f"n{row}", fusion=BY_WORDS).ids.tolist() == [row] + [-1] * 4
    assert index.search(query, 5, text="word", fusion=BY_WORDS).counts[0] == 5


def damages(size: int) -> dict[str, tuple[int, bytes]]:
    """By name a place in the file and what is written there."""
    random = np.random.default_rng(8)
    places = {f"byte {place}": (int(place), b"\x5a") for place in random.integers(100, size - 16, 12)}
    return {
        "head": (0, b"nothing of it"),
        "sum": (size - 16, b"\0\0\0\0"),
        "mark": (size - 4, b"    "),
        **places,
    }


def test_damaged_files_are_made_anew(tmp_path: Path) -> None:
    words = build(tmp_path / "a.velo")
    whole = words.read_bytes()
    for name, (place, data) in damages(len(whole)).items():
        broken = bytearray(whole)
        if broken[place : place + len(data)] == data:
            continue
        broken[place : place + len(data)] = data
        words.write_bytes(broken)
        with pytest.raises(errors.CorruptIndexError) as raised:
            velo.verify(tmp_path / "a.velo")
        assert raised.value.file == "columns.words", name
        with velo.open(tmp_path / "a.velo") as index:
            with pytest.warns(RebuiltWarning, match="columns.words"):
                check(index)
            check(index)  # said once
        assert velo.verify(tmp_path / "a.velo") > 0
        with velo.open(tmp_path / "a.velo") as index:
            check(index)  # warnings are errors here


@pytest.mark.parametrize("size", [0, 1, 16, 4096])
def test_cut_files_are_made_anew(tmp_path: Path, size: int) -> None:
    words = build(tmp_path / "a.velo")
    os.truncate(words, size)
    with velo.open(tmp_path / "a.velo") as index, pytest.warns(RebuiltWarning):
        check(index)
    assert velo.verify(tmp_path / "a.velo") > 0


def test_a_missing_file_is_made(tmp_path: Path) -> None:
    """As of an index that was copied by who knows only what its manifest names; nothing is wrong with it."""
    words = build(tmp_path / "a.velo")
    before = words.read_bytes()
    words.unlink()
    assert velo.verify(tmp_path / "a.velo") > 0
    (tmp_path / "a.velo" / "columns.words.0123abcd.part").write_bytes(b"what a killed process left")
    with velo.open(tmp_path / "a.velo") as index:
        check(index)
    assert words.read_bytes() == before
    assert not list((tmp_path / "a.velo").glob("*.part"))


def test_words_of_another_index_are_not_taken(tmp_path: Path) -> None:
    words = build(tmp_path / "a.velo")
    shutil.copyfile(build(tmp_path / "b.velo", "other", N + 1), words)
    with velo.open(tmp_path / "a.velo") as index, pytest.warns(RebuiltWarning, match="other rows"):
        check(index)


def test_damage_while_it_is_open(tmp_path: Path) -> None:
    """What cannot be read any more is looked at anew, and made anew."""
    words = build(tmp_path / "a.velo", rows=15_000)
    assert words.stat().st_size > 2 * CACHE_BYTES
    with velo.open(tmp_path / "a.velo") as index:
        check(index, 7)
        size = words.stat().st_size
        with open(words, "r+b") as file:
            file.write(b"\0" * size)
        rows = np.random.default_rng(2).permutation(15_000)[:200].tolist()
        with pytest.warns(RebuiltWarning):
            check(index, *rows)
        check(index, *rows)


def test_segments_of_live_data(tmp_path: Path) -> None:
    words = build(tmp_path / "a.velo")
    with velo.open(tmp_path / "a.velo", writable=True, threads=1) as index:
        index.insert(np.ones((2, DIM), np.float32), metadata={"text": ["word n400", "word n401"]})
        index.flush()
        index.insert(np.ones((1, DIM), np.float32), metadata={"text": ["word n402"]})
        index.delete([3])
    assert not words.exists()
    files = sorted((tmp_path / "a.velo").rglob("*.words"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(b"nothing")
    with pytest.raises(errors.CorruptIndexError):
        velo.verify(tmp_path / "a.velo")
    with velo.open(tmp_path / "a.velo", writable=True, threads=1) as index:
        with pytest.warns(RebuiltWarning) as said:
            check(index, 400, 401, 402, 2, 4)
        assert len([one for one in said if issubclass(one.category, RebuiltWarning)]) == 2
        assert index.search(np.zeros(DIM), 1, text="n3", fusion=BY_WORDS).counts[0] == 0
        index.optimize()
        check(index, 400, 401, 402, 2, 4)
    assert velo.verify(tmp_path / "a.velo") > 0


def fill(path: Path) -> None:
    """Use all free space."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as filler:
        while True:
            filler.write(b"\0" * 4096)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_folder_that_takes_no_file(tmp_path: Path, how: str) -> None:
    """A search answers, and a build says what is the matter."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mounted)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"LOUD: mount is refused here ({made.stderr!r})")
    try:
        path = mounted / "a.velo"
        build(path).unlink()
        if how == "full":
            fill(mounted / "filler")
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
        with velo.open(path) as index:
            check(index)
        assert os.listdir(path) == [one for one in os.listdir(path) if "words" not in one]
        if how == "full":
            with velo.open(path, writable=False) as index:
                check(index)
            with pytest.raises(errors.NoSpaceError):
                build(mounted / "b.velo")
            (mounted / "filler").unlink()
            with velo.open(path) as index:
                check(index)
            assert (path / "columns.words").is_file()
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_a_flush_without_room_for_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and the segment comes once there is room."""
    from velo.building import build as building

    build(tmp_path / "a.velo")

    def full(_: Path) -> None:
        raise errors.NoSpaceError("the device is full")

    with velo.open(tmp_path / "a.velo", writable=True, threads=1) as index:
        index.insert(np.ones((2, DIM), np.float32), metadata={"text": ["word n400", "word n401"]})
        with monkeypatch.context() as patch:
            patch.setattr(building, "make_words", full)
            with pytest.raises(errors.NoSpaceError):
                index.flush()
        check(index, 400, 401)
        assert len(index.info()["live"]["parts"]) == 1
        index.flush()
        assert len(index.info()["live"]["parts"]) == 2
        check(index, 400, 401)


def test_readers_of_an_index_that_is_written(tmp_path: Path) -> None:
    build(tmp_path / "a.velo")
    with (
        velo.open(tmp_path / "a.velo", writable=True, threads=1) as writer,
        velo.open(tmp_path / "a.velo", threads=1, follow=False) as reader,
    ):
        check(reader)
        writer.insert(np.ones((1, DIM), np.float32), metadata={"text": ["word n400"]})
        assert reader.search(np.zeros(DIM), 1, text="n400", fusion=BY_WORDS).counts[0] == 0
        assert reader.refresh()
        check(reader, 400, 5)
        writer.optimize()
        check(reader, 400, 5)
        reader.refresh()
        check(reader, 400, 5)


def test_what_words_take_is_counted(tmp_path: Path) -> None:
    build(tmp_path / "a.velo")
    with velo.open(tmp_path / "a.velo", writable=True, threads=1) as index:
        assert index.info()["memory_bytes"]["words"] == 0
        before = index.info()["memory_beside_budget_bytes"]
        check(index)
        index.insert(np.ones((1, DIM), np.float32), metadata={"text": ["word n400"]})
        check(index)
        info = index.info()
        assert info["memory_bytes"]["words"] == 2 * 128 << 10
        assert info["memory_beside_budget_bytes"] >= before + info["memory_bytes"]["words"]


def test_an_older_file_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from velo.fulltext import file

    build(tmp_path / "a.velo")
    monkeypatch.setattr(file, "_FORMAT", "2")
    with velo.open(tmp_path / "a.velo") as index, pytest.warns(RebuiltWarning):
        check(index)
    with velo.open(tmp_path / "a.velo") as index:
        check(index)


def test_words_are_let_go(tmp_path: Path) -> None:
    """An index that is closed leaves no descriptor, and no warning of one."""
    words = build(tmp_path / "a.velo")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with velo.open(tmp_path / "a.velo") as index:
                check(index)
            del index
    open_files = [
        os.readlink(f"/proc/self/fd/{one}")
        for one in os.listdir("/proc/self/fd")
        if one.isdigit() and os.path.islink(f"/proc/self/fd/{one}")
    ]
    assert str(words) not in open_files
    assert Words.opened(words, Words.opened(words, _stamp(words)).stamp).row_count == N


def _stamp(words: Path) -> str:
    import sqlite3

    with sqlite3.connect(f"file:{words}?mode=ro&immutable=1", uri=True) as database:
        found: str = database.execute("SELECT value FROM about WHERE name='stamp'").fetchone()[0]
    database.close()
    return found


def test_threads_search_while_rows_come(tmp_path: Path) -> None:
    """Each search sees whole calls, whatever is written, flushed and merged meanwhile."""
    build(tmp_path / "a.velo")
    failures: list[BaseException] = []
    over = threading.Event()
    with velo.open(tmp_path / "a.velo", writable=True, durability="process", threads=1) as index:

        def search() -> None:
            query = np.zeros(DIM, np.float32)
            try:
                while not over.is_set():
                    found = index.search(query, 4096, text="pair", fusion=BY_WORDS, return_metadata=True)
                    assert found.counts[0] % 2 == 0, "half of a call"
                    assert all("pair" in text for text in found.metadata["text"].to_pylist())
                    assert np.isfinite(found.distances[: found.counts[0]]).all()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(40):
                rows = index.insert(
                    np.full((2, DIM), turn, np.float32),
                    metadata={"text": [f"pair n{turn}", "the other of a pair"]},
                )
                if turn % 3 == 0:
                    index.delete([rows.first_id, rows.first_id + 1])
                if turn % 10 == 9:
                    index.flush()
            index.optimize()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not failures, failures
        assert index.search(np.zeros(DIM), 4096, text="pair", fusion=BY_WORDS).counts[0] == 2 * 26
