"""Readers and writers of vector files, all of them in chunks.

======================  ==============================================================
suffix                  format
======================  ==============================================================
.fbin .u8bin .i8bin     big-ann: int32 n, int32 d, then n·d elements
.ibin
.fvecs .bvecs .ivecs    TEXMEX: every row is int32 d, then d elements
.npy                    numpy, two-dimensional
.hdf5 .h5               ann-benchmarks; `column` names the data set, ``train`` without
.parquet                Parquet with a column of (fixed-size) lists
.arrow .feather .ipc    Arrow IPC file or stream with such a column
======================  ==============================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import FormatError, InvalidArgumentError
from velo.formats.arrow import ArrowFileSource, ParquetSource, write_arrow, write_parquet
from velo.formats.binary import (
    BIN_DTYPES,
    VECS_DTYPES,
    open_bin,
    open_npy,
    open_vecs,
    write_bin,
    write_npy,
    write_vecs,
)
from velo.formats.hdf5 import Hdf5Source, write_hdf5
from velo.formats.source import Source, as_source
from velo.formats.truth import Truth, read_truth, write_truth
from velo.types import PathLike, VectorSource

__all__ = [
    "SUFFIXES",
    "Source",
    "Truth",
    "VectorSource",
    "open_vectors",
    "read_truth",
    "write_truth",
    "write_vectors",
]

_HDF5 = (".hdf5", ".h5")
_ARROW = (".arrow", ".feather", ".ipc")

#: The suffixes that :func:`open_vectors` knows.
SUFFIXES = (*BIN_DTYPES, *VECS_DTYPES, ".npy", *_HDF5, ".parquet", *_ARROW)


def open_vectors(path: PathLike, *, column: str | None = None) -> Source:
    """Open a file of vectors by its suffix; rows are read when they are asked for.

    Parameters
    ----------
    path : path
    column : str, optional
        The column (Parquet, Arrow) or data set (HDF5) that holds the vectors, where several could.

    Returns
    -------
    Source
        ``shape``, ``dtype``, ``chunks(rows)``, ``read()``.

    Raises
    ------
    FormatError
        The file is truncated or its header makes no sense; the error names file and byte.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgumentError(
            f"{path}: unknown suffix {suffix!r}; known are {' '.join(SUFFIXES)}",
            argument="path",
            file=str(path),
        )
    try:
        if suffix in BIN_DTYPES:
            return open_bin(path, BIN_DTYPES[suffix])
        if suffix in VECS_DTYPES:
            return open_vecs(path, VECS_DTYPES[suffix])
        if suffix == ".npy":
            return open_npy(path)
        if suffix in _HDF5:
            return Hdf5Source(path, column or "train")
        if suffix == ".parquet":
            return ParquetSource(path, column)
        return ArrowFileSource(path, column)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise FormatError(f"{path}: {error.strerror or error}", file=str(path)) from error


def write_vectors(path: PathLike, vectors: Any, *, column: str = "vector") -> None:
    """Write vectors to a file whose format is that of its suffix, in chunks.

    Parameters
    ----------
    path : path
    vectors : whatever :func:`velo.build` takes
        Elements are converted to those of the format.
    column : str
        The column (Parquet, Arrow) or, for HDF5 if it is not ``"vector"``, the data set to write.
    """
    source = as_source(vectors)
    suffix = Path(path).suffix.lower()
    if suffix in BIN_DTYPES:
        write_bin(path, source, BIN_DTYPES[suffix])
    elif suffix in VECS_DTYPES:
        write_vecs(path, source, VECS_DTYPES[suffix])
    elif suffix == ".npy":
        write_npy(path, source)
    elif suffix in _HDF5:
        write_hdf5(path, {"train" if column == "vector" else column: np.asarray(source.read())})
    elif suffix == ".parquet":
        write_parquet(path, source, column)
    elif suffix in _ARROW:
        write_arrow(path, source, column)
    else:
        raise InvalidArgumentError(
            f"{path}: unknown suffix {suffix!r}; known are {' '.join(SUFFIXES)}",
            argument="path",
            file=str(path),
        )
