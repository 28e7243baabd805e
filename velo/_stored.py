"""Arrow files of an index: mapped, and held to what a search relies on before it does.

The checksum of a file says that it is what was written, not that who wrote it meant well. Arrow's own buffers
are checked here once, whole: offsets that leave their buffer end a process, text that is none ends a search.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velo._manifest import read_failure
from velo.errors import CorruptIndexError, VeloError
from velo.types import AnyArray

__all__ = ["check_permutation", "damage", "mapped_batch"]

# Arrow raises what its kernels raise, and memory errors for sizes that cannot be.
_ARROW_FAILURES = (pa.ArrowException, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError)


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
