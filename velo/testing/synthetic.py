"""Made-up vectors and metadata: seeded, shaped somewhat like real ones, never to be quoted as such."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from velo.types import Float32Array

_BLOCK = 4096


def synthetic_vectors(
    row_count: int, dim: int, *, seed: int = 0, start: int = 0, intrinsic_dim: int = 16, clusters: int = 64
) -> Float32Array:
    """Vectors in clusters on a curved surface of lower dimension, so that neighbors mean something.

    Parameters
    ----------
    row_count, dim : int
    seed : int
        A row depends on seed and row number alone: it is the same whatever else is asked for.
    start : int
        Number of the first row; queries can be taken from behind the base.
    intrinsic_dim : int
        Dimensions of the surface.
    clusters : int

    Returns
    -------
    ndarray of shape (row_count, dim), float32
    """
    shape = np.random.default_rng([seed, 0])
    centers = shape.normal(size=(clusters, intrinsic_dim)) * 1.5
    lift = shape.normal(size=(intrinsic_dim, dim)) / np.sqrt(intrinsic_dim)
    bend = shape.normal(size=(intrinsic_dim, dim)) / np.sqrt(intrinsic_dim)
    rows = np.empty((row_count, dim), np.float32)
    row = 0
    while row < row_count:
        block, offset = divmod(start + row, _BLOCK)
        random = np.random.default_rng([seed, 1, block])
        which = random.integers(clusters, size=_BLOCK)
        points = centers[which] + random.normal(size=(_BLOCK, intrinsic_dim))
        noise = random.normal(size=(_BLOCK, dim)) * 0.02
        lifted = points @ lift + 0.5 * np.sin(points @ bend) + noise
        count = min(_BLOCK - offset, row_count - row)
        rows[row : row + count] = lifted[offset : offset + count]
        row += count
    return rows


def synthetic_metadata(row_count: int, *, seed: int = 0) -> pa.Table:
    """A table to filter by.

    Its columns: ``label`` (0 to 9), ``price`` (0 to 1), ``brand`` (string, some null), ``tags`` (list).

    Parameters
    ----------
    row_count : int
    seed : int

    Returns
    -------
    pyarrow.Table
    """
    random = np.random.default_rng([seed, 2])
    words = np.array(["red", "green", "blue", "cat", "dog", "sofa", "chair", "lamp", "old", "new"])
    brands = np.array([f"brand-{number:02d}" for number in range(20)])
    lengths = random.integers(0, 4, size=row_count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tags = [list(row) for row in np.split(random.choice(words, int(offsets[-1])), offsets[1:-1])]
    return pa.table(
        {
            "label": pa.array(random.integers(10, size=row_count).astype(np.uint8)),
            "price": pa.array(random.random(row_count, dtype=np.float32)),
            "brand": pa.array(random.choice(brands, row_count), mask=random.random(row_count) < 0.02),
            "tags": pa.array(tags, pa.list_(pa.string())),
        }
    )
