"""The search core's table of targets, from the sections that bench/commands/report_sections.py measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.commands.report_sections import FIXED_BYTES, curve
from bench.harness import curves
from bench.harness.curves import At
from bench.harness.lines import Line
from bench.harness.sections import Context, Results

AT = 0.95
TEXT_AT = 0.97
READS = {15: "≤ 16", 20: "≤ 10", 25: "≤ 8.5", 30: "≤ 8"}
ROUNDS = {15: "≤ 3", 20: "≤ 1.6", 25: "≤ 1.5", 30: "≤ 1.5"}


def lines(results: dict[str, Results], context: Context, float32_bytes: int) -> list[Line]:
    """Every line of the table, those that could not be measured with the reason."""
    return [
        reachable(results),
        *[
            cost(results, f"velo{share}", "reads", READS[share], f"reads at {AT}, {share} %")
            for share in READS
        ],
        *[
            cost(results, f"velo{share}", "rounds", ROUNDS[share], f"dependent rounds at {AT}, {share} %", 2)
            for share in ROUNDS
        ],
        against(
            results,
            "reads of a repeating stream, a quarter of 20 % as cache ÷ without",
            "≤ 0.6",
            ("stream", "with"),
            ("stream", "without"),
            "reads",
        ),
        cost(results, "disk", "reads", "≤ 25", "links on disk, 10 %: reads, cache off", 1, key="off"),
        cost(results, "disk", "reads", "≤ 20", "links on disk, 10 %: reads, with the cache", 1, key="on"),
        against(
            results,
            "QPS ÷ diskannpy, 20 % each",
            "≥ 6",
            ("velo20", "rows"),
            ("peer-diskannpy", "rows"),
            "qps",
        ),
        against(
            results,
            "mean latency one at a time ÷ diskannpy",
            "≤ 1/5",
            ("velo20", "rows"),
            ("peer-diskannpy", "rows"),
            "latency_mean_us",
        ),
        against(
            results,
            "mean latency one at a time ÷ hnswlib",
            "≤ 2",
            ("velo20", "rows"),
            ("peer-hnswlib", "rows"),
            "latency_mean_us",
        ),
        device_share(results, context),
        against(
            results,
            "processor time a query ÷ hnswlib, 20 %",
            "≤ 0.6",
            ("velo20", "rows"),
            ("peer-hnswlib", "rows"),
            "cpu_us_per_query",
        ),
        against(results, "QPS ÷ hnswlib, 20 %", "≥ 0.6", ("velo20", "rows"), ("peer-hnswlib", "rows"), "qps"),
        against(results, "QPS ÷ hnswlib, 30 %", "≥ 0.9", ("velo30", "rows"), ("peer-hnswlib", "rows"), "qps"),
        *(
            against(
                results,
                f"QPS ÷ hnswlib, 45 %, recall {recall}",
                target,
                ("velo45", "rows"),
                ("peer-hnswlib", "rows"),
                "qps",
                recall,
            )
            for recall, target in ((AT, "≥ 1.2"), (0.97, "≥ 1.5"), (0.99, "≥ 1.5"))
        ),
        against(
            results,
            "ms of a single query ÷ hnswlib, 45 %",
            "≤ 1.2",
            ("velo45", "rows"),
            ("peer-hnswlib", "rows"),
            "latency_mean_us",
        ),
        against(
            results,
            "QPS ÷ hnswlib, 20 %, index on tmpfs",
            "≥ 1.5",
            ("tmpfs", "rows"),
            ("peer-hnswlib", "rows"),
            "qps",
        ),
        against(
            results,
            f"text: QPS ÷ hnswlib at {TEXT_AT}, 10 %",
            "≥ 1.0",
            ("text", "rows"),
            ("text", "hnswlib"),
            "qps",
            TEXT_AT,
        ),
        cost(results, "text", "reads", "≤ 6", f"text: reads at {TEXT_AT}, 10 %", 2, recall=TEXT_AT),
        cost(results, "text", "rounds", "≤ 1.5", f"text: rounds at {TEXT_AT}, 10 %", 2, recall=TEXT_AT),
        number(results, "used", "share", "≥ 0.15", "bytes used ÷ bytes read, L = 100"),
        number(results, "pages", "mean", "≤ 7", "distinct pages that hold the true ten", 2),
        number(
            results,
            "disk_ratio",
            "eight",
            "≤ 0.45",
            "index on disk ÷ float32, 8-bit codes",
            pick=lambda value: float(value["ratio"]),
        ),
        number(
            results,
            "disk_ratio",
            "four",
            "≤ 0.3",
            "index on disk ÷ float32, 4-bit codes",
            pick=lambda value: float(value["ratio"]),
        ),
        *building(results, float32_bytes),
        divided(results, "scaling", "two", "one", "≥ 1.8", "QPS on two threads ÷ on one"),
        divided(
            results, "scaling", "many", "batch", "≥ 0.9", "one query from each of 64 threads ÷ one batch"
        ),
        against(
            results,
            growth_text(results),
            "≤ 1.35",
            ("velo20", "rows"),
            ("growth", "rows"),
            "cpu_us_per_query",
        ),
    ]


def missing(results: dict[str, Results], section: str, otherwise: str) -> str:
    return str(results.get(section, {}).get("error") or otherwise)


def from_at(what: str, target: str, at: At | None, why: str, digits: int) -> Line:
    if at is None:
        return Line(what, target, None, why)
    note = at.how if at.exact else f"{at.how}; the curve begins above the recall"
    return Line(what, target, at.value, note, digits)


def reachable(results: dict[str, Results]) -> Line:
    rows = curve(results, "velo20")
    what, target = "recall@10 reachable by list size alone", "≥ 0.995"
    if not rows:
        return Line(what, target, None, missing(results, "velo20", "no curve"))
    best = max(rows, key=lambda row: row[curves.RECALL])
    return Line(what, target, best[curves.RECALL], f"20 %, {curves.setting(best)}", 4)


def cost(
    results: dict[str, Results],
    section: str,
    name: str,
    target: str,
    what: str,
    digits: int = 1,
    *,
    key: str = "rows",
    recall: float = AT,
) -> Line:
    rows = curve(results, section, key)
    why = missing(results, section, curves.why_missing(rows, recall))
    return from_at(what, target, curves.at_recall(rows, name, recall), why, digits)


def against(
    results: dict[str, Results],
    what: str,
    target: str,
    mine: tuple[str, str],
    theirs: tuple[str, str],
    name: str,
    recall: float = AT,
) -> Line:
    """A ratio of two curves at one recall."""
    for section, key in (mine, theirs):
        rows = curve(results, section, key)
        if curves.at_recall(rows, name, recall) is None:
            why = f"{section}: {missing(results, section, curves.why_missing(rows, recall))}"
            return Line(what, target, None, why)
    return from_at(
        what,
        target,
        curves.ratio(curve(results, *mine), curve(results, *theirs), name, recall),
        "no ratio",
        3,
    )


def number(
    results: dict[str, Results],
    section: str,
    key: str,
    target: str,
    what: str,
    digits: int = 3,
    pick: Callable[[Any], float] = float,
) -> Line:
    result = results.get(section, {}).get("result")
    if result is None or key not in result:
        return Line(what, target, None, missing(results, section, "no result"))
    return Line(what, target, pick(result[key]), digits=digits)


def divided(results: dict[str, Results], section: str, over: str, under: str, target: str, what: str) -> Line:
    result = results.get(section, {}).get("result")
    if result is None:
        return Line(what, target, None, missing(results, section, "no result"))
    how = f"{result[over]:,.0f} / {result[under]:,.0f} QPS, list {result['list_size']}"
    return Line(what, target, result[over] / result[under], how, 2)


def device_share(results: dict[str, Results], context: Context) -> Line:
    what, target = "reads/s ÷ a loop's at depth 64, or cores busy (the larger)", "≥ 0.9"
    rows = curve(results, "velo20")
    reads, qps, busy = (curves.at_recall(rows, key, AT) for key in ("reads", "qps", "cpu_us_per_query"))
    if reads is None or qps is None or busy is None:
        return Line(what, target, None, missing(results, "velo20", curves.why_missing(rows, AT)))
    cores = busy.value * qps.value / 1e6 / context.threads
    text = f"cores {cores:.2f}"
    share = 0.0
    if (plain := results.get("loop", {}).get("result")) is not None:
        share = reads.value * qps.value / plain["reads_per_s"]
        text = (
            f"{reads.value * qps.value:,.0f} of {plain['reads_per_s']:,.0f} reads/s ({plain['how']}): "
            f"{share:.2f}; {text}"
        )
    return Line(what, target, max(share, cores), text, 2)


def building(results: dict[str, Results], float32_bytes: int) -> list[Line]:
    def built(section: str, key: str) -> float | None:
        rows = curve(results, section)
        return float(rows[0][key]) if rows else None

    def over(what: str, target: str, key: str, peer: str) -> Line:
        mine, theirs = built("velo20", key), built(peer, key)
        if mine is None or theirs is None:
            section = "velo20" if mine is None else peer
            return Line(what, target, None, f"{section}: {missing(results, section, 'no build')}")
        return Line(what, target, mine / theirs, f"{mine:,.1f} s / {theirs:,.1f} s", 3)

    def peak(what: str, target: str, section: str) -> Line:
        bytes_ = built(section, "build_peak_bytes")
        if bytes_ is None:
            return Line(what, target, None, missing(results, section, "no build"))
        note = f"{bytes_ / 1e6:,.0f} MB in all, of which 67 MB are fixed"
        return Line(what, target, max(bytes_ - FIXED_BYTES, 0) / float32_bytes, note, 2)

    return [
        over("build time ÷ hnswlib", "< 1", "build_s", "peer-hnswlib"),
        over("build's processor time ÷ diskannpy", "≤ 1/3", "build_cpu_s", "peer-diskannpy"),
        peak("build's peak memory ÷ float32", "≤ 0.7", "velo20"),
        peak("the same, told to use a quarter", "≤ 0.25", "bounded_build"),
    ]


def growth_text(results: dict[str, Results]) -> str:
    small = results.get("growth", {}).get("result", {}).get("n")
    rows = curve(results, "velo20")
    if small is None or not rows:
        return "processor time a query ÷ with a tenth of the vectors"
    return f"processor time a query, {rows[0]['n']:,} ÷ {small:,} vectors"
