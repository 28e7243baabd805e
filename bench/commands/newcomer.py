"""``bench newcomer``: one program of somebody who is new, for velo and for others, step by step.

Every program does the same over the same rows: build from an array and a table, search, search with a
filter, insert, delete, change a value of all rows that pass a filter, open again in another process, search,
count. Each is written as the documentation of its system has it, with the system's own defaults.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import kept, machine, pages, sections, tables
from bench.harness.sections import Context, Results, Section
from bench.newcomer import run as program
from bench.peers import install

MODULE = "bench.commands.newcomer"
PROGRAMS = Path(program.__file__).parent
#: By section: what it is called, and the package whose version is told.
SYSTEMS = {
    "velo": ("velo", "velo"),
    "lancedb": ("LanceDB", "lancedb"),
    "qdrant_edge": ("Qdrant Edge", "qdrant-edge-py"),
    "usearch": ("usearch", "usearch"),
}
STEPS = (
    *("import", "build", "search", "filtered search", "insert", "delete", "update where"),
    *(program.AGAIN, "search again", "count"),
)
ASKED = ("found", "filtered", "found_again")
K = 10
_LIMIT_S = 3600.0
#: Distances of float32 rows that were taken in another order of sums.
_SLACK = 1e-5

Row = dict[str, Any]


def run(context: Context, out: Path, name: str, only: list[str] | None) -> None:
    """Run all programs, write ``out/name.md`` and ``out/name.jsonl``."""
    folder = context.folder / "newcomer" / "sections"
    results = sections.run(MODULE, sections_of(context), context, folder=folder, only=only)
    vectors, table, queries = program.rows_of(Path(context.data))
    head = {
        "machine": machine.describe(context.folder),
        "dataset": Path(context.data).name,
        "n": len(vectors),
        "dim": vectors.shape[1],
        "query_count": len(queries),
        "float32_bytes": vectors.nbytes,
        "columns": table.column_names,
    }
    _write(out, name, head, results)


def rewrite(out: Path, name: str) -> None:
    """The page anew, from the rows that are kept."""
    found = kept.load(out, name)
    _write(out, name, found.head, found.results)


def _write(out: Path, name: str, head: Row, results: Mapping[str, Results]) -> None:
    pages.write(out, name, [{"head": head}, *results.values()], _markdown(head, results))


def sections_of(context: Context) -> Mapping[str, Section]:
    return {name: Section(name, partial(_measured, name), _LIMIT_S) for name in SYSTEMS}


def _measured(name: str, context: Context) -> Results:
    """Both halves of a program, each in a process of its own, and how right their answers are."""
    work = context.folder / "newcomer"
    source = PROGRAMS / f"{name}_program.py"
    python = sys.executable if name == "velo" else str(_interpreter(work))
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    halves = [_half(python, source, context, folder, again=again) for again in (False, True)]
    asked: Row = {key: halves[key == "found_again"].pop(key) for key in ASKED}
    return {
        "version": _version(python, SYSTEMS[name][1]),
        "lines": program.lines_of(source.read_text()),
        "steps": halves[0]["steps"] | {step: halves[1]["steps"][step] for step in STEPS[-3:]},
        "given_mib": halves[0]["before_mib"],
        "peak_mib": halves[0]["peak_mib"],
        "again_mib": halves[1]["peak_mib"],
        "disk_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        "count": halves[1]["count"],
        **_judged(Path(context.data), asked),
    }


def _interpreter(work: Path) -> Path:
    """One environment has all systems but velo: each runs in a process of its own."""
    return install.environment("newcomer", PROGRAMS / "requirements.txt", work / "venv")


def _half(python: str, source: Path, context: Context, folder: Path, *, again: bool) -> Row:
    answer = folder.with_suffix(".answer.json")
    request = folder.with_suffix(".request.json")
    asked = {"program": str(source), "data": context.data, "folder": str(folder), "again": again}
    request.write_text(json.dumps(asked | {"answer": str(answer)}))
    answer.unlink(missing_ok=True)
    subprocess.run([python, str(PROGRAMS / "run.py"), str(request)], check=True)
    told: Row = json.loads(answer.read_text())
    return told


def _version(python: str, package: str) -> str:
    if package == "velo":
        import velo

        return velo.__version__
    command = [python, "-c", f"from importlib.metadata import version; print(version({package!r}))"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _judged(data: Path, asked: Row) -> Row:
    """Recall of each search among the rows that were to be found, and how many rows a count had to count."""
    vectors, table, queries = program.rows_of(data)
    ids = np.arange(len(vectors))
    old = ids < len(vectors) - program.NEW
    section = np.array(table["section"].to_pylist())
    passes = (section == "python") & (table["installed_size"].to_numpy() < 500)
    alive = ~np.isin(ids, program.gone_of(int(old.sum())))
    wanted = {"found": old, "filtered": old & passes, "found_again": alive}
    told: Row = {"recalls": {}, "wrong": {}, "true_count": int(((section == "games") & alive).sum())}
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = rows @ (queries / np.linalg.norm(queries, axis=1, keepdims=True)).T
    for name, may in wanted.items():
        told["recalls"][name], told["wrong"][name] = recall(near, may, asked[name])
    return told


def recall(near: NDArray[np.float32], may: NDArray[np.bool_], found: list[list[int]]) -> tuple[float, int]:
    """Share of the k nearest that was found, by nearness, and how many were found that may not be.

    Parameters
    ----------
    near : array of shape (rows, queries)
        How near each row is to each query: more is nearer.
    may : array of bool
        Rows that may be found.
    found : list of list of int
    """
    hits = wrong = most = 0
    for query, ids in enumerate(found):
        close = near[:, query]
        k = min(K, int(may.sum()))
        bound = np.partition(close[may], -k)[-k]
        right = [one for one in dict.fromkeys(ids) if may[one]]
        wrong += len(ids) - len(right)
        hits += sum(1 for one in right if close[one] >= bound - _SLACK)
        most += k
    return hits / most, wrong


def _markdown(head: Row, results: Mapping[str, Results]) -> str:
    done = {name: told["result"] for name, told in results.items() if "result" in told}
    queries = head["query_count"]

    def each(step: str, what: str = "seconds", scale: float = 1.0, digits: int = 2) -> list[str]:
        return [f"{one['steps'][step][what] * scale:,.{digits}f}" for one in done.values()]

    rows = [
        ["version", *(one["version"] for one in done.values())],
        ["lines of the program", *(str(one["lines"]) for one in done.values())],
        ["build, s", *each("build", digits=1)],
        ["build, s of processor", *each("build", "cpu_s", digits=1)],
        ["search, ms a query", *each("search", scale=1e3 / queries)],
        ["search, ms of processor a query", *each("search", "cpu_s", 1e3 / queries)],
        ["recall@10", *(f"{one['recalls']['found']:.3f}" for one in done.values())],
        ["filtered search, ms a query", *each("filtered search", scale=1e3 / queries)],
        ["recall@10 of it", *(f"{one['recalls']['filtered']:.3f}" for one in done.values())],
        [f"insert of {program.NEW:,}, s", *each("insert")],
        [f"delete of {program.GONE:,}, s", *each("delete")],
        ["update where, and close, s", *each("update where")],
        ["open again, s", *each(program.AGAIN)],
        ["search again, ms a query", *each("search again", scale=1e3 / queries)],
        ["recall@10 of it", *(f"{one['recalls']['found_again']:.3f}" for one in done.values())],
        ["rows found that may not be", *(str(sum(one["wrong"].values())) for one in done.values())],
        [
            "counted",
            *(
                f"{one['count']:,}" if one["count"] == one["true_count"] else f"**{one['count']:,}**"
                for one in done.values()
            ),
        ],
        [
            "peak memory to write, MiB",
            *(f"{one['peak_mib'] - one['given_mib']:,.0f}" for one in done.values()),
        ],
        ["peak memory opened again, MiB", *(f"{one['again_mib']:,.0f}" for one in done.values())],
        ["on disk, MiB", *(f"{one['disk_bytes'] / 2**20:,.0f}" for one in done.values())],
        ["load", *(f"{results[name]['load']:.1f}" for name in done)],
    ]
    text = [
        f"# A newcomer's program: {head['dataset']}",
        "",
        f"{head['n']:,} rows of {head['dim']} dimensions, {head['float32_bytes'] / 2**20:,.0f} MiB as "
        f"float32, with {len(head['columns'])} columns ({', '.join(head['columns'])}); cosine, k = {K}, "
        f"{queries} queries one at a time. {tables.machine_line(head['machine'])} "
        "`python -m bench newcomer`.",
        "",
        "The same program for each system (`bench/newcomer/*_program.py`), as its documentation has it and "
        "with its own defaults: so recalls differ, and times are no comparison at equal recall. Lines are "
        "those that are neither blank nor comments. The filter is a section and a bound on a size. Opened "
        "again is another process, whose peak counts Python and the queries, too; to write, memory is what "
        "comes beside the rows that are given. usearch has no metadata: its program keeps a table beside, "
        "and compares all that pass. Inserts end as each system's do, velo's once rows are on the device.",
        "",
        "Times are wall-clock, and a busy machine makes them longer (*load*: above 2 others had the "
        "processors, too). Compare processor time then.",
        "",
        *tables.table(["", *(SYSTEMS[name][0] for name in done)], rows),
    ]
    missing = [f"- {name}: {told['error']}" for name, told in results.items() if "error" in told]
    if missing:
        text += ["", "Not measured:", "", *missing]
    return "\n".join(text) + "\n"
