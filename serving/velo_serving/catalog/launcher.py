"""The launcher interface: shards here, in child processes and in Ray actors start and end in one way."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from velo.errors import DimensionMismatchError
from velo.options import memory_bytes
from velo_serving.catalog.collection import Collection, Pin, read_collection
from velo_serving.catalog.records import CollectionRecord, Place, ShardRecord
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import SupersededError
from velo_serving.protocol.options import ServeOptions
from velo_serving.protocol.types import ShardHealth

#: How long shards of a former version stay up for gateways that are still connected.
LEAVE_S = 30.0

log = logging.getLogger("velo_serving")

H = TypeVar("H")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Move:
    """The folder and node to which a shard was moved last; ``number`` counts its moves."""

    path: str
    pin: Pin | None = None
    number: int = 1
    identity: str = ""

    def of(self, spec: ShardSpec) -> ShardSpec:
        return replace(spec, path=self.path, locations=(), checksum="", identity=self.identity)


@dataclass(frozen=True, slots=True)
class About:
    """A generation: the shards that were published under a name at once; ``moves`` has the moved ones."""

    collection: Collection
    options: ServeOptions
    generation: int
    token: str
    moves: Mapping[str, Move] = field(default_factory=dict)

    def specs(self, only: str | None = None) -> dict[Place, ShardSpec]:
        """The specification of each replica, or of one shard; shards share the memory of the collection."""
        collection, options = self.collection, self.options
        budgets = split_memory(collection, options.memory)
        found = {}
        for entry, budget in zip(collection.shards, budgets, strict=True):
            move = self.moves.get(entry.name)
            spec = entry.spec(**options.opening | {"memory": budget})
            for replica in range(options.replicas if only in (None, entry.name) else 0):
                number = 0 if move is None else move.number
                place = Place(collection.name, self.generation, entry.name, replica, number)
                found[place] = spec if move is None else move.of(spec)
        return found

    def label(self, place: Place) -> str:
        """The name of a replica in messages."""
        return place.shard if self.options.replicas == 1 else f"{place.shard}/{place.replica}"

    def record(self, healths: Mapping[Place, ShardHealth]) -> CollectionRecord:
        """Describe the generation by the health of at least one shard; the identity of others is unknown."""
        first = {place.shard: health for place, health in reversed(list(healths.items()))}
        identities = {name: health.identity for name, health in first.items()}
        one = next(iter(first.values()))
        names = [entry.name for entry in self.collection.shards]
        return CollectionRecord(
            self.collection.name,
            sum(health.n for health in first.values()),
            one.dim,
            one.metric,
            tuple(ShardRecord(name, identities.get(name), self.options.replicas) for name in names),
            self.collection.version,
            self.generation,
        )

    def of_build(self, path: str | Path, version: str) -> Collection:
        return replace(read_collection(path, name=self.collection.name), version=version)


class Launcher(Protocol[H]):
    """Starts the shards of a generation; ``H`` is the handle of a shard.

    ``start`` starts all without waiting, or none, or only one shard. ``healths`` waits until each has opened
    its index, or says why it has not. ``succeed`` makes shards report the next generation; ``await_left``
    waits until no gateway is connected to them; ``end`` stops them for good. ``replace`` is given the former
    and the new process of a shard that was moved, and returns the handle that serves the shard from then on,
    and the one that is to end.
    """

    def start(self, about: About, only: str | None = None) -> dict[Place, H]: ...
    def healths(
        self, about: About, started: Mapping[Place, H], timeout_s: float, progress: Progress | None
    ) -> dict[Place, ShardHealth]: ...
    def succeed(self, former: Mapping[Place, H], generation: int) -> None: ...
    def await_left(self, former: Mapping[Place, H], timeout_s: float) -> None: ...
    def end(self, started: Mapping[Place, H]) -> None: ...
    def replace(self, former: H, new: H) -> tuple[H, H]: ...


def start_generation(
    launcher: Launcher[H],
    about: About,
    timeout_s: float = 0.0,
    progress: Progress | None = None,
    *,
    partial: bool = False,
) -> tuple[dict[Place, H], dict[Place, ShardHealth]]:
    """Start all shards of a generation in parallel, or none; if ``partial``, at least one must open."""
    started = launcher.start(about)
    try:
        all_healths = launcher.healths(about, started, timeout_s, progress)
        failures = {place: one.failure for place, one in all_healths.items() if one.failure is not None}
        healths = {place: one for place, one in all_healths.items() if one.failure is None}
        if failures and not (partial and healths):
            raise next(iter(failures.values())).to_error()
        for place, failure in failures.items():
            log_missing(about.collection.name, about.label(place), f"{failure.kind}: {failure.message}")
        for place, health in healths.items():
            check_shard(about.collection, health, about.label(place))
    except BaseException:
        launcher.end(started)
        raise
    return started, healths


def log_missing(collection: str, shard: str, reason: str) -> None:
    facts = {"collection": collection, "shard": shard, "reason": reason}
    log.warning("shard is missing at the start, and is asked again", extra={"velo": facts})


def share_of_cores(shards: int) -> int:
    """The default number of threads of each of several shards on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, shards))


def split_memory(collection: Collection, memory: Any) -> list[Any]:
    if memory is None:
        return [None] * len(collection.shards)
    if len(collection.shards) == 1:
        return [memory]
    total = memory_bytes(memory, collection.n, collection.dim)
    return [total * entry.rows // collection.n for entry in collection.shards]


def check_shard(collection: Collection, health: ShardHealth, name: str) -> None:
    if collection.dim and (health.dim, health.metric) != (collection.dim, collection.metric):
        raise DimensionMismatchError(
            f"shard {name} holds {health.dim} dimensions under {health.metric!r}, "
            f"its collection {collection.dim} under {collection.metric!r}",
            file=str(collection.path),
        )


def superseded(place: Place, generation: int) -> SupersededError:
    return SupersededError(
        f"generation {place.generation} of {place.collection} is no longer served", generation=generation
    )
