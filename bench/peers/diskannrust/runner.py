"""DiskANN in Rust, under the name diskannpy-rust: Vamana on the disk, PQ codes in memory."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import diskannpy
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run

BEAM_WIDTH = 4


class DiskAnnRust(System):
    home = "disk"
    index: Any
    list_size = 0

    def version(self) -> str:
        return version("diskannpy-rust")

    def build(self, base: np.ndarray) -> None:
        diskannpy.build_disk_index(
            data=np.ascontiguousarray(base),
            distance_metric="l2",
            index_directory=str(self.folder),
            complexity=self.options["build_list_size"],
            graph_degree=self.options["degree"],
            build_memory_maximum=self.options["build_memory_gb"],
            num_threads=self.threads,
            num_of_pq_chunks=self.options["code_bytes"],
        )
        for data_copy in self.folder.glob("*vectors*.bin"):
            data_copy.unlink()

    def open(self) -> None:
        self.index = diskannpy.StaticDiskIndex(str(self.folder), self.threads, BEAM_WIDTH)

    def set_point(self, point: dict[str, Any]) -> None:
        self.list_size = point["list_size"]

    def search_one(self, query: np.ndarray) -> Any:
        return self.index.search(query, self.k, self.list_size).identifiers

    def search_batch(self, queries: np.ndarray) -> Any:
        return self.index.batch_search(queries, self.k, self.list_size, self.threads).identifiers

    def facts(self) -> dict[str, Any]:
        return {"files": {path.name: path.stat().st_size for path in sorted(self.folder.glob("*.bin"))}}


run(DiskAnnRust)
