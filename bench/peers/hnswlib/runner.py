"""hnswlib: HNSW over float32, wholly in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run


class Hnswlib(System):
    package = "hnswlib"
    index: Any

    @property
    def space(self) -> str:
        return self.options.get("metric", "l2")

    def build(self, base: np.ndarray) -> None:
        index = hnswlib.Index(space=self.space, dim=base.shape[1])
        index.init_index(
            max_elements=len(base),
            M=self.options["degree"],
            ef_construction=self.options["build_list_size"],
            random_seed=self.options["seed"],
        )
        index.set_num_threads(self.threads)
        for start in range(0, len(base), 100_000):
            chunk = base[start : start + 100_000]
            index.add_items(np.asarray(chunk, dtype=np.float32), np.arange(start, start + len(chunk)))
        index.save_index(str(self.folder / "index.hnsw"))
        (self.folder / "dim").write_text(str(base.shape[1]))

    def open(self) -> None:
        self.index = hnswlib.Index(space=self.space, dim=int((self.folder / "dim").read_text()))
        self.index.load_index(str(self.folder / "index.hnsw"))
        self.index.set_num_threads(self.threads)

    def set_point(self, point: dict[str, Any]) -> None:
        self.index.set_ef(point["list_size"])

    def search_one(self, query: np.ndarray) -> Any:
        return self.index.knn_query(query, k=self.k, num_threads=1)[0]

    def search_batch(self, queries: np.ndarray) -> Any:
        return self.index.knn_query(queries, k=self.k, num_threads=self.threads)[0]


run(Hnswlib)
