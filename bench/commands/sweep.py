"""``bench sweep`` and ``bench score``: every system at every setting, and the tables of what came of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.harness import machine, pages, runs, tables
from bench.harness.curves import RECALL
from bench.harness.datasets import Dataset, K
from bench.harness.runs import Job
from bench.peers import install

TARGETS = (0.95, 0.99)


def run(
    dataset: Dataset,
    jobs: Iterable[Job],
    *,
    work: Path,
    out: Path,
    name: str,
    threads: int = 2,
    single_count: int = 1000,
) -> list[dict[str, Any]]:
    """Run all jobs, then score and write ``out/name.jsonl`` and ``out/name.md``; a failed or missing system
    is a line.
    """
    work = work.resolve()
    run_folder = work / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    runs.export_arrays(dataset, work)
    notes = []
    library = pages.library()
    for number, job in enumerate(jobs):
        print(f"sweep: {job.label}: {len(job.points)} settings", file=sys.stderr, flush=True)
        folder = run_folder / f"{number:02}-{job.system}"
        try:
            runs.run_job(job, dataset, work, folder, threads=threads, single_count=single_count)
        except install.PeerMissing as missing:
            notes.append(str(missing))
        except (RuntimeError, subprocess.TimeoutExpired) as failed:
            notes.append(f"{job.label}: failed: {str(failed).splitlines()[-1]}")
            print(f"sweep: {failed}", file=sys.stderr)
    host = machine.describe(work, runs.export_arrays(dataset, work).base)
    (run_folder / "head.json").write_text(
        json.dumps({"machine": host, "library": library, "notes": notes, "name": name})
    )
    return finish(dataset, [run_folder], out)


def finish(
    dataset: Dataset, run_folders: Sequence[Path], out: Path, name: str | None = None
) -> list[dict[str, Any]]:
    """Score the runs in ``run_folders`` and write one report; the first names the machine."""
    heads = [json.loads((folder / "head.json").read_text()) for folder in run_folders]
    rows = [
        row | {"library": head["library"]}
        for folder, head in zip(run_folders, heads, strict=True)
        for row in runs.score_run(dataset, folder)
    ]
    notes = [note for head in heads for note in head["notes"]]
    write(out, name or heads[0]["name"], dataset, heads[0]["machine"], rows, notes)
    return rows


def write(
    out: Path,
    name: str,
    dataset: Dataset,
    host: dict[str, Any],
    rows: list[dict[str, Any]],
    notes: list[str],
) -> None:
    head = {"machine": host, "notes": notes, "dataset": dataset.name, "n": dataset.n, "dim": dataset.dim}
    pages.write(out, name, [{"head": head}, *rows], markdown(name, dataset, host, rows, notes))


def markdown(
    name: str, dataset: Dataset, host: dict[str, Any], rows: list[dict[str, Any]], notes: list[str]
) -> str:
    text = [
        f"# {name}",
        "",
        f"{dataset.name}: {dataset.n:,} × {dataset.dim} {dataset.base.dtype}, {dataset.metric}, "
        f"{rows[0]['query_count'] if rows else 0:,} queries never seen before, k = {K}. "
        f"{tables.machine_line(host)}",
        "",
        "Each system ran in a process of its own, with the page cache dropped for its files; "
        f"throughput is one batch on {rows[0]['threads'] if rows else '–'} threads, latency a separate "
        "pass, one query at a time, seen from Python. Memory is the growth of the resident set from "
        "before opening, at its highest; device KiB are the kernel's count. Reads of one round "
        "overlap: reads decide throughput, rounds latency. A list such as 64@1 sets the burst's sigma too.",
        "",
    ]
    text += tables.table(
        [
            "system",
            "list",
            f"recall@{K}",
            "QPS",
            "mean",
            "p50",
            "p99 ms",
            "reads",
            "rounds",
            "KiB",
            "device KiB",
            "cache hits",
            "memory MB",
            "B a vector",
            "CPU µs",
        ],
        [
            [
                row["label"],
                tables.list_text(row),
                f"{row[RECALL]:.4f}",
                f"{row['qps']:,.0f}",
                *(f"{row[f'latency_{kind}_us'] / 1000:.2f}" for kind in ("mean", "p50", "p99")),
                tables.optional(row, "reads", 1),
                tables.optional(row, "rounds", 2),
                tables.optional(row, "bytes_read", 0, 1024),
                f"{row['device_bytes_per_query'] / 1024:.0f}" if row["home"] == "disk" else "–",
                tables.optional(row, "cache_hits", 1),
                f"{row['resident_growth_bytes'] / 1e6:,.0f}",
                f"{row['resident_growth_bytes'] / row['n']:,.0f}",
                f"{row['cpu_us_per_query']:,.0f}",
            ]
            for row in rows
        ],
    )
    for target in TARGETS:
        text += ["", f"## The cheapest setting at recall@{K} ≥ {target}", ""]
        text += tables.table(
            ["system", "list", f"recall@{K}", "QPS", "mean ms", "p99 ms", "reads", "rounds", "memory MB"],
            [
                [
                    row["label"],
                    tables.list_text(row),
                    f"{row[RECALL]:.4f}",
                    f"{row['qps']:,.0f}",
                    f"{row['latency_mean_us'] / 1000:.2f}",
                    f"{row['latency_p99_us'] / 1000:.2f}",
                    tables.optional(row, "reads", 1),
                    tables.optional(row, "rounds", 2),
                    f"{row['resident_growth_bytes'] / 1e6:,.0f}",
                ]
                for row in cheapest(rows, target)
            ],
        )
        short = [
            label for label in labels(rows) if label not in {row["label"] for row in cheapest(rows, target)}
        ]
        if short:
            text += ["", f"Not reached by: {', '.join(short)}."]
    text += ["", "## Building", ""]
    built = {row["label"]: row for row in rows}
    text += tables.table(
        ["system", "version", "options", "wall s", "CPU s", "peak memory MB", "on disk MB", "load"],
        [
            [
                label,
                row["version"],
                ", ".join(f"{key} {value}" for key, value in row["build"].items()) or "–",
                f"{row['build_s']:,.0f}",
                f"{row['build_cpu_s']:,.0f}",
                f"{row['build_peak_bytes'] / 1e6:,.0f}",
                f"{row['disk_bytes'] / 1e6:,.0f}",
                f"{row['build_load']:.1f}",
            ]
            for label, row in built.items()
        ],
    )
    budgeted = {
        row["label"]: row
        for row in sorted(rows, key=lambda r: r["resident_growth_bytes"])
        if "budget_bytes" in row
    }
    if budgeted:
        text += ["", "## Memory against the promise (budget + 64 MiB)", ""]
        text += tables.table(
            ["system", "budget MB", "grown by MB", "kept"],
            [
                [
                    label,
                    f"{row['budget_bytes'] / 1e6:,.1f}",
                    f"{row['resident_growth_bytes'] / 1e6:,.1f}",
                    "yes" if row["resident_growth_bytes"] <= row["budget_bytes"] + (64 << 20) else "**no**",
                ]
                for label, row in budgeted.items()
            ],
        )
    if notes:
        text += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(text) + "\n"


def labels(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["label"] for row in rows))


def cheapest(rows: list[dict[str, Any]], target: float) -> list[dict[str, Any]]:
    """For each system its fastest setting that reaches ``target``."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row[RECALL] >= target and (row["label"] not in best or row["qps"] > best[row["label"]]["qps"]):
            best[row["label"]] = row
    return list(best.values())
