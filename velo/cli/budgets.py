"""``velo info --budgets``: what each budget would buy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from velo.cli.output import console, emit_json, table
from velo.planning.budgets import Costs, PlannedBudget, measure_costs, open_to_measure, plans
from velo.results import size_text

__all__ = ["bought", "costs_text", "show"]


def show(path: Path, *, memory: str | None, recall: float, k: int, as_json: bool) -> None:
    """Print a row a budget, and what the machine takes."""
    with open_to_measure(path) as index:
        costs = measure_costs(index)
    rows = plans(path, memory=memory, recall=recall, k=k, costs=costs)
    if as_json:
        emit_json(
            {"recall": recall, "k": k, "costs": asdict(costs), "budgets": [row.to_dict() for row in rows]}
        )
        return
    out = console()
    rows_shown = table("budget", "links:", "kept", "list", "recall", "reads", "ms", "QPS", "+5 %")
    buying = bought(rows)
    for row in rows[:buying]:
        if row.plan is None:
            continue
        shape = (f"{row.share:.0%}", row.plan.removeprefix("links_").replace("_", " "), str(row.links_kept))
        if row.recall is None or row.reads is None or row.more is None:
            rows_shown.add_row(*shape, str(row.list_size), *["?"] * 5)
            continue
        rows_shown.add_row(
            *shape,
            str(row.list_size),
            f"{row.recall:.3f}",
            f"{row.reads:.1f}",
            f"{(row.latency_us or 0) / 1e3:.2f}",
            f"{row.queries_per_s:,.0f}",
            f"{row.more['queries_per_s'] / (row.queries_per_s or 1) - 1:+.0%}",
        )
    out.print(rows_shown)
    out.print()
    needed = {row.needed_bytes for row in rows if row.plan is None}
    if needed:
        share = max(row.share for row in rows if row.plan is None)
        out.print(f"{share:.0%} is too little: the index needs {size_text(max(filter(None, needed)))}")
    if buying < len(rows):
        out.print(f"more than {rows[buying - 1].share:.0%} buys nothing more")
    if any(row.plan is not None and row.recall is None for row in rows):
        out.print("? is not known: the index was built without calibration")
    out.print(
        f"for recall {recall} at k = {k}, queries never seen before; +5 % is what that much more does to QPS"
    )
    out.print(costs_text(costs))
    if not costs.agreed:
        out.print(
            "the probes did not agree, so the machine was busy with something else: ms and QPS are rough"
        )


def bought(rows: list[PlannedBudget]) -> int:
    """How many of the budgets buy something that the one before does not."""
    kept = len(rows)
    while kept > 1 and _same(rows[kept - 1], rows[kept - 2]):
        kept -= 1
    return kept


def _same(row: PlannedBudget, before: PlannedBudget) -> bool:
    names = ("plan", "links_kept", "list_size", "recall", "reads", "rounds")
    return row.plan is not None and all(getattr(row, name) == getattr(before, name) for name in names)


def costs_text(costs: Costs) -> str:
    """What the machine takes, in a line."""
    return (
        f"a round of reads takes {costs.round_us:.0f} µs, the device answers {costs.reads_per_s:,.0f} a s; "
        f"a query takes {costs.query_us:.0f} µs, an estimate {costs.estimate_ns:.0f} ns, "
        f"a page {costs.page_us:.1f} µs; {costs.threads} workers"
    )
