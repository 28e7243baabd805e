"""Shards in processes of their own, without Ray: started here, watched, and started again when they die.

What they answer travels as it does between Ray's actors and a gateway (``wire``); who starts them differs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Collection as Collection_
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from velo.errors import InvalidArgumentError
from velo_serving.hosting.child import Child
from velo_serving.places.collection import Collection, read_collection
from velo_serving.places.records import CollectionRecord, Place, record_of
from velo_serving.places.shares import check_shard, share_of_cores, split_memory
from velo_serving.places.spec import ShardSpec
from velo_serving.routing.backend import Backend
from velo_serving.routing.served import served_collection
from velo_serving.wire.endpoint import Endpoint, abstract_path, this_host
from velo_serving.words.errors import ShuttingDownError, SupersededError
from velo_serving.words.limits import RouterLimits
from velo_serving.words.types import ShardHealth

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

    Attributes
    ----------
    records : tuple of CollectionRecord
    processes : dict of str to tuple of ShardProcess
        By the names of collections; of what is served now.
    """

    def __init__(
        self,
        records: Sequence[CollectionRecord],
        processes: Mapping[str, Sequence[ShardProcess]],
        again: Callable[[Collection], list[ShardProcess]] | None = None,
    ) -> None:
        self.records = tuple(records)
        self.processes = {name: tuple(each) for name, each in processes.items()}
        self._again = again
        self._of = {(one.name, one.generation): self.processes[one.name] for one in records}
        self._exchanging = threading.Lock()
        self._closed = False

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
        assert self._again is not None
        with self._exchanging:
            before = next(one for one in self.records if one.name == name)
            described = dataclasses.replace(read_collection(path, name=name), version=version)
            started = self._again(described)
            try:
                for one in started:
                    one.launch()
                replicas = len(started) // len(described.shards)
                record = dataclasses.replace(
                    _record(described, started, replicas), generation=before.generation + 1
                )
                if self._closed:
                    raise ShuttingDownError("the server ends")
            except BaseException:
                _close_all(started)
                raise
            former, self.processes[name] = self.processes[name], tuple(started)
            self._of[name, record.generation] = self.processes[name]
            self.records = tuple(record if one is before else one for one in self.records)
        for one in former:
            one.succeed(record.generation)
        # Not waited for: what is new answers already, or will as soon as a gateway hears of it.
        threading.Thread(target=self._end, args=(name, before.generation, former), daemon=True).start()

    def _end(self, name: str, generation: int, former: Sequence[ShardProcess]) -> None:
        deadline = time.monotonic() + LEAVE_S
        for one in former:
            one.wait_until_left(max(0.0, deadline - time.monotonic()))
        del self._of[name, generation]
        _close_all(former)

    async def locate(self, place: Place) -> Endpoint:
        """Say where a shard listens."""
        processes = self._of.get((place.collection, place.generation))
        if processes is None:
            raise SupersededError(
                f"generation {place.generation} of {place.collection} is served no more",
                generation=next(one.generation for one in self.records if one.name == place.collection),
            )
        names = [(one.spec.name, one.replica) for one in processes]
        return processes[names.index((place.shard, place.replica))].endpoint

    def backend(self, *, limits: RouterLimits | None = None) -> Backend:
        """Make a backend over these processes; closing it ends them."""

        async def close() -> None:
            await asyncio.to_thread(self.close)

        served = [served_collection(record, self, limits=limits) for record in self.records]
        return Backend(served, on_close=close)

    def close(self) -> None:
        """End all processes; twice is once."""
        self._closed = True
        with self._exchanging:
            everyone = {one for each in (*self.processes.values(), *self._of.values()) for one in each}
        _close_all(everyone)

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
    paths: str | Path | Sequence[str | Path], *, replicas: int = 1, **options: Any
) -> ShardProcesses:
    """Open indexes or sharded collections, each shard in a process of its own.

    Parameters
    ----------
    paths : path or sequence of paths
        Each becomes a collection, named after its folder.
    replicas : int
        Processes of each shard. Each takes as much memory.
    **options
        ``memory``, ``threads``, ``io``, ``plan``, ``writable``, ``durability``, as in ``velo.open``, for each
        collection; all shards share the cores where ``threads`` is not given. The first replica of a shard
        writes, and the others see what it wrote.
    """
    if replicas < 1:
        raise InvalidArgumentError(f"there is at least one replica, not {replicas}", argument="replicas")
    folders = [paths] if isinstance(paths, str | Path) else list(paths)
    memory = options.pop("memory", None)
    collections = [read_collection(path) for path in folders]
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

    started = {collection.name: processes_of(collection) for collection in collections}
    if len(started) < len(collections):
        raise InvalidArgumentError("two collections have the same name", argument="paths")
    opened = ShardProcesses((), started)
    try:
        for processes in started.values():
            for one in processes:
                one.launch()  # all at once: the slowest sets the time
        records = [_record(one, started[one.name], replicas) for one in collections]
        return ShardProcesses(records, started, processes_of)
    except BaseException:
        opened.close()
        raise


def _record(collection: Collection, processes: Sequence[ShardProcess], replicas: int) -> CollectionRecord:
    healths = [(one.spec.name, one.wait_until_open()) for one in processes]
    for name, health in healths:
        check_shard(collection, health, name)
    return record_of(collection.name, healths[::replicas], replicas=replicas, version=collection.version)
