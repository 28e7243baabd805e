"""fbin, u8bin, i8bin and ibin of big-ann; fvecs, bvecs and ivecs of TEXMEX; npy; HDF5 of ann-benchmarks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from velo.errors import FormatError, MissingDependencyError
from velo.formats.source import ArraySource, FileSource, RawSource, Source, chunk_rows
from velo.types import AnyArray, PathLike

#: Element type of each big-ann format: int32 n, int32 d, then n·d elements, little-endian.
BIN_DTYPES: dict[str, np.dtype[Any]] = {
    ".fbin": np.dtype("<f4"),
    ".u8bin": np.dtype("u1"),
    ".i8bin": np.dtype("i1"),
    ".ibin": np.dtype("<i4"),
}

#: Element type of each TEXMEX format: every row is int32 d, then d elements, little-endian.
VECS_DTYPES: dict[str, np.dtype[Any]] = {
    ".fvecs": np.dtype("<f4"),
    ".bvecs": np.dtype("u1"),
    ".ivecs": np.dtype("<i4"),
}

#: No real set has rows longer than this: a greater number in a header means that it is no header.
DIM_MAX = 1 << 20


def open_bin(path: PathLike, dtype: np.dtype[Any]) -> RawSource:
    """Open a big-ann file whose elements are `dtype`."""
    size = os.stat(path).st_size
    probe = RawSource(path, shape=(0, 0), dtype=dtype, offset=8)
    if size < 8:
        raise probe.malformed(f"the header takes 8 bytes, the file has {size}", position=size)
    with open(path, "rb") as file:
        rows, dim = (int(number) for number in np.frombuffer(file.read(8), "<u4"))
    if not 1 <= dim <= DIM_MAX:
        raise probe.malformed(f"the header says {dim} dimensions", position=4)
    expected = 8 + rows * dim * dtype.itemsize
    if size != expected:
        raise probe.malformed(
            f"{rows} rows of {dim} {dtype.name} take {expected} bytes, the file has {size}",
            position=min(size, expected),
        )
    return RawSource(path, shape=(rows, dim), dtype=dtype, offset=8)


def open_vecs(path: PathLike, dtype: np.dtype[Any]) -> RawSource:
    """Open a TEXMEX file whose elements are `dtype`."""
    size = os.stat(path).st_size
    probe = RawSource(path, shape=(0, 0), dtype=dtype, offset=0, has_row_dims=True)
    if size == 0:
        return RawSource(path, shape=(0, 1), dtype=dtype, offset=0, has_row_dims=True)
    if size < 4:
        raise probe.malformed(f"the first row's length takes 4 bytes, the file has {size}", position=size)
    with open(path, "rb") as file:
        dim = int(np.frombuffer(file.read(4), "<i4")[0])
    if not 1 <= dim <= DIM_MAX:
        raise probe.malformed(f"the first row says {dim} dimensions", position=0)
    source = RawSource(path, shape=(0, dim), dtype=dtype, offset=0, has_row_dims=True)
    rows, rest = divmod(size, source.row_bytes)
    if rest:
        raise probe.malformed(
            f"rows of {dim} {dtype.name} take {source.row_bytes} bytes, the file has {size}: "
            f"{rest} bytes are left over",
            position=rows * source.row_bytes,
        )
    return RawSource(path, shape=(rows, dim), dtype=dtype, offset=0, has_row_dims=True)


def open_npy(path: PathLike) -> Source:
    """Open a ``.npy`` file; C order is read with plain reads, Fortran order through a memory map."""
    probe = RawSource(path, shape=(0, 0), dtype=np.dtype("u1"), offset=0)
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                raise probe.malformed(f"npy version {version} is not known", position=6)
            shape, fortran_order, dtype = read(file)
        except FormatError:
            raise
        except (ValueError, EOFError, SyntaxError) as error:
            raise probe.malformed(f"not a npy file: {error}", position=0) from error
        offset = file.tell()
    if dtype.hasobject:
        raise probe.malformed("the array holds Python objects", position=offset)
    if len(shape) != 2:
        raise probe.malformed(f"the array has the shape {shape}, not (n, d)", position=0)
    expected = offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size < expected:
        raise probe.malformed(
            f"an array of shape {shape} ends at byte {expected}, the file has {size}", position=size
        )
    if fortran_order:
        return ArraySource(np.load(path, mmap_mode="r"))
    return RawSource(path, shape=(int(shape[0]), int(shape[1])), dtype=dtype, offset=offset)


def write_bin(path: PathLike, source: Source, dtype: np.dtype[Any]) -> None:
    """Write a big-ann file."""
    with open(path, "wb") as file:
        file.write(np.asarray(source.shape, "<u4").tobytes())
        _write_rows(file, source, dtype)


def write_npy(path: PathLike, source: Source) -> None:
    """Write a ``.npy`` file in C order."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file,
            {
                "descr": np.lib.format.dtype_to_descr(source.dtype),
                "fortran_order": False,
                "shape": source.shape,
            },
        )
        _write_rows(file, source, source.dtype)


def write_vecs(path: PathLike, source: Source, dtype: np.dtype[Any]) -> None:
    """Write a TEXMEX file."""
    dim = source.shape[1]
    with open(path, "wb") as file:
        for chunk in _converted(source, dtype):
            rows = np.empty(len(chunk), np.dtype([("dim", "<i4"), ("row", dtype, (dim,))]))
            rows["dim"] = dim
            rows["row"] = chunk
            file.write(rows.tobytes())


def _write_rows(file: BinaryIO, source: Source, dtype: np.dtype[Any]) -> None:
    for chunk in _converted(source, dtype):
        file.write(np.ascontiguousarray(chunk).data)


def _converted(source: Source, dtype: np.dtype[Any]) -> Iterator[AnyArray]:
    for chunk in source.chunks(chunk_rows(source.shape[1] * dtype.itemsize)):
        yield chunk.astype(dtype, copy=False)


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError("HDF5 files need h5py: pip install h5py") from error
    return h5py


class Hdf5Source(FileSource):
    """A two-dimensional data set of an HDF5 file: ``"train"`` (base vectors) or ``"test"`` (queries)."""

    def __init__(self, path: PathLike, dataset: str = "train") -> None:
        super().__init__(path)
        self.dataset = dataset
        h5py = _h5py()
        try:
            with h5py.File(path, "r") as file:
                if dataset not in file:
                    raise self.malformed(f"no data set {dataset!r}; there are: {', '.join(sorted(file))}")
                shape = file[dataset].shape
                self._dtype = np.dtype(file[dataset].dtype)
        except OSError as error:
            raise self.malformed(f"not a whole HDF5 file: {error}") from error
        if len(shape) != 2:
            raise self.malformed(f"the data set {dataset!r} has the shape {shape}, not (n, d)")
        self._shape = int(shape[0]), int(shape[1])

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        with _h5py().File(self.path, "r") as file:
            dataset = file[self.dataset]
            for row in range(start, stop, rows):
                try:
                    chunk = np.asarray(dataset[row : min(row + rows, stop)])
                except OSError as error:
                    raise self.malformed(str(error), row=row) from error
                yield chunk


def write_hdf5(path: PathLike, datasets: dict[str, AnyArray], *, distance: str = "euclidean") -> None:
    """Write arrays as an ann-benchmarks file."""
    with _h5py().File(path, "w") as file:
        file.attrs["distance"] = distance
        for name, array in datasets.items():
            file.create_dataset(name, data=array)
