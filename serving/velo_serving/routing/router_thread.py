"""A router for callers that block: it lives on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Final

from msgspec import structs

from velo_serving.protocol.hits import concat_hits
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.loops import LoopThread
from velo_serving.protocol.types import Answer, SearchRequest
from velo_serving.routing import hit_vectors
from velo_serving.routing.served import Generation, ServedCollection

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

#: A job's queries go in requests of so many, and so many requests at once.
_QUERIES_A_REQUEST: Final = 512
_REQUESTS_AT_ONCE: Final = 4

#: Of those that bring vectors fewer go in each: a shard's reply is bounded, and so is what waits here.
_VECTORS_BYTES_A_REQUEST: Final = 32 << 20


class RouterThread:
    """Searches from threads without an event loop; ``make`` runs in the loop of the router."""

    def __init__(self, make: Callable[[], ServedCollection]) -> None:
        self._thread = LoopThread("velo-router")
        self._served = self._thread.call(self._start(make))

    @property
    def dim(self) -> int:
        return self._served.now.dim

    @staticmethod
    async def _start(make: Callable[[], ServedCollection]) -> ServedCollection:
        served = make()
        await served.start()
        return served

    def search(self, request: SearchRequest, timeout_s: float) -> Answer:
        return self._thread.call(self._search(request, timeout_s))

    async def _search(self, request: SearchRequest, timeout_s: float) -> Answer:
        with self._served.hold() as now:
            return await self._search_in(now, request, timeout_s)

    @staticmethod
    async def _search_in(now: Generation, request: SearchRequest, timeout_s: float) -> Answer:
        deadline = time.monotonic() + timeout_s
        step = queries_a_request(request, now.dim)
        slots = asyncio.Semaphore(_REQUESTS_AT_ONCE)

        async def ask(start: int) -> Answer:
            async with slots:
                filters, text = request.filters, request.text
                if filters is not None and len(filters) > 1:
                    filters = filters[start : start + step]
                if text is not None:
                    text = text[start : start + step]
                part = structs.replace(
                    request,
                    queries=request.queries[start : start + step],
                    filters=filters,
                    text=text,
                    timeout_s=max(deadline - time.monotonic(), 0.001),
                )
                return await hit_vectors.search(now.router, part, now.dim)

        starts = range(0, max(1, len(request.queries)), step)
        answers = await asyncio.gather(*(ask(start) for start in starts))
        if len(answers) == 1:
            return answers[0]
        fewest = min(answers, key=lambda answer: answer.shards_answered)
        return dataclasses.replace(fewest, hits=concat_hits([answer.hits for answer in answers]))

    def close(self) -> None:
        self._thread.call(self._served.close())
        self._thread.close()


def queries_a_request(request: SearchRequest, dim: int) -> int:
    """The number of queries in one request of a job."""
    if not request.return_vectors:
        return _QUERIES_A_REQUEST
    bytes_a_query = request.k * request.group_hits * dim * 4
    return max(1, min(_QUERIES_A_REQUEST, _VECTORS_BYTES_A_REQUEST // bytes_a_query))
