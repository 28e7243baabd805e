"""``velo tune``: options proposed by small indexes over a sample."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from velo.cli.arguments import AsJson, Threads
from velo.cli.output import console, emit_json, table
from velo.formats import open_vectors
from velo.planning.proposal import Proposal
from velo.planning.tune import DEGREES
from velo.planning.tune import tune as propose
from velo.results import size_text

__all__ = ["tune"]


def tune(
    vectors: Annotated[Path, typer.Argument(help="File of vectors, as for build.")],
    memory: Annotated[
        str, typer.Option(help='Budget of searches: "15%", "2GiB", or bytes.', metavar="BUDGET")
    ] = "20%",
    recall: Annotated[float, typer.Option(help="Recall to tune for.")] = 0.95,
    k: Annotated[int, typer.Option("-k", "--k", help="Neighbors to tune for.")] = 10,
    metric: Annotated[str, typer.Option(help="l2, ip or cosine.")] = "l2",
    column: Annotated[str | None, typer.Option(help="Column or data set of the vectors.")] = None,
    sample: Annotated[int, typer.Option(help="Rows to draw.")] = 50_000,
    degrees: Annotated[
        list[int] | None,
        typer.Option(
            "--degree", help="Degree to try; may be repeated. Without it 24, 32, 48 and 64 are tried."
        ),
    ] = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    scratch: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the small indexes, on the device to tune for. Without it: beside the file."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Propose options for build and open, after measuring small indexes over a sample of the vectors."""
    last = ("", 0)

    def tell(doing: str, done: int, total: int) -> None:
        nonlocal last
        if (doing, done) != last:
            last = (doing, done)
            sys.stderr.write(f"{done}/{total} {doing}\n" if done else f"{doing}\n")
            sys.stderr.flush()

    source = open_vectors(vectors, column=column)
    proposal = propose(
        source,
        memory=memory,
        recall=recall,
        k=k,
        metric=cast(Any, metric),
        sample=sample,
        degrees=degrees or DEGREES,
        threads=threads,
        seed=seed,
        scratch=scratch,
        progress=tell,
    )
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
    out.print(
        f"\nfor recall {proposal.recall} at k = {proposal.k} within {size_text(proposal.budget_bytes)}, "
        f"{proposal.n:,} x {proposal.dim} vectors; links are those a vertex in memory, disk B is a vector"
    )
    out.print(
        f"counts and times a query are those of {proposal.sample_rows:,} sampled rows on "
        f"{proposal.threads} threads; the device answers {proposal.reads_per_s:,.0f} reads a second"
    )
    if not proposal.chosen.reached:
        longest = proposal.chosen.list_size
        out.print(f"no candidate came to recall {proposal.recall} with lists up to {longest:.0f}")
    out.print(f"\n{build_line}\n{proposal.open_line()}", soft_wrap=True)
