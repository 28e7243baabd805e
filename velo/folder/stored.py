"""Arrow and JSON files of an index, fully checked before a search relies on them.

A checksum proves that a file is unchanged, not that it was well formed. Arrow's buffers are checked here
once, whole: offsets beyond their buffer would end the process, and invalid UTF-8 a search.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import CorruptIndexError, DeviceError, OutOfMemoryError, PermissionDeniedError, VeloError
from velo.types import AnyArray

# Arrow raises what its kernels raise, and memory errors for sizes that cannot be.
_ARROW_FAILURES = (pa.ArrowException, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError)

#: Row numbers that are checked together: temporary arrays stay small beside millions of rows.
_CHECKED_AT_ONCE = 65_536


def read_failure(error: OSError, file: str) -> VeloError:
    """The error for a file of an index that cannot be read.

    Only a missing file is damage: if the system refuses, its contents are unknown.
    """
    if error.errno == errno.ENOENT:
        return CorruptIndexError(f"{file} is missing from the index", file=file)
    message = f"{file} cannot be read: {os.strerror(error.errno) if error.errno else error}"
    return system_failure(error, message, file)


def system_failure(error: OSError, message: str, file: str) -> VeloError:
    """The error for a system call that was refused or failed."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDeniedError(message, file=file)
    if error.errno == errno.ENOMEM:
        return OutOfMemoryError(message, file=file)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        message += " (limits: ulimit -n, fs.file-max)"
    return DeviceError(message, file=file)


def load_json(path: Path) -> Any:
    """Read a JSON file of an index."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_failure(error, path.name) from error
    except (ValueError, RecursionError) as error:
        raise CorruptIndexError(f"{path.name} cannot be read: {error}", file=path.name) from error


def mapped_batch(path: Path) -> Any:
    """Map the one record batch of a file, with every buffer and value checked."""
    with damage(path.name), pa.memory_map(str(path)) as mapped:
        return _batch_of(mapped)


def released_batch(path: Path) -> tuple[Any, mmap.mmap]:
    """The same with the mapping, whose resident pages can be given back.

    The mapping keeps a file descriptor while it is used.
    """
    with damage(path.name):
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        batch = _batch_of(pa.BufferReader(pa.py_buffer(mapped)))
        mapped.madvise(mmap.MADV_DONTNEED)
        return batch, mapped


def unnamed_array(folder: Path, count: int, dtype: type[np.generic]) -> tuple[AnyArray, mmap.mmap | None]:
    """An array in a file without a name, whose memory the system can reclaim, and the mapping.

    If the folder takes no such file or has no space for it, the array is in memory, and there is no mapping.
    """
    size = count * np.dtype(dtype).itemsize
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(handle, 0, size)  # a write to a page without space would end the process
            mapped = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        return np.frombuffer(mapped, dtype), mapped
    return np.empty(count, dtype), None


def _batch_of(file: Any) -> Any:
    with pa.ipc.open_file(file) as reader:
        if reader.num_record_batches != 1:
            raise ValueError(f"{reader.num_record_batches} batches, not one")
        batch: Any = reader.get_batch(0)
    batch.validate(full=True)
    return batch


@contextlib.contextmanager
def damage(file: str) -> Iterator[None]:
    """Report failures inside as damage of this file, or as the system's refusal to read it."""
    try:
        yield
    except VeloError:
        raise
    except OSError as error:
        if error.errno:
            raise read_failure(error, file) from error
        raise CorruptIndexError(f"{file} cannot be read: {error}", file=file) from error
    except _ARROW_FAILURES as error:
        raise CorruptIndexError(f"{file} cannot be read: {error}", file=file) from error


def check_permutation(rows: AnyArray, file: str, first: int = 0) -> None:
    """Refuse row numbers, counted from `first`, that are no permutation."""
    seen = np.zeros(len(rows), bool)
    for start in range(0, len(rows), _CHECKED_AT_ONCE):
        some = rows[start : start + _CHECKED_AT_ONCE] - first
        seen[some[(some >= 0) & (some < len(rows))]] = True
    if not seen.all():
        at = int(np.flatnonzero(~seen)[0])
        raise CorruptIndexError(f"{file} says of no vector that it is row {at}", file=file, row=at)
