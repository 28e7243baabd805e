"""The directory of shards that one launcher runs on this machine, in this process or in others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic

from velo.errors import BusyError, IndexExistsError, InvalidArgumentError, UnsupportedError
from velo_serving.catalog.collection import Collection, read_collection
from velo_serving.catalog.launcher import (
    LEAVE_S,
    About,
    H,
    Launcher,
    Move,
    start_generation,
    superseded,
)
from velo_serving.catalog.moving import ShardCopy, check_move, move_shard
from velo_serving.catalog.records import CollectionRecord, Place
from velo_serving.catalog.root import COLLECTIONS_MAX, Root, snapshot_collection
from velo_serving.protocol.errors import ShardUnavailableError, ShuttingDownError, UnknownCollectionError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.options import ServeOptions
from velo_serving.protocol.types import Shape, ShardChannel
from velo_serving.routing.backend import Backend
from velo_serving.routing.served import served_collection
from velo_serving.transport.channel import SocketChannel, at
from velo_serving.transport.endpoint import Endpoint


class ShardDirectory(Generic[H]):
    """The shards of some collections: a directory, and a keeper with a root.

    Shards have endpoints (``endpoint_of``) for gateways in other processes, or channels in this one.
    """

    def __init__(
        self,
        launcher: Launcher[H],
        options: ServeOptions,
        root: Root | None = None,
        *,
        endpoint_of: Callable[[H], Endpoint] | None = None,
        channel_of: Callable[[H], ShardChannel] | None = None,
    ) -> None:
        self.records: tuple[CollectionRecord, ...] = ()
        self._launcher = launcher
        self._options = options
        self._root = root
        self._endpoint_of = endpoint_of
        self._channel_of = channel_of
        self._now: dict[str, About] = {}
        self._started: dict[tuple[str, int], dict[Place, H]] = {}
        self._changing = threading.Lock()
        self._moving: set[str] = set()
        self._closed = False

    @property
    def shards(self) -> dict[str, tuple[H, ...]]:
        return {name: tuple(self._started[name, one.generation].values()) for name, one in self._now.items()}

    def open(self, collections: Sequence[Collection], *, partial: bool = False) -> int:
        """Start the shards of collections in parallel, or none; return the number of their generation.

        If ``partial``, shards may be missing, as in ``start_generation``.
        """
        generation = 1 + max((number for _, number in self._started), default=0)
        abouts = [About(one, self._options, generation, "") for one in collections]
        opened: dict[str, tuple[About, dict[Place, H], CollectionRecord]] = {}

        def start(about: About) -> None:
            started, healths = start_generation(self._launcher, about, partial=partial)
            opened[about.collection.name] = about, started, about.record(healths)

        try:
            with ThreadPoolExecutor(max(1, len(abouts))) as pool:
                list(pool.map(start, abouts))
            if self._closed:
                raise ShuttingDownError("the server is closing")
        except BaseException:
            for _, started, _ in opened.values():
                self._launcher.end(started)
            raise
        new = {}
        for name in (about.collection.name for about in abouts):
            self._now[name], self._started[name, generation], new[name] = opened[name]
        kept = [new.pop(one.name, one) for one in self.records]
        self.records = (*kept, *new.values())
        return generation

    async def record(self, collection: str, generation: int) -> CollectionRecord:
        return next(one for one in self.records if (one.name, one.generation) == (collection, generation))

    async def exchange(self, collection: str, path: str, version: str) -> int:
        """Start the shards of a build beside the present ones, which end when no gateway uses them."""
        return await asyncio.to_thread(self._exchange, collection, path, version)

    def _exchange(self, name: str, path: str, version: str) -> int:
        with self._changing:
            about = self._unmoving(name)
            former = self._started[name, about.generation]
            generation = self.open([about.of_build(path, version)])
        self._launcher.succeed(former, generation)

        def end() -> None:
            self._launcher.await_left(former, LEAVE_S)
            self._started.pop((name, about.generation), None)
            self._launcher.end(former)

        threading.Thread(target=end, daemon=True).start()
        return generation

    def _served(self, name: str) -> About:
        try:
            return self._now[name]
        except KeyError:
            raise UnknownCollectionError(f"no collection is called {name!r} here") from None

    def _unmoving(self, name: str) -> About:
        if name in self._moving:
            raise BusyError(f"a shard of {name} is being moved")
        return self._served(name)

    async def move(self, collection: str, shard: str, path: str, pin: str | None) -> float:
        """Move a shard to another folder of this machine, as ``move_shard``."""
        if pin is not None:
            raise UnsupportedError("a pin is for Ray; the shards of this server are on its machine")
        opened: list[SocketChannel] = []

        async def channel(handle: H) -> ShardChannel:
            if self._endpoint_of is None:
                assert self._channel_of is not None
                return self._channel_of(handle)
            opened.append(SocketChannel(shard, at(self._endpoint_of(handle))))
            return opened[-1]

        with self._alone(collection) as about:
            check_move(about, shard)
            before = about.moves.get(shard)
            started = self._started[collection, about.generation]
            place = Place(collection, about.generation, shard)

            def switch(after: About, new: H) -> H:
                started[place], former = self._launcher.replace(started[place], new)
                self._now[collection] = after
                return former

            try:
                return await move_shard(
                    self._launcher,
                    about,
                    shard,
                    Move(path, number=1 if before is None else before.number + 1),
                    started[place],
                    channel_of=channel,
                    copy_of=lambda _, source: ShardCopy(path, source),
                    switch=switch,
                )
            finally:
                for one in opened:
                    await one.close()

    @contextmanager
    def _alone(self, collection: str) -> Iterator[About]:
        """Reject other changes of a collection."""
        if not self._changing.acquire(blocking=False):
            raise BusyError("another collection is being created, published or dropped")
        try:
            about = self._unmoving(collection)
            self._moving.add(collection)
        finally:
            self._changing.release()
        try:
            yield about
        finally:
            self._moving.discard(collection)

    async def snapshot(self, collection: str, path: str) -> None:
        await asyncio.to_thread(snapshot_collection, self._served(collection).collection, path)

    async def create(self, name: str, shape: Shape) -> None:
        await asyncio.to_thread(self._create, name, shape)

    def _create(self, name: str, shape: Shape) -> None:
        assert self._root is not None
        with self._changing:
            if name in self._now:
                raise IndexExistsError(f"{name!r} is served here already", argument="name")
            if len(self._now) >= COLLECTIONS_MAX:
                raise UnsupportedError(f"{COLLECTIONS_MAX} collections are served, which is the limit")
            described = self._root.create(name, shape)
            try:
                self.open([described])
            except BaseException:
                self._root.drop(described)
                raise

    async def drop(self, name: str) -> list[str]:
        return await asyncio.to_thread(self._drop, name)

    def _drop(self, name: str) -> list[str]:
        assert self._root is not None
        with self._changing:
            about = self._unmoving(name)
            self._root.check_drop(about.collection)
            self.records = tuple(one for one in self.records if one.name != name)
            del self._now[name]
            self._launcher.end(self._started.pop((name, about.generation)))
            return self._root.drop(about.collection)

    async def locate(self, place: Place) -> Endpoint:
        started = self._started.get((place.collection, place.generation))
        if started is None:
            now = self._now.get(place.collection)
            if now is None:
                raise ShardUnavailableError(f"{place.collection} is no longer served")
            raise superseded(place, now.generation)
        assert self._endpoint_of is not None
        return self._endpoint_of(started[place])

    def backend(self, *, limits: RouterLimits | None = None) -> Backend:
        channel_of = self._channel_of

        def channel(place: Place) -> ShardChannel:
            assert channel_of is not None
            return channel_of(self._started[place.collection, place.generation][place])

        async def close() -> None:
            await asyncio.to_thread(self.close)

        serve = partial(
            served_collection, directory=self, limits=limits, connect=None if channel_of is None else channel
        )
        keeper = None if self._root is None else self
        return Backend([serve(one) for one in self.records], on_close=close, keeper=keeper, serve=serve)

    def close(self) -> None:
        self._closed = True
        with self._changing:
            started = list(self._started.values())
            self._launcher.end({place: one for each in started for place, one in each.items()})

    def __enter__(self) -> ShardDirectory[H]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def described(
    paths: str | Path | Sequence[str | Path], root: Root | None, options: Mapping[str, Any]
) -> tuple[list[Collection], ServeOptions]:
    """The collections at some paths and in a root, and the options of their shards."""
    folders = [paths] if isinstance(paths, str | Path) else list(paths)
    collections = [read_collection(path) for path in (*folders, *(root.paths() if root else ()))]
    if len({one.name for one in collections}) < len(collections):
        raise InvalidArgumentError("two collections have the same name", argument="paths")
    return collections, ServeOptions(**options)
