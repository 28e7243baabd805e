"""Files that usearch wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from velo.errors import FormatError, MissingDependencyError, UnsupportedError
from velo.importing.rows import ROWS, Asked, Batch, ForeignIndex, file_of, metric_of

__all__ = ["open_usearch"]


def open_usearch(asked: Asked) -> ForeignIndex:
    """Open a file of usearch.

    Raises
    ------
    FormatError, InvalidArgumentError, MissingDependencyError
    UnsupportedError
        The index compares in another way.
    """
    path = file_of(asked)
    try:
        import usearch.index
    except ImportError as error:
        raise MissingDependencyError("pip install usearch brings usearch, which reads its files") from error
    library: Any = usearch.index  # its types leave out what it takes from its core
    try:
        index = library.Index.restore(str(path), view=True)
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"{path}: usearch cannot read it: {error}", file=str(path)) from error
    if index is None:
        raise FormatError(f"{path}: it is no index of usearch", file=str(path))
    kinds = library.MetricKind
    metrics = {kinds.L2sq: "l2", kinds.IP: "ip", kinds.Cos: "cosine"}
    if index.metric_kind not in metrics:
        raise UnsupportedError(f"{path} compares by {index.metric_kind.name}, which velo does not")
    if index.multi:
        raise UnsupportedError(f"{path} has several vectors a key, and a row of velo has one")
    kind = index.dtype.name.lower()
    notes = () if kind in ("f32", "f64") else (f"vectors are what {kind} has of them",)
    metric = metric_of(asked, metrics[index.metric_kind])
    return ForeignIndex(index.ndim, metric, _batches(index, str(path)), notes=notes)


def _batches(index: Any, path: str) -> Iterator[Batch]:
    keys = np.sort(np.asarray(index.keys, np.uint64))
    if len(keys) and keys[-1] >= 2**63:
        raise FormatError(f"{path}: a key is beyond 63 bits", file=path)
    for start in range(0, len(keys), ROWS):
        names = keys[start : start + ROWS]
        yield names.astype(np.int64), np.stack([index.get(int(one), dtype="f32") for one in names]), None
