"""One shard at work: opens an index, answers requests. It knows no Ray, no HTTP, no other shard."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from velo.errors import FilterError, NoSpaceError, SearchTimeoutError, VeloError
from velo.filters import from_sql
from velo.folder.shards import built_uuid, check_shard
from velo_serving.catalog.locations import shard_folder
from velo_serving.catalog.spec import ShardSpec
from velo_serving.protocol.errors import ShardUnavailableError
from velo_serving.protocol.hits import COSTS, Asked, Costs, Ended, concat_hits, is_large, no_hits
from velo_serving.protocol.loops import LoopThread, converted
from velo_serving.protocol.requests import effort_of
from velo_serving.protocol.types import (
    Failure,
    Hits,
    SearchIndex,
    SearchRequest,
    ShardHealth,
    ShardReply,
)
from velo_serving.shard.moving import MoveSource
from velo_serving.shard.rows import ShardWriter, look_up
from velo_serving.transport.codec import import_pandas

T = TypeVar("T")

#: Deadlines are rounded up to this.
TIMEOUT_STEP_S = 0.1

#: Queries that go to the index in one call, plain ones and those with filters, metadata or text, and hits.
PART_QUERIES = 64
PART_FILTERED = 8
PART_HITS = 1024

#: Calls of one request at once, and the time of one of a heavy request: light ones wait for its end.
PARTS_AT_ONCE = 2
PART_S = 0.002

#: A heavy request waits for so long until no light one is at work. Only one is at work until there was no
#: light one for so long.
LIGHT_FIRST_S = 0.005
LIGHT_RECENT_S = 0.1
LIGHT_LOOK_S = 0.001

#: The interval at which a probe search checks for other searches that ended.
TRIAL_LOOK_S = 0.005

#: A shard whose searches take processor time of less than this share of a trial does not work on any.
WORK_SHARE_MIN = 0.02


log = logging.getLogger("velo_serving")

IndexOpener = Callable[[ShardSpec], SearchIndex]


def open_velo_index(spec: ShardSpec) -> SearchIndex:
    import velo  # here, so that the router and the client work where the native library is missing

    arguments: dict[str, Any] = {"io": spec.io, "plan": spec.plan, **spec.options}
    if spec.memory is not None:
        arguments["memory"] = spec.memory
    if spec.threads is not None:
        arguments["threads"] = spec.threads
    if spec.writable:
        arguments |= {"writable": True, "durability": spec.durability}
    try:
        index = velo.open(spec.path, **arguments)
    except NoSpaceError as error:
        if not spec.writable:
            raise
        log.error("shard %s takes no writes until it is restarted: %s", spec.name, error)
        del arguments["writable"], arguments["durability"]
        index = velo.open(spec.path, **arguments)
    _warm(index)
    opened: SearchIndex = index
    return opened


def _warm(index: Any) -> None:
    """Load the code of filters, full text and metadata before the first request."""
    with contextlib.suppress(VeloError):
        from_sql("a = 1")
    with contextlib.suppress(VeloError):  # most have no full-text index
        index.search(None, 1, text="a")
    info = index.info()
    columns = list(info.get("columns", ()))[:1]
    if columns:
        one = np.ones((1, int(info["dim"])), dtype=np.float32)
        with contextlib.suppress(VeloError):
            index.search(one, 1, filter={columns[0]: {"$exists": True}}, return_metadata=columns)


class Shard:
    """An index that answers requests.

    A shard whose index cannot be opened reports the reason; asking for its health tries again.
    """

    def __init__(self, spec: ShardSpec, opener: IndexOpener = open_velo_index) -> None:
        self.spec = spec
        self._opener = opener
        self._opening = threading.Lock()  # health and search may run in different threads
        self._index: SearchIndex | None = None
        self._health = ShardHealth()
        self._closed = False
        self._folder = self._leads_to = Path(spec.path)  # or the location where it was found
        self._ended = 0  # searches that the index has answered
        self._used = 0  # running calls, without those of `search_each`
        self._turns = _Turns()
        self._moves = MoveSource(spec.name)
        self._writer = ShardWriter(spec.name, spec.writable, self._moves)
        # Filters are compiled and rows read in a loop of their own: the loop that hears requests stays free.
        self._aside = LoopThread(f"velo-shard-{spec.name}")

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def _opened(self) -> SearchIndex:
        if self._index is None:
            raise ShardUnavailableError(f"shard {self.name} has no open index")
        return self._index

    def open(self) -> ShardHealth:
        import_pandas()
        with self._opening:
            if self._closed:
                raise ShardUnavailableError(f"shard {self.name} is closed")
            if self._index is None:
                node = socket.gethostname()
                found = shard_folder(
                    self.name,
                    (self.spec.path, *self.spec.locations),
                    checksum=self.spec.checksum,
                    writable=self.spec.writable,
                )
                spec = dataclasses.replace(self.spec, path=found)
                self._folder, self._leads_to = Path(found), Path(found).resolve()
                with _processors(spec):
                    index = self._opener(spec)
                try:
                    check_shard(Path(found), self.name, self.spec.uuid)
                except VeloError:
                    index.close()
                    raise
                self._health = _health_of(index, node, spec)
                self._index = index
            return self._now()

    def _now(self) -> ShardHealth:
        """Health with its variable parts."""
        index = self._opened
        # In this order: the link of a move of our own appears before the move has ended.
        if self._folder.resolve() != self._leads_to and not self._moves.leads_away:
            raise ShardUnavailableError(f"shard {self.name} was moved by another server: restart this one")
        count = len(index)  # sees what other processes wrote
        details = _details_of(index) | ({"moved": True} if self._moves.moved else {})
        return dataclasses.replace(self._health, n=count, details=details)

    def health(self) -> ShardHealth:
        """The state of the shard; opens the index if that failed before."""
        try:
            return self.open()
        except VeloError as error:
            return ShardHealth(node=socket.gethostname(), pid=os.getpid(), failure=Failure.of(error))

    def close(self) -> None:
        """Release the index; later searches fail as unavailable."""
        with self._opening:
            self._closed = True
            index, self._index = self._index, None
        self._writer.close()
        self._moves.end()
        if index is not None:
            index.close()
        self._aside.close()

    async def search(self, request: SearchRequest, timeout_s: float | None = None) -> ShardReply:
        """Answer a request, in parts, so that other requests wait for a part only."""
        index = self._opened
        with self.used():
            if request.is_heavy:
                return await self._aside.run(self._reply(index, request, timeout_s))
            with self._turns.light():
                if _is_plain(request):
                    return await self._reply(index, request, timeout_s)
                return await self._aside.run(self._reply(index, request, timeout_s))

    @property
    def moved(self) -> bool:
        """Whether another process serves the shard from another folder."""
        return self._moves.moved

    @property
    def idle(self) -> bool:
        """Whether no call runs."""
        return not (self._used or self._turns.at_work)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Count a running call: a shard that was moved is closed after the last one."""
        self._used += 1
        try:
            yield
        finally:
            self._used -= 1

    def counted(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Count a task as a running call, also before it first runs."""

        def ended(_: object) -> None:
            self._used -= 1

        self._used += 1
        task.add_done_callback(ended)
        return task

    def search_each(self, request: SearchRequest, timeout_s: float | None, ended: Ended) -> Asked:
        """Answer each query of a plain request separately; ``ended`` is called with rows that are done."""
        index = self._opened
        ask = getattr(index, "search_each", None)
        light = _Light(self._turns)

        def report(rows: Sequence[int], result: Any) -> None:
            light.leave(rows)
            if isinstance(result, VeloError):
                failure = Failure.of(result)
                ended(rows, failure if failure.row is None else dataclasses.replace(failure, row=0), ())
                return
            self._ended += len(rows)
            costs = [result.stats[name] for name in COSTS]
            ended(rows, Hits(result.ids, result.distances, result.counts), costs)

        asked: Asked | None = None
        if ask is not None:
            asked = ask(
                request.queries, request.k, timeout_s=_rounded(timeout_s), ended=report, **effort_of(request)
            )
        if asked is None:
            return _Tasks(self, request, timeout_s, ended)
        return light.enter(asked, len(request.queries))

    async def look_up(self, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if what == "move":
            return await self._moves.take(self._folder, arguments, self._writer.maintains)
        with self.used():
            return await asyncio.to_thread(look_up, self._opened, what, arguments)

    async def write(
        self, what: str, arguments: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Write rows, as ``ShardWriter.write``; canceling does not undo it."""
        return await self._writer.write(self._folder, self._opened, what, arguments, timeout_s)

    async def trial(self, timeout_s: float) -> bool:
        """Run a probe search until any search ends; False if none did, but the processor was at work."""
        index = self._opened
        request = SearchRequest(np.ones((1, self._health.dim), dtype=np.float32), 1)
        ended, worked_s = self._ended, _worked_s()
        own = asyncio.ensure_future(_search(index, request, timeout_s))
        # Time in which this process was awake: one that is starved ends no search, and is not hung.
        awake_s, last = 0.0, time.monotonic()
        try:
            while not own.done() and self._ended == ended and awake_s < timeout_s:
                await asyncio.wait({own}, timeout=TRIAL_LOOK_S)
                now = time.monotonic()
                awake_s += min(now - last, 2 * TRIAL_LOOK_S)
                last = now
            if self._ended != ended or (own.done() and not isinstance(own.exception(), SearchTimeoutError)):
                return True
            if _worked_s() - worked_s < timeout_s * WORK_SHARE_MIN:
                raise SearchTimeoutError(f"no search of shard {self.name} ended within {timeout_s:g} s")
            return False
        finally:
            own.cancel()

    async def _reply(self, index: SearchIndex, request: SearchRequest, timeout_s: float | None) -> ShardReply:
        try:
            return await self._answer(index, request, timeout_s)
        except Exception as error:
            return await _blame(index, request, error)

    async def _answer(self, index: SearchIndex, request: SearchRequest, timeout_s: float | None) -> Hits:
        count, heavy = len(request.queries), request.is_heavy
        most = max(1, min(PART_QUERIES if _is_plain(request) else PART_FILTERED, PART_HITS // request.k))
        if count == 0 or (count <= most and not heavy):
            return await self._ending(_search(index, request, timeout_s))
        size, start = 1 if heavy else most, 0
        answers: dict[int, Hits] = {}

        async def take() -> None:
            nonlocal size, start
            while start < count:
                first, start = start, min(start + size, count)
                rows = range(first, start)
                part = request.part(rows) if len(rows) < count else request
                async with self._turns.heavy() if heavy else contextlib.nullcontext():
                    began = time.monotonic()
                    answers[first] = await self._ending(_search(index, part, timeout_s))
                    took_s = time.monotonic() - began
                if heavy:
                    size = max(1, min(most, int(len(rows) * PART_S / max(took_s, 1e-6))))

        # As many at once as keep an index at work from one to the next; where a query takes long, one: others
        # wait for as many as there are.
        takers = [asyncio.ensure_future(take()) for _ in range(1 if most == 1 else PARTS_AT_ONCE)]
        try:
            await asyncio.gather(*takers)
        finally:
            for taker in takers:
                taker.cancel()
        found = [answers[first] for first in sorted(answers)]
        if is_large(*found):
            return await converted(concat_hits, found)
        return concat_hits(found)

    async def _ending(self, searching: Awaitable[Hits]) -> Hits:
        hits = await searching
        self._ended += 1
        return hits


@contextlib.contextmanager
def _processors(spec: ShardSpec) -> Iterator[None]:
    """Let this thread, and so those that it starts, run on the processors of a shard."""
    allowed = os.sched_getaffinity(0)
    if spec.processor is not None and spec.threads is not None:
        order = itertools.cycle(sorted(allowed))
        os.sched_setaffinity(
            0, itertools.islice(order, at := spec.processor % len(allowed), at + spec.threads)
        )
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class _Turns:
    """Light requests of a shard that are at work, and turns of heavy ones between them."""

    def __init__(self) -> None:
        self.at_work = 0
        self.ended_at = -math.inf
        self._heavy = 0

    @contextlib.contextmanager
    def light(self) -> Iterator[None]:
        self.at_work += 1
        try:
            yield
        finally:
            self.at_work -= 1
            self.ended_at = time.monotonic()

    @contextlib.asynccontextmanager
    async def heavy(self) -> AsyncIterator[None]:
        began = now = time.monotonic()
        while (self.at_work and now - began < LIGHT_FIRST_S) or (
            self._heavy and (self.at_work or now - self.ended_at < LIGHT_RECENT_S)
        ):
            await asyncio.sleep(LIGHT_LOOK_S)
            now = time.monotonic()
        self._heavy += 1
        try:
            yield
        finally:
            self._heavy -= 1


class _Light:
    """Light queries that end by themselves."""

    def __init__(self, turns: _Turns) -> None:
        self._turns = turns
        self._rows: set[int] = set()
        self._asked: Asked

    def enter(self, asked: Asked, count: int) -> Asked:
        self._asked = asked
        self._rows = set(range(count))
        self._turns.at_work += count
        return self

    def leave(self, rows: Sequence[int]) -> None:
        left = self._rows.intersection(rows)
        self._rows -= left
        self._turns.at_work -= len(left)
        self._turns.ended_at = time.monotonic()

    def cancel(self, row: int) -> None:
        self.leave([row])
        self._asked.cancel(row)


class _Tasks:
    """Searches of one query each, of an index that has no other way to let each end by itself."""

    def __init__(self, shard: Shard, request: SearchRequest, timeout_s: float | None, ended: Ended) -> None:
        async def ask(row: int) -> None:
            reply: ShardReply
            costs: Costs = ()
            try:
                reply = await shard.search(request.part([row]), timeout_s)
            except Exception as error:
                reply = Failure.of(error)
            if isinstance(reply, Hits):
                costs = [[getattr(reply, name)] for name in COSTS]
            ended([row], reply, costs)

        loop = asyncio.get_running_loop()
        self._tasks = [shard.counted(loop.create_task(ask(row))) for row in range(len(request.queries))]

    def cancel(self, row: int) -> None:
        self._tasks[row].cancel()


def _worked_s() -> float:
    """Processor time of this process without the calling thread."""
    return time.process_time() - time.thread_time()


def _is_plain(request: SearchRequest) -> bool:
    """Whether a query takes the interpreter less than a millisecond or two."""
    return request.filters is None and request.return_metadata is None and request.text is None


async def _search(index: SearchIndex, request: SearchRequest, timeout_s: float | None) -> Hits:
    columns = request.return_metadata
    options: dict[str, Any] = {
        "filter": _filter_argument(request),
        "return_metadata": None if columns is None else list(columns),
        "timeout_s": _rounded(timeout_s),
        **effort_of(request),
    }
    queries = request.queries
    if request.text is not None:
        given = {name: options[name] for name in ("filter", "return_metadata", "timeout_s")}
        return _of_words(await index.search_async(None, request.k, text=list(request.text), **given))
    if request.radius is not None:
        return _of_ranges(await index.range_search_async(queries, request.radius, limit=request.k, **options))
    if request.group_by is not None:
        options |= {"group_by": request.group_by, "group_size": request.group_hits}
        return _of_groups(await index.search_async(queries, request.k, **options))
    return _of_nearest(await index.search_async(queries, request.k, **options))


def _filter_argument(request: SearchRequest) -> Any:
    """One filter for all queries if possible, else one each."""
    filters = request.filters
    if filters is None or len(filters) == 1:
        return filters[0] if filters else None
    # In a list, text would be an id.
    return [from_sql(one) if isinstance(one, str) else one for one in filters]


def _rounded(timeout_s: float | None) -> float | None:
    """Round deadlines up: the index caches prepared searches by their options."""
    return None if timeout_s is None else max(1, math.ceil(timeout_s / TIMEOUT_STEP_S)) * TIMEOUT_STEP_S


async def _blame(index: SearchIndex, request: SearchRequest, error: Exception) -> Failure:
    """Describe a failure; with several filters, find the query of the invalid one."""
    if isinstance(error, FilterError) and request.filters is not None and len(request.filters) > 1:
        for query, one in enumerate(request.filters):
            if one is None:
                continue
            try:
                await index.search_async(request.queries[query : query + 1], 1, filter=one, timeout_s=1.0)
            except FilterError as culprit:
                return Failure.of(culprit, query=query)
            except VeloError:
                break  # another failure: report the first one
    return Failure.of(error)


def _of_words(result: Any) -> Hits:
    """Full-text hits; distances are negated scores."""
    counts = np.asarray(result.counts, dtype=np.int64)
    real = np.arange(result.ids.shape[1])[None, :] < counts[:, None]
    distances = np.where(real, -result.scores, np.inf).astype(np.float32)
    return _hits(result, np.asarray(result.ids), distances, counts, metadata=result.metadata)


def _of_nearest(result: Any) -> Hits:
    """A ``velo.SearchResult`` of a matrix of queries."""
    counts = np.asarray(result.counts, dtype=np.int64)
    ids, distances = np.asarray(result.ids), np.asarray(result.distances, dtype=np.float32)
    return _hits(result, ids, distances, counts, metadata=result.metadata)


def _of_ranges(result: Any) -> Hits:
    """A ``velo.RangeResult`` with each query's hits in a row of its own."""
    counts = np.asarray(result.counts, np.int64)
    places = np.arange(max(1, int(counts.max(initial=1))))[None, :] < counts[:, None]
    tables = None
    if result.metadata is not None:
        ends = result.lims[1:].tolist()
        starts = result.lims[:-1].tolist()
        tables = [result.metadata.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
    ids, distances = _in_rows(result.ids, result.distances, places)
    limited = np.asarray(result.limited, np.bool_)
    return _hits(result, ids, distances, counts, metadata=tables, limited=limited)


def _of_groups(result: Any) -> Hits:
    """A ``velo.GroupedResult`` with the hits of a query's groups one after another in a row."""
    sizes = np.asarray(result.group_sizes, np.int64)
    counts = sizes.sum(axis=1)
    places = np.arange(max(1, int(counts.max(initial=1))))[None, :] < counts[:, None]
    real = np.arange(result.ids.shape[-1])[None, None, :] < sizes[:, :, None]
    ids, distances = _in_rows(result.ids[real], result.distances[real], places)
    groups = [
        list(zip(values, row.tolist(), strict=False))
        for values, row in zip(result.groups, sizes, strict=True)
    ]
    return _hits(result, ids, distances, counts, metadata=result.metadata, groups=groups)


def _in_rows(flat_ids: Any, flat_distances: Any, places: Any) -> tuple[Any, Any]:
    ids, distances = no_hits(*places.shape, strings=flat_ids.dtype == object)
    ids[places], distances[places] = flat_ids, flat_distances
    return ids, distances


def _hits(result: Any, ids: Any, distances: Any, counts: Any, **further: Any) -> Hits:
    each = {name: result.stats.get(name) for name in COSTS}
    # A few numbers: the sum of a list is quicker than that of numpy.
    costs: dict[str, Any] = {name: 0 if one is None else sum(one.tolist()) for name, one in each.items()}
    return Hits(ids, distances, counts, **costs, **further)


def _uuid_of(info: Mapping[str, Any], spec: ShardSpec) -> str:
    """The uuid of an index; where rows may change, that of the built index and the inode of the folder."""
    folder = Path(spec.path)
    if spec.identity:
        return spec.identity
    if spec.writable or info.get("live"):
        built = ""
        with contextlib.suppress(VeloError):  # reported when the index is opened
            built = f"{built_uuid(folder)}-"
        return f"{built.removeprefix('-')}folder-{folder.stat().st_ino}"
    return str(info.get("uuid", ""))


def _details_of(index: Any) -> dict[str, Any]:
    """Facts that other processes may change, with the row format, from which a gateway converts bodies."""
    info = index.info()
    details = {
        "plan": info.get("plan", ""),
        "threads": int(info.get("threads", 0)),
        "ids": info.get("ids", ""),
        "columns": list(info.get("columns", ())),
    }
    live = info.get("live") or {}
    if not live.get("writable"):
        return details
    schema = pa.schema(list(index.get([]).schema)[1:])
    return details | {
        "writable": True,
        "durability": live["durability"],
        "dtype": info["dtype"],
        "numbered": live["numbered"],
        "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
    }


def _health_of(index: SearchIndex, node: str, spec: ShardSpec) -> ShardHealth:
    info = index.info()
    memory = info.get("memory_bytes", 0)
    device = info.get("device", "")
    return ShardHealth(
        uuid=_uuid_of(info, spec),
        n=int(info["n"]),
        dim=int(info["dim"]),
        metric=str(info["metric"]),
        node=node,
        pid=os.getpid(),
        memory_bytes=sum(memory.values()) if isinstance(memory, Mapping) else int(memory),
        device=str(device.get("name", "")) if isinstance(device, Mapping) else str(device),
    )
