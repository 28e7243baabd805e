"""Where the files of an index lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import velo
from velo.errors import CorruptIndexError, UnsupportedError
from velo.folder.manifest import data_folder, data_folders, read_folder_manifest
from velo.folder.replace import clean_folder


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"parts": []}', "[" * 100_000),
        '{"parts": [{"path": "../elsewhere"}], "first_log": "a"}',
        '{"parts": [{"path": "a", "dead": "../b"}], "first_log": "a"}',
    ],
)
def test_a_root_that_names_no_segment(tmp_path: Path, text: str) -> None:
    assert data_folder(tmp_path) == tmp_path
    (tmp_path / "live.json").write_text(text)
    with pytest.raises(CorruptIndexError, match=r"live\.json"):
        data_folder(tmp_path)


def test_several_segments(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text('{"parts": [{"path": "a"}, {"path": "b"}], "first_log": "c"}')
    assert data_folders(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(UnsupportedError, match="2 parts"):
        data_folder(tmp_path)
    (tmp_path / "live.json").write_text('{"parts": [], "first_log": "c"}')
    assert data_folders(tmp_path) == []


def test_a_build_is_one_segment_before_and_after_its_first_write(tmp_path: Path) -> None:
    path = tmp_path / "a.velo"
    vectors = np.random.default_rng(3).normal(size=(300, 6)).astype(np.float32)
    velo.build(path, vectors, threads=1, calibrate=False).close()
    before = read_folder_manifest(path)
    assert [one.path for one in before.segments] == ["."]
    assert (before.built_segment, before.files, before.text) == (before.segments[0], (), None)
    with velo.open(path, threads=1) as reader, velo.open(path, writable=True, threads=1) as writer:
        [unwritten] = writer.info()["live"]["parts"]
        assert unwritten["bytes"] is None
        even = np.arange(300) % 2 == 0
        for number, index in enumerate((writer, reader)):
            writer.delete([number])
            # A mask has the order of the build, also once rows were deleted.
            assert index.search(vectors[2], 1, list_size=100, filter=even).ids.tolist() == [2]
            [written] = index.info()["live"]["parts"]
            assert written["path"] == unwritten["path"]
            assert written["bytes"] > 0
    after = read_folder_manifest(path)
    assert [one.path for one in after.segments] == [unwritten["path"]]
    assert after.built_segment == after.segments[0]
    assert all((path / name).is_file() for name in (*after.files, after.log))


def test_a_folder_that_was_built_anew_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    """The same vectors and seed give an index the same uuid; ids may be others."""
    vectors = np.random.default_rng(4).normal(size=(300, 6)).astype(np.float32)
    path = tmp_path / "a.velo"

    def build(first: int) -> None:
        ids = np.arange(first, first + 300)
        velo.build(path, vectors, ids=ids, threads=1, calibrate=False, overwrite=True).close()

    def write(first: int) -> None:
        with velo.open(path, writable=True, threads=1) as writer:
            assert writer.delete([first]).rows == 1

    build(0)
    with velo.open(path, threads=1) as reader:
        uuid = reader.info()["uuid"]
        build(1_000)
        write(1_000)
        with pytest.raises(UnsupportedError, match="another index"):
            reader.refresh()
        assert reader.search(vectors[:2], 1, list_size=100).ids[:, 0].tolist() == [0, 1]
    with velo.open(path, threads=1) as reader:
        assert reader.info()["uuid"] == uuid
        found = reader.search(vectors[:2], 1, list_size=100).ids[:, 0].tolist()
        assert found[1] == 1_001
        assert found[0] != 1_000
        build(2_000)
        write(2_000)
        with pytest.raises(UnsupportedError, match="another index"):
            reader.refresh()


def test_files_of_others_stay_whatever_they_are_called(tmp_path: Path) -> None:
    path = tmp_path / "a.velo"
    vectors = np.random.default_rng(4).normal(size=(300, 6)).astype(np.float32)
    velo.build(
        path, vectors, metadata={"n": list(range(300))}, threads=1, calibrate=False, store_vectors=True
    ).close()
    names = [
        "log-2026-11-24.txt",
        "log-00000000000000aa.txt",
        "dead-letters.csv",
        "dead-00000000000000AA.bin",
        "columns.csv",
        "columns.notes.part",
        "columns.2.txt",
        "ours.work",
        "zz.torn",
        "merge-notes.json",
        "ids.arrow.bak",
    ]
    folders = ["part-time-jobs", "part-00000000000000AA", "merge-queue"]
    litter = ["log-00000000000000aa.velolog", "dead-00000000000000aa.bin", "live.json.tmp", "columns.7.arrow"]
    for name in (*names, *litter):
        (path / name).write_text("theirs")
    for name in (*folders, "part-00000000000000aa"):
        (path / name).mkdir()
        (path / name / "file").write_text("theirs")
    with velo.open(path) as built:
        built.set_metadata({"n": list(range(1, 301))})
    with velo.open(path, writable=True, threads=1) as index:
        index.delete([3])
        index.insert(vectors[:1], metadata={"n": [7]})
        index.flush()
        index.optimize()
    with velo.open(path, writable=True, threads=1) as index:
        index.delete([4])
    clean_folder(path)
    for name in names:
        assert (path / name).read_text() == "theirs", name
    for name in folders:
        assert (path / name / "file").read_text() == "theirs", name
    for name in (*litter, "part-00000000000000aa"):
        assert not (path / name).exists(), name
