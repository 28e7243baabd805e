"""``bench budgets``: reads, rounds and queries a second over memory, from the least that opens to 30 %."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.commands import report_sections
from bench.harness import curves, kept, machine, pages, plots, runs, sections, tables
from bench.harness.datasets import Dataset, K
from bench.harness.sections import Context, Results, Section
from velo.options import BuildOptions, codes_bytes_least, page_codes_bytes_least

MODULE = "bench.commands.budgets"
AT = 0.95
#: Of the float32 vectors; what stands before them is the least that opens.
SHARES = ("1%", "2%", "3.5%", "5%", "6%", "7%", "8%", "10%", "13%", "15%", "20%", "25%", "30%", "45%")
LISTS = ("12", "16", "24", "32", "48", "64", "96", "128", "192", "256", "400", "600")
#: Peers stand as they were measured for the report of the same set.
PEERS = ("hnswlib", "diskannpy", "zvec")
_LIMIT_S = 600.0
#: A build goes on where it was ended.
_BUILD_LIMIT_S = 3600.0
#: Load above which a rate says little.
_QUIET = 3.0
_COUNTS = ("reads", "rounds", "estimates")
Row = dict[str, Any]


def run(context: Context, out: Path, name: str, only: list[str] | None) -> None:
    """Measure, write ``out/name.md``, ``out/name.png`` and ``out/name.jsonl``."""
    dataset = context.dataset()
    folder = context.folder / "budgets" / f"{dataset.name}-{dataset.n}"
    results = sections.run(MODULE, sections_of(context), context, folder=folder, only=only)
    base = runs.export_arrays(dataset, context.folder).base
    head = {
        "machine": machine.describe(context.folder, base),
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "query_count": context.query_count,
        "threads": context.threads,
    }
    report = report_of(out / f"report-{dataset.name}.jsonl")
    table = [row for told in results.values() if (row := at_recall(told))]
    there = {row["share"] for row in table}
    table += [row for row in budgets_in(report) if row["share"] not in there]
    table.sort(key=lambda row: row["share"])
    peers = peers_in(report)
    _write(out, name, head, table, peers, results)


def rewrite(out: Path, name: str) -> None:
    """The page and its picture anew, from the rows that are kept here and of the report."""
    found = kept.load(out, name)
    table = [row["row"] for row in found.rows if "row" in row]
    peers = peers_in(report_of(out / f"report-{found.head['dataset']}.jsonl"))
    _write(out, name, found.head, table, peers, found.results)


def _write(
    out: Path,
    name: str,
    head: Row,
    table: Sequence[Row],
    peers: Mapping[str, Row],
    results: Mapping[str, Results],
) -> None:
    if table and plots.available():
        _draw(out / f"{name}.png", head, table, peers)
    rows = [{"head": head}, *({"row": row} for row in table), *results.values()]
    pages.write(out, name, rows, _markdown(name, head, table, peers, results))


def sections_of(context: Context) -> Mapping[str, Section]:
    """A build for each division of the bits, then the budgets, each with the bits that a build chooses."""
    dataset = context.dataset()
    shares = sorted({*least_of(dataset), *SHARES}, key=runs.share_of)
    budgets = [
        budget_of(dataset, share)
        for share in shares
        if runs.share_of(share) >= runs.share_of(least_of(dataset)[0])
    ]
    builds = {_index_name(dataset, budget): budget for budget in budgets}
    steps = [
        Section(f"index:{name}", partial(_built, budget), _BUILD_LIMIT_S) for name, budget in builds.items()
    ]
    steps += [Section(f"memory:{budget}", partial(_measured, budget), _LIMIT_S) for budget in budgets]
    return {section.name: section for section in steps}


def least_of(dataset: Dataset) -> tuple[str, str]:
    """The shares that hold a code of each page, and the shortest codes of vectors, with page directories."""
    shape = dataset.n, dataset.dim
    sizes = page_codes_bytes_least(*shape), codes_bytes_least(*shape)
    of_pages, of_vectors = (f"{math.ceil(size / dataset.float32_bytes * 1000) / 10:g}%" for size in sizes)
    return of_pages, of_vectors


def budget_of(dataset: Dataset, share: str) -> str:
    """``5%:1+7``: a share, and the bits that a build for it chooses."""
    options = BuildOptions(search_memory=share).for_vectors(dataset.n, dataset.dim)
    return f"{share}:{options.memory_bits}+{options.record_bits}"


def _index_name(dataset: Dataset, budget: str) -> str:
    """Its bits, and what pages hold as well."""
    build = report_sections.velo_job(dataset, budget, []).build
    links = " and links" if build.get("page_links", True) else ""
    return budget.partition(":")[2] + links + (" and codes of pages" if build.get("page_codes") else "")


def _built(budget: str, context: Context) -> Results:
    """An index that was given is taken as it is, and of its build nothing is told."""
    dataset = context.dataset()
    folder = runs.index_folder(report_sections.velo_job(dataset, budget, []), dataset, context.folder)
    given = Path(context.options.get("given") or "/nowhere") / f"{_index_name(dataset, budget)}.velo"
    if given.is_dir() and not folder.exists():
        shutil.copytree(given, folder / "index.velo")
        unknown = dict.fromkeys(("build_s", "build_cpu_s", "build_peak_bytes", "build_load"))
        disk = sum(file.stat().st_size for file in given.iterdir())
        built = {**unknown, "disk_bytes": disk, "built_by": runs.library_digest()}
        (folder / "built.json").write_text(json.dumps(built))
    path = report_sections.index_path(context, dataset, budget)
    told: Results = json.loads((path.parent / "built.json").read_text())
    return told


def _measured(budget: str, context: Context) -> Results:
    dataset = context.dataset()
    lists = [str(size) for size in context.options.get("lists") or LISTS]
    job = report_sections.velo_job(dataset, budget, lists)
    return {"budget": budget, "rows": report_sections.measured(context, dataset, job)}


def at_recall(told: Results) -> Row | None:
    """What a budget takes at recall 0.95, between measured lists; None where that was not measured."""
    result = told.get("result", {})
    rows: list[Row] = result.get("rows", [])
    values = {
        key: curves.at_recall(rows, key, AT) for key in (*_COUNTS, "list_size", "cpu_us_per_query", "qps")
    }
    if not rows or any(one is None for one in values.values()):
        return None
    facts, n = rows[0]["facts"], rows[0]["n"]
    share, _, bits = result["budget"].partition(":")
    return {
        "share": runs.share_of(share),
        "bits": bits,
        "plan": facts["plan"],
        "links": facts["links_kept"] if facts["plan"] == "links_in_memory" else 0,
        "page_codes": facts.get("page_codes_kept", 0),
        "bytes": sum(facts["memory_bytes"][part] for part in ("codes", "links", "cache", "pages")) / n,
        "records": facts["records_per_page"],
        "disk_bytes": rows[0]["disk_bytes"] / n,
        "grown_bytes": max(row["resident_growth_bytes"] for row in rows),
        "load": told["load"],
        "best_recall": curves.best_recall(rows),
        **{key: one.value for key, one in values.items() if one is not None},
    }


def report_of(file: Path) -> dict[str, Results]:
    """Sections of the report over the same set; none where there is no report."""
    if not file.exists():
        return {}
    told = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["section"]: row for row in told if "section" in row}


def budgets_in(report: Mapping[str, Results]) -> list[Row]:
    """Budgets that a report measured."""
    rows = []
    for section, told in report.items():
        points = told.get("result", {}).get("rows", []) if section.startswith("velo") else []
        if points:
            _, share, bits = points[0]["label"].split(" ")
            row = at_recall({"load": told["load"], "result": {"budget": f"{share}:{bits}", "rows": points}})
            rows += [row | {"report": True}] if row else []
    return rows


def peers_in(report: Mapping[str, Results]) -> dict[str, Row]:
    """Peers at the same recall, by their label."""
    peers = {}
    for name in PEERS:
        rows: list[Row] = report.get(f"peer-{name}", {}).get("result", {}).get("rows", [])
        qps = curves.at_recall(rows, "qps", AT)
        if qps is None:
            continue
        grown = max(row["resident_growth_bytes"] for row in rows)
        read = curves.at_recall(rows, "device_bytes_per_query", AT)
        peers[rows[0]["label"]] = {
            "system": name,
            "share": grown / rows[0]["n"] / rows[0]["dim"] / 4,
            "grown_bytes": grown,
            "qps": qps.value,
            "reads": read.value / 4096 if read and rows[0]["home"] == "disk" else None,
        }
    return peers


def kind_of(row: Row) -> str:
    """How a budget is used, as the picture tells it."""
    if row["plan"] == "pages":
        return "codes of pages"
    if row["plan"] == "links_on_disk":
        return "links on disk"
    return "links that neighbors share" if row["links"] < 8 else "links of each vertex"


def _draw(path: Path, head: Row, table: Sequence[Row], peers: Mapping[str, Row]) -> None:
    drawn, panels = plots.stack(3)
    for axes, key, label in zip(
        panels, ("reads", "rounds", "qps"), ("reads", "rounds of reads", "queries a second"), strict=True
    ):
        axes.plot(
            [row["share"] for row in table], [row[key] for row in table], color=plots.GRID, linewidth=1.4
        )
        for number, kind in enumerate(dict.fromkeys(map(kind_of, table))):
            shown = [row for row in table if kind_of(row) == kind]
            style_of = plots.shade(number)
            for full in (True, False):  # a rate beside other work is hollow
                of = [row for row in shown if full == (key != "qps" or row["load"] <= _QUIET)]
                places = [row["share"] for row in of], [row[key] for row in of]
                style: Row = {"color": style_of.color, "marker": style_of.mark, "linestyle": "none"}
                style |= {"label": f"velo, {kind}"} if full else {"fillstyle": "none"}
                axes.plot(*places, **style)
        for name, peer in peers.items():
            if peer.get(key) is not None:
                color, mark = plots.STYLES[peer["system"]]
                axes.plot(
                    [peer["share"]], [peer[key]], color=color, marker=mark, linestyle="none", label=name
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        plots.plain_log(axes.yaxis)
        axes.set_xticks(
            ticks := [0.003, 0.01, 0.02, 0.04, 0.1, 0.2, 0.5, 1, 2], [f"{100 * one:g}%" for one in ticks]
        )
        axes.set_xticks([], minor=True)
        axes.set_ylabel(label)
    title = f"{head['dataset']}: a query of {K} neighbors at recall {AT}"
    plots.save_stack(drawn, panels, path, title=title, x="memory, share of the float32 vectors")


def _markdown(
    name: str, head: Row, table: Sequence[Row], peers: Mapping[str, Row], results: Mapping[str, Results]
) -> str:
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, {head['query_count']:,} queries never seen "
        f"before, k = {K}, recall {AT} between two measured lists, {head['threads']} threads. "
        f"{tables.machine_line(head['machine'])}",
        "",
        "Each budget has the index that a build makes for it (`search_memory`). The first is the least that "
        "opens: a code of each page and the page directory. *Links* are those of a vertex in memory: below 8 "
        "they are shared with its neighbors, at 0 they are on disk; *c a page* are codes of pages, with "
        "neither links nor codes of vectors. *Bytes* are what the budget holds, "
        "*grown* is the process. In the picture velo stands at its budget, a peer at what its process grew "
        "by. Peers, and budgets with a ¹, are those of the report over this set, measured at another time. "
        "Rates and times that were taken beside other work (*load* above 3) say little: hollow marks.",
        "",
        f"![reads, rounds and queries a second over memory]({name}.png)",
        "",
        *tables.table(
            [
                *("memory", "bits", "links", "bytes a vector", "records a page", "list", "reads", "rounds"),
                *("estimates", "CPU µs", "queries/s", "grown MB", "load"),
            ],
            [
                [
                    f"{row['share']:.1%}" + ("¹" if "report" in row else ""),
                    row["bits"],
                    f"{row['page_codes']} a page" if row.get("page_codes") else str(row["links"]),
                    f"{row['bytes']:.1f}",
                    f"{row['records']:.0f}",
                    f"{row['list_size']:.0f}",
                    f"{row['reads']:.1f}",
                    f"{row['rounds']:.1f}",
                    f"{row['estimates']:,.0f}",
                    f"{row['cpu_us_per_query']:,.0f}",
                    f"{row['qps']:,.0f}",
                    f"{row['grown_bytes'] / 1e6:,.0f}",
                    f"{row['load']:.1f}",
                ]
                for row in table
            ],
        ),
    ]
    if peers:
        text += ["", "## Peers", ""]
        text += tables.table(
            ["system", "grown MB", "of float32", "reads", "queries/s"],
            [
                [
                    label,
                    f"{peer['grown_bytes'] / 1e6:,.0f}",
                    f"{peer['share']:.0%}",
                    "–" if peer["reads"] is None else f"{peer['reads']:.0f}",
                    f"{peer['qps']:,.0f}",
                ]
                for label, peer in peers.items()
            ],
        )
    built = {
        section.partition(":")[2]: told["result"]
        for section, told in results.items()
        if section.startswith("index:") and "result" in told
    }
    text += ["", "## Builds", ""]
    text += tables.table(
        ["index", "CPU s", "peak memory MB", "on disk MB"],
        [
            [
                index,
                *(("–", "–") if told["build_cpu_s"] is None else _build_cells(told)),
                f"{told['disk_bytes'] / 1e6:,.0f}",
            ]
            for index, told in built.items()
        ],
    )
    if any(told["build_cpu_s"] is None for told in built.values()):
        text += ["", "–: built before, by another library that writes the same format."]
    there = {f"{row['share']:.3f}" for row in table}
    missing = []
    for section, told in results.items():
        kind, _, rest = section.partition(":")
        told_elsewhere = kind == "index" or f"{runs.share_of(rest.partition(':')[0]):.3f}" in there
        why = _why_not(told)
        if why and not (told_elsewhere and why == "not asked for"):
            missing.append(f"- {section}: {why}")
    if missing:
        text += ["", "Not measured:", "", *missing]
    return "\n".join(text) + "\n"


def _build_cells(told: Results) -> tuple[str, str]:
    return f"{told['build_cpu_s']:,.0f}", f"{told['build_peak_bytes'] / 1e6:,.0f}"


def _why_not(told: Results) -> str | None:
    if "error" in told:
        return str(told["error"])
    rows = told["result"].get("rows")
    return curves.why_missing(rows, AT) if rows is not None and at_recall(told) is None else None
