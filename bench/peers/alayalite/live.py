"""alayalite: its updatable DiskANN index, built of the first rows; durable when it is flushed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from alayalite import diskann

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from live import K, LiveSystem, run


class Alayalite(LiveSystem):
    ladder = (10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384)
    durable = False

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        if self.metric != "l2":
            raise RuntimeError(f"its metric is l2, not {self.metric}")
        self.index: Any = None

    def build(self, rows: np.ndarray, ids: np.ndarray) -> None:
        how = diskann.BuildParams()
        how.num_threads = self.threads
        path = str(self.folder / "index")
        diskann.Index.build(path, rows, ids.astype(np.uint64), how)
        how = diskann.LoadParams()
        how.updatable = True
        how.num_threads = self.threads
        how.scratch_search_list_size = max(self.ladder)  # a longer list than that ends the process
        self.index = diskann.Index.open(path, how)

    def insert(self, rows: np.ndarray, ids: np.ndarray) -> None:
        if self.index is None:
            self.build(rows, ids)
        else:
            self.index.batch_insert(rows, ids.astype(np.uint64))

    def delete(self, ids: np.ndarray) -> None:
        self.index.batch_remove(ids.astype(np.uint64))

    def settle(self) -> None:
        self.index.flush()

    def search(self, queries: np.ndarray) -> np.ndarray:
        how = diskann.SearchParams()
        how.search_list_size = self.setting
        found, _ = self.index.batch_search(queries, K, num_threads=self.threads, params=how)
        ids = found.astype(np.int64)
        return np.where((ids >= 0) & (ids < self.capacity), ids, -1)


run(Alayalite)
