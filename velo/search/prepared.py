"""What searches with the same options share: options that were checked, and buffers for single queries."""

from __future__ import annotations

from typing import Any, Final

from velo import _native
from velo.filters.native import NativeFilter
from velo.folder.ids import Ids
from velo.options import SearchTuning, fill_search
from velo.parts.gate import Gate
from velo.parts.part import Part
from velo.results import Expectation, SearchResult
from velo.search.request import QUERY_DTYPES, Answer, Counters, expectation_of, native_queries
from velo.types import AnyArray

__all__ = ["Prepared", "PreparedOptions"]

#: Prepared options kept by an index; a service uses a handful.
_KEPT: Final = 64
#: Buffers for single queries are kept for at most so many neighbors, and so many of them.
_SPARE_K_MAX: Final = 256
_SPARE_MAX: Final = 256


class Prepared:
    """Options of a search, checked, and spare buffers for the searches of one query with them.

    Attributes
    ----------
    options : velo_search_options
    expected : Expectation
    k : int
    """

    __slots__ = ("_spare", "_spare_max", "expected", "k", "options")

    def __init__(self, options: Any, expected: Expectation) -> None:
        self.options = options
        self.expected = expected
        self.k = int(options.k)
        # Taken and given back by atomic calls; what an exception keeps from coming back is merely forgotten.
        self._spare: list[Answer] = []
        self._spare_max = _SPARE_MAX if self.k <= _SPARE_K_MAX else 0

    def search_one(
        self, handle: Any, gate: Gate, ids: Ids, query: AnyArray, rows: NativeFilter | None = None
    ) -> SearchResult:
        """The answer to one query without a filter: little but the library's own call.

        Where many threads ask one query each, they share the interpreter's lock, and the processors with the
        library's workers: what a call takes here is taken from searching.

        Parameters
        ----------
        handle : velo_index
        gate, ids :
            The index's.
        query : ndarray of shape (dim,) or (1, dim)
        rows : NativeFilter, optional
            Those that live, where some are dead.
        """
        dtype = QUERY_DTYPES.get(query.dtype)
        if dtype is None or not query.flags.c_contiguous:
            query = native_queries(query, query.shape[-1])[0].reshape(query.shape)
            dtype = QUERY_DTYPES[query.dtype]
        spare = self._spare
        try:
            answer = spare.pop()
        except IndexError:
            answer = Answer(1, self.k)
        ffi = _native.ffi
        status = gate.call(
            _native.lib.velo_search,
            handle,
            ffi.from_buffer(query),
            dtype,
            1,
            ffi.NULL if rows is None else [rows.handle],
            0 if rows is None else 1,
            self.options,
            answer.out,
        )
        if status != 0:
            _native.check(status, "queries")
        narrow = answer.narrow.copy()
        counts = narrow[0]
        vertices, distances = answer.first if query.ndim == 1 else (answer.vertices, answer.distances)
        stats = Counters(narrow, answer.wide.copy())
        result = SearchResult(
            ids.of(vertices, counts.item() == self.k),
            distances.copy(),
            counts,
            stats,
            None,
            expectation_of(self.expected, stats) if stats["outside"].item() else self.expected,
        )
        if len(spare) < self._spare_max:
            spare.append(answer)
        return result


class PreparedOptions:
    """The options with which a part was searched lately; it holds them."""

    __slots__ = ("_part",)

    def __init__(self, part: Part) -> None:
        self._part = part

    def of(
        self,
        k: int,
        recall: float | None,
        list_size: int | None,
        timeout_s: float | None,
        tuning: SearchTuning | None,
        exact: bool | None,
    ) -> Prepared:
        """The options of a search, checked.

        Raises
        ------
        InvalidArgumentError, ClosedError, ForkedError
        """
        # The types too: True and 1.0 would be found under 1, and neither is a k.
        key = (k, type(k), recall, list_size, type(list_size), timeout_s, tuning, exact, type(exact))
        try:
            found: Prepared = self._part.known_options[key]
        except (KeyError, TypeError):
            pass
        else:
            return found
        struct = _native.new("velo_search_options")
        fill_search(struct, k, recall, list_size, timeout_s, tuning, exact)
        known = self._part.known_options
        if len(known) >= _KEPT:
            known.clear()
        prepared = known[key] = Prepared(struct, self._expectation(struct))
        return prepared

    def _expectation(self, options: Any) -> Expectation:
        out = _native.new("velo_expectation")
        _native.check(self._part.gate.call(_native.lib.velo_expect, self._part.handle, options, out))
        if not out.calibrated:
            return Expectation(int(out.list_size))
        return Expectation(
            list_size=int(out.list_size),
            recall=float(out.recall),
            reads=float(out.reads),
            rounds=float(out.rounds),
            estimates=float(out.estimates),
            expanded=float(out.expanded),
            records_scored=float(out.records_scored),
        )
