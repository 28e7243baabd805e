"""Search by radius: all rows within a distance, found by asking for more until one lies beyond it.

What one search cannot bring comes in pages (:mod:`velo.search.pages`), until one of them has a row beyond.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from velo.errors import InvalidArgumentError
from velo.options import in_range, k_of_one_search
from velo.search.pages import Exclude, page_of
from velo.search.request import Request
from velo.search.script import CombinedHits, Round, Script, Totals, blocks
from velo.types import AnyArray

__all__ = ["LIMIT_DEFAULT", "Ranges", "check_radius", "range_script"]

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
    """The script of a search by radius.

    Parameters
    ----------
    queries : ndarray of shape (nq, dim)
    radius : float
        In the terms of the distances that searches report.
    limit : int
        Hits of a query at most.
    row_count : int
        Of the index: no query has more hits.
    filters : sequence of length nq
    exclude : callable
        A filter and the rows that are known to a filter without those.
    """
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
