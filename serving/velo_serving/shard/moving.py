"""The source of a move (``catalog.moving``): the files of one moment, and writes that wait for its end.

The process of the source serves its shard as before. It holds writes for ``HOLD_S`` at most, and gives a move
up if it hears nothing of it for ``LEASE_S``. Writes of other processes wait for the folder's lock meanwhile.
With ``commit`` a link to the target takes the place of its folder, which is called ``NAME.moved`` from then
on and can no longer be written to.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from velo.errors import BusyError, InvalidArgumentError
from velo.folder.manifest import manifest_path, read_folder_manifest
from velo.folder.replace import os_failure, sync_folder, try_lock
from velo.folder.snapshot import OpenFiles
from velo_serving.protocol.errors import ShardMovedError

#: The longest hold of writes, shorter than their default deadline.
HOLD_S: Final = 8.0

#: A move that sends nothing for this time is over; the first time includes the start of a process.
LEASE_S: Final = 30.0
LEASE_FIRST_S: Final = 150.0

#: The interval of checks of held writes.
LOOK_S: Final = 0.005


class MoveSource:
    """The state of a shard that can be moved, and of its current move."""

    def __init__(self, name: str) -> None:
        self.moved = False
        #: Running writes.
        self.writing: set[Future[Any]] = set()
        self._name = name
        self._token = ""
        self._until = self._held_until = 0.0
        self._files = OpenFiles()
        #: A descriptor of the folder that holds its lock, and the end of the hold.
        self._lock: tuple[int, asyncio.TimerHandle] | None = None

    @property
    def leads_away(self) -> bool:
        """Whether the folder is, or is being, replaced by a link to the target of a move."""
        return self._held_until == math.inf or self.moved

    def check_maintenance(self) -> None:
        """Refuse maintenance during a move: it would write files that the copy does not need."""
        if self.moved or time.monotonic() < self._until:
            raise BusyError(f"shard {self._name} is being moved")

    async def admit(self) -> None:
        """Wait while writes are held; raise ShardMovedError after a move."""
        while not self.moved and time.monotonic() < self._held_until:
            await asyncio.sleep(LOOK_S)
        if self.moved:
            raise ShardMovedError(f"shard {self._name} was moved; nothing was written to its former folder")

    async def take(self, folder: Path, arguments: Mapping[str, Any], is_busy: bool) -> dict[str, Any]:
        """Run one step of a move."""
        step, token = arguments["step"], arguments.get("token")
        if step == "commit" and _leads_to(folder, arguments["target"]):
            self.moved = True  # the answer of an earlier commit was lost
            return {}
        if step == "begin":
            return self._begin(folder, is_busy)
        if token != self._token or time.monotonic() >= self._until:
            raise BusyError(f"the move of shard {self._name} took too long, or its process died")
        self._until = time.monotonic() + LEASE_S
        if step == "files":
            return await asyncio.to_thread(self._list, folder)
        if step == "read":
            handle, size, offset = (
                self._files.handles[arguments["name"]],
                arguments["size"],
                arguments["offset"],
            )
            return {"bytes": await asyncio.to_thread(os.pread, handle, size, offset)}
        if step == "hold":
            return await self._hold(folder)
        if step == "commit":
            return await self._commit(folder, arguments["target"])
        if step == "end":
            self.end()
            return {}
        raise InvalidArgumentError(f"a move has no step {step!r}", argument="step")

    def _begin(self, folder: Path, is_busy: bool) -> dict[str, Any]:
        if self.moved or is_busy or time.monotonic() < self._until:
            why = "a flush or an optimization is under way" if is_busy else "it is being moved already"
            raise BusyError(f"shard {self._name} cannot be moved now: {why}")
        self.end()
        self._token = secrets.token_hex(8)
        self._until = time.monotonic() + LEASE_FIRST_S
        return {"token": self._token, "folder": str(folder.resolve())}

    def _list(self, folder: Path) -> dict[str, Any]:
        """Open the current files and close those of the round before."""
        self._files.close()
        self._files = files = OpenFiles.of(folder)
        return {
            "manifest": files.manifest,
            "log": files.log,
            "mode": folder.stat().st_mode & 0o777,
            "files": {name: os.fstat(handle).st_size for name, handle in files.handles.items()},
        }

    async def _hold(self, folder: Path) -> dict[str, Any]:
        """Hold further writes, also of other processes, and wait for running ones."""
        self._let_go()  # of a hold before
        self._held_until = time.monotonic() + HOLD_S
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        self._lock = handle, asyncio.get_running_loop().call_later(HOLD_S, self._let_go)
        while self.writing or not _flock(handle):
            if time.monotonic() > self._held_until - LOOK_S:
                raise BusyError(f"writes to shard {self._name} do not end; it was not moved")
            await asyncio.sleep(LOOK_S)
        return {}

    def _let_go(self) -> None:
        """Let writes of other processes go on, unless a commit is under way."""
        if self._lock is not None and self._held_until < math.inf:
            handle, timer = self._lock
            timer.cancel()
            os.close(handle)
            self._lock = None

    async def _commit(self, folder: Path, target: str) -> dict[str, Any]:
        """Link the folder to the target, unless the hold of writes has ended."""
        if time.monotonic() >= self._held_until:
            raise BusyError(f"writes to shard {self._name} waited for {HOLD_S:g} s; it was not moved")
        self._held_until = math.inf  # also if the caller is canceled
        linking = asyncio.ensure_future(asyncio.to_thread(self._link, folder, target))
        linking.add_done_callback(self._linked)
        await asyncio.shield(linking)
        return {}

    def _linked(self, linking: asyncio.Future[None]) -> None:
        self.moved = not linking.cancelled() and linking.exception() is None
        self._held_until = 0.0
        self._let_go()

    @staticmethod
    def _link(folder: Path, target: str) -> None:
        """Rename the folder and put a link to the target in its place."""
        real = folder.resolve()
        number, kept = 1, real.with_name(f"{real.name}.moved")
        while os.path.lexists(kept):
            number, kept = number + 1, real.with_name(f"{real.name}.moved-{number + 1}")
        link = folder.with_name(f".{folder.name}.link")
        try:
            link.unlink(missing_ok=True)
            os.symlink(target, link)
            os.rename(real, kept)
            try:
                os.replace(link, folder)
            except OSError:
                os.rename(kept, real)
                raise
        except OSError as error:
            raise os_failure(error, str(folder)) from error
        with contextlib.suppress(OSError):  # the link exists: the move is complete
            _retire(kept)
            sync_folder(folder.parent)

    def end(self) -> None:
        """End a move; held writes continue."""
        self._files.close()
        self._token, self._until = "", 0.0
        if self._held_until < math.inf:  # else a commit is under way, which decides
            self._held_until = 0.0
            self._let_go()


def _flock(handle: int) -> bool:
    with contextlib.suppress(OSError):  # where folders have no locks, no process writes
        return try_lock(handle)
    return True


def _retire(kept: Path) -> None:
    """Let writes of other processes to the former folder fail: they find neither log nor manifest."""
    for name in filter(None, (read_folder_manifest(kept).log, manifest_path(kept).name)):
        with contextlib.suppress(OSError):  # the device is full; all is in the target
            shutil.copyfile(kept / name, kept / f"{name}.moved")
        (kept / name).unlink()


def _leads_to(folder: Path, target: str) -> bool:
    return folder.is_symlink() and os.readlink(folder) == target
