"""Exact search by comparing with every vector, and recall against it."""

from __future__ import annotations

from typing import Any

import numpy as np

from velo.errors import DimensionMismatchError, InvalidArgumentError
from velo.formats.files import as_source
from velo.formats.source import chunk_rows
from velo.formats.truth import Truth
from velo.types import AnyArray, Int64Array, MetricName

#: Queries compared at once: bounds the matrix of distances.
_QUERIES_AT_ONCE = 256


def _prepared(rows: AnyArray, metric: MetricName) -> AnyArray:
    wide: AnyArray = rows.astype(np.float64)
    if metric == "cosine":
        norms = np.linalg.norm(wide, axis=1, keepdims=True)
        wide /= np.where(norms == 0.0, 1.0, norms)
    return wide


def _pairwise(queries: AnyArray, rows: AnyArray, metric: MetricName) -> AnyArray:
    products: AnyArray = queries @ rows.T
    if metric == "ip":
        return -products
    if metric == "cosine":
        return 1.0 - products
    squares: AnyArray = (queries**2).sum(1)[:, None] - 2.0 * products + (rows**2).sum(1)[None, :]
    return np.maximum(squares, 0.0)


def brute_force(
    vectors: Any, queries: Any, k: int = 10, *, metric: MetricName = "l2", mask: AnyArray | None = None
) -> Truth:
    """The exact k nearest rows of each query; equal distances go by the lower row.

    Parameters
    ----------
    vectors : array-like of shape (n, d), path or source
        Read in chunks.
    queries : array-like of shape (nq, d)
    k : int
    metric : {"l2", "ip", "cosine"}
    mask : ndarray of bool of shape (n,) or (nq, n), optional
        The rows that may be found.

    Returns
    -------
    Truth
        ``ids`` (row numbers) and ``distances`` of shape (nq, k), padded with -1 and infinity.
    """
    source = as_source(vectors)
    targets = np.atleast_2d(np.asarray(queries))
    if targets.shape[1] != source.shape[1]:
        raise DimensionMismatchError(
            f"queries have {targets.shape[1]} dimensions, vectors {source.shape[1]}", argument="queries"
        )
    if k < 1:
        raise InvalidArgumentError(f"k must be at least 1, not {k}", argument="k")
    wide = _prepared(targets, metric)
    best_ids = np.full((len(targets), k), -1, np.int64)
    best = np.full((len(targets), k), np.inf)
    first_row = 0
    for chunk in source.chunks(chunk_rows(source.shape[1] * 32)):
        rows = _prepared(chunk, metric)
        numbers = np.arange(first_row, first_row + len(rows))
        for at in range(0, len(targets), _QUERIES_AT_ONCE):
            part = slice(at, at + _QUERIES_AT_ONCE)
            distances = _pairwise(wide[part], rows, metric)
            if mask is not None:
                passing = mask[..., first_row : first_row + len(rows)]
                distances = np.where(passing if mask.ndim == 1 else passing[part], distances, np.inf)
            ids = np.concatenate([best_ids[part], np.broadcast_to(numbers, distances.shape)], axis=1)
            joined = np.concatenate([best[part], distances], axis=1)
            # Stable: ties go to the lower row.
            order = np.argsort(joined, axis=1, kind="stable")[:, :k]
            best[part] = np.take_along_axis(joined, order, axis=1)
            best_ids[part] = np.take_along_axis(ids, order, axis=1)
        first_row += len(rows)
    best_ids[np.isinf(best)] = -1
    return Truth(best_ids, best.astype(np.float32))


def exact_distances(
    vectors: AnyArray, queries: AnyArray, ids: Int64Array, *, metric: MetricName = "l2"
) -> AnyArray:
    """The exact distance of each found row.

    Parameters
    ----------
    vectors : ndarray of shape (n, d)
    queries : ndarray of shape (nq, d)
    ids : ndarray of shape (nq, k)
        Row numbers; -1 gives infinity.
    metric : {"l2", "ip", "cosine"}

    Returns
    -------
    ndarray of shape (nq, k), float64
    """
    distances = np.full(ids.shape, np.inf)
    wide = _prepared(np.atleast_2d(queries), metric)
    for number, row in enumerate(ids):
        places = np.flatnonzero(row >= 0)
        if len(places):
            rows = _prepared(vectors[row[places]], metric)
            distances[number, places] = _pairwise(wide[number : number + 1], rows, metric)[0]
    return distances


def recall_at_k(
    found_ids: AnyArray,
    true_ids: AnyArray,
    *,
    k: int | None = None,
    found_distances: AnyArray | None = None,
    true_distances: AnyArray | None = None,
) -> float:
    """The mean share of true neighbors that were found.

    With both distances (exact ones) a found row counts as soon as it is as near as the k-th true neighbor, so
    that ties are fair; without them rows are compared by id. A query with fewer than k true neighbors is
    measured against those it has; one that has none is left out.

    Parameters
    ----------
    found_ids : ndarray of shape (nq, at least k)
    true_ids : ndarray of shape (nq, at least k)
        Padded with -1.
    k : int, optional
        All columns of `found_ids` without it.
    found_distances, true_distances : ndarray, optional

    Returns
    -------
    float
        1.0 if no query has a true neighbor.
    """
    k = found_ids.shape[1] if k is None else k
    if true_ids.shape[1] < k or len(true_ids) != len(found_ids):
        raise InvalidArgumentError(
            f"the truth has the shape {true_ids.shape}, for k={k} of {len(found_ids)} queries",
            argument="true_ids",
        )
    shares = []
    for number in range(len(found_ids)):
        truth = true_ids[number, :k]
        total = int((truth >= 0).sum())
        if total == 0:
            continue
        matches = found_ids[number, :k]
        if found_distances is not None and true_distances is not None:
            bound = true_distances[number, total - 1]
            near = found_distances[number, :k] <= bound + 1e-6 * abs(bound) + 1e-12
            hits = len(np.unique(matches[near & (matches >= 0)]))
        else:
            hits = len(np.intersect1d(matches[matches >= 0], truth[truth >= 0]))
        shares.append(min(hits, total) / total)
    return float(np.mean(shares)) if shares else 1.0
