"""zvec: its DiskANN index; ``optimize`` puts into the graph what was inserted since."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zvec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from live import BATCH, K, LiveSystem, run

_METRICS = {"l2": "L2", "ip": "IP", "cosine": "COSINE"}


class Zvec(LiveSystem):
    ladder = (16, 32, 48, 64, 96, 128, 192, 256, 384)

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        zvec.init(query_threads=self.threads, optimize_threads=self.threads, log_level=zvec.LogLevel.WARN)
        field = zvec.VectorSchema(
            "vector",
            zvec.DataType.VECTOR_FP32,
            self.dim,
            zvec.DiskAnnIndexParam(
                metric_type=getattr(zvec.MetricType, _METRICS[self.metric]),
                max_degree=64,
                list_size=100,
                pq_chunk_num=self.dim // 2,
            ),
        )
        schema = zvec.CollectionSchema("bench", vectors=[field])
        self.collection = zvec.create_and_open(str(self.folder / "collection"), schema)
        self.pool = ThreadPoolExecutor(self.threads)

    def build(self, rows: np.ndarray, ids: np.ndarray) -> None:
        for start in range(0, len(rows), BATCH):
            self.insert(rows[start : start + BATCH], ids[start : start + BATCH])

    def insert(self, rows: np.ndarray, ids: np.ndarray) -> None:
        documents = [
            zvec.Doc(id=str(one), vectors={"vector": row})
            for one, row in zip(ids.tolist(), rows, strict=True)
        ]
        check(self.collection.insert(documents))

    def settle(self) -> None:
        self.collection.flush()
        self.collection.optimize(zvec.OptimizeOption(concurrency=self.threads))
        self.collection.flush()

    def delete(self, ids: np.ndarray) -> None:
        for start in range(0, len(ids), BATCH):
            check(self.collection.delete([str(one) for one in ids[start : start + BATCH].tolist()]))

    def search_one(self, query: np.ndarray) -> np.ndarray:
        parameter = zvec.DiskAnnQueryParam(list_size=self.setting)
        one = zvec.Query(field_name="vector", vector=query, param=parameter)
        found = [int(document.id) for document in self.collection.query(one, topk=K, output_fields=[])]
        return np.array(found + [-1] * (K - len(found)))

    def search(self, queries: np.ndarray) -> np.ndarray:
        return np.stack(list(self.pool.map(self.search_one, queries)))


def check(statuses: Any) -> None:
    for status in statuses if isinstance(statuses, list) else [statuses]:
        if not status.ok():
            raise RuntimeError(status.message())


run(Zvec)
