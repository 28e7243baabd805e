"""hnswlib, M = 32: rows added to four fifths of a set, rows marked as deleted, and searches before and after.

``python churn.py FOLDER METRIC THREADS`` reads base.npy and queries.npy there and prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np

_KEPT = 0.8
_LIST_SIZE = 64


def searched(index: Any, queries: np.ndarray, threads: int) -> float:
    """Queries a second."""
    index.knn_query(queries[:100], k=10, num_threads=threads)
    began = time.perf_counter()
    index.knn_query(queries, k=10, num_threads=threads)
    return len(queries) / (time.perf_counter() - began)


def main() -> None:
    folder, metric, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    base = np.load(folder / "base.npy").astype(np.float32)
    queries = np.load(folder / "queries.npy").astype(np.float32)
    index = hnswlib.Index(space=metric, dim=base.shape[1])
    index.init_index(max_elements=len(base), M=32, ef_construction=200, random_seed=1)
    index.set_num_threads(threads)
    kept = int(len(base) * _KEPT)
    index.add_items(base[:kept], np.arange(kept))
    began, used = time.perf_counter(), time.process_time()
    for start in range(kept, len(base), 1000):
        some = base[start : start + 1000]
        index.add_items(some, np.arange(start, start + len(some)))
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - used
    index.set_ef(_LIST_SIZE)
    whole = searched(index, queries, threads)
    gone = np.random.default_rng(2).permutation(len(base))[: len(base) // 10]
    began = time.perf_counter()
    for row in gone:
        index.mark_deleted(int(row))
    delete_s = time.perf_counter() - began
    told = {
        "rows": len(base) - kept,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "qps": whole,
        "qps_tenth_dead": searched(index, queries, threads),
        "deleted": len(gone),
        "delete_s": delete_s,
    }
    print(json.dumps(told))


main()
