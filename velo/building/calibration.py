"""Calibration of ``recall``: the list sizes that reach it, measured at the end of a build; kept in the
manifest.

The queries are a sample of rows, or queries given by the caller. Their exact neighbors among all other rows
come from one pass over the input (:mod:`velo.building.held_out`). Then the finished index is searched for
them with growing lists, each query's own vertex taken as absent. That is done for several numbers of links in
memory, for links on disk and for page centroids alone, since an open index may run any of these plans, and,
with the most links, for k other than 10.

A segment of live data adopts the table of the largest segment and measures only a few of its points on rows
of its own: the ratio of misses scales the others (:meth:`_Table.adopted`). It is measured like any other
index if it misses more than twice as much, or too much for codes; if it has more than twice the rows, or less
than half of them; and if the table was adopted a few times before (:func:`_is_near`). A small segment beside
a larger one, with whose list it is searched (zig/src/search/segments.zig), gets a copy of the table, and
nothing is measured.

If only the codes of some rows are left, measured recall is too optimistic, because the ground truth comes
from the same codes. So all recalls are scaled by the most that codes found when vectors were known.

Rows are about as hard to find as future queries: on the project's data sets recall differs by 0.002 from
lists of 48 on, by 0.01 at the shortest ones. The library takes a margin for that
(zig/src/search/calibration.zig).
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from velo import _native
from velo.building.held_out import NO_ROW, HeldOut, draw_distinct, exact_neighbors
from velo.building.tables import SAMPLE_MAX, SAMPLE_MIN
from velo.building.vectors import store_vectors
from velo.errors import BudgetTooSmallError, RecallWarning, UnsupportedError
from velo.folder.manifest import read_manifest
from velo.formats.source import Source
from velo.options import FILTER_PLANS, OpenTuning
from velo.search.answer import QUERY_DTYPES, Answer, native_queries
from velo.segments.segment import OpenOptions, Segment
from velo.types import AnyArray

_LOG: Final = logging.getLogger("velo")

VECTORS_FILE: Final = "vectors.bin"

#: The k for which each number of links is measured (also in zig/src/search/calibration.zig).
K_MEASURED: Final = 10

_K_OTHERS: Final = (1, 100)

#: Links in memory that are measured, besides all that were built.
_LINKS: Final = (16, 8, 6, 2)
#: Fewer are lists that vertices share, made of as many links of their own at least.
_LINKS_OWN: Final = 8

#: As the library spells it where nothing is taken as absent.
_NO_VERTEX: Final = np.iinfo(np.uint32).max

_CODES_FILE: Final = "codes.bin"
_PAGE_CODES_FILE: Final = "page_codes.bin"
#: How it begins if pages have tables of neighbors.
_PRODUCT_CODES: Final = b"VELOPROD"

_ROWS_MIN: Final = 1000

_LISTS: Final = (10, 16, 26, 42, 68, 110, 180, 290, 470, 760, 1230, 2000)
_LISTS_ON_DISK_MAX: Final = 760
#: Without codes of vectors: nearly each entry is a page read.
_LISTS_OF_PAGES_MAX: Final = 1230

#: Lists longer than this are searched with a quarter of the sample.
_LIST_FULL_SAMPLE: Final = 290
_LIST_FULL_SAMPLE_OF_PAGES: Final = 68

#: Standard deviations within which a measured scan reads; codes cannot find what it misses.
_SCAN_SIGMA: Final = 3.1
_SCAN_LIST: Final = 512

#: Queries that all workers have under way: few, for each takes memory beside the budget.
_IN_FLIGHT: Final = 8

#: Enough for a promise of 0.99, and where nothing more is to be had.
_RECALL_ENOUGH: Final = 0.995
#: Vectors are stored if codes find less than this.
_RECALL_WANTED: Final = 0.99
_GAIN_MIN: Final = 0.0008

#: Rows on which the table of another index is checked.
_ROWS_CHECKED: Final = 300
#: An index with this many times the rows of a table, or with as many times fewer, is measured itself.
_GROWTH_MAX: Final = 2.0
#: Adoptions of a table at most: each adds the error of a small sample.
_TURNS_MAX: Final = 4
#: The recalls at which that is seen: the first list of a curve that reached each, or its longest.
_RECALLS_CHECKED: Final = (0.9, 0.95, 0.99)
#: An index with this many times the misses, and of twice the rows twice as many, does not adopt the table.
_SCALE_MAX: Final = 2.0
#: Of what is missed, so little says nothing about the table of another index.
_MISS_NOTICED: Final = 0.02
#: Added to what is missing, since next to nothing cannot be compared.
_MISS_LEAST: Final = 0.001
#: The costs of a search in a point.
_COSTS: Final = ("reads", "rounds", "estimates", "expanded", "scored")


def sample_size(row_count: int) -> int:
    """The number of rows to hold out; 0 if there are too few to learn from."""
    return 0 if row_count < _ROWS_MIN else min(SAMPLE_MAX, max(SAMPLE_MIN, row_count // 30))


@dataclass(frozen=True)
class Point:
    """The recall and cost of searches with one list size, means over the sample, as in the manifest."""

    list_size: int
    recall: float
    deviation: float
    reads: float
    rounds: float
    estimates: float
    expanded: float
    scored: float

    def to_dict(self) -> dict[str, float | int]:
        """Convert to plain values, rounded to six digits."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


class _Way(NamedTuple):
    """The data in memory: links of each vertex, or codes of each page, or neither (links on disk)."""

    links: int
    page_codes: int = 0

    @staticmethod
    def of(curve: Mapping[str, Any]) -> _Way:
        """The plan that a curve of a table was measured with."""
        return _Way(int(curve["links"]), int(curve.get("page_codes", 0)))


@dataclass(frozen=True)
class _Seen:
    """A point with the share of its nearest that each query of a sample found; `rows` are those queries."""

    point: Point
    found: AnyArray
    rows: AnyArray


def excluding(
    segment: Segment,
    queries: AnyArray,
    k: int,
    list_size: int,
    vertices: AnyArray,
    scan: bool = False,
    exact: bool = False,
) -> Answer:
    """Search for rows of a segment, each excluded from its own search.

    `vertices` has the vertex of each query, the greatest number for none. `scan` compares the codes of all
    rows and reads all that may be among the nearest; `exact` takes the final distances from the stored
    vectors. Returns ``vertices`` of shape (m, k), and the counters.
    """
    options = _native.new("velo_search_options")
    options.k, options.list_size = k, list_size
    options.exact = int(exact)
    if scan:
        options.filter_plan, options.sigma = FILTER_PLANS["scan"], _SCAN_SIGMA
    left_out = _native.pointer("uint32_t", np.ascontiguousarray(vertices, np.uint32))
    options.excluded_vertices = left_out  # alive as long as left_out is
    native, _ = native_queries(queries, segment.dim)
    answer = Answer(len(native), k)
    status = _native.lib.velo_search(
        segment.handle,
        _native.pointer("uint8_t", native),
        QUERY_DTYPES[native.dtype],
        len(native),
        _native.ffi.NULL,
        0,
        options,
        answer.out,
    )
    _native.check(status, "queries")
    return answer


def calibrate(
    folder: Path,
    source: Source,
    order: AnyArray,
    *,
    metric: str,
    seed: int,
    threads: int | None,
    start: int = 0,
    stop: int | None = None,
    memory_bytes: int = 0,
    page_links: bool = True,
    vectors: bool | None = None,
    watch: Callable[[int], None] | None = None,
    queries: AnyArray | None = None,
    known: Mapping[str, Any] | None = None,
    decoded: bool = False,
    lock_held: bool = False,
) -> None:
    """Measure the table behind ``recall`` for a finished index and put it into its manifest.

    `metric, seed, threads`: As the index was built; with one thread and one seed the table is the same
      every time.
    `memory_bytes`: Budget of the index while it is searched, and of `order`; 0 is none. Plans that it does
      not hold are not measured: without room for links only links on disk are, and without room for codes
      nothing is.
    `page_links`: As the index was built: with them links on disk are measured, too.
    `vectors`: Whether the index stores its vectors. None: they are stored if codes alone do not find
      enough. Searches of stored vectors are measured as exact ones.
    `known`: The table of an index of the same options, adopted where it holds for this one.
    `decoded`: Some rows of the source were decoded from codes. Nothing is measured then without a table of
      these codes.
    """
    n = len(order)
    tell = watch or (lambda _done: None)
    tell(0)
    if decoded and known is None:
        tell(n)
        return
    codes = _found_by_codes(known) if decoded and known is not None else 1.0
    k_most = min(max(_K_OTHERS), n // 10)
    if known is not None and _is_near(known, n) and sample_size(n) and k_most >= K_MEASURED:
        rows = draw_distinct(source, min(_ROWS_CHECKED, sample_size(n)), seed, start, stop)
        if len(rows) >= SAMPLE_MIN:
            held = exact_neighbors(source, rows, K_MEASURED, metric, start, stop, lambda _done: None, None)
            table = _Table(held, order, seed, threads, memory_bytes, page_links, codes)
            adopted = table.adopted(folder, known)
            if adopted is not None:
                store_calibration(folder, adopted)
                tell(n)
                return
    if queries is None:
        rows = draw_distinct(source, sample_size(n), seed, start, stop)
    else:
        rows = np.full(len(queries) if n >= _ROWS_MIN else 0, NO_ROW, np.int64)
    if len(rows) and k_most >= K_MEASURED:
        held = exact_neighbors(
            source, rows, k_most, metric, start, stop, lambda done: tell(done // 2), queries
        )
        if len(held.rows) >= max(1, len(rows) // 2):
            table = _Table(held, order, seed, threads, memory_bytes, page_links, codes)
            other_k = [k for k in _K_OTHERS if k <= k_most]
            try:
                curves = table.curves(folder, other_k, lambda share: tell(n // 2 + int(n // 4 * share)))
                if curves and table.reached < _RECALL_WANTED and not decoded:
                    if vectors is False:
                        warnings.warn(_too_little(table.reached), RecallWarning, stacklevel=2)
                    else:
                        if VECTORS_FILE not in read_manifest(folder).files:
                            _LOG.info("%s; so the vectors are stored, too", _too_little(table.reached))
                            store_vectors(folder, source, order, start, start + n, lock_held=lock_held)
                        table.exact = True
                        curves = table.curves(
                            folder, other_k, lambda share: tell(3 * n // 4 + int(n // 4 * share))
                        )
            except BudgetTooSmallError:
                curves = []
            if curves:
                found = {
                    "queries": len(held.rows),
                    "exact": table.exact,
                    "stops": True,
                    "curves": curves,
                    "scan": table.scan,
                    "rows": n,
                    "codes": codes,
                }
                store_calibration(folder, found)
    tell(n)


def store_calibration(folder: Path, table: Mapping[str, Any]) -> None:
    """Put a table into the manifest of an index."""
    text = _native.ffi.new("char[]", json.dumps(table).encode())
    _native.check(_native.lib.velo_calibration_store(os.fsencode(folder), text), "path")


def _found_by_codes(known: Mapping[str, Any]) -> float:
    """The highest recall of codes in a table."""
    if (told := float(known.get("codes", 1.0))) < 1.0:
        return told
    points = [point for curve in known["curves"] if curve["k"] == K_MEASURED for point in curve["points"]]
    if known.get("scan"):
        points.append(known["scan"])
    return max((float(point["recall"]) for point in points), default=1.0)


def _is_near(known: Mapping[str, Any], n: int) -> bool:
    """Whether the sizes let an index of `n` rows adopt a table."""
    rows = int(known.get("rows", 0))
    is_alike = rows <= _GROWTH_MAX * n and n <= _GROWTH_MAX * rows
    return is_alike and int(known.get("turns", 0)) < _TURNS_MAX


def _too_little(reached: float) -> str:
    return (
        f"with these vectors codes reach a recall of {reached:.3f} at most; store_vectors=True, or more bits "
        "(record_bits, memory_bits, search_memory), reach more"
    )


class _Table:
    """The curves of one index."""

    def __init__(
        self,
        held: HeldOut,
        order: AnyArray,
        seed: int,
        threads: int | None,
        memory_bytes: int,
        page_links: bool,
        codes: float,
    ) -> None:
        self._held = held
        self._codes = codes
        self._order = order
        self._seed = seed
        self._threads = threads
        self._memory_bytes = max(1, memory_bytes - order.nbytes) if memory_bytes else 0
        self._page_links = page_links
        #: Points of scans of all codes, measured if the graph does not find enough.
        self.scan: dict[str, float | int] | None = None
        #: Searches are exact.
        self.exact = False
        #: The highest recall that was seen for `K_MEASURED` neighbors.
        self.reached = 0.0
        own = held.rows[held.rows != NO_ROW]
        chosen = np.zeros(len(order), bool)
        chosen[own] = True
        vertices = np.flatnonzero(chosen[order])
        self._vertices = np.full(len(held.rows), _NO_VERTEX, np.uint32)
        self._vertices[held.rows != NO_ROW] = vertices[np.argsort(order[vertices])]
        self._all = np.arange(len(held.rows))
        # A part of the sample, for curves that resemble a measured one.
        self._subset = self._all[:: max(1, min(4, len(self._all) // 100))]

    def curves(
        self, folder: Path, other_k: Sequence[int], tell: Callable[[float], None]
    ) -> list[dict[str, Any]]:
        """The whole table: all links first, which the others are compared with."""
        levels = _levels(folder)
        measured: list[tuple[int, _Way, list[_Seen]]] = []
        try:
            measured = self._of_codes(folder, other_k, lambda share: tell(share * (0.7 if levels else 1.0)))
        except BudgetTooSmallError:
            if not levels:
                raise
        is_alone = not measured
        found = [(k, way, _points_of(seen)) for k, way, seen in measured]
        finest: dict[int, list[_Seen]] = {}
        for number, level in enumerate(reversed(levels)):
            try:
                segment = self._open(folder, _Way(0, level))
            except BudgetTooSmallError:
                continue
            with closing(segment):
                if finest:
                    own = self._scaled(segment, finest)
                else:
                    finest = {
                        k: self._curve(segment, k, [], _LISTS_OF_PAGES_MAX) for k in (K_MEASURED, *other_k)
                    }
                    own = {k: _points_of(seen) for k, seen in finest.items()}
            found += [(k, _Way(0, level), points) for k, points in own.items()]
            tell(0.7 + 0.3 * (number + 1) / len(levels))
        if is_alone and finest:
            self.reached = max(one.point.recall for one in finest[K_MEASURED])
        if not found:
            raise BudgetTooSmallError("the budget does not hold a code of each page", argument="memory")
        tell(1.0)
        return [{"k": k, **way._asdict(), "points": points} for k, way, points in found]

    def _of_codes(
        self, folder: Path, other_k: Sequence[int], tell: Callable[[float], None]
    ) -> list[tuple[int, _Way, list[_Seen]]]:
        """The curves of an index whose codes are in memory."""
        found: list[tuple[int, _Way, list[_Seen]]] = []
        steps = len(_LINKS) + len(other_k) + 2
        with closing(self._open(folder, None)) as segment:
            most = int(segment.info().links_kept)
            has_own = segment.info().links_built >= _LINKS_OWN
            widest: list[_Seen] = []
            if most:
                widest = self._curve(segment, K_MEASURED, [])
                found.append((K_MEASURED, _Way(most), widest))
                self._reach(segment, widest)
                tell(1 / steps)
                for number, k in enumerate(other_k):
                    found.append((k, _Way(most), self._curve(segment, k, [])))
                    tell((2 + number) / steps)
        for number, links in enumerate(_LINKS):
            if links < most and has_own:
                with closing(self._open(folder, _Way(links))) as segment:
                    if segment.info().links_kept == links:
                        found.append((K_MEASURED, _Way(links), self._curve(segment, K_MEASURED, widest)))
            tell((2 + len(other_k) + number) / steps)
        if self._page_links:
            with closing(self._open(folder, _Way(0))) as segment:
                on_disk = self._curve(segment, K_MEASURED, widest, _LISTS_ON_DISK_MAX)
                found.append((K_MEASURED, _Way(0), on_disk))
                if not most:
                    self._reach(segment, on_disk)
        return found

    def _reach(self, segment: Segment, seen: Sequence[_Seen]) -> None:
        """The highest recall: that of the longest list, or of a scan of all codes if that is cheap."""
        self.reached = max(one.point.recall for one in seen)
        if self.reached < _RECALL_ENOUGH:
            scanned = self._search(segment, K_MEASURED, _SCAN_LIST, self._subset, scan=True).point
            self.scan = scanned.to_dict()
            self.reached = max(self.reached, scanned.recall)

    def adopted(self, folder: Path, known: Mapping[str, Any]) -> dict[str, Any] | None:
        """The table of another index, corrected by a few points of this one; None if the two differ too much.

        Every number of links is opened and searched with the lists with which the other index reached some
        recalls. The ratios of misses and costs scale all points of the curve. If the budget has no room for
        so many links, the ratios are those of the most that it holds.
        """
        self.exact = bool(known.get("exact"))
        scan = known.get("scan")
        main = {
            _Way.of(curve): curve["points"]
            for curve in known["curves"]
            if curve["k"] == K_MEASURED and curve["points"]
        }
        most = max(main, default=_Way(0))
        if not most.links or (self._page_links and _Way(0) not in main):
            return None
        if _levels(folder) != sorted(way.page_codes for way in main if way.page_codes):
            return None
        measured: dict[_Way, _Scale] = {}
        for way, points in sorted(main.items(), reverse=True):
            try:
                segment = self._open(folder, way if way < most else None)
            except BudgetTooSmallError:
                if way.links:
                    continue
                return None
            with closing(segment):
                if way.links and segment.info().links_kept != way.links:
                    continue  # so many links have no room
                scale = _Scale(
                    [
                        (point, self._search(segment, K_MEASURED, int(point["list_size"]), self._all).point)
                        for point in _checked_points(points)
                    ]
                )
                if not measured and scan is not None:
                    scan = self._search(segment, K_MEASURED, _SCAN_LIST, self._all, scan=True).point.to_dict()
            if scale.greatest > _SCALE_MAX * max(1.0, len(self._order) / known["rows"]):
                return None
            measured[way] = scale
        if not measured:
            return None
        scales = {way: measured.get(way, measured[max(measured)]) for way in main}
        curves = [
            curve | {"points": [scales[_Way.of(curve)].of(point) for point in curve["points"]]}
            for curve in known["curves"]
            if _Way.of(curve) in scales
        ]
        reached = [
            point["recall"]
            for curve in curves
            if curve["k"] == K_MEASURED and _Way.of(curve) == most
            for point in curve["points"]
        ] + ([scan["recall"]] if scan else [])
        if not self.exact and self._codes == 1.0 and max(reached) < _RECALL_WANTED:
            return None
        return {
            "queries": len(self._all),
            "exact": self.exact,
            "stops": True,
            "curves": curves,
            "scan": scan,
            "rows": known["rows"],
            "turns": int(known.get("turns", 0)) + 1,
            "codes": self._codes,
        }

    def _open(self, folder: Path, way: _Way | None) -> Segment:
        """The segment opened with this plan; None: with all links."""
        links = None if way is None else way.links
        workers = self._threads or len(os.sched_getaffinity(0))
        # Reads are those of a cache that holds nothing yet.
        tuning = OpenTuning(
            links_kept=links or None, queries_in_flight=max(1, _IN_FLIGHT // workers), cache_share=0.0
        )
        if way is not None and way.page_codes:
            # Results depend on the order in which reads end; one query at a time fixes it.
            kept = replace(tuning, links_kept=way.page_codes)
            if self._threads == 1:
                kept = replace(kept, queries_in_flight=1, queue_depth=1)
            how = OpenOptions(
                threads=self._threads, memory=self._memory_bytes or None, plan="walk", tuning=kept
            )
            return Segment(folder, how)
        if 0 < self._memory_bytes < (folder / _CODES_FILE).stat().st_size:
            raise BudgetTooSmallError("the budget does not hold the codes", argument="memory")
        if links == 0 and self._threads == 1:
            # As above.
            tuning = OpenTuning(queries_in_flight=1, queue_depth=1)
        if links != 0:
            try:
                how = OpenOptions(
                    threads=self._threads,
                    memory=self._memory_bytes or None,
                    plan="links_in_memory",
                    tuning=tuning,
                )
                return Segment(folder, how)
            except (BudgetTooSmallError, UnsupportedError):  # or links were kept for no memory
                if not self._page_links:
                    raise
                # Then only links on disk can be measured, within this budget
        # Without a budget: what of it codes leave would become a cache.
        return Segment(folder, OpenOptions(threads=self._threads, plan="links_on_disk", tuning=tuning))

    def _curve(self, segment: Segment, k: int, like: list[_Seen], longest: int = _LISTS[-1]) -> list[_Seen]:
        """Points of growing lists until longer ones gain nothing.

        With `like`, a curve of the same k that this one resembles, a part of the sample is enough.
        """
        seen: list[_Seen] = []
        limit = min(segment.n, longest)
        all_up_to = _LIST_FULL_SAMPLE_OF_PAGES if longest == _LISTS_OF_PAGES_MAX else _LIST_FULL_SAMPLE
        few = bool(like) or k > K_MEASURED  # many neighbors of a query are as informative as many queries
        lists = _LISTS if k == K_MEASURED else sorted({max(k, _LISTS[0]), *_LISTS[::2]})
        lists = [size for size in lists if size >= k]
        for list_size in lists:
            if list_size > limit and seen:
                break
            whole = not few and list_size <= all_up_to
            one = self._search(segment, k, list_size, self._all if whole else self._subset)
            if not whole:
                known = [other for other in like or seen if len(other.rows) == len(self._all)]
                if known:
                    one = _corrected(one, known)
            seen.append(one)
            recalls = [other.point.recall for other in seen]
            # Of two points one may be lower by chance.
            gain = max(recalls[-2:]) - max(recalls[:-2], default=0.0)
            if recalls[-1] >= _RECALL_ENOUGH or (len(seen) > 3 and recalls[-3] > 0.5 and gain < _GAIN_MIN):
                break
        return seen

    def _scaled(
        self, segment: Segment, like: Mapping[int, Sequence[_Seen]]
    ) -> dict[int, list[dict[str, Any]]]:
        """The curves `like` of another level, scaled by a few points of this one.

        Codes of pages choose where a search begins, so levels differ in little, and least for many neighbors:
        their curves are scaled as that of `K_MEASURED` is.
        """
        scales: dict[int, _Scale] = {}
        for k in sorted(k for k in like if k <= K_MEASURED):
            whole = [one for one in like[k] if len(one.rows) == len(self._all)]
            checked = []
            for point in _checked_points(_points_of(like[k])):
                seen = self._search(segment, k, int(point["list_size"]), self._subset)
                checked.append((point, (_corrected(seen, whole) if whole else seen).point))
            scales[k] = _Scale(checked)
        return {
            k: [scales[min(k, K_MEASURED)].of(point) for point in _points_of(seen)]
            for k, seen in like.items()
        }

    def _search(self, segment: Segment, k: int, list_size: int, rows: AnyArray, scan: bool = False) -> _Seen:
        held = self._held.subset(rows)
        answered = excluding(segment, held.queries, k, list_size, self._vertices[rows], scan, self.exact)
        vertices = answered.vertices
        found_rows = np.where(vertices < 0, -1, self._order[np.maximum(vertices, 0)].astype(np.int64))
        found = held.hits(found_rows, k) / np.maximum(1, np.minimum(k, (held.neighbors >= 0).sum(axis=1)))
        found = self._codes * found
        stats = {name: float(values.mean()) for name, values in answered.stats().items()}
        point = Point(
            list_size=list_size,
            recall=float(found.mean()),
            deviation=float(found.std() / np.sqrt(len(found))),
            reads=stats["reads"] + stats["shared_reads"],  # which of them were shared is chance
            rounds=stats["rounds"],
            estimates=stats["estimates"],
            expanded=stats["expanded"],
            scored=stats["records_scored"],
        )
        return _Seen(point, found, rows)


def _points_of(seen: Sequence[_Seen]) -> list[dict[str, Any]]:
    """The points of a curve as in the manifest."""
    return [one.point.to_dict() for one in seen]


def _levels(folder: Path) -> list[int]:
    """The numbers of codes a page in the levels of an index, ascending; none for an index without them."""
    path = folder / _PAGE_CODES_FILE
    if not path.exists():
        return []
    head = np.fromfile(path, "<u4", 16)
    is_product = head[:2].tobytes() == _PRODUCT_CODES
    levels, first = (5, 8) if is_product else (3, 4)
    of_records = head[14:15] if is_product and head[14] else head[:0]
    return [int(count) for count in (*head[first : first + head[levels]], *of_records)]


def _checked_points(points: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The points at which a curve is checked; each once."""
    places = [
        next((place for place, point in enumerate(points) if point["recall"] >= recall), len(points) - 1)
        for recall in _RECALLS_CHECKED
    ]
    return [points[place] for place in sorted(set(places))]


class _Scale:
    """The scaling of a curve of one index to another, from pairs of (its point, the other's searches)."""

    def __init__(self, checked: Sequence[tuple[Mapping[str, Any], Point]]) -> None:
        missed = [(_miss(point["recall"]), _miss(seen.recall), point, seen) for point, seen in checked]
        by_miss = sorted(missed, key=lambda one: one[:2])
        self._misses = np.log([known for known, *_ in by_miss])
        self._scales = np.log([found / known for known, found, *_ in by_miss])
        spreads = [seen.deviation / max(1e-9, float(point["deviation"])) for *_, point, seen in by_miss]
        self._spreads = np.array(spreads)
        self._costs = {
            name: sum(getattr(seen, name) for _, seen in checked)
            / max(1e-9, sum(float(point[name]) for point, _ in checked))
            for name in _COSTS
        }
        ratios = [found / known for known, found, *_ in by_miss if found > _MISS_NOTICED]
        #: How many times as much is missing, at most; of points where hardly anything is, that is chance.
        self.greatest = max(ratios, default=1.0)

    def of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """A point of the other index."""
        miss = np.log(_miss(point["recall"]))
        is_between = self._misses[0] <= miss <= self._misses[-1]
        # Without measurements nothing improves.
        scale = float(np.exp(np.interp(miss, self._misses, self._scales)))
        scale = scale if is_between else max(1.0, scale)
        missing = max(0.0, scale * _miss(point["recall"]) - _MISS_LEAST)
        spread = float(np.interp(miss, self._misses, self._spreads))
        spread = spread if is_between else max(1.0, spread)
        found = {"recall": max(0.0, 1 - missing), "deviation": float(point["deviation"]) * spread}
        costs = {name: float(point[name]) * ratio for name, ratio in self._costs.items()}
        return {**point, **{name: round(value, 6) for name, value in (found | costs).items()}}


def _miss(recall: float) -> float:
    return 1 - float(recall) + _MISS_LEAST


def _corrected(seen: _Seen, whole: Sequence[_Seen]) -> _Seen:
    """A point of a subset of the sample, corrected for how much harder that subset is than the whole.

    That is known for points measured on the whole sample. The one at which the subset misses most nearly as
    much is used, since the same queries are hard there: its ratio of misses, whole sample to subset, scales
    this point.
    """
    missing = (1 - seen.found).sum()

    def missing_of(known: _Seen) -> float:
        return float((1 - _subset_of(known, seen)).sum())

    known = min(whole, key=lambda one: abs(missing_of(one) - missing))
    subset = _subset_of(known, seen)
    if missing_of(known) < 1.0:  # too little is missing to compare
        return seen
    scale = float(np.clip((1 - known.found).mean() / (1 - subset).mean(), 0.5, 2.0))
    alike = 0.0
    if seen.found.std() > 0 and subset.std() > 0:
        alike = float(np.corrcoef(seen.found, subset)[0, 1])
    own = seen.point.deviation**2 * (1 - alike**2)
    shared = (seen.found.var() * alike**2) / len(known.found)
    point = replace(
        seen.point, recall=1 - (1 - seen.point.recall) * scale, deviation=float(np.sqrt(own + shared)) * scale
    )
    return _Seen(point, seen.found, seen.rows)


def _subset_of(known: _Seen, seen: _Seen) -> AnyArray:
    """The result of the queries `seen` alone, at a point measured on the whole sample."""
    return known.found[np.searchsorted(known.rows, seen.rows)]
