"""``velo info --budgets``: what each budget would buy."""

from __future__ import annotations

from pathlib import Path

from velo.cli.output import console, emit_json, table
from velo.planning.budgets import PlannedBudget, plans
from velo.results import size_text

__all__ = ["bought", "show"]


def show(path: Path, *, memory: str | None, recall: float, k: int, as_json: bool) -> None:
    """Print a row a budget."""
    rows = plans(path, memory=memory, recall=recall, k=k)
    if as_json:
        emit_json({"recall": recall, "k": k, "budgets": [row.to_dict() for row in rows]})
        return
    out = console()
    rows_shown = table("budget", "links:", "kept", "list", "recall", "reads", "rounds", "estimates", "+5 %")
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
            f"{row.rounds:.1f}",
            f"{row.estimates:,.0f}",
            f"{row.more['reads'] - row.reads:+.1f}",
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
        f"for recall {recall} at k = {k}, queries never seen before; +5 %: reads that so much more saves"
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
