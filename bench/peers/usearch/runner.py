"""usearch: HNSW over float32, in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from usearch.index import Index

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run


class Usearch(System):
    package = "usearch"
    index: Any

    def build(self, base: np.ndarray) -> None:
        index = Index(
            ndim=base.shape[1],
            metric="l2sq",
            dtype="f32",
            connectivity=self.options["degree"],
            expansion_add=self.options["build_list_size"],
        )
        for start in range(0, len(base), 100_000):
            chunk = base[start : start + 100_000]
            index.add(
                np.arange(start, start + len(chunk)),
                np.asarray(chunk, dtype=np.float32),
                threads=self.threads,
                copy=True,
            )
        index.save(str(self.folder / "index.usearch"))

    def open(self) -> None:
        self.index = Index.restore(str(self.folder / "index.usearch"), view=False)

    def set_point(self, point: dict[str, Any]) -> None:
        self.index.expansion_search = point["list_size"]

    def search_one(self, query: np.ndarray) -> Any:
        return self.index.search(query, self.k, threads=1).keys

    def search_batch(self, queries: np.ndarray) -> Any:
        return self.index.search(queries, self.k, threads=self.threads)

    def ids(self, answer: Any) -> np.ndarray:
        keys = np.asarray(answer.keys).astype(np.int64)
        missing = np.arange(keys.shape[1])[None, :] >= np.asarray(answer.counts)[:, None]
        return np.where(missing, -1, keys)


run(Usearch)
