"""velo behind the protocol that its peers use (bench/peers/protocol.py)."""

from __future__ import annotations

import gc
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import velo
from bench.peers.protocol import System, run, status_bytes
from velo.building.build import build_shard
from velo.building.tables import query_sample
from velo.formats.files import as_source
from velo.options import BuildOptions

FACTS = (
    "memory_bytes",
    "disk_bytes",
    "device",
    "plan",
    "links_kept",
    "records_per_page",
    "page_codes_kept",
    "record_code_bytes",
    "adjacency_bits_per_edge",
    "memory_bits",
    "record_bits",
    "stores_vectors",
)
#: Parts of a setting that are passed to the search.
ASKED = ("list_size", "recall", "exact")


def wait_for_pages() -> None:
    """Until those that load in the background have come: the process grows no more."""
    before = 0
    while (now := status_bytes("VmRSS")) > before + (1 << 20):
        before = now
        time.sleep(0.4)


class Velo(System):
    home = "disk"
    query_dtype = None
    index: velo.Index | None = None
    opened: dict[str, Any] | None = None
    asked: dict[str, Any]
    expected: velo.Expectation | None = None

    def version(self) -> str:
        return velo.__version__

    @property
    def path(self) -> str:
        return str(self.folder / "index.velo")

    def build(self, base: np.ndarray) -> None:
        options = dict(self.options)
        if labels := options.pop("metadata", None):
            options["metadata"] = pq.read_table(labels).slice(0, len(base))
        metadata, budget = options.pop("metadata", None), options.pop("build_memory", None)
        queries = options.pop("queries", None)
        build_options = BuildOptions(threads=self.threads, **options)
        build_shard(
            self.path,
            as_source(base),
            build_options,
            metadata=metadata,
            queries=query_sample(queries, base.shape[1], build_options),
            build_memory=budget,
        )

    def open(self) -> None:
        """The settings of the first point say how; see `set_point`."""

    def set_point(self, point: dict[str, Any]) -> None:
        """Open anew where the settings ask for it, and where a cache holds what another point has read."""
        how = {name: point[name] for name in ("memory", "io", "plan")}
        how["tuning"] = velo.OpenTuning(**point.get("open_tuning", {}))
        if self.index is None or how != self.opened or self.index.info()["memory_bytes"]["cache"] > 0:
            if self.index is not None:
                self.index.close()
                self.index = None
                gc.collect()
            self.index = velo.open(self.path, threads=self.threads, **how)
            self.opened = how
            if self.index.info()["memory_bytes"]["cache"] > 0:
                wait_for_pages()
        self.asked = {name: point[name] for name in ASKED if name in point}
        self.asked["tuning"] = velo.SearchTuning(sigma=point.get("sigma"), **point.get("search_tuning", {}))

    def search_batch(self, queries: np.ndarray) -> Any:
        assert self.index is not None
        return self.index.search(queries, self.k, **self.asked)

    def search_one(self, query: np.ndarray) -> Any:
        return self.search_batch(query)

    def ids(self, answer: Any) -> np.ndarray:
        return np.asarray(answer.ids, dtype=np.int64)

    def counters(self, answer: Any) -> dict[str, np.ndarray]:
        self.expected = answer.expected
        # The latency array of the protocol is taken from outside; the engine's own goes by another name.
        return {
            ("engine_latency_us" if k == "latency_us" else k): np.asarray(v) for k, v in answer.stats.items()
        }

    def facts(self) -> dict[str, Any]:
        assert self.index is not None
        info = self.index.info()
        expected = None if self.expected is None else asdict(self.expected)
        return {**{name: info[name] for name in FACTS}, "expected": expected}


if __name__ == "__main__":
    run(Velo)
