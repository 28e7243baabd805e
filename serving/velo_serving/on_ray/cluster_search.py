"""Search over running actors as a step of a data pipeline: a class for ``ray.data.Dataset.map_batches``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from velo.options import Fusion
from velo.types import FusionName
from velo_serving.on_ray.cluster import Cluster
from velo_serving.on_ray.vector_search import BatchStep
from velo_serving.protocol.errors import NoShardAnsweredError
from velo_serving.protocol.requests import EffortKeywords, shows_effort
from velo_serving.protocol.types import FilterForm, Float32Matrix, Hits

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ClusterSearch(BatchStep):
    """Adds ``ids`` and ``distances`` to every batch, from the actors of a collection that runs already.

    It opens nothing: ``VectorSearch`` takes the memory of an index for each of its actors, this asks the
    shards where they are.

    Parameters
    ----------
    name : str
        Of the collection, as in ``Cluster.connect``.
    k : int
    column : str
        The column that holds the query vectors.
    filter : dict or str, optional
        The same for all queries.
    text, fusion
        As in ``VectorSearch``.
    timeout_s : float
        For each batch.
    **effort
        `recall`, `list_size`, `exact`, as in ``velo.Index.search``.
    """

    @shows_effort
    def __init__(
        self,
        name: str,
        *,
        k: int = 10,
        column: str = "vector",
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        text: str | None = None,
        fusion: Fusion | FusionName | None = None,
        timeout_s: float = 60.0,
        **effort: Unpack[EffortKeywords],
    ) -> None:
        super().__init__(column, k, text, fusion, filter=filter, timeout_s=timeout_s, **effort)
        self._cluster = Cluster.connect(name)
        self._dim = self._cluster.records[0].dim

    def close(self) -> None:
        """Let go of the shards; they run on."""
        self._cluster.stop()

    def _search(self, queries: Float32Matrix, texts: tuple[str, ...] | None) -> Hits:
        found = self._cluster.search(queries, self._k, text=texts, fusion=self._fusion, **self._asked)
        if found.partial:  # a batch job wants all shards or an error, never a silent part
            reasons = "; ".join(f"{one['shard']}: {one['message']}" for one in found.failures)
            raise NoShardAnsweredError(
                f"{found.shards_answered} of {found.shards_total} shards answered ({reasons})"
            )
        counts = np.asarray(found.counts, np.int64)
        return Hits(found.ids, found.distances, counts, scores=found.scores)
