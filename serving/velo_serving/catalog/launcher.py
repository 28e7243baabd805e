"""Launchers: the shards of a collection are started, published and ended in one way, whatever runs them.

A launcher starts a process, or an actor, for each place of a generation and asks it a few things. What
follows from the answers is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from velo_serving.catalog.collection import Collection, read_collection
from velo_serving.catalog.records import CollectionRecord, Place, record_of
from velo_serving.catalog.shares import check_shard, split_memory
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import SupersededError
from velo_serving.protocol.options import ServeOptions
from velo_serving.protocol.types import ShardHealth

#: How long shards of a former version stay for gateways that have not left them.
LEAVE_S = 30.0

H = TypeVar("H")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class About:
    """A generation: the shards that were published under a name at once."""

    collection: Collection
    options: ServeOptions
    generation: int
    token: str

    def specs(self) -> dict[Place, ShardSpec]:
        """The instructions of each replica; the shards share the memory of the collection."""
        collection, options = self.collection, self.options
        budgets = split_memory(collection, options.memory)
        return {
            Place(collection.name, self.generation, entry.name, replica): entry.spec(
                **options.opening | {"memory": budget}
            ).of_replica(replica)
            for entry, budget in zip(collection.shards, budgets, strict=True)
            for replica in range(options.replicas)
        }

    def label(self, place: Place) -> str:
        """The name of a replica in messages."""
        return place.shard if self.options.replicas == 1 else f"{place.shard}/{place.replica}"

    def record(self, healths: Mapping[Place, ShardHealth]) -> CollectionRecord:
        """Describe the generation by what at least one replica of each shard says of itself."""
        first = {place.shard: health for place, health in reversed(list(healths.items()))}
        return record_of(
            self.collection.name,
            [(entry.name, first[entry.name]) for entry in self.collection.shards],
            replicas=self.options.replicas,
            version=self.collection.version,
            generation=self.generation,
        )

    def of_build(self, path: str | Path, version: str) -> Collection:
        """Another build, to be served under this name."""
        return replace(read_collection(path, name=self.collection.name), version=version)


class Launcher(Protocol[H]):
    """Starts the shards of a generation; ``H`` is what it knows each of them by."""

    def start(self, about: About) -> dict[Place, H]:
        """Start all, and wait for none; where one cannot be started, none is."""

    def healths(
        self, about: About, started: Mapping[Place, H], timeout_s: float, progress: Progress | None
    ) -> dict[Place, ShardHealth]:
        """Wait until all have opened their index, or raise why one has not."""

    def succeed(self, warm_start: Mapping[Place, H], generation: int) -> None:
        """Let shards send whoever asks them to another generation."""

    def await_left(self, warm_start: Mapping[Place, H], timeout_s: float) -> None:
        """Wait until no gateway is connected to shards any more."""

    def end(self, started: Mapping[Place, H]) -> None:
        """End shards for good."""


def start_generation(
    launcher: Launcher[H], about: About, timeout_s: float = 0.0, progress: Progress | None = None
) -> tuple[dict[Place, H], dict[Place, ShardHealth]]:
    """Start all shards of a generation at once, so that the slowest sets the time, or none."""
    started = launcher.start(about)
    try:
        healths = launcher.healths(about, started, timeout_s, progress)
        for place, health in healths.items():
            check_shard(about.collection, health, about.label(place))
    except BaseException:
        launcher.end(started)
        raise
    return started, healths


def superseded(place: Place, generation: int) -> SupersededError:
    """A generation has no shards any more; another one follows."""
    return SupersededError(
        f"generation {place.generation} of {place.collection} is served no more", generation=generation
    )
