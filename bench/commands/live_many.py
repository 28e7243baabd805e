"""Searches over more and more young segments, and over more and more rows in the delta.

A writer makes each state and leaves at once, so that nothing of it is merged; a reader, which never merges,
opens it. The same rows are open beside it as a fresh build. Both are asked in turn, within one process and by
one thread, and the processor time of a query is the median of several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import velo
from bench.commands.live_indexes import Truth, built, copy_of, fresh_build, insert_all, share_of, work_folder
from bench.harness.curves import Row
from bench.harness.datasets import DataError, Dataset, K
from bench.harness.plots import Panel, Picture
from bench.harness.sections import Context, Results

RECALLS = (0.95, 0.99)
#: Shares of the rows: in the index that new ones come to, and in each young segment.
_OLD = 0.6
_YOUNG = 0.02
_PARTS = (0, 1, 2, 4, 6, 8, 12)
_DELTA_ROWS = (0, 100, 300, 1000, 3000, 6000)
_ROUNDS = 15
STATES = {"parts": "young segments", "delta": "rows in the delta"}


def many(context: Context) -> Results:
    """Cost, reads, rounds and recall by young segments, and by rows in the delta."""
    dataset = context.dataset()
    old, young = int(dataset.n * _OLD), int(dataset.n * _YOUNG)
    if dataset.n < (least := old + max(_PARTS[-1] * young, _DELTA_ROWS[-1])):
        raise DataError(f"{dataset.n:,} rows are too few for states of up to {least:,}")
    found: Results = {"old_rows": old, "young_rows": young, "rounds_measured": _ROUNDS}
    with work_folder(context, dataset, "many") as work:
        path, now = copy_of(built(context, dataset, _OLD), work / "parts.velo"), 0
        found["parts"] = []
        for count in _PARTS:
            for number in range(now, count):
                first = old + number * young
                write(dataset, path, np.arange(first, first + young), flush=True)
            now = count
            expect(path, [old] + [young] * count, 0)
            state = compared(context, dataset, work, path, old + count * young)
            found["parts"].append({"count": count, **state})
        path, now = copy_of(built(context, dataset, _OLD), work / "delta.velo"), 0
        found["delta"] = []
        for count in _DELTA_ROWS:
            write(dataset, path, np.arange(old + now, old + count), flush=False)
            now = count
            expect(path, [old], count)
            found["delta"].append({"count": count, **compared(context, dataset, work, path, old + count)})
    return found


def write(dataset: Dataset, path: Path, rows: NDArray[np.int64], *, flush: bool) -> None:
    """A writer comes and goes: merges would begin a second after its flush."""
    if len(rows) == 0:
        return
    with velo.open(path, writable=True, memory=dataset.float32_bytes, durability="process") as index:
        insert_all(index, dataset, rows, 1000)
        if flush:
            index.flush()


def expect(path: Path, parts: list[int], delta: int) -> None:
    """Raise DataError where the segments and the delta do not have these rows."""
    with velo.open(path, threads=1) as index:
        info = index.info()
    live = info["live"] or {"parts": [{"n": info["n"]}], "delta": {"n": 0}}
    found = [part["n"] for part in live["parts"]], live["delta"]["n"]
    if found != (parts, delta):
        raise DataError(f"segments and rows in the delta are {found}, not {(parts, delta)}: something merged")


def compared(context: Context, dataset: Dataset, work: Path, path: Path, rows: int) -> Results:
    """The state at ``path`` and the same rows in one segment, asked in turn."""
    truth = Truth(context, dataset, np.arange(rows))
    memory = share_of(context, rows * dataset.dim * 4)
    fresh = work / f"one-{rows}.velo"
    if not fresh.exists():
        fresh_build(context, dataset, np.arange(rows), fresh)
    found: Results = {"rows": rows, "recalls": []}
    with (
        velo.open(path, memory=memory, threads=1) as state,
        velo.open(fresh, memory=memory, threads=1) as one,
    ):
        pair = (("state", state), ("one", one))
        for recall in RECALLS:
            told = {name: asked(index, truth, recall) for name, index in pair}
            taken: dict[str, list[float]] = {"state": [], "one": []}
            for turn in range(_ROUNDS):
                for name, index in pair if turn % 2 else reversed(pair):
                    used = time.process_time()
                    index.search(truth.queries, K, recall=recall)
                    taken[name].append((time.process_time() - used) / len(truth.queries) * 1e6)
            for name, values in taken.items():
                told[name]["cpu_us"] = float(np.median(values))
            found["recalls"].append({"recall": recall, **told})
    return found


def asked(index: velo.Index, truth: Truth, recall: float) -> Results:
    """Recall and counts of a search; it warms up as well."""
    found = index.search(truth.queries, K, recall=recall)
    stats = {name: float(np.mean(found.stats[name])) for name in ("reads", "rounds", "estimates")}
    return {"recall": truth.recall(found.ids), **stats}


def row_of(told: Results, what: str, count: int, recall: float = RECALLS[0]) -> Row:
    state = next(one for one in told[what] if one["count"] == count)
    found: Row = next(one for one in state["recalls"] if one["recall"] == recall)
    return found


def ratio(told: Results, what: str, count: int, recall: float = RECALLS[0]) -> float:
    """Processor time of a query in this state over that in one segment."""
    return ratio_of(row_of(told, what, count, recall))


def ratio_of(row: Row) -> float:
    """Processor time of a state over that of one segment."""
    return float(row["state"]["cpu_us"] / row["one"]["cpu_us"])


def _cost(told: Results, what: str, count: int) -> str:
    return cost_of(row_of(told, what, count))


def cost_of(row: Row) -> str:
    """Processor time and recall of a state and of one segment."""
    state, one = row["state"], row["one"]
    return (
        f"{state['cpu_us']:.0f} / {one['cpu_us']:.0f} µs, recall {state['recall']:.4f} / {one['recall']:.4f}"
    )


def _rounds(told: Results, count: int) -> float:
    return float(row_of(told, "parts", count)["state"]["rounds"])


#: Section, what, bound, value, note, digits.
TARGETS: list[tuple[str, str, str, Any, Any, int]] = [
    (
        "many",
        f"µs of processor, {said} ÷ the same rows in one segment",
        bound,
        partial(ratio, what=what, count=count),
        partial(_cost, what=what, count=count),
        2,
    )
    for said, what, count, bound in (
        ("3,000 rows in the delta", "delta", 3000, "≤ 1.15"),
        ("two young segments", "parts", 2, "≤ 1.2"),
    )
] + [
    (
        "many",
        f"rounds, {said} young segments",
        bound,
        partial(_rounds, count=count),
        lambda told: f"one segment: {_rounds(told, 0):.2f}",
        2,
    )
    for said, count, bound in (("two", 2, "≤ 1.3"), ("six", 6, "≤ 1.5"))
]


def pictures(told: Results) -> Iterator[Picture]:
    def series(what: str, value: Callable[[Row], float]) -> dict[str, list[tuple[float, float]]]:
        return {
            f"recall {recall}": [
                (one["count"], value(row_of(told, what, one["count"], recall))) for one in told[what]
            ]
            for recall in RECALLS
        }

    for what, x in STATES.items():
        panels = [
            Panel(
                "processor ÷ one segment",
                series(what, ratio_of),
            ),
            Panel("reads a query", series(what, lambda row: float(row["state"]["reads"]))),
            Panel("rounds a query", series(what, lambda row: float(row["state"]["rounds"]))),
        ]
        yield Picture(f"many-{what}", f"Searches by {x}", panels, x=x)
