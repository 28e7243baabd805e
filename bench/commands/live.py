"""Writes what ``bench live`` found: rows that come and go, the targets, and a peer that adds rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from bench.commands import live_many, live_peers, live_pictures, live_runbook, live_sections
from bench.commands.live_churn import KINDS
from bench.harness import kept, lines, machine, pages, runs, sections, tables
from bench.harness.lines import Line
from bench.harness.sections import Context, Results

MODULE = "bench.commands.live_sections"
#: What sections say of one that was never measured.
NOT_ASKED = "not asked for"
_MIB = 1 << 20


def run(
    context: Context, out: Path, name: str, only: list[str] | None, former: Path | None = None
) -> list[Line]:
    """Measure, write ``out/name.md`` and ``out/name.jsonl``; returns the table's lines.

    ``former`` are rows of such a page of another version: what they say of many parts is drawn beside.
    """
    dataset = context.dataset()
    folder = context.folder / "live" / f"{dataset.name}-{dataset.n}" / "sections"
    results = sections.run(MODULE, live_sections.sections_of(context), context, folder=folder, only=only)
    kept = folder / "many-former.json"
    if former is not None:
        kept.write_text(json.dumps(live_many.former(former)))
    if kept.exists():
        results[live_many.FORMER] = json.loads(kept.read_text())
    table = [one for one in lines_of(results, context) if one.value is not None or one.note != NOT_ASKED]
    head = {
        "machine": machine.describe(context.folder, runs.export_arrays(dataset, context.folder).base),
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "query_count": context.query_count,
        "threads": context.threads,
        "options": context.options,
    }
    write(out, name, head, table, results)
    return table


def rewrite(out: Path, name: str) -> None:
    """The page and its pictures anew, from the rows that are kept."""
    found = kept.load(out, name)
    write(out, name, found.head, found.table, found.results)


def write(out: Path, name: str, head: Results, table: list[Line], results: dict[str, Results]) -> None:
    pictures = live_pictures.draw(out, name, results)
    rows = [{"head": head}, *(line.record() for line in table), *results.values()]
    pages.write(out, name, rows, markdown(name, head, table, results, pictures))


def lines_of(results: dict[str, Results], context: Context) -> list[Line]:
    """Every line of the table."""

    def line(
        section: str,
        what: str,
        target: str,
        value: Callable[[Any], float],
        note: Callable[[Any], str],
        digits: int = 2,
    ) -> Line:
        told = results.get(section, {})
        if "result" not in told:
            return Line(what, target, None, str(told.get("error", NOT_ASKED)))
        return Line(what, target, value(told["result"]), note(told["result"]), digits)

    callers = str(context.options["callers"])
    every = [
        line(
            "insert",
            "insert, batches of 1,000, `interval`: rows a second of processor",
            "≥ 5000",
            lambda r: r["burst"]["rows"] / r["burst"]["cpu_s"],
            lambda r: f"{r['burst']['rows']:,} rows in {r['burst']['seconds']:.2f} s, before memory is full",
            0,
        ),
        line(
            "double",
            "from half of the rows to all, until all is in one part: rows a second of processor",
            "≥ 900",
            lambda r: r["given_rows"] / r["whole_cpu_s"],
            lambda r: (
                f"{r['given_rows']:,} rows, {r['whole_cpu_s']:.0f} s of processor, longest call "
                f"{max(r['burst']['longest_s'], r['rest']['longest_s']):.2f} s"
            ),
            0,
        ),
        line(
            "double",
            "the same: bytes written ÷ bytes given",
            "≤ 10",
            lambda r: r["written_bytes"] / r["given_bytes"],
            lambda r: (
                f"{r['written_bytes'] / _MIB:,.0f} MiB, {r['parts']} parts before the last merge; "
                f"÷ these rows as float32: {r['written_bytes'] / r['given_float32_bytes']:.1f}"
            ),
            1,
        ),
        *(
            line(
                section,
                f"growth of memory, {what} ÷ (memory, that of merges, and 64 MiB)",
                "≤ 1",
                lambda r: r["growth_bytes"] / live_pictures.promise(r),
                lambda r: f"{r['growth_bytes'] / _MIB:,.0f} MiB, looked at every 10 ms",
            )
            for section, what in (("insert", "all rows into an empty index"), ("double", "half of them"))
        ),
        line(
            "upserts",
            f"single upserts from {callers} callers, `sync`: a second",
            "≥ 4000",
            lambda r: r[callers]["rate"],
            lambda r: f"p50 {r[callers]['p50_us']:,.0f} µs; one caller: {r['1']['rate']:,.0f}",
            0,
        ),
        line(
            "parts",
            "new rows in parts, and found at recall 0.95: seconds",
            "≤ 20",
            lambda r: r["flushed_s"],
            lambda r: (
                f"{r['new']:,} rows, recall {r['young']['recall']:.4f}; "
                f"found at once: {r['at_once']} of {r['probes']}"
            ),
            1,
        ),
        line(
            "parts",
            "recall, young parts less a fresh build's",
            "≥ -0.005",
            lambda r: r["young"]["recall"] - r["fresh"]["recall"],
            lambda r: (
                f"{r['young']['recall']:.4f}, fresh {r['fresh']['recall']:.4f}, {r['young']['parts']} parts"
            ),
            4,
        ),
        line(
            "parts",
            "QPS, young parts ÷ merged",
            "≥ 0.6",
            lambda r: r["young"]["qps"] / r["merged"]["qps"],
            lambda r: f"{r['young']['qps']:,.0f} / {r['merged']['qps']:,.0f}",
        ),
        line(
            "parts",
            "reads, young parts ÷ merged",
            "≤ 1.25",
            lambda r: r["young"]["reads"] / r["merged"]["reads"],
            lambda r: f"{r['young']['reads']:.1f} / {r['merged']['reads']:.1f}",
        ),
        *(
            line(
                "many",
                f"µs of processor, {what} ÷ the same rows in one part",
                target,
                partial(live_many.ratio, what=kind, count=count),
                partial(live_many.note, what=kind, count=count),
            )
            for what, kind, count, target in (
                ("3,000 rows in the delta", "delta", 3000, "≤ 1.15"),
                ("two young parts", "parts", 2, "≤ 1.2"),
            )
        ),
        *(
            line(
                "many",
                f"rounds, {what}",
                target,
                partial(live_many.rounds, count=count),
                lambda r: f"one part: {live_many.rounds(r, 0):.2f}",
            )
            for what, count, target in (("two young parts", 2, "≤ 1.3"), ("six", 6, "≤ 1.5"))
        ),
        line(
            "dead",
            "QPS, a tenth dead ÷ none",
            "≥ 0.9",
            lambda r: r["tenth"]["qps"] / r["none"]["qps"],
            lambda r: f"recall {r['tenth']['recall']:.4f} / {r['none']['recall']:.4f}",
        ),
        *(
            line(
                "merge",
                f"lone query while everything is merged ÷ idle: {what}",
                target,
                partial(_busy_share, key),
                partial(_busy_note, key),
            )
            for what, key, target in (("mean", "mean_us", "≤ 1.5"), ("p99", "p99_us", "≤ 3"))
        ),
        *(
            line(
                "deletes",
                f"delete {what}: seconds",
                target,
                itemgetter(f"{key}_s"),
                partial(_rows_note, rows),
            )
            for what, key, rows, target in (
                ("by id", "id", "by_id", "≤ 1"),
                ("by a filter", "filter", "by_filter", "≤ 2"),
            )
        ),
        line(
            "disk",
            "disk after half was deleted and optimized ÷ float32 of all rows",
            "≤ 0.55",
            lambda r: r["bytes"] / (2 * r["float32_bytes"]),
            lambda r: f"{r['bytes'] / _MIB:,.0f} MiB for {r['rows']:,} rows, vectors among them",
        ),
        line(
            "kill",
            "first answer after kill -9: seconds",
            "≤ 1",
            lambda r: r["first_answer_s"],
            lambda r: (
                f"{r['log_bytes'] / _MIB:.1f} MiB of log, {r['rows']:,} rows, open after {r['open_s']:.2f} s"
            ),
        ),
    ]
    for kind, label in KINDS.items():
        every += [
            line(
                f"churn:{kind}",
                f"recall after the last turnover ({label}) less a fresh build's",
                "≥ -0.005",
                lambda r: r["steps"][-1]["recall"] - r["fresh"]["recall"],
                lambda r: ", ".join(f"{step['recall']:.4f}" for step in (*r["steps"], r["fresh"])),
                4,
            ),
            line(
                f"churn:{kind}",
                f"reads after it ({label}) ÷ a fresh build's",
                "≤ 1.05",
                lambda r: r["steps"][-1]["reads"] / r["fresh"]["reads"],
                lambda r: f"{r['steps'][-1]['reads']:.1f} / {r['fresh']['reads']:.1f}",
            ),
        ]
    every.append(
        line(
            "runbook",
            "a runbook of big-ann's streaming track: least recall",
            "≥ 0.945",
            lambda r: min(one["recall"] for one in r["searches"]),
            _runbook_note,
            4,
        )
    )
    return every


def _busy_share(key: str, told: Results) -> float:
    return float(told["busy"][key] / told["idle"][key])


def _busy_note(key: str, told: Results) -> str:
    return f"{told['busy'][key]:,.0f} / {told['idle'][key]:,.0f} µs, {told['seconds']:.0f} s"


def _rows_note(key: str, told: Results) -> str:
    return f"{told[key]:,} rows"


def _runbook_note(told: Results) -> str:
    recalls = [one["recall"] for one in told["searches"]]
    writes = ", ".join(
        f"{one['rows']:,} by {what}, {one['rows'] / one['cpu_s']:,.0f} a second of processor"
        for what, one in told["writes"].items()
    )
    return (
        f"{told['runbook']}, {told['name']}: {told['steps']} steps, {len(recalls)} searches measured, "
        f"mean {sum(recalls) / len(recalls):.4f}; {writes}"
    )


def markdown(
    name: str,
    head: Results,
    table: list[Line],
    results: dict[str, Results],
    pictures: list[tuple[str, str]],
) -> str:
    text = [
        f"# Rows that come and go: {head['dataset']}",
        "",
        f"{head['n']:,} rows of {head['dim']} dimensions, memory {head['options']['memory']}, of merges "
        f"{head['options'].get('merge_memory') or 'as much'}, "
        f"{head['threads']} threads, {head['query_count']:,} queries. Searches ask for a recall of 0.95. "
        f"{tables.machine_line(head['machine'])}",
        "",
        *(line for title, file in pictures for line in (f"![{title}]({file})", "")),
        "## Targets",
        "",
        *lines.table(table),
        "",
        lines.tally(table),
    ]
    if missing := [name for name, told in results.items() if told.get("error") == NOT_ASKED]:
        text += ["", f"Not asked for: {', '.join(missing)}."]
    states = [
        (label, results[section]["result"][key])
        for section, key, label in (
            ("parts", "fresh", "a fresh build"),
            ("parts", "young", "young parts beside"),
            ("parts", "merged", "the same in one part"),
            ("dead", "none", "a fresh build, beside the next"),
            ("dead", "tenth", "a tenth dead"),
        )
        if "result" in results.get(section, {})
    ]
    if states:
        text += ["", "## Searches", ""]
        text += tables.table(
            ["state", "recall", "reads", "QPS", "alone, µs"],
            [
                [label, f"{r['recall']:.4f}", f"{r['reads']:.1f}", f"{r['qps']:,.0f}", f"{r['alone_us']:.0f}"]
                for label, r in states
            ],
        )
    text += live_many.text(results)
    text += live_runbook.text(results)
    text += live_peers.text(results)
    return "\n".join([*text, ""])
