"""An open index: search it, look into it, close it."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from velo import _native
from velo.errors import (
    CorruptIndexError,
    InvalidArgumentError,
    NotAnIndexError,
    UnknownColumnError,
    UnknownIdError,
    UnsupportedError,
    VeloError,
)
from velo.filters.arguments import filters_of
from velo.folder.exchange import change_metadata
from velo.folder.ids import Ids
from velo.folder.live import data_folder, is_live
from velo.folder.manifest import COLLECTION_FILE, MANIFEST_FILE, manifest_bytes, read_manifest
from velo.folder.metadata import open_metadata
from velo.hints import METHODS, hinted
from velo.live.data import LiveData, View
from velo.live.verbs import LiveVerbs
from velo.options import (
    IO_CODES,
    METRIC_CODES,
    PLAN_CODES,
    OpenTuning,
    SearchTuning,
    code_of,
    folder_path,
    in_range,
    k_of_one_search,
    memory_bytes,
)
from velo.results import Explanation, SearchResult
from velo.search.compiler import compiler_for
from velo.search.completions import Completions
from velo.search.composite import FurtherSearches, check_no_group_size, rows_of
from velo.search.filter_costs import filter_plan_of
from velo.search.gate import Gate
from velo.search.lookups import Lookups
from velo.search.prepared import PreparedOptions
from velo.search.request import Request, expectation_of
from velo.search.script import drive, drive_async
from velo.types import (
    DurabilityName,
    Float32Array,
    IoName,
    Memory,
    MetricName,
    PathLike,
    PlanName,
    UnknownColumns,
)

__all__ = ["Index", "open_index", "verify_folder"]

_METRICS: Final[dict[int, MetricName]] = {code: name for name, code in METRIC_CODES.items()}  # type: ignore[misc]
_PLANS: Final = {code: name for name, code in PLAN_CODES.items()}
_IO_NAMES: Final = {code: name for name, code in IO_CODES.items()}
#: What a filter means by a column that there is not.
UNKNOWN_COLUMNS: Final = {"error": 0, "missing": 1}
_DTYPE_NAMES: Final = {0: "float32", 1: "float16", 2: "uint8", 3: "int8"}

#: The parts of its memory that an index's budget bounds.
BUDGETED: Final = ("codes", "links", "cache", "pages")


#: How often an index is opened again whose metadata another process exchanges meanwhile.
_OPEN_ATTEMPTS = 4


@hinted
def open_index(
    path: PathLike,
    *,
    memory: Memory | None = None,
    threads: int | None = None,
    io: IoName = "auto",
    plan: PlanName = "auto",
    tuning: OpenTuning | None = None,
    unknown_columns: UnknownColumns = "error",
    writable: bool = False,
    durability: DurabilityName = "sync",
) -> Index:
    """Open one index. :func:`velo.open` says what the options mean, and opens collections of shards, too."""
    folder = folder_path(path)
    if (folder / COLLECTION_FILE).is_file():
        raise NotAnIndexError(f"{folder} is a collection of shards, not one index", argument="path")
    _check_there(folder)
    struct = _native.new("velo_open_options")
    struct.io = code_of(IO_CODES, io, "io")
    unknown_is_missing = bool(code_of(UNKNOWN_COLUMNS, unknown_columns, "unknown_columns"))
    struct.plan = code_of(PLAN_CODES, plan, "plan")
    struct.threads = 0 if threads is None else in_range(threads, "threads")
    (tuning or OpenTuning()).fill(struct)
    live = _live_of(folder, durability if writable else None)
    try:
        data = folder if live is None else live.part
        struct.memory_bytes = memory_bytes(memory, *_shape_in_manifest(data))
        out = _native.ffi.new("velo_index **")
        _open_native(data, struct, out)
        reopen = partial(
            open_index,
            str(folder),
            memory=memory,
            threads=threads,
            io=io,
            plan=plan,
            tuning=tuning,
            unknown_columns=unknown_columns,
        )
        try:
            return Index(folder, out[0], reopen, live, unknown_is_missing=unknown_is_missing)
        except BaseException:
            _native.lib.velo_index_close(out[0])
            raise
    except BaseException:
        if live is not None:
            live.close()
        raise


def _check_there(folder: Path) -> None:
    """Say in a user's words what is no index; where the system refuses to look the library says why."""
    try:
        there, is_folder = folder.exists(), folder.is_dir()
    except OSError:
        return
    if not is_folder:
        what = "is a file, and an index is a folder" if there else "does not exist"
        hint = "velo.build(path, vectors) makes an index"
        raise NotAnIndexError(f"{folder} {what}; {hint}", argument="path")


def _live_of(folder: Path, durability: DurabilityName | None) -> LiveData | None:
    """The changes of an index, where there are any or may be."""
    if durability is None and not is_live(folder) and (folder / MANIFEST_FILE).is_file():
        return None
    try:
        return LiveData(folder, durability)
    except NotAnIndexError:
        if durability is not None:
            raise
        return None  # the library says what is wrong with what is there


def _open_native(folder: Path, struct: Any, out: Any) -> None:
    for attempt in range(_OPEN_ATTEMPTS):
        before = manifest_bytes(folder)
        try:
            _native.check(_native.lib.velo_index_open(bytes(folder), struct, out), "path")
            return
        except CorruptIndexError:
            # Another process may just have set other metadata and removed the files that this manifest named.
            if attempt + 1 == _OPEN_ATTEMPTS or manifest_bytes(folder) == before:
                raise


def _shape_in_manifest(folder: Path) -> tuple[int, int]:
    """(n, d) for a budget given as a share; made up where the library will say what is wrong anyway."""
    try:
        manifest = read_manifest(folder)
    except VeloError:
        return 1 << 20, 1 << 10  # large enough that no share of it is nothing
    return min(max(1, manifest.row_count), 2**31), min(max(1, manifest.dim), 2**16)


def verify_folder(path: PathLike) -> int:
    """Read every file of an index whole and check every checksum, page and link.

    Parameters
    ----------
    path : path
        The folder of the index.

    Returns
    -------
    int
        How many pages were checked.

    Raises
    ------
    CorruptIndexError
        A file is damaged. The message names it, and the page.

    Examples
    --------
    >>> velo.verify("shop.velo") > 0
    True
    """
    pages = _native.ffi.new("uint64_t *")
    folder = folder_path(path)
    _native.check(_native.lib.velo_verify(bytes(folder), pages), "path")
    # What the library has no eyes for: that ids and metadata are what searches rely on.
    data = data_folder(folder)
    manifest = read_manifest(data)
    Ids(data, manifest.row_count, manifest.first_row).rows()
    store = open_metadata(data, manifest.row_count)
    if store is not None:
        _ = store.native_columns, store.statistics
    return int(pages[0])


def _close_native(gate: Gate, handle: Any, owned: list[Any]) -> None:
    """Free an index that was dropped without close(); in a forked child there is nothing to free."""
    if gate.forked or not gate.close():
        return
    _native.lib.velo_index_close(handle)
    with contextlib.ExitStack() as stack:  # all are closed, whichever fails
        for thing in owned:
            stack.callback(thing.close)


class Index(FurtherSearches, Lookups, LiveVerbs):
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

    _gate: Gate

    if not TYPE_CHECKING:  # a type checker would believe that there is every attribute

        def __new__(cls, *args: Any, **kwargs: Any) -> Index:
            """Say how an index is made to who calls the class."""
            if len(args) < 3:
                raise TypeError(
                    "velo.Index is not called: velo.build(path, vectors) makes an index, "
                    "velo.open(path) opens one"
                )
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            """Name velo's word for what another library calls so."""
            hint = METHODS.get(name)
            raise AttributeError(
                f"'Index' object has no attribute {name!r}" + (f": {hint}" if hint else ""),
                name=name,
                obj=self,
            )

    def __init__(
        self,
        folder: Path,
        handle: Any,
        reopen: partial[Index],
        live: LiveData | None = None,
        *,
        unknown_is_missing: bool = False,
    ) -> None:
        self.path = folder
        self._handle = handle
        self._reopen = reopen
        self._gate = Gate(str(folder))
        info = self._native_info()
        self.n = int(info.n)
        self.dim = int(info.dim)
        self._single_shapes = ((self.dim,), (1, self.dim))
        self.metric: MetricName = _METRICS[info.metric]
        data = folder if live is None else live.part
        self._ids = Ids(data, self.n, read_manifest(data).first_row)
        self._metadata = open_metadata(data, self.n)
        self._unknown_is_missing = unknown_is_missing
        self._filters = compiler_for(self.n, self._metadata, self._ids, unknown_is_missing)
        self._completions = Completions(handle, self._gate)
        self._prepared = PreparedOptions(handle, self._gate)
        self._live: LiveData | None = None
        self._refreshing = threading.Lock()
        self._owned = owned = [self._completions, self._filters]
        if live is not None:
            live.begin(self._ids)
            self._own(live)
        self._finalizer = weakref.finalize(self, _close_native, self._gate, handle, owned)

    def _own(self, live: LiveData) -> None:
        """Changes that are closed with the index."""
        self._owned.append(live)
        self._live = live

    def _view(self) -> View | None:
        """The rows that live now; None where all do."""
        if self._live is None:
            return None
        with self._gate:
            view = self._live.view()
        return None if view.rows is None else view

    # ---- search ----

    @hinted
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
    ) -> SearchResult:
        """Find the k nearest vectors of each query.

        Parameters
        ----------
        queries : array-like of shape (nq, dim) or (dim,)
            float32, float16, float64, uint8 or int8. A single query of shape (dim,) gives results of
            shape (k,).
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
        """
        columns = None if return_metadata is None else self._columns(return_metadata)
        if group_by is not None:
            prepare = self._rounds(recall, list_size, timeout_s, tuning, exact)
            script, single = self._group_script(queries, k, filter, group_by, group_size)
            return self._group_result(drive(script, lambda one: self._run(prepare(one))), single, columns)
        check_no_group_size(group_size)
        if type(k) is int and k > k_of_one_search():
            prepare = self._rounds(recall, list_size, timeout_s, tuning, exact)
            pages, single = self._page_script(queries, k, filter)
            return self._page_result(drive(pages, lambda one: self._run(prepare(one))), single, columns)
        if (
            filter is None
            and columns is None
            and type(queries) is np.ndarray
            and queries.shape in self._single_shapes
        ):
            prepared = self._prepared.of(k, recall, list_size, timeout_s, tuning, exact)
            view = self._view()
            rows = None if view is None else view.rows
            return prepared.search_one(self._handle, self._gate, self._ids, queries, rows)
        request = self._request(queries, k, filter, recall, list_size, timeout_s, tuning, exact)
        return self._result(self._run(request), columns)

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
    ) -> SearchResult:
        """Find the k nearest vectors of each query without blocking the event loop.

        Any number of calls can run at once, from any number of event loops. Where the library's queue is
        full, further calls wait for their turn. To cancel the task ends its queries.

        Parameters
        ----------
        queries, k, filter, recall, list_size, exact, return_metadata :
            As for :meth:`search`.
        group_by, group_size, timeout_s, tuning :
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
        columns = self._columns(return_metadata)
        if group_by is not None:
            prepare = self._rounds(recall, list_size, timeout_s, tuning, exact)
            script, single = self._group_script(queries, k, filter, group_by, group_size)
            found = await drive_async(script, lambda one: self._run_async(prepare(one)))
            return self._group_result(found, single, columns)
        check_no_group_size(group_size)
        if type(k) is int and k > k_of_one_search():
            prepare = self._rounds(recall, list_size, timeout_s, tuning, exact)
            pages, single = self._page_script(queries, k, filter)
            whole = await drive_async(pages, lambda one: self._run_async(prepare(one)))
            return self._page_result(whole, single, columns)
        request = self._request(queries, k, filter, recall, list_size, timeout_s, tuning, exact)
        return self._result(await self._run_async(request), columns)

    def _arguments(self, request: Request) -> Any:
        """What every native search takes, up to its end."""
        return (
            self._handle,
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
            with self._gate:
                return request
        _native.check(self._gate.call(_native.lib.velo_search, *self._arguments(request)), argument)
        return request

    async def _run_async(self, request: Request) -> Request:
        """The same without blocking the event loop."""
        if request.query_count == 0:
            with self._gate:
                return request
        arguments = self._arguments(request)
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
        started = time.perf_counter()
        counted = replace(tuning or SearchTuning(), count_used=True)
        request = self._request(query, k, filter, recall, list_size, None, counted, exact)
        if request.query_count != 1:
            raise InvalidArgumentError("explain takes a single query", argument="query")
        with self._gate:
            plan = filter_plan_of(self._handle, request, counted.filter_plan)
        prepared = time.perf_counter()
        self._run(request, "query")
        searched = time.perf_counter()
        result = self._result(request, None)
        ended = time.perf_counter()
        return Explanation(
            result=result,
            index=self.info(),
            matches=request.filters[0].count()
            if request.filters and request.filters[0] is not None
            else None,
            times_us={
                "filter and arguments": (prepared - started) * 1e6,
                "search": (searched - prepared) * 1e6,
                "ids": (ended - searched) * 1e6,
            },
            request={"k": k, "list_size": request.expected.list_size, "recall": recall or "none"},
            filter_plan=plan,
        )

    def _request(
        self,
        queries: Any,
        k: int,
        filters: Any,
        recall: float | None,
        list_size: int | None,
        timeout_s: float | None,
        tuning: SearchTuning | None,
        exact: bool | None,
        view: View | None = None,
    ) -> Request:
        self._check_open()
        prepared = self._prepared.of(k, recall, list_size, timeout_s, tuning, exact)
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

    def _check_open(self) -> None:
        """Refuse an index that is closed, or was opened before a fork."""
        if self._gate.forked or self._gate.closed:
            with self._gate:  # says which
                pass

    def _columns(self, return_metadata: Sequence[str] | bool | None) -> list[str] | None:
        """The columns to return, checked before the search."""
        if return_metadata is None or return_metadata is False:
            return None
        known = [] if self._metadata is None else list(self._metadata.column_names)
        if return_metadata is True:
            return known
        if isinstance(return_metadata, str):
            return_metadata = [return_metadata]
        if not isinstance(return_metadata, Sequence):
            raise InvalidArgumentError(
                f"return_metadata is True or a list of columns, not {return_metadata!r}",
                argument="return_metadata",
            )
        wanted = list(return_metadata)
        for name in wanted:
            if name not in known:
                raise UnknownColumnError(
                    f"no column {name!r}; there are: {', '.join(known) or 'none'}", argument="return_metadata"
                )
        return wanted

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

    # ---- metadata ----

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
        self._change_metadata(table, ids_column=ids_column)

    def add_columns(self, table: Any, *, ids_column: str | None = None, overwrite: bool = False) -> None:
        """Add columns to the metadata, atomically as :meth:`set_metadata`.

        Parameters
        ----------
        table, ids_column :
            As for :meth:`set_metadata`.
        overwrite : bool
            Columns of the same name take the place of those that are there; refused without it.

        Raises
        ------
        InvalidArgumentError
            Also where the index has a column of that name.
        UnknownColumnError, UnknownIdError, DuplicateIdError, BusyError

        Examples
        --------
        >>> with velo.open("shop.velo") as index:
        ...     index.add_columns({"color": ["red", "blue"] * 1_000})
        ...     index.info()["columns"]
        ['label', 'price', 'brand', 'tags', 'color']
        """
        self._change_metadata(table, ids_column=ids_column, keep=True, overwrite=overwrite)

    def _change_metadata(self, table: Any, **how: Any) -> None:
        with self._gate:
            if self._live is not None:
                raise UnsupportedError(
                    f"{self.path} is open to write, or has rows that were deleted: "
                    "its metadata cannot be exchanged"
                )
            change_metadata(self.path, table, self.n, self._ids, **how)
            before = self._filters
            self._metadata = open_metadata(self.path, self.n)
            self._filters = compiler_for(self.n, self._metadata, self._ids, self._unknown_is_missing)
            self._owned[:] = [self._completions, self._filters]
            before.close()

    # ---- the rest ----

    def get_vectors(self, ids: Any) -> Float32Array:
        """The stored vectors of some ids.

        Parameters
        ----------
        ids : array-like of shape (m,)

        Returns
        -------
        ndarray of shape (m, dim), float32
            In the space of the input.

        Raises
        ------
        UnknownIdError
        UnsupportedError
            The index was built without ``store_vectors=True``.

        Examples
        --------
        >>> index.get_vectors([3, 5]).shape
        (2, 32)
        """
        single = isinstance(ids, str | int | np.integer)
        vertices = self._ids.vertices([ids] if single else ids).astype(np.uint32)
        view = self._view()
        if view is not None and view.rows is not None:
            dead = np.flatnonzero(~view.rows.check(vertices))
            if len(dead):
                raise UnknownIdError(
                    "no vector has this id any more: it was deleted", argument="ids", row=int(dead[0])
                )
        vectors = np.empty((len(vertices), self.dim), np.float32)
        with self._gate:
            _native.check(
                _native.lib.velo_get_vectors(
                    self._handle,
                    _native.pointer("uint32_t", vertices),
                    len(vertices),
                    _native.pointer("float", vectors, writable=True),
                ),
                "ids",
            )
        return vectors

    def verify(self) -> int:
        """Read every file whole and check every checksum, page and link.

        Returns
        -------
        int
            How many pages were checked.

        Raises
        ------
        CorruptIndexError
            A file is damaged. The message names it, and the page.
        """
        with self._gate:
            return verify_folder(self.path)

    def _native_info(self) -> Any:
        info = _native.new("velo_index_info")
        with self._gate:
            _native.check(_native.lib.velo_index_info_get(self._handle, info))
        return info

    def info(self) -> dict[str, Any]:
        """What this index is and what it costs.

        Returns
        -------
        dict
            Among others ``n``, ``dim``, ``metric``, ``plan``, ``memory_bytes`` (by part), of them
            ``memory_within_budget_bytes`` (what a budget bounds: codes, links, cache, page directory) and
            ``memory_beside_budget_bytes`` (workers, filters and tombstones), ``disk_bytes`` (by file),
            ``column_bytes`` (mapped from the file as far as filters touch them), ``device``, and ``live``:
            what was changed since it was built, None where nothing was.

        Examples
        --------
        >>> info = index.info()
        >>> info["n"], info["dim"], info["metric"], info["columns"]
        (2000, 32, 'l2', ['label', 'price', 'brand', 'tags'])
        """
        info = self._native_info()
        memory = {
            "codes": int(info.memory_codes_bytes),
            "links": int(info.memory_links_bytes),
            "cache": int(info.memory_cache_bytes),
            "pages": int(info.memory_pages_bytes),
            "workers": int(info.memory_workers_bytes),
            "filters": self._filters.memory_bytes,
        }
        if self._live is not None:
            with self._gate:
                memory["live"] = self._live.memory_bytes
        return {
            "path": str(self.path),
            "uuid": _native.text(info.uuid),
            "n": self.n,
            "dim": self.dim,
            "metric": self.metric,
            "dtype": _DTYPE_NAMES.get(info.dtype, "unknown"),
            "ids": self._ids.kind,
            "columns": [] if self._metadata is None else list(self._metadata.column_names),
            "column_bytes": {} if self._metadata is None else self._metadata.bytes_by_column,
            "memory_bits": int(info.memory_bits),
            "record_bits": int(info.record_bits),
            "degree": int(info.degree),
            "links_built": int(info.links_built),
            "links_kept": int(info.links_kept),
            "page_size": int(info.page_size),
            "page_count": int(info.page_count),
            "records_per_page": float(info.records_per_page),
            "page_links": bool(info.page_links),
            "edges_per_vertex": float(info.edges_per_vertex),
            "adjacency_bits_per_edge": float(info.adjacency_bits_per_edge),
            "plan": _PLANS.get(info.plan, "unknown"),
            "threads": int(info.threads),
            "queries_in_flight": int(info.queries_in_flight),
            "stores_vectors": bool(info.stores_vectors),
            "memory_bytes": memory,
            "memory_bytes_total": sum(memory.values()),
            "memory_within_budget_bytes": sum(memory[part] for part in BUDGETED),
            "memory_beside_budget_bytes": sum(memory.values()) - sum(memory[part] for part in BUDGETED),
            "memory_budget_bytes": int(info.memory_budget_bytes) or None,
            "disk_bytes": _disk_bytes(self.path),
            "live": self._live_info(),
            "device": device_dict(info.device),
        }

    def _live_info(self) -> dict[str, Any] | None:
        live = self._live
        if live is None:
            return None
        with self._gate:
            info = live.info()
        part = {"path": live.part.name, "n": int(info.rows), "dead": int(info.dead_rows)}
        return {
            "writable": bool(info.is_writable),
            "durability": live.durability,
            "sequence": int(info.sequence),
            "dead": int(info.dead_rows),
            "parts": [part],
            "log_bytes": int(info.log_bytes),
            "log_durable_bytes": int(info.log_synced_bytes),
        }

    def close(self) -> None:
        """Stop the workers and give memory and files back; twice is once. Searches under way end first.

        In a forked child this does nothing: the index is its parent's.
        """
        self._finalizer()

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._gate.closed

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Rows that live."""
        live = self._live
        if live is None:
            return self.n
        with self._gate:
            return self.n - int(live.info().dead_rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._reopen,)

    def __repr__(self) -> str:
        state = ", closed" if self._gate.closed else ""
        return f"velo.Index({str(self.path)!r}, n={self.n}, dim={self.dim}, metric={self.metric!r}{state})"


def _reopened(reopen: partial[Index]) -> Index:
    return reopen()


def _disk_bytes(folder: Path) -> dict[str, int]:
    files = (entry for entry in sorted(folder.rglob("*")) if entry.is_file())
    return {str(entry.relative_to(folder)): entry.stat().st_size for entry in files}


def device_dict(device: Any) -> Mapping[str, Any]:
    """A ``velo_device_info`` as a dict."""
    return {
        "name": _native.text(device.name),
        "io": _IO_NAMES.get(device.io, "unknown"),
        "direct": bool(device.direct),
        "queue_depth": int(device.queue_depth),
        "uring_errno": int(device.uring_errno),
        "direct_errno": int(device.direct_errno),
        "reason": _native.text(device.reason),
        "advice": _native.text(device.advice),
    }
