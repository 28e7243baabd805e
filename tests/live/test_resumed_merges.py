"""A merge that was killed goes on with the next writer, and nothing that came or went meanwhile is lost."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from velo.building import build
from velo.compaction import compactor, segment_builder
from velo.testing import brute_force, recall_at_k, synthetic_vectors

N, NEW, DIM = 1630, 300, 24

#: Merges, and is killed at a given point.
PROGRAM = """
    import functools, os, signal, sys
    import velo
    from velo.building import build
    from velo.compaction import segment_builder

    path, stage, share = sys.argv[1], sys.argv[2], float(sys.argv[3])
    segment_builder._RESUMED_ROWS = 1
    build._POLL_SECONDS = 0.0005
    build.chunk_rows = lambda row_bytes: 250  # many chunks: many places to be killed in
    build.BuildOptions = functools.partial(build.BuildOptions, checkpoint_s=0.001)
    whole = build.build_shard

    def watched(path, *args, watch=None, **how):
        is_merge = path.name.startswith("merge-")
        known = watch

        def watch(now, done, total):
            if is_merge and now == stage and done >= share * total:
                os.kill(os.getpid(), signal.SIGKILL)
            return None if known is None else known(now, done, total)

        whole(path, *args, watch=watch, **how)
        if is_merge and stage == "built":
            os.kill(os.getpid(), signal.SIGKILL)

    build.build_shard = watched
    with velo.open(path, writable=True, threads=1) as index:
        index.optimize()
    """


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A large segment, a young one, and some rows of both that are dead."""
    path = tmp_path_factory.mktemp("grown") / "i.velo"
    vectors = synthetic_vectors(N + NEW, DIM, seed=7)
    velo.build(path, vectors[:N], ids=np.arange(N), store_vectors=True, threads=2).close()
    with velo.open(path, writable=True, threads=2) as index:
        index.insert(vectors[N:], np.arange(N, N + NEW))
        index.flush()
        index.delete(np.arange(0, N + NEW, 11))
    return path


def killed(source: Path, path: Path, stage: str, share: float) -> None:
    """A copy of an index whose merge was killed."""
    with velo.open(source, threads=1) as index:
        index.snapshot(path)
    done = child.run(PROGRAM, path, stage, share)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture(scope="module")
def killed_in_write(grown: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index whose merge was killed as it began to write; to be copied."""
    path = tmp_path_factory.mktemp("killed") / "i.velo"
    killed(grown, path, "write", 0.0)
    return path


def begun(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.glob("merge-*"))


def expect(path: Path, vectors: np.ndarray, ids: np.ndarray) -> None:
    """Exactly these rows are there, each with its vector, and they are found."""
    with velo.open(path, threads=2) as index:
        assert sorted(index.rows(limit=10 * N)["id"].to_pylist()) == sorted(ids.tolist())
        assert (index.get_vectors(ids) == vectors[ids]).all()
        queries = vectors[::50]
        near = ids[brute_force(vectors[ids], queries, 10)[0]]
        assert recall_at_k(index.search(queries, 10, recall=0.98).ids, near) >= 0.97


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Where builds of segments went on."""
    found: list[tuple[str, int, int]] = []
    whole = build.build_shard

    def watched(*args: Any, **how: Any) -> None:
        whole(*args, resumed=lambda *where: found.append(where), **how)

    monkeypatch.setattr(build, "build_shard", watched)
    monkeypatch.setattr(segment_builder, "_RESUMED_ROWS", 1)
    monkeypatch.setattr(compactor, "_LATER_S", 0.0)
    return found


def go_on(path: Path) -> int:
    """Open to write and wait for what goes on; how many segments there are then."""
    with velo.open(path, writable=True, threads=1) as index:
        assert index._folders[0].compactor is not None
        index._folders[0].compactor.join()
        return len(index.info()["live"]["parts"])


STAGES = ["scan", "encode", "graph", "place", "write", "commit", "calibrate", "built"]


@pytest.mark.parametrize(
    ("stage", "share"),
    [
        pytest.param(
            "scan",
            0.5,
            marks=pytest.mark.long(
                guarded_by="tests/live/test_resumed_merges.py::test_a_killed_merge_resumes_and_keeps_later_changes"
            ),
        ),
        ("encode", 0.3),
        pytest.param(
            "encode",
            1.0,
            marks=pytest.mark.long(
                guarded_by="tests/live/test_resumed_merges.py::test_a_killed_merge_resumes_and_keeps_later_changes"
            ),
        ),
        pytest.param(
            "place",
            0.0,
            marks=pytest.mark.long(
                guarded_by="tests/live/test_resumed_merges.py::test_a_killed_merge_resumes_and_keeps_later_changes"
            ),
        ),
        ("write", 0.5),
        pytest.param(
            "commit",
            0.0,
            marks=pytest.mark.long(
                guarded_by="tests/live/test_resumed_merges.py::test_a_killed_merge_resumes_and_keeps_later_changes"
            ),
        ),
        ("built", 0),
    ],
)
def test_a_killed_merge_resumes_and_keeps_later_changes(
    grown: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resumed: list[tuple[str, int, int]],
    stage: str,
    share: float,
) -> None:
    vectors = synthetic_vectors(N + NEW, DIM, seed=7)
    path = tmp_path / "i.velo"
    killed(grown, path, stage, share)
    assert len(begun(path)) == 2, "its folder and what it takes"
    ids = np.array([one for one in range(N + NEW) if one % 11])
    expect(path, vectors, ids)

    # Rows go, come back and change before it goes on: of both segments, and rows that were dead when it
    # began.
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "_LATER_S", 60.0)
        with velo.open(path, writable=True, threads=1) as index:
            index.delete(np.arange(1, N + NEW, 7))
            again = np.arange(22, N + NEW, 77)
            vectors[again] += 0.25
            index.upsert(vectors[again], again)
            moved = np.arange(5, N + NEW, 70)
            vectors[moved] -= 0.25
            index.upsert(vectors[moved], moved)
            index.flush()
    ids = np.union1d(np.setdiff1d(ids, np.arange(1, N + NEW, 7)), np.union1d(again, moved))
    expect(path, vectors, ids)
    assert len(begun(path)) == 2, "each closed before it would have begun"

    assert go_on(path) == 2
    assert begun(path) == []
    if stage == "scan":
        assert resumed == []
    elif stage != "built":
        [(where, _, total), *_] = resumed
        assert total == sum(one % 11 != 0 for one in range(N + NEW))
        assert STAGES.index(where) >= STAGES.index(stage) - 1, where
    expect(path, vectors, ids)
    with velo.open(path, writable=True, threads=1) as index:
        assert len(index.info()["live"]["parts"]) == 2
        index.optimize()
        assert len(index.info()["live"]["parts"]) == 1
    expect(path, vectors, ids)
    velo.verify(path)


@pytest.mark.parametrize(
    ("stage", "share"),
    [
        ("encode", 1.0),
        pytest.param(
            "encode",
            0.3,
            marks=pytest.mark.long(
                guarded_by="tests/live/test_resumed_merges.py::test_a_resumed_merge_copies_codes"
            ),
        ),
        pytest.param(
            "write",
            0.5,
            marks=pytest.mark.long(
                guarded_by="tests/live/test_resumed_merges.py::test_a_resumed_merge_copies_codes"
            ),
        ),
    ],
)
def test_a_resumed_merge_copies_codes(
    tmp_path: Path, resumed: list[tuple[str, int, int]], stage: str, share: float
) -> None:
    """An index that stores no vectors: it answers as after the same merge without a break."""
    vectors = synthetic_vectors(N + NEW, DIM, seed=7)
    path, whole, broken = (tmp_path / name for name in ("i.velo", "whole.velo", "broken.velo"))
    velo.build(path, vectors[:N], ids=np.arange(N), store_vectors=False, threads=1).close()
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(vectors[N:], np.arange(N, N + NEW))
        index.flush()
        index.delete(np.arange(0, N + NEW, 11))
        index.snapshot(whole)
    killed(path, broken, stage, share)
    assert len(begun(broken)) == 2
    assert go_on(broken) == 1
    assert begun(broken) == []
    [(where, *_), *_] = resumed
    assert STAGES.index(where) >= STAGES.index(stage) - 1, where
    with velo.open(whole, writable=True, threads=1) as index:
        index.optimize()
        expected = index.search(vectors[::20], 10)
        with velo.open(broken, threads=1) as other:
            found = other.search(vectors[::20], 10)
            assert len(other) == len(index) == sum(one % 11 != 0 for one in range(N + NEW))
            assert not other.info()["stores_vectors"]
    assert (found.ids == expected.ids).all()
    assert (found.distances == expected.distances).all()
    velo.verify(broken)


def test_a_killed_merge_of_removed_segments_is_discarded(
    killed_in_write: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resumed: list[tuple[str, int, int]],
) -> None:
    path = tmp_path / "i.velo"
    shutil.copytree(killed_in_write, path)
    with monkeypatch.context() as patch:
        patch.setattr(compactor, "_LATER_S", 60.0)
        patch.setattr(segment_builder.SegmentBuilder, "has_begun", False)
        with velo.open(path, writable=True, threads=1) as index:
            index.optimize()
    assert len(begun(path)) == 2
    go_on(path)
    assert begun(path) == []
    expect(
        path, synthetic_vectors(N + NEW, DIM, seed=7), np.array([one for one in range(N + NEW) if one % 11])
    )


def test_a_resumed_merge_takes_the_delta_as_a_segment(
    grown: Path, tmp_path: Path, resumed: list[tuple[str, int, int]]
) -> None:
    """Rows of the delta have other numbers once it is read again; those of a segment never have."""
    with velo.open(grown, threads=1) as index:
        index.snapshot(tmp_path / "a")
    vectors = np.concatenate([synthetic_vectors(N + NEW, DIM, seed=7), synthetic_vectors(20, DIM, seed=8)])
    with velo.open(tmp_path / "a", writable=True, threads=1) as index:
        index.insert(vectors[N + NEW :], np.arange(N + NEW, len(vectors)))
    path = tmp_path / "i.velo"
    killed(tmp_path / "a", path, "write", 0.5)
    ids = np.array([one for one in range(len(vectors)) if one % 11 or one >= N + NEW])
    expect(path, vectors, ids)
    assert go_on(path) == 1
    assert resumed
    expect(path, vectors, ids)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing", "no-folder", "lies"])
def test_a_killed_merge_with_damaged_state_loses_no_row(
    killed_in_write: Path, tmp_path: Path, resumed: list[tuple[str, int, int]], damage: str
) -> None:
    """Then it begins anew, or is forgotten; no row is lost."""
    path = tmp_path / "i.velo"
    shutil.copytree(killed_in_write, path)
    [file] = path.glob("merge-*.json")
    content = file.read_bytes()
    if damage == "flipped":
        file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    elif damage == "cut":
        file.write_bytes(content[:-40])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "missing":
        file.unlink()
    elif damage == "no-folder":
        file.with_suffix("").rename(tmp_path / "elsewhere")
    else:
        told = json.loads(content)
        told["parts"][0][0] = "another index's"
        file.write_text(json.dumps(told))
    with velo.open(path, writable=True, threads=1) as index:
        index.insert(np.zeros((1, DIM), np.float32), [N + NEW])
        index.delete([N + NEW])
    go_on(path)
    assert begun(path) == []
    expect(
        path, synthetic_vectors(N + NEW, DIM, seed=7), np.array([one for one in range(N + NEW) if one % 11])
    )
    with velo.open(path, threads=1) as index:
        assert len(index.info()["live"]["parts"]) == (1 if damage == "no-folder" else 2)


def test_foreign_files_are_left_alone_and_any_number_goes_on(
    killed_in_write: Path, tmp_path: Path, resumed: list[tuple[str, int, int]]
) -> None:
    path = tmp_path / "i.velo"
    shutil.copytree(killed_in_write, path)
    [file] = path.glob("merge-*.json")
    others = ["merge-notes.txt", "merge-two", "merge-zzzz.json", f"{file.name}.old"]
    for name in others:
        (path / name).write_bytes(file.read_bytes())
    file.with_suffix("").rename(path / f"merge-{'f' * 16}")
    file.rename(path / f"merge-{'f' * 16}.json")
    assert go_on(path) == 1
    assert begun(path) == sorted(others)


def test_a_merge_that_names_a_segment_twice_is_discarded(
    killed_in_write: Path, tmp_path: Path, resumed: list[tuple[str, int, int]]
) -> None:
    path = tmp_path / "i.velo"
    shutil.copytree(killed_in_write, path)
    [file] = path.glob("merge-*.json")
    told = json.loads(file.read_bytes())
    words = -(-told["parts"][0][1] // 64) * 8
    taken = base64.b64decode(told["taken"])[:words]
    body = {"parts": [told["parts"][0]] * 2, "taken": base64.b64encode(2 * taken).decode()}
    file.write_text(json.dumps({**body, "checksum": zlib.crc32(json.dumps(body, sort_keys=True).encode())}))
    go_on(path)
    assert begun(path) == []
    assert resumed == []


def test_a_merge_that_fails_leaves_nothing(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "i.velo"
    with velo.open(grown, threads=1) as index:
        index.snapshot(path)
    monkeypatch.setattr(segment_builder, "_RESUMED_ROWS", 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build, "build_shard", full)
    with velo.open(path, writable=True, threads=1) as index, pytest.raises(velo.errors.NoSpaceError):
        index.optimize()
    assert begun(path) == []
