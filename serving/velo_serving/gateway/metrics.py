"""Prometheus metrics of a gateway; a registry of its own, so that several apps can live in one process.

Several gateways of one port write into files of one folder, in prometheus_client's multiprocess mode, and
whichever is asked adds them up.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import velo
from velo_serving.protocol.types import Hits
from velo_serving.routing.backend import Backend

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: From what a shard takes in memory to what nobody waits for.
SECONDS = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

M = TypeVar("M", bound=MetricWrapperBase)

#: How old another gateway's gauges may be.
GAUGES_S = 1.0


class Metrics:
    """All counters of a gateway.

    Parameters
    ----------
    backend : Backend
        Its routers are observed from now on.
    """

    def __init__(self, backend: Backend) -> None:
        registry = self._registry = CollectorRegistry()

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(name, documentation, labels, registry=registry)

        def histogram(
            name: str, documentation: str, *labels: str, buckets: Sequence[float] = SECONDS
        ) -> Histogram:
            return Histogram(name, documentation, labels, buckets=buckets, registry=registry)

        one, shard = "collection", ("collection", "shard")
        self.http_requests = counter(
            "velo_http_requests", "HTTP requests by route and status.", "method", "route", "status"
        )
        self.http_seconds = histogram(
            "velo_http_request_seconds", "From the first byte in to the last out.", "route"
        )
        self.searches = counter(
            "velo_searches",
            "Searches by outcome: complete, partial, rejected, deadline, unavailable, error.",
            *(one, "outcome"),
        )
        self.queries = counter("velo_queries", "Vectors searched for.", one)
        self.reads = counter("velo_reads", "Reads from devices.", one)
        self.bytes_read = counter("velo_read_bytes", "Bytes read from devices.", one)
        self.shared_reads = counter("velo_shared_reads", "Pages that the read of another query brought.", one)
        self.cache_hits = counter("velo_cache_hits", "Records found in the cache.", one)
        self.writes = counter(
            "velo_writes",
            "Writes by outcome: done, partial, rejected, deadline, unavailable, error.",
            *(one, "verb", "outcome"),
        )
        self.rows_written = counter("velo_rows_written", "Rows that writes changed.", one, "verb")
        self.shard_calls = counter(
            "velo_shard_calls",
            "Calls to shards by outcome: ok, error, canceled, unavailable, hung.",
            *(*shard, "outcome"),
        )
        self.shard_seconds = histogram("velo_shard_call_seconds", "Duration of a call to a shard.", *shard)
        self.queue_seconds = histogram(
            "velo_shard_queue_seconds",
            "How long a request waited at the gateway before it went to a shard.",
            *shard,
        )
        self.call_queries = histogram(
            "velo_shard_call_queries", "Queries of one call to a shard.", one, buckets=QUERIES
        )
        self.hedges = counter(
            "velo_hedges", "Requests that went to a second replica because the first took long.", *shard
        )
        self.shard_falls = counter("velo_shard_falls", "Times a shard went down.", *shard)
        self._folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self._gauges = _Gauges(backend, registry, alone=self._folder is None)
        backend.observe(lambda name: _RouterObserver(self, name))

    def render(self) -> bytes:
        """Return everything in Prometheus' text format, of all gateways of this port."""
        self._gauges.write()
        if self._folder is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        collector: Any = MultiProcessCollector
        collector(registry, self._folder)
        return generate_latest(registry)

    async def keep(self) -> None:
        """Write gauges now and then, for when another gateway is asked."""
        while self._folder is not None:
            self._gauges.write()
            await asyncio.sleep(GAUGES_S)


class _Children(Generic[M]):
    """A metric's children by their labels: found once, since ``labels`` locks and compares each time."""

    def __init__(self, metric: M) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], M] = {}

    def __getitem__(self, labels: tuple[str, ...]) -> M:
        known = self._known.get(labels)
        if known is None:
            known = self._known[labels] = self._metric.labels(*labels)
        return known


class _RouterObserver:
    def __init__(self, metrics: Metrics, collection: str) -> None:
        self._collection = collection
        self._shard_calls = _Children(metrics.shard_calls)
        self._shard_seconds = _Children(metrics.shard_seconds)
        self._queue_seconds = _Children(metrics.queue_seconds)
        self._call_queries = metrics.call_queries.labels(collection)
        self._hedges = _Children(metrics.hedges)
        self._shard_falls = _Children(metrics.shard_falls)
        self._searches = _Children(metrics.searches)
        self._queries = metrics.queries.labels(collection)
        self._reads = metrics.reads.labels(collection)
        self._bytes_read = metrics.bytes_read.labels(collection)
        self._shared_reads = metrics.shared_reads.labels(collection)
        self._cache_hits = metrics.cache_hits.labels(collection)
        self._writes = _Children(metrics.writes)
        self._rows_written = _Children(metrics.rows_written)

    def call_sent(self, shard: str, queries: int, waited_s: float) -> None:
        self._queue_seconds[self._collection, shard].observe(waited_s)
        self._call_queries.observe(queries)

    def call_ended(self, shard: str, seconds: float, outcome: str) -> None:
        self._shard_calls[self._collection, shard, outcome].inc()
        self._shard_seconds[self._collection, shard].observe(seconds)

    def hedge_sent(self, shard: str) -> None:
        self._hedges[self._collection, shard].inc()

    def shard_changed(self, shard: str, up: bool, reason: str) -> None:
        if not up:
            self._shard_falls[self._collection, shard].inc()

    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None:
        self._searches[self._collection, outcome].inc()
        if hits is not None:
            self._queries.inc(queries)
            self._reads.inc(hits.reads)
            self._bytes_read.inc(hits.bytes_read)
            self._shared_reads.inc(hits.shared_reads)
            self._cache_hits.inc(hits.cache_hits)

    def write_ended(self, verb: str, outcome: str, rows: int) -> None:
        self._writes[self._collection, verb, outcome].inc()
        self._rows_written[self._collection, verb].inc(rows)


class _Gauge(NamedTuple):
    """Gauges that are read from the routers at each scrape."""

    name: str
    documentation: str
    labels: tuple[str, ...]
    #: How several gateways' values become one.
    mode: Literal["livesum", "livemin", "livemax"]


_ADMITTED = _Gauge(
    "velo_queries_admitted", "Queries taken in and not answered yet.", ("collection",), "livesum"
)
_VECTORS = _Gauge("velo_vectors", "Vectors in the collection.", ("collection",), "livemax")
_UP = _Gauge("velo_shard_up", "1 if the shard can be asked.", ("collection", "shard"), "livemin")
_WAITING = _Gauge(
    "velo_shard_waiting_requests", "Requests waiting before a shard.", ("collection", "shard"), "livesum"
)
_IN_FLIGHT = _Gauge(
    "velo_shard_calls_in_flight", "Calls a shard works on.", ("collection", "shard"), "livesum"
)
_MEMORY = _Gauge(
    "velo_shard_memory_bytes", "Memory of the shard's index.", ("collection", "shard"), "livemax"
)
_GATEWAYS = _Gauge("velo_gateways", "Gateways that answer on this port.", (), "livesum")

_BUILD = _Gauge("velo_build_info", "1; the labels say which velo answers.", ("version", "python"), "livemax")

_GAUGES = (_BUILD, _GATEWAYS, _ADMITTED, _VECTORS, _UP, _WAITING, _IN_FLIGHT, _MEMORY)


def _now(backend: Backend) -> Iterator[tuple[_Gauge, tuple[str, ...], float]]:
    """Every gauge's values at this moment."""
    yield _BUILD, (velo.__version__, platform.python_version()), 1
    yield _GATEWAYS, (), 1
    for served in backend.collections:
        yield _ADMITTED, (served.name,), served.router.queries_admitted
        yield _VECTORS, (served.name,), served.rows
        for shard in served.router.shards():
            labels = (served.name, shard.name)
            yield _UP, labels, shard.state == "up"
            yield _WAITING, labels, shard.waiting_requests
            yield _IN_FLIGHT, labels, shard.calls_in_flight
            yield _MEMORY, labels, shard.health.memory_bytes if shard.health is not None else 0


class _Gauges:
    """The gauges of a gateway: set when somebody asks, and now and then where others read them, too."""

    def __init__(self, backend: Backend, registry: CollectorRegistry, *, alone: bool) -> None:
        self._backend = backend
        self._alone = alone
        self._gauges = {
            gauge: Gauge(
                gauge.name, gauge.documentation, gauge.labels, registry=registry, multiprocess_mode=gauge.mode
            )
            for gauge in _GAUGES
        }

    def write(self) -> None:
        if self._alone:  # what went is told no more; files of several gateways keep what was said
            for gauge, one in self._gauges.items():
                if gauge.labels:
                    one.clear()
        for gauge, labels, value in _now(self._backend):
            (self._gauges[gauge].labels(*labels) if labels else self._gauges[gauge]).set(value)


_METHODS = frozenset(("GET", "POST", "DELETE", "HEAD", "OPTIONS"))


class Measured:
    """Middleware that counts and times requests under their route, never under a path a client made up."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._requests = _Children(metrics.http_requests)
        self._seconds = _Children(metrics.http_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            route: Any = scope.get("route")
            path = str(getattr(route, "path", "unmatched"))
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._requests[method, path, str(status)].inc()
            self._seconds[path,].observe(time.perf_counter() - started)
