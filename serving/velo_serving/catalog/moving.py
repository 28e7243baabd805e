"""A shard moves to another folder or node while it is searched and written to.

    copy ──▶ catch up ──▶ hold writes ──▶ last copy ──▶ open ──▶ commit ──▶ switch ──▶ end of the former
    └──────────────── a failure ends the move; the former process goes on ──┘

The copy is one of files: those of segments never change, and the log only grows, so each round copies what
the round before lacks. The files come from the process of the shard, which keeps those of a round open
(``shard.moving``). The commit replaces its folder by a link to the target, so a process that opens the former
folder afterwards opens the new one, or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from velo.errors import (
    CorruptIndexError,
    IndexExistsError,
    InvalidArgumentError,
    NoSpaceError,
    UnsupportedError,
    VeloError,
)
from velo.folder.manifest import FOLDER_MANIFEST_FILE, MANIFEST_FILE
from velo.folder.replace import os_failure, sync_folder
from velo_serving.catalog.collection import Collection
from velo_serving.catalog.launcher import LEAVE_S, About, H, Launcher, Move
from velo_serving.catalog.locations import is_url
from velo_serving.catalog.records import Place
from velo_serving.protocol.errors import DeadlineExceededError, PlacementError, ShardUnavailableError
from velo_serving.protocol.types import ShardChannel

#: Files are copied in pieces of this size, between which the source answers searches.
PIECE_BYTES: Final = 1 << 20

#: Writes are held once a round copied no more than this, or after so many rounds.
SHORT_BYTES: Final = 256 << 10
ROUNDS_MAX: Final = 10

#: Time limits of the start of the new process, of a step at the source, and of repeated commits.
START_S: Final = 120.0
STEP_S: Final = 30.0
COMMIT_S: Final = 15.0
AGAIN_S: Final = 0.1


#: Failures that do not tell whether a step was done.
_UNKNOWN: Final = (ShardUnavailableError, DeadlineExceededError)


class Source:
    """The process of the shard that is moved."""

    def __init__(self, channel: ShardChannel, token: str = "") -> None:
        self.channel = channel
        self.token = token

    async def take(self, step: str, **arguments: Any) -> dict[str, Any]:
        """Run a step of the move in that process."""
        given = {"step": step, "token": self.token, **arguments}
        try:
            return await asyncio.wait_for(self.channel.look_up("move", given, STEP_S), STEP_S)
        except (asyncio.TimeoutError, TimeoutError):
            raise DeadlineExceededError(
                f"shard {self.channel.name} did not {step} within {STEP_S:g} s"
            ) from None


class Copying(Protocol):
    """An unfinished copy on the node of its target; ``copy`` returns the bytes of a round."""

    async def copy(self, last: bool) -> int: ...
    async def remove(self) -> None: ...


class ShardCopy:
    """The copy of a shard, in ``.NAME.moving`` beside the target until it is complete."""

    def __init__(self, target: str, source: Source) -> None:
        self._target = Path(target)
        self._fresh = self._target.with_name(f".{self._target.name}.moving")
        self.source = source
        self._sizes: dict[str, int] = {}
        self._made: Path | None = None

    async def copy(self, last: bool) -> int:
        """Copy missing bytes to the target; the last round renames it."""
        listed = await self.source.take("files")
        files: Mapping[str, int] = listed["files"]
        copied = 0
        try:
            if self._made is None:
                await asyncio.to_thread(self._begin, sum(files.values()))
            for name, size in files.items():
                known = self._sizes.get(name)
                # The log grows, a manifest may be replaced by one of its size; all others never change.
                if known != size or Path(name).name == MANIFEST_FILE:
                    offset = known if known is not None and name == listed["log"] else 0
                    copied += size - offset
                    await self._append(name, offset, size)
            if last:
                await asyncio.to_thread(self._finish, set(files), listed["manifest"], listed["mode"])
        except OSError as error:
            raise error if isinstance(error, VeloError) else os_failure(error, str(self._target)) from error
        return copied

    async def remove(self) -> None:
        if self._made is not None:
            await asyncio.to_thread(shutil.rmtree, self._made, ignore_errors=True)

    def _begin(self, needed: int) -> None:
        target = self._target
        if not target.is_absolute():
            raise InvalidArgumentError(f"path is an absolute one, not {str(target)!r}", argument="path")
        if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
            raise IndexExistsError(f"{target} already exists and is not empty", argument="path")
        shutil.rmtree(self._fresh, ignore_errors=True)  # of a move that was killed
        self._fresh.mkdir(mode=0o700)
        self._made = self._fresh
        free = shutil.disk_usage(self._fresh).free
        if free < needed:
            raise NoSpaceError(
                f"{target}: the shard has {needed} bytes, and {free} are free", file=str(target)
            )

    async def _append(self, name: str, offset: int, size: int) -> None:
        handle = await asyncio.to_thread(self._open, name, offset)
        try:
            while offset < size:
                piece = min(PIECE_BYTES, size - offset)
                read = await self.source.take("read", name=name, offset=offset, size=piece)
                if not read["bytes"]:
                    raise CorruptIndexError(f"{name} became shorter as it was copied", file=name)
                offset += await asyncio.to_thread(write_all, handle, read["bytes"])
            await asyncio.to_thread(os.fsync, handle)
        finally:
            os.close(handle)
        self._sizes[name] = size

    def _open(self, name: str, offset: int) -> int:
        path = self._fresh / name
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(handle, offset)
        os.lseek(handle, offset, os.SEEK_SET)
        return handle

    def _finish(self, files: set[str], manifest: bytes | None, mode: int) -> None:
        """Complete the copy: remove obsolete files, sync the others and rename the folder."""
        fresh = self._fresh
        for name in set(self._sizes) - files:
            (fresh / name).unlink()
        if manifest is not None:
            handle = self._open(FOLDER_MANIFEST_FILE, 0)
            try:
                write_all(handle, manifest)
                os.fsync(handle)
            finally:
                os.close(handle)
        for one in [entry for entry in fresh.iterdir() if entry.is_dir()]:
            if any(one.iterdir()):
                sync_folder(one)
            else:
                one.rmdir()
        os.chmod(fresh, mode)
        sync_folder(fresh)
        os.rename(fresh, self._target)
        self._made = self._target
        sync_folder(self._target.parent)


def write_all(handle: int, content: bytes) -> int:
    written = 0
    while written < len(content):
        written += os.write(handle, memoryview(content)[written:])
    return written


async def move_shard(
    launcher: Launcher[H],
    about: About,
    shard: str,
    to: Move,
    former: H,
    *,
    channel_of: Callable[[H], Awaitable[ShardChannel]],
    copy_of: Callable[[H, Source], Copying],
    switch: Callable[[About, H], H],
) -> float:
    """Move a shard; return the seconds for which its writes waited.

    ``channel_of`` makes a channel to a process. ``switch`` lets gateways find the new process, and returns
    the handle of the one that is to end. After a failure the former process goes on, and the copy is removed.
    """
    source = Source(await channel_of(former))
    started: dict[Place, H] = {}
    copying: Copying | None = None
    try:
        health = await source.channel.health()
        began = await source.take("begin")
        source.token = began["token"]
        _check_outside(about.collection, began["folder"], to.path)
        after = dataclasses.replace(
            about, moves={**about.moves, shard: dataclasses.replace(to, identity=health.uuid)}
        )
        started = await asyncio.to_thread(launcher.start, after, shard)
        [(place, new)] = started.items()
        await _await_start(launcher, after, started)
        copying = copy_of(new, source)
        for _ in range(ROUNDS_MAX):
            if await copying.copy(last=False) <= SHORT_BYTES:
                break
        target = await channel_of(new)
        await target.health()  # connects
        held_at = time.monotonic()
        await source.take("hold")
        await copying.copy(last=True)
        opened = await target.health()
        if opened.failure is not None:
            raise opened.failure.to_error()
        if health.details.get("writable") and await _state(target) != await _state(source.channel):
            raise CorruptIndexError(f"the copy of shard {shard} has other rows", file=to.path)
        try:
            await _commit(source, to.path)
        except BaseException as error:
            if not isinstance(error, VeloError) or isinstance(error, _UNKNOWN):
                copying = None  # the folder of the source may be a link to it already
            raise
        held_s = time.monotonic() - held_at
        left = {place: switch(after, new)}
    except BaseException:
        await asyncio.shield(_undo(launcher, source, started, copying))
        raise
    threading.Thread(target=_retire, args=(launcher, left), daemon=True).start()
    return held_s


def check_move(about: About, shard: str) -> None:
    """Raise an error if the shard does not exist or has replicas."""
    names = [entry.name for entry in about.collection.shards]
    if shard not in names:
        raise InvalidArgumentError(
            f"{about.collection.name} has no shard {shard!r}, only {', '.join(names)}", argument="shard"
        )
    if about.options.replicas > 1:
        raise UnsupportedError("a shard with replicas cannot be moved: they share its folder")


def _check_outside(collection: Collection, folder: str, target: str) -> None:
    given = Path(target).resolve()
    for place in (collection.path, folder):
        if not is_url(place) and given.is_relative_to(Path(place).resolve()):
            raise InvalidArgumentError(f"{target} is within {place}, where the shard is", argument="path")


async def _await_start(launcher: Launcher[H], about: About, started: Mapping[Place, H]) -> None:
    """Wait until the new process runs. It finds no index yet."""
    healths = await asyncio.to_thread(launcher.healths, about, started, START_S, None)
    for health in healths.values():
        error = None if health.failure is None else health.failure.to_error()
        if isinstance(error, ShardUnavailableError | PlacementError):
            raise error


async def _state(channel: ShardChannel) -> Any:
    info = await channel.look_up("info", {}, STEP_S)
    return info["n"], info["live"]["sequence"]


async def _commit(source: Source, target: str) -> None:
    """Commit at the source; repeat the request if its answer is lost."""
    deadline = time.monotonic() + COMMIT_S
    while True:
        try:
            await source.take("commit", target=target)
            return
        except ShardUnavailableError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(VeloError):
                await source.channel.health()


async def _undo(
    launcher: Launcher[H], source: Source, started: Mapping[Place, H], copying: Copying | None
) -> None:
    with contextlib.suppress(VeloError):
        await source.take("end")
    with contextlib.suppress(VeloError):
        if copying is not None:
            await copying.remove()
    await asyncio.to_thread(launcher.end, started)


def _retire(launcher: Launcher[H], left: Mapping[Place, H]) -> None:
    """End the former process once no gateway is connected to it."""
    launcher.succeed(left, 0)
    launcher.await_left(left, LEAVE_S)
    launcher.end(left)
