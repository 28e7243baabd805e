"""``bench rewrite``: pages and pictures of results anew, from the rows that are kept; nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.commands import budgets, filters, hard_tables, live, newcomer, report, rungs, speed
from bench.harness.datasets import DataError

#: Who writes a page, by what its name begins with.
WRITERS: Mapping[str, Callable[[Path, str], object]] = {
    "budgets": budgets.rewrite,
    "filters": filters.rewrite,
    "hard": lambda out, name: hard_tables.write(out, name, "hard-before"),
    "live": live.rewrite,
    "newcomer": newcomer.rewrite,
    "report": report.rewrite,
    "rungs": rungs.rewrite,
    "speed": speed.rewrite,
}


def names_in(out: Path) -> list[str]:
    """Pages in ``out`` that can be written anew."""
    return sorted(
        page.stem
        for page in out.glob("*.md")
        if page.stem.split("-")[0] in WRITERS and page.with_suffix(".jsonl").exists()
    )


def run(out: Path, names: Sequence[str]) -> list[str]:
    """Write ``names``, or all that can be; returns which were."""
    there = names_in(out)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise DataError(f"no rows are kept of {unknown[0]!r}; there are {', '.join(there)}")
    chosen = list(names) or there
    for name in chosen:
        WRITERS[name.split("-")[0]](out, name)
    return chosen
