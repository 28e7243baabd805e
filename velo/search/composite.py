"""What an index answers with several searches: groups, and all hits within a radius."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import InvalidArgumentError
from velo.filters.arguments import restricted, trees_of
from velo.filters.compiler import Columns
from velo.filters.native import NativeFilter
from velo.filters.tree import Expr
from velo.options import Effort, SearchTuning
from velo.results import GroupedResult, RangeResult, SearchResult
from velo.search.groups import Groups, check_groups, group_script
from velo.search.pages import in_pages, page_script
from velo.search.ranges import LIMIT_DEFAULT, Ranges, check_radius, range_script
from velo.search.request import Request, native_queries
from velo.search.script import (
    CombinedHits,
    Requests,
    Round,
    Script,
    deadline_of,
    drive,
    drive_async,
    left_s,
    requests_of,
)
from velo.search.searched import Searched
from velo.types import AnyArray

__all__ = ["FurtherSearches", "check_no_group_size", "rows_of"]


class FurtherSearches(Searched):
    """The searches of :class:`velo.Index` that are made of several."""

    def range_search(
        self,
        queries: Any,
        radius: float,
        *,
        filter: Any = None,  # noqa: A002
        limit: int = LIMIT_DEFAULT,
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        timeout_s: float | None = None,
        tuning: SearchTuning | None = None,
    ) -> RangeResult:
        """Find all vectors within a distance of each query.

        The search asks for the nearest 16, then for four times as many, until one of them lies beyond the
        radius. Distances are those that :meth:`search` reports. Without `exact` they are estimates: what lies
        within some percent of the radius may fall on either side. With it only what the search does not find
        is missed, as rarely as `recall` says.

        Parameters
        ----------
        queries : array-like of shape (nq, dim) or (dim,)
        radius : float
            The largest distance: squared for ``l2``, 1 - cosine for ``cosine``; for ``ip`` the negated inner
            product, so ``radius=-0.8`` finds all with an inner product of at least 0.8.
        filter : optional
            As for :meth:`search`.
        limit : int
            Hits of a query at most, its nearest, up to 2**24; ``limited`` says where there may be more.
            What is asked beyond 4,096 comes in pages, each of which looks at the codes of all rows.
        recall, list_size, exact, return_metadata, timeout_s, tuning :
            As for :meth:`search`; the time is that of all its searches.

        Returns
        -------
        RangeResult
            Unpacks as ``lims, distances, ids``, the hits of all queries one after another; ``result[i]`` are
            the (ids, distances) of one query.

        Examples
        --------
        >>> lims, distances, ids = index.range_search(queries, radius=20.0)
        >>> bool((distances <= 20.0).all())
        True
        """
        at: FurtherSearches = self._seen()
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        asked = at._range_requests(queries, radius, limit, filter, effort, return_metadata)
        return drive(asked, at._run)

    async def range_search_async(
        self,
        queries: Any,
        radius: float,
        *,
        filter: Any = None,  # noqa: A002
        limit: int = LIMIT_DEFAULT,
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        timeout_s: float | None = None,
        tuning: SearchTuning | None = None,
    ) -> RangeResult:
        """Find all vectors within a distance of each query without blocking the event loop.

        Parameters
        ----------
        queries, radius, filter, limit, recall, list_size, exact, return_metadata, timeout_s, tuning :
            As for :meth:`range_search`.

        Returns
        -------
        RangeResult
        """
        at: FurtherSearches = self._seen()
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        asked = at._range_requests(queries, radius, limit, filter, effort, return_metadata)
        return await drive_async(asked, at._run_async)

    # ---- how

    def _rounds(self, effort: Effort) -> Callable[[Round], Request]:
        """Makes the searches of a script into requests; together they have one timeout."""
        deadline = deadline_of(effort.timeout_s)
        view = self._view()  # one for all of them
        tuning = effort.tuning or SearchTuning()
        scan = replace(tuning, filter_plan="scan") if tuning.filter_plan == "auto" else effort.tuning

        def prepare(one: Round) -> Request:
            left = left_s(effort.timeout_s, deadline)
            rest = effort._replace(timeout_s=left, tuning=scan if one.scan else effort.tuning)
            return self._request(one.queries, one.k, list(one.filters), rest, view)

        return prepare

    def _range_requests(
        self, queries: Any, radius: float, limit: int, filters: Any, effort: Effort, return_metadata: Any
    ) -> Requests[RangeResult]:
        """What a search by radius asks for, one after another, and its answer."""
        columns = self._columns(return_metadata)
        prepare = self._rounds(effort)
        distance, most = check_radius(radius, limit)
        native, _ = native_queries(queries, self.dim)
        trees = trees_of(filters, len(native), self._filters)
        script = range_script(native, distance, most, self.n, trees, self._without)
        return self._range_result((yield from requests_of(script, prepare)), columns)

    def _without(self, condition: Any, known: AnyArray) -> NativeFilter:
        """A filter that leaves out the vertices that are known."""
        rest = self._filters.compile_matches(~known)
        return rest if condition is None else self._filters.compile(condition).within(rest)

    def _page_script(self, queries: Any, k: Any, filters: Any) -> tuple[Script[CombinedHits], bool]:
        """The script of a search for more than one search brings, and whether its query came alone."""
        native, single = native_queries(queries, self.dim)
        trees = trees_of(filters, len(native), self._filters)
        script = page_script(native, k, self.n, trees)
        return in_pages(script, self.n, self._without), single

    def _page_result(self, hits: CombinedHits, single: bool, columns: list[str] | None) -> SearchResult:
        ids = self._ids.of(hits.vertices)
        metadata: Any = None
        if columns is not None:
            rows = rows_of(self._metadata, hits.vertices[hits.vertices >= 0], columns)
            ends = np.cumsum(hits.counts, dtype=np.int64).tolist()
            metadata = [
                rows.slice(end - size, size) for end, size in zip(ends, hits.counts.tolist(), strict=True)
            ]
        return SearchResult(
            ids=ids[0] if single else ids,
            distances=hits.distances[0] if single else hits.distances,
            counts=hits.counts,
            stats=hits.stats(),
            metadata=metadata[0] if single and metadata is not None else metadata,
        )

    def _range_result(self, hits: Ranges, columns: list[str] | None) -> RangeResult:
        counts = [len(part) for part in hits.vertices]
        vertices = np.concatenate([np.zeros(0, np.int64), *hits.vertices])
        return RangeResult(
            lims=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            distances=np.concatenate([np.zeros(0, np.float32), *hits.distances]),
            ids=self._ids.of(vertices),
            limited=hits.limited,
            stats=hits.stats,
            metadata=None if columns is None else rows_of(self._metadata, vertices, columns),
        )

    def _group_script(
        self, queries: Any, k: int, filters: Any, group_by: str, group_size: int
    ) -> tuple[Script[Groups], bool]:
        """The script of a search by groups, and whether its query came alone."""
        known = {} if self._metadata is None else self._metadata.filter_columns
        column = check_groups(group_by, group_size, k, known)
        native, single = native_queries(queries, self.dim)
        trees = trees_of(filters, len(native), self._filters)
        store = self._metadata
        assert store is not None

        def restrict(first: Any, condition: Expr) -> Any:
            return restricted(first, condition, self._filters)

        def column_of(vertices: AnyArray) -> Any:
            return store.rows(vertices, [group_by]).column(0).combine_chunks()

        script = group_script(native, k, group_size, column, trees, restrict, column_of)
        return in_pages(script, self.n, self._without), single

    def _group_result(self, hits: Groups, single: bool, columns: list[str] | None) -> GroupedResult:
        ids = self._ids.of(hits.vertices)
        metadata = None
        if columns is not None:
            rows = rows_of(self._metadata, hits.vertices[hits.vertices >= 0], columns)
            ends = np.cumsum(hits.sizes.sum(axis=1, dtype=np.int64)).tolist()
            starts = [0, *ends[:-1]]
            metadata = [rows.slice(start, end - start) for start, end in zip(starts, ends, strict=False)]
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


def rows_of(store: Columns | None, vertices: AnyArray, columns: list[str]) -> pa.Table:
    """The metadata of some vertices; all columns of none where the index has none."""
    if store is None:
        return pa.table({})
    rows: pa.Table = store.rows(vertices, columns)
    return rows


def check_no_group_size(group_size: int) -> None:
    """Refuse a group size without groups."""
    if group_size != 1:
        raise InvalidArgumentError("group_size goes with group_by", argument="group_size")
