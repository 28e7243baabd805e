"""Rows that several tests write: vectors, a column of names and a column of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

import velo

DIM = 12
SCHEMA = pa.schema([("name", pa.dictionary(pa.int32(), pa.string())), ("n", pa.int64())])


def vectors_of(count: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def table(rows: Any) -> pa.Table:
    return pa.table({"name": [f"x{row % 5}" for row in rows], "n": list(rows)})


@contextmanager
def no_room(index: velo.Index) -> Iterator[None]:
    """Every call is larger than the memory for new rows, however few rows it has."""
    most = index._folders[0].live.delta_bytes_max
    index._folders[0].live.delta_bytes_max = 0
    try:
        yield
    finally:
        index._folders[0].live.delta_bytes_max = most
