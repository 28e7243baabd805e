"""Builds that are interrupted, killed at their last steps, or refused something by the system."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from velo import errors
from velo.building.build import build_shard
from velo.formats.files import as_source
from velo.options import BuildOptions, sizes_of
from velo.testing import synthetic_vectors

N, DIM = 3_000, 24
Run = Callable[..., Any]

#: Builds in the folder of its first argument, and sends itself a signal where the second one says.
PROGRAM = """
    import os, signal, sys
    from pathlib import Path
    from velo.building.build import build_shard
    from velo.building.collection import build_shards
    from velo.formats.files import as_source
    from velo.options import BuildOptions
    from velo.testing import synthetic_vectors

    import velo.building.build as building

    building._POLL_SECONDS = 0.001  # a stage of few rows is over soon
    path, stage = Path(sys.argv[1]), sys.argv[2]
    number, overwrite, shards = map(int, sys.argv[3:])
    options = BuildOptions(degree=16, build_list_size=40, threads=1, store_vectors=True, checkpoint_s=0.001)
    def watch(at, done, total):
        if at == stage and done > 0:
            os.kill(os.getpid(), number)
    if stage == "swap":
        before = os.rename
        def rename(a, b):
            before(a, b)
            os.kill(os.getpid(), number)  # after the first of two
        os.rename = rename
    source = as_source(synthetic_vectors(3_000, 24, seed=5))
    try:
        if shards:
            watch_of = lambda *_: watch
            build_shards(path, source, options, shards=shards, overwrite=bool(overwrite), watch_of=watch_of)
        else:
            metadata = {"a": list(range(3_000))}
            build_shard(path, source, options, metadata=metadata, overwrite=bool(overwrite), watch=watch)
    except KeyboardInterrupt as interrupt:
        print(interrupt)
    """


def rows(seed: int = 5) -> np.ndarray:
    return synthetic_vectors(N, DIM, seed=seed)


def again(path: Path, overwrite: bool = False, seed: int = 5, **other: Any) -> list[tuple[str, int, int]]:
    """The same call; says where it went on."""
    resumed: list[tuple[str, int, int]] = []
    options = BuildOptions(
        **({"degree": 16, "build_list_size": 40, "threads": 1, "store_vectors": True} | other)
    )
    build_shard(
        path,
        as_source(rows(seed)),
        options,
        metadata={"a": list(range(N))},
        overwrite=overwrite,
        resumed=lambda *where: resumed.append(where),
    )
    return resumed


def contents(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "i"
    assert again(path) == []
    return path


@pytest.mark.parametrize(
    "stage",
    [
        "encode",
        "calibrate",
        *(
            pytest.param(
                stage,
                marks=pytest.mark.long(
                    guarded_by="tests/building/test_interruptions.py::test_an_interrupted_build_keeps_its_work_and_resumes"
                ),
            )
            for stage in ("scan", "graph", "commit")
        ),
    ],
)
def test_an_interrupted_build_keeps_its_work_and_resumes(
    stage: str, whole: Path, tmp_path: Path, run_python: Run
) -> None:
    path = tmp_path / "i"
    done = run_python(PROGRAM, path, stage, int(signal.SIGINT), 0, 0)
    assert done.returncode == 0, done.stderr
    assert f"stays in {path}; the same call goes on from there" in done.stdout
    assert (path / "building").exists()
    if stage not in ("commit", "calibrate"):
        with pytest.raises(errors.NotAnIndexError):
            velo.open(path)
    resumed = again(path)
    assert bool(resumed) == (stage != "scan"), "the work of a stage was used, or there was none"
    assert contents(path) == contents(whole)
    assert [entry.name for entry in tmp_path.iterdir()] == ["i"]


def test_killed_after_the_manifest_the_same_call_finishes_it(
    whole: Path, tmp_path: Path, run_python: Run
) -> None:
    path = tmp_path / "i"
    run_python(PROGRAM, path, "calibrate", int(signal.SIGKILL), 0, 0)
    with velo.open(path, threads=1) as index:
        index.verify()
    assert json.loads((path / "manifest.json").read_bytes()).get("calibration") is None
    before = contents(path)
    # Of other vectors or options it is another index: nothing of it is touched.
    for other in ({"seed": 6}, {"build_list_size": 41}):
        with pytest.raises(errors.IndexExistsError, match="already holds an index"):
            again(path, **other)  # type: ignore[arg-type]
        assert contents(path) == before
    assert [stage for stage, _, _ in again(path)] == ["commit"]
    assert contents(path) == contents(whole)
    with pytest.raises(errors.IndexExistsError):
        again(path)


def test_a_cleaned_index_is_not_built_again(whole: Path, tmp_path: Path, run_python: Run) -> None:
    path = tmp_path / "i"
    run_python(PROGRAM, path, "calibrate", int(signal.SIGKILL), 0, 0)
    assert {"building", "encode.work", "written.work"} <= set(contents(path))
    told = run_python("import velo.cli; velo.cli.main()", "verify", path, "--clean", "--json")
    assert told.returncode == 0, told.stderr
    assert "building" in json.loads(told.stdout)["removed"]
    assert set(contents(path)) == set(contents(whole))
    with pytest.raises(errors.IndexExistsError):
        again(path)


@pytest.mark.parametrize(
    ("stage", "next_call"),
    [
        pytest.param(
            stage,
            next_call,
            marks=[]
            if (stage, next_call) in (("graph", "overwrite"), ("calibrate", "clean"), ("swap", "plain"))
            else [
                pytest.mark.long(
                    guarded_by="tests/building/test_interruptions.py::test_leftovers_of_a_killed_overwrite_are_resumed_or_removed"
                )
            ],
        )
        for stage in ("graph", "calibrate", "swap")
        for next_call in ("overwrite", "plain", "clean")
    ],
)
def test_leftovers_of_a_killed_overwrite_are_resumed_or_removed(
    stage: str, next_call: str, whole: Path, tmp_path: Path, run_python: Run
) -> None:
    path = tmp_path / "i"
    shutil.copytree(whole, path)
    before = contents(path)
    assert run_python(PROGRAM, path, stage, int(signal.SIGKILL), 1, 0).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) > 1, "it was killed while it worked"
    if next_call == "overwrite":
        resumed = again(path, overwrite=True)
        assert bool(resumed) == (stage != "swap"), "after the swap began nothing is known of the vectors"
    elif next_call == "plain":
        with pytest.raises(errors.IndexExistsError):
            again(path)
        assert contents(path) == before, "the files differ from those before"
        again(path, overwrite=True)
    else:
        told = run_python("import velo.cli; velo.cli.main()", "verify", path, "--clean")
        assert told.returncode == 0, told.stderr
        assert contents(path) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["i"]
    with velo.open(path, threads=1) as index:
        assert index.n == N


@pytest.mark.parametrize(
    "stage",
    [
        "swap",
        pytest.param(
            "graph",
            marks=pytest.mark.long(
                guarded_by="tests/building/test_interruptions.py::test_leftovers_of_a_killed_overwrite_are_resumed_or_removed"
            ),
        ),
    ],
)
def test_leftovers_of_a_killed_overwrite_of_a_collection_are_resumed(
    stage: str, tmp_path: Path, run_python: Run
) -> None:
    path = tmp_path / "c"
    velo.build_collection(path, rows(), shards=2, degree=16, threads=1, calibrate=False)
    assert run_python(PROGRAM, path, stage, int(signal.SIGKILL), 1, 2).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) > 1, "it was killed while it worked"
    told = run_python("import velo.cli; velo.cli.main()", "verify", path)
    if stage == "swap":
        assert told.returncode == 1, "between two renames it is not there"
    velo.build_collection(path, rows(), shards=2, degree=16, threads=1, calibrate=False, overwrite=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]
    assert run_python("import velo.cli; velo.cli.main()", "verify", path).returncode == 0


def test_a_living_build_is_not_cleaned_away(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "i"
    shutil.copytree(whole, path)
    seen = []

    def watch(stage: str, done: int, total: int) -> bool:
        from velo.folder.replace import clean_folder

        if stage == "graph" and not seen:
            pid = os.fork()
            if pid == 0:
                os._exit(len(clean_folder(path)))
            seen.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return True

    build_shard(path, as_source(rows()), BuildOptions(degree=16, threads=1), overwrite=True, watch=watch)
    assert seen == [0]


# ---- what the system refuses


def test_without_threads_a_build_ends_with_a_typed_error(tmp_path: Path, run_python: Run) -> None:
    """As under RLIMIT_NPROC or RLIMIT_AS; the limit itself is not kept for root, so the call fails."""
    done = run_python(
        """
        import _thread, sys
        import velo
        from velo.testing import synthetic_vectors

        def start(*_):
            raise RuntimeError("can't start new thread")

        _thread.start_new_thread = start
        try:
            velo.build(sys.argv[1], synthetic_vectors(500, 8), degree=8)
        except velo.errors.DeviceError as error:
            print(error)
        """,
        tmp_path / "i",
    )
    assert "the system gave no thread" in done.stdout, done.stderr
    assert not (tmp_path / "i").exists()


def test_out_of_file_descriptors_a_good_index_is_not_called_corrupt(whole: Path, run_python: Run) -> None:
    """With every number of descriptors from none on, an open works or says what is missing."""
    done = run_python(
        """
        import os, resource, sys
        import velo

        velo.open(sys.argv[1], threads=1).close()
        velo.verify(sys.argv[1])
        used = len(os.listdir("/proc/self/fd"))
        told = set()
        for spare in range(0, 24):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, 4096))
            for io in ("threads", "auto"):
                try:
                    with velo.open(sys.argv[1], threads=1, io=io) as index:
                        index.search([0.0] * index.dim)
                    told.add("answered")
                except velo.errors.VeloError as error:
                    told.add(f"{type(error).__name__}: {error}")
            try:
                velo.verify(sys.argv[1])
            except velo.errors.VeloError as error:
                told.add(f"{type(error).__name__}: {error}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        print("\\n".join(sorted(told)))
        """,
        whole,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert "answered" in told
    refused = [line for line in told if line != "answered"]
    assert refused
    assert all(line.startswith("DeviceError: ") for line in refused), refused
    assert any("file descriptors" in line or "ulimit -n" in line for line in refused), refused


# ---- budgets


@pytest.mark.parametrize("shards", [0, 2])
def test_an_index_that_would_not_open_in_its_budget_is_not_built(shards: int, tmp_path: Path) -> None:
    vectors = synthetic_vectors(2_000, 128)
    build: Any = velo.build_collection if shards else velo.build
    more = {"shards": shards} if shards else {}
    with pytest.raises(errors.BudgetTooSmallError) as caught:
        build(tmp_path / "i", vectors, search_memory=5_120, degree=16, **more)
    assert caught.value.argument == "search_memory"
    least = sizes_of(2_000, 128)
    assert caught.value.needed_bytes == min(least.codes_least_bytes, least.page_codes_least_bytes)
    assert not (tmp_path / "i").exists()
    with pytest.raises(errors.BudgetTooSmallError) as tuned:
        velo.tune(vectors, memory="4%")
    assert tuned.value.needed_bytes == sizes_of(2_000, 128).codes_least_bytes
    # What the error names is enough to build, and to open what was built.
    if not shards:
        needed = caught.value.needed_bytes
        velo.build(tmp_path / "i", vectors, search_memory=needed, degree=16, calibrate=False).close()
        with velo.open(tmp_path / "i", memory=needed, threads=1) as index:
            assert index.search(vectors[3], k=1).ids.tolist() == [3]


def test_an_index_without_links_for_memory_is_searched_on_disk(tmp_path: Path) -> None:
    vectors = synthetic_vectors(4_000, 32)
    with velo.build(tmp_path / "i", vectors, links_kept=0, degree=24, threads=2) as index:
        assert index.info()["plan"] == "links_on_disk"
        found = index.search(vectors[:300], k=1, recall=0.95)
        assert found.expected.recall >= 0.9
        assert (found.ids[:, 0] == np.arange(300)).mean() >= 0.95
        index.verify()
    with pytest.raises(errors.UnsupportedError, match="without links for memory"):
        velo.open(tmp_path / "i", plan="links_in_memory")
    with pytest.raises(errors.InvalidArgumentError) as caught:
        velo.build(tmp_path / "j", vectors, links_kept=0, page_links=False)
    assert caught.value.argument == "links_kept"


def test_info_separates_memory_within_and_beside_the_budget(whole: Path) -> None:
    with velo.open(whole, memory="60%", threads=2) as index:
        info = index.info()
    segments = info["memory_bytes"]
    assert info["memory_within_budget_bytes"] == sum(
        segments[name] for name in ("codes", "links", "cache", "pages")
    )
    assert info["memory_within_budget_bytes"] <= info["memory_budget_bytes"]
    assert info["memory_beside_budget_bytes"] == segments["workers"] + segments["filters"]
    assert info["memory_bytes_total"] == (
        info["memory_within_budget_bytes"] + info["memory_beside_budget_bytes"]
    )
