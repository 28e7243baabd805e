"""Stand-ins for what the serving tests must control: time, shards that fail on command, an exact index."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import FilterError, UnknownColumnError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.types import Hits, SearchRequest, ShardHealth, ShardReply
from velo_serving.routing.backend import Backend
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection


async def settle(turns: int = 30) -> None:
    """Let everything that can run now run."""
    for _ in range(turns):
        await asyncio.sleep(0)


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class HandClock:
    """A clock that stands until it is cranked."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    async def crank(self, seconds: float) -> None:
        """Advance, calling back whatever falls due on the way, in order."""
        end = self._now + seconds
        await settle()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.callback is not None:
                timer.callback()
                await settle()
        self._now = end
        await settle()

    async def stall(self, seconds: float) -> None:
        """Let time pass while nothing runs: what fell due meanwhile is called back late."""
        await settle()
        self._now += seconds
        await self.crank(0.0)

    @property
    def timers_waiting(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._timers)


class ExactIndex:
    """A ``SearchIndex`` by brute force, with one column, ``parity`` of the id, compared for equality."""

    def __init__(self, vectors: np.ndarray, first_row: int = 0) -> None:
        self.vectors = np.asarray(vectors, dtype=np.float32)
        self.ids = np.arange(first_row, first_row + len(vectors), dtype=np.int64)
        self.calls: list[dict[str, Any]] = []
        self.closed = False
        self.fail: Callable[[dict[str, Any]], Exception | None] = lambda call: None

    def info(self) -> dict[str, Any]:
        return {
            "n": len(self.vectors),
            "dim": self.vectors.shape[1],
            "metric": "l2",
            "memory_bytes": {"codes": 1000, "links": 24},
            "device": {"name": "exact"},
            "columns": ["parity"],
        }

    def __len__(self) -> int:
        return len(self.vectors)

    def close(self) -> None:
        self.closed = True

    def _passes(self, condition: dict[str, Any] | None) -> np.ndarray:
        if condition is None:
            return np.ones(len(self.ids), dtype=bool)
        for column, value in condition.items():
            if column != "parity":
                raise UnknownColumnError(
                    f"filter at $.{column}: there is no column {column!r}", argument="filter"
                )
            if not isinstance(value, int):
                raise FilterError(f"filter at $.{column}: {value!r} is not a whole number", argument="filter")
            return self.ids % 2 == value
        return np.ones(len(self.ids), dtype=bool)

    async def search_async(self, queries: Any, k: int = 10, **options: Any) -> SimpleNamespace:
        given = options.get("filter")
        call = {"queries": len(queries), "k": k, **options}
        self.calls.append(call)
        error = self.fail(call)
        if error is not None:
            raise error
        await asyncio.sleep(0)
        filters = given if isinstance(given, list) else [given] * len(queries)
        assert len(filters) == len(queries)
        ids = np.full((len(queries), k), -1, dtype=np.int64)
        distances = np.full((len(queries), k), np.inf, dtype=np.float32)
        counts = np.zeros(len(queries), dtype=np.uint32)
        for row, (query, condition) in enumerate(zip(queries, filters, strict=True)):
            passing = np.flatnonzero(self._passes(condition))
            exact = ((self.vectors[passing] - query) ** 2).sum(axis=1)
            best = np.lexsort((self.ids[passing], exact))[:k]
            counts[row] = len(best)
            ids[row, : len(best)] = self.ids[passing][best]
            distances[row, : len(best)] = exact[best]
        metadata = None
        if options.get("return_metadata") is not None:
            metadata = [
                pa.table({"parity": [int(one) % 2 for one in row[:count]]})
                for row, count in zip(ids, counts, strict=True)
            ]
        stats = {
            "reads": np.full(len(queries), 3, dtype=np.uint32),
            "bytes_read": np.full(len(queries), 12288, dtype=np.uint64),
            "cache_hits": np.ones(len(queries), dtype=np.uint32),
        }
        return SimpleNamespace(ids=ids, distances=distances, counts=counts, stats=stats, metadata=metadata)


def hits(ids: Sequence[int], distances: Sequence[float], *, k: int | None = None, queries: int = 1) -> Hits:
    """The same hits for each of some queries, padded to k."""
    width = k or len(ids)
    row_ids = [*ids] + [-1] * (width - len(ids))
    row_distances = [*distances] + [np.inf] * (width - len(ids))
    return Hits(
        ids=np.array([row_ids] * queries, dtype=np.int64),
        distances=np.array([row_distances] * queries, dtype=np.float32),
        counts=np.full(queries, len(ids), dtype=np.int64),
        reads=queries,
    )


class CommandedChannel:
    """A shard that does what a test says; else it answers at once, with its own number as the only id.

    Trials are counted, and end when ``end_a_search`` does.
    """

    def __init__(self, number: int, name: str = "") -> None:
        self.number = number
        self._name = name or str(number)
        self.uuid = f"uuid-{number}"
        self.requests: list[SearchRequest] = []
        self.timeouts: list[float] = []
        self.canceled = 0
        self.looked_up: list[str] = []
        self.written: list[tuple[str, Any]] = []
        self.take: Callable[[str, Any], Awaitable[dict[str, Any]]] = self.takes
        self.probes = 0
        self.trials = 0
        self.resets = 0
        self.lost: Callable[[str], None] = lambda reason: None
        self.answer: Callable[[SearchRequest], Awaitable[ShardReply]] = self.at_once
        self.end_a_search: Callable[[], Awaitable[object]] = self.well
        self.say: Callable[[], Awaitable[ShardHealth]] = self.well

    @property
    def name(self) -> str:
        return self._name

    def submit(self, request: SearchRequest, timeout_s: float) -> asyncio.Future[ShardReply]:
        self.requests.append(request)
        self.timeouts.append(timeout_s)
        future = asyncio.ensure_future(self.answer(request))
        future.add_done_callback(self._note)
        return future

    def _note(self, future: asyncio.Future[ShardReply]) -> None:
        self.canceled += future.cancelled()

    async def health(self) -> ShardHealth:
        self.probes += 1
        return await self.say()

    async def trial(self, timeout_s: float) -> bool:
        self.trials += 1
        return await self.end_a_search() is not False

    async def look_up(self, what: str, arguments: Any, timeout_s: float) -> dict[str, Any]:
        self.looked_up.append(what)
        return {"count": self.number}

    async def write(self, what: str, arguments: Any, timeout_s: float) -> dict[str, Any]:
        self.written.append((what, arguments))
        return await self.take(what, arguments)

    async def takes(self, what: str, arguments: Any) -> dict[str, Any]:
        return {"rows": 1, "missing": 0, "sequence": self.number, "durable": True}

    def watch(self, lost: Callable[[str], None]) -> None:
        self.lost = lost

    def reset(self) -> None:
        self.resets += 1

    async def close(self) -> None:
        pass

    async def at_once(self, request: SearchRequest) -> ShardReply:
        return hits([self.number], [float(self.number)], k=request.k, queries=len(request.queries))

    async def well(self) -> ShardHealth:
        return ShardHealth(uuid=self.uuid, n=100, dim=4, metric="l2", node="here", pid=1, memory_bytes=7)

    async def works(self) -> bool:
        """As a trial: nothing ended, but it is at work."""
        return False

    async def never(self, *_: Any) -> Any:
        await asyncio.Event().wait()

    def raises(self, error: Exception) -> Callable[..., Awaitable[Any]]:
        async def fail(*_: Any) -> Any:
            raise error

        return fail


def request(queries: int = 1, k: int = 3, **options: Any) -> SearchRequest:
    """Some zero queries of four dimensions."""
    return SearchRequest(np.zeros((queries, 4), dtype=np.float32), k, **options)


def backend_of(channels: Sequence[Any], *, limits: RouterLimits | None = None, dim: int = 4) -> Backend:
    """A backend of one collection "things" over channels."""
    router = Router("things", channels, limits=limits)
    return Backend([ServedCollection("things", Generation(100 * len(channels), dim, "l2", router))])
