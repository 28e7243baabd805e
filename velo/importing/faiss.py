"""Files that faiss wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from velo.errors import FormatError, MissingDependencyError, UnsupportedError
from velo.importing.rows import ROWS, Asked, Batch, ForeignIndex, file_of, metric_of

__all__ = ["open_faiss"]


def open_faiss(asked: Asked) -> ForeignIndex:
    """Open a file of faiss, with an ``IndexIDMap`` around it or without.

    Raises
    ------
    FormatError, InvalidArgumentError, MissingDependencyError
    UnsupportedError
        The index compares in another way, or cannot give its vectors back.
    """
    path = file_of(asked)
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("pip install faiss-cpu brings faiss, which reads its files") from error
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise FormatError(f"{path}: faiss cannot read it: {error}", file=str(path)) from error
    metrics = {faiss.METRIC_L2: "l2", faiss.METRIC_INNER_PRODUCT: "ip"}
    if index.metric_type not in metrics:
        raise UnsupportedError(f"{path} compares neither by length nor by inner product")
    told = metrics[index.metric_type]
    # Vectors of length 1 are compared by inner product where the cosine is meant.
    metric: Any = "cosine" if told == "ip" and asked.metric == "cosine" else metric_of(asked, told)
    ids = None
    inner = index
    if isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2):
        ids = faiss.vector_to_array(index.id_map)
        inner = faiss.downcast_index(index.index)
    if isinstance(inner, faiss.IndexIVF):
        inner.make_direct_map()
    notes = (
        ()
        if isinstance(inner, faiss.IndexFlat | faiss.IndexHNSWFlat | faiss.IndexIVFFlat)
        else ("vectors are what the codes of faiss tell of them",)
    )
    return ForeignIndex(index.d, metric, _batches(index, inner, ids, str(path)), notes=notes)


def _batches(owner: Any, index: Any, ids: Any, path: str) -> Iterator[Batch]:
    """Yield rows; what holds the index stays as long, or its memory would go."""
    for start in range(0, owner.ntotal, ROWS):
        rows = min(ROWS, index.ntotal - start)
        try:
            vectors = index.reconstruct_n(start, rows)
        except RuntimeError as error:
            raise UnsupportedError(f"{path}: this index does not give its vectors back: {error}") from error
        names = np.arange(start, start + rows, dtype=np.int64) if ids is None else ids[start : start + rows]
        yield names, vectors, None
