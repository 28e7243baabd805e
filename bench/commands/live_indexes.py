"""Parts that the sections of ``bench live`` share: indexes built once and copied, searches, inserts.

An index of all rows and one of four fifths of them are built once, and copied by ``Index.snapshot`` for each
section, so that a section finds them as they were built.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import velo
from bench.harness import datasets
from bench.harness.datasets import Dataset, K
from bench.harness.sections import Context, Results

RECALL = 0.95
#: Of the rows, in the index that new ones come to.
KEPT = 0.8
#: No part can be made of a full delta with much less.
_MERGE_LEAST = 1 << 20
#: Points of a picture over time.
_STRETCHES = 400
_SAMPLE_S = 0.01
#: Longer than a merge that may have begun takes at sizes like these.
_REST_S = 10.0


class Growth:
    """The growth of the process's memory, sampled every 10 ms."""

    def __init__(self) -> None:
        self.times = array("d")
        self.sizes = array("q")
        self._began_s = time.perf_counter()
        self._began = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @staticmethod
    def _now() -> int:
        """Pages of the process's own: mapped files are the system's to drop."""
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def _look(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self.sizes.append(self._now() - self._began)
            self.times.append(time.perf_counter() - self._began_s)

    def result(self) -> Results:
        """Stop, and return the greatest size and the sizes over time."""
        self._stop.set()
        self._thread.join()
        over_time = stretches(self.times.tolist(), self.sizes.tolist(), max)
        return {"growth_bytes": max(self.sizes, default=0), "growth_over_time": over_time}


def bytes_written() -> int:
    """The bytes that this process gave to the system to write."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def share_of(context: Context, float32_bytes: int, option: str = "memory") -> int:
    """The budget in bytes of an index, given the bytes of its vectors as float32."""
    share = context.options.get(option) or context.options["memory"]
    return int(float(str(share).rstrip("%")) / 100 * float32_bytes)


def memory_of(context: Context, dataset: Dataset) -> int:
    return share_of(context, dataset.float32_bytes)


def merge_memory_of(context: Context, dataset: Dataset) -> int:
    return max(_MERGE_LEAST, share_of(context, dataset.float32_bytes, "merge_memory"))


def budgets_of(context: Context, dataset: Dataset) -> dict[str, Any]:
    memory, merges = memory_of(context, dataset), merge_memory_of(context, dataset)
    return {"memory": memory, "merge_memory": merges, "threads": context.threads}


def created(context: Context, dataset: Dataset, path: Path) -> velo.Index:
    """An index without any rows, for those of the set."""
    return velo.create(
        path,
        dim=dataset.dim,
        metric=cast(Any, dataset.metric),
        dtype=str(dataset.base.dtype),
        metadata=pa.schema([("bucket", pa.int8())]),
        durability="interval",
        **budgets_of(context, dataset),
    )


def some_of(dataset: Dataset, rows: Any) -> Any:
    """Some base vectors, in memory."""
    return np.asarray(dataset.base[rows])


def columns(ids: NDArray[np.int64]) -> dict[str, Any]:
    return {"bucket": (ids % 10).astype(np.int8)}


def folder_of(context: Context, dataset: Dataset) -> Path:
    folder = context.folder / "live" / f"{dataset.name}-{dataset.n}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def built(context: Context, dataset: Dataset, share: float) -> Path:
    """The index of the first rows, as it was built."""
    count = int(dataset.n * share)
    path = folder_of(context, dataset) / f"built-{count}.velo"
    if not (path / "manifest.json").is_file():
        fresh_build(context, dataset, np.arange(count), path)
    return path


def fresh_build(context: Context, dataset: Dataset, rows: NDArray[np.int64], path: Path) -> Path:
    """An index of these rows, which have their numbers as ids."""
    velo.build(
        path,
        some_of(dataset, rows),
        ids=rows,
        metadata=columns(rows),
        metric=cast(Any, dataset.metric),
        store_vectors=True,
        threads=context.threads,
    ).close()
    return path


@contextmanager
def work_folder(context: Context, dataset: Dataset, name: str) -> Iterator[Path]:
    """A folder of a section, gone afterwards."""
    path = folder_of(context, dataset) / f"work-{name}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def copy_of(source: Path, target: Path) -> Path:
    with velo.open(source, threads=1) as index:
        index.snapshot(target)
    return target


def opened(context: Context, dataset: Dataset, path: Path, durability: Any = "interval") -> velo.Index:
    index: velo.Index = velo.open(path, writable=True, durability=durability, **budgets_of(context, dataset))
    return index


@contextmanager
def writer(
    context: Context, dataset: Dataset, name: str, share: float, durability: Any = "interval"
) -> Iterator[tuple[Path, velo.Index]]:
    """A writer over a copy of the index of the first rows, in a folder of the section."""
    with work_folder(context, dataset, name) as work:
        path = copy_of(built(context, dataset, share), work / "a.velo")
        with opened(context, dataset, path, durability) as index:
            yield path, index


def stretches(
    times: Sequence[float], values: Sequence[float], of: Callable[[Sequence[float]], float]
) -> list[list[float]]:
    """Values over time for a picture: one of each stretch."""
    step = max(1, len(times) // _STRETCHES)
    return [
        [float(times[start]), float(of(values[start : start + step]))] for start in range(0, len(times), step)
    ]


class Truth:
    """The queries and how far their true neighbors among some rows are."""

    def __init__(self, context: Context, dataset: Dataset, rows: NDArray[np.int64]) -> None:
        self.dataset = dataset
        self.queries: Any = np.asarray(dataset.queries[: context.query_count])
        if len(rows) == dataset.n:
            near = dataset.truth_ids[: len(self.queries), :K]
        else:
            near = rows[datasets.nearest(some_of(dataset, rows), self.queries, K, dataset.metric)]
        self.bound = datasets.exact_distances(dataset.base, self.queries, near, dataset.metric).max(axis=1)

    def recall(self, ids: Any) -> float:
        counts = np.full(len(self.queries), K)
        return float(datasets.recall_within(self.dataset, self.queries, ids, self.bound, counts).mean())


def searched(context: Context, index: velo.Index, truth: Truth) -> Results:
    """Recall, reads and queries a second; in batches, and one at a time."""
    queries = truth.queries
    index.search(queries[: context.single_count], K, recall=RECALL)  # caches and pages of the library
    began = time.perf_counter()
    rounds = 0
    while rounds == 0 or time.perf_counter() - began < 1.0:
        found = index.search(queries, K, recall=RECALL)
        rounds += 1
    taken = (time.perf_counter() - began) / rounds
    alone = []
    for query in queries[: context.single_count]:
        start = time.perf_counter()
        index.search(query, K, recall=RECALL)
        alone.append(time.perf_counter() - start)
    return {
        "recall": truth.recall(found.ids),
        "reads": float(np.mean(found.stats["reads"])),
        "qps": len(queries) / taken,
        "alone_us": float(np.mean(alone)) * 1e6,
    }


def insert_all(
    index: velo.Index,
    dataset: Dataset,
    rows: NDArray[np.int64],
    batch: int,
    as_ids: NDArray[np.int64] | None = None,
) -> Results:
    """Rows go in, batch by batch: seconds, processor seconds, and the longest call."""
    ids = rows if as_ids is None else as_ids
    began, used = time.perf_counter(), time.process_time()
    longest = 0.0
    ends: list[float] = []
    for start in range(0, len(rows), batch):
        some = slice(start, start + batch)
        call = time.perf_counter()
        index.insert(some_of(dataset, rows[some]), ids[some], columns(ids[some]))
        ends.append(time.perf_counter())
        longest = max(longest, ends[-1] - call)
    given = np.minimum(np.arange(1, len(ends) + 1) * batch, len(rows))
    return {
        "rows": len(rows),
        "seconds": time.perf_counter() - began,
        "cpu_s": time.process_time() - used,
        "longest_s": longest,
        "over_time": stretches([end - began for end in ends], given.tolist(), max),
    }


def wait_until_at_rest(index: velo.Index) -> None:
    """Return when nothing was merged for longer than a merge of young segments takes here."""
    parts, since = index.info()["live"]["parts"], time.perf_counter()
    while time.perf_counter() - since < _REST_S:
        time.sleep(0.2)
        now = index.info()["live"]["parts"]
        if now != parts:
            parts, since = now, time.perf_counter()
