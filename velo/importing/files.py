"""Files of faiss, hnswlib and usearch.

A file of hnswlib's ``save_index`` is read directly, without hnswlib: a header, then the lowest level of the
graph, one record for each element with its links, its vector in float32 and its label. Links of higher levels
follow and are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from velo.errors import FormatError, InvalidArgumentError, MissingDependencyError, UnsupportedError
from velo.types import MetricName

#: Rows that are read at once.
ROWS: Final = 10_000
_METRICS: Final = ("l2", "ip", "cosine")

#: Ids, vectors, and a table of a row each, or None.
Batch = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Asked:
    """The index to open, and facts that its files may lack.

    `ids_column`: The column with the ids of rows; None: numbers from 0.
    """

    source: str
    metric: str | None = None
    collection: str | None = None
    vector: str | None = None
    ids_column: str | None = None


@dataclass(frozen=True)
class ForeignIndex:
    """An index of another library, read in batches of ids, vectors and tables with `schema`.

    `notes` tell how the vectors read differ from the original ones.
    """

    dim: int
    metric: MetricName
    batches: Iterator[Batch]
    schema: Any = None
    notes: tuple[str, ...] = field(default=())


def metric_of(asked: Asked, told: str | None) -> Any:
    """The metric of the index, or the one given if it names none; InvalidArgumentError if they differ."""
    given = asked.metric
    if given is not None and given not in _METRICS:
        raise InvalidArgumentError(
            f"metric is one of {', '.join(_METRICS)}, not {given!r}", argument="metric"
        )
    if told is None and given is None:
        raise InvalidArgumentError(
            f"{asked.source} does not name its metric: give it with metric", argument="metric"
        )
    if told is not None and given is not None and told != given:
        raise InvalidArgumentError(f"{asked.source} compares by {told}, not by {given}", argument="metric")
    return told or given


def file_of(asked: Asked) -> Path:
    """The file of an index; FormatError if it does not exist."""
    path = Path(asked.source)
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise FormatError(f"{path} {what}", file=str(path))
    return path


#: Offset of the level, capacity, elements, bytes of a record, where in it label and vector begin, highest
#: level, entry point, and how the graph was built.
_HEADER: Final = struct.Struct("<6QiI3QdQ")
#: The byte of a record that says by its lowest bit that the element was deleted.
_DELETED_AT: Final = 2
_DIM_MAX: Final = 8192


def open_faiss(asked: Asked) -> ForeignIndex:
    """Open a file of faiss, with or without an ``IndexIDMap`` around the index."""
    path = file_of(asked)
    try:
        import faiss
    except ImportError as error:
        raise MissingDependencyError("files of faiss need faiss: pip install faiss-cpu") from error
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
        else ("vectors are decoded from the codes of faiss",)
    )
    return ForeignIndex(index.d, metric, _faiss_batches(index, inner, ids, str(path)), notes=notes)


def _faiss_batches(owner: Any, index: Any, ids: Any, path: str) -> Iterator[Batch]:
    """Yield rows; `owner` keeps the memory of `index` alive."""
    for start in range(0, owner.ntotal, ROWS):
        rows = min(ROWS, index.ntotal - start)
        try:
            vectors = index.reconstruct_n(start, rows)
        except RuntimeError as error:
            raise UnsupportedError(f"{path}: this index does not give its vectors back: {error}") from error
        names = np.arange(start, start + rows, dtype=np.int64) if ids is None else ids[start : start + rows]
        yield names, vectors, None


def open_hnswlib(asked: Asked) -> ForeignIndex:
    """Open a file of hnswlib; the file does not name the metric, so it must be given."""
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
            f"{path}: it is not an index of hnswlib with float32 vectors, or it is truncated", file=str(path)
        )
    metric = metric_of(asked, None)
    return ForeignIndex(dim, metric, _hnswlib_batches(path, count, record, label_at, vector_at, dim))


def _hnswlib_batches(
    path: Path, count: int, record: int, label_at: int, vector_at: int, dim: int
) -> Iterator[Batch]:
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


def open_usearch(asked: Asked) -> ForeignIndex:
    path = file_of(asked)
    try:
        import usearch.index
    except ImportError as error:
        raise MissingDependencyError("files of usearch need usearch: pip install usearch") from error
    library: Any = usearch.index  # its types leave out what it takes from its core
    try:
        index = library.Index.restore(str(path), view=True)
    except (RuntimeError, ValueError) as error:
        raise FormatError(f"{path}: usearch cannot read it: {error}", file=str(path)) from error
    if index is None:
        raise FormatError(f"{path}: it is not an index of usearch", file=str(path))
    kinds = library.MetricKind
    metrics = {kinds.L2sq: "l2", kinds.IP: "ip", kinds.Cos: "cosine"}
    if index.metric_kind not in metrics:
        raise UnsupportedError(f"{path} compares by {index.metric_kind.name}, which velo does not")
    if index.multi:
        raise UnsupportedError(f"{path} has several vectors a key, and a row of velo has one")
    kind = index.dtype.name.lower()
    notes = () if kind in ("f32", "f64") else (f"vectors are rounded to {kind}",)
    metric = metric_of(asked, metrics[index.metric_kind])
    return ForeignIndex(index.ndim, metric, _usearch_batches(index, str(path)), notes=notes)


def _usearch_batches(index: Any, path: str) -> Iterator[Batch]:
    keys = np.sort(np.asarray(index.keys, np.uint64))
    if len(keys) and keys[-1] >= 2**63:
        raise FormatError(f"{path}: a key is beyond 63 bits", file=path)
    for start in range(0, len(keys), ROWS):
        names = keys[start : start + ROWS]
        yield names.astype(np.int64), np.stack([index.get(int(one), dtype="f32") for one in names]), None
