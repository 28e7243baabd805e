"""What each budget would buy: how an open would then divide it, and what searches would be like.

Counts (reads, rounds, estimates) come from the calibration of the index; times from this machine: reads of
its own ``pages.bin``, and searches that differ in the number of estimates and of reads.

A query takes what its preparation does, ``estimates`` times the time of one, ``reads`` times that of taking
in a page, and waits ``rounds`` times for the device. Queries a second are bounded by the workers and by what
the device answers.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo import _native
from velo.errors import BudgetTooSmallError, InvalidArgumentError, UnsupportedError
from velo.folder.live import data_folders
from velo.folder.manifest import read_manifest
from velo.index import Index, open_index
from velo.options import LINKS_STEPS, PLAN_CODES, OpenTuning, fill_search, folder_path, memory_bytes
from velo.types import AnyArray, Memory, PathLike

__all__ = [
    "SHARES",
    "Costs",
    "PlannedBudget",
    "measure_costs",
    "open_to_measure",
    "plans",
    "reads_per_s",
]

#: Budgets of the table, as shares of the float32 vectors.
SHARES: Final = (0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50)

_STEP: Final = 0.05
_READS: Final = 200
_READERS: Final = 32
_QUERIES: Final = 128
_ALONE: Final = 32
_REPEATS: Final = 3
_LIST_SHORT: Final = 10
_LIST_LONG: Final = 128
#: A probe is repeated until two agree, so many times at most.
_PROBES_MAX: Final = 6
_USUAL_READS: Final = 8.0
_USUAL_ESTIMATES: Final = 1500.0
_SAME_WORK: Final = 1.1
_SAME_DEVICE: Final = 1.25
_PLANS: Final = {code: name for name, code in PLAN_CODES.items()}


@dataclass(frozen=True)
class Costs:
    """What this machine takes.

    Attributes
    ----------
    round_us : float
        Time that a query which is alone waits for the reads of a round, microseconds.
    reads_per_s : float
        Reads of a page a second from 32 threads, or by searches if these reach more.
    query_us, estimates_least : float
        Processor time of a query with the shortest list, but for its pages, and the distances it estimates:
        most are those of entry points, which lie side by side.
    estimate_ns : float
        Processor time of a distance beyond them, with its share of following the link that led there.
    page_us : float
        Processor time of asking for a page and scoring what it holds.
    threads : int
        Workers.
    agreed : bool
        False: no two probes came to the same, so something else kept the machine busy.
    """

    round_us: float
    reads_per_s: float
    query_us: float
    estimates_least: float
    estimate_ns: float
    page_us: float
    threads: int
    agreed: bool = True

    def agrees(self, other: Costs) -> bool:
        """Whether both say the same: a tenth apart at most, of the device and its wait a quarter."""
        pairs = (
            (self.usual_us, other.usual_us, _SAME_WORK),
            (self.reads_per_s, other.reads_per_s, _SAME_DEVICE),
            (self.round_us, other.round_us, _SAME_DEVICE),
        )
        return all(max(mine, theirs) <= most * min(mine, theirs) for mine, theirs, most in pairs)

    @property
    def usual_us(self) -> float:
        """Processor time of a usual query."""
        return self.busy_us(_USUAL_READS, _USUAL_ESTIMATES)

    def slower(self, times: float) -> Costs:
        """Of a processor that takes so many times as long."""
        return replace(
            self,
            query_us=self.query_us * times,
            estimate_ns=self.estimate_ns * times,
            page_us=self.page_us * times,
        )

    def busy_us(self, reads: float, estimates: float) -> float:
        """Processor time of a query."""
        further = max(0.0, estimates - self.estimates_least)
        return self.query_us + further * self.estimate_ns / 1e3 + reads * self.page_us

    def latency_us(self, reads: float, rounds: float, estimates: float) -> float:
        """Mean time of a query that is alone."""
        return self.busy_us(reads, estimates) + rounds * self.round_us

    def queries_per_s(self, reads: float, estimates: float) -> float:
        """What all workers answer, unless the device has to be waited for."""
        by_workers = self.threads * 1e6 / max(self.busy_us(reads, estimates), 1e-3)
        return min(by_workers, self.reads_per_s / reads) if reads > 0 else by_workers


#: As measured with 128 dimensions, 4 + 5 bits, 16 links a vertex.
_USUAL: Final = Costs(
    round_us=100.0,
    reads_per_s=100_000.0,
    query_us=24.0,
    estimates_least=0.0,
    estimate_ns=62.0,
    page_us=3.5,
    threads=1,
)


@dataclass(frozen=True)
class PlannedBudget:
    """What one budget buys; ``recall`` and all that follows is None where the index was not calibrated.

    Attributes
    ----------
    share, budget_bytes : float, int
        Of n·d·4 bytes, and in bytes.
    needed_bytes : int or None
        The least that opens; all else is None then.
    plan : str or None
    memory_bits, links_kept : int or None
        An open may keep one step of links less: how long shorter lists get is an estimate.
    memory_bytes : dict of str to int
        Codes, links, cache and page directory.
    list_size, recall, reads, rounds : optional
        Of a search for the recall asked, queries never seen before.
    latency_us, queries_per_s : optional
    more : dict of str to float, or None
        What another 5 % of the vectors' size would make of reads, rounds, latency and queries a second.
    """

    share: float
    budget_bytes: int
    needed_bytes: int | None = None
    plan: str | None = None
    memory_bits: int | None = None
    links_kept: int | None = None
    memory_bytes: dict[str, int] | None = None
    list_size: int | None = None
    recall: float | None = None
    reads: float | None = None
    rounds: float | None = None
    latency_us: float | None = None
    queries_per_s: float | None = None
    more: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def measure_costs(index: Index, seed: int = 0) -> Costs:
    """Time the device at the index's own file, and searches of the index; some seconds.

    The probe is repeated until two of them agree, for what else the machine does falls into some of them;
    the faster of the two counts. What a query, an estimate and a page take in relation to each other is
    taken from a million SIFT descriptors; how fast this machine is, with these vectors, is measured.

    Parameters
    ----------
    index : Index
    seed : int

    Returns
    -------
    Costs
    """
    probes: list[Costs] = []
    while len(probes) < _PROBES_MAX:
        probes.append(_probe(index, seed + len(probes)))
        quick = sorted(probes, key=lambda one: one.usual_us)
        for one in quick:
            if any(other is not one and other.agrees(one) for other in probes):
                return one
    return replace(quick[0], agreed=False)


def _probe(index: Index, seed: int) -> Costs:
    info = index.info()
    random = np.random.default_rng(seed)
    queries = random.normal(size=(_QUERIES, index.dim)).astype(np.float32)
    usual = replace(
        _usual_costs(index, queries), reads_per_s=reads_per_s(index.path / "pages.bin", info, random)
    )
    times, rate = _busy_searches(index, queries, usual)
    costs = replace(usual.slower(times), reads_per_s=max(usual.reads_per_s, rate))
    return replace(costs, round_us=_round_us(index, queries, costs))


def _usual_costs(index: Index, queries: AnyArray) -> Costs:
    """What a usual machine takes, with the least that searches of this index estimate."""
    least = float(index.search(queries, 10, list_size=_LIST_SHORT).stats["estimates"].mean())
    return replace(_USUAL, estimates_least=least, threads=int(index.info()["threads"]))


def _busy_searches(index: Index, queries: AnyArray, usual: Costs) -> tuple[float, float]:
    """(Processor time of searches over what `usual` makes of their counts, reads a second)."""
    ratios, rates = [], []
    for _ in range(_REPEATS):
        begin, started = time.perf_counter(), time.process_time()  # of all workers, whatever else runs
        stats = index.search(queries, 10, list_size=_LIST_LONG).stats
        busy_us = (time.process_time() - started) * 1e6 / len(queries)
        pages = float((stats["reads"] + stats["shared_reads"]).mean())
        ratios.append(busy_us / usual.busy_us(pages, float(stats["estimates"].mean())))
        rates.append(float(stats["reads"].sum()) / (time.perf_counter() - begin))
    return min(ratios), max(rates)


def _round_us(index: Index, queries: AnyArray, costs: Costs) -> float:
    """Median wait for a round by queries that are alone: what their work does not account for."""
    waits = []
    for query in queries[:_ALONE]:
        started = time.perf_counter()
        result = index.search(query, 10, list_size=_LIST_SHORT)
        taken_us = (time.perf_counter() - started) * 1e6
        reads, rounds, estimates = (float(result.stats[name][0]) for name in ("reads", "rounds", "estimates"))
        waits.append(max(0.0, taken_us - costs.busy_us(reads, estimates)) / max(1.0, rounds))
    return float(np.median(waits))


def reads_per_s(path: Path, info: dict[str, Any], random: np.random.Generator) -> float:
    """Reads of a page a second from many threads."""
    size, pages = int(info["page_size"]), int(info["page_count"])
    flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if info["device"]["direct"] else 0)
    file = os.open(path, flags)
    try:
        places = (1 + random.integers(pages, size=(_READERS, _READS))) * size

        def read_all(offsets: Sequence[int]) -> None:
            with mmap.mmap(-1, size) as buffer:  # aligned, as O_DIRECT wants it
                for offset in offsets:
                    os.preadv(file, [buffer], int(offset))

        with ThreadPoolExecutor(_READERS) as readers:
            started = time.perf_counter()
            list(readers.map(read_all, places.tolist()))
            return _READERS * _READS / (time.perf_counter() - started)
    finally:
        os.close(file)


def plans(
    path: PathLike,
    *,
    memory: Memory | None = None,
    recall: float = 0.95,
    k: int = 10,
    threads: int | None = None,
    costs: Costs | None = None,
) -> list[PlannedBudget]:
    """What budgets of 10 to 50 % of the float32 vectors would buy.

    Parameters
    ----------
    path : path
        An index. Of one that was written to the largest part is planned, with its share of each budget: a
        search reads there, and little more in other parts.
    memory : int, float or str, optional
        A further budget for the table.
    recall, k : float, int
        Of the searches.
    threads : int, optional
        Workers of the searches; all cores without it.
    costs : Costs, optional
        Measured before; measured now without it.

    Returns
    -------
    list of PlannedBudget
        By ascending budget.

    Raises
    ------
    UnsupportedError
        No part was made yet of the rows that were written.

    Examples
    --------
    >>> for budget in velo.plans("shop.velo"):
    ...     if budget.plan is not None:
    ...         print(f"{budget.share:.0%}: {budget.plan}, {budget.reads:.1f} reads a query")
    20%: links_on_disk, ... reads a query
    25%: links_in_memory, ... reads a query...
    """
    with open_to_measure(path, threads) as index:
        own_costs = measure_costs(index) if costs is None else costs
        whole = index.n * index.dim * 4
        budgets = {int(share * whole) for share in SHARES}
        if memory is not None:
            rows = sum(map(_rows_of, data_folders(folder_path(path))))
            budgets.add(memory_bytes(memory, rows, index.dim) * index.n // rows)
        return [_with_next(index, budget, whole, recall, k, own_costs) for budget in sorted(budgets)]


def open_to_measure(path: PathLike, threads: int | None = None) -> Index:
    """The index with few links in memory: most of a long search is estimates then, and little is loaded.

    Of one that was written to, its largest part.
    """
    folders = data_folders(folder_path(path))
    if not folders:
        raise UnsupportedError(f"{path} has no part yet that could be measured: flush it first")
    part = folders[0] if len(folders) == 1 else max(folders, key=_rows_of)
    try:
        return open_index(part, threads=threads, tuning=OpenTuning(links_kept=LINKS_STEPS[-1]))
    except InvalidArgumentError as error:
        if error.argument != "links_kept":
            raise
        return open_index(part, threads=threads)  # it has fewer


def _rows_of(part: Path) -> int:
    return read_manifest(part).row_count


def _with_next(index: Index, budget: int, whole: int, recall: float, k: int, costs: Costs) -> PlannedBudget:
    one = _bought(index, budget, whole, recall, k, costs)
    if one.reads is None:
        return one
    next_one = _bought(index, budget + int(_STEP * whole), whole, recall, k, costs)
    names = ("reads", "rounds", "latency_us", "queries_per_s")
    return PlannedBudget(**{**asdict(one), "more": {name: getattr(next_one, name) for name in names}})


def _bought(index: Index, budget: int, whole: int, recall: float, k: int, costs: Costs) -> PlannedBudget:
    options = _native.new("velo_search_options")
    fill_search(options, k, recall, None, None, None)
    split, expected = _native.new("velo_memory_plan"), _native.new("velo_expectation")
    share = budget / whole
    try:
        with index._gate.inside():
            _native.check(
                _native.lib.velo_plan_for(index._handle, budget, options, split, expected), "memory"
            )
    except BudgetTooSmallError as error:
        return PlannedBudget(share, budget, needed_bytes=error.needed_bytes)
    parts = {name: int(getattr(split, f"{name}_bytes")) for name in ("codes", "links", "cache", "pages")}
    shape: dict[str, Any] = {
        "plan": _PLANS[split.plan],
        "memory_bits": index.info()["memory_bits"],
        "links_kept": int(split.links_kept),
        "memory_bytes": parts,
        "list_size": int(expected.list_size),
    }
    if not expected.calibrated:
        return PlannedBudget(share, budget, **shape)
    reads, rounds, estimates = float(expected.reads), float(expected.rounds), float(expected.estimates)
    return PlannedBudget(
        share,
        budget,
        **shape,
        recall=float(expected.recall),
        reads=reads,
        rounds=rounds,
        latency_us=costs.latency_us(reads, rounds, estimates),
        queries_per_s=costs.queries_per_s(reads, estimates),
    )
