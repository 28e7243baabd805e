"""Writes what ``bench speed`` found: processor time of a query, beside systems that hold all in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.commands import profile
from bench.harness import curves, kept, lines, machine, pages, plots, runs, sections, tables
from bench.harness.lines import Line
from bench.harness.sections import Context, Results, Section

PEERS = ("hnswlib", "rabitqlib", "usearch")
RECALLS = (0.90, 0.95, 0.99)
#: At most so much of a peer's processor time, by budget, peer and recall. At 45 % all pages are in memory.
TARGETS = {
    ("20%", "hnswlib", 0.95): "≤ 0.8",
    ("20%", "rabitqlib", 0.95): "≤ 1.9",
    ("20%", "rabitqlib", 0.99): "≤ 1.8",
    ("45%", "hnswlib", 0.95): "≤ 0.33",
    ("45%", "hnswlib", 0.99): "≤ 0.33",
    ("45%", "rabitqlib", 0.95): "≤ 1.0",
    ("45%", "rabitqlib", 0.99): "≤ 1.0",
}
BUDGETS = ("20%", "15%:3+7", "25%", "30%", "45%")
LISTS = ("16", "24", "32", "48", "64", "96", "128", "192", "256", "384", "512")
PEER_LISTS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
#: Other work shares processors and caches, and takes from every pass but the luckiest.
PASSES = 5

COST = "cpu_us_per_query"
_MODULE = "bench.commands.speed"
_LIMIT_S = 3600.0
_MIB = 1 << 20


def run(context: Context, out: Path, name: str, only: list[str] | None) -> list[Line]:
    """Measure, write ``out/name.md`` and ``out/name.jsonl``; returns the table's lines."""
    dataset = context.dataset()
    folder = _folder(context) / "sections"
    results = sections.run(_MODULE, sections_of(context), context, folder=folder, only=only)
    table = lines_of(results)
    head = {
        "machine": machine.describe(context.folder),
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "query_count": context.query_count,
        "threads": context.threads,
        "passes": context.options["passes"],
    }
    _write(out, name, head, table, results)
    return table


def rewrite(out: Path, name: str) -> None:
    """The page and its pictures anew, from the rows that are kept."""
    found = kept.load(out, name)
    _write(out, name, found.head, found.table, found.results)


def _write(out: Path, name: str, head: Results, table: list[Line], results: Mapping[str, Results]) -> None:
    rows_by_label = {
        told["result"]["label"]: told["result"]["rows"]
        for told in results.values()
        if "rows" in told.get("result", {})
    }
    pictures = _draw(out, name, rows_by_label)
    rows = [{"head": head}, *(line.record() for line in table), *results.values()]
    pages.write(out, name, rows, _markdown(head, table, rows_by_label, results, pictures))


def sections_of(context: Context) -> Mapping[str, Section]:
    """velo at each budget, then each peer, then where velo's time goes."""
    every: dict[str, Callable[[Context], Results]] = {
        **{f"velo:{budget}": partial(_velo, budget) for budget in context.options["budgets"]},
        **{f"peer:{name}": partial(_peer, name) for name in context.options["peers"]},
        "profile": profile.measure,
    }
    return {name: Section(name, measure, _LIMIT_S) for name, measure in every.items()}


def _folder(context: Context) -> Path:
    dataset = context.dataset()
    return context.folder / "speed" / f"{dataset.name}-{dataset.n}"


def _velo(budget: str, context: Context) -> Results:
    return _measured(
        context, runs.velo_job(context.dataset(), budget, context.options["lists"], metadata=False)
    )


def _peer(name: str, context: Context) -> Results:
    return _measured(context, runs.peer_job(name, context.dataset(), context.options["peer_lists"], 0.2))


def _measured(context: Context, job: runs.Job) -> Results:
    """Every setting several times in turn, of each the pass that took least."""
    dataset = context.dataset()
    repeated = runs.Job(job.system, job.label, job.build, job.points * context.options["passes"])
    out = _folder(context) / "runs" / job.label.replace(" ", "-").replace("%", "")
    runs.run_job(
        repeated, dataset, context.folder, out, threads=context.threads, single_count=context.single_count
    )
    least: dict[int, dict[str, Any]] = {}
    for row in runs.score_run(dataset, out.parent):
        if row["label"] != job.label:
            continue
        size = row["list_size"]
        if size not in least or row[COST] < least[size][COST]:
            least[size] = row
    return {"label": job.label, "rows": list(least.values())}


def lines_of(results: Mapping[str, Results]) -> list[Line]:
    """velo's processor time over that of each peer, at each recall that has a target."""
    table = []
    for (budget, peer, recall), target in TARGETS.items():
        mine, theirs = results.get(f"velo:{budget}", {}), results.get(f"peer:{peer}", {})
        what = f"{budget}: µs of processor a query at recall {recall:.2f} ÷ {peer}"
        missing = next((told for told in (mine, theirs) if "result" not in told), None)
        if missing is not None:
            table.append(Line(what, target, None, str(missing.get("error", "not asked for"))))
            continue
        both = curves.ratio(mine["result"]["rows"], theirs["result"]["rows"], COST, recall)
        if both is None:
            table.append(Line(what, target, None, "one of the curves does not reach it"))
        else:
            table.append(Line(what, target, both.value, both.how, 2))
    return table


def _draw(out: Path, name: str, rows_by_label: Mapping[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    if not plots.available() or not rows_by_label:
        return []
    title = "Processor time of a query over recall"
    plots.against_recall(
        rows_by_label, COST, out / f"{name}-recall.png", title=title, y="µs of processor a query"
    )
    drawn = [(title, f"{name}-recall.png")]
    points = {}
    for label, rows in rows_by_label.items():
        if qps := curves.at_recall(rows, "qps", 0.95):
            points[label] = (rows[0]["system"], rows[0]["resident_growth_bytes"] / _MIB, qps.value)
    if points:
        title = "Queries a second at recall 0.95 over memory"
        plots.scatter(points, out / f"{name}-memory.png", title=title, x="MiB resident", y="queries a second")
        drawn.append((title, f"{name}-memory.png"))
    return drawn


def _markdown(
    head: Results,
    table: list[Line],
    rows_by_label: Mapping[str, list[dict[str, Any]]],
    results: Mapping[str, Results],
    pictures: list[tuple[str, str]],
) -> str:
    def cell(rows: list[dict[str, Any]], key: str, recall: float) -> str:
        found = curves.at_recall(rows, key, recall)
        return "–" if found is None else f"{'' if found.exact else '≤ '}{found.value:,.1f}"

    text = [
        f"# Processor time of a query: {head['dataset']}",
        "",
        f"{head['n']:,} rows of {head['dim']} dimensions, {head['threads']} threads, "
        f"{head['query_count']:,} queries, k = 10; of each setting the best of {head['passes']} passes. velo "
        "reads what its budget does not hold, the others hold all vectors in memory. ≤: the first setting is "
        "above that recall. "
        f"{tables.machine_line(head['machine'])}",
        "",
        *(line for title, file in pictures for line in (f"![{title}]({file})", "")),
        "## µs of processor a query",
        "",
        *tables.table(
            [
                "system",
                *(f"recall {recall:.2f}" for recall in RECALLS),
                "reads at 0.95",
                "QPS at 0.95",
                "MiB resident",
                "build, s of processor",
            ],
            [
                [
                    label,
                    *(cell(rows, COST, recall) for recall in RECALLS),
                    cell(rows, "reads", 0.95),
                    cell(rows, "qps", 0.95),
                    f"{rows[0]['resident_growth_bytes'] / _MIB:,.0f}",
                    f"{rows[0]['build_cpu_s']:,.0f}",
                ]
                for label, rows in rows_by_label.items()
            ],
        ),
        "",
        "## Targets",
        "",
        *lines.table(table),
        "",
        lines.tally(table),
        "",
        *_profile_table(results.get("profile", {}).get("result", {}).get("lists", {})),
        *(
            f"Not measured: {section}: {told['error']}\n"
            for section, told in results.items()
            if "error" in told
        ),
    ]
    return "\n".join(text)


def _profile_table(lists_profiled: Mapping[str, Results]) -> list[str]:
    if not lists_profiled:
        return []
    kinds = dict.fromkeys(kind for told in lists_profiled.values() for kind in told["us_by_kind"])
    rows = [
        [kind, *(f"{told['us_by_kind'].get(kind, 0.0):.1f}" for told in lists_profiled.values())]
        for kind in kinds
    ]
    rows.append(["all", *(f"{told['cpu_us']:.1f}" for told in lists_profiled.values())])
    for name, what in (("estimates", "estimates"), ("expanded", "vertices followed"), ("reads", "reads")):
        rows.append([what, *(f"{told[name]:,.1f}" for told in lists_profiled.values())])
    return [
        f"## Where velo's time goes, {profile.BUDGET}",
        "",
        "µs of processor a query, by samples of a profiler.",
        "",
        *tables.table(["where", *(f"list {size}" for size in lists_profiled)], rows),
        "",
    ]
