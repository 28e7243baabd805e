"""Every bound of a router and of a gateway in one place."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from velo.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Limits of a router.

    Attributes
    ----------
    queue_queries_max : int
        Admitted queries without an answer; more are refused with ``QueueFullError``.
    queue_wait_max_s : float
        The longest expected wait of an admitted request: the queue divided by the recent rate of the slowest
        shard.
    in_flight_queries_max : int
        Queries in flight at a shard; a larger request is sent alone. Others wait in the router.
    timeout_default_s, timeout_max_s : float
        The deadline of a request that names none, and the longest.
    quiet_s : float
        A shard with requests that is silent for this time gets a probe search.
    trial_s : float
        A shard that does not answer the probe search in this time is silent: new requests go to a replica, or
        are answered without it. After slow probe searches, or with many requests, it gets more time.
    silence_max_s : float
        A shard that is silent for this time, in which probe searches are repeated, is down.
    busy_max_s : float
        A busy shard that completes no search in this time is down, too.
    probe_interval_s, probe_down_interval_s : float
        The interval of health checks and probe searches of a shard that is up, or down.
    probe_timeout_s : float
        The limit of a health check.
    """

    queue_queries_max: int = 4096
    queue_wait_max_s: float = 2.0
    in_flight_queries_max: int = 256
    timeout_default_s: float = 10.0
    timeout_max_s: float = 60.0
    quiet_s: float = 0.04
    trial_s: float = 0.2
    silence_max_s: float = 1.0
    busy_max_s: float = 10.0
    probe_interval_s: float = 2.0
    probe_down_interval_s: float = 0.25
    probe_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one gateway; the router of each collection has limits of its own.

    Attributes
    ----------
    body_bytes_max : int
        Bytes of the body of a request; more is 413.
    body_read_s : float
        Seconds in which it must arrive; longer is 408.
    body_discard_bytes_max : int
        Bytes of a refused body that are still read, so that a sending client sees the answer.
    bodies_bytes_max : int
        Bytes of all bodies that are arriving; more is 429.
    requests_max : int
        Running searches whose bodies have arrived; more is 429.
    queries_max, rows_max : int
        Vectors in one search, rows or ids in one write; more is 413.
    writes_bytes_max : int
        Bytes of the bodies of all running writes; more is 429.
    k_max : int
    hits_max : int
        Vectors times k of one request; more is 413.
    vectors_bytes_max : int
        Bytes of the vectors that an answer may return; more is 413.
    inline_bytes_max : int
        Bodies up to this size are parsed on the event loop, larger ones and long filters in a thread.
    sql_bytes_max, sql_total_bytes_max : int
        Bytes of a filter as SQL text, and of all texts of a request; more is 413. Dicts may be longer.
    headers_read_s : float
        Seconds in which the headers of a request must arrive.
    connections_waiting_max : int
        Connections without a complete request; beyond, the oldest is closed.
    """

    body_bytes_max: int = 32 << 20
    body_read_s: float = 30.0
    body_discard_bytes_max: int = 256 << 20
    bodies_bytes_max: int = 256 << 20
    requests_max: int = 1024
    queries_max: int = 1024
    rows_max: int = 65_536
    writes_bytes_max: int = 256 << 20
    k_max: int = 10_000
    hits_max: int = 1_000_000
    vectors_bytes_max: int = 32 << 20
    inline_bytes_max: int = 64 << 10
    sql_bytes_max: int = 16 << 10
    sql_total_bytes_max: int = 64 << 10
    headers_read_s: float = 10.0
    connections_waiting_max: int = 768

    def __post_init__(self) -> None:
        _check(self)


def _check(limits: RouterLimits | GatewayLimits) -> None:
    for one in dataclasses.fields(limits):
        if not getattr(limits, one.name) > 0:
            raise InvalidArgumentError(f"{one.name} must be above zero", argument=one.name)
