"""Writes what ``bench serve`` found: what a query costs behind the gateway, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.commands import serve_sections
from bench.commands.serve_costs import CALLERS, HEAVY_K, HEAVY_QUERIES, SHARDS
from bench.commands.serve_sections import ASKED, EVENT_AT, STEP_S
from bench.harness import lines, machine, pages, plots, sections, tables
from bench.harness.lines import Line
from bench.harness.sections import Context, Results

__all__ = ["run", "targets"]

MODULE = "bench.commands.serve_sections"
EVENTS = ("nothing", "a shard is killed", "a shard is stopped")

Row = dict[str, Any]
#: Rows by what they are about, and by which version was measured.
Rows = dict[tuple[str, str], Row]


def run(context: Context, out: Path, name: str, only: list[str] | None) -> list[Line]:
    """Measure, write ``out/name.md`` and ``out/name.jsonl``; returns the table's lines."""
    folder = context.folder / "serve" / Path(context.data).name / "sections"
    results = sections.run(MODULE, serve_sections.sections_of(context), context, folder=folder, only=only)
    rows = rows_of(results)
    table = [line for line in targets(rows) if line.value is not None or only is None]
    scenes = [rows[what, "this"] for what in EVENTS if (what, "this") in rows]
    if scenes:
        plots.lines(
            {row["what"]: [(at_s, took_s * 1e3) for at_s, took_s in row["timeline"]] for row in scenes},
            out / f"{name}.png",
            title="queries every 10 ms; after 1.5 s it happens",
            x="seconds",
            y="latency, ms",
            log_y=True,
            dots=False,
            marks=[EVENT_AT * STEP_S],
            levels={"250 ms": 250.0},
        )
    head = {"machine": machine.describe(Path(context.data)), "options": context.options}
    kept = [_without_timelines(one) for one in results.values()]
    text = "\n".join(_page(rows, table, head["machine"], name)) + "\n"
    pages.write(out, name, [{"head": head}, *(line.record() for line in table), *kept], text)
    return table


def _without_timelines(section: Results) -> Results:
    if "result" not in section:
        return section
    rows = [
        {key: value for key, value in row.items() if key != "timeline"} for row in section["result"]["rows"]
    ]
    return section | {"result": {"rows": rows}}


def rows_of(results: dict[str, Results]) -> Rows:
    """What all sections measured."""
    return {
        (row["what"], row.get("side", "this")): row
        for one in results.values()
        for row in one.get("result", {"rows": []})["rows"]
    }


def targets(rows: Rows) -> list[Line]:
    """The table of targets, from what was measured."""

    def line(
        what: str,
        target: str,
        needs: tuple[str, ...],
        value: Callable[..., float],
        note: Callable[..., str],
        digits: int = 0,
    ) -> Line:
        found = [rows.get((_IDLE, one) if one == "FastAPI" else (one, "this")) for one in needs]
        if None in found:
            return Line(what, target, None, "its section has no result")
        return Line(what, target, value(*found), note(*found), digits)

    def beside(what: str, key: str, digits: int = 0) -> str:
        row = rows.get((what, "former"))
        return "" if row is None else f"; the version before: {row[key]:,.{digits}f}"

    def parts(row: Row) -> str:
        return f"gateway {row['gateway_us']:,.0f}, shards {row['shards_us']:,.0f}"

    def by_ray(what: str, key: str) -> str:
        row = rows.get((what, "this"))
        return "Ray's own calls: not measured" if row is None else f"Ray's own calls: {row[key]:.2f} ms"

    together, threads, single = (
        f"JSON, {CALLERS} connections, processes",
        f"JSON, {CALLERS} connections, threads",
        "JSON, 1 connections, processes",
    )
    return [
        line(
            f"{CALLERS} connections, JSON, one query each, four shard processes: processor time, µs",
            "≤ 900",
            (together,),
            lambda row: row["all_us"],
            lambda row: parts(row) + beside(together, "all_us"),
        ),
        line(
            "the same, shards in the gateway's process, µs",
            "≤ 650",
            (threads,),
            lambda row: row["all_us"],
            lambda row: "all in one process" + beside(threads, "all_us"),
        ),
        line(
            "one at a time: processor time of the gateway, µs",
            "≤ 600",
            (single,),
            lambda row: row["gateway_us"],
            lambda row: "of the same run as the next line" + beside(single, "gateway_us"),
        ),
        line(
            "one at a time: processor time of all processes, µs",
            "≤ 1800",
            (single,),
            lambda row: row["all_us"],
            lambda row: parts(row) + beside(single, "all_us"),
        ),
        line(
            "gateway over shards that answer at once ÷ FastAPI with the body's schema alone",
            "≤ 2",
            (_IDLE, "FastAPI"),
            lambda idle, plain: idle["all_us"] / plain["all_us"],
            lambda idle, plain: (
                f"{idle['all_us']:.0f} and {plain['all_us']:.0f} µs" + beside(_IDLE, "all_us")
            ),
            2,
        ),
        line(
            f"light queries beside {HEAVY_QUERIES} × k = {HEAVY_K:,}: p99 ÷ alone",
            "≤ 2",
            (_BESIDE, _ALONE),
            lambda row, alone: row["p99_ms"] / alone["p99_ms"],
            lambda row, alone: (
                f"{row['p99_ms']:.0f} and {alone['p99_ms']:.0f} ms, {row['refused']} refused"
                + _refused_before(rows)
            ),
            1,
        ),
        line(
            "fan-out to 4 idle shards, no search: p50, ms",
            "≤ 0.3",
            ("fan-out over the road",),
            lambda road: road["p50_ms"],
            lambda road: by_ray("fan-out by Ray's calls", "p50_ms"),
            3,
        ),
        line(
            "fan-out to 4 idle shards, no search: p99, ms",
            "≤ 1",
            ("fan-out over the road",),
            lambda road: road["p99_ms"],
            lambda road: by_ray("fan-out by Ray's calls", "p99_ms"),
            3,
        ),
        line(
            "one JSON query through the gateway: p50 above the slowest shard's own, ms",
            "≤ 0.7",
            (_ONE, "library"),
            lambda one, own: one["p50_ms"] - own["slowest_shard_p50_ms"],
            lambda one, own: f"{one['p50_ms']:.2f} and {own['slowest_shard_p50_ms']:.2f} ms",
            3,
        ),
        line(
            "JSON queries a second, one worker",
            "≥ 3000",
            (f"JSON, {CALLERS} connections",),
            lambda row: row["queries_per_s"],
            lambda row: f"{CALLERS} connections",
        ),
        line(
            "two workers ÷ one worker",
            "≥ 1.6",
            (f"JSON, {CALLERS} connections, 2 workers", f"JSON, {CALLERS} connections"),
            lambda both, one: both["queries_per_s"] / one["queries_per_s"],
            lambda both, one: f"{both['queries_per_s']:,.0f} queries/s with two",
            2,
        ),
        line(
            "npy bodies of 64 queries ÷ the library's own rate over the same shards",
            "≥ 0.8",
            ("npy bodies of 64, 4 connections", "library"),
            lambda npy, own: npy["queries_per_s"] / own["queries_per_s"],
            lambda npy, own: (
                f"{npy['queries_per_s']:,.0f} and {own['queries_per_s']:,.0f} queries/s, the "
                "library with all shards in one process"
            ),
            2,
        ),
        line(
            "4 shards behind the gateway ÷ the sum of their own rates (npy)",
            "≥ 0.8",
            ("npy bodies of 64, 4 connections", "shards at once"),
            lambda npy, own: SHARDS * npy["queries_per_s"] / own["queries_per_s"],
            lambda npy, own: (
                f"{SHARDS * npy['queries_per_s']:,.0f} and {own['queries_per_s']:,.0f} queries of "
                "a shard a second; own: all four at once, a process each, batches of 64"
            ),
            2,
        ),
    ]


_ONE = "one JSON query at a time"
_IDLE = "shards that answer at once"
_ALONE, _BESIDE = "light queries alone", "light queries beside heavy ones"


def _refused_before(rows: Rows) -> str:
    row, alone = rows.get((_BESIDE, "former")), rows.get((_ALONE, "former"))
    if row is None or alone is None:
        return ""
    return (
        f"; the version before: {row['p99_ms']:,.0f} and {alone['p99_ms']:.0f} ms, {row['refused']} refused"
    )


def _page(rows: Rows, table: list[Line], machine_row: Row, name: str) -> list[str]:
    scenes = [rows[what, "this"] for what in EVENTS if (what, "this") in rows]
    picture = f"![Latency of queries while it happens]({name}.png)"
    page = [
        f"# {name}: what serving costs, with four shards",
        "",
        tables.machine_line(machine_row)
        + " `python -m bench serve`. Whoever asks runs on this machine, too, and is not counted.",
        "",
        *([picture, ""] if scenes else []),
        *lines.table(table),
        "",
        f"{lines.tally(table)}. Processor time is that of gateway and shards by the queries answered.",
    ]
    costs = [row for (_, side), row in rows.items() if "gateway_us" in row]
    if costs:
        page += ["", "Each version was asked in turns:", ""]
        page += tables.table(
            [
                "what",
                "version",
                "gateway, µs",
                "shards, µs",
                "all, µs",
                "queries/s",
                "p50, ms",
                "p99, ms",
                "load",
            ],
            [
                [
                    row["what"],
                    row["side"],
                    f"{row['gateway_us']:,.0f}",
                    f"{row['shards_us']:,.0f}",
                    f"{row['all_us']:,.0f}",
                    f"{row['queries_per_s']:,.0f}",
                    f"{row['p50_ms']:.1f}",
                    f"{row['p99_ms']:.1f}",
                    f"{row['load']:.1f}",
                ]
                for row in costs
            ],
        )
    by_ray, road = rows.get(("one query by Ray's calls", "this")), rows.get((_ONE, "this"))
    if by_ray is not None and road is not None:
        page += ["", "What it is like where each query is a call of Ray's to each shard's actor:", ""]
        page += tables.table(
            ["one query over the same four shards", "p50, ms", "p99, ms"],
            [
                [what, f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}"]
                for what, row in (
                    ("Ray's calls, merged where they are made, no HTTP", by_ray),
                    ("the road, JSON through the gateway", road),
                )
            ],
        )
    if scenes:
        page += [
            "",
            f"Queries every 10 ms, {ASKED} of them, four shards; before number {EVENT_AT} the event:",
            "",
            *tables.table(
                ["event", "p50, ms", "p99, ms", "longest, ms", "above 250 ms", "partial answers", "load"],
                [
                    [
                        row["what"],
                        f"{row['p50_ms']:.1f}",
                        f"{row['p99_ms']:.1f}",
                        f"{row['longest_ms']:.0f}",
                        str(row["above_250_ms"]),
                        str(row["partial"]),
                        f"{row['load']:.1f}",
                    ]
                    for row in scenes
                ],
            ),
        ]
    return page
