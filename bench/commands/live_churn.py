"""The churn of ``bench live``: a tenth of the rows after the other goes and others come, in four ways.

Which rows go and come decides what a graph suffers. Rows at random leave its shape. Rows that lie together
take a whole neighborhood away at once. Rows that drift leave on one side and come on the other. Where the
metric is an inner product, longer and longer rows become everybody's neighbors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bench.commands.live_indexes import (
    KEPT,
    Truth,
    Work,
    built,
    copy_of,
    fresh_build,
    insert_all,
    opened,
    searched,
)
from bench.harness import datasets
from bench.harness.datasets import Dataset
from bench.harness.sections import Context, Results

KINDS = {
    "random": "rows at random",
    "clusters": "rows that lie together",
    "drift": "rows along a direction",
    "norms": "ever longer rows, ip",
}
#: By how much rows that come are longer than those of the turnover before (norms).
_LONGER = 1.2
_SAMPLE_ROWS = 20_000


def churn(kind: str, context: Context) -> Results:
    """Recall and reads before the first turnover, after each, and of a fresh build of the last rows."""
    dataset = context.dataset()
    count = int(dataset.n * KEPT)
    if kind == "norms":
        base = np.asarray(dataset.base, np.float32).copy()
        dataset = replace(dataset, base=base, metric="ip")
    order = along(dataset) if kind == "drift" else np.arange(dataset.n)
    first = np.sort(order[:count])
    steps: list[Results] = []
    with Work(context, dataset, f"churn-{kind}") as work:
        if kind in ("drift", "norms"):
            path = fresh_build(context, dataset, first, work / "a.velo")
        else:
            path = copy_of(built(context, dataset, KEPT), work / "a.velo")
        with opened(context, dataset, path) as index:
            steps.append(searched(context, index, Truth(context, dataset, first)))
            turnovers = int(context.options["turnovers"])
            for turn, (gone, come, lives) in enumerate(turns(kind, dataset, order, turnovers)):
                index.delete(gone)
                if kind == "norms":
                    dataset.base[come] *= np.float32(_LONGER ** (turn + 1))
                insert_all(index, dataset, come, 1000)
                index.optimize()
                steps.append(searched(context, index, Truth(context, dataset, lives)))
        fresh_build(context, dataset, lives, work / "fresh.velo")
        with opened(context, dataset, work / "fresh.velo") as index:
            fresh = searched(context, index, Truth(context, dataset, lives))
    return {"steps": steps, "fresh": fresh}


def turns(
    kind: str, dataset: Dataset, order: NDArray[np.int64], turnovers: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Of each turnover: the rows that go, those that come, and those that live then, ascending."""
    random = np.random.default_rng(4)
    alive = int(dataset.n * KEPT)
    count = alive // 10
    lives = np.zeros(dataset.n, bool)
    lives[order[:alive]] = True
    for turn in range(turnovers):
        if kind == "drift":  # a window over the rows in their order, from its end to its beginning again
            places = turn * count + np.arange(count)
            gone = order[places % dataset.n]
            come = order[(places + alive) % dataset.n]
        else:
            together = kind == "clusters"
            gone = chosen(dataset, np.flatnonzero(lives), count, random, together=together)
            come = chosen(dataset, np.flatnonzero(~lives), count, random, together=together)
        lives[gone], lives[come] = False, True
        yield gone, come, np.flatnonzero(lives)


def along(dataset: Dataset) -> NDArray[np.int64]:
    """The rows by where they lie along the direction in which they differ most."""
    sample = np.random.default_rng(5).permutation(dataset.n)[:_SAMPLE_ROWS]
    rows = np.asarray(dataset.base[np.sort(sample)], np.float64)
    _, _, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    places = np.empty(dataset.n)
    for start in range(0, dataset.n, datasets.BLOCK_ROWS):
        some = slice(start, start + datasets.BLOCK_ROWS)
        places[some] = np.asarray(dataset.base[some], np.float64) @ directions[0]
    return np.argsort(places, kind="stable")


def chosen(
    dataset: Dataset,
    rows: NDArray[np.int64],
    count: int,
    random: np.random.Generator,
    *,
    together: bool,
) -> NDArray[np.int64]:
    """Some of these rows: any, or those nearest to one of them."""
    if not together or count >= len(rows):
        return random.permutation(rows)[:count]
    center = dataset.base[random.choice(rows)].astype(np.float32)
    distances = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), datasets.BLOCK_ROWS):
        some = slice(start, start + datasets.BLOCK_ROWS)
        distances[some] = ((dataset.base[rows[some]].astype(np.float32) - center) ** 2).sum(axis=1)
    return rows[np.argpartition(distances, count)[:count]]
