"""Shards in this process: what ``velo serve INDEX`` runs on. No Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from velo_serving.catalog.collection import Collection, read_collection
from velo_serving.catalog.root import snapshot_collection
from velo_serving.catalog.shares import check_shard, share_of_cores, split_memory
from velo_serving.protocol.hits import Costs, rows_of_hits, with_rows
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.types import Hits, SearchRequest, ShardHealth, ShardReply
from velo_serving.routing.backend import Backend
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.shard.shard import IndexOpener, Shard, open_velo_index
from velo_serving.transport.together import Together, Waiting, is_plain


class LocalChannel:
    """The way to a shard in this process."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._together = Together(self._ask_each)

    @property
    def name(self) -> str:
        """Name of the shard."""
        return self._shard.name

    def submit(self, request: SearchRequest, timeout_s: float) -> asyncio.Future[ShardReply]:
        """Search in this event loop; canceling ends it."""
        if len(request.queries) == 1 and is_plain(request):
            return self._together.add(request, timeout_s)
        return asyncio.ensure_future(self._search(request, timeout_s))

    def _ask_each(
        self, requests: Sequence[SearchRequest], futures: Sequence[Waiting], timeout_s: float
    ) -> None:
        def ended(rows: Sequence[int], reply: ShardReply, costs: Costs) -> None:
            replies: Sequence[ShardReply] = [reply] * len(rows)
            if isinstance(reply, Hits):
                replies = rows_of_hits(reply, costs)
            for row, one in zip(rows, replies, strict=True):
                if not futures[row].done():
                    futures[row].set_result(one)

        queries = np.concatenate([one.queries for one in requests])
        try:
            asked = self._shard.search_each(structs.replace(requests[0], queries=queries), timeout_s, ended)
        except Exception as error:
            for future in futures:
                future.set_exception(error)
            return
        for row, future in enumerate(futures):
            future.withdraw, future.place = asked.cancel, row

    async def _search(self, request: SearchRequest, timeout_s: float) -> ShardReply:
        reply = await self._shard.search(request, timeout_s)
        return with_rows(reply) if isinstance(reply, Hits) else reply

    async def health(self) -> ShardHealth:
        """Say how the shard is; in a thread, because it may have to open the index again."""
        return await asyncio.to_thread(self._shard.health)

    async def trial(self, timeout_s: float) -> bool:
        """Let the shard show that searches still end."""
        return await self._shard.trial(timeout_s)

    async def look_up(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Look something up in the shard's rows."""
        return await self._shard.look_up(what, arguments)

    async def write(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Do something to the shard's rows."""
        return await self._shard.write(what, arguments, timeout_s)

    def watch(self, lost: Callable[[str], None]) -> None:
        """There is no connection to lose."""

    def reset(self) -> None:
        """There is no connection to let go of."""

    async def close(self) -> None:
        """The shard belongs to whoever opened it."""


def open_shards(
    collection: Collection, *, opener: IndexOpener = open_velo_index, memory: Any = None, **options: Any
) -> list[Shard]:
    """Open every shard of a collection here."""
    if options.get("threads") is None:
        options["threads"] = share_of_cores(len(collection.shards))
    shards: list[Shard] = []
    try:
        for entry, budget in zip(collection.shards, split_memory(collection, memory), strict=True):
            shard = Shard(entry.spec(memory=budget, **options), opener)
            shards.append(shard)
            check_shard(collection, shard.open(), entry.name)
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    return shards


def open_local_backend(
    paths: str | Path | Sequence[str | Path],
    *,
    limits: RouterLimits | None = None,
    opener: IndexOpener = open_velo_index,
    **options: Any,
) -> Backend:
    """Open indexes or sharded collections in this process.

    Parameters
    ----------
    paths : path or sequence of paths
        Each becomes a collection, named after its folder.
    limits : RouterLimits, optional
        Of each collection.
    opener : callable, optional
    **options
        ``memory``, ``threads``, ``io``, ``plan``, ``writable``, ``durability``, as in ``velo.open``, for each
        collection; all shards share the cores where ``threads`` is not given.

    Returns
    -------
    Backend
    """
    folders = [paths] if isinstance(paths, str | Path) else list(paths)
    shards: list[Shard] = []
    served: list[ServedCollection] = []

    async def close() -> None:
        await _close(shards)

    def generation(collection: Collection, own: Sequence[Shard], number: int) -> Generation:
        router = Router(collection.name, [LocalChannel(shard) for shard in own], limits=limits)
        healths = [shard.health() for shard in own]
        first = healths[0]
        n = sum(one.n for one in healths)
        return Generation(n, first.dim, first.metric, router, collection.version, number)

    def exchange_of(name: str) -> Callable[[str, str], Awaitable[None]]:
        async def exchange(path: str, version: str) -> None:
            one = next(one for one in served if one.name == name)
            collection = replace(await asyncio.to_thread(read_collection, path, name=name), version=version)
            own = await asyncio.to_thread(partial(open_shards, collection, opener=opener, **options))
            warm_start = held[name]

            async def left() -> None:
                await _close(warm_start)

            try:
                await one.go_over(generation(collection, own, one.now.number + 1), left)
            except BaseException:
                await _close(own)
                raise
            held[name], described[name] = own, collection
            shards.extend(own)

        return exchange

    def snapshot_of(name: str) -> Callable[[str], Awaitable[None]]:
        async def snapshot(path: str) -> None:
            await asyncio.to_thread(snapshot_collection, described[name], path)

        return snapshot

    held: dict[str, list[Shard]] = {}
    described: dict[str, Collection] = {}
    collections = [read_collection(path) for path in folders]
    if options.get("threads") is None:
        options["threads"] = share_of_cores(sum(len(one.shards) for one in collections))
    try:
        for collection in collections:
            own = open_shards(collection, opener=opener, **options)
            shards += own
            held[collection.name], described[collection.name] = own, collection
            served.append(
                ServedCollection(
                    collection.name,
                    generation(collection, own, 1),
                    exchange=exchange_of(collection.name),
                    snapshot=snapshot_of(collection.name),
                )
            )
        return Backend(served, on_close=close)
    except BaseException:
        for shard in shards:
            shard.close()
        raise


async def _close(shards: Sequence[Shard]) -> None:
    await asyncio.gather(*(asyncio.to_thread(shard.close) for shard in shards))
