"""The searches of an index, or of live data at one moment: one call each, its filters, its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import pyarrow as pa

from velo import _native
from velo.errors import InvalidArgumentError
from velo.filters.arguments import filters_of
from velo.options import Effort, Fusion, SearchTuning, k_of_one_search
from velo.parts.completions import Completions
from velo.results import Explanation, FilterPlan, GroupedResult, SearchResult
from velo.search.composite import check_no_group_size, rows_of
from velo.search.each import Each, Ended
from velo.search.filter_costs import filter_plan_of
from velo.search.hybrid import HybridSearches, check_beside
from velo.search.prepared import PreparedOptions
from velo.search.request import Request, expectation_of
from velo.search.script import Requests, drive, drive_async, requests_of
from velo.types import FusionName, UnknownIds

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["SearchKeywords", "Searches"]


class SearchKeywords(TypedDict, total=False):
    """What a search takes beside queries, k and groups, for checkers of :meth:`Searches.search`."""

    filter: Any
    recall: float | None
    list_size: int | None
    exact: bool | None
    return_metadata: Sequence[str] | bool | None
    group_size: int
    timeout_s: float | None
    tuning: SearchTuning | None
    text: str | Sequence[str] | None
    fusion: Fusion | FusionName | None
    candidates: Any
    unknown: UnknownIds


class Searches(HybridSearches):
    """The searches of :class:`velo.Index`; those of one open part are answered here."""

    _handle: Any
    _completions: Completions
    _prepared: PreparedOptions
    _single_shapes: tuple[tuple[int, ...], ...]

    @overload
    def search(
        self, queries: Any, k: int = 10, *, group_by: None = None, **options: Unpack[SearchKeywords]
    ) -> SearchResult: ...

    @overload
    def search(
        self, queries: Any, k: int = 10, *, group_by: str, **options: Unpack[SearchKeywords]
    ) -> GroupedResult: ...

    @overload
    def search(
        self, queries: Any, k: int = 10, *, group_by: str | None = None, **options: Unpack[SearchKeywords]
    ) -> SearchResult: ...

    def search(
        self,
        queries: Any,
        k: int = 10,
        *,
        filter: Any = None,  # noqa: A002
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        group_by: str | None = None,
        group_size: int = 1,
        timeout_s: float | None = None,
        tuning: SearchTuning | None = None,
        text: str | Sequence[str] | None = None,
        fusion: Fusion | FusionName | None = None,
        candidates: Any = None,
        unknown: UnknownIds = "error",
    ) -> SearchResult:
        """Find the k nearest vectors of each query.

        Parameters
        ----------
        queries : array-like of shape (nq, dim) or (dim,), or None
            float32, float16, float64, uint8 or int8. A single query of shape (dim,) gives results of
            shape (k,). None with `text`: words alone are asked, and ``scores`` are those of BM25.
        k : int
            Up to 2**24; what is asked beyond 4,096 comes in pages, each of which looks at the codes of all
            rows. Fewer are found where fewer match: ids are padded with -1 (None), distances with infinity.
        filter : expression, dict, SQL text, mask or ids, or a list of nq of them, optional
            Restricts what may be found; see :mod:`velo.filters`. One for all queries, or one (or None) each.
            (A flat list of str is ids: SQL texts in a list are wrapped in ``velo.filters.from_sql``.)
        recall : float, optional
            The share of true neighbors to aim for, above 0 and at most 1. More costs more. The build measured
            how long a list each recall takes. Where the index cannot reach the recall, its longest list is
            taken; ``expected`` of the result says what that finds. A recall of 1 is an exact search: every
            stored vector that passes the filter is read, whatever that costs. The index must store them.
        list_size : int, optional
            Candidates kept while searching, instead of a choice by `recall`.
        exact : bool, optional
            Take the distances of the answers, and so their order, from the stored vectors. The index must
            store them (:func:`velo.build`). Mostly that takes one more round of reads, which ``stats``
            counts. Distances are computed in float64 and rounded to float32 once, so a vector of the index is
            at 0 from itself in ``l2`` and ``cosine``.

            Without it **a distance is an estimate** from a code. With 10 bits a dimension its relative error
            is about 3e-4, and 1.5e-3 for one in a hundred. It is more where distances are small beside the
            vectors' lengths. So some percent of near neighbors change places.
        return_metadata : list of str or True, optional
            Columns to return with the hits.
        group_by : str, optional
            A column of bools, whole numbers, strings, dates or times: the answer is then the k groups of rows
            with equal values whose nearest rows are nearest, each with its nearest `group_size` rows. Rows
            without a value belong to no group. Several searches are made where few would not show k groups.
        group_size : int
            Rows of a group.
        timeout_s : float, optional
            After so long :class:`SearchTimeoutError` is raised.
        tuning : SearchTuning, optional
        text : str or list of str, optional
            Rows are found by these words, too: one text for all queries, or one each. The index must have
            been built or created with ``text=``. Of the words of a text a row needs one. Then ``scores`` of
            the result orders the hits, and `k` is 4,096 at most.
        fusion : {"rrf", "weighted"}, RRF or Weighted, optional
            How what `text` finds and what the vectors find become one answer: by their ranks (:class:`RRF`),
            or by their scores (:class:`Weighted`).
        candidates : ids, or a list of ids for each query, optional
            Only these rows are looked at, without the graph: their codes are compared, and their pages are
            read in one burst. A `filter` holds beside it.
        unknown : {"error", "skip"}
            What becomes of `candidates` that no row has, as for :meth:`get`.

        Returns
        -------
        SearchResult
            ``ids`` and ``distances`` of shape (nq, k): squared L2, negated inner product, 1 - cosine, less is
            nearer (see `exact`); ``stats`` with one entry a query. With `group_by` a
            :class:`GroupedResult`, of shape (nq, k, group_size).

        Examples
        --------
        >>> ids, distances = index.search(queries, k=10)
        >>> ids.shape
        (5, 10)
        >>> hits = index.search(query, filter={"price": {"$lt": 0.2}}, return_metadata=["price"])
        >>> hits.metadata.column_names
        ['price']
        >>> nearest = index.search(vectors[7], k=1, exact=True)
        >>> int(nearest.ids[0]), float(nearest.distances[0])
        (7, 0.0)
        >>> again = index.search(vectors[7], k=2, candidates=[3, 7, 11], exact=True)
        >>> int(again.ids[0]), len(again.ids)
        (7, 2)
        """
        at: Searches = self._seen()
        columns = None if return_metadata is None else at._columns(return_metadata)
        if (
            filter is None
            and columns is None
            and group_by is None
            and text is None
            and fusion is None
            and candidates is None
            and unknown == "error"
            and type(queries) is np.ndarray
            and queries.shape in at._single_shapes
            and group_size == 1
            and not (type(k) is int and k > k_of_one_search())
        ):
            prepared = at._prepared.of(k, recall, list_size, timeout_s, tuning, exact)
            view = at._view()
            rows = None if view is None else view.rows
            return prepared.search_one(at._handle, at._gate, at._ids, queries, rows)
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        if text is not None or fusion is not None or candidates is not None or unknown != "error":
            check_beside(text, fusion, candidates, unknown, group_by, group_size)
            if text is None:
                asked = at._candidate_requests(queries, k, filter, effort, columns, candidates, unknown)
            else:
                words = at._ranked(queries, k, text, fusion, filter, timeout_s)
                asked = at._hybrid_requests(queries, k, filter, effort, columns, words)
            return drive(asked, at._run)
        return drive(at._requests(queries, k, filter, effort, columns, group_by, group_size), at._run)

    @overload
    async def search_async(
        self, queries: Any, k: int = 10, *, group_by: None = None, **options: Unpack[SearchKeywords]
    ) -> SearchResult: ...

    @overload
    async def search_async(
        self, queries: Any, k: int = 10, *, group_by: str, **options: Unpack[SearchKeywords]
    ) -> GroupedResult: ...

    @overload
    async def search_async(
        self, queries: Any, k: int = 10, *, group_by: str | None = None, **options: Unpack[SearchKeywords]
    ) -> SearchResult: ...

    async def search_async(
        self,
        queries: Any,
        k: int = 10,
        *,
        filter: Any = None,  # noqa: A002
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        group_by: str | None = None,
        group_size: int = 1,
        timeout_s: float | None = None,
        tuning: SearchTuning | None = None,
        text: str | Sequence[str] | None = None,
        fusion: Fusion | FusionName | None = None,
        candidates: Any = None,
        unknown: UnknownIds = "error",
    ) -> SearchResult:
        """Find the k nearest vectors of each query without blocking the event loop.

        Any number of calls can run at once, from any number of event loops. Where the library's queue is
        full, further calls wait for their turn. To cancel the task ends its queries.

        Parameters
        ----------
        queries, k, filter, recall, list_size, exact, return_metadata :
            As for :meth:`search`.
        group_by, group_size, timeout_s, tuning, text, fusion, candidates, unknown :
            As for :meth:`search`.

        Returns
        -------
        SearchResult
            Or a :class:`GroupedResult` with `group_by`.

        Examples
        --------
        >>> import asyncio
        >>> async def nearest():
        ...     results = await asyncio.gather(*(index.search_async(one, k=3) for one in queries))
        ...     return [result.ids.shape for result in results]
        >>> asyncio.run(nearest())
        [(3,), (3,), (3,), (3,), (3,)]
        """
        at: Searches = self._seen()
        columns = at._columns(return_metadata)
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        if text is not None or fusion is not None or candidates is not None or unknown != "error":
            check_beside(text, fusion, candidates, unknown, group_by, group_size)
            if text is None:
                asked = at._candidate_requests(queries, k, filter, effort, columns, candidates, unknown)
            else:
                ranked = partial(at._ranked, queries, k, text, fusion, filter, timeout_s)
                words = await asyncio.to_thread(ranked)
                asked = at._hybrid_requests(queries, k, filter, effort, columns, words)
            return await drive_async(asked, at._run_async)
        asked = at._requests(queries, k, filter, effort, columns, group_by, group_size)
        return await drive_async(asked, at._run_async)

    def search_each(
        self,
        queries: Any,
        k: int = 10,
        *,
        ended: Ended,
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        timeout_s: float | None = None,
    ) -> Each | None:
        """Search each query for itself, and go on; for servers, in whose event loop this is called.

        What one query costs in Python is little, since all are asked in one call. Each still ends by itself.

        Parameters
        ----------
        queries : ndarray of shape (nq, dim)
        ended : callable
            Called in the running event loop with a list of rows that have ended, and the
            :class:`SearchResult` of those rows or the :class:`VeloError` with which all of them failed.
        k, recall, list_size, exact, timeout_s :
            As for :meth:`search`; a k of one search.

        Returns
        -------
        Each or None
            On which a row can be canceled. None where rows lie in several parts: such an index answers
            :meth:`search_async` alone.
        """
        at: Searches = self._seen()
        if k > k_of_one_search():
            return None
        request = at._request(queries, k, None, Effort(recall, list_size, timeout_s, None, exact))
        # Those of several parts are answered by several native calls, one after another.
        if type(request) is not Request:
            return None
        return Each(request, at._handle, at._ids, at._completions, at, ended)

    def _requests(
        self,
        queries: Any,
        k: int,
        filters: Any,
        effort: Effort,
        columns: list[str] | None,
        group_by: str | None,
        group_size: int,
    ) -> Requests[SearchResult]:
        """What a search asks for, one after another, and its answer."""
        if group_by is not None:
            prepare = self._rounds(effort)
            groups, single = self._group_script(queries, k, filters, group_by, group_size)
            return self._group_result((yield from requests_of(groups, prepare)), single, columns)
        check_no_group_size(group_size)
        if type(k) is int and k > k_of_one_search():
            prepare = self._rounds(effort)
            pages, single = self._page_script(queries, k, filters)
            return self._page_result((yield from requests_of(pages, prepare)), single, columns)
        return self._result((yield self._request(queries, k, filters, effort)), columns)

    def _arguments(self, handle: Any, request: Request) -> Any:
        """What every native search takes, up to its end."""
        return (
            handle,
            request.query_pointer,
            request.dtype,
            request.query_count,
            request.filter_handles,
            request.filter_count,
            request.options,
            request.out,
        )

    def _run(self, request: Request, argument: str = "queries") -> Request:
        """Let the library answer a request."""
        if request.query_count == 0:
            with self._gate.inside():
                return request
        _native.check(
            self._gate.call(_native.lib.velo_search, *self._arguments(self._handle, request)), argument
        )
        return request

    async def _run_async(self, request: Request) -> Request:
        """The same without blocking the event loop."""
        if request.query_count == 0:
            with self._gate.inside():
                return request
        arguments = self._arguments(self._handle, request)
        status = await self._completions.run(
            lambda ticket: _native.lib.velo_submit(*(*arguments, ticket)), request
        )
        if status != 0:
            raise request.failure(status)
        return request

    def explain(
        self,
        query: Any,
        k: int = 10,
        *,
        filter: Any = None,  # noqa: A002
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        tuning: SearchTuning | None = None,
    ) -> Explanation:
        """Run one query and tell how it was answered: plan, hops, reads, bytes, time.

        Parameters
        ----------
        query : array-like of shape (dim,)
        k, filter, recall, list_size, exact, tuning :
            As for :meth:`search`.

        Returns
        -------
        Explanation
            Print it; its parts are attributes.

        Examples
        --------
        >>> explained = index.explain(query, k=10, filter=velo.col("price") < 0.2)
        >>> explained.matches
        387
        >>> print(explained)
        plan        links_in_memory, ...
        """
        at: Searches = self._seen()
        started = time.perf_counter()
        counted = replace(tuning or SearchTuning(), count_used=True)
        request = at._request(query, k, filter, Effort(recall, list_size, None, counted, exact))
        if request.query_count != 1:
            raise InvalidArgumentError("explain takes a single query", argument="query")
        plan = at._filter_plan(request, counted.filter_plan)
        prepared = time.perf_counter()
        at._run(request, "query")
        searched = time.perf_counter()
        result = at._result(request, None)
        ended = time.perf_counter()
        return Explanation(
            result=result,
            index=at.info(),
            matches=at._matches(request),
            times_us={
                "filter and arguments": (prepared - started) * 1e6,
                "search": (searched - prepared) * 1e6,
                "ids": (ended - searched) * 1e6,
            },
            request={"k": k, "list_size": request.expected.list_size, "recall": recall or "none"},
            filter_plan=plan,
        )

    def _filter_plan(self, request: Request, option: str) -> FilterPlan | None:
        with self._gate.inside():
            first = request.filters[0] if request.filters else None
            return filter_plan_of(self._handle, first, request.options, option)

    def _matches(self, request: Request) -> int | None:
        """Rows that pass the first filter; None: there is none."""
        if not request.filters or request.filters[0] is None:
            return None
        return int(request.filters[0].count())

    def _request(self, queries: Any, k: int, filters: Any, effort: Effort, view: Any = None) -> Request:
        self._check_open()
        prepared = self._prepared.of(k, *effort)
        compiler = self._filters
        compiled = filters_of(filters, compiler)
        view = self._view() if view is None else view
        if view is not None:
            compiled = view.applied(compiled)
        handles = _native.ffi.NULL
        if compiled:
            null = _native.ffi.NULL
            handles = _native.ffi.new(
                "velo_filter *[]", [null if one is None else one.handle for one in compiled]
            )
        request = Request(queries, self.dim, prepared.k, prepared.options, compiled, handles)
        request.store = compiler.store  # of the same metadata as the filters, whatever is set meanwhile
        request.expected = prepared.expected
        if request.filter_count > 1 and request.filter_count != request.query_count:
            raise InvalidArgumentError(
                f"{request.filter_count} filters were given for {request.query_count} queries",
                argument="filter",
            )
        return request

    def _result(self, request: Request, columns: list[str] | None) -> SearchResult:
        ids = self._ids.of(request.vertices)
        metadata = None
        if columns is not None:
            metadata = self._metadata_of(request, columns)
        return SearchResult(
            ids=ids[0] if request.single else ids,
            distances=request.distances[0] if request.single else request.distances,
            counts=request.counts,
            stats=request.stats(),
            metadata=metadata,
            expected=expectation_of(request.expected, request.stats()),
        )

    def _metadata_of(self, request: Request, columns: list[str]) -> pa.Table | list[pa.Table]:
        """The rows of the real hits: gathered once, then cut at each query's end."""
        ranks = np.arange(request.k)
        vertices = request.vertices[ranks < request.counts[:, None]]
        table = rows_of(request.store, vertices, columns)
        if request.single:
            return table
        ends = np.cumsum(request.counts, dtype=np.int64)
        return [
            table.slice(int(end - count), int(count)) for end, count in zip(ends, request.counts, strict=True)
        ]
