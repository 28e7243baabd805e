"""The sections of ``bench live`` over inserts, upserts, deletes and merges, each over a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import velo
from bench.commands import live_fresh, live_many, live_processes
from bench.commands.live_indexes import (
    KEPT,
    RECALL,
    Growth,
    Truth,
    built,
    bytes_written,
    columns,
    copy_of,
    created,
    fresh_build,
    insert_all,
    memory_of,
    merge_memory_of,
    opened,
    searched,
    some_of,
    stretches,
    wait_until_at_rest,
    work_folder,
    writer,
)
from bench.harness.datasets import Dataset, K
from bench.harness.sections import Context, Results

#: Share of the rows in the index that young segments come to: with a fifth as many, all are merged.
_OLD = 0.85


def insert(context: Context) -> Results:
    """All rows into an empty index."""
    dataset = context.dataset()
    with work_folder(context, dataset, "insert") as work:
        return _until_merged(context, dataset, partial(created, context, dataset, work / "a.velo"), 0)


def double(context: Context) -> Results:
    """Half of the rows are there, and as many come."""
    dataset = context.dataset()
    with work_folder(context, dataset, "double") as work:
        path = copy_of(built(context, dataset, 0.5), work / "a.velo")
        return _until_merged(context, dataset, partial(opened, context, dataset, path), dataset.n // 2)


def _until_merged(
    context: Context, dataset: Dataset, index_of: Callable[[], velo.Index], first: int
) -> Results:
    """The rows from `first` on are inserted, until all is in one segment."""
    pa.array([0])  # with the first, pyarrow imports pandas where it is: some 28 MiB
    growth = Growth()
    before = bytes_written()
    began, used = time.perf_counter(), time.process_time()
    with index_of() as index:
        last = min(dataset.n, first + context.options["burst"])
        few = insert_all(index, dataset, np.arange(first, last), 1000)
        rest = insert_all(index, dataset, np.arange(last, dataset.n), 1000)
        index.flush()
        parts_before = len(index.info()["live"]["parts"])
        index.optimize()
    rows = dataset.n - first
    return {
        "burst": few,
        "rest": rest,
        "given_rows": rows,
        "parts": parts_before,
        "whole_s": time.perf_counter() - began,
        "whole_cpu_s": time.process_time() - used,
        "written_bytes": bytes_written() - before,
        "given_bytes": rows * dataset.dim * dataset.base.dtype.itemsize,
        "given_float32_bytes": rows * dataset.dim * 4,
        **growth.result(),
        "memory_bytes": memory_of(context, dataset) + merge_memory_of(context, dataset),
    }


def upserts(context: Context) -> Results:
    """Single upserts with durability="sync", from many callers and from one."""
    dataset = context.dataset()
    found: Results = {}
    with writer(context, dataset, "upserts", KEPT, "sync") as (_, index):
        for callers in (1, context.options["callers"]):
            found[str(callers)] = upserts_from(index, dataset, callers, context.options["seconds"])
    return found


def upserts_from(index: velo.Index, dataset: Dataset, callers: int, seconds: float) -> Results:
    end = time.perf_counter() + seconds
    taken: list[list[float]] = [[] for _ in range(callers)]

    def work(caller: int) -> None:
        random = np.random.default_rng(caller)
        while (start := time.perf_counter()) < end:
            ids = random.integers(0, dataset.n, 1)
            index.upsert(some_of(dataset, ids), ids, columns(ids))
            taken[caller].append(time.perf_counter() - start)

    began = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(work, range(callers)))
    every: Any = np.array([one for caller in taken for one in caller])
    return {
        "calls": len(every),
        "rate": len(every) / (time.perf_counter() - began),
        "p50_us": float(np.median(every)) * 1e6,
        "p99_us": float(np.quantile(every, 0.99)) * 1e6,
    }


def parts(context: Context) -> Results:
    """Searches of a fresh build, with young segments beside, and of one segment again."""
    dataset = context.dataset()
    truth = Truth(context, dataset, np.arange(dataset.n))
    found: Results = {}
    with work_folder(context, dataset, "parts") as work:
        with opened(context, dataset, copy_of(built(context, dataset, 1.0), work / "fresh.velo")) as index:
            found["fresh"] = searched(context, index, truth)
        path = copy_of(built(context, dataset, _OLD), work / "a.velo")
        with opened(context, dataset, path) as index:
            new = np.arange(int(dataset.n * _OLD), dataset.n)
            began = time.perf_counter()
            found["at_once"] = 0
            for some in np.array_split(new, 4):
                insert_all(index, dataset, some, 1000)
                probes = some[:: max(1, len(some) // 25)]
                near = index.search(np.asarray(dataset.base[probes]), 1, recall=RECALL).ids[:, 0]
                same = (dataset.base[near] == dataset.base[probes]).all(axis=1)  # copies of a row are as near
                found["at_once"] += int(same.sum())
                found["probes"] = found.get("probes", 0) + len(probes)
                index.flush()
            found["flushed_s"] = time.perf_counter() - began
            found["new"] = len(new)
            found["young"] = searched(context, index, truth)
            found["young"]["parts"] = len(index.info()["live"]["parts"])
            began, used = time.perf_counter(), time.process_time()
            index.optimize()
            found["optimize_s"] = time.perf_counter() - began
            found["optimize_cpu_s"] = time.process_time() - used
            found["merged"] = searched(context, index, truth)
    return found


def dead(context: Context) -> Results:
    """Searches with a tenth of the rows dead."""
    dataset = context.dataset()
    gone = np.random.default_rng(2).permutation(dataset.n)[: dataset.n // 10]
    rows = np.setdiff1d(np.arange(dataset.n), gone)
    with writer(context, dataset, "dead", 1.0) as (_, index):
        none = searched(context, index, Truth(context, dataset, np.arange(dataset.n)))
        index.delete(gone)
        return {"none": none, "tenth": searched(context, index, Truth(context, dataset, rows))}


def merge(context: Context) -> Results:
    """A caller alone, with nothing beside it and while everything is merged into one segment."""
    dataset, seconds = context.dataset(), float(context.options["seconds"])
    queries = np.asarray(dataset.queries[: context.query_count])
    over_time: list[list[float]] = []
    with writer(context, dataset, "merge", KEPT) as (_, index):
        insert_all(index, dataset, np.arange(int(dataset.n * KEPT), dataset.n), 1000)
        index.flush()
        wait_until_at_rest(index)
        index.delete(np.arange(dataset.n // 100))  # all may be in one segment already
        first = time.perf_counter()

        def lone(until: Callable[[], bool]) -> Any:
            taken: list[float] = []
            starts: list[float] = []
            while not until():
                start = time.perf_counter()
                index.search(queries[len(taken) % len(queries)], K, recall=RECALL)
                taken.append(time.perf_counter() - start)
                starts.append(start - first)
            over_time.extend(stretches(starts, taken, max))
            return np.array(taken)

        def after(wait_s: float) -> Callable[[], bool]:
            end = time.perf_counter() + wait_s
            return lambda: time.perf_counter() > end

        lone(after(1.0))
        over_time.clear()
        taken = {"idle": lone(after(seconds))}
        growth, began = Growth(), time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            taken["busy"] = lone(pool.submit(index.optimize).done)
        merges = [began - first, time.perf_counter() - first]
        grown = growth.result()
        lone(after(seconds))
    return {
        "seconds": merges[1] - merges[0],
        "over_time": over_time,
        "merge_s": merges,
        **grown,
        "memory_bytes": memory_of(context, dataset) + merge_memory_of(context, dataset),
        **{
            name: {"calls": len(s), "mean_us": s.mean() * 1e6, "p99_us": float(np.quantile(s, 0.99)) * 1e6}
            for name, s in taken.items()
        },
    }


def churn(kind: str, context: Context) -> Results:
    """Recall and reads before the first turnover of a tenth, after each, and of a fresh build at the end."""
    dataset = context.dataset()
    first = np.arange(int(dataset.n * KEPT))
    steps: list[Results] = []
    with work_folder(context, dataset, f"churn-{kind}") as work:
        path = copy_of(built(context, dataset, KEPT), work / "a.velo")
        with opened(context, dataset, path) as index:
            steps.append(searched(context, index, Truth(context, dataset, first)))
            for gone, come, lives in turns(kind, dataset, int(context.options["turnovers"])):
                index.delete(gone)
                insert_all(index, dataset, come, 1000)
                index.optimize()
                steps.append(searched(context, index, Truth(context, dataset, lives)))
        fresh_build(context, dataset, lives, work / "fresh.velo")
        with opened(context, dataset, work / "fresh.velo") as index:
            fresh = searched(context, index, Truth(context, dataset, lives))
    return {"steps": steps, "fresh": fresh}


def turns(
    kind: str, dataset: Dataset, turnovers: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """The rows that go in each turnover, those that come, and those that live then, ascending."""
    random = np.random.default_rng(4)
    count = int(dataset.n * KEPT) // 10
    lives = np.arange(dataset.n) < int(dataset.n * KEPT)
    for _ in range(turnovers):
        gone, come = (chosen(kind, dataset, np.flatnonzero(some), count, random) for some in (lives, ~lives))
        lives[gone], lives[come] = False, True
        yield gone, come, np.flatnonzero(lives)


def chosen(
    kind: str, dataset: Dataset, rows: NDArray[np.int64], count: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Some of these rows: any, or those nearest to one of them, which takes a neighborhood away at once."""
    if kind == "random" or count >= len(rows):
        return random.permutation(rows)[:count]
    center = dataset.base[random.choice(rows)].astype(np.float32)
    distances = ((some_of(dataset, rows).astype(np.float32) - center) ** 2).sum(axis=1)
    return rows[np.argpartition(distances, count)[:count]]


KINDS = {"random": "rows at random", "clusters": "rows that lie together"}
_ONCE = (
    *(insert, double, upserts, parts, live_many.many, dead, merge),
    *(live_fresh.half, live_fresh.full_rate, live_fresh.rewritten),
    *(live_processes.processes, live_processes.rest),
)
EVERY: dict[str, Callable[[Context], Results]] = {
    **{measure.__name__: measure for measure in _ONCE},
    **{f"churn:{kind}": partial(churn, kind) for kind in KINDS},
}
