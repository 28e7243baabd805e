"""alayalite: its DiskANN index, opened to search."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from alayalite import diskann

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run

#: A longer list than it was opened with ends the process.
LIST_MAX = 512


class Alayalite(System):
    home = "disk"
    index: Any
    asked: Any

    def version(self) -> str:
        return version("alayalite")

    @property
    def path(self) -> str:
        return str(self.folder / "index")

    def build(self, base: np.ndarray) -> None:
        how = diskann.BuildParams()
        how.num_threads = self.threads
        rows = np.asarray(base, dtype=np.float32)
        diskann.Index.build(self.path, rows, np.arange(len(rows), dtype=np.uint64), how)

    def open(self) -> None:
        how = diskann.LoadParams()
        how.num_threads = self.threads
        how.scratch_search_list_size = LIST_MAX
        self.index = diskann.Index.open(self.path, how)

    def prepare_queries(self, queries: np.ndarray) -> np.ndarray:
        return queries.astype(np.float32)

    def set_point(self, point: dict[str, Any]) -> None:
        self.asked = diskann.SearchParams()
        self.asked.search_list_size = point["list_size"]

    def search_batch(self, queries: np.ndarray) -> Any:
        return self.index.batch_search(queries, self.k, num_threads=self.threads, params=self.asked)[0]

    def ids(self, answer: Any) -> np.ndarray:
        return np.asarray(answer).astype(np.int64)


run(Alayalite)
