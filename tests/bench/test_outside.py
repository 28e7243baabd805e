"""``bench outside``: the sets that it writes, and their runners over velo's adapters.

The runners are other projects: ``VELO_OUTSIDE`` names a folder with their checkouts, by the names of their
repositories, and ``VELO_OUTSIDE_PYTHON`` an interpreter that has what they and velo need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.commands import outside
from bench.harness import datasets
from bench.harness.datasets import Dataset, nearest
from velo.formats import read_truth

N, DIM, QUERIES = 3_000, 16, 40
BOOK = {
    "max_pts": 100,
    1: {"operation": "insert", "start": 0, "end": 60},
    2: {"operation": "search"},
    3: {"operation": "delete", "start": 20, "end": 40},
    4: {"operation": "insert", "start": 60, "end": 100},
    5: {"operation": "search"},
}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """A set as `sift100k` is laid out, with five words, which a row has one in three of."""
    random = np.random.default_rng(11)
    folder = tmp_path / "sift100k"
    folder.mkdir()
    base = random.integers(0, 255, size=(N, DIM)).astype(np.uint8)
    queries = random.integers(0, 255, size=(QUERIES, DIM)).astype(np.uint8)
    for name, rows in (("base", base), ("query", queries)):
        outside._bin(folder / f"{name}.u8bin", rows)
    ids = nearest(base, queries, 100, "l2")
    distances = datasets.exact_distances(base, queries, ids, "l2")
    outside._bin(folder / "truth.bin", ids.astype(np.int32), distances.astype(np.float32))
    words = [[f"w{word}" for word in range(5) if random.random() < 0.3] or None for _ in range(N)]
    pq.write_table(pa.table({"tags": pa.array(words, pa.list_(pa.string()))}), folder / "labels.parquet")
    asked = {"tag_a": ["w0"] * QUERIES, "tag_b": ["w1"] * (QUERIES - 1) + ["w2"]}
    pq.write_table(pa.table(asked), folder / "query_filters.parquet")
    return datasets.load(folder)


def neighbors_in(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Ids and distances of a truth as big-ann-benchmarks has it, whatever its suffix."""
    rows, k = np.fromfile(path, np.uint32, 2)
    ids = np.fromfile(path, np.int32, rows * k, offset=8).reshape(rows, k)
    return ids, np.fromfile(path, np.float32, offset=8 + ids.nbytes).reshape(rows, k)


def test_truths_of_filters_are_the_nearest_that_have_both_words(dataset: Dataset, tmp_path: Path) -> None:
    outside._write_filters(tmp_path / "out", dataset)
    truth = read_truth(tmp_path / "out" / "truth.bin")
    assert dataset.labels is not None
    words = [set(row or ()) for row in pq.read_table(dataset.labels)["tags"].to_pylist()]
    distances = datasets.exact_distances(
        dataset.base, dataset.queries, np.tile(np.arange(N), (QUERIES, 1)), "l2"
    )
    assert len(truth.ids) == QUERIES
    for query, ids in enumerate(truth.ids):
        both = {"w0", "w1" if query < QUERIES - 1 else "w2"}
        passes = np.array([both <= row for row in words])
        expected = np.sort(np.where(passes, distances[query], np.inf))[:10]
        assert passes[ids].all()
        np.testing.assert_array_equal(distances[query][ids], expected)
    rows, count, filled = np.fromfile(tmp_path / "out" / "base.spmat", np.int64, 3)
    assert (rows, count, filled) == (N, 5, sum(map(len, words)))


def test_truths_of_a_runbook_hold_rows_that_live(dataset: Dataset, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    books = tmp_path / "neurips23" / "runbooks"
    books.mkdir(parents=True)
    (books / outside.RUNBOOK).write_text(yaml.safe_dump({outside.RUNBOOK_SET: BOOK}))
    outside._write_runbook(tmp_path, dataset)
    folder = tmp_path / "data" / "sift100k-clustered"
    base = datasets.read_u8bin(folder / "base.u8bin")
    assert sorted(map(bytes, base)) == sorted(map(bytes, dataset.base))
    alive = np.arange(N)
    alive = alive[(alive < 600) | (alive >= 1200)]
    ids, distances = neighbors_in(folder / str(N) / outside.RUNBOOK / "step5.gt100")
    near = alive[nearest(base[alive], dataset.queries, 100, "l2")]
    expected = datasets.exact_distances(base, dataset.queries, near, "l2")
    np.testing.assert_array_equal(distances, expected)
    assert np.isin(ids, alive).all()
    told = yaml.safe_load((books / outside.RUNBOOK).read_text())["sift100k-clustered"]
    assert told["max_pts"] == 2_400
    assert told[3] == {"operation": "delete", "start": 600, "end": 1200}


def test_what_is_told_is_told_once_and_a_list_that_has_changed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "list.py"
    file.write_text("a\nb\n")
    for _ in range(2):
        outside.told(file, "b\n", "velo\n")
        outside.told(file, "", "end\n")
    assert file.read_text() == "a\nvelo\nb\nend\n"
    with pytest.raises(datasets.DataError, match="0 times 'c'"):
        outside.told(file, "c\n", "more\n")


COMMANDS = {
    "ann-benchmarks": [
        "run.py --local --definitions compared --algorithm velo --runs 1 --timeout -1 "
        "--dataset sift100k-128-euclidean",
        "data_export.py --output res.csv",
    ],
    "VectorDBBench": [
        "-m vectordb_bench.cli.vectordbbench velo --case-type PerformanceCustomDataset --custom-case-name a "
        "--custom-dataset-name sift100k --custom-dataset-dir l2 --custom-dataset-file-count 1 "
        f"--custom-dataset-size {N} --custom-dataset-dim {DIM} --custom-dataset-metric-type L2 --k 10 "
        "--num-concurrency 1,2 --concurrency-duration 1 --path data/velo --memory 16MiB --recall 0.95",
    ],
    "big-ann-benchmarks": [
        "run.py --nodocker --neurips23track filter --algorithm velo --dataset sift100k-filter --runs 1",
        "run.py --nodocker --neurips23track streaming --algorithm velo --dataset sift100k-clustered "
        f"--runbook_path neurips23/runbooks/{outside.RUNBOOK}",
    ],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_their_runner_finds_the_neighbors(name: str, dataset: Dataset, tmp_path: Path) -> None:
    home, python = os.environ.get("VELO_OUTSIDE"), os.environ.get("VELO_OUTSIDE_PYTHON")
    if not home or not python:
        pytest.skip("VELO_OUTSIDE and VELO_OUTSIDE_PYTHON name no checkouts")
    checkout = tmp_path / name
    shutil.copytree(Path(home) / name, checkout, ignore=shutil.ignore_patterns("data", "results", "*.csv"))
    outside.place(checkout, dataset)
    env = {**os.environ, "DATASET_LOCAL_DIR": "data", "RESULTS_LOCAL_DIR": "results"}
    for command in COMMANDS[name]:
        before = set(checkout.glob("results/**/*"))
        for _ in range(5):  # a worker of theirs may look into its queue before the run is in it
            done = subprocess.run(
                [python, *command.split()],
                cwd=checkout,
                env=env,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if command.startswith("data_export") or set(checkout.glob("results/**/*")) > before:
                break
        assert done.returncode == 0, done.stdout
    if name != "big-ann-benchmarks":
        rows = outside.project_of(checkout).rows(checkout)
        assert max(row["recall@10"] for row in rows) > 0.9, rows
        return
    h5py = pytest.importorskip("h5py")  # their export takes minutes: it looks through all of their sets
    filtered = sorted(checkout.glob("results/neurips23/filter/**/*_0_99.hdf5"))
    with h5py.File(filtered[0]) as file:
        found = np.asarray(file["neighbors"])
    expected = read_truth(checkout / "data" / "sift100k-filter" / "truth.bin").ids
    assert share(found, expected) > 0.9
    (streamed,) = checkout.glob("results/neurips23/streaming/**/*.hdf5")
    with h5py.File(streamed) as file:
        steps = [key for key in file if key.startswith("neighbors_step")]
        assert len(steps) > 10
        for key in steps:
            number = key.removeprefix("neighbors_step")
            truths = checkout / "data" / "sift100k-clustered" / str(N) / outside.RUNBOOK
            expected = neighbors_in(truths / f"step{number}.gt100")[0][:, :10]
            assert share(np.asarray(file[key]), expected) > 0.85, key


def share(found: np.ndarray, expected: np.ndarray) -> float:
    hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), expected.tolist(), strict=True)]
    return sum(hits) / expected.size
