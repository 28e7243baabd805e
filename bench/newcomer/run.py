"""Runs a newcomer's program step by step, in the interpreter that has its system; says what each step took.

It is started with one argument, a JSON file: the program, the folder of the set, the program's own folder,
which half is to run and where the answer goes. The first half ends before ``open again``; the second is a
process of its own, which has nothing of the first but what lies on disk. A program's steps begin with
``# ---- `` and a name, and what stands before the first of them belongs to both halves. Only numpy, pyarrow
and the standard library are used here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MARK = "# ---- "
AGAIN = "open again"
COLUMNS = ("package", "section", "installed_size", "summary")
#: Rows that come later, ids that go, and queries, each asked by itself.
NEW, GONE, QUERIES = 1_000, 1_000, 500


def steps_of(text: str) -> list[tuple[str, int, str]]:
    """The steps of a program, as (name, number of the first line, text); what imports has no name."""
    steps: list[tuple[str, int, list[str]]] = [("", 1, [])]
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(MARK):
            steps.append((line.removeprefix(MARK), number, []))
        steps[-1][2].append(line)
    return [(name, number, "\n".join(lines) + "\n") for name, number, lines in steps]


def lines_of(text: str) -> int:
    """Lines that somebody wrote: no blank ones, no comments."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("#"))


def rows_of(folder: Path) -> tuple[np.ndarray, pa.Table, np.ndarray]:
    """Vectors, their metadata with an ``id``, and queries of the set in ``folder``."""
    vectors = np.load(folder / "base.f16.npy").astype(np.float32)
    queries = np.load(folder / "query.f16.npy")[:QUERIES].astype(np.float32)
    table = pq.read_table(folder / "meta.parquet", columns=list(COLUMNS))
    plain = {
        name: column.cast(pa.string())
        for name in COLUMNS
        if pa.types.is_dictionary((column := table[name]).type)
    }
    for name, column in plain.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return vectors, table.add_column(0, "id", pa.array(np.arange(len(vectors)))), queries


def gone_of(count: int) -> list[int]:
    """Ids that go, of ``count`` rows that were there at first."""
    return list(range(0, count, count // GONE))[:GONE]


def give(folder: str, data: Path, *, again: bool) -> None:
    """Put into place what a program imports; the second half has the queries alone."""
    given = importlib.import_module("given")  # beside this file, where programs look for it
    vectors, table, queries = rows_of(data)
    old = 0 if again else len(vectors) - NEW
    new = 0 if again else NEW
    values = {
        "folder": folder,
        "vectors": vectors[:old].copy(),
        "table": table.slice(0, old),
        "new_vectors": vectors[old : old + new].copy(),
        "new_table": table.slice(old, new),
        "gone": [] if again else gone_of(old),
        "queries": queries,
    }
    for name, value in values.items():
        setattr(given, name, value)


def status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def main() -> None:
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    program, again = Path(request["program"]), bool(request["again"])
    give(request["folder"], Path(request["data"]), again=again)
    steps = steps_of(program.read_text())
    first = next(number for number, (name, *_) in enumerate(steps) if name == AGAIN)
    chosen = [steps[0], *steps[first:]] if again else steps[:first]
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    told: dict[str, Any] = {"before_mib": status_mib("VmRSS"), "steps": {}}
    names: dict[str, Any] = {}
    for name, number, text in chosen:
        code = compile("\n" * (number - 1) + text, str(program), "exec")
        start, cpu_start = time.perf_counter(), time.process_time()
        exec(code, names)
        taken = {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - cpu_start}
        told["steps"][name or "import"] = taken
    told["peak_mib"] = status_mib("VmHWM")
    for name in ("found", "filtered", "found_again"):
        if name in names:
            told[name] = [[int(one) for one in np.asarray(ids)] for ids in names[name]]
    if "count" in names:
        told["count"] = int(names["count"])
    Path(request["answer"]).write_text(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)  # what a system does at its end is not part of the program


if __name__ == "__main__":
    main()
