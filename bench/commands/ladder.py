"""``bench ladder``: what each idea brings, one added to the one before, at equal recall and equal memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.commands import report_sections
from bench.harness import curves, machine, pages, plots, runs, sections, tables
from bench.harness.sections import Context, Results, Section
from bench.peers.velo import ablations

MODULE = "bench.commands.ladder"
AT = 0.95
#: The lowest steps need the longest: they follow what they read and nothing else.
LISTS = [16, 24, 32, 48, 64, 96, 128, 200, 320, 512, 800]


@dataclass(frozen=True)
class Step:
    """One rung: how the index is built, opened and searched."""

    name: str
    note: str
    plan: str = "links_on_disk"
    split: bool = False
    cached: bool = True
    #: What is taken away, in words of libvelo_bench.
    without: str = ""
    opened: dict[str, Any] = field(default_factory=dict)
    searched: dict[str, Any] = field(default_factory=dict)


def steps() -> list[Step]:
    """From the simplest search from a disk up to velo's own."""
    serial: dict[str, Any] = {"queries_in_flight": 1, "queue_depth": 1}
    plain: dict[str, Any] = {"beam_width": 1}
    least = "record_only entries_only strict_order next_only"
    return [
        Step(
            "synchronous",
            "best first; a query reads the record it follows and waits; one query a thread",
            without=least,
            opened=serial,
            searched=plain,
            cached=False,
        ),
        Step(
            "+ async",
            "as many queries in flight as the engine chooses; each still waits for one record at a time",
            without=least,
            searched=plain,
            cached=False,
        ),
        Step(
            "+ record cache",
            "what the codes leave of the budget holds records and those of their color, filled by other "
            "queries",
            without=least,
            searched=plain,
        ),
        Step(
            "+ prefetch",
            "records of the next candidates are asked for ahead; they are followed in strict order all the "
            "same",
            without="record_only entries_only strict_order",
            searched={"beam_width": 4},
        ),
        Step(
            "+ cache-aware beam",
            "of the nearest candidates, one at hand is followed before one that is not",
            without="record_only entries_only",
        ),
        Step(
            "+ whole-page scoring",
            "every record of a page that was read is scored and may enter list and results",
            without="entries_only",
        ),
        Step(
            "+ start near",
            "the codes of stretches of ids around the best entry points are looked through before the first "
            "read",
        ),
        Step(
            "+ split codes",
            "the record holds the lower bits alone; until here its code was as long as the full code",
            split=True,
        ),
        Step(
            "+ links in memory, burst",
            "the cache's memory holds links; navigated without a read, then the pages chosen by bound at "
            "once",
            plan="links_in_memory",
            split=True,
        ),
    ]


def bits_of(context: Context, step: Step) -> str:
    """``4+4`` where the code is split, else ``4+8``: a record as long as one with the full code."""
    upper, lower = (int(part) for part in context.options["bits"].split("+"))
    return f"{upper}+{lower}" if step.split else f"{upper}+{upper + lower}"


def measure_step(number: int) -> Any:
    def measure(context: Context) -> Results:
        step = steps()[number]
        dataset = context.dataset(warm_up=context.query_count)
        job = report_sections.velo_job(
            dataset,
            f"{context.options['budget']}:{bits_of(context, step)}",
            [str(size) for size in context.options.get("lists") or LISTS],
            plan=step.plan,
            cached=step.cached,
            ablations=step.without,
            open_tuning=step.opened,
            search_tuning=step.searched,
            warm_up_count=context.query_count,
        )
        return {"rows": report_sections.measured(context, dataset, job)}

    return measure


def sections_of(context: Context) -> dict[str, Section]:
    limit_s = 3600.0 if context.dataset(warm_up=0).n > 200_000 else 600.0
    return {
        step.name: Section(step.name, measure_step(number), limit_s) for number, step in enumerate(steps())
    }


def rungs(results: dict[str, Results]) -> list[dict[str, Any]]:
    """Each step's reads, QPS and latency at the recall, and each as a ratio to the last step that has one."""
    rows: list[dict[str, Any]] = []
    before: dict[str, float] = {}
    for step in steps():
        row: dict[str, Any] = {"step": step.name, "note": step.note}
        points = report_sections.curve(results, step.name)
        for key in ("reads", "qps", "latency_mean_us", "cpu_us_per_query"):
            at = curves.at_recall(points, key, AT)
            if at is None:
                row["error"] = results.get(step.name, {}).get("error") or curves.why_missing(points, AT)
                continue
            row[key] = at.value
            row["exact"] = at.exact
            if key in before:
                row[f"{key}_ratio"] = at.value / before[key]
        before = {key: row[key] for key in row if isinstance(row[key], float)} if "qps" in row else before
        rows.append(row)
    return rows


def run(context: Context, out: Path, name: str, only: Sequence[str] | None) -> list[dict[str, Any]]:
    """Measure the steps; write ``out/name.md``, ``out/name.jsonl`` and a picture."""
    ablations.use_library()
    dataset = context.dataset()
    folder = context.folder / "ladder" / f"{dataset.name}-{dataset.n}"
    steps = sections_of(context)
    results = sections.run(MODULE, steps, context, folder=folder, only=list(only) if only else None)
    rows = rungs(results)
    host = machine.describe(context.folder, runs.export_arrays(dataset, context.folder).base)
    head = {"machine": host, "dataset": dataset.name, "n": dataset.n, "dim": dataset.dim, **context.options}
    picture = None
    there = [row for row in rows if "qps" in row]
    if plots.available() and there:
        picture = f"{name}.png"
        plots.bars(
            [row["step"] for row in there],
            [row["qps"] for row in there],
            out / picture,
            title=f"queries a second at recall {AT}",
            y="queries a second",
            log=True,
        )
    lines = [{"head": head}, *({"rung": row} for row in rows), *results.values()]
    pages.write(out, name, lines, markdown(name, head, rows, picture))
    return rows


def markdown(name: str, head: dict[str, Any], rows: list[dict[str, Any]], picture: str | None) -> str:
    def cell(row: dict[str, Any], key: str, digits: int, scale: float = 1.0) -> list[str]:
        if key not in row:
            return ["–", "–"]
        star = "" if row["exact"] else "*"
        ratio = f"{row[key + '_ratio']:.2f}×" if f"{key}_ratio" in row else "–"
        return [f"{row[key] * scale:,.{digits}f}{star}", ratio]

    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {head['dim']}, budget {head['budget']} at every step, codes of "
        f"{head['bits']} bits in memory and record. {tables.machine_line(head['machine'])}",
        "",
        f"Each step adds one idea to the one before. Values at recall@10 {AT}, interpolated along each "
        "step's "
        "list sweep, and beside each its ratio to the step before. Caches were filled by other queries, as "
        "many as were measured; the measured ones come once.",
        "",
    ]
    if picture:
        text += [f"![queries a second]({picture})", ""]
    text += tables.table(
        ["step", "reads", "", "QPS", "", "mean ms alone", "", "CPU µs", ""],
        [
            [
                row["step"] + (f" (not measured: {row['error']})" if "qps" not in row else ""),
                *cell(row, "reads", 1),
                *cell(row, "qps", 0),
                *cell(row, "latency_mean_us", 2, 1e-3),
                *cell(row, "cpu_us_per_query", 0),
            ]
            for row in rows
        ],
    )
    if any(not row.get("exact", True) for row in rows):
        text += ["", "\\* of the shortest list, whose recall is higher."]
    text += ["", "What each step is:", "", *(f"- **{row['step']}**: {row['note']}" for row in rows)]
    return "\n".join(text) + "\n"
