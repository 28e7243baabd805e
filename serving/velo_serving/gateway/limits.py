"""Every bound of the gateway in one place."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from velo.errors import InvalidArgumentError

__all__ = ["GatewayLimits"]


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """What one gateway takes; the router behind each collection has limits of its own.

    Attributes
    ----------
    body_bytes_max : int
        Bytes of a request's body; more is 413.
    body_read_s : float
        Seconds a client may take to send it; longer is 408.
    body_discard_bytes_max : int
        Bytes of a refused body that are still read, so that a client that is still sending sees the answer.
    bodies_bytes_max : int
        Bytes of all bodies that are arriving; what would be above is 429.
    requests_max : int
        Searches under way at once, counted once their bodies are there; more is 429.
    queries_max : int
        Vectors in one request; more is 413.
    rows_max : int
        Rows, or ids, in one write; more is 413.
    writes_bytes_max : int
        Bytes of all bodies of writes under way; what would be above is 429.
    k_max : int
    hits_max : int
        Vectors times k of one request; more is 413.
    vectors_bytes_max : int
        Bytes of the vectors that an answer brings, four a number; what could be more is 413.
    inline_bytes_max : int
        Bodies up to this size are parsed on the event loop, larger ones and long filters in a thread.
    sql_bytes_max : int
        Bytes of a filter as SQL text; more is 413. Long lists travel better as a dict.
    sql_total_bytes_max : int
        Bytes of all different SQL texts of a request.
    headers_read_s : float
        Seconds in which a connection must bring the headers of a request.
    connections_waiting_max : int
        Connections whose request is not there yet; of more, the one that has waited longest ends.
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
        for name in (field.name for field in dataclasses.fields(self)):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name} must be above zero", argument=name)
