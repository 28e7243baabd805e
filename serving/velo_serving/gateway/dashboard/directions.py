"""The two directions in which a sample of vectors spreads most."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from velo_serving.protocol.types import Float32Matrix

#: Directions that are followed so that the first two come out right, and how often they are turned.
_FOLLOWED: Final = 6
_TURNS: Final = 20


class Directions:
    """Projects vectors to the plane in which a sample spreads most, by power iteration.

    ``points`` is the sample, within a circle of radius one; ``shares`` are the parts of its variance along
    the two directions.
    """

    def __init__(self, sample: Float32Matrix, metric: str, seed: int = 0) -> None:
        self._is_direction = metric == "cosine"
        rows = self._at_length(sample)
        count, dim = rows.shape
        self._middle = rows.mean(axis=0) if count else np.zeros(dim)
        spread = rows - self._middle
        basis = np.random.default_rng(seed).standard_normal((dim, min(_FOLLOWED, dim)))
        for _ in range(_TURNS):
            basis = np.linalg.qr(spread.T @ (spread @ basis))[0]
        _, sizes, turned = np.linalg.svd(spread @ basis, full_matrices=False)
        axes = (basis @ turned.T)[:, :2]
        axes *= np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1, 1)
        self._axes = np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))
        flat = spread @ self._axes
        self._scale = float(np.hypot(*flat.T).max(initial=0)) or 1.0
        self.points = flat / self._scale
        total = float((spread**2).sum()) or 1.0
        self.shares = [float(size**2) / total for size in (*sizes, 0.0, 0.0)[:2]]

    def __call__(self, vectors: Float32Matrix) -> Any:
        return (self._at_length(vectors) - self._middle) @ self._axes / self._scale

    def _at_length(self, vectors: Float32Matrix) -> Any:
        rows = vectors.astype(np.float64)
        if self._is_direction:
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows /= np.where(lengths > 0, lengths, 1)
        return rows
