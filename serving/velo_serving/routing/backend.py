"""What the gateway serves: collections by name, wherever their shards live."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from velo.errors import InvalidArgumentError
from velo_serving.routing.served import ServedCollection
from velo_serving.words.errors import UnknownCollectionError

__all__ = ["Backend"]


class Backend:
    """The served collections; ``start`` and ``close`` belong to the event loop that searches.

    Parameters
    ----------
    collections : sequence of ServedCollection
        At least one, with names of their own.
    on_close : callable, optional
        Awaited after the routers have closed: releases what the shards hold.
    start_s : float
        So long ``start`` waits for shards that are not up at once.
    """

    def __init__(
        self,
        collections: Sequence[ServedCollection],
        *,
        on_close: Callable[[], Awaitable[None]] | None = None,
        start_s: float = 0.0,
    ) -> None:
        if not collections:
            raise InvalidArgumentError("there is no collection to serve", argument="collections")
        self._collections = {served.name: served for served in collections}
        if len(self._collections) < len(collections):
            raise InvalidArgumentError("two collections have the same name", argument="collections")
        self._aliases: dict[str, str] = {}
        self._on_close = on_close
        self._start_s = start_s
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
            return self._collections[self._aliases.get(name, name)]
        except KeyError:
            raise UnknownCollectionError(f"no collection {name!r} is served here; there is {names}") from None

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other names, and the collections that they stand for."""
        return self._aliases

    def alias(self, aliases: Mapping[str, str]) -> None:
        """Find collections under other names, too; those of before are forgotten.

        Parameters
        ----------
        aliases : mapping of str to str
            Names of collections by their aliases.

        Raises
        ------
        UnknownCollectionError
            There is no such collection, or an alias is the name of one. Nothing changes.
        """
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
        await asyncio.gather(*(served.start(self._start_s) for served in self.collections))
        self._started = True

    async def close(self) -> None:
        """Refuse what comes, give up what is under way, release the shards."""
        self._started = False
        await asyncio.gather(*(served.close() for served in self.collections))
        if self._on_close is not None:
            await self._on_close()
