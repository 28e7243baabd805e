"""A killed build goes on where it was: the same bytes, or none that open."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests import child
from tests.long import count
from velo import errors
from velo.building.build import build_shard
from velo.formats.files import as_source
from velo.options import BuildOptions
from velo.testing import brute_force, recall_at_k, synthetic_vectors

N, DIM = 3000, 24

#: Each turn kills a child at a cut point, may damage what it left, and builds again in the parent.
PROGRAM = """
    import json, os, signal, sys, time
    from pathlib import Path
    import numpy as np
    from velo.building.build import build_shard
    from velo.formats.files import as_source
    from velo.options import BuildOptions
    from velo.testing import synthetic_vectors

    module = sys.modules["velo.building.build"]
    module._POLL_SECONDS = 0.0005
    folder, threads, turns = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    module.chunk_rows = lambda row_bytes: 250  # many chunks: many places to be killed in
    source = as_source(synthetic_vectors(3000, 24, seed=5))
    metadata = {"a": list(range(3000))}
    options = BuildOptions(
        degree=16,
        links_kept=16,
        build_list_size=40,
        threads=threads,
        store_vectors=True,
        page_codes=True,
        checkpoint_s=0.001,
    )

    def killed_at(path, cut):
        child = os.fork()
        if child:
            return os.WIFSIGNALED(os.waitpid(child, 0)[1])
        if "after_s" in cut:
            signal.setitimer(signal.ITIMER_REAL, cut["after_s"])  # SIGALRM ends a process like SIGKILL
        stages = ["scan", "encode", "graph", "place", "write", "commit"]
        def watch(stage, done, total):
            # Who looks now and then may find a short stage over.
            if "stage" in cut and stage in stages:
                late = stages.index(stage) - stages.index(cut["stage"])
                if late > 0 or late == 0 and done >= cut["share"] * total:
                    os.kill(os.getpid(), signal.SIGKILL)
        try:
            build_shard(
                path, source, options, metadata=metadata, watch=watch, build_memory=cut.get("build_memory")
            )
        finally:
            os._exit(0)

    def damage(path, name, seed):
        random = np.random.default_rng(seed)
        content = bytearray((path / name).read_bytes())
        at = int(random.integers(len(content)))
        content[at] ^= 1 << int(random.integers(8))
        (path / name).write_bytes(bytes(content))

    for number, cut in enumerate(turns):
        path = folder / f"i{number}"
        told = {"killed": killed_at(path, cut), "left": sorted(os.listdir(path)) if path.exists() else []}
        told["opens"] = "manifest.json" in told["left"]
        if told["opens"]:
            print(json.dumps(told), flush=True)
            continue
        for name in cut.get("damage", []):
            if name in told["left"]:
                damage(path, name, cut["seed"])
        resumed = []
        build_shard(
            path,
            source,
            options,
            metadata=metadata,
            resumed=lambda *where: resumed.append(where),
            build_memory=cut.get("then", cut.get("build_memory")),
        )
        told["resumed"] = resumed
        print(json.dumps(told), flush=True)
    """


def killed_and_resumed(folder: Path, threads: int, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    done = child.run(PROGRAM, folder, threads, json.dumps(turns))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows() -> np.ndarray:
    return synthetic_vectors(N, DIM, seed=5)


def options(threads: int = 1, **other: Any) -> BuildOptions:
    chosen = {"degree": 16, "links_kept": 16, "build_list_size": 40, "store_vectors": True} | other
    return BuildOptions(threads=threads, **chosen)


def contents(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an undisturbed build."""
    path = tmp_path_factory.mktemp("whole") / "i"
    build_shard(path, as_source(rows()), options(page_codes=True), metadata={"a": list(range(N))})
    return contents(path)


def some_of(
    kinds: list[tuple[int, list[dict[str, Any]]]], random: np.random.Generator
) -> list[dict[str, Any]]:
    """Of every kind of turns all, or so many in a short run."""
    return [
        kind[at]
        for few, kind in kinds
        for at in sorted(random.choice(len(kind), count(few, len(kind)), replace=False))
    ]


STAGES = ["scan", "encode", "graph", "place", "write", "commit"]


def test_a_build_killed_at_any_stage_resumes_to_the_same_index(
    whole: dict[str, bytes], tmp_path: Path
) -> None:
    turns = [
        {"stage": stage, "share": share}
        for stage, shares in {
            "scan": [0.5],
            "encode": [0.3, 1.0],
            "graph": [0.1, 0.5, 0.9],
            "place": [0.0],
            "write": [0.0, 0.5],
            "commit": [0.0],
        }.items()
        for share in shares
    ][count(1, 0) :: count(2, 1)]
    for number, (cut, told) in enumerate(zip(turns, killed_and_resumed(tmp_path, 1, turns), strict=True)):
        assert told["killed"], cut
        assert not told["opens"], cut
        assert contents(tmp_path / f"i{number}") == whole, cut
        if cut["stage"] == "scan":
            assert told["resumed"] == []
            continue
        [[stage, done, total]] = told["resumed"]
        assert total == N
        assert STAGES.index(stage) >= STAGES.index(cut["stage"]) - 1, (cut, told)
        if cut == {"stage": "encode", "share": 0.3}:
            assert (stage, done >= 500) == ("encode", True)
        if cut == {"stage": "graph", "share": 0.9}:
            assert (stage, done > 0) == ("graph", True)
        if cut["stage"] == "commit":
            assert stage == "commit"


def test_a_build_killed_at_any_time_resumes_to_the_same_index(
    whole: dict[str, bytes], random: np.random.Generator, tmp_path: Path
) -> None:
    """Also while a checkpoint is being written, or the manifest."""
    turns: list[dict[str, Any]] = [
        {"after_s": float(random.uniform(0.001, 0.7))} for _ in range(count(3, 12))
    ]
    told = killed_and_resumed(tmp_path, 1, turns)
    assert any(one["killed"] for one in told)
    for number, (turn, one) in enumerate(zip(turns, told, strict=True)):
        found = contents(tmp_path / f"i{number}")
        # Killed after the commit it is an index; what its calibration adds to the manifest may be missing,
        # and work that was no longer needed may not have been removed yet.
        compared = whole.keys() - {"manifest.json"} if one["opens"] else whole.keys()
        more = (
            {name for name in found if name == "building" or name.endswith(".work")}
            if one["opens"]
            else set()
        )
        assert found.keys() - more == whole.keys(), (turn, one)
        assert {name: found[name] for name in compared} == {name: whole[name] for name in compared}, (
            turn,
            one,
        )


WORK_FILES = ["encode.work", "codes.work", "points.work", "vectors.work", "graph.work", "placement.work"]


def test_damaged_work_files_are_built_again(
    whole: dict[str, bytes], random: np.random.Generator, tmp_path: Path
) -> None:
    def damaged(stage: str, share: float, *names: str) -> list[dict[str, Any]]:
        seed = int(random.integers(1 << 32))
        return [{"stage": stage, "share": share, "damage": [name], "seed": seed} for name in names]

    turns = some_of(
        [
            (1, damaged("graph", 0.7, *WORK_FILES[:5])),
            (1, damaged("write", 0.3, *WORK_FILES)),
            (1, damaged("commit", 0.0, "written.work", "placement.work", "encode.work")),
            (1, damaged("commit", 0.0, "pages.bin", "codes.bin")),
        ],
        random,
    )
    print(turns)
    for number, (cut, told) in enumerate(zip(turns, killed_and_resumed(tmp_path, 1, turns), strict=True)):
        assert told["killed"], cut
        assert contents(tmp_path / f"i{number}") == whole, (cut, told)


def test_a_killed_partitioned_build_resumes_to_the_same_index(
    whole: dict[str, bytes], random: np.random.Generator, tmp_path: Path
) -> None:
    budget = "25%"
    build_shard(
        tmp_path / "apart",
        as_source(rows()),
        options(page_codes=True),
        metadata={"a": list(range(N))},
        build_memory=budget,
    )
    apart = contents(tmp_path / "apart")
    assert apart != whole
    cuts = [("encode", 0.3), ("graph", 0.1), ("graph", 0.5), ("graph", 0.9), ("place", 0.0), ("write", 0.4)]
    killed: list[dict[str, Any]] = [
        {"stage": stage, "share": share, "build_memory": budget} for stage, share in [*cuts, ("commit", 0.0)]
    ]
    seed = int(random.integers(1 << 32))
    print(seed)
    damaged: list[dict[str, Any]] = [
        {"stage": "graph", "share": 0.7, "build_memory": budget, "damage": [name], "seed": seed}
        for name in ("parts.work", "partitions.work", "points.work")
    ]
    # With another budget it is the build of that budget.
    others: list[dict[str, Any]] = [
        {"stage": "graph", "share": 0.7, "build_memory": budget, "then": None},
        {"stage": "write", "share": 0.3, "build_memory": budget, "then": None},
        {"stage": "write", "share": 0.3, "build_memory": None, "then": budget},
    ]
    turns = some_of([(2, killed), (1, damaged), (1, others)], random)
    for number, (cut, told) in enumerate(zip(turns, killed_and_resumed(tmp_path, 1, turns), strict=True)):
        assert told["killed"], cut
        wanted = whole if cut.get("then", budget) is None else apart
        assert contents(tmp_path / f"i{number}") == wanted, (cut, told)
        if cut.get("damage") == ["points.work"]:
            assert told["resumed"] == []
            continue
        [[stage, done, total]] = told["resumed"]
        assert total == N
        if "damage" not in cut and "then" not in cut:
            assert STAGES.index(stage) >= STAGES.index(cut["stage"]) - 1, (cut, told)
            assert (cut["share"] == 0.9) <= (stage == "graph" and 0 < done < N), (cut, told)
        elif cut.get("damage") != ["parts.work"]:  # what is wrong there is noticed when it is read
            assert (stage, done) == ("graph", 0), (cut, told)


def test_another_sample_of_rows_encodes_anew(tmp_path: Path) -> None:
    """Codes go with the centers, which are made of as many rows as the memory of a build has room for."""

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "encode" and done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_shard(tmp_path / "i", as_source(rows()), options(), build_memory="25%", watch=interrupt)
    resumed: list[Any] = []
    build_shard(tmp_path / "i", as_source(rows()), options(), resumed=lambda *told: resumed.append(told))
    assert resumed == []
    build_shard(tmp_path / "whole", as_source(rows()), options())
    assert contents(tmp_path / "i") == contents(tmp_path / "whole")


def test_a_resumed_build_of_several_threads_keeps_the_recall(
    random: np.random.Generator, tmp_path: Path
) -> None:
    turns = [
        {"stage": stage, "share": float(random.uniform(0, 0.9))} for stage in ("encode", "graph", "write")
    ]
    told = killed_and_resumed(tmp_path, 2, turns)
    queries = synthetic_vectors(N + 100, DIM, seed=5)[N:]
    truth = brute_force(rows(), queries, 10)
    for number, one in enumerate(told):
        assert len(one["resumed"]) == 1
        with velo.open(tmp_path / f"i{number}") as index:
            index.verify()
            assert recall_at_k(index.search(queries, 10, list_size=100).ids, truth.ids) >= 0.97
            assert np.array_equal(index.get_vectors(np.arange(N)), rows())


def test_other_vectors_or_options_begin_anew(tmp_path: Path) -> None:
    cut = {"stage": "graph", "share": 0.5}
    changed = rows()
    changed[3, 3] += 1
    others = [
        (changed, options()),
        (rows(), options(degree=18)),
        (rows(), options(seed=1)),
        (rows(), options(2)),
    ]
    for number, (given, chosen) in enumerate(others[: count(2, 4)]):
        path = tmp_path / str(number)
        _leave_killed(path, cut)
        with pytest.raises(errors.NotAnIndexError):
            velo.open(path)
        resumed: list[Any] = []
        build_shard(path, as_source(given), chosen, resumed=lambda *where, told=resumed: told.append(where))
        assert resumed == []
        fresh = tmp_path / f"fresh-{number}"
        build_shard(fresh, as_source(given), chosen)
        assert sorted(contents(path)) == sorted(contents(fresh))
        if chosen.threads == 1:
            assert contents(path) == contents(fresh)
        else:
            with velo.open(path) as index:
                index.verify()


def test_without_resume_everything_begins_anew(tmp_path: Path) -> None:
    _leave_killed(tmp_path / "i", {"stage": "graph", "share": 0.5})
    resumed: list[Any] = []
    build_shard(
        tmp_path / "i",
        as_source(rows()),
        options(),
        resume=False,
        resumed=lambda *where: resumed.append(where),
    )
    assert resumed == []
    velo.open(tmp_path / "i").close()


def test_a_resumed_build_that_is_canceled_leaves_nothing(tmp_path: Path) -> None:
    _leave_killed(tmp_path / "i", {"stage": "graph", "share": 0.5})
    with pytest.raises(errors.CancelledError):
        build_shard(
            tmp_path / "i", as_source(rows()), options(), watch=lambda stage, done, total: stage == "scan"
        )
    assert os.listdir(tmp_path) == []


LEAVE = """
    import json, os, signal, sys
    from velo.building.build import build_shard
    from velo.formats.files import as_source
    from velo.options import BuildOptions
    from velo.testing import synthetic_vectors
    module = sys.modules["velo.building.build"]
    module._POLL_SECONDS = 0.0005
    cut = json.loads(sys.argv[2])
    def watch(stage, done, total):
        if stage == cut["stage"] and done >= cut["share"] * total:
            if cut.get("wait"):
                print("here", flush=True)
                sys.stdin.read()
            os.kill(os.getpid(), signal.SIGKILL)
    options = BuildOptions(
        degree=16, links_kept=16, build_list_size=40, threads=1, store_vectors=True, checkpoint_s=0.001
    )
    build_shard(
        sys.argv[1], as_source(synthetic_vectors(3000, 24, seed=5)), options,
        overwrite=cut.get("overwrite", False), watch=watch,
    )
    """


def _start(path: Path, cut: dict[str, Any]) -> subprocess.Popen[str]:
    return child.start(LEAVE, path, json.dumps(cut), stdin=subprocess.PIPE)


def _leave_killed(path: Path, cut: dict[str, Any]) -> None:
    with _start(path, cut) as process:
        process.communicate(timeout=120)
    assert process.returncode == -9


@pytest.mark.parametrize("overwrite", [False, True])
def test_two_builds_never_share_a_folder(overwrite: bool, tmp_path: Path) -> None:
    if overwrite:
        build_shard(tmp_path / "i", as_source(rows()[:300]), options())
    with _start(
        tmp_path / "i", {"stage": "graph", "share": 0.2, "wait": True, "overwrite": overwrite}
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        with pytest.raises(errors.IndexExistsError, match="another build is at work"):
            build_shard(tmp_path / "i", as_source(rows()), options(), overwrite=overwrite)
        other.communicate("", timeout=60)  # it kills itself, and its lock is gone
    resumed: list[Any] = []
    build_shard(
        tmp_path / "i",
        as_source(rows()),
        options(),
        overwrite=overwrite,
        resumed=lambda *where: resumed.append(where),
    )
    # The other one went on while it was asked to wait, as far as the native segment goes by itself.
    assert len(resumed) == 1
    assert resumed[0][0] in ("graph", "place", "write", "commit")
    assert os.listdir(tmp_path) == ["i"]
    with velo.open(tmp_path / "i") as index:
        assert len(index) == N
        index.verify()


def test_the_command_says_that_it_resumes(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from velo.cli.app import app

    np.save(tmp_path / "v.npy", rows())
    _leave_killed(tmp_path / "i", {"stage": "graph", "share": 0.5})
    arguments = [
        "build",
        str(tmp_path / "v.npy"),
        str(tmp_path / "i"),
        "--degree",
        "16",
        "--links-kept",
        "16",
    ]
    arguments += ["--build-list-size", "40", "--threads", "1", "--store-vectors"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0, told.output
    assert "resuming an unfinished build of the same vectors: stage graph" in told.output
