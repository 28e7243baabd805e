"""Files that hnswlib's ``save_index`` wrote, read as they are: hnswlib itself is not needed.

A file is a header and then the lowest level of the graph, a record an element: its links, its vector in
float32, its label. Links of higher levels follow, which are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from velo.errors import FormatError
from velo.importing.rows import ROWS, Asked, Batch, ForeignIndex, file_of, metric_of

__all__ = ["open_hnswlib"]

#: Offset of the level, capacity, elements, bytes of a record, where in it label and vector begin, highest
#: level, entry point, and how the graph was built.
_HEADER: Final = struct.Struct("<6QiI3QdQ")
#: The byte of a record that says by its lowest bit that the element was deleted.
_DELETED_AT: Final = 2
_DIM_MAX: Final = 8192


def open_hnswlib(asked: Asked) -> ForeignIndex:
    """Open a file of hnswlib; it does not tell its space, so a metric is needed.

    Raises
    ------
    FormatError, InvalidArgumentError
    """
    path = file_of(asked)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        raise FormatError(f"{path}: it is too short for an index of hnswlib", file=str(path), position=size)
    offset, capacity, count, record, label_at, vector_at, *_ = _HEADER.unpack(head)
    dim, rest = divmod(label_at - vector_at, 4)
    is_whole = offset == 0 and rest == 0 and 1 <= dim <= _DIM_MAX and label_at + 8 == record
    if not is_whole or vector_at < 4 or not count <= capacity or _HEADER.size + count * record > size:
        raise FormatError(
            f"{path}: it is no index of hnswlib with float32 vectors, or it is truncated", file=str(path)
        )
    metric = metric_of(asked, None)
    return ForeignIndex(dim, metric, _batches(path, count, record, label_at, vector_at, dim))


def _batches(path: Path, count: int, record: int, label_at: int, vector_at: int, dim: int) -> Iterator[Batch]:
    with path.open("rb") as file:
        file.seek(_HEADER.size)
        for start in range(0, count, ROWS):
            rows = min(ROWS, count - start)
            raw = np.frombuffer(file.read(rows * record), np.uint8).reshape(rows, record)
            raw = raw[raw[:, _DELETED_AT] & 1 == 0]
            labels = np.ascontiguousarray(raw[:, label_at : label_at + 8]).view(np.uint64).reshape(-1)
            vectors = np.ascontiguousarray(raw[:, vector_at:label_at]).view(np.float32).reshape(-1, dim)
            if len(labels) and labels.max() >= 2**63:
                raise FormatError(f"{path}: a label is beyond 63 bits", file=str(path))
            yield labels.astype(np.int64), vectors, None
