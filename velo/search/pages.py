"""More neighbors than one search of the library brings: pages of them, each without those that are known.

The library holds ``VELO_K_MAX`` results a query, in memory that it allocates when an index is opened.
What is asked beyond that comes in further searches: each leaves out the rows that are known and looks at the
codes of all others. They allocate a bit for every row of the index, and the answer, which ordinary searches
do not.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import numpy as np

from velo.options import in_range, k_of_one_search
from velo.search.request import Request
from velo.search.script import Answer, CombinedHits, Round, Script, Totals, blocks
from velo.types import AnyArray

__all__ = ["Exclude", "in_pages", "page_of", "page_script"]

#: Queries whose known rows are held at a time take so many bytes, or are one.
_KNOWN_BYTES: Final = 1 << 26

#: From a query's filter and a bool for each vertex, true where it is known, to a filter without those.
Exclude = Callable[[Any, AnyArray], Any]


def page_of(queries: AnyArray, k: int, filters: Sequence[Any], known: AnyArray, exclude: Exclude) -> Round:
    """The search for the k nearest of a query that are not known."""
    return Round(queries, k, [exclude(filters[0], known)], scan=True)


def page_script(queries: AnyArray, k: Any, row_count: int, filters: Sequence[Any]) -> Script[CombinedHits]:
    """The script of a search for more neighbors than one search brings.

    Parameters
    ----------
    queries : ndarray of shape (nq, dim)
    k : int
    row_count : int
        Of the index: no query has more hits.
    filters : sequence of length nq
    """
    wanted = in_range(k, "k")
    count = len(queries)
    totals = Totals(count)
    vertices = np.full((count, wanted), -1, np.int64)
    distances = np.full((count, wanted), np.inf, np.float32)
    counts = np.zeros(count, np.uint32)
    most = max(1, min(wanted, row_count))
    for rows in blocks(range(count), most):
        found = yield Round(queries[list(rows)], most, [filters[row] for row in rows])
        totals.add(rows, found)
        vertices[list(rows), :most] = found.vertices
        distances[list(rows), :most] = found.distances
        counts[list(rows)] = found.counts
    return CombinedHits(vertices, distances, counts, totals.stats)


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
    vertices = np.full((count, step.k), -1, np.int64)
    distances = np.full((count, step.k), np.inf, np.float32)
    counts = np.zeros(count, np.uint32)
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
