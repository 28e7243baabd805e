"""Answers that take several searches, written once for callers that block and for those that wait.

A script is a generator: it yields what to search for, is sent what was found, and returns its answer.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from velo.errors import InvalidArgumentError
from velo.options import in_range, k_of_one_search
from velo.search.answer import COUNTERS
from velo.search.request import Request
from velo.types import AnyArray

#: Hits that one search of a script may bring, over all its queries: bounds what a script holds at once.
HITS_AT_ONCE: Final = 1 << 22

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One search of a script: native queries, k, and a compiled filter (or None) for each.

    With `scan` it looks at the codes of all rows that pass, unless the caller chose how filters are met.
    """

    queries: AnyArray
    k: int
    filters: Sequence[Any]
    scan: bool = False


@dataclass(slots=True, eq=False)
class CombinedHits:
    """The combined hits of several searches, shaped like a :class:`Request`."""

    vertices: AnyArray
    distances: AnyArray
    counts: AnyArray
    counters: dict[str, AnyArray]

    @classmethod
    def none(cls, count: int, k: int, counters: dict[str, AnyArray]) -> CombinedHits:
        vertices = np.full((count, k), -1, np.int64)
        return cls(vertices, np.full((count, k), np.inf, np.float32), np.zeros(count, np.uint32), counters)

    @property
    def k(self) -> int:
        """Places a query."""
        return int(self.vertices.shape[1])

    def stats(self) -> dict[str, AnyArray]:
        """The counters of all searches, summed for each query."""
        return self.counters


Script: TypeAlias = Generator[Round, CombinedHits | Request, Answer]
#: The same once its searches were made into requests: of one search, or of a script.
Requests: TypeAlias = Generator[Request, Request, Answer]


def requests_of(script: Script[Answer], prepare: Callable[[Round], Request]) -> Requests[Answer]:
    """A script whose searches are made into requests."""
    try:
        step = next(script)
        while True:
            step = script.send((yield prepare(step)))
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer


def drive(requests: Requests[Answer], run: Callable[[Request], Request]) -> Answer:
    """Have requests answered one after another, blocking."""
    try:
        step = next(requests)
        while True:
            step = requests.send(run(step))
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer


async def drive_async(requests: Requests[Answer], run: Callable[[Request], Awaitable[Request]]) -> Answer:
    """The same, awaiting each."""
    try:
        step = next(requests)
        while True:
            step = requests.send(await run(step))
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer


def blocks(rows: Sequence[int], k: int) -> Generator[Sequence[int], None, None]:
    """`rows` in blocks whose hits stay below ``HITS_AT_ONCE``."""
    step = max(1, HITS_AT_ONCE // k)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


@dataclass(slots=True, eq=False)
class Totals:
    """The counters of all searches of a script, summed for each query."""

    count: int
    stats: dict[str, AnyArray] = field(init=False)

    def __post_init__(self) -> None:
        self.stats = {name: np.zeros(self.count, np.uint64) for name in COUNTERS}

    def add(self, rows: Sequence[int], request: CombinedHits | Request) -> None:
        """Count a search whose queries were `rows`, which may repeat."""
        for name, values in request.stats().items():
            np.add.at(self.stats[name], np.asarray(rows, np.int64), values.astype(np.uint64))


#: Memory of the known rows of a block of queries; a block has at least one query.
_KNOWN_BYTES: Final = 1 << 26

#: From a query's filter and a bool for each vertex, true where it is known, to a filter without those.
Exclude = Callable[[Any, AnyArray], Any]


def page_of(queries: AnyArray, k: int, filters: Sequence[Any], known: AnyArray, exclude: Exclude) -> Round:
    """The search for the k nearest of a query that are not known."""
    return Round(queries, k, [exclude(filters[0], known)], scan=True)


def page_script(queries: AnyArray, k: Any, row_count: int, filters: Sequence[Any]) -> Script[CombinedHits]:
    """The script of a search for more neighbors than one search brings."""
    wanted = in_range(k, "k")
    count = len(queries)
    totals = Totals(count)
    hits = CombinedHits.none(count, wanted, totals.stats)
    most = max(1, min(wanted, row_count))
    for rows in blocks(range(count), most):
        found = yield Round(queries[list(rows)], most, [filters[row] for row in rows])
        totals.add(rows, found)
        hits.vertices[list(rows), :most] = found.vertices
        hits.distances[list(rows), :most] = found.distances
        hits.counts[list(rows)] = found.counts
    return hits


def in_pages(script: Script[Answer], row_count: int, exclude: Exclude) -> Script[Answer]:
    """`script`, whose searches may ask for any number of neighbors, by searches that the library can do."""
    try:
        step = next(script)
        while True:
            found: CombinedHits | Request
            if step.k <= k_of_one_search():
                found = yield step
            else:
                found = yield from _pages(step, row_count, exclude)
            step = script.send(found)
    except StopIteration as ended:
        answer: Answer = ended.value
        return answer


def _pages(
    step: Round, row_count: int, exclude: Exclude
) -> Generator[Round, CombinedHits | Request, CombinedHits]:
    count = len(step.queries)
    totals = Totals(count)
    hits = CombinedHits.none(count, step.k, totals.stats)
    vertices, distances, counts = hits.vertices, hits.distances, hits.counts
    at_once = max(1, _KNOWN_BYTES // max(1, row_count))
    for start in range(0, count, at_once):
        rows = list(range(start, min(count, start + at_once)))
        known = np.zeros((len(rows), row_count), bool)
        first = True
        open_rows = rows
        while open_rows:
            # The last page may be shorter; all queries of a search ask for as many.
            k = min(k_of_one_search(), step.k - int(counts[open_rows].min()))
            filters = [
                step.filters[row] if first else exclude(step.filters[row], known[row - start])
                for row in open_rows
            ]
            found = yield Round(step.queries[open_rows], k, filters, scan=not first)
            totals.add(open_rows, found)
            further = []
            for place, row in enumerate(open_rows):
                had, brought = int(counts[row]), int(found.counts[place])
                kept = min(brought, step.k - had)
                vertices[row, had : had + kept] = found.vertices[place, :kept]
                distances[row, had : had + kept] = found.distances[place, :kept]
                known[row - start, found.vertices[place, :kept]] = True
                counts[row] = had + kept
                if brought == k and had + kept < step.k:
                    further.append(row)
            open_rows, first = further, False
    # A row that an early page missed came with a later one.
    order = np.argsort(distances, axis=1, kind="stable")
    return CombinedHits(
        np.take_along_axis(vertices, order, 1), np.take_along_axis(distances, order, 1), counts, totals.stats
    )


#: Hits of a query at most, where the caller names no limit.
LIMIT_DEFAULT: Final = 10_000
_FIRST: Final = 16
_GROWTH: Final = 4


@dataclass(slots=True, eq=False)
class Ranges:
    """The hits of each query: vertices, distances, and whether the limit cut them short."""

    vertices: list[AnyArray]
    distances: list[AnyArray]
    limited: AnyArray
    stats: dict[str, AnyArray]


def check_radius(radius: Any, limit: Any) -> tuple[float, int]:
    """Both as numbers, or an error that names the one that is none."""
    try:
        bad = isinstance(radius, bool) or not isinstance(radius, numbers.Real) or math.isnan(float(radius))
    except OverflowError:  # a whole number beyond all floats
        bad = True
    if bad:
        raise InvalidArgumentError(f"radius must be a distance, not {radius!r}", argument="radius")
    return float(radius), in_range(limit, "limit")


def range_script(
    queries: AnyArray, radius: float, limit: int, row_count: int, filters: Sequence[Any], exclude: Exclude
) -> Script[Ranges]:
    count = len(queries)
    totals = Totals(count)
    nothing = np.zeros(0, np.int64), np.zeros(0, np.float32)
    vertices, distances = [nothing[0]] * count, [nothing[1]] * count
    limited = np.zeros(count, bool)
    most = min(limit, row_count)
    k = min(_FIRST, most)
    open_rows = list(range(count)) if most else []
    while open_rows:
        further: list[int] = []
        for rows in blocks(open_rows, k):
            request = yield Round(queries[list(rows)], k, [filters[row] for row in rows])
            totals.add(rows, request)
            for place, row in enumerate(rows):
                inside = _inside(request, place, radius)
                vertices[row] = request.vertices[place, :inside].copy()
                distances[row] = request.distances[place, :inside].copy()
                if inside < k or k == most:
                    limited[row] = inside == k and k < row_count
                else:
                    further.append(row)  # all of them lie within: more may
        open_rows = further
        if k == k_of_one_search():
            break
        k = min(k * _GROWTH, most, k_of_one_search())
    for row in open_rows:
        pages = [(vertices[row], distances[row])]
        known = np.zeros(row_count, bool)
        had = k
        inside = k
        while inside == k and had < most:
            known[pages[-1][0]] = True
            k = min(k_of_one_search(), most - had)
            request = yield page_of(queries[[row]], k, [filters[row]], known, exclude)
            totals.add([row], request)
            inside = _inside(request, 0, radius)
            pages.append((request.vertices[0, :inside].copy(), request.distances[0, :inside].copy()))
            had += inside
        limited[row] = had == most and most < row_count
        # A row that an early page missed came with a later one.
        found = np.concatenate([segment for _, segment in pages])
        order = np.argsort(found, kind="stable")
        vertices[row] = np.concatenate([segment for segment, _ in pages])[order]
        distances[row] = found[order]
        k = k_of_one_search()
    return Ranges(vertices, distances, limited, totals.stats)


def _inside(answer: CombinedHits | Request, place: int, radius: float) -> int:
    """The number of hits of a query within the radius."""
    return int((answer.distances[place, : answer.counts[place]] <= radius).sum())
