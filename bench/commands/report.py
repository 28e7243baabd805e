"""Writes what ``bench report`` found: the table of targets, the peers' rows, the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.commands import report_lines, report_sections
from bench.harness import curves, kept, lines, machine, pages, plots, runs, sections, tables
from bench.harness.datasets import K
from bench.harness.sections import Context, Results

MODULE = "bench.commands.report_sections"


def run(context: Context, out: Path, name: str, only: list[str] | None) -> list[lines.Line]:
    """Measure, write ``out/name.md``, ``out/name.jsonl`` and the pictures; returns the table's lines."""
    dataset = context.dataset()
    folder = context.folder / "report" / f"{dataset.name}-{dataset.n}"
    results = sections.run(MODULE, report_sections.sections_of(context), context, folder=folder, only=only)
    host = machine.describe(context.folder, runs.export_arrays(dataset, context.folder).base)
    table = report_lines.lines(results, context, dataset.float32_bytes)
    head = {
        "machine": host,
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "query_count": min(context.query_count, len(dataset.queries)),
        "threads": context.threads,
        "options": {key: value for key, value in context.options.items() if key != "text"},
    }
    write(out, name, head, table, results)
    return table


def rewrite(out: Path, name: str) -> None:
    """The page and its pictures anew, from the rows that are kept."""
    found = kept.load(out, name)
    write(out, name, found.head, found.table, found.results)


def write(
    out: Path, name: str, head: dict[str, Any], table: list[lines.Line], results: dict[str, Results]
) -> None:
    pictures = draw(results, out, name) if plots.available() else []
    rows = [{"head": head}, *(line.record() for line in table), *results.values()]
    pages.write(out, name, rows, markdown(name, head, table, results, pictures))


def systems(results: dict[str, Results]) -> dict[str, list[Results]]:
    """Every curve over the set itself, by label."""
    every: dict[str, list[Results]] = {}
    for section in (
        *(f"velo{share}" for share in sorted(report_sections.SHARES)),
        *(key for key in results if key.startswith("peer-")),
    ):
        if rows := report_sections.curve(results, section):
            every[rows[0]["label"]] = rows
    return every


def draw(results: dict[str, Results], out: Path, name: str) -> list[tuple[str, str]]:
    """The pictures, as (file, caption)."""
    every = systems(results)
    several = {label: rows for label, rows in every.items() if rows[0]["list_size"]}
    if not several:
        return []
    mine = {label: rows for label, rows in several.items() if rows[0]["system"] == "velo"}
    if disk := report_sections.curve(results, "disk", "on"):
        mine[f"{disk[0]['label']} with cache"] = disk
    pictures = []
    points = {}
    for label, rows in every.items():
        at = curves.at_recall(rows, "qps", report_lines.AT)
        if at is not None:
            memory = max(row["resident_growth_bytes"] for row in rows)
            points[label] = (rows[0]["system"], memory / 1e6, at.value)
    if points:
        file = f"{name}-memory.png"
        title = f"queries a second at recall {report_lines.AT} over memory"
        plots.scatter(points, out / file, title=title, x="memory grown by (MB)", y="queries a second")
        pictures.append((file, title))
    for key, label, scale, unit in (
        ("qps", "queries a second", 1.0, several),
        ("latency_mean_us", "mean latency, one at a time (ms)", 1e-3, several),
        ("reads", "reads of 4 KiB a query", 1.0, mine),
    ):
        short = key.split("_")[0]
        file = f"{name}-{short}.png"
        plots.against_recall(
            unit, key, out / file, title=f"{label} over recall", y=label, scale=scale, log=key != "reads"
        )
        pictures.append((file, f"{label} over recall@{K}"))
    return pictures


def markdown(
    name: str,
    head: dict[str, Any],
    table: list[lines.Line],
    results: dict[str, Results],
    pictures: list[tuple[str, str]],
) -> str:
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, {head['query_count']:,} queries never seen "
        f"before, k = {K}, {head['threads']} threads. {tables.machine_line(head['machine'])}",
        "",
        "Values at a recall are interpolated between the two settings of the "
        "list sweep that enclose it, linearly in recall (a rate by its inverse). Each system ran in a "
        "process of its own with its files dropped from the page cache; budgets are shares of the float32 "
        "vectors.",
    ]
    for file, caption in pictures:
        text += ["", f"![{caption}]({file})"]
    text += ["", "## Systems side by side", "", *side_by_side(results)]
    text += ["", "## Targets", "", f"{lines.tally(table)}.", "", *lines.table(table)]
    text += ["", "## Building", "", *building(results)]
    text += ["", "## Every setting", "", *settings(results)]
    text += ["", "## Sections", ""]
    text += tables.table(
        ["section", "seconds", "CPU s", "load", "measured at", ""],
        [
            [
                section["section"],
                f"{section['seconds']:,.0f}" if "seconds" in section else "–",
                f"{section['cpu_s']:,.0f}" if "cpu_s" in section else "–",
                f"{section['load']:.1f}" if "load" in section else "–",
                section.get("measured_at", "–"),
                section.get("error", ""),
            ]
            for section in results.values()
        ],
    )
    return "\n".join(text) + "\n"


def side_by_side(results: dict[str, Results]) -> list[str]:
    """Every system at recall 0.90, 0.95 and 0.99."""
    head = ["system", "memory MB"]
    for recall in (0.9, 0.95, 0.99):
        head += [f"QPS at {recall}", f"mean ms at {recall}", "CPU µs", "reads"]
    rows = []
    for label, points in systems(results).items():
        memory = max(row["resident_growth_bytes"] for row in points)
        cells = [label, f"{memory / 1e6:,.0f}"]
        for recall in (0.9, 0.95, 0.99):
            for key, digits, scale in (
                ("qps", 0, 1.0),
                ("latency_mean_us", 2, 1e-3),
                ("cpu_us_per_query", 0, 1.0),
                ("reads", 1, 1.0),
            ):
                at = curves.at_recall(points, key, recall)
                mark = "" if at is None or at.exact else "*"
                cells.append("–" if at is None else f"{at.value * scale:,.{digits}f}{mark}")
        rows.append(cells)
    return [*tables.table(head, rows), "", "\\* of the system's first setting, whose recall is higher."]


def building(results: dict[str, Results]) -> list[str]:
    every = systems(results)
    if bounded := report_sections.curve(results, "bounded_build"):
        every["velo, told to build in 25 %"] = bounded
    return tables.table(
        ["system", "version", "options", "wall s", "CPU s", "peak memory MB", "on disk MB", "load"],
        [
            [
                label,
                row["version"],
                ", ".join(f"{key} {value}" for key, value in row["build"].items()) or "–",
                f"{row['build_s']:,.1f}",
                f"{row['build_cpu_s']:,.1f}",
                f"{row['build_peak_bytes'] / 1e6:,.0f}",
                f"{row['disk_bytes'] / 1e6:,.0f}",
                f"{row['build_load']:.1f}",
            ]
            for label, (row, *_) in every.items()
        ],
    )


def settings(results: dict[str, Results]) -> list[str]:
    every = dict(systems(results))
    for section, key, label in (
        ("disk", "off", "links on disk, no cache"),
        ("disk", "on", "links on disk, cache"),
        ("stream", "without", "repeating stream, no cache"),
        ("stream", "with", "repeating stream, cache"),
        ("tmpfs", "rows", "on tmpfs"),
        ("growth", "rows", "a tenth of the vectors"),
        ("text", "rows", "text"),
        ("text", "hnswlib", "text"),
    ):
        if rows := report_sections.curve(results, section, key):
            every[f"{label}: {rows[0]['label']}"] = rows
    return tables.table(
        [
            "system",
            "list",
            f"recall@{K}",
            "QPS",
            "mean ms",
            "p99 ms",
            "reads",
            "rounds",
            "hits",
            "CPU µs",
            "load",
        ],
        [
            [
                label,
                tables.list_text(row),
                f"{row[curves.RECALL]:.4f}",
                f"{row['qps']:,.0f}",
                f"{row['latency_mean_us'] / 1000:.2f}",
                f"{row['latency_p99_us'] / 1000:.2f}",
                tables.optional(row, "reads", 1),
                tables.optional(row, "rounds", 2),
                tables.optional(row, "cache_hits", 1),
                f"{row['cpu_us_per_query']:,.0f}",
                f"{row['load']:.1f}",
            ]
            for label, rows in every.items()
            for row in rows
        ],
    )
