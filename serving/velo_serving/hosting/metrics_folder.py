"""The folder in which gateways of one port count together; those that killed servers left are taken away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "velo-metrics-"

#: The file in a folder whose lock shows that a server uses it. A pid would not do: another process may have
#: it by now. A lock ends with the processes that hold it, however they end.
OWNER: Final = "owner"


@contextmanager
def metrics_folder() -> Iterator[tuple[str, int]]:
    """Make a folder for metrics, with a lock that its processes inherit, and remove abandoned ones."""
    _sweep()
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        owner = _own(folder)
        if owner is not None:  # else a server that starts just now took it for one that was left
            break
    try:
        yield folder, owner
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _sweep() -> None:
    """Remove the unlocked folders of this user."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another server takes it away at the same time
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            owner = _own(folder)
            if owner is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(owner)


def _own(folder: str | Path) -> int | None:
    """Lock the owner file of a folder; None if it is locked or was removed."""
    path = os.path.join(folder, OWNER)
    try:
        owner = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file may have been replaced: the lock of the one with this name counts.
        if os.path.samestat(os.fstat(owner), os.stat(path)):
            return owner
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(owner)
        raise
    os.close(owner)
    return None
