"""A lock of a folder with two sides, between processes: any number of holders on one side, none on the other.

Upserts of rows that must exist exclude deletes, so that a row found exists until it is replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from velo.errors import BusyError
from velo.folder.replace import os_failure, try_lock

SIDES_FILE: Final = "rows.lock"
_WAIT_S: Final = 60.0
_LOOK_S: Final = 0.001


@contextlib.contextmanager
def side_of(
    folder: Path, side: Literal["upsert", "delete"], timeout_s: float | None = None
) -> Iterator[None]:
    """Hold one side; raise BusyError after `timeout_s`, or a minute."""
    deadline = time.monotonic() + (_WAIT_S if timeout_s is None else timeout_s)
    path = folder / SIDES_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise os_failure(error, str(path)) from error
    try:
        while not _enter(handle, side[:1].encode()):
            if time.monotonic() >= deadline:
                raise BusyError(
                    f"another {'delete' if side == 'upsert' else 'upsert'} does not end: try again"
                )
            time.sleep(_LOOK_S)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have the descriptor, too
        os.close(handle)


def _enter(handle: int, side: bytes) -> bool:
    """Join the holders, whose side is in the file; the first holder chooses it."""
    if try_lock(handle, fcntl.LOCK_EX):
        os.pwrite(handle, side, 0)
    # Between the two locks another process may have chosen.
    if try_lock(handle, fcntl.LOCK_SH) and os.pread(handle, 1, 0) == side:
        return True
    fcntl.flock(handle, fcntl.LOCK_UN)
    return False
