"""Several processes write to one index: rows a second, waits of single upserts, and what is left on disk."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.commands.live_indexes import (
    RECALL,
    columns,
    created,
    fresh_build,
    insert_all,
    opened,
    some_of,
    work_folder,
)
from bench.harness.datasets import Dataset, K
from bench.harness.sections import Context, Results

PROCESSES = 8
_BATCH = 100
#: Processes whose upserts go to disk, and how often each row is replaced.
_UPSERTING, _TURNS = 4, 5
#: Calls whose processor time is measured, and looks for changes.
_CALLS, _LOOKS = 2000, 100_000
#: All processes of a measurement begin together.
_START_S = 120.0

_together: Barrier | None = None


def _set_barrier(barrier: Barrier) -> None:
    global _together
    _together = barrier


def _write(
    context: Context,
    path: Path,
    durability: str,
    number: int,
    count: int,
    rows: int,
    turns: int,
    seconds: float,
) -> Results:
    """Write one process's share of the rows in batches, or single upserts for some seconds."""
    dataset = context.dataset()
    random = np.random.default_rng(number)
    taken: list[float] = []
    with opened(context, dataset, path, durability) as index:
        assert _together is not None
        _together.wait(_START_S)
        began = time.perf_counter()
        if seconds:
            while (start := time.perf_counter()) < began + seconds:
                ids = random.integers(0, rows, 1)
                index.upsert(some_of(dataset, ids), ids, columns(ids))
                taken.append(time.perf_counter() - start)
        for _ in range(0 if seconds else turns):
            for some in np.array_split(np.arange(number, rows, count), max(1, rows // count // _BATCH)):
                index.upsert(some_of(dataset, some), some, columns(some))
        ended = time.perf_counter()
    return {"began": began, "ended": ended, "taken": taken}


def _beside(
    context: Context,
    path: Path,
    durability: str,
    count: int,
    rows: int,
    *,
    turns: int = 1,
    seconds: float = 0.0,
) -> list[Results]:
    """Processes that run at once."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(count)
    with ProcessPoolExecutor(count, spawn, _set_barrier, (barrier,)) as pool:
        arguments = (context, path, durability)
        calls = [
            pool.submit(_write, *arguments, number, count, rows, turns, seconds) for number in range(count)
        ]
        return [call.result() for call in calls]


def processes(context: Context) -> Results:
    """One process and several, over a fresh index each; then the calls of a process alone."""
    dataset = context.dataset()
    rows = min(dataset.n, int(context.options["burst"]))
    found: Results = {"rows": rows, "processes": PROCESSES}
    with work_folder(context, dataset, "processes") as work:
        for durability in ("sync", "process"):
            for count in (1, PROCESSES):
                path = work / f"{durability}-{count}.velo"
                created(context, dataset, path).close()
                told = _beside(context, path, durability, count, rows)
                took_s = max(one["ended"] for one in told) - min(one["began"] for one in told)
                found.setdefault(durability, {})[str(count)] = rows / took_s
        path = work / "interval.velo"
        _filled(context, dataset, path, rows)
        told = _beside(context, path, "interval", PROCESSES, rows, seconds=context.options["seconds"])
        every = np.array([one for process in told for one in process["taken"]])
        found["upserts"] = {
            "calls": len(every),
            "p50_ms": float(np.median(every)) * 1e3,
            "p99_ms": float(np.quantile(every, 0.99)) * 1e3,
        }
        with opened(context, dataset, path, "process") as index:
            found["alone"] = _alone(index, dataset, rows)
    return found


def _filled(context: Context, dataset: Dataset, path: Path, rows: int) -> None:
    with created(context, dataset, path) as index:
        insert_all(index, dataset, np.arange(rows), 1000)


def _alone(index: velo.Index, dataset: Dataset, rows: int) -> Results:
    """Processor time of single calls, and nanoseconds of a look for changes."""
    queries = np.asarray(dataset.queries[:_CALLS])
    used = time.process_time()
    for query in queries:
        index.search(query, K, recall=RECALL)
    query_us = (time.process_time() - used) / len(queries) * 1e6
    ids = np.random.default_rng(1).integers(0, rows, _CALLS)
    vectors = some_of(dataset, ids)
    used = time.process_time()
    for row in range(_CALLS):
        index.upsert(vectors[row : row + 1], ids[row : row + 1], columns(ids[row : row + 1]))
    upsert_us = (time.process_time() - used) / _CALLS * 1e6
    look = index._folders[0].stamp
    began = time.perf_counter()
    for _ in range(_LOOKS):
        look()
    return {
        "query_us": query_us,
        "upsert_us": upsert_us,
        "look_ns": (time.perf_counter() - began) / _LOOKS * 1e9,
    }


def rest(context: Context) -> Results:
    """Bytes on disk once several processes have replaced each row some times, and of a fresh build."""
    dataset = context.dataset()
    rows = min(dataset.n, int(context.options["burst"]))
    with work_folder(context, dataset, "rest") as work:
        path = work / "a.velo"
        _filled(context, dataset, path, rows)
        _beside(context, path, "process", _UPSERTING, rows, turns=_TURNS)
        with opened(context, dataset, path) as index:
            index.flush()
            index.optimize()
            assert index.count() == rows
        fresh = fresh_build(context, dataset, np.arange(rows), work / "fresh.velo")
        return {
            "rows": rows,
            "upserts": rows * _TURNS,
            "bytes": _disk_bytes(path),
            "fresh_bytes": _disk_bytes(fresh),
            "files": sum(1 for one in path.rglob("*") if one.is_file()),
        }


def _disk_bytes(path: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in path.rglob("*") if one.is_file())


def _ratio(durability: str) -> Any:
    return lambda told: told[durability][str(PROCESSES)] / told[durability]["1"]


def _rates(durability: str) -> Any:
    return lambda told: f"{told[durability][str(PROCESSES)]:,.0f} / {told[durability]['1']:,.0f}"


#: Section, what, bound, value, note, digits.
TARGETS: list[tuple[str, str, str, Any, Any, int]] = [
    *(
        (
            "processes",
            f"rows a second, {PROCESSES} processes ÷ one, batches of {_BATCH}, `{durability}`",
            bound,
            _ratio(durability),
            _rates(durability),
            2,
        )
        for durability, bound in (("sync", "≥ 1"), ("process", "≥ 0.5"))
    ),
    (
        "processes",
        f"single upserts of {PROCESSES} processes, `interval`: p99 in ms",
        "≤ 20",
        "upserts.p99_ms",
        "{upserts[calls]:,} calls, p50 {upserts[p50_ms]:.2f} ms",
        2,
    ),
    (
        "processes",
        "a look for changes before a search: ns",
        "≤ 300",
        "alone.look_ns",
        "processor time: query {alone[query_us]:.0f} µs, single upsert {alone[upsert_us]:.0f} µs",
        0,
    ),
    (
        "rest",
        f"bytes on disk after upserts by {_UPSERTING} processes ÷ a fresh build",
        "≤ 1.2",
        "bytes / fresh_bytes",
        "{bytes:,} / {fresh_bytes:,} bytes, {upserts:,} upserts of {rows:,} rows, {files} files",
        2,
    ),
]
