"""Prometheus metrics of a gateway, in a registry of its own: several apps can live in one process.

Several gateways of one port write files to one folder, in prometheus_client's multiprocess mode.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

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


#: Gauges, which are read at each scrape: labels, and how the values of several gateways become one.
_GAUGES: tuple[tuple[str, str, tuple[str, ...], Literal["livesum", "livemin", "livemax"]], ...] = (
    ("velo_build_info", "1; the labels say which velo answers.", ("version", "python"), "livemax"),
    ("velo_gateways", "Gateways that answer on this port.", (), "livesum"),
    ("velo_queries_admitted", "Queries admitted and not answered.", ("collection",), "livesum"),
    ("velo_vectors", "Vectors in the collection.", ("collection",), "livemax"),
    ("velo_shard_up", "1 if the shard can be asked.", _SHARD, "livemin"),
    ("velo_shard_waiting_requests", "Requests waiting before a shard.", _SHARD, "livesum"),
    ("velo_shard_calls_in_flight", "Calls a shard works on.", _SHARD, "livesum"),
    ("velo_shard_memory_bytes", "Memory of the shard's index.", _SHARD, "livemax"),
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
        self._gauges = {
            name: Gauge(name, text, labels, registry=registry, multiprocess_mode=mode)
            for name, text, labels, mode in _GAUGES
        }
        self._folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self._backend = backend
        backend.observe(lambda name: _RouterObserver(self, name))

    def render(self) -> bytes:
        """All metrics in Prometheus' text format, of all gateways of this port."""
        self._write_gauges()
        if self._folder is None:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        collector: Any = MultiProcessCollector
        collector(registry, self._folder)
        return generate_latest(registry)

    async def keep(self) -> None:
        """Write gauges regularly, for the scrapes of other gateways."""
        while self._folder is not None:
            self._write_gauges()
            await asyncio.sleep(GAUGES_S)

    def _write_gauges(self) -> None:
        if self._folder is None:  # forget dropped collections; shared files keep them
            for name, _, labels, _ in _GAUGES:
                if labels:
                    self._gauges[name].clear()
        self._gauges["velo_build_info"].labels(velo.__version__, platform.python_version()).set(1)
        self._gauges["velo_gateways"].set(1)
        for served in self._backend.collections:
            router = served.router
            self._gauges["velo_queries_admitted"].labels(served.name).set(router.queries_admitted)
            self._gauges["velo_vectors"].labels(served.name).set(served.rows)
            for shard in router.shards():
                for name, value in (
                    ("velo_shard_up", shard.state == "up"),
                    ("velo_shard_waiting_requests", shard.waiting_requests),
                    ("velo_shard_calls_in_flight", shard.calls_in_flight),
                    ("velo_shard_memory_bytes", 0 if shard.health is None else shard.health.memory_bytes),
                ):
                    self._gauges[name].labels(served.name, shard.name).set(value)


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
