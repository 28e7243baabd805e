"""Qdrant Edge: HNSW and vectors as mapped files, codes of a byte a dimension held in memory."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_edge as edge

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run

INSERT_CHUNK = 1000
#: Below so many KB a segment is scanned; no segment of a bench is to be.
FULL_SCAN_KB = 100


class QdrantEdge(System):
    home = "disk"
    shard: Any

    def version(self) -> str:
        return version("qdrant-edge-py")

    @property
    def path(self) -> str:
        return str(self.folder / "shard")

    def config(self, dim: int) -> Any:
        return edge.EdgeConfig(
            vectors=edge.EdgeVectorParams(
                size=dim,
                distance=edge.Distance.Euclid,
                memory=edge.Memory.Cold,
                quantization_config=edge.ScalarQuantizationConfig(
                    type=edge.ScalarType.Int8, memory=edge.Memory.Pinned
                ),
            ),
            hnsw_config=edge.HnswIndexConfig(
                m=self.options["degree"],
                ef_construct=self.options["build_list_size"],
                full_scan_threshold=FULL_SCAN_KB,
                max_indexing_threads=self.threads,
                memory=edge.Memory.Cold,
            ),
            optimizers=edge.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=FULL_SCAN_KB),
        )

    def build(self, base: np.ndarray) -> None:
        shard = edge.EdgeShard.create(self.path, self.config(base.shape[1]))
        for start in range(0, len(base), INSERT_CHUNK):
            rows = np.asarray(base[start : start + INSERT_CHUNK], dtype=np.float32).tolist()
            points = [edge.Point(start + i, row) for i, row in enumerate(rows)]
            shard.update(edge.UpdateOperation.upsert_points(points))
        shard.optimize()
        shard.flush()
        shard.close()

    def open(self) -> None:
        self.shard = edge.EdgeShard.load(self.path)
        self.pool = ThreadPoolExecutor(self.threads)

    def prepare_queries(self, queries: np.ndarray) -> np.ndarray:
        return queries.astype(np.float32)

    def set_point(self, point: dict[str, Any]) -> None:
        self.parameters = edge.SearchParams(
            hnsw_ef=point["list_size"], quantization=edge.QuantizationSearchParams(rescore=True)
        )

    def search_one(self, query: np.ndarray) -> Any:
        return self.shard.query(
            edge.QueryRequest(self.k, query=edge.Query.Nearest(query.tolist()), params=self.parameters)
        )

    def search_batch(self, queries: np.ndarray) -> Any:
        return list(self.pool.map(self.search_one, queries))

    def ids(self, answer: Any) -> np.ndarray:
        ids = np.full((len(answer), self.k), -1, dtype=np.int64)
        for row, points in zip(ids, answer, strict=True):
            row[: len(points)] = [point.id for point in points]
        return ids

    def facts(self) -> dict[str, Any]:
        return {"info": str(self.shard.info())}


run(QdrantEdge)
