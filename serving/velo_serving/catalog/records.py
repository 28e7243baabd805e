"""Records of collections whose shards run elsewhere, as plain data for gateways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from velo_serving.protocol.types import Shape, ShardHealth, ShardIdentity
from velo_serving.transport.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard, what it must be, and how many processes serve it."""

    name: str
    identity: ShardIdentity
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """A collection.

    Attributes
    ----------
    generation : int
        Counts what was published under this name; each has shards of its own.
    """

    name: str
    n: int
    dim: int
    metric: str
    shards: tuple[ShardRecord, ...]
    version: str = ""
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A replica of a shard, by names that stay while its process changes."""

    collection: str
    generation: int
    shard: str
    replica: int = 0


class Directory(Protocol):
    """The served collections and the endpoints of their shards: processes of ours, or Ray's."""

    @property
    def records(self) -> Sequence[CollectionRecord]:
        """The collections."""

    async def record(self, collection: str, generation: int) -> CollectionRecord:
        """Describe what was published under a collection's name."""

    async def exchange(self, collection: str, path: str, version: str) -> None:
        """Start what is at a path, and send whoever asks the collection's shards there."""

    async def snapshot(self, collection: str, path: str) -> None:
        """Copy what a collection holds now to another folder."""

    async def locate(self, place: Place) -> Endpoint:
        """Say where a shard listens now."""


class Keeper(Directory, Protocol):
    """A directory whose collections come and go, where the server has a folder for them."""

    async def create(self, name: str, shape: Shape) -> None:
        """Make a collection without rows; it is among the records then."""

    async def drop(self, name: str) -> list[str]:
        """Remove a collection; names of what velo did not make, which stays."""


def record_of(
    name: str,
    healths: Sequence[tuple[str, ShardHealth]],
    *,
    replicas: int = 1,
    version: str = "",
    generation: int = 1,
) -> CollectionRecord:
    """Describe a collection by what its shards said of themselves."""
    first = healths[0][1]
    return CollectionRecord(
        name,
        sum(health.n for _, health in healths),
        first.dim,
        first.metric,
        tuple(ShardRecord(shard, health.identity, replicas) for shard, health in healths),
        version,
        generation,
    )
