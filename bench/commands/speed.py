"""``bench speed``: processor time of a query beside systems that hold all vectors in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from bench.harness import report, runs
from bench.harness.curves import RECALL, Row
from bench.harness.plots import Picture
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section
from bench.harness.targets import Target, ratio

BUDGETS = ("20%", "15%:3+7", "25%", "30%", "45%")
LISTS = ("16", "24", "32", "48", "64", "96", "128", "192", "256", "384", "512")
PEER_LISTS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
COST = "cpu_us_per_query"
#: The most of a peer's processor time, by budget, peer and recall. At 45 % all pages are in memory.
BOUNDS = {
    ("20%", "hnswlib", 0.95): "≤ 0.8",
    ("20%", "rabitqlib", 0.95): "≤ 1.9",
    ("20%", "rabitqlib", 0.99): "≤ 1.8",
    ("45%", "hnswlib", 0.95): "≤ 0.33",
    ("45%", "hnswlib", 0.99): "≤ 0.33",
    ("45%", "rabitqlib", 0.95): "≤ 1.0",
    ("45%", "rabitqlib", 0.99): "≤ 1.0",
}
TARGETS = [
    Target(
        f"{budget}: µs of processor a query at recall {recall:.2f} ÷ {peer}",
        bound,
        ratio(f"velo:{budget}", f"peer:{peer}", COST, recall),
    )
    for (budget, peer, recall), bound in BOUNDS.items()
]
_LIMIT_S = 3600.0


def sections_of(context: Context) -> Mapping[str, Section]:
    """velo at each budget, then each peer."""
    every = {f"velo:{budget}": partial(velo_curve, budget) for budget in context.options["budgets"]}
    every |= {f"peer:{name}": partial(peer_curve, name) for name in context.options["peers"]}
    return {name: Section(name, measure, _LIMIT_S) for name, measure in every.items()}


def velo_curve(budget: str, context: Context) -> Results:
    how = {name: context.options[name] for name in ("io", "plan") if name in context.options}
    return _best(context, runs.velo_job(context.dataset(), budget, context.options["lists"], **how))


def peer_curve(name: str, context: Context) -> Results:
    share = runs.share_of(context.options.get("peer_code_share", "20%"))
    return _best(context, runs.peer_job(name, context.dataset(), context.options["peer_lists"], share))


def _best(context: Context, job: runs.Job) -> Results:
    """The pass of each setting that took least: other work takes from every pass but the luckiest."""
    repeated = runs.Job(job.system, job.label, job.build, job.points * context.options.get("passes", 1))
    least: dict[Any, Row] = {}
    for row in runs.measured(context, context.dataset(), repeated):
        setting = row["list_size"], row.get("sigma")
        if setting not in least or row[COST] < least[setting][COST]:
            least[setting] = row
    return {"label": job.label, "rows": list(least.values())}


def content(page: Page) -> Iterable[Picture | Table]:
    results = [told["result"] for told in page.found.values() if "rows" in told.get("result", {})]
    every = {result["label"]: result["rows"] for result in results}
    yield report.by_recall(
        "recall", "Processor time of a query over recall", every, (COST, "µs of processor a query")
    )
    yield report.over_memory("memory", every, 0.95)
    yield Table(
        "µs of processor a query",
        {
            "system": "label",
            **{f"recall {recall:.2f}": report.at_cell(COST, recall, ",.1f") for recall in (0.9, 0.95, 0.99)},
            "best recall": lambda row: f"{max(point[RECALL] for point in row['points']):.4f}",
            "reads at 0.95": report.at_cell("reads", 0.95, ",.1f"),
            "QPS at 0.95": report.at_cell("qps", 0.95, ",.0f"),
            "MiB resident": lambda row: f"{row['points'][0]['resident_growth_bytes'] / 2**20:,.0f}",
            "build, s of processor": lambda row: f"{row['points'][0]['build_cpu_s']:,.0f}",
        },
        [{"label": label, "points": rows} for label, rows in every.items()],
        report.BEGINS_ABOVE,
    )


REPORT = Report(
    name="speed",
    help="processor time of a query, beside systems in memory",
    module=__name__,
    title="Processor time of a query: {dataset}",
    about="{n:,} rows of {dim} dimensions, {threads} threads, {query_count:,} queries, k = 10, the best of "
    "{passes} passes for each setting. velo reads from the disk what its budget does not hold; the others "
    "hold all vectors in memory. {machine_line}",
    content=content,
    targets=lambda _: TARGETS,
    head=lambda context: report.head_of(context, probe=False, passes=context.options["passes"]),
    options=(
        Option("--budgets", BUDGETS, report.BUDGET_HELP),
        Option("--lists", LISTS, "list sizes of velo"),
        Option("--peer-lists", PEER_LISTS, "list sizes of the peers"),
        Option("--passes", 5, "over each setting; the best one counts"),
        Option("--peers", "hnswlib,rabitqlib,usearch", "with commas, or none", "names"),
    ),
    defaults={"threads": 1, "limit": 100_000, "single": 100},
)
