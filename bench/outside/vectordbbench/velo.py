"""velo for VectorDBBench; its place is ``vectordb_bench/backend/clients/velo`` there."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from vectordb_bench.backend.clients.api import VectorDB
from vectordb_bench.backend.filter import Filter, FilterOp

import velo

from .config import VeloIndexConfig

log = logging.getLogger(__name__)

#: The runner filters by these two, whatever else a set has.
NUMBER, LABEL = "id", "label"


class Velo(VectorDB):
    """A live index: rows are inserted durably, merged by ``optimize`` and searched by many processes."""

    supported_filter_types = [FilterOp.NonFilter, FilterOp.NumGE, FilterOp.StrEqual]  # noqa: RUF012
    name = "Velo"
    thread_safe = True

    def __init__(
        self,
        dim: int,
        db_config: dict,
        db_case_config: VeloIndexConfig,
        collection_name: str = "",
        drop_old: bool = False,
        with_scalar_labels: bool = False,
        **kwargs: Any,
    ) -> None:
        self._path = Path(db_config["path"])
        self._opened_with = db_case_config.index_param()
        self._searched_with = db_case_config.search_param()
        self._with_labels = with_scalar_labels
        self._index: velo.Index | None = None
        self._writes = True
        self._filter: velo.filters.Expr | None = None
        if drop_old:
            self._drop()
            columns = {NUMBER: pa.int64()} | ({LABEL: pa.string()} if with_scalar_labels else {})
            velo.create(
                self._path, dim=dim, metric=db_case_config.metric, metadata=pa.schema(columns)
            ).close()

    def _drop(self) -> None:
        if self._path.exists() and any(self._path.iterdir()):
            if not (self._path / "live.json").is_file():
                raise FileExistsError(f"{self._path} is no index that this client made: it is not removed")
            shutil.rmtree(self._path)

    @contextmanager
    def init(self) -> Iterator[None]:
        """One process writes at a time; those that search open to read, see :meth:`prepare_filter`."""
        self._index = velo.open(self._path, writable=self._writes, **self._opened_with)
        try:
            yield
        finally:
            self._index.close()
            self._index = None

    def insert_embeddings(
        self,
        embeddings: list[list[float]],
        metadata: list[int],
        labels_data: list[str] | None = None,
        **kwargs: Any,
    ) -> tuple[int, Exception | None]:
        columns = {NUMBER: pa.array(metadata, pa.int64())}
        if self._with_labels:
            columns[LABEL] = pa.array(labels_data, pa.string())
        try:
            self._index.insert(np.asarray(embeddings, np.float32), metadata, pa.table(columns))
        except velo.VeloError as error:  # the runner wants it as a value, and tries again
            log.warning("velo insert: %s", error)
            return 0, error
        return len(metadata), None

    def optimize(self, data_size: int | None = None) -> None:
        self._index.optimize()

    def prepare_filter(self, filters: Filter) -> None:
        """Runners call this before a search; those of many processes before ``init``, too."""
        self._writes = False
        if filters.type == FilterOp.NonFilter:
            self._filter = None
        elif filters.type == FilterOp.NumGE:
            self._filter = velo.col(NUMBER) >= filters.int_value
        elif filters.type == FilterOp.StrEqual:
            self._filter = velo.col(LABEL) == filters.label_value
        else:
            raise ValueError(f"no such filter for velo: {filters}")

    def search_embedding(self, query: list[float], k: int = 100, **kwargs: Any) -> list[int]:
        ids = self._index.search(
            np.asarray(query, np.float32), k, filter=self._filter, **self._searched_with
        ).ids
        return ids[ids >= 0].tolist()
