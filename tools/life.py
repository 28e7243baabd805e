"""A short life of an index, and what it answers: the same on every architecture (``tools/emulate.py``).

``python life.py SAMPLE live FOLDER`` builds and changes an index, and holds its answers against exact ones;
``python life.py SAMPLE ask FOLDER ANSWERS`` opens one and writes what it answers into a file. SAMPLE is
``examples/data``. Nothing but the installed package is needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import velo
from velo.formats import open_vectors
from velo.testing import brute_force, recall_at_k

BUILT = 2_000
INSERTED = 400
QUERIES = 100
K = 10
FILTER = velo.col("price") < 0.2


def step(text: str, work: Callable[[], object]) -> None:
    """Do something and print what came of it and what it took."""
    began = time.monotonic()
    came = work()
    print(f"  {text}: {came} ({time.monotonic() - began:.1f} s)", flush=True)


def live(sample: Path, folder: Path) -> None:
    """Build, search, filter, insert, delete, update, optimize, reopen, verify."""
    rows = open_vectors(sample / "sample.u8bin").read()[: BUILT + INSERTED]
    queries = open_vectors(sample / "sample_queries.u8bin").read()[:QUERIES]
    labels = pq.read_table(sample / "sample_labels.parquet").slice(0, BUILT + INSERTED)
    prices = labels["price"].to_numpy().copy()
    alive = np.arange(BUILT)

    def found(index: velo.Index, where: np.ndarray | None = None, **how: Any) -> str:
        """The answers, held against all rows that may be found."""
        truth = brute_force(rows[alive if where is None else where], queries, K)
        expected = (alive if where is None else where)[truth.ids]
        answer = index.search(queries, K, **how)
        if how.get("recall") == 1:  # of rows that are equally far any may be the last
            np.testing.assert_array_equal(np.asarray(answer.distances), truth.distances)
            return f"the exact distances, {QUERIES} queries"
        recall = recall_at_k(answer.ids, expected)
        assert recall >= 0.9, recall
        return f"recall@{K} {recall:.3f}, {QUERIES} queries"

    def built() -> str:
        first: dict[str, Any] = {"ids": np.arange(BUILT), "metadata": labels.slice(0, BUILT)}
        with velo.build(folder, rows[:BUILT], **first, store_vectors=True, threads=1, seed=1) as index:
            return f"{index.count()} rows"

    def optimized(index: velo.Index) -> str:
        index.optimize()
        return f"{index.count()} rows"

    step("built", built)
    with velo.open(folder, memory="50%", io="threads", threads=2, writable=True) as index:
        step("searched", lambda: found(index))
        step("searched exactly", lambda: found(index, recall=1))
        step("filtered", lambda: found(index, alive[prices[alive] < 0.2], filter=FILTER))
        new = np.arange(BUILT, BUILT + INSERTED)
        step("inserted", lambda: index.insert(rows[new], ids=new, metadata=labels.slice(BUILT)).rows)
        alive = np.concatenate([alive, new])
        gone = np.arange(0, BUILT + INSERTED, 7)
        step("deleted", lambda: index.delete(gone).rows)
        alive = np.setdiff1d(alive, gone)
        cheaper = alive[::5]
        prices[cheaper] = 0.1
        step("updated", lambda: index.update(cheaper, metadata={"price": prices[cheaper]}).rows)
        step("searched with what is new", lambda: found(index))
        step("filtered by what is new", lambda: found(index, alive[prices[alive] < 0.2], filter=FILTER))
    with velo.open(folder, memory="50%", io="threads", threads=2, writable=True) as index:
        step("reopened", lambda: found(index, recall=1))
        step("optimized", lambda: optimized(index))
        step("searched", lambda: found(index))
        step("filtered", lambda: found(index, alive[prices[alive] < 0.2], filter=FILTER))
        assert index.count() == len(alive)
    with velo.open(folder, memory="50%", io="threads", threads=2) as index:
        step("verified", lambda: f"{index.verify()} pages")
        step("searched exactly", lambda: found(index, recall=1))


def ask(sample: Path, folder: Path, answers: Path) -> None:
    """Ask an index that may have been made elsewhere, in several ways."""
    queries = open_vectors(sample / "sample_queries.u8bin").read()
    written: dict[str, Any] = {}
    with velo.open(folder, memory="50%", io="threads", threads=2) as index:
        index.verify()
        ways: dict[str, dict[str, Any]] = {
            "exact": {"recall": 1},
            "exact_filtered": {"recall": 1, "filter": FILTER},
            "list": {"list_size": 64},
            "list_filtered": {"list_size": 64, "filter": FILTER},
        }
        for name, how in ways.items():
            found = index.search(queries, K, **how)
            written[f"{name}_ids"] = np.asarray(found.ids)
            written[f"{name}_distances"] = np.asarray(found.distances)
    np.savez(answers, **written)


if __name__ == "__main__":
    at, verb, *paths = sys.argv[1:]
    verbs: dict[str, Callable[..., None]] = {"live": live, "ask": ask}
    verbs[verb](Path(at), *map(Path, paths))
