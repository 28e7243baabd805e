"""Ground truth files: exact neighbors of each query, to measure recall against."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from velo.errors import FormatError
from velo.formats.files import open_vectors
from velo.types import Float32Array, Int64Array, PathLike


class Truth(NamedTuple):
    """Exact neighbors.

    Attributes
    ----------
    ids : ndarray of shape (nq, k), int64
        -1 where fewer than k rows match.
    distances : ndarray of shape (nq, k), float32, or None
        Infinity where ids are -1; None where the file holds none.
    """

    ids: Int64Array
    distances: Float32Array | None


def read_truth(path: PathLike) -> Truth:
    """Read ground truth from big-ann ``.bin``, ``.ivecs``, ``.ibin``, ``.npy`` or ann-benchmarks HDF5.

    Parameters
    ----------
    path : path

    Returns
    -------
    Truth
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".bin":
        return _read_big_ann(path)
    if suffix in (".hdf5", ".h5"):
        ids = open_vectors(path, column="neighbors").read()
        distances = open_vectors(path, column="distances").read()
        return Truth(ids.astype(np.int64), distances.astype(np.float32))
    return Truth(open_vectors(path).read().astype(np.int64), None)


def _read_big_ann(path: PathLike) -> Truth:
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        header = np.frombuffer(file.read(8), "<u4") if size >= 8 else np.zeros(0, "<u4")
        if len(header) < 2:
            raise FormatError(
                f"{path}: the header takes 8 bytes, the file has {size}", file=str(path), position=size
            )
        queries, k = int(header[0]), int(header[1])
        expected = 8 + queries * k * 8
        if size != expected:
            raise FormatError(
                f"{path}: {queries} queries of {k} neighbors take {expected} bytes, the file has {size}",
                file=str(path),
                position=min(size, expected),
            )
        ids = np.fromfile(file, "<i4", queries * k).reshape(queries, k)
        distances = np.fromfile(file, "<f4", queries * k).reshape(queries, k)
    return Truth(ids.astype(np.int64), distances)


def write_truth(path: PathLike, ids: Int64Array, distances: Float32Array) -> None:
    """Write ground truth as a big-ann ``.bin`` file.

    Parameters
    ----------
    path : path
    ids : ndarray of shape (nq, k)
    distances : ndarray of shape (nq, k)
    """
    with open(path, "wb") as file:
        file.write(np.asarray(ids.shape, "<u4").tobytes())
        file.write(np.ascontiguousarray(ids, "<i4").tobytes())
        file.write(np.ascontiguousarray(distances, "<f4").tobytes())
