"""Prometheus metrics of a gateway, in a registry of its own: several apps can live in one process.

Several gateways of one port write files to one folder, in prometheus_client's multiprocess mode.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.types import ASGIApp, Receive, Scope, Send

import velo
from velo_serving.gateway.logs import StatusWatch
from velo_serving.protocol.spans import Observer
from velo_serving.protocol.types import Failure, Hits, ShardFailure
from velo_serving.routing.backend import Backend

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Buckets from a search in memory to a timeout.
SECONDS = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

M = TypeVar("M", bound=MetricWrapperBase)

#: How old another gateway's gauges may be.
GAUGES_S = 1.0

#: The interval between two log lines of one kind for answers.
LOG_S = 10.0

log = logging.getLogger("velo_serving")


_SHARD = ("collection", "shard")

#: Counters and histograms with their labels.
_COUNTERS = (
    ("velo_http_requests", "HTTP requests by route and status.", ("method", "route", "status")),
    (
        "velo_searches",
        "Searches by outcome: complete, partial, rejected, deadline, unavailable, error.",
        ("collection", "outcome"),
    ),
    ("velo_queries", "Vectors searched for.", ("collection",)),
    ("velo_reads", "Reads from devices.", ("collection",)),
    ("velo_read_bytes", "Bytes read from devices.", ("collection",)),
    ("velo_shared_reads", "Pages that the read of another query brought.", ("collection",)),
    ("velo_cache_hits", "Records found in the cache.", ("collection",)),
    (
        "velo_writes",
        "Writes by outcome: done, partial, rejected, deadline, unavailable, error.",
        ("collection", "verb", "outcome"),
    ),
    ("velo_rows_written", "Rows that writes changed.", ("collection", "verb")),
    (
        "velo_shard_calls",
        "Calls to shards by outcome: ok, error, canceled, unavailable, hung.",
        (*_SHARD, "outcome"),
    ),
    ("velo_hedges", "Requests that went to a second replica because the first took long.", _SHARD),
    ("velo_shard_falls", "Times a shard went down.", _SHARD),
)
_HISTOGRAMS = (
    ("velo_http_request_seconds", "From the first byte in to the last out.", ("route",), SECONDS),
    ("velo_shard_call_seconds", "Duration of a call to a shard.", _SHARD, SECONDS),
    (
        "velo_shard_queue_seconds",
        "How long a request waited at the gateway before it went to a shard.",
        _SHARD,
        SECONDS,
    ),
    ("velo_shard_call_queries", "Queries of one call to a shard.", ("collection",), QUERIES),
)


class Metrics:
    """All metrics of a gateway, whose routers are observed from now on."""

    def __init__(self, backend: Backend) -> None:
        registry = self._registry = CollectorRegistry()
        self.counters = {
            name: _Children(Counter(name, text, labels, registry=registry))
            for name, text, labels in _COUNTERS
        }
        self.histograms = {
            name: _Children(Histogram(name, text, labels, buckets=buckets, registry=registry))
            for name, text, labels, buckets in _HISTOGRAMS
        }
        self._folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self._gauges = _Gauges(backend, registry, alone=self._folder is None)
        backend.observe(lambda name: _RouterObserver(self, name))

    def render(self) -> bytes:
        """All metrics in Prometheus' text format, of all gateways of this port."""
        self._gauges.write()
        if self._folder is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        collector: Any = MultiProcessCollector
        collector(registry, self._folder)
        return generate_latest(registry)

    async def keep(self) -> None:
        """Write gauges regularly, for the scrapes of other gateways."""
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


class _RouterObserver(Observer):
    """Counts the events of a router, and logs those of its shards."""

    def __init__(self, metrics: Metrics, collection: str) -> None:
        self._collection = collection
        self._down_since: dict[str, float] = {}
        self._logged: dict[str, tuple[float, int]] = {}
        self._counters = metrics.counters
        self._histograms = metrics.histograms

    def call_sent(self, shard: str, queries: int, waited_s: float) -> None:
        self._histograms["velo_shard_queue_seconds"][self._collection, shard].observe(waited_s)
        self._histograms["velo_shard_call_queries"][self._collection,].observe(queries)

    def call_ended(self, shard: str, seconds: float, outcome: str) -> None:
        self._counters["velo_shard_calls"][self._collection, shard, outcome].inc()
        self._histograms["velo_shard_call_seconds"][self._collection, shard].observe(seconds)

    def hedge_sent(self, shard: str) -> None:
        self._counters["velo_hedges"][self._collection, shard].inc()

    def shard_changed(self, shard: str, up: bool, reason: str) -> None:
        now = time.monotonic()
        if not up:
            self._counters["velo_shard_falls"][self._collection, shard].inc()
            self._down_since.setdefault(shard, now)
            self._log("shard is down", shard=shard, reason=reason)
        elif shard in self._down_since:
            down_s = round(now - self._down_since.pop(shard), 3)
            self._log("shard is up again", shard=shard, down_s=down_s)

    def shard_failed(self, shard: str, failure: Failure) -> None:
        self._log_rarely(f"{shard} {failure.kind}", "shard failed", shard=shard, reason=_said(failure))

    def answer_partial(self, failures: Sequence[ShardFailure]) -> None:
        missing = {one.shard: _said(one.failure) for one in failures}
        self._log_rarely(
            "partial", "answer is partial", shards=list(missing), reason="; ".join(missing.values())
        )

    def _log_rarely(self, key: str, message: str, **facts: Any) -> None:
        """Log an event of a kind at most once in ``LOG_S``; ``times`` counts it since the last line."""
        now = time.monotonic()
        logged_at, times = self._logged.get(key, (-LOG_S, 0))
        if now - logged_at < LOG_S:
            self._logged[key] = logged_at, times + 1
        else:
            self._logged[key] = now, 0
            self._log(message, **facts, times=times + 1)

    def _log(self, message: str, **facts: Any) -> None:
        log.warning(message, extra={"velo": {"collection": self._collection, **facts}})

    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None:
        self._counters["velo_searches"][self._collection, outcome].inc()
        if hits is not None:
            for name, count in (
                ("velo_queries", queries),
                ("velo_reads", hits.reads),
                ("velo_read_bytes", hits.bytes_read),
                ("velo_shared_reads", hits.shared_reads),
                ("velo_cache_hits", hits.cache_hits),
            ):
                self._counters[name][self._collection,].inc(count)

    def write_ended(self, verb: str, outcome: str, rows: int) -> None:
        self._counters["velo_writes"][self._collection, verb, outcome].inc()
        self._counters["velo_rows_written"][self._collection, verb].inc(rows)


def _said(failure: Failure) -> str:
    return f"{failure.kind}: {failure.message}"


class _Gauge(NamedTuple):
    """Gauges that are read from the routers at each scrape."""

    name: str
    documentation: str
    labels: tuple[str, ...]
    #: How several gateways' values become one.
    mode: Literal["livesum", "livemin", "livemax"]


_ADMITTED = _Gauge("velo_queries_admitted", "Queries admitted and not answered.", ("collection",), "livesum")
_VECTORS = _Gauge("velo_vectors", "Vectors in the collection.", ("collection",), "livemax")
_UP = _Gauge("velo_shard_up", "1 if the shard can be asked.", _SHARD, "livemin")
_WAITING = _Gauge("velo_shard_waiting_requests", "Requests waiting before a shard.", _SHARD, "livesum")
_IN_FLIGHT = _Gauge("velo_shard_calls_in_flight", "Calls a shard works on.", _SHARD, "livesum")
_MEMORY = _Gauge("velo_shard_memory_bytes", "Memory of the shard's index.", _SHARD, "livemax")
_GATEWAYS = _Gauge("velo_gateways", "Gateways that answer on this port.", (), "livesum")

_BUILD = _Gauge("velo_build_info", "1; the labels say which velo answers.", ("version", "python"), "livemax")

_GAUGES = (_BUILD, _GATEWAYS, _ADMITTED, _VECTORS, _UP, _WAITING, _IN_FLIGHT, _MEMORY)


def _now(backend: Backend) -> Iterator[tuple[_Gauge, tuple[str, ...], float]]:
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
        if self._alone:  # forget dropped collections; shared files keep them
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
        self._requests = metrics.counters["velo_http_requests"]
        self._seconds = metrics.histograms["velo_http_request_seconds"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        watched = StatusWatch(send)
        try:
            await self._app(scope, receive, watched)
        finally:
            path = str(getattr(scope.get("route"), "path", "unmatched"))
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._requests[method, path, str(watched.status)].inc()
            self._seconds[path,].observe(time.perf_counter() - started)
