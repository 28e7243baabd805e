"""The searches of a view: everything that one call asks for comes from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from velo import _native
from velo.filters.arguments import filters_of
from velo.filters.native import NativeFilter
from velo.options import Effort
from velo.parts.delta import DeltaRows
from velo.parts.gate import Gate
from velo.parts.part import Part
from velo.parts.view import AliveRows, View
from velo.results import FilterPlan
from velo.search.merged import MergedRequest
from velo.search.prepared import PreparedOptions
from velo.search.request import Answer, Request
from velo.search.script import Round
from velo.search.searches import Searches
from velo.types import AnyArray
from velo.words.file import Words

__all__ = ["ViewSearches", "look_at_all"]


def look_at_all(request: Request) -> None:
    """Let a request miss no row of the delta."""
    if isinstance(request, MergedRequest):
        request.look_at_all()


class ViewSearches(Searches):
    """A view that is searched.

    Parameters
    ----------
    view : View
    gate : Gate
        The index's.
    info : callable
        Gives the index's :meth:`velo.Index.info`, as long as there is the index.
    """

    def __init__(
        self, view: View, gate: Gate, info: Callable[[], Callable[[], dict[str, Any]] | None]
    ) -> None:
        self.seen = view
        self._gate = gate
        self._info = info
        self.dim = view.shape.dim
        self._ids, self._metadata, self._filters = view.ids, view.metadata, view.filters
        self._single_shapes = ()
        if view.sole is not None:
            self._handle = view.sole.handle
            self._completions, self._prepared = view.sole.completions, PreparedOptions(view.sole)
            self._single_shapes = ((self.dim,), (1, self.dim))

    @property
    def n(self) -> int:
        """Rows of all parts and of the delta, dead ones among them."""
        return self.seen.n

    def info(self) -> dict[str, Any]:
        """What the index is and what it costs."""
        told = self._info()
        return {} if told is None else told()

    def _seen(self) -> ViewSearches:
        return self

    def _view(self) -> AliveRows | None:
        """The rows that live; None where all do."""
        if self.seen.sole is None:
            return None
        alive = self.seen.alive[0]
        return None if alive.rows is None else alive

    def _request(self, queries: Any, k: int, filters: Any, effort: Effort, view: Any = None) -> Request:
        if self.seen.sole is not None:
            return super()._request(queries, k, filters, effort, view)
        with self._gate.inside():
            return MergedRequest(self.seen, queries, k, effort, filters_of(filters, self._filters))

    def _rounds(self, effort: Effort) -> Callable[[Round], Request]:
        """A search by radius or by groups, or for very many, misses no row of the delta."""
        prepare = super()._rounds(effort)

        def prepare_all(one: Round) -> Request:
            request = prepare(one)
            look_at_all(request)
            return request

        return prepare_all

    def _run(self, request: Request, argument: str = "queries") -> Request:
        if not isinstance(request, MergedRequest):
            return super()._run(request, argument)
        if request.query_count == 0:
            with self._gate.inside():
                return request

        def search(_: Part, arguments: Sequence[Any], answer: Answer) -> None:
            _native.check(self._gate.call(_native.lib.velo_search_parts, *arguments, answer.out), argument)

        with self._gate.inside():
            return request.run(search)

    async def _run_async(self, request: Request) -> Request:
        if not isinstance(request, MergedRequest):
            return await super()._run_async(request)
        if request.query_count == 0:
            with self._gate.inside():
                return request

        async def search(first: Part, arguments: Sequence[Any], answer: Answer) -> None:
            submit = _native.lib.velo_submit_parts
            keep = request, answer
            # The library tells the first index that was given that its search has ended.
            status = await first.completions.run(
                lambda ticket: submit(*(*arguments, answer.out, ticket)), keep
            )
            if status != 0:
                raise request.failure(status)

        return await request.run_async(search)

    def _filter_plan(self, request: Request, asked: str) -> FilterPlan | None:
        """How the largest part meets the filter."""
        if not isinstance(request, MergedRequest):
            return super()._filter_plan(request, asked)
        with self._gate.inside():
            return request.filter_plan(asked)

    def _matches(self, request: Request) -> int | None:
        return request.matches() if isinstance(request, MergedRequest) else super()._matches(request)

    def _word_stretches(self, column: str) -> Iterator[tuple[int, Words]]:
        start = 0
        stretches: list[Part | DeltaRows] = [*self.seen.parts, *self.seen.delta]
        for stretch in stretches:
            yield start, stretch.words(column)
            start += stretch.n

    # ---- rows by id

    def _vectors(self, vertices: AnyArray, *, decoded: bool = False) -> AnyArray:
        return self.seen.vectors(vertices, decoded=decoded)

    def _living(self, found: Any) -> Any:
        """Of vertices that ids were found at, -1 for none, whether they live."""
        there = found >= 0
        there[there] = self.seen.are_alive(found[there])
        return there

    def _passing(self, given: Any) -> NativeFilter | None:
        """The rows that live and pass one filter."""
        if self.seen.sole is not None:
            return super()._passing(given)
        alive = self.seen.alive_rows()
        if given is not None:
            alive &= self._filters.compile(given).matches()
        return self._filters.compile_matches(alive)
