"""JSON lines and a Markdown table from scored rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.datasets import Dataset, K

RECALL = f"recall_at_{K}"
TARGETS = (0.95, 0.99)


def write(
    out: Path,
    name: str,
    dataset: Dataset,
    machine: dict[str, Any],
    rows: list[dict[str, Any]],
    notes: list[str],
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    head = {"machine": machine, "notes": notes, "dataset": dataset.name, "n": dataset.n, "dim": dataset.dim}
    with (out / f"{name}.jsonl").open("w") as file:
        for line in ({"head": head}, *rows):
            file.write(json.dumps(line) + "\n")
    (out / f"{name}.md").write_text(markdown(name, dataset, machine, rows, notes))


def markdown(
    name: str, dataset: Dataset, machine: dict[str, Any], rows: list[dict[str, Any]], notes: list[str]
) -> str:
    text = [
        f"# {name}",
        "",
        f"{dataset.name}: {dataset.n:,} × {dataset.dim} {dataset.base.dtype}, {dataset.metric}, "
        f"{rows[0]['query_count'] if rows else 0:,} queries never seen before, k = {K}. "
        f"{machine_line(machine)}",
        "",
        "Each system ran in a process of its own, with the page cache dropped for its files; "
        f"throughput is one batch on {rows[0]['threads'] if rows else '–'} threads, latency a separate "
        "pass, one query at a time, seen from Python. Memory is the growth of the resident set from "
        "before opening, at its highest; device KiB are the kernel's count. Reads of one round "
        "overlap: reads decide throughput, rounds latency. A list such as 64@1 sets the burst's sigma too.",
        "",
    ]
    text += table(
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
                list_text(row),
                f"{row[RECALL]:.4f}",
                f"{row['qps']:,.0f}",
                *(f"{row[f'latency_{kind}_us'] / 1000:.2f}" for kind in ("mean", "p50", "p99")),
                optional(row, "reads", 1),
                optional(row, "rounds", 2),
                optional(row, "bytes_read", 0, 1024),
                f"{row['device_bytes_per_query'] / 1024:.0f}" if row["home"] == "disk" else "–",
                optional(row, "cache_hits", 1),
                f"{row['resident_growth_bytes'] / 1e6:,.0f}",
                f"{row['resident_growth_bytes'] / row['n']:,.0f}",
                f"{row['cpu_us_per_query']:,.0f}",
            ]
            for row in rows
        ],
    )
    for target in TARGETS:
        text += ["", f"## The cheapest setting at recall@{K} ≥ {target}", ""]
        text += table(
            ["system", "list", f"recall@{K}", "QPS", "mean ms", "p99 ms", "reads", "rounds", "memory MB"],
            [
                [
                    row["label"],
                    list_text(row),
                    f"{row[RECALL]:.4f}",
                    f"{row['qps']:,.0f}",
                    f"{row['latency_mean_us'] / 1000:.2f}",
                    f"{row['latency_p99_us'] / 1000:.2f}",
                    optional(row, "reads", 1),
                    optional(row, "rounds", 2),
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
    text += table(
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
        text += table(
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


def machine_line(machine: dict[str, Any]) -> str:
    line = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, {machine['device']}, Python {machine['python']}."
    )
    reads = machine.get("reads") or {}
    if "one_at_a_time_per_s" in reads:
        many = next(
            f"{value:,}/s from {key.split('_')[1]} threads"
            for key, value in reads.items()
            if "threads" in key
        )
        line += (
            f" The device answers {reads['one_at_a_time_per_s']:,} reads of 4 KiB a second one at a time "
            f"(p50 {reads['one_at_a_time_p50_us']} µs) and {many}, asked from Python: a lower bound."
        )
    return line


def list_text(row: dict[str, Any]) -> str:
    sigma = f"@{row['sigma']:g}" if "sigma" in row else ""
    return f"{row['list_size']}{sigma}" if row["list_size"] else "–"


def optional(row: dict[str, Any], name: str, digits: int, divisor: float = 1.0) -> str:
    return f"{row[name] / divisor:.{digits}f}" if name in row else "–"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
