"""``velo info --budgets``: what each budget would buy."""

from __future__ import annotations

from pathlib import Path

from velo.cli.output import console, emit_json, table
from velo.options import SHARED_LINKS
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
    shown = table("budget", "size", "links", "recall", "reads", "rounds", "estimates", "+5 %", "build")
    opening = [row for row in rows if row.plan is not None]
    kept = bought(opening)
    for row in opening[:kept]:
        build = "–" if row.build_bits is None else "{}+{}".format(*row.build_bits)
        shown.add_row(_share(row), size_text(row.budget_bytes), _links(row), *_measured(row), build)
    out.print(shown)
    out.print()
    if opening:
        out.print(
            f"less than {_share(opening[0])} does not open this index; its bits a dimension in memory: "
            f"{opening[0].memory_bits}"
        )
        out.print("build: bits in memory and on disk that velo build --search-memory would choose")
    if kept < len(opening):
        out.print(f"more than {_share(opening[kept - 1])} buys nothing more")
    if any("shared" in _links(row) for row in opening[:kept]):
        out.print("shared: a vertex has so many links in a list that its neighbors have as well")
    if any(row.recall is None for row in opening):
        out.print("? is not known: the index was built without calibration")
    out.print(
        f"for recall {recall} at k = {k}, queries never seen before; +5 %: reads that so much more saves"
    )


def _share(row: PlannedBudget) -> str:
    """Enough of it that one budget is not another."""
    return f"{row.share:.0%}" if row.share * 100 % 1 < 1e-6 else f"{row.share:.1%}"


def _links(row: PlannedBudget) -> str:
    if row.plan == "links_on_disk":
        return "on disk"
    if row.plan == "pages":
        return f"none; {row.page_codes_kept} code{'s' if row.page_codes_kept != 1 else ''} a page"
    return f"{row.links_kept}, shared" if row.links_kept in SHARED_LINKS else str(row.links_kept)


def _measured(row: PlannedBudget) -> tuple[str, ...]:
    if row.recall is None or row.reads is None or row.more is None:
        return ("?",) * 5
    saved = row.more["reads"] - row.reads
    return (
        f"{row.recall:.3f}",
        f"{row.reads:.1f}",
        f"{row.rounds:.1f}",
        f"{row.estimates:,.0f}",
        f"{saved:+.1f}" if round(saved, 1) else "–",
    )


def bought(rows: list[PlannedBudget]) -> int:
    """How many of the budgets buy something that the one before does not."""
    kept = len(rows)
    while kept > 1 and _same(rows[kept - 1], rows[kept - 2]):
        kept -= 1
    return kept


def _same(row: PlannedBudget, before: PlannedBudget) -> bool:
    names = ("plan", "links_kept", "page_codes_kept", "list_size", "recall", "reads", "rounds")
    return row.plan is not None and all(getattr(row, name) == getattr(before, name) for name in names)
