"""Rows that several tests write: vectors, a column of names and a column of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

DIM = 12
SCHEMA = pa.schema([("name", pa.dictionary(pa.int32(), pa.string())), ("n", pa.int64())])


def vectors_of(count: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def table(rows: Any) -> pa.Table:
    return pa.table({"name": [f"x{row % 5}" for row in rows], "n": list(rows)})
