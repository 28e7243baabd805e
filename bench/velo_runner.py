"""velo behind the protocol that its peers use (bench/peers/protocol.py)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import velo
from bench.peers.protocol import System, run


class Velo(System):
    home = "disk"
    index: velo.Index | None = None
    list_size = 0
    tuning = velo.SearchTuning()

    def version(self) -> str:
        return velo.__version__

    @property
    def path(self) -> str:
        return str(self.folder / "index.velo")

    def build(self, base: np.ndarray) -> None:
        options = dict(self.options)
        if labels := options.pop("metadata", None):
            options["metadata"] = pq.read_table(labels).slice(0, len(base))
        velo.build(self.path, base, threads=self.threads, **options).close()

    def open(self) -> None:
        """Opened anew by every point, so that no point meets records that another has read."""

    def set_point(self, point: dict[str, Any]) -> None:
        if self.index is not None:
            self.index.close()
            self.index = None
            gc.collect()
        self.index = velo.open(
            self.path, memory=point["memory"], threads=self.threads, io=point["io"], plan=point["plan"]
        )
        self.list_size = point["list_size"]
        self.tuning = velo.SearchTuning(sigma=point.get("sigma"))

    def search_batch(self, queries: np.ndarray) -> Any:
        assert self.index is not None
        return self.index.search(queries, self.k, list_size=self.list_size, tuning=self.tuning)

    def search_one(self, query: np.ndarray) -> Any:
        return self.search_batch(query)

    def ids(self, answer: Any) -> np.ndarray:
        return np.asarray(answer.ids, dtype=np.int64)

    def counters(self, answer: Any) -> dict[str, np.ndarray]:
        # The latency array of the protocol is taken from outside; the engine's own goes by another name.
        return {
            ("engine_latency_us" if k == "latency_us" else k): np.asarray(v) for k, v in answer.stats.items()
        }

    def facts(self) -> dict[str, Any]:
        assert self.index is not None
        info = self.index.info()
        return {name: info[name] for name in ("memory_bytes", "disk_bytes", "device") if name in info}


if __name__ == "__main__":
    run(Velo)
