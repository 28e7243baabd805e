"""``bench budgets``: reads, rounds and queries a second over memory, from the least that opens to 45 %."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import partial

from bench.harness import curves, runs
from bench.harness.curves import Row
from bench.harness.datasets import Dataset
from bench.harness.plots import Panel, Picture
from bench.harness.report import Option, Page, Report, Table
from bench.harness.sections import Context, Results, Section
from velo.options import BuildOptions, sizes_of

AT = 0.95
#: Shares of the float32 vectors beside the least that opens.
SHARES = ("1%", "2%", "3.5%", "5%", "6%", "7%", "8%", "10%", "13%", "15%", "20%", "25%", "30%", "45%")
LISTS = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 400, 600)
#: Peers are those of the report over the same set.
PEERS = ("hnswlib", "diskannpy", "zvec")
_LIMIT_S = 600.0
#: A build that was ended is resumed.
_BUILD_LIMIT_S = 3600.0
#: Options of a build that its name has in words, or that all builds share.
_NAMED_OTHERWISE = ("memory_bits", "record_bits", "page_links", "page_codes", "links_kept", "metric")
_KEYS = ("reads", "rounds", "estimates", "list_size", "cpu_us_per_query", "qps")


def sections_of(context: Context) -> Mapping[str, Section]:
    """A build for each division of the bits, then the budgets, each with the bits that a build chooses."""
    dataset = context.dataset()
    least = least_of(dataset)
    shares = sorted({*least, *SHARES}, key=runs.share_of)
    budgets = [
        budget_of(dataset, share) for share in shares if runs.share_of(share) >= runs.share_of(least[0])
    ]
    builds = {_index_name(dataset, budget): budget for budget in budgets}
    steps = [
        Section(f"index:{name}", partial(_built, budget), _BUILD_LIMIT_S) for name, budget in builds.items()
    ]
    steps += [Section(f"memory:{budget}", partial(_measured, budget), _LIMIT_S) for budget in budgets]
    return {section.name: section for section in steps}


def least_of(dataset: Dataset) -> tuple[str, str]:
    """The shares that hold a code of each page, and the shortest codes of vectors, with page directories."""
    sizes = sizes_of(dataset.n, dataset.dim)
    least = sizes.page_codes_least_bytes, sizes.codes_least_bytes
    of_pages, of_vectors = (f"{math.ceil(size / dataset.float32_bytes * 1000) / 10:g}%" for size in least)
    return of_pages, of_vectors


def budget_of(dataset: Dataset, share: str) -> str:
    """``5%:1+7``: a share, and the bits that a build for it chooses."""
    options = BuildOptions(search_memory=share).for_vectors(dataset.n, dataset.dim)
    return f"{share}:{options.memory_bits}+{options.record_bits}"


def _index_name(dataset: Dataset, budget: str) -> str:
    build = runs.velo_job(dataset, budget, []).build
    links = " and links" if build.get("page_links", True) else ""
    name = budget.partition(":")[2] + links + (" and codes of pages" if build.get("page_codes") else "")
    others = (f"{key} {value}" for key, value in build.items() if key not in _NAMED_OTHERWISE)
    return ", ".join([name, *others])


def _built(budget: str, context: Context) -> Results:
    dataset = context.dataset()
    path = runs.built_index(context, dataset, runs.velo_job(dataset, budget, []))
    told: Results = json.loads((path.parent / "built.json").read_text())
    return told


def _measured(budget: str, context: Context) -> Results:
    dataset = context.dataset()
    job = runs.velo_job(dataset, budget, context.options.get("lists") or LISTS)
    return {"budget": budget, "rows": runs.measured(context, dataset, job)}


def at_recall(told: Results) -> Row | None:
    """The cost of a budget at recall 0.95, between measured lists; None where that was not measured."""
    result = told.get("result", {})
    rows: list[Row] = result.get("rows", [])
    values = {key: curves.at_recall(rows, key, AT) for key in _KEYS}
    if not rows or any(one is None for one in values.values()):
        return None
    facts, n = rows[0]["facts"], rows[0]["n"]
    share, _, bits = result["budget"].partition(":")
    return {
        "share": runs.share_of(share),
        "bits": bits,
        "plan": facts["plan"],
        "links": facts["links_kept"] if facts["plan"] == "links_in_memory" else 0,
        "page_codes": facts.get("page_codes_kept", 0),
        "record_code_bytes": facts.get("record_code_bytes", 0),
        "bytes": sum(facts["memory_bytes"][part] for part in ("codes", "links", "cache", "pages")) / n,
        "records": facts["records_per_page"],
        "disk_bytes": rows[0]["disk_bytes"] / n,
        "grown_bytes": max(row["resident_growth_bytes"] for row in rows),
        "load": told["load"],
        "best_recall": curves.best_recall(rows),
        **{key: one.value for key, one in values.items() if one is not None},
    }


def rows_of(page: Page) -> list[Row]:
    """A row for each budget, by memory; budgets that only the report has measured are marked."""
    rows = [row for told in page.found.values() if (row := at_recall(told))]
    there = {row["share"] for row in rows}
    for section, told in report_of(page).items():
        points = told.get("result", {}).get("rows", []) if section.startswith("velo") else []
        if points:
            _, share, bits = points[0]["label"].split(" ")
            row = at_recall({"load": told["load"], "result": {"budget": f"{share}:{bits}", "rows": points}})
            if row and row["share"] not in there:
                rows.append(row | {"report": True})
    return sorted(rows, key=lambda row: row["share"])


def before_of(page: Page) -> list[Row]:
    """The rows of an earlier version beside the page, each with the ``commit`` of its library."""
    file = page.out / "earlier" / f"{page.name}.jsonl"
    kept = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [one["row"] | {"commit": one["library"]["commit"][:10]} for one in kept if "row" in one]


def report_of(page: Page) -> Mapping[str, Results]:
    """Sections of the report over the same set; none where there is no report."""
    name = f"report-{page.head['dataset']}"
    return REPORT.kept(page.out, name).found if (page.out / f"{name}.jsonl").exists() else {}


def peers_in(found: Mapping[str, Results]) -> list[Row]:
    """Peers of a report at the same recall."""
    peers = []
    for name in PEERS:
        rows: list[Row] = found.get(f"peer-{name}", {}).get("result", {}).get("rows", [])
        qps = curves.at_recall(rows, "qps", AT)
        if qps is not None:
            grown = max(row["resident_growth_bytes"] for row in rows)
            read = curves.at_recall(rows, "device_bytes_per_query", AT)
            peers.append(
                {
                    "label": rows[0]["label"],
                    "share": grown / rows[0]["n"] / rows[0]["dim"] / 4,
                    "grown_bytes": grown,
                    "qps": qps.value,
                    "reads": read.value / 4096 if read and rows[0]["home"] == "disk" else None,
                }
            )
    return peers


def kind_of(row: Row) -> str:
    """The use of a budget."""
    if row.get("record_code_bytes"):
        return "codes of records"
    if row["plan"] in ("walk", "pages"):
        return "codes of pages"
    if row["plan"] == "links_on_disk":
        return "links on disk"
    return "links that neighbors share" if row["links"] < 8 else "links of each vertex"


def _links_of(row: Row) -> str | int:
    if row.get("record_code_bytes"):
        return f"{row['record_code_bytes']} bytes a record"
    return f"{row['page_codes']} a page" if row.get("page_codes") else int(row["links"])


def _of_former(former: Mapping[float, Row], row: Row, key: str, form: str) -> str | None:
    """A value of the earlier version with the same memory."""
    there = former.get(row["share"])
    return None if there is None else format(there[key], form)


def _commits_of(before: Iterable[Row]) -> str:
    commits = dict.fromkeys(f"`{row['commit']}`" for row in before)
    return f" *Before*: {', '.join(commits)}." if commits else ""


def content(page: Page) -> Iterable[Picture | Table]:
    rows, before, peers = rows_of(page), before_of(page), peers_in(report_of(page))
    former = {row["share"]: row for row in before}
    panels = []
    for key, y in (("reads", "reads"), ("rounds", "rounds of reads"), ("qps", "queries a second")):
        series = {
            f"velo, {kind}": [(row["share"], row[key]) for row in rows if kind_of(row) == kind]
            for kind in dict.fromkeys(map(kind_of, rows))
        }
        if before:
            series["velo, earlier version"] = [(row["share"], row[key]) for row in before]
        series |= {peer["label"]: [(peer["share"], peer[key])] for peer in peers if peer.get(key) is not None}
        panels.append(Panel(y, series, log=True))
    title = f"{page.head['dataset']}: a query of 10 neighbors at recall {AT}"
    yield Picture("", title, panels, x="memory, share of the float32 vectors", scale="share")
    yield Table(
        "Budgets",
        {
            "memory": lambda row: f"{row['share']:.1%}" + ("¹" if "report" in row else ""),
            "bits": "bits",
            "links": _links_of,
            "bytes a vector": "bytes:.1f",
            "records a page": "records:.0f",
            "list": "list_size:.0f",
            "reads": "reads:.1f",
            "reads before": lambda row: _of_former(former, row, "reads", ".1f"),
            "rounds": "rounds:.1f",
            "rounds before": lambda row: _of_former(former, row, "rounds", ".1f"),
            "estimates": "estimates:,.0f",
            "CPU µs": "cpu_us_per_query:,.0f",
            "queries/s": "qps:,.0f",
            "queries/s before": lambda row: _of_former(former, row, "qps", ",.0f"),
            "disk bytes a vector": "disk_bytes:.0f",
            "grown MB": "grown_bytes/1e6:,.0f",
            "load": "load:.1f",
        },
        rows,
        "¹ of the report over this set, measured at another time." + _commits_of(before),
    )
    yield Table(
        "Peers",
        {
            "system": "label",
            "grown MB": "grown_bytes/1e6:,.0f",
            "of float32": "share:.0%",
            "reads": "reads:.0f",
            "queries/s": "qps:,.0f",
        },
        peers,
    )
    built = {
        section: told["result"]
        for section, told in page.found.items()
        if section.startswith("index:") and "result" in told
    }
    yield Table(
        "Builds",
        {
            "index": lambda row: row["name"].partition(":")[2],
            "CPU s": "build_cpu_s:,.0f",
            "peak memory MB": "build_peak_bytes/1e6:,.0f",
            "on disk MB": "disk_bytes/1e6:,.0f",
        },
        [{"name": name} | told for name, told in built.items()],
    )
    short = [
        {"section": name, "why": curves.why_missing(told["result"]["rows"], AT)}
        for name, told in page.found.items()
        if "rows" in told.get("result", {}) and at_recall(told) is None
    ]
    yield Table("Not reached", {"section": "section", "why": "why"}, short)


REPORT = Report(
    name="budgets",
    help="reads, rounds and queries a second over memory",
    module=__name__,
    title="{dataset}: reads over memory",
    about="{n:,} × {dim}, {query_count:,} queries, k = 10, recall 0.95 between two measured lists, "
    "{threads} threads. {machine_line}\n\nEach budget has the index that a build makes for it "
    "(`search_memory`). The first is the least that opens: a code of each page and the page directory. "
    "*Links* are those of a vertex in memory: below 8 they are shared with its neighbors, at 0 they are on "
    "disk; *c a page* are codes of pages and *bytes a record* of records, with neither links nor codes of "
    "vectors. *Bytes* are those that "
    "the budget holds, *grown* is the growth of the process. Rates and times measured beside other work "
    "(*load* above 3) say little. A peer is drawn at the growth of its process. *Before* is an earlier "
    "version, whose rows are in the folder earlier.",
    content=content,
    rows=lambda page: [{"row": row} for row in rows_of(page)],
    options=(Option("--lists", (), "list sizes of the curves", int),),
)
