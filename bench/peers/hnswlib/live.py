"""hnswlib: in memory, durable only when it is saved whole; deleted slots are given to new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from live import K, LiveSystem, run


class Hnswlib(LiveSystem):
    ladder = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    durable = False

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self.index = hnswlib.Index(space=self.metric, dim=self.dim)
        self.index.init_index(
            max_elements=request.get("rows_max", self.capacity),
            M=request.get("degree", 32),
            ef_construction=200,
            random_seed=1,
            allow_replace_deleted=True,
        )
        self.index.set_num_threads(self.threads)
        # A label must not come again while its old slot waits for a row: the slot takes the label with it.
        self.labels = np.full(self.capacity, -1)
        self.ids = np.empty(0, np.int64)

    def insert(self, rows: np.ndarray, ids: np.ndarray) -> None:
        labels = len(self.ids) + np.arange(len(ids))
        self.index.add_items(rows, labels, replace_deleted=True)
        self.labels[ids] = labels
        self.ids = np.concatenate([self.ids, ids])

    build = insert

    def delete(self, ids: np.ndarray) -> None:
        for label in self.labels[ids]:
            self.index.mark_deleted(int(label))

    def search(self, queries: np.ndarray) -> np.ndarray:
        self.index.set_ef(self.setting)
        found = self.index.knn_query(queries, k=K, num_threads=self.threads)[0].astype(np.int64)
        return self.ids[found]

    def disk_bytes(self) -> int:
        self.index.save_index(str(self.folder / "index.bin"))
        return super().disk_bytes()


run(Hnswlib)
