"""The choice of a reader or writer by a file's suffix or a value's type."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import FormatError, InvalidArgumentError
from velo.formats import binary
from velo.formats.arrow import (
    ArrowSource,
    column_source,
    vector_table,
    write_arrow,
    write_parquet,
)
from velo.formats.binary import Hdf5Source, write_hdf5
from velo.formats.source import ArraySource, ForeignSource, Source, array_of
from velo.types import PathLike

_HDF5 = (".hdf5", ".h5")
_ARROW = (".arrow", ".feather", ".ipc")

#: The suffixes that :func:`open_vectors` knows.
SUFFIXES = (*binary.BIN_DTYPES, *binary.VECS_DTYPES, ".npy", *_HDF5, ".parquet", *_ARROW)


def open_vectors(path: PathLike, *, column: str | None = None) -> Source:
    """Open a file of vectors by its suffix; rows are read when they are asked for.

    Parameters
    ----------
    path : path
        Or a folder of Parquet files, or a pattern of their names (``"data/train-*.parquet"``): their rows
        in the order of the names.
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
    source = column_source(path, column)
    if source is not None:
        return source
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidArgumentError(
            f"{path}: unknown suffix {suffix!r}; known are {' '.join(SUFFIXES)}",
            argument="path",
            file=str(path),
        )
    try:
        if suffix in binary.BIN_DTYPES:
            return binary.open_bin(path, binary.BIN_DTYPES[suffix])
        if suffix in binary.VECS_DTYPES:
            return binary.open_vecs(path, binary.VECS_DTYPES[suffix])
        if suffix == ".npy":
            return binary.open_npy(path)
        return Hdf5Source(path, column or "train")
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
    if suffix in binary.BIN_DTYPES:
        binary.write_bin(path, source, binary.BIN_DTYPES[suffix])
    elif suffix in binary.VECS_DTYPES:
        binary.write_vecs(path, source, binary.VECS_DTYPES[suffix])
    elif suffix == ".npy":
        binary.write_npy(path, source)
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


def as_source(vectors: Any, argument: str = "vectors") -> Source:
    """A source for the vectors that :func:`velo.build` takes; errors name `argument`."""
    if isinstance(vectors, Source):
        return vectors
    if isinstance(vectors, np.ndarray):
        return ArraySource(vectors, argument)
    if isinstance(vectors, str | os.PathLike):
        return open_vectors(vectors)
    if isinstance(vectors, pa.Array | pa.ChunkedArray | pa.Table | pa.RecordBatch):
        return ArrowSource(vectors, argument)
    held = vector_table(vectors)
    if held is not None:
        return held.source
    if hasattr(vectors, "shape") and hasattr(vectors, "dtype"):
        if callable(getattr(vectors, "chunks", None)):
            return ForeignSource(vectors)
        if isinstance(vectors.dtype, np.dtype) and hasattr(vectors, "__getitem__"):
            return ArraySource(vectors, argument)
    return ArraySource(array_of(vectors, argument), argument)
