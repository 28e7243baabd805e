"""Labels that follow the vectors of any set, in shares that are exact; and exact truth under filters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.harness import datasets
from bench.harness.datasets import Dataset, K, Real

SHARES = (0.5, 0.1, 0.02, 0.01, 0.001)
#: Rows that tell the direction of a cut.
CUT_SAMPLE = 4096
CUT_ROUNDS = 4
#: Of all labels, those so far from a query count as far from it.
FAR_SHARE = 0.1
#: Kept beyond k before distances are taken again, so that rounding pushes none out.
SPARE = 20
QUERIES_AT_ONCE = 32

Rows = NDArray[np.int64]


def parts_of(share: float) -> int:
    """The number of labels when each is the label of ``share`` of the rows."""
    return round(1 / share)


def leaf_labels(vectors: NDArray[np.float32], parts: int, seed: int) -> NDArray[np.int32]:
    """A label that follows the vectors: rows are cut in two where they spread most, until there are enough.

    All labels have the same number of rows, or one more or less.
    """
    random = np.random.default_rng(seed)
    labels = np.zeros(len(vectors), np.int32)
    left = [(np.arange(len(vectors)), 0, parts)]
    while left:
        rows, first, count = left.pop()
        if count == 1:
            labels[rows] = first
            continue
        below = count // 2
        order = np.argsort(vectors[rows] @ widest(vectors[rows], random), kind="stable")
        cut = round(len(rows) * below / count)
        left.append((rows[order[:cut]], first, below))
        left.append((rows[order[cut:]], first + below, count - below))
    return labels


def widest(vectors: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """About the direction in which the rows differ most."""
    some = vectors[:: max(1, len(vectors) // CUT_SAMPLE)]
    centered = some - some.mean(axis=0)
    direction: NDArray[np.float32] = random.standard_normal((vectors.shape[1],), np.float32)
    for _ in range(CUT_ROUNDS):
        further: NDArray[np.float32] = centered.T @ (centered @ direction)
        length = float(np.linalg.norm(further))
        if length == 0:  # all rows are equal
            break
        direction = further / np.float32(length)
    return direction


def near_and_far(
    dataset: Dataset, queries: datasets.Vectors, labels: NDArray[np.int32], seed: int
) -> tuple[Rows, Rows]:
    """For each query the label whose mean is nearest, and one drawn from the farthest tenth."""
    base = measured_as(dataset.base, dataset.metric)
    wanted = measured_as(queries, dataset.metric)
    parts = int(labels.max()) + 1
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(parts))
    sums = np.add.reduceat(base[order].astype(np.float64), starts, axis=0)
    means = sums / np.bincount(labels, minlength=parts)[:, None]
    ranked = np.argsort(Scores(means, dataset.metric).of(wanted), axis=1, kind="stable")
    far_count = max(1, round(parts * FAR_SHARE))
    drawn = np.random.default_rng(seed).integers(1, far_count + 1, len(queries))
    return ranked[:, 0].astype(np.int64), ranked[np.arange(len(queries)), parts - drawn].astype(np.int64)


def measured_as(vectors: datasets.Vectors, metric: str) -> NDArray[np.float32]:
    """As the metric sees them: for cosine each row over its length."""
    wide = np.asarray(vectors, dtype=np.float32)
    return datasets.unit(wide) if metric == "cosine" else wide


class Scores:
    """Of queries to all rows of ``base``, in float64; less is nearer. They compare rows of one query."""

    def __init__(self, base: NDArray[Real], metric: str) -> None:
        self._base = base.astype(np.float64)
        self._center = np.zeros(base.shape[1])
        self._squares = np.zeros(len(base))
        if metric != "ip":
            self._center = self._base.mean(axis=0)
            self._base -= self._center
            self._squares = np.einsum("ij,ij->i", self._base, self._base)

    def of(self, queries: NDArray[Real]) -> NDArray[np.float64]:
        """A row a query. Halves of squared distances, less what is the same for all rows."""
        products: NDArray[np.float64] = (queries.astype(np.float64) - self._center) @ self._base.T
        return self._squares / 2 - products


def rows_by_label(labels: NDArray[np.int32]) -> list[Rows]:
    """Rows of each label, ascending."""
    order = np.argsort(labels, kind="stable").astype(np.int64)
    starts = np.searchsorted(labels[order], np.arange(1, int(labels.max()) + 1))
    return np.split(order, starts)


def truths(
    dataset: Dataset, queries: datasets.Vectors, filters: Sequence[Sequence[Rows]]
) -> list[NDArray[np.int64]]:
    """The exact ten nearest among the rows that pass, padded with -1.

    ``filters`` holds, for each filter, the rows that pass it for each query.
    """
    scores = Scores(measured_as(dataset.base, dataset.metric), dataset.metric)
    wanted = measured_as(queries, dataset.metric)
    found = [np.full((len(queries), K + SPARE), -1, np.int64) for _ in filters]
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        block = scores.of(wanted[start : start + QUERIES_AT_ONCE])
        for row, score in enumerate(block, start):
            for passing, out in zip(filters, found, strict=True):
                own = passing[row]
                among = score[own]
                kept = min(K + SPARE, len(own))
                near = np.argpartition(among, kept - 1)[:kept] if kept < len(own) else np.arange(len(own))
                out[row, :kept] = own[near]
    ordered = []
    for out in found:
        exact = datasets.exact_distances(dataset.base, queries, out, dataset.metric)
        order = np.lexsort((out, exact), axis=1)[:, :K]
        ordered.append(np.take_along_axis(out, order, axis=1))
    return ordered


def recalls(
    dataset: Dataset, queries: datasets.Vectors, truth: NDArray[np.int64], ids: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Of each query, the share of its true matches that were found; 1 where none pass. As near is as good."""
    counts = (truth >= 0).sum(axis=1)
    exact = datasets.exact_distances(dataset.base, queries, truth, dataset.metric)
    bound = np.where(truth < 0, -np.inf, exact).max(axis=1)
    out = np.ones(len(queries))
    some = counts > 0
    out[some] = datasets.recall_within(dataset, queries[some], ids[some], bound[some], counts[some])
    return out
