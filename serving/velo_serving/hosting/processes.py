"""Shards in processes of their own, without Ray: started here, watched, and started again when they die.

Their answers travel as between Ray's actors and a gateway (``wire``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from velo.errors import IndexExistsError, InvalidArgumentError, UnsupportedError
from velo_serving.catalog.collection import Collection, read_collection
from velo_serving.catalog.launcher import LEAVE_S, About, start_generation, superseded
from velo_serving.catalog.records import CollectionRecord, Place
from velo_serving.catalog.root import COLLECTIONS_MAX, Root, snapshot_collection
from velo_serving.catalog.shares import share_of_cores
from velo_serving.catalog.spec import ShardSpec
from velo_serving.hosting.child import Child
from velo_serving.protocol.errors import ShardUnavailableError, ShuttingDownError, UnknownCollectionError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.options import ServeOptions
from velo_serving.protocol.types import Shape, ShardHealth
from velo_serving.routing.backend import Backend
from velo_serving.routing.served import served_collection
from velo_serving.transport.endpoint import Endpoint, abstract_path, this_host


class ShardProcess:
    """A shard's process: started again whenever it dies, at the same endpoint.

    Parameters
    ----------
    version : str
        Of the collection.
    """

    def __init__(self, spec: ShardSpec, *, version: str = "") -> None:
        self.spec = spec
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
        """The number of starts."""
        return self._child.starts

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._child.launch()

    def close(self) -> None:
        """End the process for good; twice is once."""
        self._child.close()

    def wait_until_open(self) -> ShardHealth:
        """Wait for the process to have opened its shard, or raise why it has not."""
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


Processes = Mapping[Place, ShardProcess]


class _ProcessLauncher:
    """A process of this machine for each shard."""

    def start(self, about: About) -> dict[Place, ShardProcess]:
        """Launch the processes."""
        version = about.collection.version
        started = {place: ShardProcess(spec, version=version) for place, spec in about.specs().items()}
        try:
            for one in started.values():
                one.launch()
        except BaseException:
            self.end(started)
            raise
        return started

    def healths(
        self, about: About, started: Processes, timeout_s: float, progress: Callable[[str], None] | None
    ) -> dict[Place, ShardHealth]:
        """Wait for all; a process that cannot open its shard says so."""
        return {place: one.wait_until_open() for place, one in started.items()}

    def succeed(self, warm_start: Processes, generation: int) -> None:
        """Tell all."""
        for one in warm_start.values():
            one.succeed(generation)

    def await_left(self, warm_start: Processes, timeout_s: float) -> None:
        """Wait for each to say so."""
        deadline = time.monotonic() + timeout_s
        for one in warm_start.values():
            one.wait_until_left(max(0.0, deadline - time.monotonic()))

    def end(self, started: Processes) -> None:
        """Close all at once."""
        with ThreadPoolExecutor(max(1, len(started))) as pool:
            list(pool.map(ShardProcess.close, started.values()))


class ShardProcesses:
    """The shards of some collections, each in a process of its own: a directory, and a keeper with a root.

    Parameters
    ----------
    options : ServeOptions
        How shards are opened, and how many replicas each has.
    root : Root, optional
        Where clients make collections.
    """

    def __init__(self, options: ServeOptions, root: Root | None = None) -> None:
        self.records: tuple[CollectionRecord, ...] = ()
        self._launcher = _ProcessLauncher()
        self._options = options
        self._root = root
        self._now: dict[str, About] = {}
        self._of: dict[tuple[str, int], Processes] = {}
        self._changing = threading.Lock()
        self._closed = False

    @property
    def processes(self) -> dict[str, tuple[ShardProcess, ...]]:
        """Of each collection, by name; those of what is served now."""
        return {name: tuple(self._of[name, about.generation].values()) for name, about in self._now.items()}

    def open(self, collections: Sequence[Collection]) -> int:
        """Start the processes of collections, all at once, and serve them; the number of their generation."""
        generation = 1 + max((number for _, number in self._of), default=0)
        abouts = [About(one, self._options, generation, "") for one in collections]
        opened: list[tuple[About, Processes, CollectionRecord]] = []

        def start(about: About) -> None:
            started, healths = start_generation(self._launcher, about)
            opened.append((about, started, about.record(healths)))

        try:
            with ThreadPoolExecutor(max(1, len(abouts))) as pool:
                list(pool.map(start, abouts))
            if self._closed:
                raise ShuttingDownError("the server ends")
        except BaseException:
            for _, started, _ in opened:
                self._launcher.end(started)
            raise
        for about, started, _ in opened:
            name = about.collection.name
            self._of[name, generation], self._now[name] = started, about
        new = {record.name: record for _, _, record in sorted(opened, key=lambda one: abouts.index(one[0]))}
        kept = [new.pop(one.name, one) for one in self.records]
        self.records = (*kept, *new.values())
        return generation

    async def record(self, collection: str, generation: int) -> CollectionRecord:
        """Describe what a collection serves."""
        return next(one for one in self.records if (one.name, one.generation) == (collection, generation))

    async def exchange(self, collection: str, path: str, version: str) -> None:
        """Start other processes beside those of now, which end when no gateway is connected to them."""
        await asyncio.to_thread(self._exchange, collection, path, version)

    def _exchange(self, name: str, path: str, version: str) -> None:
        with self._changing:
            about = self._served(name)
            warm_start = self._of[name, about.generation]
            generation = self.open([about.of_build(path, version)])
        self._launcher.succeed(warm_start, generation)

        def end() -> None:
            self._launcher.await_left(warm_start, LEAVE_S)
            self._of.pop((name, about.generation), None)
            self._launcher.end(warm_start)

        # Not waited for: what is new answers already, or will as soon as a gateway hears of it.
        threading.Thread(target=end, daemon=True).start()

    def _served(self, name: str) -> About:
        try:
            return self._now[name]
        except KeyError:
            raise UnknownCollectionError(f"no collection is called {name!r} here") from None

    async def snapshot(self, collection: str, path: str) -> None:
        """Copy what a collection holds now to another folder."""
        await asyncio.to_thread(snapshot_collection, self._served(collection).collection, path)

    async def create(self, name: str, shape: Shape) -> None:
        """Make a collection without rows, and start its processes."""
        await asyncio.to_thread(self._create, name, shape)

    def _create(self, name: str, shape: Shape) -> None:
        assert self._root is not None
        with self._changing:
            if name in self._now:
                raise IndexExistsError(f"{name!r} is served here already", argument="name")
            if len(self._now) >= COLLECTIONS_MAX:
                raise UnsupportedError(f"{COLLECTIONS_MAX} collections are served: there may be no more")
            described = self._root.create(name, shape)
            try:
                self.open([described])
            except BaseException:
                self._root.drop(described)
                raise

    async def drop(self, name: str) -> list[str]:
        """End the processes of a collection, and remove what velo made of it; names of the rest."""
        return await asyncio.to_thread(self._drop, name)

    def _drop(self, name: str) -> list[str]:
        assert self._root is not None
        with self._changing:
            about = self._served(name)
            self._root.check_drop(about.collection)
            self.records = tuple(one for one in self.records if one.name != name)
            del self._now[name]
            self._launcher.end(self._of.pop((name, about.generation)))
            return self._root.drop(about.collection)

    async def locate(self, place: Place) -> Endpoint:
        """Say where a shard listens."""
        processes = self._of.get((place.collection, place.generation))
        if processes is None:
            now = self._now.get(place.collection)
            if now is None:
                raise ShardUnavailableError(f"{place.collection} is served no more")
            raise superseded(place, now.generation)
        return processes[place].endpoint

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
            self._launcher.end(
                {place: one for each in list(self._of.values()) for place, one in each.items()}
            )

    def __enter__(self) -> ShardProcesses:
        """Return these processes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them."""
        self.close()


def open_processes(
    paths: str | Path | Sequence[str | Path],
    *,
    replicas: int = 1,
    root: str | Path | None = None,
    **options: Any,
) -> ShardProcesses:
    """Open indexes or sharded collections, each shard in a process of its own."""
    made = None if root is None else Root(root)
    folders = [paths] if isinstance(paths, str | Path) else list(paths)
    collections = [read_collection(path) for path in (*folders, *(made.paths() if made else ()))]
    if len({one.name for one in collections}) < len(collections):
        raise InvalidArgumentError("two collections have the same name", argument="paths")
    if options.get("threads") is None:
        options["threads"] = share_of_cores(replicas * sum(len(one.shards) for one in collections))
    opened = ShardProcesses(ServeOptions(replicas=replicas, **options), made)
    opened.open(collections)
    return opened
