"""``velo info --budgets``: what each budget would buy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from velo.cli.output import console, emit_json, size_text, table
from velo.planning.budgets import Costs, measure_costs, open_to_measure, plans

__all__ = ["costs_text", "show"]


def show(path: Path, *, memory: str | None, recall: float, k: int, as_json: bool) -> None:
    """Print a row a budget, and what the machine takes."""
    with open_to_measure(path) as index:
        costs, n = measure_costs(index), index.n
    rows = plans(path, memory=memory, recall=recall, k=k, costs=costs)
    if as_json:
        emit_json(
            {"recall": recall, "k": k, "costs": asdict(costs), "budgets": [row.to_dict() for row in rows]}
        )
        return
    out = console()
    shown = table(
        "budget",
        "B a vector",
        "plan:",
        "links",
        "cache",
        "list",
        "recall",
        "reads",
        "rounds",
        "ms",
        "QPS",
        "+5 %:",
    )
    for row in rows:
        head = (f"{row.share:.0%}", f"{row.budget_bytes / n:.0f}")
        if row.plan is None:
            shown.add_row(*head, f"needs {size_text(row.needed_bytes or 0)}", *[""] * 8, "")
            continue
        parts = row.memory_bytes or {}
        shape = (row.plan.removeprefix("links_"), str(row.links_kept), size_text(parts.get("cache", 0)))
        if row.recall is None or row.reads is None or row.rounds is None or row.more is None:
            shown.add_row(*head, *shape, str(row.list_size), *["?"] * 5, "not calibrated")
            continue
        shown.add_row(
            *head,
            *shape,
            str(row.list_size),
            f"{row.recall:.3f}",
            f"{row.reads:.1f}",
            f"{row.rounds:.1f}",
            f"{(row.latency_us or 0) / 1e3:.2f}",
            f"{row.queries_per_s:,.0f}",
            f"{row.more['queries_per_s'] / (row.queries_per_s or 1) - 1:+.0%} QPS",
        )
    out.print(shown)
    out.print(f"\nfor recall {recall} at k = {k}, queries never seen before")
    out.print(costs_text(costs))


def costs_text(costs: Costs) -> str:
    """What the machine takes, in a line."""
    return (
        f"a round of reads takes {costs.round_us:.0f} µs, the device answers {costs.reads_per_s:,.0f} a s; "
        f"a query takes {costs.query_us:.0f} µs, an estimate {costs.estimate_ns:.0f} ns, "
        f"a page {costs.page_us:.1f} µs; {costs.threads} workers"
    )
