"""Records of collections whose shards run elsewhere, as plain data for gateways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from velo_serving.protocol.types import Shape, ShardIdentity
from velo_serving.transport.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard, its identity if known, and the number of processes that serve it."""

    name: str
    identity: ShardIdentity | None
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """A collection; ``generation`` counts the versions published under its name."""

    name: str
    n: int
    dim: int
    metric: str
    shards: tuple[ShardRecord, ...]
    version: str = ""
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A replica of a shard, by names that stay while its process changes; ``move`` counts its folders."""

    collection: str
    generation: int
    shard: str
    replica: int = 0
    move: int = 0


class Directory(Protocol):
    """The served collections and the endpoints of their shards, in processes of ours or of Ray.

    ``exchange`` starts the build at a path and returns the generation to which gateways switch. ``snapshot``
    copies the current rows of a collection to another folder. ``move`` moves a shard, as ``move_shard``.
    """

    @property
    def records(self) -> Sequence[CollectionRecord]: ...
    async def record(self, collection: str, generation: int) -> CollectionRecord: ...
    async def exchange(self, collection: str, path: str, version: str) -> int: ...
    async def snapshot(self, collection: str, path: str) -> None: ...
    async def move(self, collection: str, shard: str, path: str, pin: str | None) -> float: ...
    async def locate(self, place: Place) -> Endpoint: ...


class Keeper(Directory, Protocol):
    """A directory that can create and drop collections; ``drop`` returns the names of files that stay."""

    async def create(self, name: str, shape: Shape) -> None: ...
    async def drop(self, name: str) -> list[str]: ...
