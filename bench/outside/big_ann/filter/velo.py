"""velo for the filter track of NeurIPS'23; its place is ``neurips23/filter/velo`` of big-ann."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmark.datasets import DATASETS
from neurips23.filter.base import BaseFilterANN

import velo

#: Words of a row; the track's queries ask for rows that have all of one or two.
TAGS = "tags"
METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}


class Velo(BaseFilterANN):
    """An index with a column of lists of numbers, kept under ``data/indices``."""

    def __init__(self, metric: str, index_params: dict[str, Any]) -> None:
        self._metric = METRICS[metric]
        self._memory = index_params["memory"]
        self._threads = index_params.get("threads")
        self._index: velo.Index | None = None
        self._asked: dict[str, Any] = {}
        self.res: Any = None

    def _path(self, dataset: str) -> Path:
        folder = Path("data", "indices", "filter", "velo", f"{dataset}-{self._memory.rstrip('%')}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    def fit(self, dataset: str) -> None:
        ds = DATASETS[dataset]()
        columns = None
        if ds.search_type() == "knn_filtered":
            words = ds.get_dataset_metadata()
            columns = pa.table({TAGS: pa.ListArray.from_arrays(words.indptr.astype(np.int32), words.indices)})
        velo.build(
            self._path(dataset),
            ds.get_dataset(),
            metric=self._metric,
            metadata=columns,
            search_memory=self._memory,
            threads=self._threads,
            overwrite=True,
        ).close()
        self.load_index(dataset)

    def load_index(self, dataset: str) -> bool:
        path = self._path(dataset)
        if not (path / "manifest.json").is_file():
            return False
        self._index = velo.open(path, memory=self._memory, threads=self._threads)
        return True

    def set_query_arguments(self, query_args: dict[str, Any]) -> None:
        self._asked = dict(query_args)

    def query(self, X: Any, k: int) -> None:
        self.res = self._index.search(X, k, **self._asked).ids

    def filtered_query(self, X: Any, words: Any, k: int) -> None:
        filters = [
            velo.col(TAGS).contains_all(words.indices[start:end].tolist())
            for start, end in itertools.pairwise(words.indptr)
        ]
        self.res = self._index.search(X, k, filter=filters, **self._asked).ids

    def index_files_to_store(self, dataset: str) -> list[Any]:
        path = self._path(dataset)
        return [str(path), "", sorted(os.listdir(path))]

    def done(self) -> None:
        if self._index is not None:
            self._index.close()

    def __str__(self) -> str:
        return f"velo({self._memory}, {self._asked})"
