"""Every bound of a router in one place."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from velo.errors import InvalidArgumentError

__all__ = ["RouterLimits"]


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Every bound of a router.

    Attributes
    ----------
    queue_queries_max : int
        Queries admitted and not answered yet; more are refused with ``QueueFullError``.
    queue_wait_max_s : float
        A request that would wait longer than this before its search begins is refused, too: what waits,
        divided by the rate at which its slowest shard has answered lately, says how long that would be.
    in_flight_queries_max : int
        Queries that a shard works on at once; a single larger request goes alone. What is above waits here,
        where it can still be taken back.
    timeout_default_s, timeout_max_s : float
        Deadline of a request that names none, and the most it may name.
    quiet_s : float
        A shard that has requests and says nothing for so long is tried by a search of our own.
    trial_s : float
        A shard that does not answer that search either, for so long, is down. One whose searches on trial
        have been slow lately, and one with much in hand, gets more.
    busy_max_s : float
        A shard that is at work, but ends no search for so long, is down, too.
    probe_interval_s, probe_down_interval_s : float
        How often a shard that is up, or down, is asked for its health, and tried.
    probe_timeout_s : float
        How long it may take to answer that.
    """

    queue_queries_max: int = 4096
    queue_wait_max_s: float = 2.0
    in_flight_queries_max: int = 256
    timeout_default_s: float = 10.0
    timeout_max_s: float = 60.0
    quiet_s: float = 0.04
    trial_s: float = 0.2
    busy_max_s: float = 10.0
    probe_interval_s: float = 2.0
    probe_down_interval_s: float = 0.25
    probe_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        for name in (field.name for field in dataclasses.fields(self)):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name} must be above zero", argument=name)
