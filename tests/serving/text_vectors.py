"""A function for ``velo serve --embed`` in tests: a text names a row, and gets its vector."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from velo.testing import synthetic_vectors

ROWS, DIM = 240, 12
VECTORS = synthetic_vectors(ROWS, DIM, seed=9)
NOT_CALLABLE = 3


def embed(texts: Sequence[str]) -> np.ndarray:
    """The vector of the row that each text names."""
    (text,) = texts
    if "fails" in text:
        raise ValueError("secret")
    if "none" in text:
        return np.full((1, DIM), np.nan)
    found = re.search(r"\d+", text)
    return VECTORS[[int(found[0]) if found else 0]]


class Model:
    """With a method that does the same."""

    def encode(self, texts: Sequence[str]) -> list[list[float]]:
        return [row.tolist() for row in embed(texts)]


model = Model()
