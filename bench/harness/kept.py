"""What a command measured before, from the rows beside its page, so that the page can be written anew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.datasets import DataError
from bench.harness.lines import Line
from bench.harness.sections import Results

Row = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """The rows of a page by what they are.

    Attributes
    ----------
    head : dict
        Machine, set and options.
    table : list of Line
        The table of targets; empty where a page has none.
    results : dict
        What each section found, by its name.
    rows : list of dict
        All, in their order.
    """

    head: Row
    table: list[Line]
    results: dict[str, Results]
    rows: list[Row]


def load(out: Path, name: str) -> Kept:
    """The rows of ``out/name.jsonl``. Raises DataError where there are none."""
    file = out / f"{name}.jsonl"
    if not file.exists():
        raise DataError(f"{file} is missing: the page was not written from rows that are kept")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return Kept(
        rows[0]["head"],
        [Line.of_record(row) for row in rows if "line" in row],
        {row["section"]: row for row in rows if "section" in row},
        rows,
    )
