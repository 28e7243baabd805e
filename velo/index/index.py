"""An open index: searches, lookups and writes."""

from __future__ import annotations

import _thread
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypedDict, overload

import numpy as np
import pyarrow as pa

from velo.errors import ClosedError, InvalidArgumentError, ReadOnlyError
from velo.folder.ids import checked_ids
from velo.folder.opened import shown
from velo.folder.snapshot import snapshot
from velo.hints import METHODS, hinted
from velo.index.folder import OpenFolder, index_info, verify_folder
from velo.index.writer import Writer
from velo.options import (
    METRIC_CODES,
    Effort,
    Fusion,
    SearchTuning,
    code_of,
    folder_path,
    k_of_one_search,
    whole_number,
)
from velo.results import Explanation, GroupedResult, RangeResult, SearchResult, Written
from velo.search.composite import range_requests, result_of, search_requests
from velo.search.each import Each, Ended
from velo.search.hybrid import UNKNOWN_IDS, candidate_requests, check_beside, hybrid_requests, ranked_texts
from velo.search.script import LIMIT_DEFAULT, drive, drive_async
from velo.search.snapshot import Snapshot
from velo.segments.added import NewColumns
from velo.segments.lifetime import LifetimeGuard
from velo.segments.tables import given_rows
from velo.types import AnyArray, Float32Array, FusionName, MetricName, PathLike, UnknownIds

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from velo.index.shard_writer import ShardWriter

_METRICS: Final[dict[int, MetricName]] = {code: name for name, code in METRIC_CODES.items()}  # type: ignore[misc]
#: Rows that :meth:`Index.rows` and :meth:`Index.sample` return at most.
_LIMIT_MAX: Final = 1 << 24


class SearchKeywords(TypedDict, total=False):
    """The options of :meth:`Index.search` beside queries, k and `group_by`, for type checkers."""

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


class Resources:
    """The folders of an index, closed together by :meth:`close` or when no index refers to them any more."""

    def __init__(self, guard: LifetimeGuard, folders: Sequence[OpenFolder]) -> None:
        self.guard = guard
        self.folders = tuple(folders)
        self._finalizer = weakref.finalize(self, _close, guard, self.folders)

    def close(self) -> None:
        """Close all. Interrupted, it can be called again."""
        _close(self.guard, self.folders)
        self._finalizer.detach()


def _close(guard: LifetimeGuard, folders: Sequence[OpenFolder]) -> None:
    if guard.forked:  # nothing here belongs to a forked child
        return
    if any(one.compactor is not None and one.compactor.is_here for one in folders):
        # The last reference ended in a merge's own thread, which cannot wait for itself.
        _thread.start_new_thread(_close, (guard, folders))
        return
    guard.close()
    for one in folders:
        one.close()


class Index:
    """An open index. :func:`velo.open` and :func:`velo.build` make it; ``with`` or :meth:`close` ends it.

    Several threads can call all methods at once. An index belongs to the process that opened it: a forked
    child gets :class:`ForkedError` and opens its own. Pickling sends the path and the options, not the
    contents.

    Attributes
    ----------
    path : pathlib.Path
        The folder.
    n : int
        Rows that were built, those that were deleted since among them. ``len(index)`` counts the rows that
        live.
    dim : int
        Dimensions of a vector.
    metric : {"l2", "ip", "cosine"}
        How vectors are compared.
    """

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __new__(cls, *args: Any, **kwargs: Any) -> Index:
            """Explain how to make an index if the class is called."""
            if len(args) < 3:
                raise TypeError(
                    "velo.Index is not called: velo.build(path, vectors) makes an index, "
                    "velo.open(path) opens one"
                )
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            """Name velo's method for that of another library."""
            hint = METHODS.get(name)
            raise AttributeError(
                f"'Index' object has no attribute {name!r}" + (f": {hint}" if hint else ""),
                name=name,
                obj=self,
            )

    def __init__(
        self,
        path: Path,
        resources: Resources,
        folders: Sequence[OpenFolder],
        reopen: partial[Any],
        writer: Writer | ShardWriter | None,
    ) -> None:
        self.path = path
        self._resources = resources
        self._guard = resources.guard
        self._folders = tuple(folders)
        self._reopen = reopen
        self._writer = writer
        self._newest: Snapshot | None = None
        #: The stamp of a reader's folder when `_newest` was made; -1 of a writer or several folders.
        self._stamp = -1
        self.dim = self._snapshot().dim
        self.metric: MetricName = _METRICS[int(folders[0].live.info().metric)]

    # ---- the snapshot

    def _snapshot(self) -> Snapshot:
        """The rows of the index now; the same object while nothing changes."""
        newest = self._newest
        stamp = self._folders[0].stamp()
        views = [one.view() for one in self._folders]
        if newest is None or any(one is not view for one, view in zip(newest.views, views, strict=True)):
            newest = self._newest = Snapshot(views, self._guard, newest)
        if len(views) == 1 and self._writer is None:
            self._stamp = stamp
        return newest

    def _seen(self) -> Snapshot:
        """The rows for a call that begins now."""
        self._guard.check()
        return self._snapshot()

    @property
    def n(self) -> int:
        """Rows, deleted ones among them."""
        return self._last_seen().n

    def __len__(self) -> int:
        """Living rows."""
        return self._last_seen().live_count

    def _last_seen(self) -> Snapshot:
        """The rows now, or when the index was closed."""
        try:
            return self._seen()
        except ClosedError:
            assert self._newest is not None  # made by the constructor
            return self._newest

    def __repr__(self) -> str:
        state = ", closed" if self._guard.closed else ""
        name = shown(self.path)
        return f"velo.Index({name!r}, n={len(self)}, dim={self.dim}, metric={self.metric!r}{state})"

    # ---- searches

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
            Up to 2**24; more than 4,096 are searched in pages, each of which compares the codes of all
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
        at = self._newest
        if at is None or self._stamp != self._folders[0].stamp():
            at = self._seen()
        if (
            filter is None
            and return_metadata is None
            and group_by is None
            and text is None
            and fusion is None
            and candidates is None
            and unknown == "error"
            and type(queries) is np.ndarray
            and group_size == 1
            and (queries.shape == (at.dim,) or queries.shape == (1, at.dim))
            and not (type(k) is int and k > k_of_one_search())
            and (segments := at.unfiltered) is not None
        ):
            prepared = at.prepared(k, recall, list_size, timeout_s, tuning, exact)
            return prepared.search_one(self._guard.check, segments, at.ids, queries)
        columns = at.columns(return_metadata)
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        if text is not None or fusion is not None or candidates is not None or unknown != "error":
            check_beside(text, fusion, candidates, unknown, group_by, group_size)
            if text is None:
                asked = candidate_requests(at, queries, k, filter, effort, columns, candidates, unknown)
            else:
                words = ranked_texts(at, queries, k, text, fusion, filter, timeout_s)
                asked = hybrid_requests(at, queries, k, filter, effort, columns, words)
            return drive(asked, at.run)
        return drive(search_requests(at, queries, k, filter, effort, columns, group_by, group_size), at.run)

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
        at = self._seen()
        columns = at.columns(return_metadata)
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        if text is not None or fusion is not None or candidates is not None or unknown != "error":
            check_beside(text, fusion, candidates, unknown, group_by, group_size)
            if text is None:
                asked = candidate_requests(at, queries, k, filter, effort, columns, candidates, unknown)
            else:
                import asyncio  # 7 MB that other searches do without

                ranked = partial(ranked_texts, at, queries, k, text, fusion, filter, timeout_s)
                words = await asyncio.to_thread(ranked)
                asked = hybrid_requests(at, queries, k, filter, effort, columns, words)
            return await drive_async(asked, at.run_async)
        asked = search_requests(at, queries, k, filter, effort, columns, group_by, group_size)
        return await drive_async(asked, at.run_async)

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
            Rows can be canceled on it. None if a search takes more than one native call or rows are in the
            delta: :meth:`search_async` answers then.
        """
        at = self._seen()
        if k > k_of_one_search() or at.unfiltered is None:
            return None
        request = at.request(queries, k, None, Effort(recall, list_size, timeout_s, None, exact))
        return Each(request, at, ended)

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

        The search asks for the nearest 16, then for four times as many, until one of them is beyond the
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
            More than 4,096 are searched in pages, each of which compares the codes of all rows.
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
        at = self._seen()
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        return drive(range_requests(at, queries, radius, limit, filter, effort, return_metadata), at.run)

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
        at = self._seen()
        effort = Effort(recall, list_size, timeout_s, tuning, exact)
        asked = range_requests(at, queries, radius, limit, filter, effort, return_metadata)
        return await drive_async(asked, at.run_async)

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
        """Run one query and explain how it was answered: plan, hops, reads, bytes, time.

        Parameters
        ----------
        query : array-like of shape (dim,)
        k, filter, recall, list_size, exact, tuning :
            As for :meth:`search`.

        Returns
        -------
        Explanation
            Print it; its segments are attributes.

        Examples
        --------
        >>> explained = index.explain(query, k=10, filter=velo.col("price") < 0.2)
        >>> explained.matches
        387
        >>> print(explained)
        plan        links_in_memory, ...
        """
        at = self._seen()
        started = time.perf_counter()
        counted = replace(tuning or SearchTuning(), count_used=True)
        request = at.request(query, k, filter, Effort(recall, list_size, None, counted, exact))
        if request.query_count != 1:
            raise InvalidArgumentError("explain takes a single query", argument="query")
        plan = at.filter_plan(request, counted.filter_plan)
        prepared = time.perf_counter()
        at.run(request, "query")
        searched = time.perf_counter()
        result = result_of(at, request, None)
        ended = time.perf_counter()
        return Explanation(
            result=result,
            index=self.info(),
            matches=at.matches(request),
            times_us={
                "filter and arguments": (prepared - started) * 1e6,
                "search": (searched - prepared) * 1e6,
                "ids": (ended - searched) * 1e6,
            },
            request={"k": k, "list_size": request.expected.list_size, "recall": recall or "none"},
            filter_plan=plan,
        )

    # ---- rows by filter and by id

    @property
    def schema(self) -> pa.Schema:
        """The columns of the metadata, as they were given; none where there is no metadata.

        Examples
        --------
        >>> index.schema.names, str(index.schema.field("price").type)
        (['label', 'price', 'brand', 'tags'], 'float')
        """
        schema = self._seen().schema
        return pa.schema([]) if schema is None else schema

    def count(self, filter: Any = None) -> int:  # noqa: A002
        """Count the rows that pass a filter, or all rows without one.

        Parameters
        ----------
        filter : optional
            One filter, as for :meth:`search`.

        Returns
        -------
        int

        Examples
        --------
        >>> index.count({"price": {"$lt": 0.2}})
        387
        """
        at = self._seen()
        passing = at.passing(filter)
        return at.n if passing is None else passing.count()

    def contains(self, ids: Any) -> AnyArray:
        """Tell of some ids whether a row has them.

        Parameters
        ----------
        ids : array-like of shape (m,), or one id

        Returns
        -------
        ndarray of shape (m,), bool

        Examples
        --------
        >>> index.contains([17, 1_000_000])
        array([ True, False])
        """
        at = self._seen()
        return at.are_alive(at.ids.find([ids] if isinstance(ids, str | int | np.integer) else ids))

    def get(
        self, ids: Any, *, columns: Sequence[str] | bool = True, unknown: UnknownIds = "error"
    ) -> pa.Table:
        """Return the metadata of some ids.

        Parameters
        ----------
        ids : array-like of shape (m,), or one id
        columns : list of str or True
            All of them with True.
        unknown : {"error", "skip"}
            What becomes of ids that no row has, or whose row was deleted. With ``"skip"`` they are left out:
            the column ``id`` says which are there.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns, a row an id, in the order asked for.

        Raises
        ------
        UnknownIdError
            An id that no row has, or that was deleted; not with ``unknown="skip"``.

        Examples
        --------
        >>> index.get([17, 4], columns=["brand"]).to_pydict()
        {'id': [17, 4], 'brand': [...]}
        >>> index.get([17, 1_000_000], columns=["brand"], unknown="skip")["id"].to_pylist()
        [17]
        """
        code_of(UNKNOWN_IDS, unknown, "unknown")
        at = self._seen()
        names = at.columns(columns)
        if unknown == "skip":
            found = at.ids.find(checked_ids(ids))
            return at.table(found[at.are_alive(found)], names)
        return at.table(at.vertices(ids), names)

    def rows(
        self,
        filter: Any = None,  # noqa: A002
        *,
        limit: int = 100,
        after: Any = None,
        columns: Sequence[str] | bool = True,
    ) -> pa.Table:
        """Return rows that pass a filter, page by page.

        Rows are ordered by id, so pages fit together whatever is written and merged meanwhile.

        Parameters
        ----------
        filter : optional
            One filter, as for :meth:`search`; all rows without one.
        limit : int
            Rows at most.
        after : id, optional
            The last id of the page before, whether or not its row is still there.
        columns : list of str or True
            Of the metadata; all of them with True.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns; fewer rows than `limit` on the last page.

        Examples
        --------
        >>> first = index.rows({"brand": "brand-07"}, limit=5)
        >>> next_page = index.rows({"brand": "brand-07"}, limit=5, after=first["id"][-1])
        >>> len(first), set(first["id"].to_pylist()) & set(next_page["id"].to_pylist())
        (5, set())
        """
        at = self._seen()
        names = at.columns(columns)
        most = whole_number(limit, "limit", 1, _LIMIT_MAX)
        passing = at.passing(filter)
        if after is not None:
            as_py = getattr(after, "as_py", None)  # a value of an Arrow column
            column = checked_ids(after if as_py is None else as_py())
            at.ids.check_kind(column, "after")
            after = column[0] if isinstance(column, np.ndarray) else column[0].as_py()
        return at.table(at.ids.page(after, most, None if passing is None else passing.matches()), names)

    def sample(
        self,
        limit: int = 1000,
        *,
        filter: Any = None,  # noqa: A002
        columns: Sequence[str] | bool = True,
        seed: int = 0,
    ) -> pa.Table:
        """Return rows drawn at random, each at most once.

        Parameters
        ----------
        limit : int
            Rows at most.
        filter : optional
            One filter, as for :meth:`search`: only rows that pass it are drawn.
        columns : list of str or True
            Of the metadata; all of them with True.
        seed : int
            The same one draws the same rows, while nothing is written.

        Returns
        -------
        pyarrow.Table
            ``id`` and the columns.

        Examples
        --------
        >>> few = index.sample(5, filter={"brand": "brand-07"}, columns=["brand"])
        >>> len(few), set(few["brand"].to_pylist())
        (5, {'brand-07'})
        """
        at = self._seen()
        names = at.columns(columns)
        most = whole_number(limit, "limit", 1, _LIMIT_MAX)
        chance = np.random.default_rng(whole_number(seed, "seed", 0, (1 << 64) - 1))
        passing = at.passing(filter)
        known = None if passing is None else np.flatnonzero(passing.matches())
        count = at.n if known is None else len(known)
        drawn = np.sort(chance.choice(count, min(most, count), replace=False, shuffle=False))
        return at.table(drawn if known is None else known[drawn], names)

    def get_vectors(self, ids: Any, *, decoded: bool = False) -> Float32Array:
        """The stored vectors of some ids.

        Parameters
        ----------
        ids : array-like of shape (m,)
        decoded : bool
            Decode vectors that are not stored from their codes: nearly the vector; for ``cosine`` its
            direction.

        Returns
        -------
        ndarray of shape (m, dim), float32
            In the space of the input.

        Raises
        ------
        UnknownIdError
        UnsupportedError
            The index was built without ``store_vectors=True``; not with `decoded`.

        Examples
        --------
        >>> index.get_vectors([3, 5]).shape
        (2, 32)
        """
        at = self._seen()
        vectors: Float32Array = at.vectors(at.vertices(ids), decoded=decoded)
        return vectors

    # ---- writes

    def insert(
        self,
        vectors: Any,
        ids: Any = None,
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
        *,
        column: str | None = None,
        ids_column: str | None = None,
    ) -> Written:
        """Add rows; searches that begin after this returns find them.

        The call is atomic, for searches and after a crash. A call larger than the memory for new rows becomes
        a segment at once, which takes as long as building an index of it.

        Parameters
        ----------
        vectors : array-like of shape (n, dim), Arrow list array, table, frame, or list of dicts
            Of the index's element type, or of one that it holds without a change. Tables are those that
            :func:`velo.build` takes from memory: of Arrow, pandas or polars, or a dict a row, with a column
            of lists of numbers.
        ids : array-like of int or str, optional
            One per row, none of them in use. An index that numbers its rows takes none.
        metadata : table of one row a vector, or True, optional
            As for :func:`velo.build`; the columns that the index has, all of them. True takes all other
            columns of the vectors' table.
        request : str, optional
            A name for this call. A call with the name of one of the last 1,024 is not done again, so an
            insert whose answer got lost may be repeated.
        timeout_s : float, optional
            How long to wait while memory for new rows is full and being flushed, while merges use the
            memory that a segment of these rows needs, or for calls of other processes; without it a minute
            for each of those.
        column : str, optional
            Which column of a table holds the vectors, where several could.
        ids_column : str, optional
            The column that holds the ids: of the vectors' table, or of the metadata. It becomes no metadata.

        Returns
        -------
        Written

        Raises
        ------
        DuplicateIdError
            An id twice, or of a row that is there; nothing was written.
        InvalidArgumentError, DimensionMismatchError, DtypeError, NotFiniteError, UnknownColumnError
        ReadOnlyError
            The index was opened without ``writable=True``.
        BusyError
            There was no room in `timeout_s`, or another process did not end its call. The message
            names it; nothing was written.
        BudgetTooSmallError
            The rows take more memory than new rows may, and `merge_memory` is too little for a part of them.
        NoSpaceError
            The device is full; nothing was written, and writing goes on once there is room.
        DeviceError
            The write failed. Where a sync did, the index takes no further writes until it is opened again.

        Examples
        --------
        >>> import pyarrow as pa
        >>> with velo.create("notes.velo", dim=3, metadata=pa.schema({"text": pa.string()})) as index:
        ...     rows = [{"id": "a", "vector": [0.1, 0.2, 0.3], "text": "first"}]
        ...     print(index.insert(rows, ids_column="id", metadata=True).rows, index.get("a")["text"][0])
        1 first
        """
        given = given_rows(vectors, column, ids, ids_column, metadata)
        with self._guard.inside():
            return self._writing().insert(*given, request, timeout_s, upsert=False)

    def upsert(
        self,
        vectors: Any,
        ids: Any = None,
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
        *,
        column: str | None = None,
        ids_column: str | None = None,
    ) -> Written:
        """Add rows, each in the place of the one that has its id, where there is one.

        Vector and metadata are replaced together. Of an id that a call has several times the last row counts.

        Parameters
        ----------
        vectors, metadata, request, timeout_s, column, ids_column :
            As for :meth:`insert`.
        ids : array-like of int or str
            One a row, or `ids_column` names them. An index that numbers its rows takes numbers that it gave.

        Returns
        -------
        Written

        Raises
        ------
        UnknownIdError
            A number that an index that numbers its rows never gave.
        VeloError
            As for :meth:`insert`, but for :class:`DuplicateIdError`.
        """
        given = given_rows(vectors, column, ids, ids_column, metadata)
        with self._guard.inside():
            return self._writing().insert(*given, request, timeout_s, upsert=True)

    @hinted
    def update(
        self,
        ids: Any = None,
        metadata: Any = None,
        request: str | None = None,
        timeout_s: float | None = None,
        *,
        filter: Any = None,  # noqa: A002
    ) -> Written:
        """Change columns of rows, by id or of all that pass a filter.

        Their vectors and other columns stay as they are. The call is atomic, also against other writers: each
        row is changed as it is at that moment. The rows are read and written again, so an update costs as
        much as an :meth:`upsert`.

        Parameters
        ----------
        ids : array-like of the index's kind of id, or one id
            Ids that no row has are counted in ``missing`` and are no error. Of an id that is there twice the
            last row counts.
        metadata : table of one row an id, or one value a column
            As for :meth:`insert`, but only the columns that change. With a filter each of them has one value,
            which all rows get.
        request, timeout_s :
            As for :meth:`insert`.
        filter : expression, dict, SQL text, mask or ids
            As for :meth:`delete`. A row that others changed meanwhile, so that it passes no more, stays as
            they left it.

        Returns
        -------
        Written

        Raises
        ------
        InvalidArgumentError, UnknownColumnError, FilterError
            Also where the index has no columns, and where ids and a filter are given, or neither.
        VeloError
            As for :meth:`insert`. BudgetTooSmallError: give fewer ids, or a narrower filter.

        Examples
        --------
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     done = index.update([17, 18], {"price": [0.5, 0.75]})
        ...     print(done.rows, index.get([18], columns=["price"])["price"].to_pylist())
        ...     done = index.update(filter=velo.col("price") == 0.75, metadata={"brand": "attic"})
        ...     print(done.rows == index.count({"brand": "attic"}), index.get([18])["brand"].to_pylist())
        2 [0.75]
        True ['attic']
        """
        _check_one("update", ids, filter)
        with self._guard.inside():
            return self._writing().update(ids, metadata, request, timeout_s, filter)

    @hinted
    def delete(
        self,
        ids: Any = None,
        *,
        filter: Any = None,  # noqa: A002
        timeout_s: float | None = None,
    ) -> Written:
        """Delete rows by id, or all that pass a filter.

        The call is atomic: all of its rows are deleted or none, for new searches and after a crash. When it
        returns, new searches do not find them; running ones may. :meth:`optimize` gives back the
        room of deleted rows.

        Parameters
        ----------
        ids : array-like of the index's kind of id, or one id
            Ids that no row has are counted in ``missing`` and are no error.
        filter : expression, dict, SQL text, mask or ids
            As for :meth:`search`; a mask is over the rows that were built.
        timeout_s : float, optional
            How long to wait for calls of other processes; without it a minute.

        Returns
        -------
        Written

        Raises
        ------
        InvalidArgumentError, FilterError
            Both were given, or neither; ids of another kind.
        VeloError
            As for :meth:`insert`.

        Examples
        --------
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     done = index.delete([17, 18, 1_000_000])
        ...     print(done.rows, "deleted,", done.missing, "not there,", len(index), "left")
        2 deleted, 1 not there, 1998 left
        """
        _check_one("delete", ids, filter)
        with self._guard.inside():
            return self._writing().delete(ids, timeout_s, filter)

    def flush(self) -> None:
        """Make a segment, an index of the ordinary format, of all rows that no segment holds, and sync.

        Searches then traverse a graph instead of measuring all of them, and their memory is free.
        It takes as long as to build an index of these rows; others write and search meanwhile.

        Raises
        ------
        ReadOnlyError, NoSpaceError, DeviceError
        """
        with self._guard.inside():
            self._writing().flush()
            self._release()

    def optimize(self, wait: bool = True) -> None:
        """Make one segment of all rows that live, as a build of them would: searches are at their fastest
        again.

        It writes each of them once, new ones too. Deleted and replaced rows give back their room. Others
        write and search meanwhile; what they write stays beside that segment. A process that is killed leaves
        the index as it was.

        Of an index that was built without ``store_vectors=True`` codes are copied. The segment then stores no
        vectors, those of rows that were inserted since among them.

        Parameters
        ----------
        wait : bool
            False: in the background; :meth:`flush`, :meth:`optimize` and :meth:`close` wait for it.

        Raises
        ------
        ReadOnlyError, NoSpaceError, DeviceError
        """
        with self._guard.inside():
            self._writing().optimize(wait)
            if wait:
                self._release()

    def _writing(self) -> Writer | ShardWriter:
        if self._writer is None:
            raise ReadOnlyError(f"{self.path} was opened to read: open it with writable=True")
        return self._writer

    def _release(self) -> None:
        """Replace the snapshot, which shows segments that were merged, and remove their files."""
        self._snapshot()
        self._writing().release()

    # ---- columns

    def set_metadata(self, table: Any, *, ids_column: str | None = None) -> None:
        """Put other metadata in the place of what the index has, without touching pages or graph.

        The change is atomic: a process killed meanwhile leaves the old metadata. Searches of this index that
        have begun go on with the old one; other open indexes of the same folder keep it until they are opened
        again.

        Parameters
        ----------
        table : pyarrow.Table, RecordBatch, pandas.DataFrame, mapping of columns, or path
            One row a vector.
        ids_column : str, optional
            The column that says by id which vector a row belongs to; it becomes no metadata. Without it rows
            are in the order in which the vectors were given to :func:`velo.build`.

        Raises
        ------
        InvalidArgumentError
            Another number of rows, or a column that cannot be stored.
        UnknownColumnError, UnknownIdError, DuplicateIdError
            Of `ids_column`.
        BusyError
            The metadata of this index is being changed already.

        Examples
        --------
        >>> with velo.open("shop.velo") as index:
        ...     index.set_metadata({"color": ["red", "blue"] * 1_000})
        ...     index.search(query, k=1, filter={"color": "red"}, return_metadata=True).metadata.to_pylist()
        [{'color': 'red'}]
        """
        with self._guard.inside():
            self._change_metadata(table, ids_column=ids_column)

    def add_columns(self, columns: Any, *, ids_column: str | None = None, overwrite: bool = False) -> None:
        """Add columns to the metadata, also of an index that was written to.

        The change is atomic: a process killed meanwhile leaves all of them or none. Rows that are there get
        one value, or are missing in the column; none of their files is rewritten. Rows written from then
        on have the new columns, too.

        Parameters
        ----------
        columns : pyarrow.Schema, list of pyarrow.Field, or mapping of names
            A schema or fields: rows that are there are missing in them. In a mapping a column has a
            ``pyarrow.DataType``, in which they are missing, or one value, which all of them get: a plain one
            or a ``pyarrow.Scalar``, which says its type. An index that is as it was built, and not open to
            write, takes also a table with a row a vector, as :meth:`set_metadata` does.
        ids_column : str, optional
            Of such a table, as for :meth:`set_metadata`.
        overwrite : bool
            Columns of the same name take the place of those that are there; refused without it, and where
            rows were written: :meth:`update` changes them there.

        Raises
        ------
        InvalidArgumentError
            A name that is empty, twice, or there already; a type that cannot be stored; a column without
            nulls and without a value.
        UnsupportedError
            A table for an index that is open to write or was written to: add its columns, then
            :meth:`update`.
        VeloError
            As for :meth:`insert`, and for a table as for :meth:`set_metadata`.

        Examples
        --------
        >>> import pyarrow as pa
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     done = index.delete([17])
        ...     index.add_columns({"stock": 12, "color": pa.string()})
        ...     done = index.update([18], {"color": "red"})
        ...     print(index.get([18, 19], columns=["stock", "color"]).to_pylist())
        ...     print(index.count("color is null") == len(index) - 1)
        [{'id': 18, 'stock': 12, 'color': 'red'}, {'id': 19, 'stock': 12, 'color': None}]
        True
        """
        new = NewColumns.of(columns)
        if new is not None and ids_column is not None:
            raise InvalidArgumentError(
                "ids_column goes with a table of a row a vector", argument="ids_column"
            )
        with self._guard.inside():
            if new is None:
                self._change_metadata(columns, ids_column=ids_column, keep=True, overwrite=overwrite)
            elif all(one.is_unwritten for one in self._folders):
                at = self._snapshot()
                if not overwrite:
                    new.check_new([] if at.metadata is None else at.metadata.column_names)
                self._change_metadata(new.table(at.n), keep=True, overwrite=overwrite)
            elif overwrite:
                raise InvalidArgumentError(
                    "overwrite exchanges the columns of an index that is as it was built, and not open to "
                    "write: update changes the values of others",
                    argument="overwrite",
                )
            else:
                self._writing().add_columns(new)

    def _change_metadata(self, table: Any, **how: Any) -> None:
        """Exchange the metadata of the one folder."""
        self._folders[0].change_metadata(table, **how)

    # ---- the folder

    def refresh(self) -> bool:
        """See what other processes have written. An index that follows them does so with every search;
        one that was opened with ``follow=False`` sees it here alone.

        Returns
        -------
        bool
            Whether there was anything.

        Raises
        ------
        UnsupportedError
            The folder holds another index by now; open it again.
        CorruptIndexError, DeviceError
        """
        with self._guard.inside():
            return sum(one.refresh() for one in self._folders) > 0  # each of them

    def snapshot(self, path: PathLike) -> None:
        """Make another folder an index that holds what this one holds now.

        Files that never change get a second name there, so that takes little room and time. Where the file
        system has no second names they are copied. Both folders then go their own ways.

        Parameters
        ----------
        path : path
            Not there, or an empty folder; it takes its name when it is complete and on the device. What was
            written before the call is in it, also by another process; of what is written meanwhile each call
            wholly or not at all.

        Raises
        ------
        IndexExistsError
            There is something at `path`.
        NoSpaceError, PermissionDeniedError

        Examples
        --------
        >>> with velo.open("shop.velo", writable=True) as index:
        ...     index.snapshot("copy.velo")
        ...     done = index.delete([17])
        >>> velo.verify("copy.velo") > 0
        True
        """
        with self._guard.inside():
            snapshot(self._folders[0].opened.at, folder_path(path))

    def verify(self) -> int:
        """Check every file, as :func:`velo.verify` does.

        Returns
        -------
        int
            How many pages were checked.
        """
        with self._guard.inside():
            return sum(verify_folder(one.opened.at) for one in self._folders)

    def info(self) -> dict[str, Any]:
        """Describe this index and its cost.

        Returns
        -------
        dict
            Among others ``n``, ``dim``, ``metric``, ``plan``, ``memory_bytes`` (by segment), of them
            ``memory_within_budget_bytes`` (what a budget bounds: codes, links, cache, page directory) and
            ``memory_beside_budget_bytes`` (workers, filters and tombstones), ``cache_refused`` (the system
            refused memory for pages, so searches read them), ``disk_bytes`` (by file),
            ``column_bytes`` (mapped from the file as far as filters touch them), ``device``,
            ``gpu`` (its ``state``, memory and batches; None where none was asked for), and ``live``: what was
            changed since it was built, None where nothing was.

        Examples
        --------
        >>> info = index.info()
        >>> info["n"], info["dim"], info["metric"], info["columns"]
        (2000, 32, 'l2', ['label', 'price', 'brand', 'tags'])
        """
        with self._guard.inside():
            return index_info(self._folders[0], self._snapshot().views[0])

    def close(self) -> None:
        """Stop the workers and release memory and files, after running searches; further calls do nothing.

        Interrupted, it can be called again. In a forked child this does nothing: the index is its parent's.
        """
        self._resources.close()

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._guard.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._reopen,)


def _reopened(reopen: partial[Any]) -> Any:
    return reopen()


def _check_one(verb: str, ids: Any, condition: Any) -> None:
    if (ids is None) == (condition is None):
        raise InvalidArgumentError(f"{verb} takes ids or a filter, and one of them", argument="ids")
