"""A runbook of the streaming track of big-ann-benchmarks: inserts, deletes, replaces, and searches between.

The file is theirs (``neurips23/runbooks``): under the name of a set how many points are there at once,
and numbered steps.
A step inserts rows ``start`` to ``end`` under their own numbers, deletes these, puts other rows under ids
that are there, or searches. Their sets have millions of rows; the ranges are scaled to the rows of the set at
hand. Where the name says "clustered", rows are ordered by cluster first, as theirs are: whole clusters come
and go.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import velo
from bench.commands.live_indexes import (
    RECALL,
    Work,
    columns,
    created,
    memory_of,
    merge_memory_of,
    some_of,
)
from bench.harness import datasets
from bench.harness.datasets import DataError, Dataset, K
from bench.harness.sections import Context, Results
from bench.peers.live import Growth

_CLUSTERS = 64
_SAMPLE_ROWS = 50_000
_ITERATIONS = 10
_BATCH = 1000
#: Searches whose recall is measured: truth of a million rows takes longer than the search.
_CHECKS = 60
_CHECK_QUERIES = 200


@dataclass(frozen=True)
class Step:
    """``ids`` are those that come, go or are replaced; ``rows`` the rows that they get."""

    operation: str
    ids: range = range(0)
    rows: range = range(0)


def read(path: Path, name: str) -> tuple[int, list[Step]]:
    """The number of points of the set, and the steps that a runbook has for the set ``name``."""
    import yaml

    try:
        book = yaml.safe_load(path.read_text())
        steps, number = book[name], 1
        most, alive = int(steps["max_pts"]), 0
        found = []
        while number in steps:
            found.append(step_of(steps[number]))
            alive += len(found[-1].ids) * {"insert": 1, "delete": -1}.get(found[-1].operation, 0)
            if alive > most:
                raise ValueError(f"{alive} points after step {number}, and {most} at most")
            number += 1
        points = max([most, *(one.rows.stop for one in found)])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no runbook with a set {name!r}: {type(error).__name__}: {error}"
        ) from error
    return points, found


def step_of(entry: dict[str, Any]) -> Step:
    operation = entry["operation"]
    match operation:
        case "search":
            return Step(operation)
        case "insert" | "delete":
            ids = rows = range(int(entry["start"]), int(entry["end"]))
        case "replace":
            ids = range(int(entry["tags_start"]), int(entry["tags_end"]))
            rows = range(int(entry["ids_start"]), int(entry["ids_end"]))
        case _:
            raise ValueError(f"operation {operation!r}")
    for one in (ids, rows):
        if not 0 <= one.start <= one.stop:
            raise ValueError(f"{operation} from {one.start} to {one.stop}")
    if len(ids) != len(rows):
        raise ValueError(f"{len(ids)} ids are replaced by {len(rows)} rows")
    return Step(operation, ids, rows)


def scaled(step: Step, points: int, n: int) -> Step:
    """The same step over a set of ``n`` rows."""

    def of(one: range) -> range:
        return range(one.start * n // points, one.stop * n // points)

    ids, rows = of(step.ids), of(step.rows)
    if step.operation != "replace":
        return Step(step.operation, ids, ids)
    count = min(len(ids), len(rows))  # they may differ by one where they round apart
    return Step(step.operation, ids[:count], rows[:count])


def runbook(context: Context) -> Results:
    """Every step in its order; recall, reads and queries a second of searches, seconds of writes."""
    where = context.options["runbook"]
    if not where:
        raise DataError("no runbook was named: --runbook FILE:SET")
    path, _, name = where.rpartition(":")
    dataset = context.dataset()
    points, steps = read(Path(path), name)
    order = by_cluster(dataset) if "clustered" in name else np.arange(dataset.n)
    searches = sum(step.operation == "search" for step in steps)
    every = max(1, searches // _CHECKS)
    row_of = np.full(dataset.n, -1)  # by id
    found: list[Results] = []
    writes: dict[str, Any] = {}
    seen = 0
    memory = memory_of(context, dataset)
    with Work(context, dataset, "runbook") as work:
        growth = Growth()
        with created(context, dataset, work / "a.velo") as index:
            for number, one in enumerate(steps, 1):
                step = scaled(one, points, dataset.n)
                if step.operation == "search":
                    seen += 1
                    if seen % every == 0 or seen == searches:
                        found.append({"step": number, **measured(context, index, dataset, row_of)})
                    continue
                ids, rows = np.arange(step.ids.start, step.ids.stop), order[list(step.rows)]
                began, used = time.perf_counter(), time.process_time()
                if step.operation == "delete":
                    index.delete(ids)
                    row_of[ids] = -1
                else:
                    write = index.insert if step.operation == "insert" else index.upsert
                    for start in range(0, len(ids), _BATCH):
                        some = slice(start, start + _BATCH)
                        write(some_of(dataset, rows[some]), ids[some], columns(ids[some]))
                    row_of[ids] = rows
                told = writes.setdefault(step.operation, {"rows": 0, "seconds": 0.0, "cpu_s": 0.0})
                told["rows"] += len(ids)
                told["seconds"] += time.perf_counter() - began
                told["cpu_s"] += time.process_time() - used
        growth_bytes = growth.bytes()
    return {
        "name": name,
        "runbook": Path(path).name,
        "points": points,
        "steps": len(steps),
        "searches": found,
        "writes": writes,
        "growth_bytes": growth_bytes,
        "memory_bytes": memory + merge_memory_of(context, dataset),
    }


def measured(context: Context, index: velo.Index, dataset: Dataset, row_of: NDArray[np.int64]) -> Results:
    """Recall, reads and rate of the queries over what lives now; two ids may have the same row."""
    queries: Any = np.asarray(dataset.queries[: min(context.query_count, _CHECK_QUERIES)])
    began = time.perf_counter()
    result = index.search(queries, K, recall=RECALL)
    seconds = time.perf_counter() - began
    rows = row_of[row_of >= 0]
    k = min(K, len(rows))
    near = rows[datasets.nearest(some_of(dataset, rows), queries, k, dataset.metric)]
    bound = datasets.exact_distances(dataset.base, queries, near, dataset.metric).max(axis=1)
    ids = result.ids[:, :k]
    distances = datasets.exact_distances(
        dataset.base, queries, np.where(ids >= 0, row_of[ids], -1), dataset.metric
    )
    hits = (distances <= (bound + dataset.slack * np.abs(bound))[:, None]).sum(axis=1)
    return {
        "rows": len(rows),
        "recall": float(hits.mean() / k),
        "reads": float(np.mean(result.stats["reads"])),
        "qps": len(queries) / seconds,
        "parts": len(index.info()["live"]["parts"]),
    }


def by_cluster(dataset: Dataset) -> NDArray[np.int64]:
    """The rows, one cluster after the other: Lloyd's means of a sample."""
    random = np.random.default_rng(6)
    sample = np.asarray(dataset.base[np.sort(random.permutation(dataset.n)[:_SAMPLE_ROWS])], np.float32)
    centers = sample[random.permutation(len(sample))[:_CLUSTERS]].copy()
    for _ in range(_ITERATIONS):
        labels = nearest_center(sample, centers)
        for number in range(len(centers)):
            if (own := sample[labels == number]).size:
                centers[number] = own.mean(axis=0)
    labels = np.concatenate(
        [
            nearest_center(np.asarray(dataset.base[start : start + datasets.BLOCK_ROWS], np.float32), centers)
            for start in range(0, dataset.n, datasets.BLOCK_ROWS)
        ]
    )
    return np.argsort(labels, kind="stable")


def nearest_center(rows: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.int64]:
    distances = (centers**2).sum(axis=1)[None, :] - 2 * (rows @ centers.T)
    labels: NDArray[np.int64] = distances.argmin(axis=1)
    return labels
