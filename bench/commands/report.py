"""``bench report``: the search core measured line by line against its targets, beside its peers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.harness import curves, datasets, machine, report, runs
from bench.harness.curves import RECALL, Row
from bench.harness.datasets import Dataset, K
from bench.harness.plots import Picture
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section
from bench.harness.targets import Found, Missing, Target, Value, at, curve, of, ratio, result
from bench.peers import install

FIXED_BYTES = 64 << 20
#: Budgets of velo's curves, percent; at 45 all pages of 128 dimensions are in memory.
SHARES = (20, 15, 10, 5, 25, 30, 45)
BUDGETS = ("5%:1+7", "10%:2+6", "15%:3+7", "20%", "25%", "30%", "45%")
STREAM_FROM = 10_000
#: Draws of the repeating stream: the first half fills the cache, the second is measured.
STREAM_DRAWS = 20_000
LISTS = [16, 24, 32, 48, 64, 80, 100, 128, 160, 200, 256, 400]
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


# ---- sections ----


def sections_of(context: Context) -> Mapping[str, Section]:
    """All sections in the order in which they are measured."""
    large = context.dataset(warm_up=0).n > 200_000
    build_s, look_s = (5400.0, 1800.0) if large else (600.0, 300.0)
    looks = {f.__name__: f for f in (loop, scaling, stream, tmpfs)}
    steps = [Section(f"velo{share}", velo_curve(share), build_s) for share in SHARES]
    steps += [Section(name, measure, look_s) for name, measure in looks.items()]
    steps += [Section("disk", disk, build_s), Section("growth", growth, build_s)]
    steps += [Section(f"peer-{name}", peer_curve(name), build_s) for name in context.options["peers"]]
    steps += [Section(f.__name__, f, build_s) for f in (text, disk_ratio, bounded_build)]
    return {section.name: section for section in steps}


def lists_of(context: Context, *, long: bool = False) -> list[int]:
    return list(context.options.get("lists") or LISTS + (LONG_LISTS if long else []))


def budget_of(context: Context, share: int) -> str:
    for budget in context.options["budgets"]:
        if runs.share_of(budget.partition(":")[0]) * 100 == share:
            return str(budget)
    raise datasets.DataError(f"no budget of {share} % among {' '.join(context.options['budgets'])}")


def index_path(context: Context, dataset: Dataset, budget: str) -> Path:
    return runs.built_index(context, dataset, runs.velo_job(dataset, budget, []))


def velo_curve(share: int) -> Callable[[Context], Results]:
    def measure(context: Context) -> Results:
        dataset = context.dataset()
        # The recall that a list alone reaches depends on record codes: one budget shows it.
        job = runs.velo_job(dataset, budget_of(context, share), lists_of(context, long=share == 20))
        return {"rows": runs.measured(context, dataset, job)}

    return measure


def peer_curve(name: str) -> Callable[[Context], Results]:
    def measure(context: Context) -> Results:
        count = min(context.query_count, PEER_QUERIES.get(name, context.query_count))
        narrowed = replace(context, query_count=count)
        dataset = narrowed.dataset()
        return {"rows": runs.measured(narrowed, dataset, runs.peer_job(name, dataset, PEER_LISTS[name], 0.2))}

    return measure


def text(context: Context) -> Results:
    """velo at 10 % and hnswlib over the set of texts."""
    folder = context.options.get("text")
    if not folder:
        raise datasets.DataError("no set of texts was named (--text DIR)")
    context = replace(context, data=folder, limit=None, query_count=min(context.query_count, 1800))
    dataset = context.dataset()
    job = runs.velo_job(dataset, context.options["text_budget"], lists_of(context))
    peer = runs.peer_job("hnswlib", dataset, [*PEER_LISTS["hnswlib"], 400], 0.2)
    return {"rows": runs.measured(context, dataset, job), "hnswlib": runs.measured(context, dataset, peer)}


def disk(context: Context) -> Results:
    """Links on disk, without a cache and with the cache that the budget allows, filled by other queries."""
    dataset = context.dataset(warm_up=context.query_count)
    budget, lists = context.options["disk_budget"], lists_of(context)[1::2]
    told: Results = {"budget": budget}
    ways: dict[str, dict[str, Any]] = {"off": {"memory": None}, "on": {}}
    for name, more in ways.items():
        job = runs.velo_job(
            dataset, budget, lists, plan="links_on_disk", warm_up_count=context.query_count, **more
        )
        told[name] = runs.measured(context, dataset, job)
    return told


def tmpfs(context: Context) -> Results:
    """The 20 % index in memory-backed files: no device limits it."""
    dataset = context.dataset()
    job = runs.velo_job(dataset, budget_of(context, 20), lists_of(context))
    path = runs.built_index(context, dataset, job)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    shared = Path("/dev/shm")
    if not shared.is_dir() or shutil.disk_usage(shared).free < 2 * size:
        raise datasets.DataError(f"/dev/shm has no room for {2 * size / 1e6:,.0f} MB")
    home = shared / f"velo-bench-{os.getpid()}"
    try:
        copy = runs.index_folder(job, dataset, home)
        copy.parent.mkdir(parents=True)
        shutil.copytree(path.parent, copy)
        (home / "arrays").symlink_to(context.folder.resolve() / "arrays")
        return {"rows": runs.measured(replace(context, work=str(home)), dataset, job)}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def stream(context: Context) -> Results:
    """Queries that come again, drawn Zipf 1.0: a quarter of the budget as cache against none."""
    dataset = datasets.load(Path(context.data), limit=context.limit, query_count=STREAM_FROM)
    count = len(dataset.queries)
    weights = 1 / np.arange(1, count + 1)
    draws = np.random.default_rng(20).choice(count, STREAM_DRAWS, p=weights / weights.sum())
    # Ranks go to queries by chance: the set's order may mean something.
    ranked = np.random.default_rng(21).permutation(count)[draws]
    repeated = replace(dataset, queries=dataset.queries[ranked], truth_ids=dataset.truth_ids[ranked])
    context = replace(context, single_count=50)
    own = context.options.get("stream_budget") or budget_of(context, 20)
    told: Results = {"distinct": count, "draws": STREAM_DRAWS}
    for name, share, budget in (("without", 0.0, budget_of(context, 20)), ("with", 0.25, own)):
        how: dict[str, Any] = {"open_tuning": {"cache_share": share}, "warm_up_count": STREAM_DRAWS // 2}
        job = runs.velo_job(repeated, budget, lists_of(context)[1::2], **how)
        told[name] = runs.measured(context, repeated, job)
    return told


def loop(context: Context) -> Results:
    """The rate of a loop of plain reads from the same file."""
    path = index_path(context, context.dataset(), budget_of(context, 20)) / "pages.bin"
    return machine.reads_at_depth(path)


def disk_ratio(context: Context) -> Results:
    """Bytes of codes and graph for codes of 8 and of 4 bits, without ids, columns and stored vectors."""
    dataset = context.dataset()
    told: Results = {}
    for name, bits in (("eight", "4+4"), ("four", context.options["four_bits"])):
        path = index_path(context, dataset, f"20%:{bits}")
        files = {file.name: file.stat().st_size for file in path.iterdir() if file.is_file()}
        core = sum(
            size for file, size in files.items() if file.split(".")[0] not in ("ids", "columns", "vectors")
        )
        told[name] = {"bits": bits, "ratio": core / dataset.float32_bytes, "files": files}
    return told


def bounded_build(context: Context) -> Results:
    """A build under a budget of a quarter of the vectors."""
    dataset = context.dataset()
    job = runs.velo_job(dataset, budget_of(context, 20), [100], build={"build_memory": "25%"})
    return {"rows": runs.measured(context, dataset, job), "budget_bytes": dataset.float32_bytes // 4}


def scaling(context: Context) -> Results:
    """The same batch on one thread and on two, in turns; one query from each of 64 threads."""
    dataset = context.dataset()
    queries = np.ascontiguousarray(dataset.queries[: context.query_count])
    path = index_path(context, dataset, budget_of(context, 20))
    size = int(context.options.get("list_size") or 128)

    def rate(ask: Callable[[], object]) -> float:
        start = time.perf_counter()
        ask()
        return len(queries) / (time.perf_counter() - start)

    rates: dict[str, list[float]] = {"one": [], "two": [], "batch": [], "many": []}
    for _ in range(3):
        for name, threads in (("one", 1), ("two", 2)):
            with velo.open(path, memory="20%", threads=threads) as index:
                index.search(queries[:200], K, list_size=size)
                rates[name].append(rate(lambda: index.search(queries, K, list_size=size)))
    with velo.open(path, memory="20%", threads=context.threads) as index, ThreadPoolExecutor(64) as pool:

        def ask(first: int) -> None:
            for place in range(first, len(queries), 64):
                index.search(queries[place], K, list_size=size)

        for _ in range(3):
            rates["batch"].append(rate(lambda: index.search(queries, K, list_size=size)))
            rates["many"].append(rate(lambda: list(pool.map(ask, range(64)))))
    return {"list_size": size} | {name: float(np.median(values)) for name, values in rates.items()}


def growth(context: Context) -> Results:
    """The same curve over the first tenth of the vectors."""
    context = replace(context, limit=context.dataset().n // 10)
    dataset = context.dataset()
    job = runs.velo_job(dataset, budget_of(context, 20), [10, *lists_of(context)])
    return {"rows": runs.measured(context, dataset, job), "n": dataset.n}


# ---- targets ----


def targets(page: Page) -> list[Target]:
    hnswlib, diskannpy = "peer-hnswlib", "peer-diskannpy"
    small = page.found.get("growth", {}).get("result", {}).get("n")
    grown = "with a tenth of the vectors" if small is None else f"{small:,} vectors"
    reads = {15: "≤ 16", 20: "≤ 10", 25: "≤ 8.5", 30: "≤ 8"}
    rounds = {15: "≤ 3", 20: "≤ 1.6", 25: "≤ 1.5", 30: "≤ 1.5"}
    return [
        Target("recall@10 reachable by list size alone", "≥ 0.995", reachable, 4),
        *(Target(f"reads at 0.95, {s} %", reads[s], at(f"velo{s}", "reads", 0.95), 1) for s in reads),
        *(
            Target(f"dependent rounds at 0.95, {s} %", rounds[s], at(f"velo{s}", "rounds", 0.95))
            for s in rounds
        ),
        Target(
            "reads of a repeating stream, a quarter of 20 % as cache ÷ without",
            "≤ 0.6",
            ratio("stream/with", "stream/without", "reads", 0.95),
            3,
        ),
        Target("links on disk, 10 %: reads, cache off", "≤ 25", at("disk/off", "reads", 0.95), 1),
        Target("links on disk, 10 %: reads, with the cache", "≤ 20", at("disk/on", "reads", 0.95), 1),
        Target("QPS ÷ diskannpy, 20 % each", "≥ 6", ratio("velo20", diskannpy, "qps", 0.95), 3),
        *(
            Target(
                f"mean latency one at a time ÷ {peer}",
                bound,
                ratio("velo20", f"peer-{peer}", "latency_mean_us", 0.95),
                3,
            )
            for peer, bound in (("diskannpy", "≤ 1/5"), ("hnswlib", "≤ 2"))
        ),
        Target(
            "reads/s ÷ a loop's at depth 64, or cores busy (the larger)", "≥ 0.9", device_share(page.head)
        ),
        Target(
            "processor time a query ÷ hnswlib, 20 %",
            "≤ 0.6",
            ratio("velo20", hnswlib, "cpu_us_per_query", 0.95),
            3,
        ),
        *(
            Target(f"QPS ÷ hnswlib, {what}", bound, ratio(section, hnswlib, "qps", recall), 3)
            for what, section, bound, recall in (
                ("20 %", "velo20", "≥ 0.6", 0.95),
                ("30 %", "velo30", "≥ 0.9", 0.95),
                ("45 %, recall 0.95", "velo45", "≥ 1.2", 0.95),
                ("45 %, recall 0.97", "velo45", "≥ 1.5", 0.97),
                ("45 %, recall 0.99", "velo45", "≥ 1.5", 0.99),
            )
        ),
        Target(
            "ms of a single query ÷ hnswlib, 45 %",
            "≤ 1.2",
            ratio("velo45", hnswlib, "latency_mean_us", 0.95),
            3,
        ),
        Target("QPS ÷ hnswlib, 20 %, index on tmpfs", "≥ 1.5", ratio("tmpfs", hnswlib, "qps", 0.95), 3),
        Target("text: QPS ÷ hnswlib at 0.97, 10 %", "≥ 1.0", ratio("text", "text/hnswlib", "qps", 0.97), 3),
        Target("text: reads at 0.97, 10 %", "≤ 6", at("text", "reads", 0.97)),
        Target("text: rounds at 0.97, 10 %", "≤ 1.5", at("text", "rounds", 0.97)),
        Target("index on disk ÷ float32, 8-bit codes", "≤ 0.45", of("disk_ratio", "eight.ratio"), 3),
        Target("index on disk ÷ float32, 4-bit codes", "≤ 0.3", of("disk_ratio", "four.ratio"), 3),
        Target("build time ÷ hnswlib", "< 1", built_over("build_s", hnswlib), 3),
        Target("build's processor time ÷ diskannpy", "≤ 1/3", built_over("build_cpu_s", diskannpy), 3),
        Target("build's peak memory ÷ float32", "≤ 0.7", peak("velo20", page.head)),
        Target("the same, told to use a quarter", "≤ 0.25", peak("bounded_build", page.head)),
        Target(
            "QPS on two threads ÷ on one",
            "≥ 1.8",
            of("scaling", "two / one", "{two:,.0f} / {one:,.0f} QPS, list {list_size}"),
        ),
        Target(
            "one query from each of 64 threads ÷ one batch",
            "≥ 0.9",
            of("scaling", "many / batch", "{many:,.0f} / {batch:,.0f} QPS, list {list_size}"),
        ),
        Target(
            f"processor time a query, {page.head['n']:,} ÷ {grown}",
            "≤ 1.35",
            ratio("velo20", "growth", "cpu_us_per_query", 0.95),
            3,
        ),
    ]


def reachable(found: Found) -> tuple[float, str]:
    result(found, "velo20")
    best = max(curve(found, "velo20"), key=lambda row: row[RECALL])
    return best[RECALL], f"20 %, {curves.setting(best)}"


def device_share(head: Row) -> Value:
    def computed(found: Found) -> tuple[float, str]:
        (reads, _), (qps, _), (busy, _) = (
            at("velo20", key, 0.95)(found) for key in ("reads", "qps", "cpu_us_per_query")
        )
        cores = busy * qps / 1e6 / head["threads"]
        plain = found.get("loop", {}).get("result")
        if plain is None:
            return cores, f"cores {cores:.2f}"
        share = reads * qps / plain["reads_per_s"]
        note = f"{reads * qps:,.0f} of {plain['reads_per_s']:,.0f} reads/s ({plain['how']}): {share:.2f}"
        return max(share, cores), f"{note}; cores {cores:.2f}"

    return computed


def built_over(key: str, peer: str) -> Value:
    def computed(found: Found) -> tuple[float, str]:
        both = []
        for section in ("velo20", peer):
            try:
                both.append(float(result(found, section)["rows"][0][key]))
            except Missing as why:
                raise Missing(f"{section}: {why}") from why
        return both[0] / both[1], f"{both[0]:,.1f} s / {both[1]:,.1f} s"

    return computed


def peak(section: str, head: Row) -> Value:
    def share(told: Row) -> float:
        peak_bytes = told["rows"][0]["build_peak_bytes"]
        return float(max(peak_bytes - FIXED_BYTES, 0) / (head["n"] * head["dim"] * 4))

    return of(
        section, share, lambda told: f"{told['rows'][0]['build_peak_bytes'] / 1e6:,.0f} MB, 67 of them fixed"
    )


# ---- the page ----

#: Curves beside those of the set itself: a label, the curve's path.
OTHERS = {
    "links on disk, no cache": "disk/off",
    "links on disk, cache": "disk/on",
    "repeating stream, no cache": "stream/without",
    "repeating stream, cache": "stream/with",
    "on tmpfs": "tmpfs",
    "a tenth of the vectors": "growth",
    "text": "text",
    "text, the peer": "text/hnswlib",
}


def systems(found: Found) -> dict[str, list[Row]]:
    """Every curve over the set itself, by label."""
    names = [
        *(f"velo{share}" for share in sorted(SHARES)),
        *(name for name in found if name.startswith("peer-")),
    ]
    return {rows[0]["label"]: rows for name in names if (rows := curve(found, name))}


def content(page: Page) -> Iterable[Picture | Table]:
    every = systems(page.found)
    several = {label: rows for label, rows in every.items() if rows[0]["list_size"]}
    mine = {label: rows for label, rows in several.items() if label.startswith("velo")}
    if on_disk := curve(page.found, "disk/on"):
        mine["velo, links on disk, cache"] = on_disk
    yield report.over_memory("memory", every, 0.95)
    for name, title, shown, key in (
        ("qps", "queries a second", several, "qps"),
        ("latency", "mean latency one at a time (µs)", several, "latency_mean_us"),
        ("reads", "reads of 4 KiB a query", mine, "reads"),
    ):
        yield report.by_recall(name, f"{title} over recall", shown, (key, title))
    columns: dict[str, report.Cell] = {
        "system": "label",
        "memory MB": lambda row: f"{max(one['resident_growth_bytes'] for one in row['points']) / 1e6:,.0f}",
    }
    for recall in (0.9, 0.95, 0.99):
        columns[f"QPS at {recall}"] = report.at_cell("qps", recall, ",.0f")
        columns[f"mean ms at {recall}"] = report.at_cell("latency_mean_us", recall, ",.2f", 1e3)
        columns[f"CPU µs at {recall}"] = report.at_cell("cpu_us_per_query", recall, ",.0f")
        columns[f"reads at {recall}"] = report.at_cell("reads", recall, ",.1f")
    rows = [{"label": label, "points": points} for label, points in every.items()]
    yield Table("Systems side by side", columns, rows, report.BEGINS_ABOVE)
    built = {label: points[0] for label, points in every.items()}
    if bounded := curve(page.found, "bounded_build"):
        built["velo, told to build in 25 %"] = bounded[0]
    yield Table("Building", report.BUILDS, [row | {"label": label} for label, row in built.items()])
    other = {label: rows for label, path in OTHERS.items() if (rows := curve(page.found, path))}
    rows = [row | {"label": f"{label}: {row['label']}"} for label, points in other.items() for row in points]
    yield Table("Every setting", report.SETTINGS, [row for points in every.values() for row in points] + rows)


REPORT = Report(
    name="report",
    help="the search core against its targets, beside the peers",
    module=__name__,
    title="{dataset}: the search core",
    about="{n:,} × {dim}, {query_count:,} queries, k = 10, {threads} threads. Values at a recall are "
    "interpolated between the two settings of the list sweep that enclose it, linearly in recall (a rate by "
    "its inverse). Each system ran in a process of its own with its files dropped from the page cache; "
    "budgets are shares of the float32 vectors. {machine_line}",
    content=content,
    targets=targets,
    head=lambda context: report.head_of(
        context, options={key: value for key, value in context.options.items() if key != "text"}
    ),
    options=(
        Option("--peers", ",".join(install.NAMES), "with commas, or none", "names"),
        Option("--budgets", BUDGETS, report.BUDGET_HELP),
        Option("--disk-budget", "10%:2+6", "with links on disk"),
        Option("--stream-budget", "20%:3+7", "of the stream with a cache"),
        Option("--text-budget", "10%:2+6", "over the set of texts"),
        Option("--four-bits", "4+0", "bits of the index of 4 bits in all"),
        Option("--lists", (), "list sizes of velo's curves", int),
        Option("--text", None, "folder of the set of texts", Path),
    ),
    defaults={"single": 500},
)
