"""``velo tune``: options proposed by small indexes over a sample."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from velo.cli.budgets import costs_text
from velo.cli.output import console, emit_json, table
from velo.formats import open_vectors
from velo.planning.plot import check_plot
from velo.planning.proposal import Proposal
from velo.planning.tune import DEGREES, tune
from velo.results import size_text

__all__ = ["run"]


def run(
    vectors: Path,
    *,
    column: str | None,
    degrees: list[int] | None,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Try candidates and print a row for each, the proposal, and the lines that follow from it."""
    last = ("", 0)

    def tell(doing: str, done: int, total: int) -> None:
        nonlocal last
        if (doing, done) != last:
            last = (doing, done)
            sys.stderr.write(f"{done}/{total} {doing}\n" if done else f"{doing}\n")
            sys.stderr.flush()

    source = open_vectors(vectors, column=column)
    if plot is not None:
        check_plot(plot)
    proposal = tune(source, degrees=degrees or DEGREES, progress=tell, **options)
    if plot is not None:
        proposal.plot(plot)
    build_line = proposal.build_line(shlex.quote(str(vectors))) + (
        f" --column {shlex.quote(column)}" if column else ""
    )
    if as_json:
        emit_json(
            {**proposal.to_dict(), "lines": {"build": build_line, "open": proposal.open_line()}},
        )
        return
    _print(proposal, build_line)


def _print(proposal: Proposal, build_line: str) -> None:
    out = console()
    heads, *rows = proposal.table
    grid = table(*heads)
    for row in rows:
        grid.add_row(*row)
    out.print(grid)
    chosen = proposal.chosen
    out.print(
        f"\nfor recall {proposal.recall} at k = {proposal.k} within {size_text(proposal.budget_bytes)}, "
        f"{proposal.n:,} x {proposal.dim} vectors; links are those a vertex in memory, disk B is a vector"
    )
    if proposal.n > proposal.sample_rows:
        out.print(
            f"counts and times are for all rows, reckoned from {proposal.sample_rows:,} and a quarter; "
            f"of the sample itself: list {chosen.sample_list_size:.0f}, {chosen.sample_reads:.1f} reads in "
            f"{chosen.sample_rounds:.1f} rounds, built in {chosen.sample_build_s:.1f} s"
        )
    out.print(costs_text(proposal.costs))
    if not chosen.reached:
        out.print(
            f"no candidate came to recall {proposal.recall} with lists up to {chosen.sample_list_size:.0f}"
        )
    out.print(f"\n{build_line}\n{proposal.open_line()}", soft_wrap=True)
