"""``bench serve``: the cost of a query behind the gateway, and the effect of a lost shard on callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from bench.commands import serve_sections
from bench.commands.serve_sections import CALLERS, EVENT_AT, EVENTS, HEAVY_K, HEAVY_QUERIES, SHARDS, STEP_S
from bench.harness import machine, report
from bench.harness.curves import Row
from bench.harness.plots import Panel, Picture
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Section
from bench.harness.targets import Found, Target, of
from velo.formats import open_vectors

LIMIT_S = 600.0
#: Rows by what they are about, as targets name them.
NAMES = {
    f"JSON, {CALLERS} connections, processes": "together",
    f"JSON, {CALLERS} connections, threads": "threads",
    f"JSON, {CALLERS} connections, processes, 2 workers": "two",
    "JSON, 1 connections, processes": "single",
    "npy bodies of 64, 4 connections": "npy",
    "light queries alone": "alone",
    "light queries beside heavy ones": "beside",
    "library": "library",
    "shards at once": "shards",
}


def sections_of(context: Context) -> Mapping[str, Section]:
    """Every section: each ends within ten minutes."""
    collection, seconds = Path(context.data), context.options["seconds"]
    path = Path(context.options["queries"])

    def queries() -> np.ndarray:
        found: np.ndarray = open_vectors(path).read().astype(np.float32)
        return found

    def asked(kind: str, workers: int = 1) -> Callable[[], list[Row]]:
        return lambda: serve_sections.gateway(collection, queries(), seconds / 2, kind, workers)

    measures: dict[str, Callable[[], list[Row]]] = {
        "library": lambda: serve_sections.library(collection, queries(), path, seconds),
        "processes": asked("processes"),
        "threads": asked("threads"),
        "two gateways": asked("processes", 2),
        "heavy": lambda: serve_sections.heavy_beside(collection, queries(), seconds),
        "overload": lambda: serve_sections.overload(collection, queries(), seconds),
        "events": lambda: serve_sections.events(collection, queries()),
    }

    def section(name: str, measure: Callable[[], list[Row]]) -> Section:
        return Section(name, lambda _: {"rows": measure()}, LIMIT_S)

    return {name: section(name, measure) for name, measure in measures.items()}


def rows_of(page: Page) -> list[Row]:
    """The rows of all sections."""
    return [row for told in page.found.values() for row in told.get("result", {}).get("rows", [])]


def values(page: Page) -> Found:
    """The rows by the names that targets use."""
    return {"rows": {"result": {NAMES[row["what"]]: row for row in rows_of(page) if row["what"] in NAMES}}}


PARTS = "gateway {%s[gateway_us]:,.0f}, shards {%s[shards_us]:,.0f}"
RATES = "{%s[queries_per_s]:,.0f} and {%s[queries_per_s]:,.0f} queries/s"
TARGETS = [
    Target(what, bound, of("rows", value, note), digits)
    for what, bound, value, note, digits in (
        (
            f"{CALLERS} connections, JSON, one query each, four shard processes: processor time, µs",
            "≤ 900",
            "together.all_us",
            PARTS % ("together", "together"),
            0,
        ),
        ("the same, shards in the gateway's process, µs", "≤ 650", "threads.all_us", "all in one process", 0),
        ("one at a time: processor time of the gateway, µs", "≤ 600", "single.gateway_us", "", 0),
        (
            "one at a time: processor time of all processes, µs",
            "≤ 1800",
            "single.all_us",
            PARTS % ("single", "single"),
            0,
        ),
        (
            f"light queries beside {HEAVY_QUERIES} × k = {HEAVY_K:,}: p99 ÷ alone",
            "≤ 2",
            "beside.p99_ms / alone.p99_ms",
            "{beside[p99_ms]:.0f} and {alone[p99_ms]:.0f} ms, {beside[refused]} refused",
            1,
        ),
        (
            "one JSON query through the gateway: p50 above the slowest shard's own, ms",
            "≤ 0.7",
            "single.p50_ms - library.slowest_shard_p50_ms",
            "{single[p50_ms]:.2f} and {library[slowest_shard_p50_ms]:.2f} ms",
            3,
        ),
        (
            "JSON queries a second, one worker",
            "≥ 3000",
            "together.queries_per_s",
            f"{CALLERS} connections",
            0,
        ),
        (
            "two workers ÷ one worker",
            "≥ 1.6",
            "two.queries_per_s / together.queries_per_s",
            RATES % ("two", "together"),
            2,
        ),
        (
            "npy bodies of 64 queries ÷ the library's own rate over the same shards in one process",
            "≥ 0.8",
            "npy.queries_per_s / library.queries_per_s",
            RATES % ("npy", "library"),
            2,
        ),
        (
            "4 shards behind the gateway ÷ the sum of their own rates (npy)",
            "≥ 0.8",
            lambda rows: SHARDS * rows["npy"]["queries_per_s"] / rows["shards"]["queries_per_s"],
            "own: all four at once, a process each, {shards[queries_per_s]:,.0f} queries of a shard a second",
            2,
        ),
    )
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
    title="{options[collection]}: serving with four shards",
    about="Callers run on the same machine. {machine_line}",
    content=content,
    targets=lambda _: TARGETS,
    values=values,
    head=lambda context: {
        "machine": machine.describe(Path(context.data)),
        "options": {"collection": Path(context.data).stem, "seconds": context.options["seconds"]},
    },
    options=(
        Option("queries", None, "a file of vectors", Path),
        Option("--seconds", 5.0, "of each turn"),
    ),
    data="collection",
)
