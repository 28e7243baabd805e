"""Writes what ``bench filters`` found: the table of targets, a row a filter, the pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.commands import filters_cases, filters_sections, report_lines
from bench.commands.filters_sections import rows_of, value_at
from bench.harness import curves, kept, lines, machine, pages, plots, runs, sections, tables
from bench.harness.curves import RECALL
from bench.harness.lines import Line
from bench.harness.sections import Context, Results

MODULE = "bench.commands.filters_sections"
RECALLS = (0.9, 0.95)
#: Reads of late filtering that a share may cost, as a multiple of the share.
SLACK = 1.1


def run(context: Context, out: Path, name: str, only: list[str] | None) -> list[Line]:
    """Measure, write ``out/name.md``, ``out/name.jsonl`` and the pictures; returns the table's lines."""
    dataset = context.dataset()
    folder = context.folder / "filters" / f"{dataset.name}-{dataset.n}"
    results = sections.run(MODULE, filters_sections.sections_of(context), context, folder=folder, only=only)
    host = machine.describe(context.folder, runs.export_arrays(dataset, context.folder).base)
    ladder = bool(context.options.get("ladder"))
    table = [] if ladder else target_lines(results)
    head = {
        "machine": host,
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "query_count": context.query_count,
        "threads": context.threads,
        "budget": context.options["budget"],
    }
    write(out, name, head, table, results, ladder=ladder)
    return table


def rewrite(out: Path, name: str) -> None:
    """The page and its pictures anew, from the rows that are kept."""
    found = kept.load(out, name)
    ladder = any(section.startswith("ladder-") for section in found.results)
    write(out, name, found.head, found.table, found.results, ladder=ladder)


def write(
    out: Path,
    name: str,
    head: dict[str, Any],
    table: list[Line],
    results: dict[str, Results],
    *,
    ladder: bool,
) -> None:
    if ladder:
        text = ladder_text(name, head, results)
    else:
        text = markdown(name, head, table, results, draw(results, out, name) if plots.available() else [])
    rows = [{"head": head}, *(line.record() for line in table), *results.values()]
    pages.write(out, name, rows, "\n".join(text) + "\n")


def measured_cases(results: dict[str, Results]) -> dict[str, Results]:
    """What each filter's section found, by its name, the widest share first where it is one of shares."""
    return {
        name: section["result"] for name, section in results.items() if "setting" in section.get("result", {})
    }


def plain(results: dict[str, Results]) -> str:
    """The filter that a tenth passes, whose labels follow nothing."""
    return "uniform10" if "uniform10" in results else filters_cases.mix_name(0)


def target_lines(results: dict[str, Results]) -> list[Line]:
    """Every line of the table of filtered search."""
    cases = measured_cases(results)
    tenth = plain(results)
    one = rows_of(results, "one_thread")
    share = cases.get(tenth, {}).get("share")
    passing = f"{tenth}" if share is None else f"{tenth} ({share:.1%} pass)"
    why = report_lines.missing(results, "one_thread", curves.why_missing(one, 0.95))
    lines_of_cases = [
        report_lines.from_at(
            f"{what}, {passing}, recall 0.95, 20 %, one thread",
            target,
            curves.at_recall(one, key, 0.95),
            why,
            digits,
        )
        for what, key, target, digits in (
            ("reads", "reads", "≤ 13", 1),
            ("rounds", "rounds", "≤ 2", 2),
            ("QPS", "qps", "≥ 4000", 0),
        )
    ]
    lines_of_cases.append(worst_reads(cases))
    rows, late = rows_of(results, tenth), rows_of(results, tenth, "late")
    lines_of_cases.append(against(f"QPS, {passing}, recall 0.90, ÷ filtering late", "≥ 7.6", rows, late))
    for peer in ("hnswlib", "diskannpy"):
        section = f"{peer}-{tenth}"
        theirs = rows_of(results, section)
        what = f"QPS, {passing}, recall 0.90, ÷ {peer} over-fetching"
        if theirs:
            lines_of_cases.append(against(what, "≥ 10", rows, theirs))
        else:
            lines_of_cases.append(
                Line(what, "≥ 10", None, report_lines.missing(results, section, "no curve"))
            )
    lines_of_cases.append(worst_recall(results, cases))
    lines_of_cases.append(never_slower(cases))
    links = "links in memory, 32 a vertex: bytes"
    lines_of_cases.append(report_lines.number(results, "links", "bytes", "≤ 58", links, 1))
    for kind, target in (("equality", "≤ 10"), ("two tags", "≤ 40")):
        lines_of_cases.append(
            report_lines.number(
                results, "predicate", kind, target, f"predicate check, {kind}: ns a vertex", 1
            )
        )
    result = results.get("unfiltered", {}).get("result")
    lines_of_cases.append(
        Line(
            "unfiltered QPS with filters loaded ÷ without",
            "≥ 0.98",
            result["after"] / result["before"] if result else None,
            f"{result['after']:,.0f} / {result['before']:,.0f}"
            if result
            else report_lines.missing(results, "unfiltered", "no result"),
        )
    )
    rows_stored = results.get("store", {}).get("result", {}).get("rows", 0)
    what = f"filter store of {rows_stored:,} rows and 8 columns: s to build"
    lines_of_cases.append(report_lines.number(results, "store", "seconds", "≤ 10", what, 1))
    return lines_of_cases


def against(what: str, target: str, mine: list[Any], theirs: list[Any], recall: float = 0.9) -> Line:
    at = curves.ratio(mine, theirs, "qps", recall)
    short = mine if value_at(mine, "qps", recall) is None else theirs
    return report_lines.from_at(what, target, at, curves.why_missing(short, recall), 2)


def worst_reads(cases: dict[str, Results]) -> Line:
    """Reads ÷ (late reads · share), the largest over all shares from 1 % on."""
    what, target = "reads ÷ (reads filtering late × share), worst of all shares ≥ 1 %", f"≤ {SLACK}"
    ratios, short = {}, []
    drawn = any(name.startswith("share_") for name in cases)  # else the set's own filters are all there is
    for name, case in cases.items():
        if (drawn and not name.startswith("share_")) or "late" not in case:
            continue
        at = curves.ratio(case["rows"], case["late"], "reads", 0.95)
        if at is None:
            short.append(name)
        else:
            ratios[name] = at.value / case["share"]
    if not ratios:
        return Line(
            what, target, None, f"recall 0.95 not reached: {', '.join(short)}" if short else "no curves"
        )
    worst = max(ratios, key=lambda name: ratios[name])
    note = f"at {cases[worst]['share']:.2%}; " + ", ".join(
        f"{cases[name]['share']:.2g}: {value:.2f}" for name, value in ratios.items()
    )
    return Line(what, target, ratios[worst], note + (f"; without {', '.join(short)}" if short else ""), 2)


def worst_recall(results: dict[str, Results], cases: dict[str, Results]) -> Line:
    what, target = f"recall@10 at recall={filters_sections.SETTING}, worst of all filters", "≥ 0.95"
    recalls = {name: case["setting"][RECALL] for name, case in cases.items()}
    for name, row in results.get("edges", {}).get("result", {}).items():
        recalls[f"{name} of the rows"] = row[RECALL]
    if not recalls:
        return Line(what, target, None, "no filter was measured")
    worst = min(recalls, key=lambda name: recalls[name])
    below = [name for name, value in recalls.items() if value < 0.95]
    note = f"{worst}; below: {', '.join(below)}" if below else f"{worst}, of {len(recalls)}"
    return Line(what, target, recalls[worst], note, 4)


def never_slower(cases: dict[str, Results]) -> Line:
    """The least QPS over all shares below 20 %, over that at 20 %, at recall 0.95."""
    what, target = "QPS where fewer than 20 % pass ÷ QPS at 20 %, the least", "≥ 1"
    rates = {
        case["share"]: value_at(case["rows"], "qps", 0.95)
        for name, case in cases.items()
        if name.startswith("share_")
    }
    measurable = {share: rate for share, rate in rates.items() if rate is not None}
    at_20 = next((rate for share, rate in measurable.items() if abs(share - 0.2) < 0.03), None)
    below = {share: rate for share, rate in measurable.items() if share < 0.15}
    if at_20 is None or not below:
        return Line(what, target, None, "recall 0.95 not reached, or not measured")
    worst = min(below, key=lambda share: below[share])
    note = f"{below[worst]:,.0f} at {worst:.2%} / {at_20:,.0f} at 20 %"
    if len(measurable) < len(rates):
        note += "; shares that did not reach the recall: " + ", ".join(
            f"{share:.2%}" for share in rates if share not in measurable
        )
    return Line(what, target, below[worst] / at_20, note, 2)


def markdown(
    name: str,
    head: dict[str, Any],
    table: list[Line],
    results: dict[str, Results],
    pictures: list[tuple[str, str]],
) -> list[str]:
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, budget {head['budget']}, {head['threads']} "
        "threads, "
        f"{head['query_count']:,} queries. {tables.machine_line(head['machine'])}",
        "",
        "Recall is against exact truth among the rows that pass. *Late* asks "
        "the "
        "same index, reads as if there were no filter and drops what does not pass; a peer is asked for "
        "k / selectivity candidates and more, and dropping is not counted in its time.",
        "",
        *(line for file, caption in pictures for line in (f"![{caption}]({file})", "")),
        "## By filter",
        "",
    ]
    text += tables.table(
        [
            "filter",
            "passes",
            *[f"{what} at {recall}" for recall in RECALLS for what in ("reads", "rounds", "QPS")],
            *[f"late: {what} at 0.9" for what in ("reads", "QPS")],
            f"recall at recall={filters_sections.SETTING}",
            "QPS there",
        ],
        [case_row(name, case) for name, case in measured_cases(results).items()],
    )
    fetched = peer_rows(results)
    if fetched:
        text += ["", "## Peers that over-fetch", ""]
        text += tables.table(
            ["peer", "filter", "passes", "QPS at 0.9", "QPS at 0.95", "velo at 0.9, times"], fetched
        )
    text += ["", "## Targets", "", f"{lines.tally(table)}.", "", *lines.table(table)]
    text += ["", "## Every setting", ""]
    text += tables.table(
        ["filter", "plan", "list", "recall@10", "reads", "rounds", "estimates", "QPS"],
        [
            [
                row["filter"],
                row["plan"],
                str(row["list_size"]),
                f"{row[RECALL]:.4f}",
                f"{row['reads']:.1f}",
                f"{row['rounds']:.2f}",
                f"{row['estimates']:,.0f}",
                f"{row['qps']:,.0f}",
            ]
            for case in measured_cases(results).values()
            for row in (*case["rows"], *case.get("late", []))
        ],
    )
    failed = [
        f"- {section['section']}: {section['error']}" for section in results.values() if "error" in section
    ]
    return text + (["", "## Not measured", "", *failed] if failed else [])


def case_row(name: str, case: Results) -> list[str]:
    def cell(rows: list[dict[str, Any]], key: str, recall: float, digits: int) -> str:
        at = curves.at_recall(rows, key, recall)
        return "–" if at is None else f"{at.value:,.{digits}f}{'' if at.exact else '*'}"

    digits = {"reads": 1, "rounds": 2, "qps": 0}
    cells = [cell(case["rows"], key, recall, digits[key]) for recall in RECALLS for key in digits]
    late = case.get("late", [])
    cells += [cell(late, "reads", 0.9, 1), cell(late, "qps", 0.9, 0)]
    setting = case["setting"]
    return [name, f"{case['share']:.3%}", *cells, f"{setting[RECALL]:.4f}", f"{setting['qps']:,.0f}"]


def peer_rows(results: dict[str, Results]) -> list[list[str]]:
    rows = []
    for section, line in results.items():
        peer, _, name = section.partition("-")
        if peer not in ("hnswlib", "diskannpy"):
            continue
        result = line.get("result")
        if result is None:
            rows.append([peer, name, f"not measured: {line['error']}", "–", "–", "–"])
            continue
        rates = [value_at(result["rows"], "qps", recall) for recall in RECALLS]
        times = curves.ratio(rows_of(results, name), result["rows"], "qps", 0.9)
        rows.append(
            [
                peer,
                name,
                f"{result['share']:.2%}",
                *["–" if rate is None else f"{rate:,.0f}" for rate in rates],
                "–" if times is None else f"{times.value:.1f}×",
            ]
        )
    return rows


def draw(results: dict[str, Results], out: Path, name: str) -> list[tuple[str, str]]:
    """The pictures, as (file, caption)."""
    cases = measured_cases(results)
    pictures: list[tuple[str, str]] = []

    def keep(short: str, caption: str) -> Path:
        pictures.append((f"{name}-{short}.png", caption))
        return out / pictures[-1][0]

    shares = {case["share"] * 100: case for key, case in cases.items() if key.startswith("share_")}
    if len(shares) > 1:

        def over_shares(key: str, rows: str, recall: float) -> list[tuple[float, float]]:
            points = [(share, value_at(case.get(rows, []), key, recall)) for share, case in shares.items()]
            return [(share, value) for share, value in points if value is not None]

        row_keys = {"velo": "rows", "velo, filtering late": "late"}
        for key, label in (("qps", "queries a second"), ("reads", "reads a query")):
            series = {f"{text}, recall 0.9": over_shares(key, rows, 0.9) for text, rows in row_keys.items()}
            plots.lines(
                {text: points for text, points in series.items() if points},
                keep(f"share-{key}", f"{label} over selectivity"),
                title=f"{label} over selectivity, recall 0.9",
                x="rows that pass (%)",
                y=label,
                log_x=True,
                log_y=True,
                backwards=True,
            )
        plots.lines(
            {
                f"recall={filters_sections.SETTING}": [
                    (s, case["setting"][RECALL]) for s, case in shares.items()
                ]
            },
            keep("share-recall", "recall at one setting over selectivity"),
            title=f"recall@10 at recall={filters_sections.SETTING} over selectivity",
            x="rows that pass (%)",
            y="recall@10",
            log_x=True,
            backwards=True,
        )
    mixes = {int(key.removeprefix("mix")): case for key, case in cases.items() if key.startswith("mix")}
    if len(mixes) > 1:
        series = {}
        for text, rows in (("velo", "rows"), ("velo, filtering late", "late")):
            points = [(mix / 100, value_at(case.get(rows, []), "qps", 0.9)) for mix, case in mixes.items()]
            series[f"{text}, recall 0.9"] = [(mix, value) for mix, value in points if value is not None]
        plots.lines(
            {text: points for text, points in series.items() if points},
            keep("mix-qps", "queries a second by how far labels follow the vectors"),
            title="queries a second by how far labels follow the vectors",
            x="labels that are the nearest cluster's (share)",
            y="queries a second",
        )
        plots.lines(
            {
                f"recall={filters_sections.SETTING}": [
                    (mix / 100, case["setting"][RECALL]) for mix, case in mixes.items()
                ]
            },
            keep("mix-recall", "recall by how far labels follow the vectors"),
            title=f"recall@10 at recall={filters_sections.SETTING} by how far labels follow the vectors",
            x="labels that are the nearest cluster's (share)",
            y="recall@10",
        )
    kinds = {key: case["rows"] for key, case in cases.items() if not key.startswith(("share_", "mix"))}
    if kinds:
        for key, label in (("qps", "queries a second"), ("reads", "reads a query")):
            plots.against_recall(
                kinds,
                key,
                keep(f"kinds-{key}", f"{label} over recall, by filter"),
                title=f"{label} over recall, by filter",
                y=label,
                log=key == "qps",
            )
    tenth = plain(results)
    beside = {"velo": rows_of(results, tenth), "velo, filtering late": rows_of(results, tenth, "late")}
    for peer in ("hnswlib", "diskannpy"):
        beside[f"{peer}, over-fetching"] = rows_of(results, f"{peer}-{tenth}")
    beside = {text: rows for text, rows in beside.items() if rows}
    if beside:
        plots.against_recall(
            {text: [row | {"system": text.split(",")[0]} for row in rows] for text, rows in beside.items()},
            "qps",
            keep("tenth", "queries a second over recall, 10 % pass"),
            title=f"queries a second over recall, {tenth}",
            y="queries a second",
        )
    return pictures


def ladder_text(name: str, head: dict[str, Any], results: dict[str, Results]) -> list[str]:
    """Reads and QPS of each step, side by side."""
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, budget {head['budget']}, {head['threads']} "
        "threads. "
        f"{tables.machine_line(head['machine'])}",
        "",
        "Late: every candidate is read and scored, the filter is asked for results. Early: of what was read "
        "only "
        "what passes is scored. Gate: only what passes is read, the rest is navigated through in memory. "
        "Auto: the "
        "gate, or by cost a scan of the codes of what passes instead.",
        "",
    ]
    rows = []
    for section, line in results.items():
        result = line.get("result")
        if result is None:
            rows.append([section.removeprefix("ladder-"), f"not measured: {line['error']}", *["–"] * 7])
            continue
        for plan in filters_sections.FILTER_PLANS:
            cells = [result["filter"], f"{result['share']:.2%}", plan]
            for recall in RECALLS:
                for key, digits in (("reads", 1), ("rounds", 2), ("qps", 0)):
                    value = value_at(result.get(plan, []), key, recall)
                    cells.append("–" if value is None else f"{value:,.{digits}f}")
            rows.append(cells)
    head_row = ["filter", "passes", "step"]
    head_row += [f"{what} at {recall}" for recall in RECALLS for what in ("reads", "rounds", "QPS")]
    return text + tables.table(head_row, rows)
