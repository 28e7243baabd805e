"""velo for the streaming track of NeurIPS'23; its place is ``neurips23/streaming/velo`` of big-ann."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from neurips23.streaming.base import BaseStreamingANN

import velo

METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}
#: A share of their smallest sets is less than a part can be made with.
LEAST_BYTES = 4 << 20


class Velo(BaseStreamingANN):
    """A live index that begins without rows; deleted rows go with the merges that run beside searches."""

    def __init__(self, metric: str, index_params: dict[str, Any]) -> None:
        self._metric = METRICS[metric]
        self._share = float(index_params["memory"].rstrip("%")) / 100
        self._threads = index_params.get("threads")
        self._durability = index_params.get("durability", "interval")
        self._index: velo.Index | None = None
        self._asked: dict[str, Any] = {}
        self.res: Any = None

    def setup(self, dtype: str, max_pts: int, ndims: int) -> None:
        path = Path("data", "indices", "streaming", "velo")
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        # An index without rows has no share of them: the most that it will hold says how many bytes.
        budget = max(int(self._share * max_pts * ndims * 4), LEAST_BYTES)
        self._index = velo.create(
            path,
            dim=ndims,
            metric=self._metric,
            dtype=dtype,
            memory=budget,
            merge_memory=budget,
            threads=self._threads,
            durability=self._durability,
        )

    def insert(self, X: Any, ids: Any) -> None:
        self._index.insert(X, ids)

    def delete(self, ids: Any) -> None:
        self._index.delete(ids)

    def replace(self, X: Any, ids: Any) -> None:
        self._index.upsert(X, ids)

    def set_query_arguments(self, query_args: dict[str, Any]) -> None:
        self._asked = dict(query_args)

    def query(self, X: Any, k: int) -> None:
        self.res = self._index.search(X, k, **self._asked).ids

    def done(self) -> None:
        if self._index is not None:
            self._index.close()

    def __str__(self) -> str:
        return f"velo({self._share:.0%}, {self._asked})"
