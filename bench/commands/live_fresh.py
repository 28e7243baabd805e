"""Rows that were written a moment ago: searches beside them, and the cost of one segment of all rows."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import velo
from bench.commands import live_many
from bench.commands.live_indexes import (
    Truth,
    built,
    bytes_written,
    columns,
    copy_of,
    fresh_build,
    insert_all,
    opened,
    searched,
    some_of,
    wait_until_at_rest,
    work_folder,
)
from bench.harness.sections import Context, Results

#: Rows that are upserted again and again, and how often.
_ROWS, _TURNS = 2000, 100


def half(context: Context) -> Results:
    """Half of the rows are built, as many are inserted and optimized, and all of them are built."""
    dataset = context.dataset()
    rows = np.arange(dataset.n)
    with work_folder(context, dataset, "half") as work:
        path = copy_of(built(context, dataset, 0.5), work / "a.velo")
        before, used = bytes_written(), time.process_time()
        with velo.open(path, writable=True, threads=context.threads, durability="interval") as index:
            insert_all(index, dataset, rows[dataset.n // 2 :], 1000)
            inserted_s = time.process_time() - used
            index.optimize()
        optimized_s, written = time.process_time() - used, bytes_written() - before
        used = time.process_time()
        fresh_build(context, dataset, rows, work / "all.velo")
        return {
            "inserted_cpu_s": inserted_s,
            "cpu_s": optimized_s,
            "build_cpu_s": time.process_time() - used,
            "written_bytes": written,
            "float32_bytes": dataset.float32_bytes,
        }


def full_rate(context: Context) -> Results:
    """Searches right after inserts at full rate, and of one segment."""
    dataset = context.dataset()
    truth = Truth(context, dataset, np.arange(dataset.n))
    with work_folder(context, dataset, "full_rate") as work:
        path = copy_of(built(context, dataset, 0.5), work / "a.velo")
        with opened(context, dataset, path) as index:
            insert_all(index, dataset, np.arange(dataset.n // 2, dataset.n), 1000)
            fresh = searched(context, index, truth)
            index.optimize()
            return {"fresh": fresh, "merged": searched(context, index, truth)}


def rewritten(context: Context) -> Results:
    """The same rows are upserted again and again: the state at rest, and the rows in one segment."""
    dataset = context.dataset()
    ids = np.random.default_rng(6).permutation(dataset.n)[: min(_ROWS, dataset.n // 2)]
    with work_folder(context, dataset, "rewritten") as work:
        path = copy_of(built(context, dataset, 1.0), work / "a.velo")
        with velo.open(path, writable=True, memory=dataset.float32_bytes, durability="process") as index:
            for _ in range(_TURNS):
                index.upsert(some_of(dataset, ids), ids, columns(ids))
            wait_until_at_rest(index)
            rows = index.info()["live"]["delta"]["n"]
        told = live_many.compared(context, dataset, work, path, dataset.n)
    return {"upserts": _TURNS * len(ids), "delta_rows": rows, **told}


def _rewritten_note(told: Results) -> str:
    cost = live_many.cost_of(told["recalls"][0])
    return f"{cost}, {told['upserts']:,} upserts, {told['delta_rows']:,} rows in the delta"


#: Section, what, bound, value, note, digits.
TARGETS: list[tuple[str, str, str, Any, Any, int]] = [
    (
        "half",
        "half built, half inserted, `optimize`: processor time ÷ a build of all",
        "≤ 1",
        "cpu_s / build_cpu_s",
        "{cpu_s:.1f} / {build_cpu_s:.1f} s, {inserted_cpu_s:.1f} of them inserts",
        2,
    ),
    (
        "half",
        "the same: bytes written ÷ all rows as float32",
        "≤ 6",
        "written_bytes / float32_bytes",
        "{written_bytes:,} / {float32_bytes:,} bytes",
        1,
    ),
    (
        "full_rate",
        "QPS after half of the rows were inserted at full rate ÷ one segment",
        "≥ 0.6",
        "fresh.qps / merged.qps",
        "{fresh[qps]:,.0f} / {merged[qps]:,.0f}, recall {fresh[recall]:.4f} / {merged[recall]:.4f}",
        2,
    ),
    (
        "rewritten",
        "µs of processor, the same rows upserted again and again ÷ one segment",
        "≤ 1.3",
        lambda told: live_many.ratio_of(told["recalls"][0]),
        _rewritten_note,
        2,
    ),
]
