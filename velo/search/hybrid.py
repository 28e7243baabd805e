"""Searches over candidates of the caller, and searches by words and vectors together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from velo.errors import CorruptIndexError, InvalidArgumentError, SearchTimeoutError, UnsupportedError
from velo.filters.compiler import filters_of, trees_of
from velo.filters.native import NativeFilter
from velo.folder.ids import checked_ids
from velo.folder.text_column import text_column_of
from velo.fulltext.ranking import Ranked, ranked
from velo.fulltext.tokens import words_in
from velo.options import Effort, Fusion, code_of, fusion_of, k_of_one_search, texts_of, whole_number
from velo.results import SearchResult, fused
from velo.search.answer import deadline_of, native_queries
from velo.search.composite import combined_result, rounds
from velo.search.request import Request
from velo.search.script import CombinedHits, Requests, Round, Totals
from velo.search.snapshot import Snapshot
from velo.types import AnyArray, Int64Array

#: Bits of the masks that one round of a search over candidates has at most.
_MASK_BITS: Final = 1 << 27
#: The treatment of ids that no row has.
UNKNOWN_IDS: Final = {"error": 0, "skip": 1}


# ---- words and vectors


def ranked_texts(
    at: Snapshot, queries: Any, k: Any, text: Any, fusion: Any, filters: Any, timeout_s: Any
) -> _Texts:
    """Rank rows by the words of texts: the part of a hybrid search without a native call."""
    deadline = deadline_of(timeout_s)
    depth = whole_number(k, "k", 1, k_of_one_search())
    chosen = None
    if queries is None:
        if fusion is not None:
            raise InvalidArgumentError("fusion goes with queries: words alone are ranked", argument="fusion")
        texts = texts_of(text, 1 if isinstance(text, str) or not hasattr(text, "__len__") else len(text))
    else:
        chosen = fusion_of(fusion)
        depth = chosen.depth_of(depth)
        texts = texts_of(text, len(native_queries(queries, at.dim)[0]))
    at.check_open()
    column = text_column_of(None if at.metadata is None else at.metadata.schema)
    if column is None:
        raise UnsupportedError(
            "no column of this index was named to hold the text: velo.build and velo.create take text="
        )

    def check() -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise SearchTimeoutError("the search took longer than its timeout_s")

    with at.guard.inside():
        compiled = filters_of(filters, at.filters)
        if len(compiled) not in (0, 1, len(texts)):
            raise InvalidArgumentError(
                f"{len(compiled)} filters were given for {len(texts)} queries", argument="filter"
            )
        try:
            found = _best_of(at, column, texts, compiled, depth, check)
        except CorruptIndexError:  # reopening rebuilds a damaged file
            found = _best_of(at, column, texts, compiled, depth, check)
    return _Texts(chosen, depth, found, deadline, single=isinstance(text, str))


def _best_of(
    at: Snapshot,
    column: str,
    texts: Sequence[str],
    filters: Sequence[NativeFilter | None],
    depth: int,
    check: Any,
) -> list[Ranked]:
    stretches = list(at.words(column))
    known: dict[tuple[str, int], Ranked] = {}
    masks: dict[int, AnyArray | None] = {}
    found = []
    for number, text in enumerate(texts):
        one = filters[number if len(filters) > 1 else 0] if filters else None
        if id(one) not in masks:
            masks.clear()  # the next queries have mostly the same one
            passing = at.passing(one)
            masks[id(one)] = None if passing is None else passing.matches()
        mask = masks[id(one)]
        key = (text, id(one))
        if key not in known:
            passes = None if mask is None else mask.__getitem__
            known[key] = ranked(stretches, words_in(text), depth, passes, check)
        found.append(known[key])
    return found


def hybrid_requests(
    at: Snapshot, queries: Any, k: int, filters: Any, effort: Effort, columns: list[str] | None, words: _Texts
) -> Requests[SearchResult]:
    """The requests of a hybrid search after its texts were ranked, and its answer."""
    fusion = words.fusion
    if fusion is None:
        return _words_result(at, words, k, columns)
    native, single = native_queries(queries, at.dim)
    count = len(native)
    prepare = rounds(at, words.left(effort))
    totals = Totals(count)
    first: Request | None = None
    if fusion.vectors > 0:
        first = yield at.request(native, words.depth, filters, words.left(effort))
        totals.add(range(count), first)
    hits = CombinedHits.none(count, k, totals.stats)
    scores = np.zeros((count, k), np.float32)
    for row, of_words in enumerate(words.found):
        near, distances = np.zeros(0, np.int64), np.zeros(0, np.float32)
        if first is not None:
            size = int(first.counts[row])
            near, distances = first.vertices[row, :size], first.distances[row, :size]
        vertices, points = fused(fusion, near, distances, *of_words)
        vertices, points = vertices[:k], points[:k]
        hits.counts[row] = len(vertices)
        hits.vertices[row, : len(vertices)] = vertices
        scores[row, : len(vertices)] = points
        _copy_distances(hits, row, near, distances)
    unknown = (hits.vertices >= 0) & np.isinf(hits.distances)
    for rows in _blocks(at, np.flatnonzero(unknown.any(axis=1))):  # words alone found some
        most = int(unknown[rows].sum(axis=1).max())
        masks = [at.only(hits.vertices[row][unknown[row]]) for row in rows]
        found = yield prepare(Round(native[rows], most, masks, scan=True))
        totals.add(rows.tolist(), found)
        for place, row in enumerate(rows):
            size = int(found.counts[place])
            _copy_distances(hits, int(row), found.vertices[place, :size], found.distances[place, :size])
    result = combined_result(at, hits, single, columns)
    result.scores = scores[0] if single else scores
    return result


def _words_result(at: Snapshot, words: _Texts, k: int, columns: list[str] | None) -> SearchResult:
    """The result of a search by words alone: scores without distances."""
    count = len(words.found)
    hits = CombinedHits.none(count, k, Totals(count).stats)
    scores = np.zeros((count, k), np.float32)
    for row, (vertices, points) in enumerate(words.found):
        hits.counts[row] = len(vertices)
        hits.vertices[row, : len(vertices)] = vertices
        scores[row, : len(vertices)] = points
    result = combined_result(at, hits, words.single, columns)
    result.scores = scores[0] if words.single else scores
    return result


# ---- candidates


def candidate_requests(
    at: Snapshot,
    queries: Any,
    k: Any,
    filters: Any,
    effort: Effort,
    columns: list[str] | None,
    candidates: Any,
    unknown: Any,
) -> Requests[SearchResult]:
    """The requests of a search over candidates, and its answer."""
    code_of(UNKNOWN_IDS, unknown, "unknown")
    whole_number(k, "k", 1, k_of_one_search())
    native, single = native_queries(queries, at.dim)
    count = len(native)
    at.check_open()
    lists = _listed(at, candidates, count, skip=unknown == "skip")
    prepare = rounds(at, effort)
    trees = trees_of(filters, count, at.filters)
    totals = Totals(count)
    hits = CombinedHits.none(count, k, totals.stats)
    shared = at.only(lists[0]) if len(lists) == 1 else None
    for rows in _blocks(at, np.arange(count), is_shared=shared is not None):
        masks = []
        for row in rows:
            rest = at.only(lists[row]) if shared is None else shared
            tree = trees[row]
            masks.append(rest if tree is None else at.filters.compile(tree).within(rest))
        found = yield prepare(Round(native[rows], k, masks, scan=True))
        totals.add(rows.tolist(), found)
        hits.vertices[rows], hits.distances[rows] = found.vertices, found.distances
        hits.counts[rows] = found.counts
    return combined_result(at, hits, single, columns)


def _listed(at: Snapshot, candidates: Any, count: int, *, skip: bool) -> list[Int64Array]:
    """The vertices of one list for all queries, or of one each."""
    each = _one_list_each(candidates)
    if each is not None and len(each) != count:
        raise InvalidArgumentError(
            f"{len(each)} lists of candidates were given for {count} queries", argument="candidates"
        )
    found = []
    for one in [candidates] if each is None else each:
        if not isinstance(one, str | int | np.integer) and len(one) == 0:
            found.append(np.zeros(0, np.int64))
            continue
        try:
            column = checked_ids(one)
            if skip:
                vertices = at.ids.find(column)
                vertices = vertices[at.are_alive(vertices)]
            else:
                vertices = at.vertices(one)
        except InvalidArgumentError as error:
            error.argument = "candidates"
            raise
        found.append(vertices.astype(np.int64))
    return found


def _blocks(at: Snapshot, rows: AnyArray, *, is_shared: bool = False) -> Iterator[AnyArray]:
    """Queries in blocks whose masks stay small."""
    step = len(rows) if is_shared else max(1, _MASK_BITS // max(1, at.n))
    for start in range(0, len(rows), max(1, step)):
        yield rows[start : start + step]


def check_beside(
    text: Any, fusion: Any, candidates: Any, unknown: Any, group_by: Any, group_size: Any
) -> None:
    """Refuse what does not go together."""
    if text is not None and candidates is not None:
        raise InvalidArgumentError(
            "a search takes text or candidates: rank one, then the other", argument="text"
        )
    if fusion is not None and text is None:
        raise InvalidArgumentError("fusion goes with text", argument="fusion")
    if unknown != "error" and candidates is None:
        raise InvalidArgumentError("unknown goes with candidates", argument="unknown")
    if group_by is not None or group_size != 1:
        what = "text" if candidates is None else "candidates"
        raise InvalidArgumentError(f"group_by goes without {what}", argument="group_by")


class _Texts:
    """The rows that words found, and the rule that fuses them with those of vectors."""

    def __init__(
        self, fusion: Fusion | None, depth: int, found: list[Ranked], deadline: float | None, *, single: bool
    ) -> None:
        self.fusion, self.depth, self.found, self.single = fusion, depth, found, single
        self._deadline = deadline

    def left(self, effort: Effort) -> Effort:
        """The effort with what is left of its time."""
        if self._deadline is None:
            return effort
        return effort._replace(timeout_s=max(1e-3, self._deadline - time.monotonic()))


def _copy_distances(hits: CombinedHits, row: int, vertices: AnyArray, distances: AnyArray) -> None:
    """Give the hits of a query the distances that are known of them."""
    order = np.argsort(vertices)
    at = np.searchsorted(vertices, hits.vertices[row], sorter=order)
    inside = at < len(vertices)
    places = order[at[inside]]
    known = np.flatnonzero(inside)[vertices[places] == hits.vertices[row][inside]]
    hits.distances[row, known] = distances[order[at[known]]]


def _one_list_each(candidates: Any) -> Sequence[Any] | None:
    """Lists of ids, one a query; None: it is one list for all."""
    if isinstance(candidates, np.ndarray):
        return list(candidates) if candidates.ndim == 2 else None
    if not isinstance(candidates, list | tuple) or not candidates:
        return None
    return None if any(isinstance(one, str | int | np.integer) for one in candidates) else candidates
