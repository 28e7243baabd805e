"""The pictures of ``bench live``: rows and memory over time, one caller beside a merge, recall over churn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench.commands import live_many, live_runbook
from bench.commands.live_churn import KINDS
from bench.commands.live_indexes import RECALL
from bench.harness import plots
from bench.harness.sections import Results

_MIB = 1 << 20


def draw(out: Path, name: str, results: dict[str, Results]) -> list[tuple[str, str]]:
    """What can be drawn of these: (title, file) of each picture."""
    if not plots.available():
        return []
    done = {section: told["result"] for section, told in results.items() if "result" in told}
    drawn: list[tuple[str, str]] = []

    def picture(kind: str, title: str, series: dict[str, Any], *, dots: bool = False, **how: Any) -> None:
        file = f"{name}-{kind}.png"
        plots.lines(series, out / file, title=title, dots=dots, **how)
        drawn.append((title, file))

    for section, what in (("insert", "into an empty index"), ("double", "beside as many")):
        if section not in done:
            continue
        told = done[section]
        rest = told["burst"]["seconds"]
        rows = [*told["burst"]["over_time"]]
        rows += [[rest + at, told["burst"]["rows"] + count] for at, count in told["rest"]["over_time"]]
        picture(
            f"{section}-rows",
            f"Rows inserted {what}, batches of 1,000",
            {"rows": [(at, count / 1000) for at, count in rows]},
            x="seconds",
            y="thousand rows",
        )
        picture(
            f"{section}-memory",
            f"Growth of memory while rows are inserted {what} and merged",
            {"growth, highest of each stretch": mib(told["growth_over_time"])},
            x="seconds",
            y="MiB",
            levels={"promise": promise(told) / _MIB},
        )
    if "many" in done:
        for what, x in live_many.STATES.items():
            for key, title, y in (
                ("cpu_us", "Processor time of a query ÷ in one part", "÷ the same rows in one part"),
                ("reads", "Reads of a query", "reads a query"),
                ("rounds", "Rounds of a query", "rounds a query"),
            ):
                picture(
                    f"many-{what}-{'cost' if key == 'cpu_us' else key}",
                    f"{title}, by {x}",
                    live_many.series(results, what, key),
                    x=x,
                    y=y,
                    dots=True,
                )
    if "merge" in done:
        told = done["merge"]
        picture(
            "latency",
            "One caller, before, while and after everything is merged",
            {"longest of each stretch": [(at, took * 1e6) for at, took in told["over_time"]]},
            x="seconds",
            y="µs",
            marks=told["merge_s"],
            log_y=True,
        )
    churned = {KINDS[kind]: done[f"churn:{kind}"] for kind in KINDS if f"churn:{kind}" in done}
    if churned:
        for key, y, low in (("recall", "recall@10", 0.9), ("reads", "reads a query", 0.0)):
            picture(
                f"churn-{key}",
                f"After each turnover of a tenth, asked for {RECALL}",
                {
                    label: [(turn, step[key]) for turn, step in enumerate(told["steps"])]
                    for label, told in churned.items()
                },
                x="turnovers; the last point: a fresh build",
                y=y,
                low=low,
                ends={label: told["fresh"][key] for label, told in churned.items()},
            )
    if "runbook" in done:
        told = done["runbook"]
        recalls = {
            name: [(one["step"], one["recall"]) for one in other["result"]["searches"]]
            for name, other in live_runbook.all_searches(results).items()
        }
        least = min(recall for steps in recalls.values() for _, recall in steps)
        picture(
            "runbook",
            f"{told['runbook']}: {told['name']}, asked for {RECALL}",
            recalls,
            x="step",
            y="recall@10",
            low=min(0.9, math.floor(least * 10) / 10),
        )
    return drawn


def promise(told: Results) -> float:
    """What memory may grow by: the budget, that of merges, and what is fixed."""
    return float(told["memory_bytes"] + 64 * _MIB)


def mib(points: list[list[float]]) -> list[tuple[float, float]]:
    return [(at, size / _MIB) for at, size in points]
