"""Ranking of rows for a text: BM25 with the statistics of all segments of an index together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from velo.fulltext.file import Words
from velo.types import AnyArray, Float64Array, Int64Array

#: How soon a word that is a duplicate counts for little, and how much a long text counts for less.
_K1: Final = 1.2
_B: Final = 0.75
#: Words of a text that are looked for, the rarest of them.
WORDS_MAX: Final = 128


class Ranked(NamedTuple):
    """Rows by descending score; ties by ascending vertex."""

    vertices: Int64Array
    scores: Float64Array


def ranked(
    stretches: Sequence[tuple[int, Words]],
    words: Sequence[str],
    count: int,
    passes: Callable[[Int64Array], AnyArray] | None,
    check: Callable[[], None],
) -> Ranked:
    """The `count` rows with the highest scores for some words.

    A row's score is the sum, over the words that it has, of ``log(1 + (N - n + ½) / (n + ½))`` times
    ``t · (k1 + 1) / (t + k1 · (1 - b + b · l / L))``: n of N rows with words have this one, it occurs t times
    in the row, which has l words, and rows have L on average; k1 is 1.2 and b ¾. `stretches` are pairs of
    first vertex and full-text index; `passes` tells whether each of some vertices may be found; an exception
    from `check`, which is called now and then, ends the search.
    """
    best = Ranked(np.zeros(0, np.int64), np.zeros(0))
    rows_total = sum(one.with_words for _, one in stretches)
    if not words or not rows_total:
        return best
    usual = sum(one.word_count for _, one in stretches) / rows_total
    having = np.sum([one.frequencies(words, check) for _, one in stretches], axis=0)
    rarest = [at for at in np.argsort(having, kind="stable").tolist() if having[at]][:WORDS_MAX]
    weights = {
        words[at]: float(np.log1p((rows_total - having[at] + 0.5) / (having[at] + 0.5)))
        for at in sorted(rarest)
    }
    if not weights:
        return best
    for start, one in stretches:
        for first, lengths, postings in one.blocks(list(weights)):
            check()
            scores = np.zeros(len(lengths))
            for word, rows, times in postings:
                often = times.astype(np.float64)
                length = _K1 * (1 - _B + _B * lengths[rows] / usual)
                scores[rows] += weights[word] * often * (_K1 + 1) / (often + length)
            # Vertices ascend, so ties keep the earlier ones.
            found = np.flatnonzero(scores > (best.scores[-1] if len(best.scores) == count else 0.0))
            vertices = found + (start + first)
            if passes is not None:
                allowed = passes(vertices)
                found, vertices = found[allowed], vertices[allowed]
            best = _best(
                np.concatenate([best.vertices, vertices]), np.concatenate([best.scores, scores[found]]), count
            )
    return best


def _best(vertices: Int64Array, scores: Float64Array, count: int) -> Ranked:
    if len(scores) > count:
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        some = np.flatnonzero(scores >= least)
        vertices, scores = vertices[some], scores[some]
    order = np.lexsort((vertices, -scores))[:count]
    return Ranked(vertices[order], scores[order])
