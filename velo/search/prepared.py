"""Checked search options, their expected cost and the cost of filters, and buffers for single queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from velo import _native
from velo.filters.native import NativeFilter
from velo.folder.ids import Ids
from velo.options import FILTER_PLANS, Effort, fill_search
from velo.results import Expectation, FilterCost, FilterPlan, SearchResult
from velo.search.answer import QUERY_DTYPES, Answer, Counters, expectation_of, native_queries
from velo.segments.segment import Segment
from velo.types import AnyArray

_NAMES: Final = {code: name for name, code in FILTER_PLANS.items()}


def filter_plan_of(
    index: int,
    filter: NativeFilter | None,  # noqa: A002
    options: Any,
    option: str,
) -> FilterPlan | None:
    if filter is None:
        return None
    info = _native.new("velo_filter_plan_info")
    status = _native.lib.velo_filter_plan(index, filter.handle, options, info)
    _native.check(status, "filter")
    costs = {name: _cost(getattr(info, name)) for name in ("scan", "gate", "late")}
    chosen = _NAMES[info.plan]
    return FilterPlan(
        chosen=chosen,
        reason=_reason(chosen, option, float(info.matches), costs),
        matches=float(info.matches),
        matches_exact=bool(info.matches_exact),
        costs=costs,
        gate_needs_bytes=int(info.gate_needs_bytes),
    )


def _cost(cost: Any) -> FilterCost:
    return FilterCost(
        possible=bool(cost.possible),
        reads=float(cost.reads),
        estimates=float(cost.estimates),
        expanded=float(cost.expanded),
        cost_us=float(cost.us),
    )


def _reason(chosen: str, option: str, matches: float, costs: dict[str, FilterCost]) -> str:
    if option != "auto":
        return "asked for" if chosen == option else f"{option} was asked for, and links are on disk"
    if matches == 0:
        return "nothing passes, so nothing is looked at"
    if not (costs["scan"].possible or costs["late"].possible):
        return "pages with a match are read, and others only where they lead to one"
    other = costs["gate"] if costs["gate"].possible else costs["late"]
    if chosen == "scan":
        return f"looking at all that pass takes less than a walk of {other.expanded:,.0f} hops"
    ahead = f"a walk of {other.expanded:,.0f} hops takes less than looking at all that pass"
    return ahead if costs["gate"].possible else f"{ahead}, and without links in memory every hop is a read"


#: Limits of kept buffers for single queries: neighbors, and number of buffers.
_SPARE_K_MAX: Final = 256
_SPARE_MAX: Final = 256
#: Page reads for one answer if nearly every answer is on a page of its own (zig/src/search/filter_plan.zig).
_READS_OF_ANSWER: Final = 1.15


class Prepared:
    """Options of a search, checked, and spare buffers for the searches of one query with them."""

    __slots__ = ("_spare", "_spare_max", "expected", "k", "options")

    def __init__(self, options: Any, expected: Expectation) -> None:
        self.options = options
        self.expected = expected
        self.k = int(options.k)
        # Taken and given back by atomic calls; what an exception keeps from coming back is merely forgotten.
        self._spare: list[Answer] = []
        self._spare_max = _SPARE_MAX if self.k <= _SPARE_K_MAX else 0

    def search_one(
        self, check_open: Callable[[], None], segments: Sequence[Any], ids: Ids, query: AnyArray
    ) -> SearchResult:
        """The answer to one query without a filter of the caller.

        Threads that search one query each share the interpreter's lock, so this method does little beside the
        native call.
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
        array, count, delta, filter_count, _ = segments
        status = _native.lib.velo_search_segments(
            array,
            count,
            delta,
            _native.ffi.from_buffer(query),
            dtype,
            1,
            filter_count,
            self.options,
            answer.out,
        )
        if status != 0:
            check_open()
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


def prepare(segments: Sequence[Segment], k: int, effort: Effort) -> Prepared:
    """Check the options of a search over `segments`, largest first, and find its expected cost."""
    options = _native.new("velo_search_options")
    fill_search(options, k, *effort)
    expected = _together(
        [(segment.n, _expectation(segment, options)) for segment in segments], int(options.k)
    )
    return Prepared(options, expected)


def _expectation(segment: Segment, options: Any) -> Expectation:
    out = _native.new("velo_expectation")
    _native.check(_native.lib.velo_expect(segment.handle, options, out))
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


def _together(segments: Sequence[tuple[int, Expectation]], k: int) -> Expectation:
    """The cost of one search over all segments; the recall is the lowest of theirs."""
    if len(segments) == 1:
        return segments[0][1]
    list_size = max((one.list_size for _, one in segments), default=0)
    if not segments or any(one.recall is None for _, one in segments):
        return Expectation(list_size)
    rows = sum(n for n, _ in segments)
    # Within the common bound a smaller segment reads a page for each answer that it holds.
    shares = [1.0]
    for n, one in segments[1:]:
        answers = _READS_OF_ANSWER * k * n / rows
        shares.append(min(1.0, answers / one.reads) if one.reads else 1.0)

    def total(name: str) -> float:
        return sum(float(getattr(one, name) or 0.0) for _, one in segments)

    def total_read(name: str) -> float:
        found = [float(getattr(one, name) or 0.0) for _, one in segments]
        return sum(value * share for value, share in zip(found, shares, strict=True))

    return Expectation(
        list_size=list_size,
        recall=min(one.recall for _, one in segments if one.recall is not None),
        reads=total_read("reads"),
        rounds=segments[0][1].rounds,
        estimates=total("estimates"),
        expanded=total("expanded"),
        records_scored=total_read("records_scored"),
    )
