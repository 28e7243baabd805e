"""``velo size`` and ``velo tune``."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from velo.cli.arguments import AsJson, Device, Threads
from velo.cli.output import console, emit_json, facts, table
from velo.errors import InvalidArgumentError
from velo.formats import open_vectors
from velo.planning.proposal import Proposal
from velo.planning.sizes import MEASURED_ROWS_MAX, SizePlan, size_plan
from velo.planning.tune import DEGREES
from velo.planning.tune import tune as propose
from velo.results import size_text

__all__ = ["size", "tune"]

_TIMES: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


def size(
    rows: Annotated[str, typer.Option(help="Vectors of all shards: 20000, 500M, 1.2B.", metavar="COUNT")],
    dim: Annotated[int, typer.Option(help="Dimensions.")],
    memory: Annotated[
        str | None,
        typer.Option(help='Budget of searches, of all shards: "64GB", "15%", or bytes.', metavar="BUDGET"),
    ] = None,
    shards: Annotated[int, typer.Option(help="Indexes that the rows are divided into.")] = 1,
    store_vectors: Annotated[
        bool, typer.Option("--store-vectors", help="The index stores the vectors, too.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of the vectors: f32, f16, u8 or i8.")] = "f32",
    memory_bits: Annotated[int | None, typer.Option(help="Bits a dimension in memory.")] = None,
    record_bits: Annotated[int | None, typer.Option(help="Bits a dimension on disk.")] = None,
    degree: Annotated[int | None, typer.Option(help="Links of a vertex.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan an index before there are vectors: its memory, its disk, its build, and the cost of a query."""
    plan = size_plan(
        _count(rows),
        dim,
        memory=memory,
        shards=shards,
        store_vectors=store_vectors,
        dtype=cast(Any, dtype),
        memory_bits=memory_bits,
        record_bits=record_bits,
        degree=degree,
    )
    if as_json:
        emit_json(plan.to_dict())
        return
    console().print(facts(_lines(plan)))


def _count(text: str) -> int:
    """``500M`` as a number."""
    match = re.fullmatch(r"([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmbg]?)", text.strip(), re.IGNORECASE)
    if match is None:
        raise InvalidArgumentError(f"{text!r} is not a number of vectors: 20000, 500M, 1.2B", argument="rows")
    return round(float(match[1].replace(",", "").replace("_", "")) * _TIMES[match[2].lower()])


def _lines(plan: SizePlan) -> dict[str, str]:
    shards = f", {plan.shards} shards of {-(-plan.rows // plan.shards):,}" if plan.shards > 1 else ""
    links = f"{plan.links} links a vector" if plan.links else "links on disk"
    if plan.page_codes:
        links = f"{plan.page_codes} codes of each page in memory and no others"
    reads = "a read is 4 KiB; SIFT descriptors, ten neighbors at recall 0.95"
    if not plan.measured:
        reads += f"; measured to {MEASURED_ROWS_MAX:,} vectors a shard, beyond that drawn on"
    of_shard = " (one shard)" if plan.shards > 1 else ""
    building = plan.build_memory_bytes
    return {
        "vectors": f"{plan.rows:,} x {plan.dim}{shards}",
        "codes": f"{plan.memory_bits} bits a dimension in memory + {plan.record_bits} on disk; {links}",
        "memory": _parts(plan.memory_bytes, plan)
        + f" = {plan.memory_bytes['total'] / plan.float32_bytes:.1%} of the float32 vectors",
        "disk": _parts(plan.disk_bytes, plan),
        "build memory": f"{size_text(building['in_one_piece'])} in one piece, "
        f"{size_text(building['least'])} in partitions{of_shard}",
        "build time": f"{plan.build_core_s / 3600:,.1f} core hours in all",
        "a query": f"about {plan.reads:.0f} reads in {plan.rounds:.1f} rounds and "
        f"{plan.query_core_us:,.0f} us of a core{', of each shard' if plan.shards > 1 else ''} ({reads})",
    }


def _parts(sizes: dict[str, int], plan: SizePlan) -> str:
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items() if size and name != "total")
    each = f"; {size_text(sizes['total'] // plan.shards)} a shard" if plan.shards > 1 else ""
    return f"{size_text(sizes['total'])} ({parts}{each})"


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
    device: Device = "cpu",
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
        device=device,
        progress=tell,
    )
    build_line = proposal.build_line(shlex.quote(str(vectors))) + (
        f" --column {shlex.quote(column)}" if column else ""
    )
    if as_json:
        emit_json({**proposal.to_dict(), "lines": {"build": build_line, "open": proposal.open_line()}})
        return
    _print_proposal(proposal, build_line)


def _print_proposal(proposal: Proposal, build_line: str) -> None:
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
