"""A collection under its name: what it serves now, and how it goes over to what is published next."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from velo.errors import BusyError, DeviceError, InvalidArgumentError, UnsupportedError, VeloError
from velo_serving.catalog.records import CollectionRecord, Directory, Place, ShardRecord
from velo_serving.protocol.errors import NoShardAnsweredError, PublicationError, SupersededError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.spans import Observer
from velo_serving.protocol.types import ShardChannel
from velo_serving.routing.router import Router
from velo_serving.transport.channel import SocketChannel
from velo_serving.transport.endpoint import Endpoint

log = logging.getLogger("velo_serving")

#: How long the shards of a publication may take to answer here.
MOVE_S: Final = 30.0

#: The interval of checks of shards and requests.
LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Generation:
    """The version that a name serves at one moment; a request is parsed, searched and answered by one."""

    n: int
    dim: int
    metric: str
    router: Router
    version: str = ""
    number: int = 1


def check_version(version: str, served: str) -> None:
    """Refuse an empty version, or the one that is served."""
    if not version or version == served:
        raise InvalidArgumentError(
            f"a version has a name of its own, {version!r} is served already"
            if version
            else "a version has a name",
            argument="version",
        )


class ServedCollection:
    """A collection that is being served: ``now`` is its generation, which may change between two requests.

    ``directory`` publishes and copies it, and ``generation_of`` makes a generation of a record.
    """

    def __init__(
        self,
        name: str,
        now: Generation,
        *,
        directory: Directory | None = None,
        generation_of: Callable[[CollectionRecord], Generation] | None = None,
    ) -> None:
        self.name = name
        self.now = now
        self._directory = directory
        self._generation_of = generation_of
        self._is_publishing = False
        self._observer: Observer | None = None
        self._move: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def router(self) -> Router:
        """The router of the present generation."""
        return self.now.router

    @property
    def rows(self) -> int:
        """The number of live rows, as last reported."""
        rows = self.router.rows
        return self.now.n if rows is None else rows

    @contextmanager
    def hold(self) -> Iterator[Generation]:
        """Keep what is served now for a request, whatever is published meanwhile."""
        now = self.now
        now.router.holders += 1
        try:
            yield now
        finally:
            now.router.holders -= 1

    def observe(self, observer: Observer) -> None:
        """Report to another observer; before ``start``."""
        self._observer = observer
        self.router.observe(observer)

    async def publish(self, path: str, version: str) -> Generation:
        """Serve another build under this name; no search fails, and each answer is of one version."""
        if self._directory is None:
            raise UnsupportedError(f"nothing can be published as {self.name} here")
        check_version(version, self.now.version)
        if self._is_publishing:
            raise BusyError(f"something is being published as {self.name} already")
        self._is_publishing = True
        try:
            self._on_successor(await self._directory.exchange(self.name, path, version))
            deadline = time.monotonic() + MOVE_S
            while self.now.version != version:
                if time.monotonic() > deadline:
                    raise PublicationError(
                        f"{self.name} serves version {self.now.version!r} still: {version!r} does not answer"
                    )
                await asyncio.sleep(LOOK_S)
        except (BusyError, DeviceError, InvalidArgumentError, PublicationError):
            raise
        except VeloError as error:
            raise PublicationError(f"{path} cannot be served: {error}", argument="path") from error
        finally:
            self._is_publishing = False
        return self.now

    async def snapshot(self, path: str) -> None:
        """Copy the current rows to another folder, as ``velo.Index.snapshot``."""
        if self._directory is None:
            raise UnsupportedError(f"no snapshot of {self.name} can be taken here")
        await self._directory.snapshot(self.name, path)

    async def move(self, shard: str, path: str, pin: str | None = None) -> float:
        """Move a shard to another folder; return the seconds for which its writes waited."""
        if self._directory is None:
            raise UnsupportedError(f"no shard of {self.name} can be moved here")
        return await self._directory.move(self.name, shard, path, pin)

    async def _switch_to(self, after: Generation) -> None:
        if self._observer is not None:
            after.router.observe(self._observer)
        try:
            if not await self._until_up(after.router, MOVE_S):
                up = after.router.shards_up
                raise NoShardAnsweredError(f"only {up} shards of what was published answer")
        except BaseException:
            await after.router.close()
            raise
        before, self.now = self.now, after
        after.router.on_successor = self._on_successor
        log.info("%s serves version %r", self.name, after.version)
        leaving = asyncio.get_running_loop().create_task(self._leave(before.router))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def start(self, wait_s: float = 0.0) -> None:
        """Ask all shards how they are, and from then on follow what is published."""
        self.router.on_successor = self._on_successor
        await self._until_up(self.router, wait_s)

    async def close(self) -> None:
        """Refuse what comes and give up what is under way."""
        tasks = [*self._leaving, *([] if self._move is None else [self._move])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.router.close()

    def _on_successor(self, number: int) -> None:
        if self._directory is not None and self._move is None and number != self.now.number:
            self._move = asyncio.get_running_loop().create_task(self._move_to(number, self._directory))

    async def _move_to(self, number: int, directory: Directory) -> None:
        """Switch to a generation once its shards are up."""
        assert self._generation_of is not None
        try:
            await self._switch_to(self._generation_of(await directory.record(self.name, number)))
        except Exception as error:
            log.warning("%s stays at version %r: %s", self.name, self.now.version, error)
        finally:
            self._move = None

    @staticmethod
    async def _until_up(router: Router, wait_s: float) -> bool:
        await router.start()
        deadline = time.monotonic() + wait_s
        while router.shards_up < router.shards_total and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        return router.shards_up == router.shards_total

    @staticmethod
    async def _leave(router: Router) -> None:
        """Close the router of a former generation once its requests have ended."""
        try:
            while router.holders:
                await asyncio.sleep(LOOK_S)
        finally:
            await router.close()


def served_collection(
    record: CollectionRecord,
    directory: Directory,
    *,
    limits: RouterLimits | None = None,
    connect: Callable[[Place], ShardChannel] | None = None,
) -> ServedCollection:
    """Serve the shards of a directory, over sockets unless ``connect`` is given, and follow publications."""

    def channel(shard: ShardRecord, replica: int, record: CollectionRecord) -> ShardChannel:
        place = Place(record.name, record.generation, shard.name, replica)
        if connect is not None:
            return connect(place)

        async def where() -> Endpoint:
            try:
                return await directory.locate(place)
            except SupersededError as error:
                served._on_successor(error.generation)
                raise

        return SocketChannel(shard.name if shard.replicas == 1 else f"{shard.name}/{replica}", where)

    def generation(record: CollectionRecord) -> Generation:
        channels = [[channel(shard, at, record) for at in range(shard.replicas)] for shard in record.shards]
        identities = [shard.identity for shard in record.shards]
        router = Router(record.name, channels, limits=limits, identities=identities)
        return Generation(record.n, record.dim, record.metric, router, record.version, record.generation)

    served = ServedCollection(record.name, generation(record), directory=directory, generation_of=generation)
    return served
