"""Small sets in folders of their own, as the sets of the benchmarks are laid out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.harness.datasets import Dataset, Vectors, nearest


def write_set(folder: Path, base: Vectors, queries: Vectors, metric: str = "l2") -> Path:
    """Write a set with the true neighbors of its queries."""
    folder.mkdir(parents=True)
    np.save(folder / "base.npy", base)
    np.save(folder / "query.npy", queries)
    np.savez(folder / "truth.npz", ids=nearest(base, queries, 10, metric))
    shape = {"metric": metric, "n": len(base), "dim": base.shape[1]}
    (folder / "set.json").write_text(json.dumps(shape))
    return folder


def small_set(folder: Path, n: int = 3000, dim: int = 32, queries: int = 260, metric: str = "l2") -> Path:
    """Write a set of normal vectors whose lengths vary."""
    random = np.random.default_rng(3)
    base = random.normal(size=(n, dim)) * np.exp(0.3 * random.normal(size=(n, 1)))
    return write_set(
        folder, base.astype(np.float32), random.normal(size=(queries, dim)).astype(np.float32), metric
    )


def made(
    metric: str, n: int = 2000, dim: int = 12, queries: int = 30, *, whole: bool = False, seed: int = 7
) -> Dataset:
    """A set in memory whose lengths vary; of small whole numbers where ties are wanted."""
    random = np.random.default_rng(seed)
    base = random.normal(size=(n, dim)) * np.exp(random.normal(size=(n, 1)))
    asked = random.normal(size=(queries, dim))
    if whole:
        base, asked = (random.integers(1, 6, (rows, dim)).astype(float) for rows in (n, queries))
    base, asked = base.astype(np.float32), asked.astype(np.float32)
    truth = np.argsort(directly(base, asked, metric), axis=1, kind="stable")[:, :10]
    return Dataset("made", Path(), metric, base, asked, truth, slack=1e-9)


def directly(base: np.ndarray, queries: np.ndarray, metric: str) -> np.ndarray:
    """Distances pair by pair, without any of the bench's code."""
    rows, wanted = base.astype(np.float64), queries.astype(np.float64)
    if metric == "ip":
        return -(wanted[:, None] * rows[None]).sum(axis=2)
    if metric == "cosine":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    return ((wanted[:, None] - rows[None]) ** 2).sum(axis=2)
