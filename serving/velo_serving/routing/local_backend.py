"""Shards in this process: what ``velo serve INDEX`` runs on. No Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from velo_serving.catalog.collection import Collection
from velo_serving.catalog.launcher import About, start_generation
from velo_serving.catalog.records import Place
from velo_serving.protocol.errors import ShardMovedError
from velo_serving.protocol.hits import Costs, rows_of_hits
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.options import ServeOptions
from velo_serving.protocol.types import Hits, SearchRequest, ShardHealth, ShardReply
from velo_serving.routing.backend import Backend
from velo_serving.routing.directory import ShardDirectory, described
from velo_serving.shard.shard import IndexOpener, Shard, open_velo_index
from velo_serving.transport.codec import Together, Waiting, is_plain

#: The interval of checks for the new shard of a channel, and for the end of searches of the former one.
LOOK_S = 0.01


class LocalChannel:
    """The channel of a shard in this process."""

    def __init__(self, shard: Shard, version: str = "") -> None:
        self.shard = shard
        self.closed = threading.Event()
        self._version = version
        self._together = Together(self._ask_each)

    @property
    def name(self) -> str:
        return self.shard.name

    def submit(self, request: SearchRequest, timeout_s: float) -> asyncio.Future[ShardReply]:
        """Search in this event loop; canceling the future cancels the search."""
        if len(request.queries) == 1 and is_plain(request):
            return self._together.add(request, timeout_s)
        shard = self.shard
        return shard.counted(asyncio.ensure_future(shard.search(request, timeout_s)))

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
            asked = self.shard.search_each(structs.replace(requests[0], queries=queries), timeout_s, ended)
        except Exception as error:
            for future in futures:
                future.set_exception(error)
            return
        for row, future in enumerate(futures):
            future.withdraw, future.place = asked.cancel, row

    async def health(self) -> ShardHealth:
        """Return the health of the shard; in a thread, because it may have to open the index again."""
        shard = self.shard
        with shard.used():
            return replace(await asyncio.to_thread(shard.health), version=self._version)

    async def trial(self, timeout_s: float) -> bool:
        shard = self.shard
        with shard.used():
            return await shard.trial(timeout_s)

    async def look_up(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        return await self.shard.look_up(what, arguments)

    async def write(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Write to the current shard; the caller limits the time."""
        while True:
            try:
                return await self.shard.write(what, arguments, timeout_s)
            except ShardMovedError:
                await asyncio.sleep(LOOK_S)

    def watch(self, lost: Callable[[str], None]) -> None:
        """Ignored: there is no connection."""

    def reset(self) -> None:
        """Ignored: there is no connection."""

    async def close(self) -> None:
        """Report that the gateway is done; the shard belongs to its launcher."""
        self.closed.set()


class _LocalLauncher:
    """Shards in this process, each with the channel of its only gateway."""

    def __init__(self, opener: IndexOpener) -> None:
        self._opener = opener

    def start(self, about: About, only: str | None = None) -> dict[Place, LocalChannel]:
        version = about.collection.version
        specs = about.specs(only)
        return {at: LocalChannel(Shard(spec, self._opener), version) for at, spec in specs.items()}

    def healths(
        self,
        about: About,
        started: Mapping[Place, LocalChannel],
        timeout_s: float,
        progress: Callable[[str], None] | None,
    ) -> dict[Place, ShardHealth]:
        version = about.collection.version
        return {place: replace(one.shard.health(), version=version) for place, one in started.items()}

    def succeed(self, former: Mapping[Place, LocalChannel], generation: int) -> None:
        """Do nothing: the only gateway of these shards starts the next generation itself."""

    def await_left(self, former: Mapping[Place, LocalChannel], timeout_s: float) -> None:
        """Wait until the gateway has closed all channels, or no call of a moved shard runs."""
        for one in former.values():
            while not (one.shard.idle if one.shard.moved else one.closed.is_set()):
                time.sleep(LOOK_S)

    def end(self, started: Mapping[Place, LocalChannel]) -> None:
        for one in started.values():
            one.shard.close()

    def replace(self, former: LocalChannel, new: LocalChannel) -> tuple[LocalChannel, LocalChannel]:
        """Connect the channel of the gateway to the new shard."""
        former.shard, new.shard = new.shard, former.shard
        return former, new


def open_shards(
    collection: Collection, *, opener: IndexOpener = open_velo_index, **options: Any
) -> list[Shard]:
    about = About(collection, ServeOptions(**options), 1, "")
    started, _ = start_generation(_LocalLauncher(opener), about)
    return [one.shard for one in started.values()]


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
        collection; all shards share the threads, by default one for each core.

    Returns
    -------
    Backend
    """
    collections, chosen = described(paths, None, options)
    directory = ShardDirectory(_LocalLauncher(opener), chosen, channel_of=lambda one: one)
    directory.open(collections)
    return directory.backend(limits=limits)
