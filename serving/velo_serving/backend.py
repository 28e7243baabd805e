"""What the gateway serves: collections by name, each behind its router, wherever the shards live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from velo.errors import InvalidArgumentError
from velo_serving.errors import UnknownCollectionError
from velo_serving.router import Router, RouterLimits
from velo_serving.types import ShardHealth, ShardIdentity
from velo_serving.wire.channel import SocketChannel
from velo_serving.wire.endpoint import Endpoint

__all__ = [
    "Backend",
    "CollectionRecord",
    "Locate",
    "ServedCollection",
    "ShardRecord",
    "record_of",
    "served_collection",
]


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A shard that runs in a process of its own, and what it must be."""

    name: str
    identity: ShardIdentity


@dataclass(frozen=True, slots=True)
class CollectionRecord:
    """What a gateway needs to know of a collection whose shards run elsewhere; plain data."""

    name: str
    n: int
    dim: int
    metric: str
    shards: tuple[ShardRecord, ...]


#: Says where a shard listens now, by the names of its collection and of the shard.
Locate = Callable[[str, str], Awaitable[Endpoint]]


def record_of(name: str, healths: Sequence[tuple[str, ShardHealth]]) -> CollectionRecord:
    """Describe a collection by what its shards said of themselves.

    Parameters
    ----------
    name : str
    healths : sequence of (str, ShardHealth)
        Of every shard, by name.
    """
    first = healths[0][1]
    return CollectionRecord(
        name,
        sum(health.n for _, health in healths),
        first.dim,
        first.metric,
        tuple(ShardRecord(shard, health.identity) for shard, health in healths),
    )


def served_collection(
    record: CollectionRecord, locate: Locate, *, limits: RouterLimits | None = None
) -> ServedCollection:
    """Make a router over shards that run elsewhere.

    Parameters
    ----------
    record : CollectionRecord
    locate : callable
    limits : RouterLimits, optional
    """

    def channel(shard: str) -> SocketChannel:
        async def where() -> Endpoint:
            return await locate(record.name, shard)

        return SocketChannel(shard, where)

    channels = [channel(shard.name) for shard in record.shards]
    identities = [shard.identity for shard in record.shards]
    router = Router(record.name, channels, limits=limits, identities=identities)
    return ServedCollection(record.name, record.n, record.dim, record.metric, router)


@dataclass(frozen=True, slots=True)
class ServedCollection:
    """A collection that is being served.

    Attributes
    ----------
    name : str
    n, dim : int
    metric : str
    router : Router
    """

    name: str
    n: int
    dim: int
    metric: str
    router: Router


class Backend:
    """The served collections; ``start`` and ``close`` belong to the event loop that searches.

    Parameters
    ----------
    collections : sequence of ServedCollection
        At least one, with names of their own.
    on_close : callable, optional
        Awaited after the routers have closed: releases what the shards hold.
    """

    def __init__(
        self,
        collections: Sequence[ServedCollection],
        *,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        if not collections:
            raise InvalidArgumentError("there is no collection to serve", argument="collections")
        self._collections = {served.name: served for served in collections}
        if len(self._collections) < len(collections):
            raise InvalidArgumentError("two collections have the same name", argument="collections")
        self._on_close = on_close
        self._started = False
        self._draining = False

    @property
    def collections(self) -> tuple[ServedCollection, ...]:
        """All collections, in the order given."""
        return tuple(self._collections.values())

    def collection(self, name: str | None = None) -> ServedCollection:
        """Find a collection by its name.

        Parameters
        ----------
        name : str, optional
            Without it the only collection.

        Returns
        -------
        ServedCollection

        Raises
        ------
        UnknownCollectionError
            There is none of that name, or there are several and no name was given.
        """
        names = ", ".join(self._collections)
        if name is None:
            if len(self._collections) == 1:
                return next(iter(self._collections.values()))
            raise UnknownCollectionError(
                f"several collections are served, ask /v1/collections/NAME/search; the names are {names}"
            )
        try:
            return self._collections[name]
        except KeyError:
            raise UnknownCollectionError(f"no collection {name!r} is served here; there is {names}") from None

    def ready(self, shards: int | None = None) -> bool:
        """Tell whether every collection has enough shards that can be asked.

        Parameters
        ----------
        shards : int, optional
            How many are enough; one without it. A collection that has fewer needs all of its own.

        Returns
        -------
        bool
        """
        return self._started and all(
            served.router.shards_up >= min(shards or 1, served.router.shards_total)
            for served in self.collections
        )

    @property
    def draining(self) -> bool:
        """Whether new requests should go elsewhere; those that come are still answered."""
        return self._draining

    def drain(self) -> None:
        """Be ready no more, and go on answering."""
        self._draining = True

    async def start(self) -> None:
        """Ask all shards how they are, once now and then regularly."""
        await asyncio.gather(*(served.router.start() for served in self.collections))
        self._started = True

    async def close(self) -> None:
        """Refuse what comes, give up what is under way, release the shards."""
        self._started = False
        await asyncio.gather(*(served.router.close() for served in self.collections))
        if self._on_close is not None:
            await self._on_close()
