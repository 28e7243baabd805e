"""velo for ann-benchmarks; its place is ``ann_benchmarks/algorithms/velo`` there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ann_benchmarks.algorithms.base.module import BaseANN

import velo

METRICS = {"euclidean": "l2", "angular": "cosine"}


class Velo(BaseANN):
    """An index in a temporary folder, searched from its files with a memory budget and a list size."""

    def __init__(self, metric: str, memory: str) -> None:
        self._metric = METRICS[metric]
        self._memory = memory
        self._folder = tempfile.TemporaryDirectory(prefix="velo-")
        self._index: velo.Index | None = None
        self._list_size = 0
        self._found: Any = None
        self.name = f"velo ({memory})"

    def fit(self, X: Any) -> None:
        path = Path(self._folder.name) / "index.velo"
        # Calibration is for searches by recall; here lists are named.
        velo.build(path, X, metric=self._metric, search_memory=self._memory, calibrate=False).close()
        self._index = velo.open(path, memory=self._memory)

    def set_query_arguments(self, list_size: int) -> None:
        self._list_size = list_size
        self.name = f"velo ({self._memory}, list_size {list_size})"

    def query(self, q: Any, n: int) -> Any:
        return self._index.search(q, n, list_size=self._list_size).ids

    def batch_query(self, X: Any, n: int) -> None:
        self._found = self._index.search(X, n, list_size=self._list_size).ids

    def get_batch_results(self) -> Any:
        return self._found

    def done(self) -> None:
        if self._index is not None:
            self._index.close()
        self._folder.cleanup()
