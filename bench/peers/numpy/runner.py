"""Brute force with numpy: every distance, by matrix products in float32, or in float64 where asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from protocol import System, run

BLOCK_ROWS = 20_000


class BruteForce(System):
    single_max = 50
    base: np.ndarray
    squares: np.ndarray
    center: np.ndarray

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self.query_dtype = self.options.get("dtype", "float32")

    def build(self, base: np.ndarray) -> None:
        np.save(self.folder / "base.npy", np.asarray(base, dtype=np.float32))

    def open(self) -> None:
        self.base = np.load(self.folder / "base.npy").astype(self.query_dtype)
        self.center = np.zeros(self.base.shape[1], self.base.dtype)
        if self.base.dtype == np.float64 and self.options.get("metric") != "ip":
            self.center = self.base.mean(axis=0)  # near zero, squares lose no digits
            self.base -= self.center
        self.squares = np.einsum("ij,ij->i", self.base, self.base)
        if self.options.get("metric") == "ip":
            self.squares[:] = 0

    def search_batch(self, queries: np.ndarray) -> Any:
        queries = queries - self.center
        best = np.full((len(queries), self.k), np.inf, dtype=self.base.dtype)
        best_ids = np.full((len(queries), self.k), -1, dtype=np.int64)
        for start in range(0, len(self.base), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            distances = self.squares[rows] - 2 * (queries @ self.base[rows].T)
            near = np.argpartition(distances, self.k - 1, axis=1)[:, : self.k]
            merged = np.concatenate([best, np.take_along_axis(distances, near, axis=1)], axis=1)
            merged_ids = np.concatenate([best_ids, near + start], axis=1)
            order = np.argsort(merged, axis=1, kind="stable")[:, : self.k]
            best = np.take_along_axis(merged, order, axis=1)
            best_ids = np.take_along_axis(merged_ids, order, axis=1)
        return best_ids


run(BruteForce)
