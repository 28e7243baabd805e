"""Searches over more and more young parts, and over more and more new rows, beside the same rows in one part.

Each state is made by a writer and left at once, so that nothing of it is merged, and then opened by a reader,
which never merges. Beside it the same rows are open as they are built afresh. Both are asked in turn, within
one process and by one thread, and the processor time of a query is the median of several rounds.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import velo
from bench.commands.live_indexes import (
    Truth,
    Work,
    built,
    copy_of,
    fresh_build,
    insert_all,
    share_of,
)
from bench.harness import tables
from bench.harness.datasets import DataError, Dataset, K
from bench.harness.sections import Context, Results

RECALLS = (0.95, 0.99)
#: Of the rows: in the index that new ones come to, and in each young part.
_OLD = 0.6
_YOUNG = 0.02
_PARTS = (0, 1, 2, 4, 6, 8, 12)
_DELTA_ROWS = (0, 100, 300, 1000, 3000, 6000)
_ROUNDS = 15
#: For the series of another version, in the folder of sections and in the rows.
FORMER = "many:former"
#: What a picture and a table is over.
STATES = {"parts": "young parts", "delta": "rows in the delta"}


def many(context: Context) -> Results:
    """Cost, reads, rounds and recall by young parts, and by rows in the delta."""
    dataset = context.dataset()
    old, young = int(dataset.n * _OLD), int(dataset.n * _YOUNG)
    if dataset.n < (least := old + max(_PARTS[-1] * young, _DELTA_ROWS[-1])):
        raise DataError(f"{dataset.n:,} rows are too few for states of up to {least:,}")
    found: Results = {"old_rows": old, "young_rows": young, "rounds_measured": _ROUNDS}
    with Work(context, dataset, "many") as work:
        one_part = OnePart(context, dataset, work)
        path, now = copy_of(built(context, dataset, _OLD), work / "parts.velo"), 0
        found["parts"] = []
        for count in _PARTS:
            for number in range(now, count):
                first = old + number * young
                write(dataset, path, np.arange(first, first + young), flush=True)
            now = count
            expect(path, [old] + [young] * count, 0)
            found["parts"].append(
                {"count": count, **compared(context, dataset, path, one_part, old + count * young)}
            )
        path, now = copy_of(built(context, dataset, _OLD), work / "delta.velo"), 0
        found["delta"] = []
        for count in _DELTA_ROWS:
            write(dataset, path, np.arange(old + now, old + count), flush=False)
            now = count
            expect(path, [old], count)
            found["delta"].append({"count": count, **compared(context, dataset, path, one_part, old + count)})
    return found


class OnePart:
    """Indexes of the first rows, each built when it is asked for."""

    def __init__(self, context: Context, dataset: Dataset, work: Path) -> None:
        self._context, self._dataset, self._work = context, dataset, work

    def path(self, rows: int) -> Path:
        path = self._work / f"one-{rows}.velo"
        if not path.exists():
            fresh_build(self._context, self._dataset, np.arange(rows), path)
        return path


def write(dataset: Dataset, path: Path, rows: NDArray[np.int64], *, flush: bool) -> None:
    """A writer comes and goes: merges would begin a second after its flush."""
    if len(rows) == 0:
        return
    with velo.open(path, writable=True, memory=dataset.float32_bytes, durability="process") as index:
        insert_all(index, dataset, rows, 1000)
        if flush:
            index.flush()


def expect(path: Path, parts: list[int], delta: int) -> None:
    """Raise DataError where the state is not what its row is going to say."""
    with velo.open(path, threads=1) as index:
        info = index.info()
    live = info["live"] or {"parts": [{"n": info["n"]}], "delta": {"n": 0}}
    found = [part["n"] for part in live["parts"]], live["delta"]["n"]
    if found != (parts, delta):
        raise DataError(f"parts and rows in the delta are {found}, not {(parts, delta)}: something merged")


def compared(context: Context, dataset: Dataset, path: Path, one_part: OnePart, rows: int) -> Results:
    """The state at ``path`` and the same rows in one part, asked in turn."""
    truth = Truth(context, dataset, np.arange(rows))
    memory = share_of(context, rows * dataset.dim * 4)
    found: Results = {"rows": rows, "recalls": []}
    with (
        velo.open(path, memory=memory, threads=1) as state,
        velo.open(one_part.path(rows), memory=memory, threads=1) as one,
    ):
        for recall in RECALLS:
            told = {"state": asked(state, truth, recall), "one": asked(one, truth, recall)}
            taken: dict[str, list[float]] = {"state": [], "one": []}
            for turn in range(_ROUNDS):
                pair = (("state", state), ("one", one))
                for name, index in pair if turn % 2 else reversed(pair):
                    used = time.process_time()
                    index.search(truth.queries, K, recall=recall)
                    taken[name].append((time.process_time() - used) / len(truth.queries) * 1e6)
            for name, values in taken.items():
                told[name]["cpu_us"] = float(np.median(values))
            found["recalls"].append({"recall": recall, **told})
    return found


def asked(index: velo.Index, truth: Truth, recall: float) -> Results:
    """What a search finds and reads; it warms up as well."""
    result = index.search(truth.queries, K, recall=recall)
    stats = {name: float(np.mean(result.stats[name])) for name in ("reads", "rounds", "estimates")}
    return {"recall": truth.recall(result.ids), **stats}


def former(file: Path) -> Results:
    """What a page's rows hold of this section, as that of another version."""
    for text in file.read_text().splitlines():
        row: Results = json.loads(text)
        if row.get("section") == "many" and "result" in row:
            return row | {"section": FORMER}
    raise DataError(f"{file} has no rows of the section 'many'")


def ratio(told: Results, what: str, count: int, recall: float = RECALLS[0]) -> float:
    """Processor time of a query in this state over that in one part."""
    row = row_of(told, what, count, recall)
    return float(row["state"]["cpu_us"] / row["one"]["cpu_us"])


def row_of(told: Results, what: str, count: int, recall: float = RECALLS[0]) -> Results:
    state = next(one for one in told[what] if one["count"] == count)
    found: Results = next(one for one in state["recalls"] if one["recall"] == recall)
    return found


def rounds(told: Results, count: int) -> float:
    """Rounds of a query beside so many young parts."""
    return float(row_of(told, "parts", count)["state"]["rounds"])


def note(told: Results, what: str, count: int) -> str:
    row = row_of(told, what, count)
    return (
        f"{row['state']['cpu_us']:.0f} / {row['one']['cpu_us']:.0f} µs, "
        f"recall {row['state']['recall']:.4f} / {row['one']['recall']:.4f}"
    )


def versions(results: dict[str, Results]) -> list[tuple[str, Results]]:
    """What was measured: (label, section) of this version, and of a former one."""
    every = (("now", results.get("many", {})), ("before", results.get(FORMER, {})))
    return [(label, told) for label, told in every if "result" in told]


def series(results: dict[str, Results], what: str, key: str) -> dict[str, list[tuple[float, float]]]:
    """Lines of a picture: a version and a recall each; ``cpu_us`` is that over one part."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for label, told in versions(results):
        for recall in RECALLS:
            lines[f"{label}, {recall}"] = [
                (
                    one["count"],
                    ratio(told["result"], what, one["count"], recall)
                    if key == "cpu_us"
                    else row_of(told["result"], what, one["count"], recall)["state"][key],
                )
                for one in told["result"][what]
            ]
    return lines


def text(results: dict[str, Results]) -> list[str]:
    """A table of states for young parts, and one for rows in the delta."""
    found = versions(results)
    if not found:
        return []
    first = found[0][1]["result"]
    loads = ", ".join(f"{told['load']} ({label})" for label, told in found)
    commits = ", ".join(f"{label}: `{told['library']['commit'][:10]}`" for label, told in found)
    lines = [
        "",
        "## Many parts and many new rows",
        "",
        f"To {first['old_rows']:,} rows that were built come young parts of {first['young_rows']:,} rows "
        "each, or rows of the delta. One thread, memory a share of the rows that are there. Each cell: "
        f"for recalls of {' and '.join(map(str, RECALLS))}. µs are of the processor, medians of "
        f"{first['rounds_measured']} rounds in turn with the same rows built as one part; "
        "÷ is the one over the other. Where nothing was added it stands for two builds of the same rows, and "
        f"tells how far it varies. {commits}. "
        f"Load of the machine meanwhile: {loads}.",
    ]
    for what, title in STATES.items():
        rows = [
            [label, f"{one['count']:,}", *cells(one["recalls"])]
            for label, told in found
            for one in told["result"][what]
        ]
        lines += [
            "",
            *tables.table(
                ["", title, "÷ one part", "µs", "µs in one part", "reads", "in one part", "rounds", "recall"],
                rows,
            ),
        ]
    return lines


def cells(recalls: list[Results]) -> list[str]:
    def both(form: str, value: Any) -> str:
        return "; ".join(format(value(one), form) for one in recalls)

    return [
        both(".2f", lambda one: one["state"]["cpu_us"] / one["one"]["cpu_us"]),
        both(".0f", lambda one: one["state"]["cpu_us"]),
        both(".0f", lambda one: one["one"]["cpu_us"]),
        both(".1f", lambda one: one["state"]["reads"]),
        both(".1f", lambda one: one["one"]["reads"]),
        both(".2f", lambda one: one["state"]["rounds"]),
        both(".4f", lambda one: one["state"]["recall"]),
    ]
