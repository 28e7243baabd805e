"""Arrow and JSON files of an index, held to what a search relies on before it does.

The checksum of a file says that it is what was written, not that who wrote it meant well. Arrow's own buffers
are checked here once, whole: offsets that leave their buffer end a process, text that is none ends a search.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velo.errors import (
    CorruptIndexError,
    DeviceError,
    OutOfMemoryError,
    PermissionDeniedError,
    VeloError,
)
from velo.types import AnyArray

__all__ = ["check_permutation", "damage", "load_json", "mapped_batch", "read_failure", "system_failure"]

# Arrow raises what its kernels raise, and memory errors for sizes that cannot be.
_ARROW_FAILURES = (pa.ArrowException, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError)


def read_failure(error: OSError, file: str) -> VeloError:
    """The error for a file of an index that the system does not let us read.

    Only a file that is missing is damage: where the system refuses, nobody knows what is there.
    """
    if error.errno == errno.ENOENT:
        return CorruptIndexError(f"{file} is missing from the index", file=file)
    message = f"{file} cannot be read: {os.strerror(error.errno) if error.errno else error}"
    return system_failure(error, message, file)


def system_failure(error: OSError, message: str, file: str) -> VeloError:
    """The error of a system that refuses or fails, whatever is asked of it."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDeniedError(message, file=file)
    if error.errno == errno.ENOMEM:
        return OutOfMemoryError(message, file=file)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        message += " (limits: ulimit -n, fs.file-max)"
    return DeviceError(message, file=file)


def load_json(path: Path) -> Any:
    """A JSON file of an index.

    Raises
    ------
    FileNotFoundError
        It is not there.
    CorruptIndexError
        It holds something else.
    DeviceError, PermissionDeniedError
        The system does not let us read it.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise read_failure(error, path.name) from error
    except (ValueError, RecursionError) as error:
        raise CorruptIndexError(f"{path.name} cannot be read: {error}", file=path.name) from error


def mapped_batch(path: Path) -> Any:
    """The one record batch of a file, mapped, every buffer and value of it checked.

    Raises
    ------
    CorruptIndexError
        Also where the file is missing.
    DeviceError, PermissionDeniedError
        The system does not let us read it.
    """
    with damage(path.name):
        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as reader:
            if reader.num_record_batches != 1:
                raise ValueError(f"{reader.num_record_batches} batches, not one")
            batch: Any = reader.get_batch(0)
        batch.validate(full=True)
        return batch


@contextlib.contextmanager
def damage(file: str) -> Iterator[None]:
    """What goes wrong inside is damage of this file, or the system's refusal to let us read it."""
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


def check_permutation(rows: AnyArray, file: str) -> None:
    """Refuse rows of which one is missing, twice, or none of the index's."""
    inside = (rows >= 0) & (rows < len(rows))
    seen = np.zeros(len(rows), bool)
    seen[rows[inside]] = True
    if not seen.all():
        at = int(np.flatnonzero(~seen)[0])
        raise CorruptIndexError(f"{file} says of no vector that it is row {at}", file=file, row=at)
