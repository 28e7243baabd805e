"""The router: sends each request to all shards of a collection and merges their replies.

Plain Python on one event loop, without Ray and HTTP; shards are channels, and tests replace the clock. A
queue (``shard_queue.py``) precedes every shard. All waiting is bounded: admitted queries, their waiting time,
queries in flight at a shard, and the time of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from velo.errors import InvalidArgumentError
from velo_serving.protocol.errors import (
    DeadlineExceededError,
    NoShardAnsweredError,
    QueueFullError,
    ShuttingDownError,
    outcome_of,
)
from velo_serving.protocol.hits import ids_of_hits, is_large, replace_rows
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.loops import Clock, LoopClock, converted
from velo_serving.protocol.spans import Observer, span
from velo_serving.protocol.types import (
    Answer,
    Failure,
    Hits,
    SearchRequest,
    ShardChannel,
    ShardFailure,
    ShardHealth,
    ShardIdentity,
    ShardReply,
)
from velo_serving.routing.merge import fill_groups, follow_ups, merge, thin_groups
from velo_serving.routing.replicas import Replicas
from velo_serving.routing.shard_queue import PendingRequest, ShardQueue, ShardState
from velo_serving.routing.shares import Shares, short_of

LATE: Final = Failure("DeadlineExceededError", "no reply before the deadline", "deadline")


class Router:
    """Sends requests to every shard of one collection and merges the replies.

    ``channels`` has one for each shard, or one for each replica of each shard. ``identities`` are those of
    the shards; in place of None, the first that a shard reports.
    """

    def __init__(
        self,
        name: str,
        channels: Sequence[ShardChannel | Sequence[ShardChannel]],
        *,
        limits: RouterLimits | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
        identities: Sequence[ShardIdentity | None] | None = None,
    ) -> None:
        if not channels:
            raise InvalidArgumentError(f"collection {name!r} has no shards", argument="channels")
        self.name = name
        self.limits = limits or RouterLimits()
        self._clock: Clock = clock or LoopClock()
        self._observer: Observer = observer or Observer()
        self._channels = tuple(tuple(one) if isinstance(one, Sequence) else (one,) for one in channels)
        self._identities = tuple(identities) if identities is not None else (None,) * len(self._channels)
        #: Called with the number of the generation that a shard says comes after its own.
        self.on_successor: Callable[[int], None] | None = None
        #: Requests that will search here, or do: it is not closed before they have ended.
        self.holders = 0
        self._shards = self._make_shards()
        self._names = {place: shard.name for place, shard in enumerate(self._shards)}
        self._shares = Shares(len(self._shards))
        self._queries_admitted = 0
        self._closed = False

    def _make_shards(self) -> list[Replicas]:
        return [
            Replicas(
                place,
                channels[0].name.partition("/")[0],
                channels,
                self.limits,
                self._clock,
                self._observer,
                identity,
                self._report_health,
            )
            for place, (channels, identity) in enumerate(zip(self._channels, self._identities, strict=True))
        ]

    def _report_health(self, health: ShardHealth) -> None:
        rows = [shard.health.n for shard in self._shards if shard.health is not None]
        if len(rows) == len(self._shards):
            self._shares.note_rows(max(rows), sum(rows))
        if health.successor and self.on_successor is not None:
            self.on_successor(health.successor)

    @property
    def _queues(self) -> list[ShardQueue]:
        return [queue for shard in self._shards for queue in shard.queues]

    def observe(self, observer: Observer) -> None:
        """Report to another observer; before ``start``."""
        self._observer = observer
        self._shards = self._make_shards()

    @property
    def queries_admitted(self) -> int:
        """Queries taken in and not answered yet; never above ``limits.queue_queries_max``."""
        return self._queries_admitted

    @property
    def shards_up(self) -> int:
        """The number of shards that can be asked now."""
        return sum(shard.up for shard in self._shards)

    @property
    def shards_total(self) -> int:
        """The number of shards of the collection."""
        return len(self._shards)

    def shards(self) -> list[ShardState]:
        """Tell how every shard is, or every replica of each."""
        return [queue.state() for queue in self._queues]

    async def start(self) -> None:
        """Ask every shard for its health once, and from then on regularly."""
        await asyncio.gather(*(queue.probe() for queue in self._queues))

    async def close(self) -> None:
        """Stop probing, give up what is under way, refuse what comes."""
        self._closed = True
        await asyncio.gather(*(queue.close() for queue in self._queues))

    async def search(self, request: SearchRequest) -> Answer:
        """Answer one request from all shards that reply by its deadline."""
        outcome, hits = "error", None
        started = self._clock.now()
        try:
            count = len(request.queries)
            facts = {"velo.collection": self.name, "velo.queries": count, "velo.k": request.k}
            with span("velo.search", **facts) as one:
                answer = await self._search(request)
                if answer.thin_groups:
                    answer = await self._fill(request, answer, started)
                one.note(**{"velo.reads": answer.hits.reads, "velo.shards_answered": answer.shards_answered})
            if answer.partial:
                self._observer.answer_partial(answer.failures)
            outcome, hits = ("partial" if answer.partial else "complete"), answer.hits
            return answer
        except Exception as error:
            outcome = outcome_of(error)
            raise
        finally:
            self._observer.request_ended(outcome, len(request.queries), hits)

    async def look_up(
        self,
        what: str,
        arguments: Mapping[str, Any],
        timeout_s: float | None = None,
    ) -> list[tuple[str, dict[str, Any] | Failure]]:
        """Look up rows in all shards."""
        everywhere = dict.fromkeys(range(len(self._shards)), arguments)
        return await self.look_up_each(what, everywhere, timeout_s)

    async def look_up_each(
        self,
        what: str,
        arguments: Mapping[int, Mapping[str, Any]],
        timeout_s: float | None = None,
    ) -> list[tuple[str, dict[str, Any] | Failure]]:
        """Look up different rows in some shards."""
        replies = await self._each(
            arguments, timeout_s, lambda shard, asked, limit_s: shard.look_up(what, asked, limit_s)
        )
        for reply in replies.values():
            if isinstance(reply, Failure) and reply.fault == "caller":
                raise reply.to_error()
        return [(self._shards[place].name, reply) for place, reply in replies.items()]

    async def write(
        self, what: str, arguments: Mapping[int, Mapping[str, Any]], timeout_s: float | None = None
    ) -> dict[int, dict[str, Any] | Failure]:
        """Write rows in some shards; each write is atomic in its shard."""
        return await self._each(
            arguments, timeout_s, lambda shard, asked, limit_s: shard.write(what, asked, limit_s)
        )

    async def _each(
        self,
        arguments: Mapping[int, Mapping[str, Any]],
        timeout_s: float | None,
        ask: Callable[[Replicas, Mapping[str, Any], float], Awaitable[dict[str, Any] | Failure]],
    ) -> dict[int, dict[str, Any] | Failure]:
        """Ask some shards concurrently; together they count as one query."""
        if self._closed:
            raise ShuttingDownError("the server is closing")
        if self._queries_admitted >= self.limits.queue_queries_max:
            raise QueueFullError(f"{self._queries_admitted} queries wait already")
        limit_s = self._limit_s(timeout_s)
        self._queries_admitted += 1
        try:
            replies = await asyncio.gather(
                *(ask(self._shards[place], asked, limit_s) for place, asked in arguments.items())
            )
        finally:
            self._queries_admitted -= 1
        return dict(zip(arguments, replies, strict=True))

    def _limit_s(self, timeout_s: float | None) -> float:
        return min(timeout_s or self.limits.timeout_default_s, self.limits.timeout_max_s)

    def note_write(self, verb: str, outcome: str, rows: int) -> None:
        """Report the end of a write to the observer."""
        self._observer.write_ended(verb, outcome, rows)

    @property
    def healths(self) -> list[ShardHealth | None]:
        """The last health of each shard; None where it never answered."""
        return [shard.health for shard in self._shards]

    @property
    def rows(self) -> int | None:
        """Rows of all shards, when they were last asked; None where one never answered."""
        healths = [shard.health for shard in self._shards]
        return None if None in healths else sum(one.n for one in healths if one is not None)

    @property
    def names(self) -> list[str]:
        """The names of the shards."""
        return list(self._names.values())

    async def _fill(self, request: SearchRequest, answer: Answer, started: float) -> Answer:
        """Ask all shards for missing rows of groups."""
        limit_s = self.limits.timeout_default_s if request.timeout_s is None else request.timeout_s
        for part in follow_ups(request, answer, self.limits.in_flight_queries_max):
            left_s = max(limit_s - (self._clock.now() - started), 0.001)
            more = await self._search(structs.replace(part.request, timeout_s=left_s, of_heavy=True))
            answer = fill_groups(answer, request, part, more)
        return answer

    async def _search(self, request: SearchRequest) -> Answer:
        """Ask each shard for its share of the answer, and those that may hold more for all of it."""
        self._admit(request)
        started = self._clock.now()
        part = self._shares.of(request)
        asked = part if self._shares.suffice else request
        replies = await self._ask(asked, self._names)
        answer = await self._answer(replies, request)
        if part is request:
            return answer
        found = {place: reply for place, reply in replies.items() if isinstance(reply, Hits)}
        short = short_of(list(found.values()), answer.hits, part.k)
        rows = np.flatnonzero(short.any(axis=0))
        self._shares.note(len(rows), len(request.queries))
        if asked is request or not len(rows):
            return answer
        places = np.array(list(found))[short.any(axis=1)].tolist()
        left_s = max(self._limit_s(request.timeout_s) - (self._clock.now() - started), 0.001)
        more = await self._ask(
            request.part(rows.tolist(), timeout_s=left_s), {place: self._names[place] for place in places}
        )
        work = partial(_replaced, found, rows, more)
        replies |= await converted(work) if is_large(*found.values()) else work()
        return await self._answer(replies, request)

    async def _ask(self, request: SearchRequest, names: Mapping[int, str]) -> dict[int, ShardReply]:
        """The replies of some shards by the deadline of a request."""
        deadline = self._clock.now() + self._limit_s(request.timeout_s)
        shards, count = [self._shards[place] for place in names], len(request.queries)
        pending = PendingRequest(request, names, deadline)
        timer = self._clock.call_at(deadline, pending.expire)
        self._queries_admitted += count
        # A silent shard is asked where nothing else can be: a late answer is better than none.
        complete = not request.allow_partial or not any(shard.responsive for shard in self._shards)
        try:
            for shard in shards:
                shard.offer(pending, complete)
            await pending.done
        finally:
            timer.cancel()
            self._queries_admitted -= count
            pending.spans.close()
            pending.done.cancel()
            for shard in shards:
                shard.withdraw(pending)
        return {place: pending.replies.get(place, LATE) for place in names}

    def _admit(self, request: SearchRequest) -> None:
        """Refuse a request that is too large, or would spend most of its time in the queue."""
        if self._closed:
            raise ShuttingDownError("the server is closing")
        count, limits = len(request.queries), self.limits
        if count > limits.queue_queries_max:
            raise InvalidArgumentError(
                f"a request of {count} queries is above the limit of {limits.queue_queries_max}",
                argument="queries",
            )
        wait_s = max([shard.wait_s(request.is_heavy) for shard in self._shards])
        if self._queries_admitted + count > limits.queue_queries_max:
            raise QueueFullError(
                f"{self._queries_admitted} queries wait already, the limit is {limits.queue_queries_max}",
                retry_after_s=wait_s or 1.0,
            )
        allowed_s = min(limits.queue_wait_max_s, self._limit_s(request.timeout_s) / 2)
        if wait_s > allowed_s:
            raise QueueFullError(
                f"{self._queries_admitted} queries wait already, the next one would wait for {wait_s:.1f} s",
                retry_after_s=wait_s - allowed_s / 2,
            )

    async def _answer(self, replies: Mapping[int, ShardReply], request: SearchRequest) -> Answer:
        named = [(name, replies[place]) for place, name in self._names.items()]
        if is_large(*(reply for _, reply in named if isinstance(reply, Hits))):
            return await converted(answer_of, self.name, named, request)
        return answer_of(self.name, named, request)


def _replaced(
    found: Mapping[int, Hits], rows: npt.NDArray[np.intp], more: Mapping[int, ShardReply]
) -> dict[int, ShardReply]:
    """Replies of shards, with those of a second request for some rows."""
    return {
        place: reply if isinstance(reply, Failure) else replace_rows(found[place], rows, reply)
        for place, reply in more.items()
    }


def answer_of(collection: str, replies: Sequence[tuple[str, ShardReply]], request: SearchRequest) -> Answer:
    """Merge the replies of all shards, or raise if too few answered."""
    parts = [reply for _, reply in replies if isinstance(reply, Hits)]
    failures = [ShardFailure(name, reply) for name, reply in replies if isinstance(reply, Failure)]
    for one in failures:
        if one.failure.fault == "caller":
            raise one.failure.to_error()
    if not parts or (failures and not request.allow_partial):
        raise refusal_of(collection, failures, len(parts), len(replies))
    hits = merge(parts, request)
    thin = thin_groups(parts, hits, request) if request.group_by is not None else ()
    homes = homes_of(replies, hits) if request.return_vectors else {}
    return Answer(hits, len(parts), len(replies), tuple(failures), thin, homes=homes)


def homes_of(replies: Sequence[tuple[str, ShardReply]], hits: Hits) -> dict[Any, int]:
    kept = set(ids_of_hits(hits))
    return {
        one: place
        for place, (_, reply) in enumerate(replies)
        if isinstance(reply, Hits)
        for one in ids_of_hits(reply)
        if one in kept
    }


def refusal_of(
    collection: str, failures: Sequence[ShardFailure], answered: int, total: int
) -> DeadlineExceededError | NoShardAnsweredError:
    reasons = "; ".join(f"{one.shard}: {one.failure.message}" for one in failures)
    message = f"{answered} of {total} shards of {collection!r} answered ({reasons})"
    if any(one.failure.fault == "deadline" for one in failures):
        return DeadlineExceededError(message)
    return NoShardAnsweredError(message)
