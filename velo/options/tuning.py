"""Tuning of an open index and of searches, and the effort that a search was asked for."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, NamedTuple

from velo.errors import InvalidArgumentError
from velo.options.checks import UINT32_MAX, in_range, k_of_one_search, limit_of, real_number, whole_number
from velo.options.codes import FILTER_PLANS, code_of


@dataclass(frozen=True, kw_only=True)
class OpenTuning:
    """Tuning of an open index beyond its budget; velo chooses values that are left open.

    Attributes
    ----------
    links_kept : int, optional
        Links of a vertex kept in memory: as many as were built, or 8 and more, rounded down to a step of 24,
        20, 16, 14, 12, 10 and 8. With 6, 4 or 2 neighbors share a list. With ``plan="walk"`` codes of each
        page, one of the numbers that the index has.
    queries_in_flight : int, optional
        Queries that a worker interleaves; without it as many as cover the device's latency, as measured while
        running, at most 16.
    queue_depth : int, optional
        Reads in flight of a worker.
    buffered : bool
        Read through the system's page cache even if O_DIRECT works.
    cache_share : float, optional
        Share of the budget for the cache, at most 0.95: of pages, or of records with links on disk.
    gpu_queries : int, optional
        With `device`: calls of fewer queries stay on the CPU; by default 16 times the square of
        the threads, at least 64.
    simulated_seed, simulated_faults : int
        For the simulated device of the test library.
    """

    links_kept: int | None = None
    queries_in_flight: int | None = None
    queue_depth: int | None = None
    buffered: bool = False
    cache_share: float | None = None
    gpu_queries: int | None = None
    simulated_seed: int = 0
    simulated_faults: int = 0

    def __post_init__(self) -> None:
        if self.links_kept is not None:
            whole_number(self.links_kept, "links_kept", 1, limit_of("links_kept").high)
        for name in ("queries_in_flight", "queue_depth"):
            if getattr(self, name) is not None:
                in_range(getattr(self, name), name)
        if self.cache_share is not None:
            least, most = limit_of("cache_share_percent")
            real_number(self.cache_share, "cache_share", least / 100, most / 100)
        if self.gpu_queries is not None:
            whole_number(self.gpu_queries, "gpu_queries", 1, UINT32_MAX)
        whole_number(self.simulated_seed, "simulated_seed", 0, 2**64 - 1)
        whole_number(self.simulated_faults, "simulated_faults", 0, UINT32_MAX)

    def fill(self, struct: Any) -> None:
        """Write these into a ``velo_open_options``."""
        struct.links_kept = self.links_kept or 0
        struct.queries_in_flight = self.queries_in_flight or 0
        struct.queue_depth = self.queue_depth or 0
        struct.buffered = int(self.buffered)
        struct.cache_share = -1.0 if self.cache_share is None else self.cache_share
        struct.gpu_queries = self.gpu_queries or 0
        struct.simulated_seed = self.simulated_seed
        struct.simulated_faults = self.simulated_faults


@dataclass(frozen=True, kw_only=True)
class SearchTuning:
    """Tuning of a search beyond ``recall`` and ``list_size``, for benchmarks and experiments.

    Attributes
    ----------
    beam_width : int, optional
        Links on disk: how many of the nearest candidates are read ahead, and expanded if they are in memory
        already. 4 by default, at most 64.
    burst_max : int, optional
        Pages of the first burst at most.
    sigma : float, optional
        A candidate is read if its estimate is within this many standard deviations of the k-th.
    filter_plan : {"auto", "late", "early", "gate", "scan"}
        How a search applies its filter. "auto" chooses by cost between the last two; "late" reads and scores
        every candidate and tests the filter on results, as engines that post-filter do; "gate" reads only
        rows that pass and navigates through the rest in memory (with links on disk it is "late"); "scan"
        compares the codes of all rows that pass.
    count_used : bool
        Count ``records_used``, which is 0 otherwise.
    """

    beam_width: int | None = None
    burst_max: int | None = None
    sigma: float | None = None
    filter_plan: str = "auto"
    count_used: bool = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "burst_max"):
            if getattr(self, name) is not None:
                in_range(getattr(self, name), name)
        if self.sigma is not None:
            real_number(self.sigma, "sigma", 1e-9, limit_of("sigma").high)  # 0 is the library's own choice
        code_of(FILTER_PLANS, self.filter_plan, "filter_plan")

    def fill(self, struct: Any) -> None:
        """Write these into a ``velo_search_options``."""
        struct.beam_width = self.beam_width or 0
        struct.burst_max = self.burst_max or 0
        struct.sigma = self.sigma or 0.0
        struct.filter_plan = FILTER_PLANS[self.filter_plan]
        struct.count_used = int(self.count_used)


class Effort(NamedTuple):
    """The effort of a search, as requested; see :meth:`velo.Index.search`."""

    recall: float | None = None
    list_size: int | None = None
    timeout_s: float | None = None
    tuning: SearchTuning | None = None
    exact: bool | None = None


def fill_search(
    struct: Any,
    k: Any,
    recall: Any,
    list_size: Any,
    timeout_s: Any,
    tuning: SearchTuning | None,
    exact: Any = None,
) -> None:
    """Check what a search was asked for and write it into a ``velo_search_options``."""
    struct.k = whole_number(k, "k", limit_of("k").low, k_of_one_search())
    if recall is not None:
        if isinstance(recall, bool) or not isinstance(recall, numbers.Real) or not 0.0 < float(recall) <= 1.0:
            raise InvalidArgumentError(
                f"recall must be above 0 and at most 1, not {recall!r}", argument="recall"
            )
        struct.recall = float(recall)
    if list_size is not None:
        struct.list_size = in_range(list_size, "list_size")
    if timeout_s is not None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real) or not float(timeout_s) > 0:
            raise InvalidArgumentError(
                f"timeout_s must be more than 0 seconds, not {timeout_s!r}", argument="timeout_s"
            )
        # No search lasts an hour; the bound keeps infinity and its like out of the integer.
        struct.timeout_us = max(1, int(min(float(timeout_s), 3600.0) * 1e6))
    if exact is not None:
        if not isinstance(exact, bool):
            raise InvalidArgumentError(f"exact must be True, False or None, not {exact!r}", argument="exact")
        struct.exact = 1 if exact else -1
    if tuning is not None:
        tuning.fill(struct)
