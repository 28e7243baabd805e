"""``bench report``: the search core measured line by line against its targets, beside its peers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import velo
from bench.harness import curves, datasets, device, runs
from bench.harness.datasets import Dataset, K
from bench.harness.sections import Context, Results, Section

FIXED_BYTES = 64 << 20
#: Budgets of velo's curves, percent; at 45 all pages of 128 dimensions are in memory.
SHARES = (20, 15, 10, 5, 25, 30, 45)
STREAM_FROM = 10_000
#: Draws of the repeating stream: the first half fills the cache, the second is measured.
STREAM_DRAWS = 20_000
SMALL_LISTS = [16, 24, 32, 48, 64, 80, 100, 128, 160, 200, 256, 400]
LONG_LISTS = [512, 1024, 2048]
PEER_LISTS = {
    "hnswlib": [10, 12, 16, 24, 32, 48, 64, 96, 128, 256],
    "usearch": [10, 16, 24, 32, 48, 64, 96, 128, 256],
    "rabitqlib": [16, 24, 32, 48, 64, 96, 128, 192, 256],
    "diskannpy": [10, 12, 16, 24, 32, 48, 64, 96],
    "zvec": [10, 12, 16, 24, 32, 48, 64],
    "numpy": [],
}
#: Peers that answer hundreds of queries a second are asked fewer.
PEER_QUERIES = {"diskannpy": 2000, "zvec": 2000, "numpy": 500}


def run_folder(context: Context, name: str) -> Path:
    return context.folder / "runs" / f"report-{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def measured(
    context: Context, dataset: Dataset, job: runs.Job, *, threads: int | None = None
) -> list[Results]:
    """The scored rows of one job."""
    folder = run_folder(context, job.system)
    runs.run_job(
        job,
        dataset,
        context.folder,
        folder / "00",
        threads=threads or context.threads,
        single_count=context.single_count,
    )
    return runs.score_run(dataset, folder)


def lists_of(context: Context, *, long: bool = False) -> list[str]:
    lists = context.options.get("lists") or SMALL_LISTS + (LONG_LISTS if long else [])
    return [str(size) for size in lists]


def velo_job(
    dataset: Dataset,
    budget: str,
    lists: Sequence[str],
    *,
    plan: str = "auto",
    build: dict[str, Any] | None = None,
    cached: bool = True,
    **point: Any,
) -> runs.Job:
    """velo without the set's columns; ``point`` goes into every setting, ``build`` into its options.

    With links on disk a budget buys codes and a cache; with ``cached=False`` the codes alone are bought.
    """
    job = runs.velo_job(dataset, budget, lists, plan=plan, metadata=False)
    if not cached:
        point["memory"] = None
    return replace(job, build=job.build | (build or {}), points=[each | point for each in job.points])


def index_path(context: Context, dataset: Dataset, budget: str, *, plan: str = "auto") -> Path:
    """The folder of velo's index for ``budget``, built if it is not there."""
    job = velo_job(dataset, budget, [], plan=plan)
    log = run_folder(context, "build")
    return runs.built_index(job, dataset, context.folder, log, threads=context.threads)


def budget_of(context: Context, share: int) -> str:
    for budget in context.options["budgets"]:
        if runs.share_of(budget.partition(":")[0]) * 100 == share:
            return str(budget)
    raise datasets.DataError(f"no budget of {share} % among {' '.join(context.options['budgets'])}")


# ---- curves ----


def velo_curve(share: int) -> Callable[[Context], Results]:
    def measure(context: Context) -> Results:
        dataset = context.dataset()
        # How far the list alone reaches is asked at one budget: it depends on the codes of the record.
        job = velo_job(dataset, budget_of(context, share), lists_of(context, long=share == 20))
        return {"rows": measured(context, dataset, job)}

    return measure


def peer_curve(name: str) -> Callable[[Context], Results]:
    def measure(context: Context) -> Results:
        count = min(context.query_count, PEER_QUERIES.get(name, context.query_count))
        narrowed = replace(context, query_count=count)
        dataset = narrowed.dataset()
        return {"rows": measured(narrowed, dataset, runs.peer_job(name, dataset, PEER_LISTS[name], 0.2))}

    return measure


def text(context: Context) -> Results:
    """velo at 10 % and hnswlib over the set of texts."""
    folder = context.options.get("text")
    if not folder:
        raise datasets.DataError("no set of texts was named (--text DIR)")
    context = replace(context, data=folder, limit=None, query_count=min(context.query_count, 1800))
    dataset = context.dataset()
    mine = measured(context, dataset, velo_job(dataset, context.options["text_budget"], lists_of(context)))
    peer = runs.peer_job("hnswlib", dataset, [*PEER_LISTS["hnswlib"], 400], 0.2)
    return {"rows": mine, "hnswlib": measured(context, dataset, peer)}


def on_disk(context: Context) -> Results:
    """Links on disk, without a cache and with what the budget leaves for one, filled by other queries."""
    dataset = context.dataset(warm_up=context.query_count)
    budget = context.options["disk_budget"]
    result: Results = {"budget": budget}
    for name in ("off", "on"):
        job = velo_job(
            dataset,
            budget,
            lists_of(context)[1::2],
            plan="links_on_disk",
            cached=name == "on",
            warm_up_count=context.query_count,
        )
        result[name] = measured(context, dataset, job)
    return result


def tmpfs(context: Context) -> Results:
    """The 20 % index in memory-backed files: no device limits it."""
    dataset = context.dataset()
    budget = budget_of(context, 20)
    path = index_path(context, dataset, budget)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    shared = Path("/dev/shm")
    if not shared.is_dir() or shutil.disk_usage(shared).free < 2 * size:
        raise datasets.DataError(f"/dev/shm has no room for {2 * size / 1e6:,.0f} MB")
    home = shared / f"velo-bench-{os.getpid()}"
    try:
        job = velo_job(dataset, budget, lists_of(context))
        copy = runs.index_folder(job, dataset, home)
        copy.parent.mkdir(parents=True)
        shutil.copytree(path.parent, copy)
        (home / "arrays").symlink_to(context.folder.resolve() / "arrays")
        folder = run_folder(context, "tmpfs")
        runs.run_job(
            job, dataset, home, folder / "00", threads=context.threads, single_count=context.single_count
        )
        return {"rows": runs.score_run(dataset, folder)}
    finally:
        shutil.rmtree(home, ignore_errors=True)


# ---- single numbers ----


def stream(context: Context) -> Results:
    """Queries that come again, drawn Zipf 1.0: a quarter of the budget as cache against none."""
    dataset = datasets.load(Path(context.data), limit=context.limit, query_count=STREAM_FROM)
    count = len(dataset.queries)
    weights = 1 / np.arange(1, count + 1)
    draws = np.random.default_rng(20).choice(count, STREAM_DRAWS, p=weights / weights.sum())
    # Ranks go to queries by chance: the set's order may mean something.
    ranked = np.random.default_rng(21).permutation(count)[draws]
    repeated = replace(dataset, queries=dataset.queries[ranked], truth_ids=dataset.truth_ids[ranked])
    result: Results = {"distinct": count, "draws": STREAM_DRAWS}
    context = replace(context, single_count=50)
    own = context.options.get("stream_budget") or budget_of(context, 20)
    for name, share, budget in (("without", 0.0, budget_of(context, 20)), ("with", 0.25, own)):
        job = velo_job(
            repeated,
            budget,
            lists_of(context)[1::2],
            open_tuning={"cache_share": share},
            warm_up_count=STREAM_DRAWS // 2,
        )
        result[name] = measured(context, repeated, job)
    return result


def used(context: Context) -> Results:
    """Records that were read and stand in the list or the results at the end, over all that was read."""
    dataset = context.dataset()
    path = index_path(context, dataset, budget_of(context, 20))
    with velo.open(path, memory="20%", threads=context.threads) as index:
        tuning = velo.SearchTuning(count_used=True)
        queries = dataset.queries[: context.query_count]
        stats = index.search(queries, K, list_size=100, tuning=tuning).stats
        info = index.info()
    records_used, scored = float(stats["records_used"].sum()), float(stats["records_scored"].sum())
    page_bytes = info["page_size"] * info["page_count"]
    pages = int((stats["reads"] + stats["shared_reads"]).sum())  # that a query would read if it were alone
    return {
        "records_used": records_used / len(queries),
        "records_scored": scored / len(queries),
        "share": records_used * (page_bytes / info["n"]) / (info["page_size"] * pages),
    }


def page_of_vertex(pages_file: Path) -> np.ndarray[Any, Any]:
    """The page of every vertex, from the heads of the pages (docs/FORMAT.md)."""
    head = np.fromfile(pages_file, "<u4", 8)
    page_size, page_count = int(head[4]), int(head[5])
    pages = np.memmap(pages_file, np.uint8, "r", offset=page_size, shape=(page_count, page_size))
    fields = np.ascontiguousarray(pages[:, 8:24]).view("<u4")
    counts = fields[:, 3] & 0xFFFF
    return np.repeat(fields[:, 0], counts).astype(np.int64)


def true_pages(context: Context) -> Results:
    """On how many distinct pages a query's true ten lie."""
    dataset = context.dataset()
    path = index_path(context, dataset, budget_of(context, 20))
    with pa.memory_map(str(path / "ids.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    rows = np.asarray(table["row" if "row" in table.column_names else "id"])
    vertex_of = np.empty(dataset.n, np.int64)
    vertex_of[rows] = np.arange(dataset.n)
    pages = np.sort(page_of_vertex(path / "pages.bin")[vertex_of[dataset.truth_ids]], axis=1)
    distinct = 1 + (pages[:, 1:] != pages[:, :-1]).sum(axis=1)
    return {"mean": float(distinct.mean()), "records_per_page": dataset.n / (int(pages.max()) + 1)}


def loop(context: Context) -> Results:
    """What a loop of plain reads gets from the same file."""
    path = index_path(context, context.dataset(), budget_of(context, 20)) / "pages.bin"
    return device.reads_per_s(path)


def disk_ratio(context: Context) -> Results:
    """Bytes of an index for codes of 8 and of 4 bits in all, without ids, columns and stored vectors.

    Of 4 bits a build stores the vectors by itself; what is asked here is what codes and graph take.
    """
    dataset = context.dataset()
    result: Results = {}
    for name, bits in (("eight", "4+4"), ("four", context.options["four_bits"])):
        path = index_path(context, dataset, f"20%:{bits}")
        files = {file.name: file.stat().st_size for file in path.iterdir() if file.is_file()}
        others = ("ids", "columns", "vectors")
        core = sum(size for file, size in files.items() if file.partition(".")[0] not in others)
        result[name] = {"bits": bits, "ratio": core / dataset.float32_bytes, "files": files}
    return result


def bounded_build(context: Context) -> Results:
    """A build under a budget of a quarter of the vectors: what it took, and how far memory grew."""
    dataset = context.dataset()
    job = velo_job(dataset, budget_of(context, 20), ["100"], build={"build_memory": "25%"})
    rows = measured(context, dataset, job)
    return {"rows": rows, "budget_bytes": dataset.float32_bytes // 4}


def scaling(context: Context) -> Results:
    """The same batch on one thread and on two, interleaved; one query from each of 64 threads."""
    dataset = context.dataset()
    queries = np.ascontiguousarray(dataset.queries[: context.query_count])
    path = index_path(context, dataset, budget_of(context, 20))
    size = int(context.options.get("list_size") or 128)
    batch: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(3):
        for threads in batch:
            with velo.open(path, memory="20%", threads=threads) as index:
                index.search(queries[:200], K, list_size=size)
                start = time.perf_counter()
                index.search(queries, K, list_size=size)
                batch[threads].append(len(queries) / (time.perf_counter() - start))
    one_batch, many = [], []
    with velo.open(path, memory="20%", threads=context.threads) as index, ThreadPoolExecutor(64) as pool:

        def ask(first: int) -> None:
            for at in range(first, len(queries), 64):
                index.search(queries[at], K, list_size=size)

        for _ in range(3):
            start = time.perf_counter()
            index.search(queries, K, list_size=size)
            one_batch.append(len(queries) / (time.perf_counter() - start))
            start = time.perf_counter()
            list(pool.map(ask, range(64)))
            many.append(len(queries) / (time.perf_counter() - start))
    return {
        "list_size": size,
        "one": float(np.median(batch[1])),
        "two": float(np.median(batch[2])),
        "batch": float(np.median(one_batch)),
        "many": float(np.median(many)),
    }


def growth(context: Context) -> Results:
    """The same curve over the first tenth of the vectors."""
    whole = context.dataset()
    context = replace(context, limit=whole.n // 10)
    dataset = context.dataset()
    rows = measured(context, dataset, velo_job(dataset, budget_of(context, 20), ["10", *lists_of(context)]))
    return {"rows": rows, "n": dataset.n}


def sections_of(context: Context) -> dict[str, Section]:
    """All sections of the report, in the order in which they are measured."""
    large = context.dataset(warm_up=0).n > 200_000
    build_s, look_s = (5400.0, 1800.0) if large else (600.0, 300.0)
    steps = [Section(f"velo{share}", velo_curve(share), build_s) for share in SHARES]
    steps += [
        Section("used", used, look_s),
        Section("pages", true_pages, look_s),
        Section("loop", loop, look_s),
        Section("scaling", scaling, look_s),
        Section("stream", stream, look_s),
        Section("tmpfs", tmpfs, look_s),
        Section("disk", on_disk, build_s),
        Section("growth", growth, build_s),
    ]
    steps += [Section(f"peer-{name}", peer_curve(name), build_s) for name in context.options["peers"]]
    steps += [
        Section("text", text, build_s),
        Section("disk_ratio", disk_ratio, build_s),
        Section("bounded_build", bounded_build, build_s),
    ]
    return {section.name: section for section in steps}


def curve(results: dict[str, Results], section: str, key: str = "rows") -> list[Results]:
    """The rows of a section, none where it was not measured."""
    rows: list[Results] = results.get(section, {}).get("result", {}).get(key, [])
    return rows


def summary(rows: list[Results], recall: float) -> str:
    """Reads and QPS at a recall, in a few words."""
    reads, qps = curves.at_recall(rows, "reads", recall), curves.at_recall(rows, "qps", recall)
    if qps is None:
        return curves.why_missing(rows, recall)
    return (f"{reads.value:.1f} reads, " if reads else "") + f"{qps.value:,.0f} QPS"
