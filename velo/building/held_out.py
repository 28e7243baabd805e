"""Queries for measurements, rows of the index or a sample given by the caller, and their exact neighbors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from velo import _native
from velo.formats.source import ArraySource, RawSource, Source, chunk_rows
from velo.types import AnyArray, Float64Array, Int64Array

#: In the place of a query's row: it is none.
NO_ROW = -1

#: Elements of the matrix of distances computed at once.
_BLOCK_ELEMENTS = 1 << 17

#: Queries whose neighbors are updated at once: what is sorted of the distances takes some 80 bytes each.
_TAKEN_QUERIES = 100

#: Queries whose hits are counted at once: some 100 bytes a neighbor.
_HITS_QUERIES = 100

#: Neighbors kept beyond those asked for, so that equals of the last one are known.
_SLACK = 28

#: Equals of last neighbors that are looked up beyond those, of all queries together: 8 bytes each.
_EQUALS_MAX = 1 << 19

#: Of the largest number in a distance: what rounding in float64 may make of two equal ones.
_EQUAL = 1e-13

#: Rows drawn for each one kept, to detect duplicates.
_DRAWS = 4

#: Enough rows without duplicates.
_SINGLE_MIN = 60

#: Rows of a file that pass by in the time of one read of its own, or so.
_ROWS_A_SEEK = 64


class HeldOut(NamedTuple):
    """Queries, and their neighbors among all rows but their own.

    `rows`: The row of each query in the range of rows that was searched, ascending; `NO_ROW` for none.
    `neighbors`: Rows by ascending distance, -1 where there are no more.
    `distances`: Infinity where there is no neighbor. Comparable within one metric only.
    `slack`: Distances of a query that differ by less are equal.
    `equals`: If the last neighbor has more equals than `neighbors` holds: all rows at its distance.
    """

    rows: Int64Array
    queries: AnyArray
    neighbors: Int64Array
    distances: Float64Array
    slack: Float64Array
    equals: tuple[Int64Array, ...]

    def subset(self, places: AnyArray) -> HeldOut:
        """Some of these queries."""
        return HeldOut(
            self.rows[places],
            self.queries[places],
            self.neighbors[places],
            self.distances[places],
            self.slack[places],
            tuple(self.equals[place] for place in places),
        )

    def hits(self, found: Int64Array, k: int) -> Int64Array:
        """The number of each query's k nearest in `found` (-1: none); equals of the k-th count as it does."""
        counts = np.empty(len(found), np.int64)
        for first in range(0, len(found), _HITS_QUERIES):
            some = slice(first, first + _HITS_QUERIES)
            neighbors, distances = self.neighbors[some], self.distances[some]
            reach = distances[:, min(k, distances.shape[1]) - 1]
            near = (distances <= (reach + self.slack[some])[:, None]) & (neighbors >= 0)
            # A pair of query and row as one number; those of no row match nothing.
            offsets = np.arange(len(neighbors))[:, None] << 32
            pairs = np.where(found[some] < 0, -1, found[some] + offsets)
            correct = np.isin(pairs, (neighbors + offsets)[near])
            for place, equals in enumerate(self.equals[some]):
                if len(equals) and reach[place] + self.slack[first + place] >= distances[place, -1]:
                    correct[place] |= np.isin(found[first + place], equals)
            counts[some] = np.minimum(correct.sum(axis=1), np.minimum(k, (neighbors >= 0).sum(axis=1)))
        return counts


def draw_rows(row_count: int, count: int, seed: int) -> Int64Array:
    """`count` different rows out of `row_count`, ascending; all where there are no more."""
    if count >= row_count:
        return np.arange(row_count)
    return np.sort(np.random.default_rng([seed, 7]).choice(row_count, count, replace=False))


def draw_distinct(
    source: Source, count: int, seed: int, start: int = 0, stop: int | None = None
) -> Int64Array:
    """Draw up to `count` rows to hold out, ascending, counted from `start`, if possible without duplicates.

    If most rows are copies of a few, a plain draw measures how well copies find each other, which future
    queries are not.
    """
    stop = source.shape[0] if stop is None else stop
    drawn = draw_rows(stop - start, _DRAWS * count, seed)
    if len(drawn) == 0 or count == 0:
        return drawn[:0]
    values = np.ascontiguousarray(rows_of(source, drawn, start, stop))
    keys = values.view(np.dtype((np.void, values.dtype.itemsize * values.shape[1]))).ravel()
    _, first, times = np.unique(keys, return_index=True, return_counts=True)
    random = np.random.default_rng([seed, 11])
    single, several = (random.permutation(first[chosen]) for chosen in (times == 1, times > 1))
    chosen = single if len(single) >= _SINGLE_MIN else np.concatenate([single, several])
    return np.sort(drawn[chosen[:count]])


def exact_neighbors(
    source: Source,
    rows: Int64Array,
    k: int,
    metric: str,
    start: int = 0,
    stop: int | None = None,
    watch: Callable[[int], None] | None = None,
    queries: AnyArray | None = None,
) -> HeldOut:
    """The k nearest other rows of each of some rows, in one pass over the vectors and in bounded memory."""
    stop = source.shape[0] if stop is None else stop
    queries = rows_of(source, rows, start, stop) if queries is None else queries
    # Far from the origin |x|^2 - 2 q x loses the differences between neighbors: queries become the origin.
    middle = np.median(queries.astype(np.float64), axis=0) if metric == "l2" and len(queries) else None
    wide = _prepared(queries, metric, middle)
    lengths = np.einsum("ij,ij->i", wide, wide)
    wide *= -2.0 if metric == "l2" else -1.0
    if metric == "l2":  # |x|^2 - 2 q x in one product; |q|^2 changes no order
        wide = np.column_stack([wide, np.ones(len(wide))])

    def distances_of(asked: Int64Array) -> Iterator[tuple[int, Float64Array]]:
        """The distances of some queries to the next rows, and the first of these rows."""
        first_row = 0
        block = max(256, _BLOCK_ELEMENTS // max(len(asked), source.shape[1]))
        queries_asked = wide[asked]
        with np.errstate(over="ignore", invalid="ignore"):
            for chunk in source.chunks(block, start, stop):
                base = _prepared(chunk, metric, middle)
                if metric == "l2":
                    base = np.column_stack([base, np.einsum("ij,ij->i", base, base)])
                distances = _products(queries_asked, base)
                first, last = np.searchsorted(rows[asked], [first_row, first_row + len(chunk)])
                distances[np.arange(first, last), rows[asked][first:last] - first_row] = np.inf
                yield first_row, distances
                first_row += len(chunk)

    everyone = np.arange(len(rows))
    kept = min(k + _SLACK, max(1, stop - start - 1))
    best = _Nearest(len(rows), kept)
    for first_row, distances in distances_of(everyone):
        # Of the first rows all are near enough: a few at a time, for sorting them takes memory.
        step = kept if first_row == 0 else distances.shape[1]
        for at in range(0, distances.shape[1], step):
            for first in range(0, len(rows), _TAKEN_QUERIES):
                some = slice(first, first + _TAKEN_QUERIES)
                best.take(some, distances[some, at : at + step], first_row + at)
        if watch is not None:
            watch(first_row + distances.shape[1])
    slack = _EQUAL * np.maximum(lengths, np.abs(best.distances).max(axis=1, where=best.rows >= 0, initial=0))
    # Equal to the last one kept, the k-th may have equals that were not kept.
    last = best.distances[:, -1]
    clear = (best.distances[:, min(k, kept) - 1] + slack < last) | (kept >= stop - start - 1)
    crowded = np.flatnonzero(~clear)
    equals = {int(query): np.empty(0, np.int64) for query in crowded}
    for first_row, distances in distances_of(crowded) if len(crowded) else ():
        alike = np.abs(distances - last[crowded, None]) <= slack[crowded, None]
        for place in np.flatnonzero(alike.any(axis=1)):
            if (query := int(crowded[place])) in equals:
                equals[query] = np.append(equals[query], first_row + np.flatnonzero(alike[place]))
        while sum(map(len, equals.values())) > _EQUALS_MAX:  # the query with the most equals goes
            del equals[max(equals, key=lambda query: len(equals[query]))]
    none = np.empty(0, np.int64)
    known = HeldOut(
        rows,
        queries,
        best.rows,
        best.distances,
        slack,
        tuple(equals.get(query, none) for query in range(len(rows))),
    )
    clear[list(equals)] = True
    return known.subset(np.flatnonzero(clear))


def rows_of(source: Source, rows: Int64Array, start: int, stop: int) -> AnyArray:
    """Read rows by number, ascending from `start`: directly if the source allows it, else in one pass."""
    out = np.empty((len(rows), source.shape[1]), source.dtype)
    few = len(rows) * _ROWS_A_SEEK < stop - start
    if isinstance(source, ArraySource) or (isinstance(source, RawSource) and few):
        for place, row in enumerate(rows):
            # To its end, for only then a mapped file's pages leave the resident set.
            for chunk in source.chunks(1, start + int(row), start + int(row) + 1):
                out[place] = chunk[0]
        return out
    done = 0
    for chunk in source.chunks(chunk_rows(source.shape[1] * source.dtype.itemsize), start, stop):
        first, last = np.searchsorted(rows, [done, done + len(chunk)])
        out[first:last] = chunk[rows[first:last] - done]
        done += len(chunk)
    return out


def _products(x: Float64Array, y: Float64Array) -> Float64Array:
    """``x @ y.T`` in this thread alone: a library of linear algebra keeps all processors busy meanwhile."""
    out = np.empty((len(x), len(y)))
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    status = _native.lib.velo_products(
        _native.pointer("double", x),
        len(x),
        _native.pointer("double", y),
        len(y),
        x.shape[1],
        _native.pointer("double", out, writable=True),
    )
    _native.check(status)
    return out


def _prepared(rows: AnyArray, metric: str, middle: Float64Array | None) -> Float64Array:
    """Rows as they are multiplied: in float64, around `middle`, or of length one."""
    wide = rows.astype(np.float64)
    if middle is not None:
        wide -= middle
    if metric == "cosine":
        norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        wide /= np.where(norms > 0, norms, 1)[:, None]
    return wide


class _Nearest:
    """The nearest rows of each query so far."""

    def __init__(self, queries: int, kept: int) -> None:
        self.rows: Int64Array = np.full((queries, kept), -1, np.int64)
        self.distances: Float64Array = np.full((queries, kept), np.inf)

    def take(self, some: slice, distances: Float64Array, first_row: int) -> None:
        """Distances of some queries to the next rows, of shape (queries, rows)."""
        query, column = np.nonzero(distances < self.distances[some, -1:])
        if len(query) == 0:
            return
        # Candidates near enough, a row for each query: mostly few, but everything in the first block.
        counts = np.bincount(query, minlength=len(distances))
        place = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
        fresh = np.full((len(distances), counts.max()), np.inf)
        rows = np.full(fresh.shape, -1, np.int64)
        fresh[query, place] = distances[query, column]
        rows[query, place] = first_row + column
        kept = self.rows.shape[1]
        everything = np.concatenate([self.distances[some], fresh], axis=1)
        all_rows = np.concatenate([self.rows[some], rows], axis=1)
        if everything.shape[1] > 4 * kept:
            order = np.argpartition(everything, kept - 1, axis=1)[:, :kept]
            everything = np.take_along_axis(everything, order, axis=1)
            all_rows = np.take_along_axis(all_rows, order, axis=1)
        order = np.argsort(everything, axis=1, kind="stable")[:, :kept]
        self.distances[some] = np.take_along_axis(everything, order, axis=1)
        self.rows[some] = np.take_along_axis(all_rows, order, axis=1)
