"""Searches of a job that blocks: it asks shards that run elsewhere, without a gateway and without Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from velo.errors import DimensionMismatchError, InvalidArgumentError
from velo.options import Fusion, fusion_of, texts_of
from velo.results import RangeResult, SearchResult
from velo_serving.protocol.answers import result_of
from velo_serving.protocol.errors import ShuttingDownError
from velo_serving.protocol.hits import concat_hits
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.loops import LoopThread
from velo_serving.protocol.requests import EffortKeywords, shows_effort
from velo_serving.protocol.types import Answer, FilterForm, SearchRequest
from velo_serving.routing import hybrid
from velo_serving.routing.served import Generation, ServedCollection

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: A job waits for itself alone, and has its own idea of how long; it would rather wait than miss a part.
JOB_LIMITS: Final = RouterLimits(
    queue_queries_max=1 << 30,
    queue_wait_max_s=1e9,
    in_flight_queries_max=2048,
    timeout_max_s=1e9,
    quiet_s=0.5,
    trial_s=5.0,
    busy_max_s=600.0,
)

#: Queries in one request of a job, and requests in flight.
_QUERIES_A_REQUEST: Final = 512
_REQUESTS_AT_ONCE: Final = 4

#: Requests that return vectors are smaller: replies are bounded.
_VECTORS_BYTES_A_REQUEST: Final = 32 << 20


def queries_a_request(request: SearchRequest, dim: int) -> int:
    if not request.return_vectors:
        return _QUERIES_A_REQUEST
    bytes_a_query = request.k * request.group_hits * dim * 4
    return max(1, min(_QUERIES_A_REQUEST, _VECTORS_BYTES_A_REQUEST // bytes_a_query))


class JobSearches:
    """The searches of a ``Cluster``; ``serve`` makes the collection when the first one comes."""

    def __init__(self, name: str, serve: Callable[[], ServedCollection]) -> None:
        self._name = name
        self._serve = serve
        self._thread = LoopThread("velo-router")
        self._starting = threading.Lock()
        self._searched: ServedCollection | None = None
        self._ended = False

    def end_searches(self) -> None:
        """Give up what is under way; later searches are refused."""
        with self._starting:
            self._ended = True
            served, self._searched = self._searched, None
        if served is not None:
            self._thread.call(served.close())
        self._thread.close()

    @shows_effort
    def search(
        self,
        queries: npt.ArrayLike | None,
        k: int = 10,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        return_metadata: Sequence[str] | None = None,
        return_vectors: bool = False,
        group_by: str | None = None,
        group_size: int = 1,
        text: str | Sequence[str] | None = None,
        fusion: Fusion | Literal["rrf", "weighted"] | None = None,
        timeout_s: float = 60.0,
        **effort: Unpack[EffortKeywords],
    ) -> SearchResult:
        """Search all shards from a job, without a gateway.

        Parameters
        ----------
        queries : array of shape (query_count, dim)
            None with `text` alone.
        k, filter, return_metadata, group_by, group_size, text, fusion, recall, list_size, exact
            As in ``velo.Index.search``; each shard ranks words by what its own rows tell of them.
        return_vectors : bool
            Bring the stored vectors of the hits, too, as ``vectors`` of the answer. The build must have
            stored them (``store_vectors=True``). NaN stands for one whose row or shard went away meanwhile.
        timeout_s : float
            Shards that have not answered by then are missing from the answer.

        Returns
        -------
        SearchResult
            As of ``velo.Index.search``; ``shards_answered``, ``partial`` and ``failures`` tell of the shards.
        """
        if text is not None and (group_by is not None or group_size != 1):
            raise InvalidArgumentError("group_by goes without text", argument="group_by")
        if fusion is not None and (text is None or queries is None):
            raise InvalidArgumentError("fusion goes with text and queries", argument="fusion")
        fuses = None if text is None or queries is None else fusion_of(fusion)
        if queries is None and text is not None:  # words alone: of queries there is but the number
            count = 1 if isinstance(text, str) or not hasattr(text, "__len__") else len(text)
            queries = np.zeros((count, self._running().now.dim), np.float32)
        request = _request(
            queries,
            k,
            filters=None if filter is None else (filter,),
            return_metadata=None if return_metadata is None else tuple(return_metadata),
            return_vectors=return_vectors,
            timeout_s=timeout_s,
            text=text,
            fusion=fuses,
            group_by=group_by,
            group_size=group_size,
            **effort,
        )
        found = self._ask(request, timeout_s)
        assert isinstance(found, SearchResult)
        return found

    @shows_effort
    def range_search(
        self,
        queries: npt.ArrayLike,
        radius: float,
        *,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.range_search
        limit: int = 10_000,
        return_metadata: Sequence[str] | None = None,
        return_vectors: bool = False,
        timeout_s: float = 60.0,
        **effort: Unpack[EffortKeywords],
    ) -> RangeResult:
        """Find all within a distance of each query in all shards; ``limited`` says where there are more.

        Parameters
        ----------
        queries : array of shape (query_count, dim)
        radius, filter, limit, return_metadata, recall, list_size, exact
            As in ``velo.Index.range_search``; the limit is for all shards together.
        return_vectors : bool
            As for ``search``. While the answer is made, every query takes room for as many vectors as the one
            that has most: with many queries choose a `limit`.
        timeout_s : float
            Shards that have not answered by then are missing from the answer.

        Returns
        -------
        RangeResult
        """
        request = _request(
            queries,
            limit,
            filters=None if filter is None else (filter,),
            return_metadata=None if return_metadata is None else tuple(return_metadata),
            return_vectors=return_vectors,
            timeout_s=timeout_s,
            radius=float(radius),
            **effort,
        )
        found = self._ask(request, timeout_s)
        assert isinstance(found, RangeResult)
        return found

    def _running(self) -> ServedCollection:
        with self._starting:
            if self._ended:
                raise ShuttingDownError(f"{self._name!r} was stopped")
            if self._searched is None:
                self._searched = self._thread.call(self._start())
            return self._searched

    async def _start(self) -> ServedCollection:
        served = self._serve()
        await served.start()
        return served

    def _ask(self, request: SearchRequest, timeout_s: float) -> SearchResult | RangeResult:
        served = self._running()
        started = time.perf_counter()
        answer = self._thread.call(self._search(served, request, timeout_s))
        return result_of(answer, request, (time.perf_counter() - started) * 1000)

    @staticmethod
    async def _search(served: ServedCollection, request: SearchRequest, timeout_s: float) -> Answer:
        deadline = time.monotonic() + timeout_s
        step = queries_a_request(request, served.now.dim)
        count = len(request.queries)
        slots = asyncio.Semaphore(_REQUESTS_AT_ONCE)

        async def ask(now: Generation, start: int) -> Answer:
            async with slots:
                left_s = max(deadline - time.monotonic(), 0.001)
                part = request.part(range(start, min(start + step, count)), timeout_s=left_s)
                return await hybrid.search(now.router, part, now.dim)

        starts = range(0, max(1, count), step)
        with served.hold() as now:
            answers = await asyncio.gather(*(ask(now, start) for start in starts))
        if len(answers) == 1:
            return answers[0]
        fewest = min(answers, key=lambda answer: answer.shards_answered)
        return dataclasses.replace(fewest, hits=concat_hits([answer.hits for answer in answers]))


def _request(queries: Any, k: int, *, text: Any = None, fusion: Any = None, **options: Any) -> SearchRequest:
    matrix = np.ascontiguousarray(queries, dtype=np.float32)
    if matrix.ndim != 2:
        raise DimensionMismatchError(f"queries of shape {matrix.shape} are no matrix", argument="queries")
    if k < 1:
        raise InvalidArgumentError(f"k must be at least 1, not {k}", argument="k")
    if fusion is not None:
        fusion.depth_of(k)
    texts = None if text is None else tuple(texts_of(text, len(matrix)))
    return SearchRequest(matrix, k, text=texts, fusion=fusion, **options)
