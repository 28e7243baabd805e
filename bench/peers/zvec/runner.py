"""zvec: its DiskANN index (PQ codes in memory, full vectors on the disk)."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zvec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run

INSERT_CHUNK = 1000


class Zvec(System):
    package = "zvec"
    home = "disk"
    collection: Any
    parameter: Any
    pool: ThreadPoolExecutor

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        zvec.init(query_threads=self.threads, optimize_threads=self.threads, log_level=zvec.LogLevel.WARN)

    @property
    def path(self) -> str:
        return str(self.folder / "collection")

    def build(self, base: np.ndarray) -> None:
        field = zvec.VectorSchema(
            "vector",
            zvec.DataType.VECTOR_FP32,
            base.shape[1],
            zvec.DiskAnnIndexParam(
                metric_type=zvec.MetricType.L2,
                max_degree=self.options["degree"],
                list_size=self.options["build_list_size"],
                pq_chunk_num=self.options["code_bytes"],
            ),
        )
        collection = zvec.create_and_open(self.path, zvec.CollectionSchema("bench", vectors=[field]))
        for start in range(0, len(base), INSERT_CHUNK):
            rows = np.asarray(base[start : start + INSERT_CHUNK], dtype=np.float32)
            documents = [zvec.Doc(id=str(start + i), vectors={"vector": row}) for i, row in enumerate(rows)]
            for status in collection.insert(documents):
                if not status.ok():
                    raise RuntimeError(f"insert at {start}: {status.message()}")
        collection.flush()
        collection.optimize(zvec.OptimizeOption(concurrency=self.threads))
        collection.flush()
        del collection

    def open(self) -> None:
        self.collection = zvec.open(self.path, zvec.CollectionOption(read_only=True, enable_mmap=True))
        self.pool = ThreadPoolExecutor(self.threads)

    def set_point(self, point: dict[str, Any]) -> None:
        self.parameter = zvec.DiskAnnQueryParam(list_size=point["list_size"])

    def search_one(self, query: np.ndarray) -> Any:
        one = zvec.Query(field_name="vector", vector=query, param=self.parameter)
        return self.collection.query(one, topk=self.k, output_fields=[])

    def search_batch(self, queries: np.ndarray) -> Any:
        return list(self.pool.map(self.search_one, queries))

    def ids(self, answer: Any) -> np.ndarray:
        ids = np.full((len(answer), self.k), -1, dtype=np.int64)
        for row, documents in zip(ids, answer, strict=True):
            own = [int(document.id) for document in documents]
            row[: len(own)] = own
        return ids


run(Zvec)
