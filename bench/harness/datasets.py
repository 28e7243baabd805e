"""Benchmark sets, and exact truth for any prefix of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from velo.formats import read_truth

Vectors = NDArray[np.uint8] | NDArray[np.float16] | NDArray[np.float32]
Real = TypeVar("Real", np.float32, np.float64)

K = 10
BLOCK_ROWS = 50_000
#: Relative slack when two distances are compared, for sets whose distances are rounded.
DISTANCE_SLACK = 1e-5
#: The same for sets whose truth was found in float64.
EXACT_SLACK = 1e-9


class DataError(Exception):
    """A set that is not where it should be, or not what it should be."""


@dataclass(frozen=True)
class Dataset:
    """Base, queries and exact truth; ``metric`` as velo names it."""

    name: str
    folder: Path
    metric: str
    base: Vectors
    queries: Vectors
    truth_ids: NDArray[np.int64]
    #: Parquet file of the base vectors' columns, where the set has them.
    labels: Path | None = None
    slack: float = DISTANCE_SLACK

    @property
    def n(self) -> int:
        return len(self.base)

    @property
    def dim(self) -> int:
        return int(self.base.shape[1])

    @property
    def float32_bytes(self) -> int:
        """The size that a budget is a share of, whatever the dtype."""
        return self.n * self.dim * 4


def read_u8bin(path: Path) -> NDArray[np.uint8]:
    """Map a big-ann ``u8bin`` file: int32 n, int32 d, then rows."""
    n, dim = (int(x) for x in np.fromfile(path, dtype="<u4", count=2))
    return np.memmap(path, dtype=np.uint8, mode="r", offset=8, shape=(n, dim))


def load(folder: Path, *, limit: int | None = None, query_count: int | None = None) -> Dataset:
    """Open the set in ``folder``; with ``limit`` its first rows only, with truth of their own."""
    slack, metric = DISTANCE_SLACK, "l2"
    prefix = "sample_" if (folder / "sample.u8bin").exists() else ""
    if prefix or (folder / "base.u8bin").exists():
        base: Vectors = read_u8bin(folder / ("sample.u8bin" if prefix else "base.u8bin"))
        queries: Vectors = np.asarray(read_u8bin(folder / f"{'sample_queries' if prefix else 'query'}.u8bin"))
        truth = read_truth(folder / f"{prefix}truth.bin").ids
    elif (file := folder / "base.f16.npy").exists() or (folder / "set.json").exists():
        kind, key = (".f16", "all_ids") if file.exists() else ("", "ids")
        base = np.load(folder / f"base{kind}.npy", mmap_mode="r")
        queries = np.load(folder / f"query{kind}.npy")
        with np.load(folder / "truth.npz") as arrays:
            truth = arrays[key].astype(np.int64)
        metric = "cosine"
        if not kind:
            metric, slack = json.loads((folder / "set.json").read_text())["metric"], EXACT_SLACK
    else:
        raise DataError(
            f"{folder} holds no set that is known here: no base.u8bin, sample.u8bin, base.f16.npy or set.json"
        )
    if query_count is not None:
        queries, truth = queries[:query_count], truth[:query_count]
    if limit is not None and limit < len(base):
        base = base[:limit]
        truth = nearest(base, queries, K, metric)
    columns = (folder / name for name in ("labels.parquet", "sample_labels.parquet", "meta.parquet"))
    labels = next((path for path in columns if path.exists()), None)
    return Dataset(folder.name, folder, metric, base, queries, truth[:, :K], labels, slack)


def nearest(base: Vectors, queries: Vectors, k: int, metric: str) -> NDArray[np.int64]:
    """Exact k nearest ids by float32 blocks, distances taken again in float64 for the last order."""
    targets = for_peers(queries, metric).astype(np.float32)
    keep = min(len(base), k + 20)  # enough that float32 rounding cannot push a true one out
    best = np.empty((len(queries), 0), dtype=np.int64)
    distances = np.empty((len(queries), 0), dtype=np.float32)
    for start in range(0, len(base), BLOCK_ROWS):
        rows = for_peers(base[start : start + BLOCK_ROWS], metric).astype(np.float32)
        block = -2 * (targets @ rows.T)
        if metric != "ip":
            block += np.einsum("ij,ij->i", rows, rows)[None, :]
        near = np.argpartition(block, min(keep, len(rows)) - 1, axis=1)[:, :keep]
        best = np.concatenate([best, near + start], axis=1)
        distances = np.concatenate([distances, np.take_along_axis(block, near, axis=1)], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")[:, :keep]
        best, distances = (
            np.take_along_axis(best, order, axis=1),
            np.take_along_axis(distances, order, axis=1),
        )
    exact = exact_distances(base, queries, best, metric)
    order = np.lexsort((best, exact), axis=1)[:, :k]
    return np.take_along_axis(best, order, axis=1)


def exact_distances(
    base: Vectors, queries: Vectors, ids: NDArray[np.int64], metric: str
) -> NDArray[np.float64]:
    """Squared L2 in float64 (of normalised vectors for cosine), or the inner product's negative, of each
    query to each of its ids; id -1 is infinitely far.
    """
    out = np.empty(ids.shape, dtype=np.float64)
    for start in range(0, len(ids), 500):
        part = slice(start, start + 500)
        rows = base[np.maximum(ids[part], 0)].astype(np.float64)
        targets = queries[part].astype(np.float64)[:, None, :]
        if metric == "ip":
            out[part] = -(rows * targets).sum(axis=2)
            continue
        if metric == "cosine":
            rows, targets = unit(rows), unit(targets)
        out[part] = ((rows - targets) ** 2).sum(axis=2)
    out[ids < 0] = np.inf
    return out


def for_peers(vectors: Vectors, metric: str) -> Vectors:
    """Vectors for a system without cosine: those of cosine normalized, others as they are."""
    return unit(vectors.astype(np.float32)) if metric == "cosine" else vectors


def unit(vectors: NDArray[Real]) -> NDArray[Real]:
    """Each row over its length; a row of zeros stays as it is."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(vectors.dtype, copy=False)


def recall(dataset: Dataset, ids: NDArray[np.int64], k: int = K) -> NDArray[np.float64]:
    """Recall@k of each query by distance: an answer counts if it is no farther than the true k-th, so ties
    are fair.
    """
    queries, truth = dataset.queries[: len(ids)], dataset.truth_ids[: len(ids), :k]
    bound = exact_distances(dataset.base, queries, truth, dataset.metric).max(axis=1)
    return recall_within(dataset, queries, ids[:, :k], bound, np.full(len(ids), k))


def recall_within(
    dataset: Dataset,
    queries: Vectors,
    ids: NDArray[np.int64],
    bound: NDArray[np.float64],
    true_counts: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Share of ``true_counts`` that ``ids`` holds: distinct ids no farther than ``bound``."""
    distances = exact_distances(dataset.base, queries, ids, dataset.metric)
    ordered = np.sort(ids, axis=1)
    repeats = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).sum(axis=1)
    reach = bound + dataset.slack * np.abs(bound)
    hits = (distances <= reach[:, None]).sum(axis=1) - repeats
    shares: NDArray[np.float64] = np.minimum(hits, true_counts) / true_counts
    return shares
