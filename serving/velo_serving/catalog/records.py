"""Records of collections whose shards run elsewhere, as plain data for gateways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from velo_serving.protocol.types import Shape, ShardIdentity
from velo_serving.transport.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard, what it must be, and how many processes serve it."""

    name: str
    identity: ShardIdentity
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """A collection; ``generation`` counts what was published under its name."""

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
        """Return the record of a generation of a collection."""

    async def exchange(self, collection: str, path: str, version: str) -> int:
        """Start the build at a path; return the generation to which gateways switch."""

    async def snapshot(self, collection: str, path: str) -> None:
        """Copy the current rows of a collection to another folder."""

    async def locate(self, place: Place) -> Endpoint:
        """Return the present endpoint of a shard."""


class Keeper(Directory, Protocol):
    """A directory that can create and drop collections, where the server has a folder for them."""

    async def create(self, name: str, shape: Shape) -> None:
        """Make a collection without rows and add it to the records."""

    async def drop(self, name: str) -> list[str]:
        """Remove a collection; return the names of files that velo did not make and leaves."""
