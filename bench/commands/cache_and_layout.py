"""``bench cache`` and ``bench layout``: what a cache holds on to, and which records to keep together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.commands import report_sections
from bench.harness import curves, datasets, machine, pages, plots, runs, sections, tables
from bench.harness.datasets import K
from bench.harness.sections import Context, Results, Section
from bench.peers.velo import ablations

MODULE = "bench.commands.cache_and_layout"
AT = 0.95
#: Share of pages.bin that the cache takes.
SHARES = (10, 20, 30, 40, 50)
POLICIES = ("clock", "lru", "fifo", "random", "static")
UNITS = ("page", "color_set", "record")
UNIT_NAMES = {"page": "whole pages", "color_set": "records and their colors", "record": "records alone"}
#: Distance up to which two records are of one color: percentile of the distances to a cluster's centroid.
THRESHOLDS = (5, 10)
LISTS = [24, 32, 48, 64, 96, 128, 200]


def cache_memory(path: Path, share: float, threads: int) -> int:
    """A budget that leaves ``share`` of ``pages.bin`` for slots, with links on disk."""
    with velo.open(path, threads=threads, plan="links_on_disk") as index:
        memory = index.info()["memory_bytes"]
    return int(memory["codes"] + memory["pages"] + share * (path / "pages.bin").stat().st_size)


def hit_rates(unit: str, policy: str) -> Callable[[Context], Results]:
    """Hits over hits and reads, at one list size, after as many other queries as are measured."""

    def measure(context: Context) -> Results:
        dataset = context.dataset(warm_up=context.query_count)
        bits = context.options["bits"]
        path = report_sections.index_path(context, dataset, f"20%:{bits}", plan="links_on_disk")
        measured, others = dataset.queries[: context.query_count], dataset.queries[context.query_count :]
        size, rows = int(context.options["list_size"]), []
        for share in SHARES:
            memory = cache_memory(path, share / 100, context.threads)
            ablations.apply(f"cache_unit={unit} cache_policy={policy}")
            with velo.open(path, memory=memory, threads=context.threads, plan="links_on_disk") as index:
                index.search(others, K, list_size=size)
                result = index.search(measured, K, list_size=size)
                info = index.info()
            hits, reads, shared = (
                float(result.stats[name].mean()) for name in ("cache_hits", "reads", "shared_reads")
            )
            rows.append(
                {
                    "share": share,
                    "cache_bytes": info["memory_bytes"]["cache"],
                    "hits": hits,
                    "reads": reads,
                    "hit_rate": hits / max(hits + reads + shared, 1e-9),
                    curves.RECALL: float(datasets.recall(dataset, np.asarray(result.ids)).mean()),
                }
            )
        return {"rows": rows, "pages_bytes": (path / "pages.bin").stat().st_size}

    return measure


def cache_sections(context: Context) -> dict[str, Section]:
    limit_s = 1800.0 if context.dataset(warm_up=0).n > 200_000 else 300.0
    cases = [(unit, policy) for unit in ("page", "color_set") for policy in POLICIES] + [("record", "clock")]
    steps = [Section(f"cache-{unit}-{policy}", hit_rates(unit, policy), limit_s) for unit, policy in cases]
    return {section.name: section for section in steps}


def placed(unit: str, threshold: int | None) -> Callable[[Context], Results]:
    """Reads over recall where the cache keeps ``unit``; records are colored up to ``threshold`` per cent."""

    def measure(context: Context) -> Results:
        dataset = context.dataset(warm_up=context.query_count)
        build = {} if threshold in (None, 5) else {"affinity_percent": threshold}
        budget = f"{context.options['budget']}:{context.options['bits']}"
        job = report_sections.velo_job(
            dataset,
            budget,
            [str(size) for size in context.options.get("lists") or LISTS],
            plan="links_on_disk",
            build=build,
            ablations=f"cache_unit={unit}",
            warm_up_count=context.query_count,
        )
        return {"rows": report_sections.measured(context, dataset, job)}

    return measure


def layout_sections(context: Context) -> dict[str, Section]:
    limit_s = 3600.0 if context.dataset(warm_up=0).n > 200_000 else 600.0
    steps = [Section("layout-0", placed("record", None), limit_s)]
    steps += [Section(f"layout-{each}", placed("color_set", each), limit_s) for each in THRESHOLDS]
    steps.append(Section("layout-page", placed("page", None), limit_s))
    return {section.name: section for section in steps}


def sections_of(context: Context) -> dict[str, Section]:
    """Of both commands."""
    return cache_sections(context) | layout_sections(context)


def head_of(context: Context) -> dict[str, Any]:
    dataset = context.dataset()
    host = machine.describe(context.folder, runs.export_arrays(dataset, context.folder).base)
    return {"machine": host, "dataset": dataset.name, "n": dataset.n, "dim": dataset.dim, **context.options}


def measure(context: Context, steps: dict[str, Section], only: list[str] | None) -> dict[str, Results]:
    ablations.use_library()
    dataset = context.dataset(warm_up=0)
    folder = context.folder / "caches" / f"{dataset.name}-{dataset.n}"
    return sections.run(MODULE, steps, context, folder=folder, only=only)


def write(out: Path, name: str, head: dict[str, Any], results: dict[str, Results], text: list[str]) -> None:
    pages.write(out, name, [{"head": head}, *results.values()], "\n".join(text) + "\n")


def run_cache(context: Context, out: Path, name: str, only: list[str] | None) -> None:
    """The table of hit rates (VeloANN, table 1)."""
    results = measure(context, cache_sections(context), only)
    head = head_of(context)
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, links on disk, codes of {head['bits']} bits, "
        "list "
        f"{head['list_size']}. {tables.machine_line(head['machine'])}",
        "",
        "Share of looks at the disk that the cache answered: hits ÷ (hits + reads), for caches of 10 to 50 "
        "% of "
        "pages.bin. As many other queries as are measured filled it before; the measured ones come once.",
        "",
    ]
    rows, series = [], {}
    for section in results.values():
        unit, _, policy = section["section"].removeprefix("cache-").rpartition("-")
        label = f"{UNIT_NAMES[unit]}, {policy}"
        if "result" not in section:
            rows.append([label, *[f"not measured: {section['error']}"], *["–"] * (len(SHARES))])
            continue
        points = section["result"]["rows"]
        series[label] = [(point["share"], point["hit_rate"]) for point in points]
        rows.append(
            [
                label,
                *[f"{point['hit_rate']:.1%} ({point['reads']:.1f})" for point in points],
                f"{points[-1][curves.RECALL]:.4f}",
            ]
        )
    if plots.available() and series:
        plots.lines(
            series,
            out / f"{name}.png",
            title="hit rate over the cache's size",
            x="cache ÷ pages.bin (%)",
            y="hit rate",
        )
        text += [f"![hit rates]({name}.png)", ""]
    text += tables.table(
        ["what stays", *[f"{share} %" for share in SHARES], "recall@10 at 50 %"],
        rows,
    )
    text += ["", "In brackets: reads a query."]
    write(out, name, head, results, text)


def run_layout(context: Context, out: Path, name: str, only: list[str] | None) -> None:
    """Reads and latency for several thresholds of affinity (VeloANN, figure 13)."""
    results = measure(context, layout_sections(context), only)
    head = head_of(context)
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, links on disk, budget {head['budget']}, codes of "
        f"{head['bits']} bits. {tables.machine_line(head['machine'])}",
        "",
        "What stays of a page that was read: the record alone (τ = 0), it and those of its color (τ a "
        "percentile "
        f"of the distances to a cluster's centroid), or all. At recall@10 {AT}, caches filled by other "
        "queries.",
        "",
    ]
    rows = []
    names = {"layout-0": "τ = 0", "layout-page": "whole pages"} | {
        f"layout-{each}": f"τ = {each} %" for each in THRESHOLDS
    }
    for section, label in names.items():
        points = report_sections.curve(results, section)
        at = {
            key: curves.at_recall(points, key, AT)
            for key in ("reads", "cache_hits", "qps", "latency_mean_us")
        }
        if at["qps"] is None:
            why = results.get(section, {}).get("error") or curves.why_missing(points, AT)
            rows.append([label, f"not measured: {why}", "–", "–", "–"])
            continue
        values = {key: value.value for key, value in at.items() if value is not None}
        rows.append(
            [
                label,
                f"{values['reads']:.2f}",
                f"{values['cache_hits']:.2f}",
                f"{values['qps']:,.0f}",
                f"{values['latency_mean_us'] / 1000:.2f}",
            ]
        )
    text += tables.table(["kept", "reads", "cache hits", "QPS", "mean ms alone"], rows)
    write(out, name, head, results, text)
