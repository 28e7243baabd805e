"""LanceDB: a table on disk with IVF_PQ; rows that came later are scanned until ``optimize`` puts them in."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from live import K, LiveSystem, run

_METRICS = {"l2": "l2", "ip": "dot", "cosine": "cosine"}
#: Candidates are measured again from their vectors: so many times K.
_REFINE = 10


class LanceDB(LiveSystem):
    ladder = (10, 20, 30, 40, 60, 80, 120, 160, 240)

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self.database = lancedb.connect(str(self.folder))
        self.pool = ThreadPoolExecutor(self.threads)

    def columns(self, rows: np.ndarray, ids: np.ndarray) -> pa.Table:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), self.dim)
        return pa.table({"id": pa.array(ids), "vector": vectors})

    def build(self, rows: np.ndarray, ids: np.ndarray) -> None:
        self.table = self.database.create_table("bench", self.columns(rows, ids))
        self.table.create_index(
            metric=_METRICS[self.metric], index_type="IVF_PQ", vector_column_name="vector"
        )
        self.table.create_scalar_index("id")

    def insert(self, rows: np.ndarray, ids: np.ndarray) -> None:
        self.table.add(self.columns(rows, ids))

    def settle(self) -> None:
        self.table.optimize()

    def disk_bytes(self) -> int:
        self.table.optimize(
            cleanup_older_than=timedelta(0), delete_unverified=True
        )  # versions that nobody reads
        return super().disk_bytes()

    def delete(self, ids: np.ndarray) -> None:
        for start in range(0, len(ids), 10_000):
            self.table.delete(f"id in ({', '.join(map(str, ids[start : start + 10_000].tolist()))})")

    def search_one(self, query: np.ndarray) -> np.ndarray:
        asked = self.table.search(query, vector_column_name="vector").select(["id"]).limit(K)
        asked = asked.distance_type(_METRICS[self.metric]).nprobes(self.setting).refine_factor(_REFINE)
        found = asked.to_arrow()["id"].to_numpy()
        return np.pad(found, (0, K - len(found)), constant_values=-1)

    def search(self, queries: np.ndarray) -> np.ndarray:
        return np.stack(list(self.pool.map(self.search_one, queries)))


run(LanceDB)
