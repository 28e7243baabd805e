"""The collections of a gateway, by name, wherever their shards run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from velo.errors import IndexExistsError, InvalidArgumentError, UnsupportedError
from velo_serving.catalog.records import CollectionRecord, Keeper
from velo_serving.protocol.errors import UnknownCollectionError
from velo_serving.protocol.spans import Observer
from velo_serving.protocol.types import Shape
from velo_serving.routing.served import ServedCollection

#: How long to wait for the shards of a new collection.
FOLLOW_S = 10.0


class Backend:
    """The served collections; ``start`` and ``close`` belong to the event loop that searches.

    ``on_close`` is awaited after the routers have closed. ``start`` waits for ``start_s`` for shards that are
    not up at once. Clients may create and drop collections if there is a ``keeper``, of whose records
    ``serve`` makes served collections.
    """

    def __init__(
        self,
        collections: Sequence[ServedCollection],
        *,
        on_close: Callable[[], Awaitable[None]] | None = None,
        start_s: float = 0.0,
        keeper: Keeper | None = None,
        serve: Callable[[CollectionRecord], ServedCollection] | None = None,
    ) -> None:
        if not collections and keeper is None:
            raise InvalidArgumentError("there is no collection to serve", argument="collections")
        self._collections = {served.name: served for served in collections}
        if len(self._collections) < len(collections):
            raise InvalidArgumentError("two collections have the same name", argument="collections")
        self._aliases: dict[str, str] = {}
        self._on_close = on_close
        self._keeper = keeper
        self._serve = serve
        self._observer_of: Callable[[str], Observer] | None = None
        self._following = asyncio.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._start_s = start_s
        self._started = False
        self._draining = False

    @property
    def collections(self) -> tuple[ServedCollection, ...]:
        """All collections, in the order given."""
        return tuple(self._collections.values())

    def collection(self, name: str | None = None) -> ServedCollection:
        """Find a collection by its name or alias, or the only one."""
        names = ", ".join(self._collections)
        if name is None:
            if len(self._collections) == 1:
                return next(iter(self._collections.values()))
            raise UnknownCollectionError(
                f"several collections are served, ask /v1/collections/NAME/search; the names are {names}"
            )
        try:
            return self._collections[self._aliases.get(name, name)]
        except KeyError:
            raise UnknownCollectionError(f"no collection {name!r} here, only {names or 'none'}") from None

    def observe(self, observer_of: Callable[[str], Observer]) -> None:
        """Report the events of each collection, including later ones, to an observer of its name."""
        self._observer_of = observer_of
        for served in self.collections:
            served.observe(observer_of(served.name))

    async def create(self, name: str, shape: Shape) -> ServedCollection:
        """Make a collection without rows, and serve it."""
        keeper = self._kept()
        if name in self._collections or name in self._aliases:
            raise IndexExistsError(f"{name!r} is served here already", argument="name")
        await keeper.create(name, shape)
        await self.follow(keeper.records)
        return self.collection(name)

    async def drop(self, name: str) -> list[str]:
        """Stop serving a collection and remove what velo made of it; return the names of other files."""
        keeper = self._kept()
        if name not in self._collections:
            raise UnknownCollectionError(f"no collection is called {name!r} here")
        left = await keeper.drop(name)
        await self.follow(keeper.records)
        return left

    def _kept(self) -> Keeper:
        if self._keeper is None:
            raise UnsupportedError("the server has no folder for new collections: start it with --root")
        return self._keeper

    async def follow(self, records: Sequence[CollectionRecord]) -> None:
        """Serve exactly the collections of some records."""
        async with self._following:
            names = {record.name for record in records}
            dropped = [self._collections.pop(name) for name in set(self._collections) - names]
            self._aliases = {alias: name for alias, name in self._aliases.items() if name in names}
            for record in records:
                if record.name not in self._collections:
                    assert self._serve is not None
                    served = self._serve(record)
                    if self._observer_of is not None:
                        served.observe(self._observer_of(served.name))
                    await served.start(FOLLOW_S)
                    self._collections[served.name] = served
            await asyncio.gather(*(served.close() for served in dropped))

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names, and the collections that they stand for."""
        return self._aliases

    def alias(self, aliases: Mapping[str, str]) -> None:
        """Replace all aliases, or none of them if one cannot be."""
        for alias, name in aliases.items():
            if alias in self._collections:
                raise UnknownCollectionError(f"{alias!r} is a collection, so it cannot be an alias")
            if name not in self._collections:
                raise UnknownCollectionError(
                    f"alias {alias!r} is for {name!r}, which is not served here; there is "
                    + ", ".join(self._collections)
                )
        self._aliases = dict(aliases)

    def ready(self, shards: int | None = None) -> bool:
        """Tell whether enough shards of every collection are up: one, ``shards`` of them, or all."""
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
        self.loop = asyncio.get_running_loop()
        await asyncio.gather(*(served.start(self._start_s) for served in self.collections))
        if self._keeper is not None:
            await self.follow(self._keeper.records)
        self._started = True

    async def close(self) -> None:
        """Refuse what comes, give up what is under way, release the shards."""
        self._started = False
        await asyncio.gather(*(served.close() for served in self.collections))
        if self._on_close is not None:
            await self._on_close()
