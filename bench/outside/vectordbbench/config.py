"""The options of a run of velo in VectorDBBench."""

from __future__ import annotations

from pydantic import BaseModel
from vectordb_bench.backend.clients.api import DBCaseConfig, DBConfig, MetricType

METRICS = {MetricType.L2: "l2", MetricType.IP: "ip", MetricType.DP: "ip", MetricType.COSINE: "cosine"}


class VeloConfig(DBConfig):
    """The folder of the index: velo is a library."""

    path: str

    def to_dict(self) -> dict:
        return {"path": self.path}


class VeloIndexConfig(BaseModel, DBCaseConfig):
    """``memory`` is bytes, or a size such as ``512MiB``: an index without rows has no share of them."""

    metric_type: MetricType | None = None
    memory: str | None = None
    threads: int | None = None
    recall: float | None = None
    list_size: int | None = None

    @property
    def metric(self) -> str:
        return METRICS[self.metric_type or MetricType.L2]

    def index_param(self) -> dict:
        return {"memory": self.memory, "threads": self.threads}

    def search_param(self) -> dict:
        return {"recall": self.recall, "list_size": self.list_size}
