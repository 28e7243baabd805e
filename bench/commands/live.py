"""``bench live``: inserts, upserts, deletes and merges while the index answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.commands import live_fresh, live_many, live_processes, live_sections
from bench.commands.live_indexes import RECALL
from bench.commands.live_sections import KINDS
from bench.harness import report
from bench.harness.curves import Row
from bench.harness.plots import Panel, Picture
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Section
from bench.harness.targets import Target, of

_MIB = 1 << 20
_LIMIT_S = 4 * 3600.0
#: Memory that a process takes beside its budgets.
_FIXED_BYTES = 64 * _MIB
PROMISE = "÷ (memory, that of merges, and 64 MiB)"


def sections_of(_: Context) -> Mapping[str, Section]:
    """Every section, in the order in which they run."""
    return {name: Section(name, measure, _LIMIT_S) for name, measure in live_sections.EVERY.items()}


def promise(told: Row) -> float:
    """The memory that a section may take: the budgets and the fixed part."""
    return float(told["memory_bytes"] + _FIXED_BYTES)


def grown(told: Row) -> float:
    return float(told["growth_bytes"] / promise(told))


#: Section, what, bound, value, note, digits.
Described = tuple[str, str, str, Any, Any, int]
GROWN = "{growth_bytes:,} bytes, sampled every 10 ms"
TARGETS: Sequence[Described] = (
    (
        "insert",
        "insert, batches of 1,000, `interval`: rows a second of processor",
        "≥ 5000",
        "burst.rows / burst.cpu_s",
        "{burst[rows]:,} rows in {burst[seconds]:.2f} s, before memory is full",
        0,
    ),
    (
        "double",
        "from half of the rows to all, until all is in one segment: rows a second of processor",
        "≥ 900",
        "given_rows / whole_cpu_s",
        "{given_rows:,} rows, {whole_cpu_s:.0f} s of processor, longest call {rest[longest_s]:.2f} s",
        0,
    ),
    (
        "double",
        "the same: bytes written ÷ bytes given",
        "≤ 10",
        "written_bytes / given_bytes",
        "{written_bytes:,} bytes, {parts} segments before the last merge",
        1,
    ),
    ("insert", f"growth of memory, all rows into an empty index {PROMISE}", "≤ 1", grown, GROWN, 2),
    ("double", f"growth of memory, half of them {PROMISE}", "≤ 1", grown, GROWN, 2),
    (
        "parts",
        "new rows in segments, and found at recall 0.95: seconds",
        "≤ 20",
        "flushed_s",
        "{new:,} rows, recall {young[recall]:.4f}; found at once: {at_once} of {probes}",
        1,
    ),
    (
        "parts",
        "recall, young segments less a fresh build's",
        "≥ -0.005",
        "young.recall - fresh.recall",
        "{young[recall]:.4f}, fresh {fresh[recall]:.4f}, {young[parts]} segments",
        4,
    ),
    (
        "parts",
        "QPS, young segments ÷ merged",
        "≥ 0.6",
        "young.qps / merged.qps",
        "{young[qps]:,.0f} / {merged[qps]:,.0f}",
        2,
    ),
    (
        "parts",
        "reads, young segments ÷ merged",
        "≤ 1.25",
        "young.reads / merged.reads",
        "{young[reads]:.1f} / {merged[reads]:.1f}",
        2,
    ),
    *live_many.TARGETS,
    *live_fresh.TARGETS,
    *live_processes.TARGETS,
    (
        "dead",
        "QPS, a tenth dead ÷ none",
        "≥ 0.9",
        "tenth.qps / none.qps",
        "recall {tenth[recall]:.4f} / {none[recall]:.4f}",
        2,
    ),
    (
        "merge",
        "lone query while everything is merged ÷ idle: mean",
        "≤ 1.5",
        "busy.mean_us / idle.mean_us",
        "{busy[mean_us]:,.0f} / {idle[mean_us]:,.0f} µs, {seconds:.0f} s",
        2,
    ),
    (
        "merge",
        "lone query while everything is merged ÷ idle: p99",
        "≤ 3",
        "busy.p99_us / idle.p99_us",
        "{busy[p99_us]:,.0f} / {idle[p99_us]:,.0f} µs",
        2,
    ),
)


def targets(page: Page) -> list[Target]:
    callers = str(page.head["options"]["callers"])
    rows: list[Described] = [*TARGETS]
    upserts = f"single upserts from {callers} callers, `sync`: a second"
    rows.append(
        (
            "upserts",
            upserts,
            "≥ 4000",
            f"{callers}.rate",
            lambda told: f"p50 {told[callers]['p50_us']:,.0f} µs",
            0,
        )
    )
    for kind, label in KINDS.items():
        last, section = "steps.-1", f"churn:{kind}"
        what = f"recall after the last turnover ({label}) less a fresh build's"
        rows.append((section, what, "≥ -0.005", f"{last}.recall - fresh.recall", "", 4))
        what = f"reads after it ({label}) ÷ a fresh build's"
        rows.append((section, what, "≤ 1.05", f"{last}.reads / fresh.reads", "fresh: {fresh[reads]:.1f}", 2))
    return [
        Target(what, bound, of(section, value, note), digits)
        for section, what, bound, value, note, digits in rows
    ]


def content(page: Page) -> Iterable[Picture | Table]:
    done = {section: told["result"] for section, told in page.found.items() if "result" in told}
    for section, what in (("insert", "into an empty index"), ("double", "beside as many")):
        if section in done:
            told = done[section]
            begin_s, first = told["burst"]["seconds"], told["burst"]["rows"]
            rows = [*told["burst"]["over_time"]]
            rows += [[begin_s + at, first + count] for at, count in told["rest"]["over_time"]]
            memory = [(at, size / _MIB) for at, size in told["growth_over_time"]]
            level = {"promised memory": promise(told) / _MIB}
            panels = [
                Panel("thousand rows", {"rows": [(at, count / 1000) for at, count in rows]}, marked=False),
                Panel("MiB", {"growth of memory": memory}, marked=False, levels=level),
            ]
            yield Picture(section, f"Rows inserted {what}, batches of 1,000", panels, x="seconds")
    if "many" in done:
        yield from live_many.pictures(done["many"])
    if "merge" in done:
        told = done["merge"]
        longest = {"longest of each stretch": [(at, took * 1e6) for at, took in told["over_time"]]}
        panel = Panel("µs", longest, log=True, marked=False, moments={"the merge": told["merge_s"]})
        yield Picture(
            "latency", "One caller before, during and after a merge of everything", [panel], x="seconds"
        )
    churned = {KINDS[kind]: done[f"churn:{kind}"] for kind in KINDS if f"churn:{kind}" in done}
    if churned:
        series: Any = {
            key: {
                label: [(turn, step[key]) for turn, step in enumerate((*told["steps"], told["fresh"]))]
                for label, told in churned.items()
            }
            for key in ("recall", "reads")
        }
        panels = [Panel("recall@10", series["recall"], low=0.9), Panel("reads a query", series["reads"])]
        x = "turnovers of a tenth; the last point is a fresh build"
        yield Picture("churn", f"After each turnover, asked for recall {RECALL}", panels, x=x)
    states = (
        ("parts", "fresh", "a fresh build"),
        ("parts", "young", "young segments beside"),
        ("parts", "merged", "the same in one segment"),
        ("dead", "none", "a fresh build, beside the next"),
        ("dead", "tenth", "a tenth dead"),
    )
    columns: dict[str, report.Cell] = {
        "state": "state",
        "recall": "recall:.4f",
        "reads": "reads:.1f",
        "QPS": "qps:,.0f",
        "alone, µs": "alone_us:.0f",
    }
    rows_of = [done[section][key] | {"state": label} for section, key, label in states if section in done]
    yield Table("Searches", columns, rows_of)


REPORT = Report(
    name="live",
    help="rows that come and go while the index answers",
    module=__name__,
    title="Rows that come and go: {dataset}",
    about="{n:,} rows of {dim} dimensions, memory {options[memory]}, {threads} threads, {query_count:,} "
    "queries. Searches ask for a recall of 0.95. {machine_line}",
    content=content,
    targets=targets,
    head=lambda context: report.head_of(context, options=context.options),
    options=(
        Option("--memory", "20%", "share of n·d·4 bytes"),
        Option("--merge-memory", None, "of merges, beside --memory (default: as much)"),
        Option("--burst", 20_000, "rows of the insert that meets no merge"),
        Option("--callers", 64, "of single upserts"),
        Option("--seconds", 5.0, "of upserts, and of idle queries"),
        Option("--turnovers", 10, "of a tenth of the rows each"),
    ),
)
