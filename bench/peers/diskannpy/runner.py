"""diskannpy: Vamana on the disk, PQ codes in memory, libaio with O_DIRECT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import diskannpy
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run


class DiskAnn(System):
    package = "diskannpy"
    home = "disk"
    query_dtype = None
    index: Any
    list_size = 0
    beam_width = 0

    def build(self, base: np.ndarray) -> None:
        # DiskANN takes the bytes of codes as a share of the search memory, in GiB.
        code_bytes = self.options["code_bytes"]
        diskannpy.build_disk_index(
            data=np.ascontiguousarray(base),
            distance_metric="l2",
            index_directory=str(self.folder),
            complexity=self.options["build_list_size"],
            graph_degree=self.options["degree"],
            search_memory_maximum=(code_bytes + 0.5) * len(base) / 2**30,
            build_memory_maximum=self.options["build_memory_gb"],
            num_threads=self.threads,
        )
        for data_copy in self.folder.glob("*vectors*.bin"):
            data_copy.unlink()

    def open(self) -> None:
        self.index = diskannpy.StaticDiskIndex(
            str(self.folder), self.threads, num_nodes_to_cache=0, cache_mechanism=0
        )

    def set_point(self, point: dict[str, Any]) -> None:
        self.list_size, self.beam_width = point["list_size"], point["beam_width"]

    def search_one(self, query: np.ndarray) -> Any:
        return self.index.search(query, self.k, self.list_size, self.beam_width).identifiers

    def search_batch(self, queries: np.ndarray) -> Any:
        return self.index.batch_search(
            queries, self.k, self.list_size, self.threads, self.beam_width
        ).identifiers


run(DiskAnn)
