"""``bench confined``: all of the API in a process that the kernel holds to a little memory."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import velo
from bench.harness import cgroup, datasets, report
from bench.harness.curves import Row
from bench.harness.datasets import K
from bench.harness.report import Cell, Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section

MODULE = "bench.commands.confined"
#: Parts of the API, each in a process of its own, the last two over a copy that they change.
PARTS = ("reads", "writes", "optimize")
#: The column that filters and groups go by: small numbers.
NUMBER = "uniform10"
_LIMIT_S = 600.0
#: A build and a merge of everything go on where they were ended.
_LONG_S = 3600.0
#: Of the set's rows: how many come in each insert, and how many go by id.
_NEW, _GONE = 50, 20
#: Queries whose true distances are computed at once: temporary arrays stay small.
_TOGETHER = 50
#: glibc keeps freed memory, in an arena for each thread, and Arrow's own allocator some MiB more. These
#: settings are for any program that has little memory (docs/howto/memory.md).
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1",
}
Step = tuple[str, Callable[[], object]]


def sections_of(context: Context) -> Mapping[str, Section]:
    limits = {"reads": _LIMIT_S, "writes": _LIMIT_S, "optimize": _LONG_S}
    parts = {part: Section(part, partial(_confined, part), limits[part]) for part in PARTS}
    return {"index": Section("index", _built, _LONG_S)} | parts


def _index(context: Context) -> Path:
    if given := context.options.get("index"):
        return Path(given)
    dataset = context.dataset(warm_up=0)
    return context.folder / "confined" / f"{dataset.name}-{dataset.n}" / "whole.velo"


def _built(context: Context) -> Results:
    """The index with a column and vectors, unless it is there; builds of any memory are `bench report`'s."""
    path = _index(context)
    dataset = context.dataset(warm_up=0)
    if not (path / "manifest.json").exists():
        numbers: Any = np.arange(dataset.n) % 10
        if dataset.labels is not None:
            import pyarrow.parquet as pq  # 4 MiB that the measured processes do not need

            numbers = pq.read_table(dataset.labels, columns=[NUMBER])[NUMBER].slice(0, dataset.n)
        path.parent.mkdir(parents=True, exist_ok=True)
        velo.build(
            path,
            dataset.base,
            metadata={NUMBER: numbers},
            store_vectors=True,
            search_memory=context.options["memory"],
            threads=context.threads,
        ).close()
    with velo.open(path, threads=1) as index:
        return {key: index.info()[key] for key in ("n", "dim", "memory_bits", "record_bits", "disk_bytes")}


def _confined(part: str, context: Context) -> Results:
    """The steps of one part, in a process that is in the group from its first page on."""
    path = _index(context)
    if part != "reads":
        copy = context.folder / "confined" / f"changed-{context.dataset(warm_up=0).name}.velo"
        if part == "writes" or not copy.exists():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(path, copy)
        path = copy
    how = {name: context.options[name] for name in ("memory", "queries_in_flight")}
    how["threads"] = context.threads
    command = [sys.executable, "-m", MODULE, part, str(path), context.data, json.dumps(how)]
    steps: list[Row] = []
    limit_mib = int(context.options["limit_mib"])
    with cgroup.limited(limit_mib << 20) as group:
        with group.popen(command, env=os.environ | _ENVIRONMENT) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    steps.append(json.loads(line))
                    print(line, end="", flush=True)  # the log says where a process is that is killed
                code = process.wait()
            finally:
                process.kill()  # an interrupt leaves nothing in the group
        return {
            "steps": steps,
            "code": code,
            "limit_mib": limit_mib,
            "peak_bytes": group.peak_bytes,
            "kills": group.kills,
        }


def main() -> None:
    """Entry of a process in the group: a JSON line a step."""
    part, path, data, options = sys.argv[1:]
    how = json.loads(options)
    how["tuning"] = velo.OpenTuning(queries_in_flight=how.pop("queries_in_flight"))
    sys.meta_path.insert(0, _WithoutPandas())
    dataset = _held(datasets.load(Path(data), query_count=1000))
    steps: Callable[..., Iterator[Step]] = {"reads": _reads, "writes": _writes, "optimize": _optimize}[part]
    for name, step in steps(Path(path), dataset, how):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        began = time.perf_counter()
        row: Row = {"step": name}
        try:
            row["told"] = str(step())
        except velo.VeloError as error:
            row["failed"] = f"{type(error).__name__}: {error}"
        status = _status()
        row |= {
            "seconds": time.perf_counter() - began,
            "peak_bytes": status["VmHWM"],
            "own_bytes": status["RssAnon"],
        }
        print(json.dumps(row), flush=True)


class _WithoutPandas(MetaPathFinder):
    """Arrow loads pandas where it is installed, 27 MiB that velo does not use."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def _held(dataset: datasets.Dataset) -> datasets.Dataset:
    """The part of a set that a process uses, in arrays of its own: views would keep all truth in memory.
    Rows are read without readahead, for which the group has no room.
    """
    mapped: Any = dataset.base
    mapped._mmap.madvise(mmap.MADV_RANDOM)
    return replace(dataset, queries=dataset.queries.copy(), truth_ids=dataset.truth_ids[:, :K].copy())


def _reads(path: Path, dataset: datasets.Dataset, how: dict[str, Any]) -> Iterator[Step]:
    queries, truth = dataset.queries, dataset.truth_ids
    index: Any = None

    def opened() -> str:
        nonlocal index
        index = velo.open(path, **how)
        info = index.info()
        within, budget = (info[f"memory_{one}_bytes"] / 1e6 for one in ("within_budget", "budget"))
        return f"{info['plan']}, {info['links_kept']} links, {within:.1f} MB of {budget:.1f}"

    def recall(found: Any) -> str:
        ids = np.asarray(found.ids)
        parts = [slice(first, first + _TOGETHER) for first in range(0, len(ids), _TOGETHER)]
        shares = [
            datasets.recall(replace(dataset, queries=queries[part], truth_ids=truth[part]), ids[part])
            for part in parts
        ]
        return f"recall {np.concatenate(shares).mean():.4f}, {found.stats['reads'].mean():.1f} reads a query"

    few = velo.col(NUMBER) == 3
    third = np.zeros(dataset.n, bool)
    third[::3] = True
    yield "open", opened
    yield "search, 1,000 queries", lambda: recall(index.search(queries, K, recall=0.95))
    yield "search, exact=True", lambda: recall(index.search(queries, K, recall=0.95, exact=True))
    yield "search, recall=1.0, 10 queries", lambda: recall(index.search(queries[:10], K, recall=1.0))
    yield "search with a filter", lambda: _counted(index.search(queries, K, filter=few, recall=0.95))
    yield (
        "search with a mask",
        lambda: _counted(index.search(queries, K, filter=third, recall=0.95)),
    )
    yield "search by groups", lambda: _counted(index.search(queries[:100], 5, group_by=NUMBER, recall=0.95))
    yield "range_search", lambda: int(index.range_search(queries[:100], 40_000.0, recall=0.95).counts.sum())
    yield "explain", lambda: index.explain(queries[0], K, filter=few).filter_plan.chosen
    yield "count by a filter", lambda: f"{index.count(few):,} rows"
    yield "get, get_vectors, rows", lambda: _looked_up(index, few)
    yield "plans", lambda: f"{sum(row.plan is not None for row in velo.plans(path))} budgets open"
    yield "verify", lambda: f"{index.verify():,} pages"
    yield "info", lambda: f"{index.info()['memory_beside_budget_bytes'] / 1e6:.1f} MB beside the budget"
    yield "close", lambda: index.close()


def _counted(found: Any) -> str:
    return f"{int(np.asarray(found.counts).sum()):,} hits"


def _looked_up(index: Any, few: Any) -> str:
    page = index.rows(few, limit=1000)
    ids = page["id"].to_numpy()
    return f"{len(index.get(ids)):,} rows, {len(index.get_vectors(ids)):,} vectors"


def _writes(path: Path, dataset: datasets.Dataset, how: dict[str, Any]) -> Iterator[Step]:
    index: Any = None
    count, gone = dataset.n // _NEW, dataset.n // _GONE
    base: Any = np.asarray(dataset.base[:count])
    new = np.where(base > 0, base - 1, 1).astype(base.dtype)  # near rows that are there
    asked = new[-500:]
    ids = np.arange(dataset.n, dataset.n + count // 20)

    def opened() -> str:
        nonlocal index
        index = velo.open(path, writable=True, **how)
        return f"{index.n:,} rows"

    def columns(count: int) -> pa.Table:
        told = index.schema
        return pa.table({name: pa.nulls(count, told.field(name).type) for name in told.names})

    def inserted() -> str:
        for part in np.array_split(new, 20):
            index.insert(part, metadata=columns(len(part)))
        return f"{index.n:,} rows"

    def found() -> str:
        nearest = index.search(asked, 1, recall=0.99)
        own = np.asarray(nearest.ids)[:, 0] >= dataset.n
        return f"{own.mean():.3f} of new rows are found"

    def changed(of: Any) -> str:
        return f"{of.rows:,} rows"

    few = {"$ids": list(range(gone, gone + dataset.n // 100)), NUMBER: 7}
    yield "open to write", opened
    yield f"insert of {count:,} rows in 20 calls", inserted
    yield "search", found
    yield (
        f"insert of {count:,} rows in one call",
        lambda: changed(index.insert(new, metadata=columns(len(new)))),
    )
    yield (
        f"upsert of {len(ids):,} rows",
        lambda: changed(index.upsert(new[: len(ids)], ids, columns(len(ids)))),
    )
    yield (
        f"update of {len(ids):,} rows",
        lambda: changed(index.update(ids, {NUMBER: [5] * len(ids)})),
    )
    yield "update by a filter", lambda: changed(index.update(filter=few, metadata={NUMBER: 8}))
    yield f"delete of {gone:,} ids", lambda: changed(index.delete(np.arange(gone)))
    yield (
        "delete by a filter",
        lambda: changed(index.delete(filter=velo.col(NUMBER) == 2)),
    )
    yield "flush", lambda: index.flush()
    yield "search over parts", found
    yield "verify", lambda: f"{index.verify():,} pages"
    yield "info", lambda: f"{len(index.info()['live']['parts'])} parts"
    yield "close, merges in the background", lambda: index.close()


def _optimize(path: Path, dataset: datasets.Dataset, how: dict[str, Any]) -> Iterator[Step]:
    index: Any = None

    def opened() -> str:
        nonlocal index
        index = velo.open(path, writable=True, **how)
        return f"{len(index.info()['live']['parts'])} parts, {len(index):,} rows that live"

    yield "open to write", opened
    yield "optimize", lambda: index.optimize()
    yield "search", lambda: _counted(index.search(dataset.queries, K, recall=0.95))
    yield "info", lambda: f"{len(index.info()['live']['parts'])} part"
    yield "close", lambda: index.close()


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if name in ("VmHWM", "RssAnon")
    }


STEPS: Mapping[str, Cell] = {
    "step": "step",
    "s": "seconds:.1f",
    "peak MiB": "peak_bytes/1048576:.0f",
    "own MiB": "own_bytes/1048576:.0f",
    "told": lambda row: f"**{row['failed']}**" if "failed" in row else row["told"].replace("None", "done"),
}


def content(page: Page) -> Iterable[Table]:
    for part in PARTS:
        if "result" in (told := page.found.get(part, {})):
            result = told["result"]
            ended = "ended well"
            if result["code"] or result["kills"]:
                ended = f"**ended with {result['code']}**; the kernel killed {result['kills']}"
            limit_mib = result.get("limit_mib", page.head["options"]["limit_mib"])
            peak_mib = result["peak_bytes"] / 2**20
            note = f"Of {limit_mib} MiB the process took {peak_mib:.0f} at most. It {ended}."
            yield Table(part, STEPS, result["steps"], note)


REPORT = Report(
    name="confined",
    help="all of the API in a process that the kernel holds to some memory",
    module=MODULE,
    title="{dataset} in a small process",
    about="{n:,} × {dim}, a column of small numbers, vectors stored, memory {options[memory]}, threads "
    "{threads}, {options[queries_in_flight]} queries in flight. Each part of "
    "the API ran in a process that the kernel held to a limit (a memory cgroup), the interpreter and its "
    "libraries included. *Peak* is the most of the process's resident memory during the "
    "step, pages of mapped files too; *own* is the part without a file, at the step's end. {machine_line}",
    content=content,
    head=lambda context: report.head_of(context, probe=False, options=context.options),
    options=(
        Option("--memory", "10%", "that the index is opened with"),
        Option("--limit-mib", 256, "of the process"),
        Option("--queries-in-flight", 16, "of each worker"),
        Option("--index", None, "an index of the set with the column uniform10 and vectors", Path),
    ),
    defaults={"queries": 1000, "single": 0},
)

if __name__ == "__main__":
    main()
