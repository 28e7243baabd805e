"""``bench serve``: the cost of a query behind the gateway, and the effect of a lost shard on callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench.commands import serve_sections
from bench.commands.serve_sections import CALLERS, EVENT_AT, EVENTS, RECALL, STEP_S
from bench.harness import report
from bench.harness.curves import Row
from bench.harness.plots import Panel, Picture
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section
from bench.harness.targets import Found, Target, of

LIMIT_S = 600.0
#: Rows by what they are about, as targets name them.
NAMES = {
    f"JSON, {CALLERS} connections": "together",
    "JSON, 1 connection": "single",
    "one index": "one",
    "four shards in one process": "four",
    "FastAPI over one index": "plain",
    "light queries alone": "alone",
    **{serve_sections.beside_heavy(name): name for name in serve_sections.HEAVY},
    serve_sections.PEAK: "peak",
    serve_sections.times_the_peak(2): "twice",
    serve_sections.times_the_peak(4): "four_times",
}


def sections_of(context: Context) -> Mapping[str, Section]:
    """Every section: each ends within ten minutes."""
    measures: dict[str, Callable[[Context], list[Row]]] = {
        "processes": serve_sections.gateway,
        "one process": serve_sections.one_process,
        "heavy": serve_sections.heavy_beside,
        "overload": serve_sections.overload,
        "events": serve_sections.events,
    }

    def section(name: str, measure: Callable[[Context], list[Row]]) -> Section:
        def measured(context: Context) -> Results:
            return {"rows": measure(context)}

        return Section(name, measured, LIMIT_S)

    return {name: section(name, measure) for name, measure in measures.items()}


def rows_of(page: Page) -> list[Row]:
    """The rows of all sections."""
    return [row for told in page.found.values() for row in told.get("result", {}).get("rows", [])]


def values(page: Page) -> Found:
    """The rows by the names that targets use."""
    return {"rows": {"result": {NAMES[row["what"]]: row for row in rows_of(page) if row["what"] in NAMES}}}


PARTS = "gateway {%s[gateway_us]:,.0f}, shards {%s[shards_us]:,.0f}"
RATES = "{%s[queries_per_s]:,.0f} and {%s[queries_per_s]:,.0f} queries/s"
PROCESSOR = "{%s[all_us]:,.0f} and {%s[all_us]:,.0f} µs"
_LINES: list[tuple[str, str, Any, str, int]] = [
    (
        f"{CALLERS} connections, JSON, one query each, four shard processes: processor time, µs",
        "≤ 900",
        "together.all_us",
        PARTS % ("together", "together"),
        0,
    ),
    ("the same, queries a second", "≥ 3000", "together.queries_per_s", "", 0),
    (
        "the same, p99 ÷ p50",
        "≤ 2",
        "together.p99_ms / together.p50_ms",
        "{together[p99_ms]:.1f} and {together[p50_ms]:.1f} ms",
        2,
    ),
    (
        "one at a time: processor time of all processes, µs",
        "≤ 800",
        "single.all_us",
        PARTS % ("single", "single"),
        0,
    ),
    (
        "one index ÷ a FastAPI application over it: processor time of a query",
        "≤ 1.1",
        "one.all_us / plain.all_us",
        PROCESSOR % ("one", "plain"),
        2,
    ),
    (
        f"four shards ÷ one index, recall {RECALL}: processor time of a query",
        "≤ 1.4",
        "four.all_us / one.all_us",
        PROCESSOR % ("four", "one") + ", recall {four[recall]:.4f} and {one[recall]:.4f}",
        2,
    ),
    *(
        (
            f"{serve_sections.beside_heavy(name)}: p99 ÷ alone",
            "≤ 2",
            f"{name}.p99_ms / alone.p99_ms",
            f"{{{name}[p99_ms]:.1f}} and {{alone[p99_ms]:.1f}} ms, {{{name}[refused]}} refused",
            1,
        )
        for name in serve_sections.HEAVY
    ),
    (
        "answers in time at twice the peak load ÷ at the peak",
        "≥ 0.9",
        "twice.queries_per_s / peak.queries_per_s",
        RATES % ("twice", "peak"),
        2,
    ),
    (
        "the same at four times the peak load",
        "≥ 0.8",
        "four_times.queries_per_s / peak.queries_per_s",
        RATES % ("four_times", "peak"),
        2,
    ),
    (
        f"answers later than their deadline by {1e3 * serve_sections.LATE_S:.0f} ms",
        "≤ 0",
        lambda rows: rows["twice"]["late"] + rows["four_times"]["late"],
        "at twice and at four times the peak load",
        0,
    ),
]
TARGETS = [
    Target(what, bound, of("rows", value, note), digits) for what, bound, value, note, digits in _LINES
]


def content(page: Page) -> Iterable[Picture | Table]:
    rows = rows_of(page)
    scenes = [row for row in rows if row["what"] in EVENTS]
    series = {
        row["what"]: [(at_s, took_s * 1e3) for at_s, took_s in row.get("timeline", [])] for row in scenes
    }
    panel = Panel(
        "latency, ms",
        series,
        log=True,
        marked=False,
        levels={"250 ms": 250.0},
        moments={"the event": [EVENT_AT * STEP_S]},
    )
    yield Picture("", "Queries every 10 ms around an event", [panel], x="seconds")
    costs: dict[str, report.Cell] = {
        "what": "what",
        "gateway, µs": "gateway_us:,.0f",
        "shards, µs": "shards_us:,.0f",
        "all, µs": "all_us:,.0f",
        "queries/s": "queries_per_s:,.0f",
        "p50, ms": "p50_ms:.2f",
        "p99, ms": "p99_ms:.2f",
        "refused": "refused",
        "late": "late",
        "load": "load:.1f",
    }
    note = "Processor time is that of gateway and shards by the queries answered; callers are not counted."
    yield Table("Costs", costs, [row for row in rows if row["what"] not in EVENTS], note)
    yield Table(
        "Events",
        {
            "event": "what",
            "p50, ms": "p50_ms:.1f",
            "p99, ms": "p99_ms:.1f",
            "longest, ms": "longest_ms:.0f",
            "above 250 ms": "above_250_ms",
            "partial answers": "partial",
            "load": "load:.1f",
        },
        scenes,
        f"Queries every 10 ms, {serve_sections.ASKED} in all; the event happens before number {EVENT_AT}.",
    )


REPORT = Report(
    name="serve",
    help="the cost of a query behind the gateway, and the effect of a lost shard",
    module=__name__,
    title="{dataset}: serving with four shards",
    about="{n:,} rows of {dim} dimensions. Callers run on the same machine. {machine_line}",
    content=content,
    targets=lambda _: TARGETS,
    values=values,
    head=lambda context: report.head_of(context, probe=False, seconds=context.options["seconds"]),
    options=(Option("--seconds", 5.0, "of each turn"),),
)
