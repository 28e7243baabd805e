"""Builds that do not fit their memory go by partitions, and find what a build in one piece finds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.long import count
from velo import errors
from velo.testing import brute_force, recall_at_k, synthetic_vectors
from velo.types import MetricName

N, DIM = 4000, 24
QUICK: dict[str, Any] = {"degree": 16, "links_kept": 16, "build_list_size": 40, "calibrate": False}


def contents(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in path.iterdir()}


@pytest.mark.parametrize("metric", ["l2", "ip", "cosine"])
def test_a_quarter_of_the_vectors_is_enough(metric: MetricName, tmp_path: Path) -> None:
    rows = synthetic_vectors(N + 200, DIM, seed=5)
    rows, queries = rows[:N], rows[N:]
    truth = brute_force(rows, queries, 10, metric=metric)
    recalls = {}
    for name, budget in {"whole": None, "apart": "25%"}.items():
        told: list[int] = []
        with velo.build(
            tmp_path / name,
            rows,
            metric=metric,
            build_memory=budget,
            threads=1,
            store_vectors=True,
            progress=lambda done, _total, told=told: told.append(done),
            **QUICK,
        ) as index:
            index.verify()
            assert np.array_equal(index.get_vectors(np.arange(N)), rows)
            found = {
                plan: index.search(queries, 10, list_size=30)
                for plan in ("links_in_memory", "links_on_disk")
                if index.info()["plan"] == plan
            }
        with velo.open(tmp_path / name, plan="links_on_disk") as index:
            found["links_on_disk"] = index.search(queries, 10, list_size=30)
        recalls[name] = {plan: recall_at_k(result.ids, truth.ids) for plan, result in found.items()}
        assert told == sorted(told)
        assert told[-1] == N
        assert sorted(entry.name for entry in (tmp_path / name).iterdir()) == sorted(
            [
                "codes.bin",
                "ids.arrow",
                "links.bin",
                "manifest.json",
                "page_starts.bin",
                "pages.bin",
                "vectors.bin",
            ]
        )
    assert contents(tmp_path / "apart")["links.bin"] != contents(tmp_path / "whole")["links.bin"]
    assert len(recalls["whole"]) == 2
    for plan, recall in recalls["whole"].items():
        assert recalls["apart"][plan] >= recall - 0.02, (plan, recalls)


def test_partitioned_builds_are_reproducible_with_one_thread(tmp_path: Path) -> None:
    rows = synthetic_vectors(N, DIM, seed=5)
    for name in ("a", "b"):
        velo.build(tmp_path / name, rows, build_memory="25%", threads=1, **QUICK).close()
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    truth = brute_force(rows, rows[:200], 10)
    with velo.build(tmp_path / "c", rows, build_memory="25%", threads=3, **QUICK) as index:
        index.verify()
        assert recall_at_k(index.search(rows[:200], 10, list_size=60).ids, truth.ids) >= 0.97


def test_equal_vectors(tmp_path: Path) -> None:
    rows = np.full((N, DIM), 0.5, np.float32)
    rows[::7] = -3.0
    with velo.build(tmp_path / "i", rows, build_memory="25%", **QUICK) as index:
        index.verify()
        result = index.search(rows[:14], 10, list_size=40)
        assert np.allclose(result.distances, 0, atol=1e-3)
        for ids, row in zip(result.ids, rows[:14], strict=True):
            assert len(set(ids.tolist())) == 10
            assert (rows[ids] == row).all()


@pytest.mark.parametrize("n", [1, 2, 30, 1024, 1025, 1500])
def test_few_vectors(n: int, tmp_path: Path) -> None:
    rows = synthetic_vectors(n, DIM, seed=5)
    with pytest.raises(errors.BudgetTooSmallError) as caught:
        velo.build(tmp_path / "i", rows, build_memory=1, **QUICK)
    needed = caught.value.needed_bytes
    assert needed is not None
    assert needed <= rows.nbytes // 4
    with velo.build(tmp_path / "i", rows, build_memory=needed, **QUICK) as index:
        index.verify()
        assert len(index) == n
        k = min(n, 10)
        truth = brute_force(rows, rows, k)
        assert recall_at_k(index.search(rows, k, list_size=60).ids, truth.ids) >= 0.95


def test_a_canceled_partitioned_build_leaves_nothing(tmp_path: Path) -> None:
    rows = synthetic_vectors(N, DIM, seed=5)
    for limit in (0.2, 0.5, 0.85):
        with pytest.raises(errors.CancelledError):
            velo.build(
                tmp_path / "i",
                rows,
                build_memory="25%",
                progress=lambda done, total, limit=limit: done < limit * total,
                **QUICK,
            )
        assert os.listdir(tmp_path) == []


PROGRAM = """
    import sys
    from pathlib import Path
    import numpy as np
    from velo.building.build import WarmStart, build_shard
    from velo.formats.files import as_source
    from velo.options import BuildOptions
    from velo.testing import synthetic_vectors

    def memory(name):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

    base, peak = 0, 0
    def watch(stage, done, total):
        global base, peak
        if stage == "encode":
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the peak from now on
            base = memory("VmRSS")
        elif stage == "commit":
            peak = peak or memory("VmHWM")

    options = BuildOptions(degree=120, links_kept=8, build_list_size=16, threads=2, calibrate=False)
    rows = as_source(synthetic_vectors(int(sys.argv[3]), 16, seed=5))
    warm_start = WarmStart(Path(sys.argv[4]), lambda: np.load(sys.argv[5])) if len(sys.argv) > 4 else None
    budget = int(sys.argv[2]) or None
    build_shard(sys.argv[1], rows, options, build_memory=budget, warm_start=warm_start, watch=watch)
    print(peak - base)
    """


def test_a_partitioned_build_stays_within_its_memory(tmp_path: Path, run_python: Any) -> None:
    """What partitions take, and some buffers; one piece takes more, and so do all lists of a former index."""
    n = count(12_000, 40_000)
    budget = 75 * n
    # Of the rows of a former index the first tenth is gone; the new one has others in their place.
    rows = synthetic_vectors(n, 16, seed=5)
    rows[: n // 10] = synthetic_vectors(n // 10, 16, seed=6)
    quick: dict[str, Any] = {"degree": 120, "links_kept": 8, "build_list_size": 16, "calibrate": False}
    velo.build(tmp_path / "former", rows, **quick).close()
    with velo.open(tmp_path / "former") as index:
        places = np.empty(n, np.uint32)
        places[index._seen().ids.vertices(np.arange(n))] = np.arange(n)
    places[places < n // 10] = np.iinfo(np.uint32).max
    np.save(tmp_path / "places.npy", places)
    grown = {}
    for name, limit, *warm_start in (
        ("whole", 0),
        ("apart", budget),
        ("on", budget, tmp_path / "former", tmp_path / "places.npy"),
    ):
        done = run_python(PROGRAM, tmp_path / name, limit, n, *warm_start)
        assert done.returncode == 0, done.stderr
        grown[name] = int(done.stdout)
        velo.verify(tmp_path / name)
    print(grown)
    buffers = count(4, 12) << 20
    assert max(grown["apart"], grown["on"]) < budget + buffers < grown["whole"], grown


WHOLE_PROGRAM = """
    import sys
    import numpy as np
    import velo

    def memory(name):
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

    rows = np.load(sys.argv[1], mmap_mode="r")
    budget = rows.nbytes // 4
    base = memory("VmRSS")
    quick = {"degree": 24, "links_kept": 24, "build_list_size": 24, "threads": 2}
    velo.build(sys.argv[2], rows, build_memory="25%", memory="25%", **quick).close()
    peak = memory("VmHWM")
    with velo.open(sys.argv[2]) as index:
        assert (index.search(rows[:5], k=1, recall=0.99).ids[:, 0] == range(5)).all()
    print(peak - base - budget, *[name for name in ("pandas", "pyarrow.parquet") if name in sys.modules])
    """


def test_a_whole_build_takes_a_quarter_of_the_vectors_and_64_mib(tmp_path: Path, run_python: Any) -> None:
    """Also for what Python brings along; pandas is not, even where it is installed."""
    np.save(tmp_path / "rows.npy", synthetic_vectors(count(15_000, 60_000), 64, seed=5))
    done = run_python(WHOLE_PROGRAM, tmp_path / "rows.npy", tmp_path / "i")
    assert done.returncode == 0, done.stderr
    beside, *imported = done.stdout.split()
    assert imported == []
    print(beside)
    assert int(beside) < 64 << 20


def test_partitions_without_links_in_pages(tmp_path: Path) -> None:
    rows = synthetic_vectors(N + 200, DIM, seed=6)
    rows, queries = rows[:N], rows[N:]
    truth = brute_force(rows, queries, 10)
    with velo.build(tmp_path / "x", rows, build_memory="25%", page_links=False, threads=1, **QUICK) as index:
        index.verify()
        assert not index.info()["page_links"]
        found = index.search(queries, 10, list_size=60)
    assert recall_at_k(found.ids, truth.ids) > 0.9
