"""The searches of a collection: all of its shards seen as one index, each of which answers for its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from velo import _native
from velo.errors import InvalidArgumentError
from velo.filters.arguments import filters_of, of_rows
from velo.filters.compiler import Columns, FilterCompiler
from velo.filters.native import NativeFilter
from velo.folder.ids import Ids
from velo.options import Effort, fill_search
from velo.parts.gate import Gate
from velo.parts.many import ManyColumns, ManyCompiler, ManyFilter, ManyIds
from velo.results import Expectation, FilterPlan
from velo.search.request import Request
from velo.search.script import Round
from velo.search.searches import Searches
from velo.search.view_searches import look_at_all
from velo.types import AnyArray
from velo.words.file import Words

__all__ = ["ShardSearches"]


class _Stretch:
    """The rows of a shard among those of all; see :class:`velo.parts.many.Stretch`."""

    def __init__(self, at: Searches) -> None:
        self.n = at.n
        self.ids: Ids = at._ids
        self.metadata: Columns | None = at._metadata
        self.compiler: FilterCompiler = at._filters

    @property
    def memory_bytes(self) -> int:
        return self.compiler.memory_bytes


class _Compiler(ManyCompiler):
    """Filters over all shards; a mask is over the rows of all, in the order of the shards."""

    def compile(self, condition: Any) -> NativeFilter:
        if isinstance(condition, NativeFilter):
            return condition
        ends = np.cumsum([one.n for one in self._stretches]).tolist()
        return ManyFilter(
            [
                one.compiler.compile(of_rows(condition, end - one.n, end, ends[-1]))
                for one, end in zip(self._stretches, ends, strict=True)
            ]
        )


class ShardsRequest(Request):
    """A request to all shards, and one answer."""

    __slots__ = ("_firsts", "requests")

    def __init__(
        self,
        shards: Sequence[Searches],
        queries: Any,
        k: int,
        effort: Effort,
        filters: Sequence[NativeFilter | None],
    ) -> None:
        options = _native.new("velo_search_options")
        fill_search(options, k, *effort)
        super().__init__(queries, shards[0].dim, int(options.k), options, filters, _native.ffi.NULL)
        if self.filter_count > 1 and self.filter_count != self.query_count:
            raise InvalidArgumentError(
                f"{self.filter_count} filters were given for {self.query_count} queries", argument="filter"
            )
        self._firsts = np.cumsum([0, *(one.n for one in shards)])
        self.requests = [
            one._request(self.queries, k, self._filters_of(number), effort)
            for number, one in enumerate(shards)
        ]
        self.expected = _together([one.expected for one in self.requests])

    def _filters_of(self, number: int) -> list[NativeFilter | None] | None:
        """Those of one shard."""
        return [one.parts[number] if isinstance(one, ManyFilter) else None for one in self.filters] or None

    def merged(self) -> ShardsRequest:
        """The one answer, once all shards have answered."""
        slowest = np.max([one.stats()["latency_us"] for one in self.requests], axis=0)
        for one, first in zip(self.requests, self._firsts, strict=False):
            one.vertices[one.vertices >= 0] += first
        self.take_nearest(self.requests)
        self.stats()["latency_us"][:] = slowest
        return self


def _together(shards: Sequence[Expectation]) -> Expectation:
    """What searches of all shards are expected to cost together; the recall is the least of theirs."""
    list_size = max(one.list_size for one in shards)
    if any(one.recall is None for one in shards):
        return Expectation(list_size)

    def of_all(name: str) -> list[float]:
        return [float(getattr(one, name) or 0.0) for one in shards]

    summed = ("reads", "estimates", "expanded", "records_scored")
    return Expectation(
        list_size,
        recall=min(of_all("recall")),
        rounds=max(of_all("rounds")),
        **{name: sum(of_all(name)) for name in summed},
    )


class ShardSearches(Searches):
    """Shards that are searched as one index, each as it is now.

    Parameters
    ----------
    shards : sequence of Searches
        What a search of each sees.
    gate : Gate
        The collection's.
    pool : Executor
        Threads that wait for shards.
    info : callable
        Gives the collection's :meth:`velo.Index.info`, as long as there is the collection.
    """

    def __init__(
        self,
        shards: Sequence[Searches],
        gate: Gate,
        pool: Executor,
        info: Callable[[], Callable[[], dict[str, Any]] | None],
    ) -> None:
        self._shards = shards
        self._gate = gate
        self._pool = pool
        self._info = info
        self.dim = shards[0].dim
        self._firsts = np.cumsum([0, *(one.n for one in shards)])
        self._single_shapes = ()
        stretches = [_Stretch(one) for one in shards]
        self._ids = ManyIds(stretches, stretches[0].ids.kind, [one._living for one in shards])
        metadata: Any = None if shards[0]._metadata is None else ManyColumns(stretches)
        self._metadata = metadata
        self._filters = _Compiler(stretches, metadata)

    @property
    def n(self) -> int:
        """Rows of all shards, dead ones among them."""
        return int(self._firsts[-1])

    def info(self) -> dict[str, Any]:
        """What the collection is and what it costs."""
        told = self._info()
        return {} if told is None else told()

    def _seen(self) -> ShardSearches:
        return self

    def _view(self) -> None:
        """Each shard knows which of its rows live."""

    def _request(self, queries: Any, k: int, filters: Any, effort: Effort, view: Any = None) -> Request:
        with self._gate.inside():
            request = ShardsRequest(self._shards, queries, k, effort, filters_of(filters, self._filters))
        request.store = self._metadata
        return request

    def _rounds(self, effort: Effort) -> Callable[[Round], Request]:
        """A search by radius or by groups, or for very many, misses no row of a delta."""
        prepare = super()._rounds(effort)

        def prepare_all(one: Round) -> Request:
            request = prepare(one)
            assert isinstance(request, ShardsRequest)
            for of_shard in request.requests:
                look_at_all(of_shard)
            return request

        return prepare_all

    def _run(self, request: Request, argument: str = "queries") -> Request:
        assert isinstance(request, ShardsRequest)
        with self._gate.inside():
            others = [
                self._pool.submit(shard._run, one, argument)
                for shard, one in zip(self._shards[1:], request.requests[1:], strict=True)
            ]
            try:
                self._shards[0]._run(request.requests[0], argument)
            finally:
                failures = [one.exception() for one in others]  # what they write into must live until then
            for failure in failures:
                if failure is not None:
                    raise failure
            return request.merged()

    async def _run_async(self, request: Request) -> Request:
        assert isinstance(request, ShardsRequest)
        searches = [shard._run_async(one) for shard, one in zip(self._shards, request.requests, strict=True)]
        await asyncio.gather(*searches)
        return request.merged()

    def _filter_plan(self, request: Request, asked: str) -> FilterPlan | None:
        """How the largest shard meets the filter."""
        assert isinstance(request, ShardsRequest)
        largest = max(range(len(self._shards)), key=lambda number: self._shards[number].n)
        return self._shards[largest]._filter_plan(request.requests[largest], asked)

    def _matches(self, request: Request) -> int | None:
        assert isinstance(request, ShardsRequest)
        found = [shard._matches(one) for shard, one in zip(self._shards, request.requests, strict=True)]
        return None if found[0] is None else sum(one or 0 for one in found)

    def _word_stretches(self, column: str) -> Iterator[tuple[int, Words]]:
        for first, shard in zip(self._firsts.tolist(), self._shards, strict=False):
            for start, words in shard._word_stretches(column):
                yield first + start, words

    def shards_of(self, vertices: AnyArray) -> AnyArray:
        """The shard of each vertex."""
        places: AnyArray = np.searchsorted(self._firsts, vertices, side="right") - 1
        return places

    def _vectors(self, vertices: AnyArray, *, decoded: bool = False) -> AnyArray:
        out = np.empty((len(vertices), self.dim), np.float32)
        places = self.shards_of(vertices)
        for place in np.unique(places):
            inside = np.flatnonzero(places == place)
            own = vertices[inside] - self._firsts[place]
            out[inside] = self._shards[place]._vectors(own, decoded=decoded)
        return out

    def _passing(self, condition: Any) -> NativeFilter | None:
        """The rows that live and pass one filter; None where all do."""
        self._check_open()
        whole = super()._passing(condition)
        parts = whole.parts if isinstance(whole, ManyFilter) else [None] * len(self._shards)
        found = [shard._passing(part) for shard, part in zip(self._shards, parts, strict=True)]
        if all(one is None for one in found):
            return None
        return ManyFilter(
            [
                shard._filters.compile_matches(np.ones(shard.n, bool)) if one is None else one
                for shard, one in zip(self._shards, found, strict=True)
            ]
        )
