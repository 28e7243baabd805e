"""``bench sweep``: recall against cost at every setting, velo beside its peers."""

from __future__ import annotations

from collections.abc import Iterable

from bench.commands.speed import sections_of
from bench.harness import report
from bench.harness.curves import Row
from bench.harness.plots import Picture
from bench.harness.report import Option, Page, Report, Table
from bench.peers import install

#: The sections are those of ``bench speed``, in one pass.
__all__ = ["REPORT", "sections_of"]

LISTS = ("32", "64", "96", "128", "160", "192", "256", "384", "512", "768", "1024")
PEER_LISTS = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_FIXED_BYTES = 64 << 20


def content(page: Page) -> Iterable[Picture | Table]:
    rows: list[Row] = [row for told in page.found.values() for row in told.get("result", {}).get("rows", [])]
    every: dict[str, list[Row]] = {}
    for row in rows:
        every.setdefault(row["label"], []).append(row)
    yield report.by_recall("qps", "Queries a second over recall", every, ("qps", "queries a second"))
    yield report.over_memory("memory", every, 0.95)
    keys = (
        ("QPS", "qps", ",.0f", 1.0),
        ("mean ms", "latency_mean_us", ".2f", 1e3),
        ("reads", "reads", ".1f", 1.0),
    )
    yield Table(
        "At equal recall",
        {"system": "label"}
        | {
            f"{head} at {recall}": report.at_cell(key, recall, form, divisor)
            for recall in (0.95, 0.99)
            for head, key, form, divisor in keys
        },
        [{"label": label, "points": points} for label, points in every.items()],
        report.BEGINS_ABOVE,
    )
    yield Table(
        "Every setting",
        report.SETTINGS
        | {"device KiB": "device_bytes_per_query/1024:.0f", "memory MB": "resident_growth_bytes/1e6:,.0f"},
        rows,
        "A list such as 64@1 sets the burst's sigma as well.",
    )
    first = [points[0] for points in every.values()]
    yield Table("Builds", report.BUILDS, first)
    yield Table(
        "Memory against the promise (budget + 64 MiB)",
        {
            "system": "label",
            "budget MB": "budget_bytes/1e6:,.1f",
            "grown by MB": "resident_growth_bytes/1e6:,.1f",
            "kept": lambda row: (
                "yes" if row["resident_growth_bytes"] <= row["budget_bytes"] + _FIXED_BYTES else "**no**"
            ),
        },
        [row for row in first if "budget_bytes" in row],
    )


REPORT = Report(
    name="sweep",
    help="recall against cost at every setting, beside the peers",
    module=__name__,
    title="{dataset}: every setting",
    about="{n:,} × {dim}, {query_count:,} queries, k = 10. Each system ran in a process of its own with its "
    "files dropped from the page cache. Throughput is one batch on {threads} threads; latency is a pass of "
    "its own, one query at a time. Memory is the growth of the resident set since before opening. "
    "{machine_line}",
    content=content,
    options=(
        Option("--budgets", ("20%",), report.BUDGET_HELP),
        Option("--lists", LISTS, "list sizes of velo; 64@1.5 sets sigma as well"),
        Option("--peer-lists", PEER_LISTS, "list sizes of the peers"),
        Option("--peers", ",".join(install.NAMES), "with commas, or none", "names"),
        Option("--peer-code-share", "20%", "memory of the codes of peers on disk"),
        Option("--io", "auto", "how velo reads: auto, uring or threads"),
        Option("--plan", "auto", "how velo opens: auto, links_in_memory or links_on_disk"),
    ),
    defaults={"single": 1000},
)
