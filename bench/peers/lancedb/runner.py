"""LanceDB: IVF_PQ over a table on disk; candidates are measured again from their vectors."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run

INSERT_CHUNK = 50_000
#: So many times k are measured again.
REFINE = 10


class LanceDB(System):
    home = "disk"
    table: Any
    probes = 1

    def version(self) -> str:
        return version("lancedb")

    def build(self, base: np.ndarray) -> None:
        def chunks() -> Any:
            for start in range(0, len(base), INSERT_CHUNK):
                rows = np.asarray(base[start : start + INSERT_CHUNK], dtype=np.float32)
                vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), base.shape[1])
                ids = pa.array(np.arange(start, start + len(rows)))
                yield pa.record_batch({"id": ids, "vector": vectors})

        kinds = [("id", pa.int64()), ("vector", pa.list_(pa.float32(), base.shape[1]))]
        table = lancedb.connect(str(self.folder)).create_table("bench", chunks(), schema=pa.schema(kinds))
        table.create_index(
            metric="l2",
            index_type="IVF_PQ",
            vector_column_name="vector",
            num_partitions=self.options["partitions"],
            num_sub_vectors=self.options["code_bytes"],
        )

    def open(self) -> None:
        self.table = lancedb.connect(str(self.folder)).open_table("bench")
        self.pool = ThreadPoolExecutor(self.threads)

    def prepare_queries(self, queries: np.ndarray) -> np.ndarray:
        return queries.astype(np.float32)

    def set_point(self, point: dict[str, Any]) -> None:
        self.probes = point["list_size"]

    def search_one(self, query: np.ndarray) -> np.ndarray:
        asked = self.table.search(query, vector_column_name="vector").select(["id"]).limit(self.k)
        asked = asked.distance_type("l2").nprobes(self.probes).refine_factor(REFINE)
        found = asked.to_arrow()["id"].to_numpy()
        return np.pad(found, (0, self.k - len(found)), constant_values=-1)

    def search_batch(self, queries: np.ndarray) -> Any:
        return np.stack(list(self.pool.map(self.search_one, queries)))


run(LanceDB)
