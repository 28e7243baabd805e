"""Which options to build and to open with: tried on a sample of the vectors, on the machine at hand.

FlashANNS (§4.3) chooses the degree of its graph before it is built: it times reads and computation on indexes
over a sample, with random links. Here the sample's indexes are true ones, since what a degree is worth is
also how many reads a recall takes, and the bits of codes are chosen along with it.

Small indexes are built over the sample for several splits of the bits, then, with the best of them, for
several degrees; rows held out of the sample are searched for with growing lists; and the reads, rounds and
estimates at the recall asked go into the model of :mod:`velo.planning.budgets` with what this machine takes.

The whole has more rows than the sample. Per split of the bits a quarter of the sample is indexed too: what
grows from the quarter to the sample (the list, reads, rounds, and estimates beyond the entry points, which
are 2·√n) is taken to grow on by the same power of the number of rows. From 50,000 to a million SIFT
descriptors, at recall 0.95, that met reads and estimates within 10 % with 16 and more links in memory; with
8 it told 10 % too few reads and 30 % too many estimates. Links take 0.73 bits more each with every doubling.

Processor times are those of searches of the sample's indexes at the recall asked, over what the model makes
of their counts: following many short lists takes more than few long ones. What a sample cannot tell: what
higher degrees are worth in a graph that is much larger; and its codes are nearer to the processor than a
large index's.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from velo import _native
from velo._native.limits import native_constant
from velo.errors import BudgetTooSmallError, CancelledError, InvalidArgumentError
from velo.formats.files import as_source
from velo.index import Index, open_index
from velo.options import (
    LINKS_KEPT_USUAL,
    BuildOptions,
    OpenTuning,
    bits_around,
    bits_within,
    codes_bytes_least,
    fill_search,
    in_range,
    limit_of,
    links_fit,
    memory_bytes,
    whole_number,
)
from velo.planning.budgets import Costs, busy_searches, measure_costs, open_to_measure, usual_costs
from velo.planning.proposal import Proposal, TunedCandidate
from velo.planning.sample import (
    Counts,
    Sample,
    TunedPoint,
    at_recall,
    check_source,
    draw,
    links_bytes_grown,
    quarter_of,
    scratch_folder,
)
from velo.types import Memory, MetricName, PathLike

__all__ = ["DEGREES", "tune"]

#: Degrees that are tried.
DEGREES: Final = (24, 32, 48, 64)

_SAMPLE: Final = 50_000
_SAMPLE_LEAST: Final = 4_000
_SAMPLE_MOST: Final = 1_000_000
_DEGREE_USUAL: Final = BuildOptions.degree

#: Queries a second closer than this are the same, as far as a sample and the model can tell.
_SAME: Final = 0.92

#: The same for what was measured as it went.
_SAME_MEASURED: Final = 0.95

#: Of B = ⌈α·I/T⌉ (VeloANN, §3.1), and its least: as zig/src/search/worker.zig has them.
_ALPHA: Final = 2.0
_IN_FLIGHT_LEAST: Final = 4
#: Not more than so many are tried beyond that B: each takes page buffers, outside the budget.
_IN_FLIGHT_TRIED: Final = 64

#: Lists grow beyond the recall asked for, to this one: so that a plot shows what more would cost.
_RECALL_SHOWN: Final = 0.99

#: How often costs are measured; the least counts.
_TURNS: Final = 3

#: Called with (what is done, steps done, steps in all), at least once a step; returning False cancels.
TuneProgress = Callable[[str, int, int], "bool | None"]


def tune(
    vectors: Any,
    *,
    memory: Memory = "20%",
    recall: float = 0.95,
    k: int = 10,
    metric: MetricName = "l2",
    sample: int = _SAMPLE,
    degrees: Sequence[int] = DEGREES,
    threads: int | None = None,
    seed: int = 0,
    scratch: PathLike | None = None,
    progress: TuneProgress | None = None,
) -> Proposal:
    """Propose how to build and open an index, by small ones over a sample of its vectors.

    At most three splits of the bits and the degrees asked for are tried, with a build over the sample each,
    and a build over a quarter of it for each split: about a minute for 50,000 vectors of 128 dimensions on
    two cores. The sample is held in memory.

    Parameters
    ----------
    vectors : array-like of shape (n, d), memmap, path, Arrow list array, or VectorSource
        As for :func:`velo.build`; at least 1,000 rows.
    memory : int, float or str
        The budget that searches will have, as for :func:`velo.open`; a share is one of n·d·4 bytes.
    recall, k : float, int
        The searches to tune for.
    metric : {"l2", "ip", "cosine"}
    sample : int
        Rows to draw, 4,000 to 1,000,000; all where there are no more. More tell more of a large set, and
        take longer.
    degrees : sequence of int
        Of the graph, 4 to 128; the one nearest to 48 is used to compare splits of the bits.
    threads : int, optional
        Of builds and searches; all cores without it.
    seed : int
        Of the draw and the builds.
    scratch : path, optional
        A folder for the sample's indexes, on the device to tune for; they take some 2 KB a row of the sample
        at 128 dimensions. Without it the folder of the file of vectors, or the current one. What was written
        is removed at the end, however that comes.
    progress : callable, optional
        Called with (what is done, steps done, steps in all); returning False cancels.

    Returns
    -------
    Proposal

    Raises
    ------
    InvalidArgumentError, EmptyError, DtypeError, NotFiniteError, FormatError
        Naming the argument or file.
    BudgetTooSmallError
        The codes alone would not fit; ``needed_bytes`` would do, with links on disk.
    NoSpaceError, PermissionDeniedError
        The folder for scratch.
    CancelledError

    Notes
    -----
    Counts on the sample are scaled to n by how they grew from a quarter of the sample (see this module's
    head); ``sample_reads`` and the others of a candidate are those that were measured. Recall is that of the
    sample. With links on disk nothing is taken to be cached.

    Examples
    --------
    >>> chosen = velo.tune(vectors, memory="50%", sample=4_000, degrees=[24], threads=1)
    >>> velo.build("tuned.velo", vectors, **chosen.build_options).close()
    >>> velo.open("tuned.velo", **chosen.open_options).close()
    """
    fill_search(_native.new("velo_search_options"), k, recall, None, None, None)
    if float(recall) >= 1:
        raise InvalidArgumentError(
            "a recall of 1 reads every vector, whatever the memory: there is nothing to tune",
            argument="recall",
        )
    sample = whole_number(sample, "sample", _SAMPLE_LEAST, _SAMPLE_MOST)
    try:
        tried = sorted({in_range(degree, "degrees", "degree") for degree in degrees})
    except TypeError:
        tried = []
    if not tried:
        raise InvalidArgumentError(f"degrees must be whole numbers, not {degrees!r}", argument="degrees")
    if memory is None:
        raise InvalidArgumentError(
            "memory must be given: it is what options are chosen for", argument="memory"
        )
    usual = min(tried, key=lambda degree: abs(degree - _DEGREE_USUAL))
    options = BuildOptions(metric=metric, threads=threads, seed=seed, degree=usual, links_kept=0)
    source = as_source(vectors)
    check_source(source)
    n, dim = source.shape
    budget = memory_bytes(memory, n, dim)
    splits = bits_around(budget, n, dim)
    usual_bits = bits_within(budget, n, dim)
    if not splits:
        raise _too_small(budget, n, codes_bytes_least(n, dim))
    steps = _Steps(len(splits) + len(tried) + 1 + (len(tried) > 1), progress)
    steps.tell("drawing the sample")
    drawn = draw(source, sample, metric, k, seed)
    with scratch_folder(source, scratch) as folder:
        trial = _Trial(drawn, folder, options, budget, float(recall), steps)
        seen = [trial.take(usual, split) for split in splits]
        fitting = [one for one in seen if one.resident_bytes <= budget]
        if not fitting:
            raise _too_small(budget, n, math.ceil(min(one.resident_bytes for one in seen)))
        by_bits = trial.reckoned(fitting)
        best = by_bits.index(_best(by_bits, usual_bits))
        seen = [fitting[best], *(trial.take(one, fitting[best].bits) for one in tried if one != usual)]
        # The best is timed once more with the other degrees, so that all were timed alike.
        by_degree = trial.reckoned(seen) if len(seen) > 1 else [by_bits[best]]
        chosen = _best(by_degree, usual_bits)
        costs = trial.costs(seen[by_degree.index(chosen)])
        least = _least_in_flight(costs, chosen)
        queries_in_flight = trial.queries_in_flight(seen[by_degree.index(chosen)], least)
    tried_all = (*by_bits[:best], *by_bits[best + 1 :], *by_degree)
    return Proposal(
        chosen=chosen,
        queries_in_flight=queries_in_flight,
        candidates=tuple(sorted(tried_all, key=lambda one: (-one.memory_bits, one.degree))),
        n=n,
        dim=dim,
        metric=metric,
        memory=memory,
        budget_bytes=budget,
        recall=float(recall),
        k=k,
        sample_rows=len(drawn.rows),
        query_count=len(drawn.queries),
        costs=costs,
    )


def _too_small(budget: int, n: int, needed: int) -> BudgetTooSmallError:
    return BudgetTooSmallError(
        f"memory is {budget:,} bytes, but the shortest codes of {n:,} vectors take {needed:,}",
        argument="memory",
        needed_bytes=needed,
    )


def _best(candidates: Sequence[TunedCandidate], usual_bits: tuple[int, int]) -> TunedCandidate:
    reached = [one for one in candidates if one.reached]
    if not reached:
        return max(candidates, key=lambda one: one.recall)
    most = max(one.queries_per_s for one in reached)
    alike = [one for one in reached if one.queries_per_s >= _SAME * most]

    def unusual(one: TunedCandidate) -> tuple[int, bool, float]:
        bits = (one.memory_bits, one.record_bits)
        return abs(one.degree - _DEGREE_USUAL), bits != usual_bits, one.latency_us

    return min(alike, key=unusual)


def _least_in_flight(costs: Costs, one: TunedCandidate) -> int:
    """⌈α·I/T⌉ (VeloANN, §3.1): I the wait for a round of reads, alone, T the work between two of them."""
    work_us = costs.busy_us(one.reads, one.estimates) / max(1.0, one.rounds)
    least = math.ceil(_ALPHA * costs.round_us / max(work_us, 1.0))
    return max(_IN_FLIGHT_LEAST, min(limit_of("queries_in_flight").high, least))


class _Steps:
    """What is being done, for who watches."""

    def __init__(self, count: int, progress: TuneProgress | None) -> None:
        self._count = count
        self._done = -1
        self._progress = progress
        self._name = ""

    def tell(self, name: str) -> None:
        """The next step begins."""
        self._name = name
        self._done += 1
        self.go_on()

    def go_on(self) -> None:
        """It goes on, unless who watches ends it."""
        if self.again() is False:
            raise CancelledError(f"tuning was canceled at {self._name!r}")

    def again(self) -> bool | None:
        """What who watches says to its going on."""
        return None if self._progress is None else self._progress(self._name, max(0, self._done), self._count)


@dataclass(frozen=True)
class _Seen:
    """What the sample told of one candidate."""

    degree: int
    bits: tuple[int, int]
    folder: Path
    build_s: float
    points: list[TunedPoint]
    info: dict[str, Any]
    resident_bytes: float


class _Trial:
    """Builds and searches of candidates, and what they have in common."""

    def __init__(
        self, sample: Sample, folder: Path, options: BuildOptions, budget: int, recall: float, steps: _Steps
    ) -> None:
        self._sample = sample
        self._folder = folder
        self._options = options
        self._budget = budget
        self._recall = recall
        self._steps = steps
        self._growth: dict[tuple[int, int], dict[str, float]] = {}
        self._costs: dict[Path, Costs] = {}
        self._round_us = math.inf
        self._reads_per_s = 0.0

    def take(self, degree: int, bits: tuple[int, int]) -> _Seen:
        """Build one candidate and search it."""
        self._steps.tell(f"degree {degree}, {bits[0]} + {bits[1]} bits")
        options = replace(
            self._options,
            degree=degree,
            links_kept=min(degree, LINKS_KEPT_USUAL),
            memory_bits=bits[0],
            record_bits=bits[1],
            page_links=not links_fit(self._budget, self._sample.n, self._sample.rows.shape[1], bits[0]),
        )
        folder = self._folder / f"{degree}-{bits[0]}-{bits[1]}"
        build_s = self._sample.build(folder, options, self._steps.again)
        with self._sample.open_within(folder, self._budget, options.threads) as index:
            points = self._sample.curve(index, max(self._recall, _RECALL_SHOWN))
            info, resident = index.info(), self._sample.resident_bytes(index)
        if bits not in self._growth:
            self._growth[bits] = self._grown(options, info, points)
        return _Seen(degree, bits, folder, build_s, points, info, resident)

    def reckoned(self, seen: Sequence[_Seen]) -> list[TunedCandidate]:
        """Time searches of these candidates, and say what indexes of all rows would be like.

        The machine may have other work: candidates take turns, and of each the least that was seen counts.
        """
        self._steps.tell("timing searches and reads")
        with open_to_measure(seen[0].folder, self._options.threads) as index:
            device = measure_costs(index, self._options.seed)
        self._round_us = min(self._round_us, device.round_us)
        self._reads_per_s = max(self._reads_per_s, device.reads_per_s)
        queries, k = self._sample.queries, self._sample.k
        for _ in range(_TURNS):
            for one in seen:
                self._steps.go_on()
                list_size = round(at_recall(one.points, self._recall).list_size)
                with self._opened(one.folder, one.info) as index:
                    usual = usual_costs(index, queries)
                    times, reads_per_s = busy_searches(index, queries, usual, k, list_size)
                self._reads_per_s = max(self._reads_per_s, reads_per_s)
                own_costs = self._costs.get(one.folder)
                if own_costs is None or usual.slower(times).query_us < own_costs.query_us:
                    self._costs[one.folder] = usual.slower(times)
        return [self._reckoned(one) for one in seen]

    def costs(self, seen: _Seen) -> Costs:
        """What the machine takes for a candidate's searches, with all rows."""
        own_costs = self._costs[seen.folder]
        entries = _entry_points(self._sample.n) - _entry_points(len(self._sample.rows))
        return replace(
            own_costs,
            round_us=self._round_us,
            reads_per_s=self._reads_per_s,
            estimates_least=own_costs.estimates_least + entries,
        )

    def queries_in_flight(self, seen: _Seen, least: int) -> int:
        """From `least` on, doubled as long as that answers more: waits grow as the device is kept busy."""
        self._steps.tell("trying queries in flight")
        tried = [least << step for step in range(8) if least << step <= max(least, _IN_FLIGHT_TRIED)]
        rates = dict.fromkeys(tried, 0.0)
        queries, k = self._sample.queries, self._sample.k
        list_size = round(at_recall(seen.points, self._recall).list_size)
        for _ in range(_TURNS):
            for count in tried:
                self._steps.go_on()
                with self._opened(seen.folder, seen.info, count) as index:
                    for _ in range(_TURNS):
                        started = time.perf_counter()
                        index.search(queries, k, list_size=list_size)
                        rates[count] = max(rates[count], len(queries) / (time.perf_counter() - started))
        return next(count for count in tried if rates[count] >= _SAME_MEASURED * max(rates.values()))

    def _opened(self, folder: Path, info: dict[str, Any], queries_in_flight: int | None = None) -> Index:
        """An index of a sample with the plan and links of the candidate."""
        tuning = OpenTuning(links_kept=info["links_kept"] or None, queries_in_flight=queries_in_flight)
        return open_index(folder, threads=self._options.threads, plan=info["plan"], tuning=tuning)

    def _reckoned(self, seen: _Seen) -> TunedCandidate:
        n, rows, info = self._sample.n, len(self._sample.rows), seen.info
        own = at_recall(seen.points, self._recall)
        counts = self._of_all(own, self._growth[seen.bits])
        costs = self.costs(seen)
        edges = info["edges_per_vertex"] + info["links_built"]
        return TunedCandidate(
            degree=seen.degree,
            memory_bits=seen.bits[0],
            record_bits=seen.bits[1],
            links_built=info["links_built"],
            plan=info["plan"],
            links_kept=info["links_kept"],
            page_links=info["page_links"],
            memory_bytes=math.ceil(seen.resident_bytes),
            reached=own.recall >= self._recall,
            list_size=counts.list_size,
            recall=counts.recall,
            reads=counts.reads,
            rounds=counts.rounds,
            estimates=counts.estimates,
            sample_list_size=own.list_size,
            sample_reads=own.reads,
            sample_rounds=own.rounds,
            sample_estimates=own.estimates,
            latency_us=costs.latency_us(counts.reads, counts.rounds, counts.estimates),
            queries_per_s=costs.queries_per_s(counts.reads, counts.estimates),
            disk_bytes_per_vector=sum(info["disk_bytes"].values()) / rows + links_bytes_grown(edges, rows, n),
            build_s=seen.build_s * n * math.log(n) / (rows * math.log(rows)),
            sample_build_s=seen.build_s,
            sample_points=tuple(seen.points),
        )

    def _grown(
        self, options: BuildOptions, info: dict[str, Any], points: Sequence[Counts]
    ) -> dict[str, float]:
        """The power of the number of rows by which each count grew from a quarter of the sample."""
        quarter = quarter_of(self._sample, self._options.seed)
        folder = self._folder / "quarter"
        quarter.build(folder, options, self._steps.again)
        with self._opened(folder, info) as index:
            fewer = quarter.curve(index, self._recall)
        shutil.rmtree(folder)
        recall = min(self._recall, points[-1].recall, fewer[-1].recall)
        small = _parts(at_recall(fewer, recall), len(quarter.rows))
        large = _parts(at_recall(points, recall), len(self._sample.rows))
        times = len(self._sample.rows) / len(quarter.rows)
        return {name: min(1.0, max(0.0, math.log(large[name] / small[name], times))) for name in small}

    def _of_all(self, seen: Counts, growth: dict[str, float]) -> Counts:
        """Counts on the sample as they would be with all rows."""
        rows, n = len(self._sample.rows), self._sample.n
        parts = {name: value * (n / rows) ** growth[name] for name, value in _parts(seen, rows).items()}
        return Counts(
            list_size=parts["list_size"],
            recall=seen.recall,
            reads=parts["reads"],
            rounds=parts["rounds"],
            estimates=_entry_points(n) + parts["walk"],
        )


def _entry_points(rows: int) -> float:
    """Where a search starts (zig/src/graph/entry.zig): as many as it looks at, each of which is estimated."""
    return min(2 * math.sqrt(rows), native_constant("entries_looked"))


def _parts(counts: Counts, rows: int) -> dict[str, float]:
    """What grows each in its own way; never 0."""
    return {
        "list_size": counts.list_size,
        "reads": max(counts.reads, 0.1),
        "rounds": max(counts.rounds, 0.1),
        "walk": max(1.0, counts.estimates - _entry_points(rows)),
    }
