"""Answers that take one search or several: plain ones, groups, and all hits within a radius."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import InvalidArgumentError
from velo.filters.compiler import Columns, restricted, trees_of
from velo.filters.tree import Expr
from velo.options import Effort, SearchTuning, k_of_one_search
from velo.results import GroupedResult, RangeResult, SearchResult
from velo.search.answer import deadline_of, expectation_of, left_s, native_queries
from velo.search.groups import Groups, check_groups, group_script
from velo.search.request import Request
from velo.search.script import (
    CombinedHits,
    Ranges,
    Requests,
    Round,
    check_radius,
    in_pages,
    page_script,
    range_script,
    requests_of,
)
from velo.search.snapshot import Snapshot
from velo.types import AnyArray


def search_requests(
    at: Snapshot,
    queries: Any,
    k: int,
    filters: Any,
    effort: Effort,
    columns: list[str] | None,
    group_by: str | None,
    group_size: int,
) -> Requests[SearchResult]:
    """The requests of :meth:`velo.Index.search`, one after another, and its answer."""
    if group_by is not None:
        return (yield from _group_requests(at, queries, k, filters, effort, columns, group_by, group_size))
    if group_size != 1:
        raise InvalidArgumentError("group_size goes with group_by", argument="group_size")
    if type(k) is int and k > k_of_one_search():
        prepare = rounds(at, effort)
        native, single = native_queries(queries, at.dim)
        trees = trees_of(filters, len(native), at.filters)
        script = in_pages(page_script(native, k, at.n, trees), at.n, at.without)
        return combined_result(at, (yield from requests_of(script, prepare)), single, columns)
    return result_of(at, (yield at.request(queries, k, filters, effort)), columns)


def rounds(at: Snapshot, effort: Effort) -> Callable[[Round], Request]:
    """A function from the searches of a script to requests, which share one timeout.

    A search by radius, by groups or for very many rows misses no row of the delta.
    """
    deadline = deadline_of(effort.timeout_s)
    tuning = effort.tuning or SearchTuning()
    scan = replace(tuning, filter_plan="scan") if tuning.filter_plan == "auto" else effort.tuning

    def prepare(one: Round) -> Request:
        left = left_s(effort.timeout_s, deadline)
        rest = effort._replace(timeout_s=left, tuning=scan if one.scan else effort.tuning)
        return at.request(one.queries, one.k, list(one.filters), rest, whole_delta=True)

    return prepare


def result_of(at: Snapshot, request: Request, columns: list[str] | None) -> SearchResult:
    ids = at.ids.of(request.vertices)
    return SearchResult(
        ids=ids[0] if request.single else ids,
        distances=request.distances[0] if request.single else request.distances,
        counts=request.counts,
        stats=request.stats(),
        metadata=None if columns is None else _metadata_of(request, columns),
        expected=expectation_of(request.expected, request.stats()),
    )


def _metadata_of(request: Request, columns: list[str]) -> pa.Table | list[pa.Table]:
    """The rows of the real hits: gathered once, then cut at each query's end."""
    vertices = request.vertices[np.arange(request.k) < request.counts[:, None]]
    table = _rows_of(request.rows.metadata, vertices, columns)
    return table if request.single else _cut(table, np.cumsum(request.counts, dtype=np.int64))


def combined_result(
    at: Snapshot, hits: CombinedHits, single: bool, columns: list[str] | None
) -> SearchResult:
    """The result of several requests for the same queries."""
    ids = at.ids.of(hits.vertices)
    metadata: Any = None
    if columns is not None:
        rows = _rows_of(at.metadata, hits.vertices[hits.vertices >= 0], columns)
        metadata = _cut(rows, np.cumsum(hits.counts, dtype=np.int64))
    return SearchResult(
        ids=ids[0] if single else ids,
        distances=hits.distances[0] if single else hits.distances,
        counts=hits.counts,
        stats=hits.stats(),
        metadata=metadata[0] if single and metadata is not None else metadata,
    )


def range_requests(
    at: Snapshot, queries: Any, radius: float, limit: int, filters: Any, effort: Effort, return_metadata: Any
) -> Requests[RangeResult]:
    """The requests of :meth:`velo.Index.range_search`, one after another, and its answer."""
    columns = at.columns(return_metadata)
    prepare = rounds(at, effort)
    distance, most = check_radius(radius, limit)
    native, _ = native_queries(queries, at.dim)
    trees = trees_of(filters, len(native), at.filters)
    script = range_script(native, distance, most, at.n, trees, at.without)
    hits: Ranges = yield from requests_of(script, prepare)
    counts = [len(segment) for segment in hits.vertices]
    vertices = np.concatenate([np.zeros(0, np.int64), *hits.vertices])
    return RangeResult(
        lims=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        distances=np.concatenate([np.zeros(0, np.float32), *hits.distances]),
        ids=at.ids.of(vertices),
        limited=hits.limited,
        stats=hits.stats,
        metadata=None if columns is None else _rows_of(at.metadata, vertices, columns),
    )


def _group_requests(
    at: Snapshot,
    queries: Any,
    k: int,
    filters: Any,
    effort: Effort,
    columns: list[str] | None,
    group_by: str,
    group_size: int,
) -> Requests[GroupedResult]:
    prepare = rounds(at, effort)
    store = at.metadata
    column = check_groups(group_by, group_size, k, {} if store is None else store.filter_columns)
    native, single = native_queries(queries, at.dim)
    trees = trees_of(filters, len(native), at.filters)

    def restrict(first: Any, condition: Expr) -> Any:
        return restricted(first, condition, at.filters)

    def column_of(vertices: AnyArray) -> Any:
        return store.rows(vertices, [group_by]).column(0).combine_chunks()

    script = group_script(native, k, group_size, column, trees, restrict, column_of)
    hits: Groups = yield from requests_of(in_pages(script, at.n, at.without), prepare)
    ids = at.ids.of(hits.vertices)
    metadata = None
    if columns is not None:
        rows = _rows_of(store, hits.vertices[hits.vertices >= 0], columns)
        metadata = _cut(rows, np.cumsum(hits.sizes.sum(axis=1, dtype=np.int64)))
    return GroupedResult(
        ids=ids[0] if single else ids,
        distances=hits.distances[0] if single else hits.distances,
        counts=np.array([len(values) for values in hits.values], np.uint32),
        stats=hits.stats,
        metadata=metadata[0] if single and metadata is not None else metadata,
        group_sizes=hits.sizes,
        groups=hits.values[0] if single else hits.values,
        complete=hits.complete,
    )


def _cut(rows: pa.Table, ends: AnyArray) -> list[pa.Table]:
    """The rows of each query, given where they end."""
    starts = [0, *ends.tolist()[:-1]]
    return [rows.slice(start, end - start) for start, end in zip(starts, ends.tolist(), strict=False)]


def _rows_of(store: Columns | None, vertices: AnyArray, columns: list[str]) -> pa.Table:
    """The metadata of some vertices; a table without columns if the index has none."""
    if store is None:
        return pa.table({})
    rows: pa.Table = store.rows(vertices, columns)
    return rows
