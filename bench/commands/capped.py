"""``bench capped``: every system's searches in a process that the kernel holds to some memory.

Builds are outside of the cap. A search's process is in a memory cgroup from its first page on, with what the
kernel keeps of files that are first read there. A system that the kernel kills there has its result.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import cgroup, curves, datasets, machine, pages, plots, runs, sections, tables
from bench.harness.curves import RECALL
from bench.harness.datasets import Dataset
from bench.harness.sections import Context, Results, Section

MODULE = "bench.commands.capped"
#: As `runs.peer_job` names them; usearch twice, since it can map its file or load it.
PEERS = (
    "diskannpy",
    "diskannrust",
    "alayalite",
    "zvec",
    "lancedb",
    "qdrantedge",
    "usearch-mapped",
    "usearch",
)
VELO_LISTS = ("16", "32", "64", "96", "128", "192", "256", "384")
PEER_LISTS = (10, 20, 32, 48, 64, 96, 128, 192, 256)
RECALLS = (0.90, 0.95)
_LIMIT_S = 600.0
#: A search ends before its section, which removes the group then.
_SEARCH_S = 570.0
_MB = 1e6
Row = dict[str, Any]


def run(context: Context, out: Path, name: str, only: list[str] | None) -> None:
    """Measure, write ``out/name.md``, ``out/name.jsonl`` and ``out/name.png``."""
    # One query: the truth of a part of a set is found anew each time.
    dataset = datasets.load(Path(context.data), limit=context.limit, query_count=1)
    folder = _folder(context) / "sections"
    results = sections.run(MODULE, sections_of(context), context, folder=folder, only=only)
    head = {
        "machine": machine.describe(context.folder),
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "query_count": context.query_count,
        "limit_bytes": context.options["limit_bytes"],
        "beside": context.options["beside"],
    }
    drawn = _draw(out, name, head, results)
    pages.write(out, name, [{"head": head}, *results.values()], _markdown(name, head, results, drawn))


def sections_of(context: Context) -> Mapping[str, Section]:
    """A system's build, then its searches."""
    every: dict[str, Callable[[Context], Results]] = {}
    for system in ("velo", *context.options["peers"]):
        every[f"build:{system}"] = partial(_build, system)
        every[f"search:{system}"] = partial(_search, system)
    return {name: Section(name, measure, _LIMIT_S) for name, measure in every.items()}


def _folder(context: Context) -> Path:
    return context.folder / "capped" / f"{Path(context.data).name}-{context.limit or 'all'}"


def _job(system: str, context: Context, dataset: Dataset) -> runs.Job:
    budget = context.options["budget"]
    if system == "velo":
        return runs.velo_job(dataset, budget, context.options["lists"], metadata=False)
    share = runs.share_of(budget.partition(":")[0])  # of those whose codes take one
    return runs.peer_job(system, dataset, context.options["peer_lists"], share)


def _build(system: str, context: Context) -> Results:
    """The index, unless it is there; it is opened once, outside of the cap."""
    dataset = context.dataset()
    job = _job(system, context, dataset)
    building = runs.Job(job.system, job.label, job.build, [])
    out = _folder(context) / "builds" / system
    runs.run_job(building, dataset, context.folder, out, threads=context.threads)
    return {"label": job.label, "build": job.build}


def _search(system: str, context: Context) -> Results:
    """Every setting in its order, in one process in the group, up to where it was ended."""
    dataset = context.dataset()
    job = _job(system, context, dataset)
    if not (runs.index_folder(job, dataset, context.folder) / "built.json").exists():
        raise RuntimeError("no index was built")
    out = _folder(context) / "runs" / system
    shutil.rmtree(out, ignore_errors=True)  # what an earlier run answered before it was killed
    ended = ""
    with cgroup.limited(int(context.options["limit_bytes"])) as group:
        try:
            runs.run_job(
                job,
                dataset,
                context.folder,
                out / "0",
                threads=context.threads,
                single_count=context.single_count,
                group=group,
                timeout_s=_SEARCH_S,
            )
        except RuntimeError as error:
            ended = sections.reason_in(str(error)) or str(error)
        except subprocess.TimeoutExpired:
            ended = f"stopped after {_SEARCH_S:.0f} s"
        told = {"peak_bytes": group.peak_bytes, "kills": group.kills}
    if told["kills"]:
        ended = "the kernel killed it for want of memory"
    rows = runs.score_run(dataset, out)
    return {"label": job.label, "build": job.build, "rows": rows, "ended": ended, **told}


# ---- the page


def _found(results: Mapping[str, Results]) -> dict[str, Results]:
    """What each system's searches brought, or why there are none, by system."""
    return {name.partition(":")[2]: told for name, told in results.items() if name.startswith("search:")}


def _draw(out: Path, name: str, head: Row, results: Mapping[str, Results]) -> str | None:
    rows_by_label = {
        told["result"]["label"]: told["result"]["rows"]
        for told in _found(results).values()
        if told.get("result", {}).get("rows")
    }
    if not plots.available() or not rows_by_label:
        return None
    plots.against_recall(
        rows_by_label,
        "qps",
        out / f"{name}.png",
        title=f"Queries a second in {head['limit_bytes'] / _MB:.0f} MB",
        y="queries a second",
    )
    return f"{name}.png"


def _markdown(name: str, head: Row, results: Mapping[str, Results], drawn: str | None) -> str:
    found = _found(results)
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}, its first {head['n']:,} vectors of {head['dim']} dimensions "
        f"({head['n'] * head['dim'] * 4 / _MB:.0f} MB as float32), {head['query_count']:,} queries. Every "
        f"system searches in a process that the kernel holds to {head['limit_bytes'] / _MB:.0f} MB (a memory "
        "cgroup, no swap), the interpreter included, and what the kernel keeps of files that are read there "
        "first: of indexes that is all, their pages were dropped before; libraries were read by the builds, "
        "outside. Systems that map files can be held to any memory, they read again what was taken from "
        "them; those that allocate are killed. Builds were outside of the cap. "
        f"{tables.machine_line(head['machine'])}",
    ]
    if head["beside"]:
        text += [
            "",
            "**The machine ran other work beside this.** Recall, bytes read and who was killed hold. Times "
            "and queries a second do not compare with other pages, and little with each other.",
        ]
    if drawn:
        text += ["", f"![Queries a second over recall in the cap]({drawn})"]
    text += ["", "## At equal recall", ""]
    head_row = ["system", "version", "best recall"]
    for recall in RECALLS:
        head_row += [f"q/s at {recall:.2f}", f"KiB a query at {recall:.2f}"]
    head_row += ["p99, ms", "group's peak, MB", "ended", "load"]
    text += tables.table(head_row, [_line(system, told) for system, told in found.items()])
    text += [
        "",
        "*KiB a query* is what the kernel read from the device for the process; where files are mapped it "
        "reads ahead. *p99* is of queries asked one at a time, at the least setting that reaches 0.90. "
        "Between two settings values are interpolated.",
        "",
        "## Builds",
        "",
        *tables.table(
            ["system", "options", "built", "s", "MB on disk"],
            [_build_line(system, found, results) for system in found],
        ),
        "",
        "## Every setting",
        "",
        *tables.table(
            ["system", "list or probes", "recall@10", "q/s", "p50, ms", "p99, ms", "KiB a query"],
            [
                [
                    row["label"],
                    str(row["list_size"]),
                    f"{row[RECALL]:.4f}",
                    f"{row['qps']:,.0f}",
                    f"{row['latency_p50_us'] / 1e3:.2f}",
                    f"{row['latency_p99_us'] / 1e3:.2f}",
                    f"{row['device_bytes_per_query'] / 1024:,.0f}",
                ]
                for told in found.values()
                for row in told.get("result", {}).get("rows", [])
            ],
        ),
    ]
    return "\n".join(text) + "\n"


def _line(system: str, told: Results) -> list[str]:
    result = told.get("result")
    if result is None:
        return [system, "–", "–", *["–"] * (2 * len(RECALLS) + 2), f"not measured: {told['error']}", "–"]
    rows: Sequence[Row] = sorted(result["rows"], key=lambda row: row["list_size"])
    line = [result["label"], rows[0]["version"] if rows else "–"]
    line.append(f"{curves.best_recall(rows):.4f}" if rows else "–")
    for recall in RECALLS:
        for key, scale in (("qps", 1.0), ("device_bytes_per_query", 1 / 1024)):
            at = curves.at_recall(rows, key, recall)
            mark = "≥ " if key in curves.RATES else "≤ "
            line.append("–" if at is None else f"{'' if at.exact else mark}{at.value * scale:,.0f}")
    reached = next((row for row in rows if row[RECALL] >= RECALLS[0]), None)
    line.append("–" if reached is None else f"{reached['latency_p99_us'] / 1e3:.1f}")
    line.append(f"{result['peak_bytes'] / _MB:.0f}")
    line.append(f"**{result['ended']}**" if result["ended"] else "well")
    return [*line, f"{told.get('load', '–')}"]


def _build_line(system: str, found: Mapping[str, Results], results: Mapping[str, Results]) -> list[str]:
    told = results[f"build:{system}"]
    if "result" not in told:
        return [system, "–", f"not built: {told['error']}", "–", "–"]
    result = told["result"]
    options = ", ".join(f"{key}={value}" for key, value in result["build"].items()) or "its defaults"
    rows = found[system].get("result", {}).get("rows", [])
    cells = (f"{rows[0]['build_s']:,.0f}", f"{rows[0]['disk_bytes'] / _MB:,.0f}") if rows else ("–", "–")
    return [result["label"], options, "well", *cells]
