"""Shards in processes of their own, without Ray: started here, watched, and started again when they die.

What they answer travels as it does between Ray's actors and a gateway (``wire``); who starts them differs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from collections.abc import Collection as Collection_
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from velo.errors import IndexExistsError, InvalidArgumentError, UnsupportedError
from velo_serving.hosting.child import Child
from velo_serving.places.collection import Collection, read_collection
from velo_serving.places.records import CollectionRecord, Place, record_of
from velo_serving.places.root import COLLECTIONS_MAX, Root, snapshot_collection
from velo_serving.places.shares import check_shard, share_of_cores, split_memory
from velo_serving.places.spec import ShardSpec
from velo_serving.routing.backend import Backend
from velo_serving.routing.served import served_collection
from velo_serving.wire.endpoint import Endpoint, abstract_path, this_host
from velo_serving.words.errors import (
    ShardUnavailableError,
    ShuttingDownError,
    SupersededError,
    UnknownCollectionError,
)
from velo_serving.words.limits import RouterLimits
from velo_serving.words.types import Shape, ShardHealth

__all__ = ["ShardProcess", "ShardProcesses", "open_processes"]


#: How long processes of a former version stay for gateways that have not left them.
LEAVE_S = 30.0


class ShardProcess:
    """A shard's process: started again whenever it dies, at the same place.

    Parameters
    ----------
    spec : ShardSpec
    version : str
        Of the collection.
    replica : int
        Which of the shard's processes this is.

    Attributes
    ----------
    endpoint : Endpoint
        Where it listens.
    """

    def __init__(self, spec: ShardSpec, *, version: str = "", replica: int = 0) -> None:
        self.spec = spec
        self.replica = replica
        self.endpoint = Endpoint(secrets.token_urlsafe(32), this_host(), abstract_path(spec.name))
        self._successor: int | None = None
        self._left = threading.Event()

        def message() -> dict[str, Any]:
            return {
                "spec": dataclasses.asdict(self.spec),
                "token": self.endpoint.token,
                "version": version,
                "path": self.endpoint.path,
                "successor": self._successor,
            }

        self._child = Child(
            f"shard {spec.name}",
            "velo_serving.shard.process",
            message,
            on_question=lambda _line: self._left.set(),
        )

    @property
    def pid(self) -> int:
        """Of the process as it is now."""
        return self._child.pid

    @property
    def starts(self) -> int:
        """How often it was started."""
        return self._child.starts

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._child.launch()

    def wait_until_open(self) -> ShardHealth:
        """Wait for the process to have opened its shard.

        Returns
        -------
        ShardHealth
            What the shard says of itself.

        Raises
        ------
        VeloError
            Why the shard cannot be opened.
        """
        health = msgspec.json.decode(self._child.first_line(), type=ShardHealth)
        if health.failure is not None:
            raise health.failure.to_error()
        return health

    def succeed(self, generation: int) -> None:
        """Send whoever asks to another generation."""
        self._successor = generation
        self._child.tell({"successor": generation})

    def wait_until_left(self, timeout_s: float) -> None:
        """Wait until no gateway is connected any more, after ``succeed``."""
        self._left.wait(timeout_s)

    def close(self) -> None:
        """End the process for good; twice is once."""
        self._child.close()


class ShardProcesses:
    """The shards of some collections, each in a process of its own.

    Parameters
    ----------
    start : callable
        Makes the processes of a collection, not launched.
    replicas : int
        How many there are of each shard.
    root : Root, optional
        Where clients make collections.

    Attributes
    ----------
    records : tuple of CollectionRecord
    processes : dict of str to tuple of ShardProcess
        By the names of collections; of what is served now.
    """

    def __init__(
        self,
        start: Callable[[Collection], list[ShardProcess]],
        replicas: int = 1,
        root: Root | None = None,
    ) -> None:
        self.records: tuple[CollectionRecord, ...] = ()
        self.processes: dict[str, tuple[ShardProcess, ...]] = {}
        self._start = start
        self._replicas = replicas
        self._root = root
        self._collections: dict[str, Collection] = {}
        self._of: dict[tuple[str, int], tuple[ShardProcess, ...]] = {}
        self._changing = threading.Lock()
        self._closed = False

    def open(self, collections: Sequence[Collection]) -> int:
        """Start the processes of collections, all at once, and serve them.

        Parameters
        ----------
        collections : sequence of Collection

        Returns
        -------
        int
            The generation of what was started.

        Raises
        ------
        ShuttingDownError
            These processes end.
        VeloError
            Why a shard cannot be opened; nothing was started then.
        """
        generation = 1 + max((number for _, number in self._of), default=0)
        started = {one.name: self._start(one) for one in collections}
        try:
            for each in started.values():
                for process in each:
                    process.launch()  # all at once: the slowest sets the time
            records = [
                dataclasses.replace(_record(one, started[one.name], self._replicas), generation=generation)
                for one in collections
            ]
            if self._closed:
                raise ShuttingDownError("the server ends")
        except BaseException:
            _close_all([process for each in started.values() for process in each])
            raise
        for one in collections:
            self.processes[one.name] = self._of[one.name, generation] = tuple(started[one.name])
            self._collections[one.name] = one
        new = {record.name: record for record in records}
        kept = [new.pop(one.name, one) for one in self.records]
        self.records = (*kept, *new.values())
        return generation

    async def record(self, collection: str, generation: int) -> CollectionRecord:
        """Describe what a collection serves, or did."""
        return next(one for one in self.records if (one.name, one.generation) == (collection, generation))

    async def exchange(self, collection: str, path: str, version: str) -> None:
        """Start other processes beside those of now, which end when no gateway is connected to them.

        Parameters
        ----------
        collection : str
            Of those that are served.
        path, version : str
        """
        await asyncio.to_thread(self._exchange, collection, path, version)

    def _exchange(self, name: str, path: str, version: str) -> None:
        with self._changing:
            former = self._served(name)
            described = dataclasses.replace(read_collection(path, name=name), version=version)
            generation = self.open([described])
        for one in former:
            one.succeed(generation)
        # Not waited for: what is new answers already, or will as soon as a gateway hears of it.
        threading.Thread(target=self._end, args=(name, former), daemon=True).start()

    def _end(self, name: str, former: tuple[ShardProcess, ...]) -> None:
        deadline = time.monotonic() + LEAVE_S
        for one in former:
            one.wait_until_left(max(0.0, deadline - time.monotonic()))
        self._forget(former)
        _close_all(former)

    def _forget(self, former: tuple[ShardProcess, ...]) -> None:
        for key in [key for key, each in list(self._of.items()) if each is former]:
            del self._of[key]

    def _served(self, name: str) -> tuple[ShardProcess, ...]:
        try:
            return self.processes[name]
        except KeyError:
            raise UnknownCollectionError(f"no collection is called {name!r} here") from None

    async def snapshot(self, collection: str, path: str) -> None:
        """Copy what a collection holds now to another folder.

        Parameters
        ----------
        collection, path : str
        """
        self._served(collection)
        await asyncio.to_thread(snapshot_collection, self._collections[collection], path)

    async def create(self, name: str, shape: Shape) -> None:
        """Make a collection without rows, and start its processes.

        Parameters
        ----------
        name : str
        shape : Shape

        Raises
        ------
        UnsupportedError
            There are as many as there may be.
        VeloError
            As of ``velo.create``.
        """
        await asyncio.to_thread(self._create, name, shape)

    def _create(self, name: str, shape: Shape) -> None:
        assert self._root is not None
        with self._changing:
            if name in self.processes:
                raise IndexExistsError(f"{name!r} is served here already", argument="name")
            if len(self.processes) >= COLLECTIONS_MAX:
                raise UnsupportedError(f"{COLLECTIONS_MAX} collections are served: there may be no more")
            described = self._root.create(name, shape)
            try:
                self.open([described])
            except BaseException:
                self._root.drop(described)
                raise

    async def drop(self, name: str) -> list[str]:
        """End the processes of a collection, and remove what velo made of it.

        Parameters
        ----------
        name : str

        Returns
        -------
        list of str
            Names of what velo did not make, which stays.
        """
        return await asyncio.to_thread(self._drop, name)

    def _drop(self, name: str) -> list[str]:
        assert self._root is not None
        with self._changing:
            former, collection = self._served(name), self._collections[name]
            self._root.check_drop(collection)
            self.records = tuple(one for one in self.records if one.name != name)
            del self.processes[name], self._collections[name]
            self._forget(former)
            _close_all(former)
            return self._root.drop(collection)

    async def locate(self, place: Place) -> Endpoint:
        """Say where a shard listens."""
        processes = self._of.get((place.collection, place.generation))
        if processes is None:
            now = [one.generation for one in self.records if one.name == place.collection]
            if not now:
                raise ShardUnavailableError(f"{place.collection} is served no more")
            raise SupersededError(
                f"generation {place.generation} of {place.collection} is served no more", generation=now[0]
            )
        names = [(one.spec.name, one.replica) for one in processes]
        return processes[names.index((place.shard, place.replica))].endpoint

    def backend(self, *, limits: RouterLimits | None = None) -> Backend:
        """Make a backend over these processes; closing it ends them."""

        async def close() -> None:
            await asyncio.to_thread(self.close)

        serve = partial(served_collection, directory=self, limits=limits)
        keeper = None if self._root is None else self
        return Backend([serve(one) for one in self.records], on_close=close, keeper=keeper, serve=serve)

    def close(self) -> None:
        """End all processes; twice is once."""
        self._closed = True
        with self._changing:
            _close_all({one for each in (*self.processes.values(), *self._of.values()) for one in each})

    def __enter__(self) -> ShardProcesses:
        """Return these processes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self.close()


def _close_all(processes: Collection_[ShardProcess]) -> None:
    with ThreadPoolExecutor(max(1, len(processes))) as pool:
        list(pool.map(ShardProcess.close, processes))


def open_processes(
    paths: str | Path | Sequence[str | Path],
    *,
    replicas: int = 1,
    root: str | Path | None = None,
    **options: Any,
) -> ShardProcesses:
    """Open indexes or sharded collections, each shard in a process of its own.

    Parameters
    ----------
    paths : path or sequence of paths
        Each becomes a collection, named after its folder.
    replicas : int
        Processes of each shard. Each takes as much memory.
    root : path, optional
        A folder whose collections are served, too, and in which clients may make others.
    **options
        ``memory``, ``threads``, ``io``, ``plan``, ``writable``, ``durability``, as in ``velo.open``, for each
        collection; all shards share the cores where ``threads`` is not given. The first replica of a shard
        writes, and the others see what it wrote.
    """
    if replicas < 1:
        raise InvalidArgumentError(f"there is at least one replica, not {replicas}", argument="replicas")
    made = None if root is None else Root(root)
    folders = [paths] if isinstance(paths, str | Path) else list(paths)
    memory = options.pop("memory", None)
    collections = [read_collection(path) for path in (*folders, *(made.paths() if made else ()))]
    if len({one.name for one in collections}) < len(collections):
        raise InvalidArgumentError("two collections have the same name", argument="paths")
    if options.get("threads") is None:
        options["threads"] = share_of_cores(replicas * sum(len(one.shards) for one in collections))

    def processes_of(collection: Collection) -> list[ShardProcess]:
        return [
            ShardProcess(
                entry.spec(memory=budget, **options).of_replica(replica),
                version=collection.version,
                replica=replica,
            )
            for entry, budget in zip(collection.shards, split_memory(collection, memory), strict=True)
            for replica in range(replicas)
        ]

    opened = ShardProcesses(processes_of, replicas, made)
    opened.open(collections)
    return opened


def _record(collection: Collection, processes: Sequence[ShardProcess], replicas: int) -> CollectionRecord:
    healths = [(one.spec.name, one.wait_until_open()) for one in processes]
    for name, health in healths:
        check_shard(collection, health, name)
    return record_of(collection.name, healths[::replicas], replicas=replicas, version=collection.version)
