"""``bench filters``: filtered search by selectivity and by kind of label."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench.commands import filters_cases
from bench.commands.filters_cases import LABELS, SHARES, Case
from bench.harness import curves, datasets, report, runs
from bench.harness.curves import RECALL, Row
from bench.harness.datasets import Dataset, K
from bench.harness.plots import Panel, Picture, Points
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section
from bench.harness.targets import Found, Missing, Target, at, curve, ratio

LISTS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
#: List sizes of searches that filter late, as multiples of k / selectivity.
LATE_FACTORS = (0.25, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0)
LIST_MAX = 8192
#: Late filtering below this share asks for more candidates than a list holds.
LATE_SHARE_MIN = 0.01
PEERS = ("hnswlib", "diskannpy")
PEER_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0)
PEER_CANDIDATES_MAX = 2000
PEER_QUERIES = 500
SETTING = 0.95


def sections_of(context: Context) -> Mapping[str, Section]:
    """A section for each filter, then single numbers and peers."""
    dataset = context.dataset(warm_up=0)
    limit_s = 3600.0 if dataset.n > 200_000 else 600.0
    names = case_names(dataset)
    every: dict[str, Callable[[Context], Results]] = {name: measure_case(name) for name in names}
    every |= {"one_thread": one_thread, "edges": edges}
    for peer in context.options["peers"]:
        of_peer = [tenth(dataset), "share_0.5", "share_0.2", "share_0.05"]
        every |= {f"{peer}-{name}": over_fetched(peer, name) for name in of_peer if name in names}
    return {name: Section(name, measure, limit_s) for name, measure in every.items()}


def case_names(dataset: Dataset) -> list[str]:
    """Every filter measured over the set."""
    there = filters_cases.names_of(dataset.folder)
    names = [filters_cases.share_name(share) for share in SHARES if share * dataset.n >= 1]
    return names + [label for label in LABELS if label in there]


def tenth(dataset: Dataset) -> str:
    """The filter that a tenth of the rows passes, with labels independent of the vectors."""
    return "uniform10" if "uniform10" in filters_cases.names_of(dataset.folder) else "share_0.1"


def index_of(context: Context, dataset: Dataset) -> tuple[Path, Path]:
    """The index with the set's columns and those of the mixes, and the Parquet file of these columns."""
    columns = filters_cases.table_of(dataset, context.folder)
    job = runs.velo_job(dataset, context.options["budget"], [], build={"metadata": str(columns)})
    return runs.built_index(context, dataset, job), columns


def opened(context: Context, path: Path, **options: Any) -> velo.Index:
    memory = context.options["budget"].partition(":")[0]
    index: velo.Index = velo.open(path, **({"memory": memory, "threads": context.threads} | options))
    return index


def case_of(context: Context, dataset: Dataset, name: str, columns: Path) -> Case:
    """``share_0.1``, or a filter that the set names."""
    count = context.query_count
    if name.startswith("share_"):
        return filters_cases.share_case(dataset, float(name.removeprefix("share_")), columns, count=count)
    return filters_cases.load(dataset, name, count=count)


def search(dataset: Dataset, index: velo.Index, case: Case, *, plan: str = "auto", **how: Any) -> Row:
    """One batch, each query with its filter; filters are compiled before the clock starts."""
    tuning = velo.SearchTuning(filter_plan=plan)
    index.search(case.queries[:20], K, filter=case.filters[:20], tuning=tuning, **how)
    start = time.perf_counter()
    found = index.search(case.queries, K, filter=case.filters, tuning=tuning, **how)
    seconds = time.perf_counter() - start
    counts = ("reads", "rounds", "estimates", "expanded")
    return {
        "filter": case.name,
        "plan": plan,
        "system": "velo",
        "list_size": how.get("list_size") or 0,
        RECALL: filters_cases.score(dataset, case, np.asarray(found.ids)),
        "qps": len(case.queries) / seconds,
        "engine_latency_us": float(np.mean(found.stats["latency_us"])),
        "query_count": len(case.queries),
        **{name: float(np.mean(found.stats[name])) for name in counts},
    }


def sweep_lists(
    dataset: Dataset, index: velo.Index, case: Case, plan: str, lists: Sequence[int]
) -> list[Row]:
    # Compilation is the filter's cost, not the search's: it is done before, for all predicates of the case.
    index.search(case.queries, K, filter=case.filters, list_size=K)
    return [search(dataset, index, case, plan=plan, list_size=size) for size in lists]


def late_lists(share: float) -> list[int]:
    sizes = [max(16, int(np.ceil(factor * K / share))) for factor in LATE_FACTORS]
    return sorted({size for size in sizes if size <= LIST_MAX})


def measure_case(name: str) -> Callable[[Context], Results]:
    """A filter with velo's own filter plan, filtered late, and at the one setting ``recall=0.95``."""

    def measure(context: Context) -> Results:
        dataset = context.dataset(warm_up=0)
        path, columns = index_of(context, dataset)
        case = case_of(context, dataset, name, columns)
        share = filters_cases.share_of(case, filters_cases.masks_of(case, columns))
        lists = context.options.get("lists") or LISTS
        told: Results = {"filter": name, "share": share, "query_count": len(case.queries)}
        with opened(context, path) as index:
            told["rows"] = sweep_lists(dataset, index, case, "auto", lists)
            told["setting"] = search(dataset, index, case, recall=SETTING)
            if share >= LATE_SHARE_MIN * 0.9:
                told["late"] = sweep_lists(dataset, index, case, "late", late_lists(share))
        return told

    return measure


def edges(context: Context) -> Results:
    """The one setting where all rows pass, and where a single row does."""
    dataset = context.dataset(warm_up=0)
    path, columns = index_of(context, dataset)
    queries = dataset.queries[: context.query_count]
    values = np.asarray(pq.read_table(columns, columns=["price"])["price"])
    least = int(np.argmin(values))
    bound = float(np.nextafter(values[least], np.float32(2), dtype=np.float32))
    everything = Case("share_2", "price", [2.0] * len(queries), queries, dataset.truth_ids[: len(queries)])
    one = np.full((len(queries), K), -1, np.int64)
    one[:, 0] = least
    single = Case("share_one", "price", [bound] * len(queries), queries, one)
    with opened(context, path) as index:
        cases = {"all": everything, "one": single}
        return {name: search(dataset, index, case, recall=SETTING) for name, case in cases.items()}


def one_thread(context: Context) -> Results:
    """10 % pass, one thread, 20 % of memory."""
    dataset = context.dataset(warm_up=0)
    path, columns = index_of(context, dataset)
    name = tenth(dataset)
    case = case_of(context, dataset, name, columns)
    with opened(context, path, memory="20%", threads=1) as index:
        rows = sweep_lists(dataset, index, case, "auto", context.options.get("lists") or LISTS)
        late = sweep_lists(dataset, index, case, "late", late_lists(0.1))
    return {"filter": name, "rows": rows, "late": late}


def over_fetched(peer: str, name: str) -> Callable[[Context], Results]:
    """A peer without filters, asked for k / selectivity candidates and more.

    The candidates that pass are kept; the time to drop the others is not counted.
    """

    def measure(context: Context) -> Results:
        dataset = context.dataset(warm_up=0)
        columns = filters_cases.table_of(dataset, context.folder)
        narrow = replace(context, query_count=min(context.query_count, PEER_QUERIES), single_count=20)
        case = case_of(narrow, dataset, name, columns)
        masks = filters_cases.masks_of(case, columns)
        share = filters_cases.share_of(case, masks)
        counts = [int(np.ceil(K / share * factor)) for factor in PEER_FACTORS]
        counts = [count for count in counts if count <= PEER_CANDIDATES_MAX]
        if not counts:
            raise datasets.DataError(f"{name}: more than {PEER_CANDIDATES_MAX} candidates would be needed")
        job = runs.peer_job(peer, dataset, counts, 0.2)
        points = [point | {"k": point["list_size"], "warm_up_count": 0} for point in job.points]
        asked = replace(dataset, queries=case.queries, truth_ids=np.maximum(case.truth_ids, 0))
        rows, answers = runs.measured_with_answers(narrow, asked, replace(job, points=points))
        for row, ids in zip(rows, answers, strict=True):
            row[RECALL] = filters_cases.score(dataset, case, passing(ids, case, masks))
        return {"filter": name, "share": share, "rows": rows}

    return measure


def passing(answers: NDArray[np.int64], case: Case, masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
    """The first k ids of each query that pass its filter, padded with -1."""
    ids = np.full((len(answers), K), -1, dtype=np.int64)
    for (_, members), mask in zip(case.groups(), masks, strict=True):
        for query in members:
            first = answers[query][(answers[query] >= 0) & mask[np.maximum(answers[query], 0)]][:K]
            ids[query, : len(first)] = first
    return ids


def measured_cases(found: Found) -> dict[str, Row]:
    """The results of the filters' sections."""
    return {name: told["result"] for name, told in found.items() if "setting" in told.get("result", {})}


def plain(found: Found) -> str:
    """The filter that a tenth passes, among those of a page."""
    return "uniform10" if "uniform10" in found else "share_0.1"


def targets(page: Page) -> list[Target]:
    name = plain(page.found)
    one_thread = (("reads", "≤ 13", 1), ("rounds", "≤ 2", 2), ("qps", "≥ 4000", 0))
    others = {"filtering late": (f"{name}/late", "≥ 7.6")}
    others |= {f"{peer} over-fetching": (f"{peer}-{name}", "≥ 10") for peer in PEERS}
    return [
        *(
            Target(
                f"{key}, {name}, recall 0.95, 20 %, one thread", bound, at("one_thread", key, 0.95), digits
            )
            for key, bound, digits in one_thread
        ),
        Target("reads ÷ (reads filtering late × share), worst of all shares ≥ 1 %", "≤ 1.1", worst_reads),
        *(
            Target(f"QPS, {name}, recall 0.90, ÷ {what}", bound, ratio(name, path, "qps", 0.9))
            for what, (path, bound) in others.items()
        ),
        Target(f"recall@10 at recall={SETTING}, worst of all filters", "≥ 0.95", worst_recall, 4),
        Target("QPS where fewer than 20 % pass ÷ QPS at 20 %, the least", "≥ 1", never_slower),
    ]


def worst_reads(found: Found) -> tuple[float, str]:
    cases = measured_cases(found)
    shares = {name: case for name, case in cases.items() if name.startswith("share_")}
    ratios = {}
    for name, case in (shares or cases).items():
        if "late" in case and (value := curves.ratio(case["rows"], case["late"], "reads", 0.95)) is not None:
            ratios[name] = value.value / case["share"]
    if not ratios:
        raise Missing("recall 0.95 not reached, or not measured")
    worst = max(ratios, key=ratios.__getitem__)
    every = ", ".join(f"{cases[name]['share']:.2g}: {value:.2f}" for name, value in ratios.items())
    return ratios[worst], f"at {cases[worst]['share']:.2%}; {every}"


def worst_recall(found: Found) -> tuple[float, str]:
    recalls = {name: case["setting"][RECALL] for name, case in measured_cases(found).items()}
    for name, row in found.get("edges", {}).get("result", {}).items():
        recalls[f"{name} of the rows"] = row[RECALL]
    if not recalls:
        raise Missing("no filter was measured")
    worst = min(recalls, key=recalls.__getitem__)
    below = [name for name, value in recalls.items() if value < 0.95]
    return recalls[worst], f"{worst}; below: {', '.join(below)}" if below else f"{worst}, of {len(recalls)}"


def never_slower(found: Found) -> tuple[float, str]:
    rates = {
        case["share"]: value.value
        for name, case in measured_cases(found).items()
        if name.startswith("share_") and (value := curves.at_recall(case["rows"], "qps", 0.95))
    }
    at_20 = next((rate for share, rate in rates.items() if abs(share - 0.2) < 0.03), None)
    below = {share: rate for share, rate in rates.items() if share < 0.15}
    if at_20 is None or not below:
        raise Missing("recall 0.95 not reached, or not measured")
    worst = min(below, key=below.__getitem__)
    return below[worst] / at_20, f"{below[worst]:,.0f} at {worst:.2%} / {at_20:,.0f} at 20 %"


def over(cases: Mapping[float, Row], rows: str, key: str) -> Points:
    """``key`` at recall 0.9 of each case that reaches it."""
    found = [(x, curves.at_recall(case.get(rows, []), key, 0.9)) for x, case in cases.items()]
    return [(x, value.value) for x, value in found if value is not None]


def content(page: Page) -> Iterable[Picture | Table]:
    cases, name = measured_cases(page.found), plain(page.found)
    shares = {case["share"]: case for key, case in cases.items() if key.startswith("share_")}
    qps, reads = "queries a second", "reads a query"
    ways = {"velo, recall 0.9": "rows", "velo, filtering late, recall 0.9": "late"}
    panels = [
        Panel(y, {label: over(shares, rows, key) for label, rows in ways.items()}, log=True)
        for key, y in (("qps", qps), ("reads", reads))
    ]
    got = [(share, case["setting"][RECALL]) for share, case in shares.items()]
    panels.append(Panel("recall@10", {f"velo, recall={SETTING}": got}, low=0.8))
    yield Picture("share", "By selectivity", panels, x="rows that pass", scale="share")
    kinds = {key: case["rows"] for key, case in cases.items() if not key.startswith("share_")}
    yield report.by_recall("kinds", "By kind of label", kinds, ("qps", qps), ("reads", reads))
    beside = {"velo": curve(page.found, name), "velo, filtering late": curve(page.found, f"{name}/late")}
    beside |= {f"{peer}, over-fetching": curve(page.found, f"{peer}-{name}") for peer in PEERS}
    yield report.by_recall("tenth", f"{qps}, {name}: 10 % pass", beside, ("qps", qps))
    columns: dict[str, report.Cell] = {"filter": "filter", "passes": "share:.3%"}
    digits = {"reads": ".1f", "rounds": ".2f", "qps": ",.0f"}
    for recall in (0.9, 0.95):
        for key, form in digits.items():
            columns[f"{key} at {recall}"] = report.at_cell(key, recall, form, points="rows")
    for key in ("reads", "qps"):
        columns[f"late: {key} at 0.9"] = report.at_cell(key, 0.9, digits[key], points="late")
    columns |= {f"recall at recall={SETTING}": f"setting.{RECALL}:.4f", "QPS there": "setting.qps:,.0f"}
    about = "*Late* reads as if there were no filter and drops the rows that do not pass. "
    yield Table("By filter", columns, list(cases.values()), about + report.BEGINS_ABOVE)
    fetched = [
        told["result"] | {"peer": peer, "mine": curve(page.found, case)}
        for peer in PEERS
        for case in cases
        if "result" in (told := page.found.get(f"{peer}-{case}", {}))
    ]
    yield Table(
        "Peers that over-fetch",
        {
            "peer": "peer",
            "filter": "filter",
            "passes": "share:.2%",
            "QPS at 0.9": report.at_cell("qps", 0.9, ",.0f", points="rows"),
            "QPS at 0.95": report.at_cell("qps", 0.95, ",.0f", points="rows"),
            "velo at 0.9, times": times,
        },
        fetched,
        "A peer is asked for k / selectivity candidates and more; dropping those that fail is not counted.",
    )


def times(row: Row) -> str | None:
    value = curves.ratio(row["mine"], row["rows"], "qps", 0.9)
    return None if value is None else f"{value.value:.1f}×"


REPORT = Report(
    name="filters",
    help="filtered search by selectivity and kind of label",
    module=__name__,
    title="{dataset}: filtered search",
    about="{n:,} × {dim}, budget {budget}, {threads} threads, {query_count:,} queries. Recall is against "
    "exact truth among the rows that pass. {machine_line}",
    content=content,
    targets=targets,
    head=lambda context: report.head_of(context, budget=context.options["budget"]),
    options=(
        Option("--budget", "25%", report.BUDGET_HELP),
        Option("--peers", ",".join(PEERS), "that over-fetch; with commas, or none", "names"),
        Option("--lists", (), "list sizes of the curves", int),
    ),
    defaults={"queries": 1000, "single": 20},
)
