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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.commands import live_peers
from bench.commands.live_indexes import (
    RECALL,
    Work,
    columns,
    created,
    memory_of,
    merge_memory_of,
    some_of,
)
from bench.harness import datasets, tables
from bench.harness.datasets import DataError, Dataset, K
from bench.harness.sections import Context, Results
from bench.peers.live import BATCH, Growth

PEERS = ("hnswlib", "alayalite")
#: M of hnswlib; half of the links of a row's lowest layer.
_DEGREE = 16
_MIB = 1 << 20
_CLUSTERS = 64
_SAMPLE_ROWS = 50_000
_ITERATIONS = 10
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


@dataclass(frozen=True)
class Plan:
    """A runbook over the rows of a set.

    ``steps`` are scaled, their rows numbers in ``order``. ``searches`` are the numbers, from 1, of the steps
    whose recall is measured.
    """

    file: str
    name: str
    points: int
    steps: list[Step]
    order: NDArray[np.int64]
    searches: list[int]

    @property
    def written(self) -> list[tuple[int, Step]]:
        """The numbers of all steps that write or are measured, and those steps."""
        kept = set(self.searches)
        numbered = enumerate(self.steps, 1)
        return [(at, step) for at, step in numbered if step.operation != "search" or at in kept]

    def alive(self, dataset: Dataset) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """After each of them: its number, and by id the row that it has then, or -1."""
        row_of = np.full(dataset.n, -1)
        for number, step in self.written:
            ids = slice(step.ids.start, step.ids.stop)
            if step.operation != "search":
                gone = step.operation == "delete"
                row_of[ids] = -1 if gone else self.order[step.rows.start : step.rows.stop]
            yield number, row_of


def plan_of(context: Context, dataset: Dataset) -> Plan:
    """What ``--runbook`` names."""
    where = context.options["runbook"]
    if not where:
        raise DataError("no runbook was named: --runbook FILE:SET")
    path, _, name = where.rpartition(":")
    points, steps = read(Path(path), name)
    order = by_cluster(dataset) if "clustered" in name else np.arange(dataset.n)
    searches = [number for number, step in enumerate(steps, 1) if step.operation == "search"]
    every = max(1, len(searches) // _CHECKS)
    return Plan(
        file=Path(path).name,
        name=name,
        points=points,
        steps=[scaled(step, points, dataset.n) for step in steps],
        order=order,
        searches=sorted({*searches[every - 1 :: every], *searches[-1:]}),
    )


def queries_of(context: Context, dataset: Dataset) -> Any:
    """Those of each measured search."""
    return np.asarray(dataset.queries[: min(context.query_count, _CHECK_QUERIES)])


def runbook(context: Context) -> Results:
    """Every step in its order; recall, reads and queries a second of searches, seconds of writes."""
    dataset = context.dataset()
    plan = plan_of(context, dataset)
    queries = queries_of(context, dataset)
    found: dict[int, Results] = {}
    ids_of: dict[int, NDArray[np.int64]] = {}
    writes: dict[str, Any] = {}
    with Work(context, dataset, "runbook") as work:
        growth = Growth()
        start, start_cpu, search_cpu_s = time.perf_counter(), time.process_time(), 0.0
        with created(context, dataset, work / "a.velo") as index:
            for number, step in plan.written:
                ids = np.arange(step.ids.start, step.ids.stop)
                began, used = time.perf_counter(), time.process_time()
                if step.operation == "search":
                    result = index.search(queries, K, recall=RECALL)
                    found[number] = {
                        "reads": float(np.mean(result.stats["reads"])),
                        "qps": len(queries) / (time.perf_counter() - began),
                        "parts": len(index.info()["live"]["parts"]),
                    }
                    search_cpu_s += time.process_time() - used
                    ids_of[number] = result.ids
                    continue
                if step.operation == "delete":
                    index.delete(ids)
                else:
                    write = index.insert if step.operation == "insert" else index.upsert
                    rows = plan.order[step.rows.start : step.rows.stop]
                    for first in range(0, len(ids), BATCH):
                        some = slice(first, first + BATCH)
                        write(some_of(dataset, rows[some]), ids[some], columns(ids[some]))
                told = writes.setdefault(step.operation, {"rows": 0, "seconds": 0.0, "cpu_s": 0.0})
                told["rows"] += len(ids)
                told["seconds"] += time.perf_counter() - began
                told["cpu_s"] += time.process_time() - used
        whole_s, whole_cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
        growth_bytes = growth.bytes()
    return {
        "name": plan.name,
        "runbook": plan.file,
        "points": plan.points,
        "steps": len(plan.steps),
        "searches": [one | found[one["step"]] for one in scored(dataset, plan, queries, ids_of)],
        "writes": writes,
        "whole_s": whole_s,
        "cpu_s": whole_cpu_s - search_cpu_s,
        "growth_bytes": growth_bytes,
        "memory_bytes": memory_of(context, dataset) + merge_memory_of(context, dataset),
    }


def peer(name: str, context: Context) -> Results:
    """The same steps by another system, with the setting that finds a fresh index of as many rows as are ever
    there at once.
    """
    dataset = context.dataset()
    plan = plan_of(context, dataset)
    queries = queries_of(context, dataset)
    counts = [(int((row_of >= 0).sum()), number) for number, row_of in plan.alive(dataset)]
    most, fullest = max(counts)
    row_of = next(row_of.copy() for number, row_of in plan.alive(dataset) if number == fullest)
    with Work(context, dataset, f"runbook-{name}") as work:
        np.save(work / "base.npy", some_of(dataset, plan.order))
        np.save(work / "queries.npy", queries)
        ids = np.flatnonzero(row_of >= 0)
        place_of = np.argsort(plan.order)
        np.save(work / "full.npy", np.stack([ids, place_of[row_of[ids]]]))
        request = {
            "metric": dataset.metric,
            "dim": dataset.dim,
            "capacity": dataset.n,
            "rows_max": most,
            "threads": context.threads,
            "degree": _DEGREE,
            "steps": [
                [number, step.operation, step.ids.start, step.ids.stop, step.rows.start, step.rows.stop]
                for number, step in plan.written
            ],
        }
        settings = live_peers.answer(name, context, work, request | {"what": "settings"})["settings"]
        for setting in settings:
            found = np.load(work / f"ids-setting-{setting}.npy")
            setting_recall = recall_of(dataset, queries, found, row_of)
            if setting_recall >= RECALL:
                break
        request |= {"what": "runbook", "setting": setting}
        told = live_peers.answer(name, context, work, request)
        ids_of = {number: np.load(work / f"ids-step-{number}.npy") for number in plan.searches}
    told["searches"] = scored(dataset, plan, queries, ids_of)
    return told | {"setting": setting, "setting_recall": setting_recall, "rows_max": most}


def scored(dataset: Dataset, plan: Plan, queries: Any, ids_of: dict[int, NDArray[np.int64]]) -> list[Results]:
    """Recall of each measured search among the rows that lived then."""
    return [
        {
            "step": number,
            "rows": int((row_of >= 0).sum()),
            "recall": recall_of(dataset, queries, ids_of[number], row_of),
        }
        for number, row_of in plan.alive(dataset)
        if number in ids_of
    ]


def recall_of(dataset: Dataset, queries: Any, ids: NDArray[np.int64], row_of: NDArray[np.int64]) -> float:
    """Share of the true neighbors that was found; two ids may have the same row."""
    rows = row_of[row_of >= 0]
    k = min(K, len(rows))
    near = rows[datasets.nearest(some_of(dataset, rows), queries, k, dataset.metric)]
    bound = datasets.exact_distances(dataset.base, queries, near, dataset.metric).max(axis=1)
    ids = ids[:, :k]
    distances = datasets.exact_distances(
        dataset.base, queries, np.where(ids >= 0, row_of[ids], -1), dataset.metric
    )
    hits = (distances <= (bound + dataset.slack * np.abs(bound))[:, None]).sum(axis=1)
    return float(hits.mean() / k)


def all_searches(results: dict[str, Results]) -> dict[str, Results]:
    """What was measured, by system."""
    every = {"velo": results.get("runbook", {})}
    every |= {name: results.get(f"runbook:{name}", {}) for name in PEERS}
    return {name: told for name, told in every.items() if "result" in told}


def text(results: dict[str, Results]) -> list[str]:
    """A row a system."""
    found = all_searches(results)
    if len(found) < 2 or "velo" not in found:
        return []
    mine = found["velo"]["result"]
    first = next(told["result"] for name, told in found.items() if name != "velo")
    lines = [
        "",
        "## A runbook beside others",
        "",
        f"Every system takes the same writes in the same order, and {len(mine['searches'])} of the searches "
        "are scored by the same truth. velo is asked for a recall of "
        f"{RECALL}. The others have one setting throughout: the least with which a fresh index of "
        f"{first['rows_max']:,} rows, as many as are ever there at once, is found at {RECALL} "
        "(in brackets: what it got there). Processor seconds are of the whole run but its scored searches. "
        "Memory is the growth of the process's own pages from before the first row on; hnswlib has all rows "
        "and links in it, the others have theirs in files, too. velo is given "
        f"{mine['memory_bytes'] / _MIB:,.0f} MiB for codes, new rows and merges, beside what is fixed; "
        "hnswlib and alayalite (its `diskann` index) take no budget. hnswlib: M = 16, ef_construction = 200, "
        "rows take the place of deleted ones; alayalite: its defaults (R = 64, L = 100, alpha = 1.2).",
        "",
        *tables.table(
            [
                "system",
                "setting",
                "recall: least; mean; last",
                "insert, s",
                "delete, s",
                "processor, s",
                "growth of memory, MiB",
                "load",
            ],
            [
                [
                    name,
                    f"recall={RECALL}"
                    if name == "velo"
                    else f"{told['result']['setting']} ({told['result']['setting_recall']:.4f})",
                    f"{min(recalls):.4f}; {np.mean(recalls):.4f}; {recalls[-1]:.4f}",
                    *(
                        f"{told['result']['writes'].get(what, {'seconds': 0.0})['seconds']:.1f}"
                        for what in ("insert", "delete")
                    ),
                    f"{told['result']['cpu_s']:.1f}",
                    f"{told['result']['growth_bytes'] / _MIB:,.0f}",
                    f"{told['load']}",
                ]
                for name, told in found.items()
                for recalls in [[one["recall"] for one in told["result"]["searches"]]]
            ],
        ),
    ]
    for name in PEERS:
        error = results.get(f"runbook:{name}", {}).get("error", "not asked for")
        if error != "not asked for":
            lines += ["", f"{name}: {error}"]
    return lines


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
