"""Search as a step of a data pipeline: a class for ``ray.data.Dataset.map_batches``. It needs no Ray."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from velo.errors import DimensionMismatchError, DtypeError, InvalidArgumentError
from velo.options import Fusion, fusion_of, texts_of
from velo.types import FusionName
from velo_serving.catalog.collection import read_collection
from velo_serving.protocol.requests import EffortKeywords, shows_effort
from velo_serving.protocol.types import Answer, Failure, FilterForm, Float32Matrix, Hits, SearchRequest
from velo_serving.routing.hybrid import search_by
from velo_serving.routing.local_backend import open_shards
from velo_serving.routing.merge import merge_top_k
from velo_serving.shard.shard import Shard

if TYPE_CHECKING:
    from typing_extensions import Unpack


class BatchStep(ABC):
    """A step that adds the columns ``ids`` and ``distances`` to a batch; ``text`` is the column of texts."""

    _dim: int

    def __init__(
        self, column: str, k: int, text: str | None, fusion: Fusion | FusionName | None, **asked: Any
    ) -> None:
        if k < 1:
            raise InvalidArgumentError(f"k must be at least 1, not {k}", argument="k")
        if fusion is not None and text is None:
            raise InvalidArgumentError("fusion goes with text", argument="fusion")
        self._column = column
        self._k = k
        self._text = text
        self._fusion = None if text is None else fusion_of(fusion)
        if self._fusion is not None:
            self._fusion.depth_of(k)
        self._asked = asked

    @abstractmethod
    def _search(self, queries: Float32Matrix, texts: tuple[str, ...] | None) -> Hits:
        """Search for all vectors of a batch, and for the words of its texts."""

    def __call__(self, batch: Any) -> Any:
        """Return the batch with ``ids``, ``distances`` and, for full text, ``scores``: lists of length k."""
        if isinstance(batch, pa.Table):
            return self._table(batch)
        if not isinstance(batch, Mapping):
            raise DtypeError(f"a batch is a dict of arrays or an Arrow table, not {type(batch).__name__}")
        self._check_columns(list(batch))
        texts = None if self._text is None else list(batch[self._text])
        hits = self._hits(batch[self._column], texts)
        found = {**batch, "ids": _id_column(hits), "distances": hits.distances}
        return found if hits.scores is None else {**found, "scores": hits.scores}

    def _table(self, table: pa.Table) -> pa.Table:
        self._check_columns(table.column_names)
        texts = None if self._text is None else table.column(self._text).to_pylist()
        hits = self._hits(table.column(self._column).to_pylist(), texts)
        identity = pa.string() if hits.ids.dtype == object else pa.int64()
        found = table.append_column("ids", pa.array(hits.ids.tolist(), pa.list_(identity)))
        for name, numbers in (("distances", hits.distances), ("scores", hits.scores)):
            if numbers is not None:
                found = found.append_column(name, pa.array(numbers.tolist(), pa.list_(pa.float32())))
        return found

    def _hits(self, vectors: Any, texts: Sequence[Any] | None) -> Hits:
        queries = _matrix(vectors, self._dim, self._column)
        return self._search(queries, None if texts is None else tuple(texts_of(texts, len(queries))))

    def _check_columns(self, there: Sequence[str]) -> None:
        for argument, name in (("column", self._column), ("text", self._text)):
            if name is not None and name not in there:
                raise InvalidArgumentError(
                    f"the batch has no column {name!r}, only {', '.join(there)}", argument=argument
                )


class VectorSearch(BatchStep):
    """Opens an index once, then adds the columns ``ids`` and ``distances`` to every batch it is called with.

    Parameters
    ----------
    path : path
        An index or a sharded collection, on the node of the actor.
    k : int
    column : str
        The column of the query vectors.
    filter : dict, optional
    text : str, optional
        The column of texts for full-text search. Each shard ranks by the statistics of its own rows.
    fusion : {"rrf", "weighted"}, velo.RRF or velo.Weighted, optional
        The fusion of full-text and vector search.
    memory, threads, io, plan
        As in ``velo.open``.
    **effort
        `recall`, `list_size`, `exact`, as in ``velo.Index.search``.

    Examples
    --------
    Ray Data makes the object, from ``map_batches(VectorSearch, fn_constructor_kwargs={"path": …})``. It is an
    ordinary callable:

    >>> from velo_serving import VectorSearch
    >>> step = VectorSearch("shop.velo", k=3)
    >>> batch = step({"vector": queries})
    >>> sorted(batch), batch["ids"].shape
    (['distances', 'ids', 'vector'], (5, 3))
    >>> step.close()
    """

    @shows_effort
    def __init__(
        self,
        path: str | Path,
        *,
        k: int = 10,
        column: str = "vector",
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        text: str | None = None,
        fusion: Fusion | FusionName | None = None,
        memory: int | float | str | None = None,
        threads: int | None = None,
        io: str = "auto",
        plan: str = "auto",
        **effort: Unpack[EffortKeywords],
    ) -> None:
        filters = None if filter is None else (filter,)
        super().__init__(column, k, text, fusion, filters=filters, **effort)
        collection = read_collection(path)
        self._shards: list[Shard] = open_shards(collection, memory=memory, threads=threads, io=io, plan=plan)
        self._dim = self._shards[0].health().dim

    def close(self) -> None:
        """Release the index."""
        for shard in self._shards:
            shard.close()

    def _search(self, queries: Float32Matrix, texts: tuple[str, ...] | None) -> Hits:
        request = SearchRequest(queries, self._k, text=texts, fusion=self._fusion, **self._asked)
        # An event loop of a batch's own: Ray may call from any thread, with or without a loop of its own.
        return asyncio.run(search_by(self._gather, request, None)).hits

    async def _gather(self, request: SearchRequest) -> Answer:
        parts: list[Hits] = []
        for reply in await asyncio.gather(*(shard.search(request) for shard in self._shards)):
            if isinstance(reply, Failure):
                raise reply.to_error()  # a batch job wants all shards or an error, never a silent part
            parts.append(reply)
        return Answer(merge_top_k(parts, request.k), len(parts), len(parts))


def _id_column(hits: Hits) -> Any:
    if hits.ids.dtype != object:
        return hits.ids
    column = np.empty(len(hits.ids), dtype=object)
    column[:] = hits.ids.tolist() or None
    return column


def _matrix(column: Any, dim: int, name: str) -> Float32Matrix:
    values: Any = column
    if not (isinstance(values, np.ndarray) and values.dtype != object):
        values = list(values)
        lengths = {np.size(one) for one in values}
        if lengths - {dim}:
            raise DimensionMismatchError(
                f"column {name!r} holds vectors of {sorted(lengths)} dimensions, the index has {dim}",
                argument=name,
            )
    try:
        matrix: Float32Matrix = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DtypeError(f"column {name!r} does not hold vectors: {error}", argument=name) from None
    if matrix.size == 0:
        return np.empty((0, dim), dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] != dim:
        raise DimensionMismatchError(
            f"column {name!r} has the shape {matrix.shape}, the index takes (rows, {dim})", argument=name
        )
    return matrix
