"""Sources of vectors, read in chunks and as often as needed, never held whole."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import DimensionMismatchError, DtypeError, FormatError, InvalidArgumentError
from velo.types import AnyArray, PathLike, VectorSource

#: Rows are handed on in chunks of about this many bytes.
CHUNK_BYTES = 8 << 20

#: Element types that the library takes as they are; float64 is narrowed to float32 on the way.
NATIVE_DTYPES = ("float32", "float16", "uint8", "int8")


def chunk_rows(row_bytes: int) -> int:
    """The number of rows of `row_bytes` bytes in a chunk."""
    return max(1, CHUNK_BYTES // max(1, row_bytes))


@lru_cache(maxsize=64)
def native_dtype(dtype: np.dtype[Any], argument: str = "vectors") -> np.dtype[Any]:
    """The element type in which the library is given rows of `dtype`, or a `DtypeError`."""
    if dtype == np.float64 or (dtype.kind == "f" and dtype.itemsize == 4):
        return np.dtype(np.float32)
    if dtype.newbyteorder("=").name in NATIVE_DTYPES:
        native: np.dtype[Any] = dtype.newbyteorder("=")
        return native
    raise DtypeError(
        f"{argument} must be float32, float64, float16, uint8 or int8, not {dtype}"
        + ("; convert them with .astype(numpy.float32)" if dtype.kind in "iufb" else ""),
        argument=argument,
    )


def native_layout(chunk: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """Rows as the library takes them: native elements, contiguous within a row, rows any stride apart."""
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is reported as such
        native = chunk.astype(dtype, copy=False)
    within = native.strides[1] == dtype.itemsize or native.shape[1] == 1
    if within and native.strides[0] >= native.shape[1] * dtype.itemsize and native.flags.aligned:
        return native
    return np.ascontiguousarray(native)


class Source(ABC):
    """Base of velo's own sources: a :class:`velo.types.VectorSource` that can also start in the middle."""

    _shape: tuple[int, int]
    _dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """(row_count, dim)."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of the chunks."""
        return self._dtype

    @abstractmethod
    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        """Yield a range of rows in order.

        Parameters
        ----------
        rows : int
            Rows of a slice at most.
        start, stop : int
            The range.

        Yields
        ------
        ndarray of shape (at most rows, dim)
        """

    def chunks(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[AnyArray]:
        """Yield rows in order, at most `rows` at a time; a chunk is valid until the next one.

        Parameters
        ----------
        rows : int
            Rows of a chunk at most.
        start, stop : int, optional
            The range of rows; all without them.

        Yields
        ------
        ndarray of shape (at most rows, dim)
        """
        if rows < 1:
            raise InvalidArgumentError(f"rows must be at least 1, not {rows}", argument="rows")
        stop = self.shape[0] if stop is None else min(stop, self.shape[0])
        if start < stop:
            yield from self.slices(rows, start, stop)

    def read(self) -> AnyArray:
        """Read all rows into one array, for sets that fit in memory.

        Returns
        -------
        ndarray of shape (row_count, dim)
        """
        out = np.empty(self.shape, self.dtype)
        row = 0
        for chunk in self.chunks(chunk_rows(self.shape[1] * self.dtype.itemsize)):
            out[row : row + len(chunk)] = chunk
            row += len(chunk)
        return out

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"


class RandomSource(Source):
    """Base of sources that read rows in any order about as fast as one after the other."""

    @abstractmethod
    def take(self, rows: AnyArray) -> AnyArray:
        """The rows of these numbers, in this order."""


class ArraySource(Source):
    """Rows of an array in memory, or of anything that slices into arrays (memmap, HDF5 data set), not copied.

    The pages of a read-only memmap are returned to the system after each chunk, so that reading it does not
    make this process grow by its size.
    """

    def __init__(self, array: Any, argument: str = "vectors") -> None:
        if len(array.shape) != 2:
            raise DimensionMismatchError(
                f"{argument} must have the shape (n, d), not {tuple(array.shape)}", argument=argument
            )
        self.array = array
        self._shape = int(array.shape[0]), int(array.shape[1])
        self._dtype = np.dtype(array.dtype)

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        mapped = self._droppable()
        for row in range(start, stop, rows):
            yield np.asarray(self.array[row : min(row + rows, stop)])
            if mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)

    def _droppable(self) -> mmap.mmap | None:
        # Pages of a copy-on-write mapping may hold the caller's changes: those must stay.
        if isinstance(self.array, np.memmap) and self.array.mode in ("r", "r+"):
            mapped = getattr(self.array, "_mmap", None)
            return mapped if isinstance(mapped, mmap.mmap) else None
        return None


class ForeignSource(Source):
    """A source of the caller's own: its ``chunks(rows)`` starts at the first row, so a later start skips."""

    def __init__(self, source: VectorSource) -> None:
        self.source = source
        rows, dim = source.shape
        self._shape = int(rows), int(dim)
        self._dtype = np.dtype(source.dtype)

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        row = 0
        for given in self.source.chunks(rows):
            chunk = np.asarray(given)
            if chunk.ndim != 2 or chunk.shape[1] != self.shape[1]:
                raise DimensionMismatchError(
                    f"a chunk of shape {chunk.shape} came from a source of dimension {self.shape[1]}",
                    argument="vectors",
                    row=row,
                )
            first, last = max(start - row, 0), min(stop - row, len(chunk))
            if first < last:
                yield chunk[first:last]
            row += len(chunk)
            if row >= stop:
                return
        raise DimensionMismatchError(
            f"a source of {self.shape[0]} rows ended after {row}", argument="vectors", row=row
        )


class FileSource(Source):
    """Base of sources that read one file."""

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)

    def malformed(self, message: str, position: int | None = None, row: int | None = None) -> FormatError:
        """The error for what is wrong with this file at that byte or row."""
        return FormatError(f"{self.path}: {message}", file=str(self.path), position=position, row=row)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, shape={self.shape}, dtype={self.dtype})"


class RawSource(FileSource):
    """Rows of fixed size behind a header, read with plain reads: a mapping counts as resident memory.

    `has_row_dims`: Each row begins with its own dimension as an int32, which is checked as it is read.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        offset: int,
        has_row_dims: bool = False,
    ) -> None:
        super().__init__(path)
        self._shape = shape
        self._dtype = dtype
        self.offset = offset
        self._header_bytes = 4 if has_row_dims else 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the file, with its header."""
        return self._header_bytes + self._shape[1] * self._dtype.itemsize

    def slices(self, rows: int, start: int, stop: int) -> Iterator[AnyArray]:
        rows = min(rows, stop - start)
        buffer = np.empty(rows * self.row_bytes, np.uint8)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset + start * self.row_bytes)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            for row in range(start, stop, rows):
                count = min(rows, stop - row)
                part = buffer.data[: count * self.row_bytes]
                filled = 0
                while filled < len(part):
                    got = file.readinto(part[filled:])
                    if not got:
                        raise self.malformed("the file ended early", position=file.tell())
                    filled += got
                yield self._elements(buffer, count, row)

    def _elements(self, buffer: AnyArray, count: int, row: int) -> AnyArray:
        """The elements of the first `count` rows in `buffer`; `row` is the number of the first."""
        if self._header_bytes:
            dims = np.ndarray((count,), "<i4", buffer, strides=(self.row_bytes,))
            wrong = np.flatnonzero(dims != self._shape[1])
            if len(wrong):
                at = row + int(wrong[0])
                raise self.malformed(
                    f"row {at} says {int(dims[wrong[0]])} dimensions, the first row says {self._shape[1]}",
                    position=at * self.row_bytes,
                    row=at,
                )
        rows: AnyArray = np.ndarray(
            (count, self._shape[1]),
            self._dtype,
            buffer,
            offset=self._header_bytes,
            strides=(self.row_bytes, self._dtype.itemsize),
        )
        return rows


def array_of(values: Any, argument: str) -> AnyArray:
    """A nested sequence of numbers, or anything with ``__array__``, as an array; plain numbers as float32."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DimensionMismatchError(f"the rows of {argument} differ in length", argument=argument) from error
    if isinstance(values, list | tuple) and array.dtype.kind in "iuf":
        return array.astype(np.float32, copy=False)
    return array
