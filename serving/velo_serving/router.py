"""The router: sends each request to all shards of a collection, gathers and merges their replies.

Plain Python on one event loop. It knows neither Ray nor HTTP; shards are channels, time is a clock that tests
crank.

A *lane* stands before every shard. Requests wait in it while the shard is busy, and the next call takes all
that wait (up to a limit): the cost of a call is shared under load, and nobody waits when there is none.

    lane:   up ──(call or probe says unavailable, call stalls, probes unanswered)──▶ down
            up ◀──────────────(a probe that began after that answers)───────────────  down

While a lane is down its requests fail at once, and the answer is partial instead of late. All waiting is
bounded: queries admitted, queries a call, calls in flight a shard, seconds a request, seconds a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from velo.errors import InvalidArgumentError, VeloError
from velo_serving.errors import (
    DeadlineExceededError,
    NoShardAnsweredError,
    QueueFullError,
    ShardUnavailableError,
    ShuttingDownError,
)
from velo_serving.grouping import fill_groups, follow_ups, thin_groups
from velo_serving.merge import merge
from velo_serving.types import (
    Answer,
    Failure,
    Hits,
    SearchRequest,
    ShardChannel,
    ShardFailure,
    ShardHealth,
    ShardReply,
)

__all__ = ["Clock", "LoopClock", "Observer", "Router", "RouterLimits", "ShardState", "Timer", "answer_of"]

#: Merging more distances than this leaves the event loop for a thread.
MERGE_INLINE_MAX = 20_000


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None:
        """Make it not happen."""


class Clock(Protocol):
    """Where the router gets time from."""

    def now(self) -> float:
        """Seconds since some moment; never goes back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once ``now() >= when``."""


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        """Seconds, monotonic."""
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back from the event loop."""
        return asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), callback)


class Observer(Protocol):
    """Told what happens, for metrics; its methods must be quick and must not raise."""

    def call_sent(self, shard: str, requests: int, queries: int) -> None:
        """One call to a shard began, holding so many requests and queries."""

    def call_ended(self, shard: str, seconds: float, outcome: str) -> None:
        """That call ended: "ok", "unavailable", "stalled" or "error"."""

    def shard_changed(self, shard: str, up: bool, reason: str) -> None:
        """A shard went down or came up."""

    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None:
        """A request ended: "complete", "partial", "rejected", "deadline", "unavailable" or "error"."""


class _Silent:
    def call_sent(self, shard: str, requests: int, queries: int) -> None:
        pass

    def call_ended(self, shard: str, seconds: float, outcome: str) -> None:
        pass

    def shard_changed(self, shard: str, up: bool, reason: str) -> None:
        pass

    def request_ended(self, outcome: str, queries: int, hits: Hits | None) -> None:
        pass


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """Every bound of a router.

    Attributes
    ----------
    queue_queries_max : int
        Queries admitted and not answered yet; more are refused with ``QueueFullError``.
    batch_queries_max : int
        Queries in one call to a shard; a single larger request is a call of its own.
    calls_in_flight_max : int
        Calls a shard works on at once. Two let one travel while the other is worked on.
    timeout_default_s, timeout_max_s : float
        Deadline of a request that names none, and the most it may name.
    stall_s : float
        A call this long past its last deadline is given up, and the shard counts as down.
    probe_interval_s, probe_down_interval_s : float
        How often a shard that is up, or down, is asked for its health.
    probe_timeout_s : float
        How long it may take to answer that.
    probe_misses_max : int
        So many probes in a row without an answer mean down; a shard under load may miss one.
    retry_after_s : float
        What a refused client is told.
    """

    queue_queries_max: int = 4096
    batch_queries_max: int = 256
    calls_in_flight_max: int = 2
    timeout_default_s: float = 10.0
    timeout_max_s: float = 60.0
    stall_s: float = 10.0
    probe_interval_s: float = 2.0
    probe_down_interval_s: float = 0.25
    probe_timeout_s: float = 5.0
    probe_misses_max: int = 3
    retry_after_s: float = 1.0

    def __post_init__(self) -> None:
        for name in (field.name for field in dataclasses.fields(self)):
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(f"{name} must be above zero", argument=name)


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard as the router sees it."""

    name: str
    state: Literal["up", "down"]
    reason: str
    waiting_requests: int
    calls_in_flight: int
    health: ShardHealth | None


class _Gather:
    """One request on its way: what its shards replied so far."""

    __slots__ = ("deadline", "done", "expired", "missing", "replies", "request")

    def __init__(self, request: SearchRequest, shard_count: int, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.replies: list[ShardReply | None] = [None] * shard_count
        self.missing = shard_count
        self.expired = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(self, shard: int, reply: ShardReply) -> None:
        if self.done.done():
            return  # too late: the caller has its answer
        assert self.replies[shard] is None
        self.replies[shard] = reply
        self.missing -= 1
        # What is wrong with the request itself is wrong at every shard: no need to hear it from all.
        if self.missing == 0 or (isinstance(reply, Failure) and reply.fault == "caller"):
            self.done.set_result(None)

    def expire(self) -> None:
        if not self.done.done():
            self.expired = True
            self.done.set_result(None)


class _Lane:
    """The way to one shard.

    Invariants: calls_in_flight <= calls_in_flight_max; before a lane that is down nobody waits.
    """

    def __init__(
        self, place: int, channel: ShardChannel, limits: RouterLimits, clock: Clock, observer: Observer
    ) -> None:
        self.channel = channel
        self.health: ShardHealth | None = None
        self.up = False
        self.reason = "not asked yet"
        self._place = place
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._waiting: dict[
            _Gather, None
        ] = {}  # in order of arrival; a dict, so that one can leave from the middle
        self._pump_is_due = False
        self._calls: set[asyncio.Task[None]] = set()
        self._falls = 0  # times this lane went down; a probe older than the last fall says nothing
        self._probe_misses = 0
        self._probe_timer: Timer | None = None
        self._probe_task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return self.channel.name

    @property
    def waiting_requests(self) -> int:
        return len(self._waiting)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def offer(self, gather: _Gather) -> None:
        if not self.up:
            gather.reply(self._place, self._down_failure())
            return
        self._waiting[gather] = None
        if not self._pump_is_due:
            # Not at once: what arrives in the same turn of the event loop travels in the same call.
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def withdraw(self, gather: _Gather) -> None:
        self._waiting.pop(gather, None)

    def _down_failure(self) -> Failure:
        return Failure("ShardUnavailableError", f"shard {self.name} is down: {self.reason}")

    def _pump(self) -> None:
        self._pump_is_due = False
        while self._waiting and self.up and len(self._calls) < self._limits.calls_in_flight_max:
            batch = self._take()
            task = asyncio.get_running_loop().create_task(self._call(batch))
            self._calls.add(task)
            task.add_done_callback(self._call_done)

    def _call_done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.result()  # _call handles every failure of a shard: what comes out here is a mistake of ours
        self._pump()

    def _take(self) -> list[_Gather]:
        batch: list[_Gather] = []
        queries = 0
        while self._waiting:
            gather = next(iter(self._waiting))
            count = len(gather.request.queries)
            if batch and queries + count > self._limits.batch_queries_max:
                break
            del self._waiting[gather]
            batch.append(gather)
            queries += count
        return batch

    async def _call(self, batch: list[_Gather]) -> None:
        started = self._clock.now()
        requests = [
            dataclasses.replace(gather.request, timeout_s=max(gather.deadline - started, 0.001))
            for gather in batch
        ]
        self._observer.call_sent(self.name, len(batch), sum(len(request.queries) for request in requests))
        call = asyncio.ensure_future(self.channel.search(requests))
        stalled = False

        def give_up() -> None:
            nonlocal stalled
            stalled = True
            call.cancel()

        stall_at = max(gather.deadline for gather in batch) + self._limits.stall_s
        timer = self._clock.call_at(stall_at, give_up)
        outcome = "ok"
        replies: Sequence[ShardReply]
        try:
            replies = await call
            if len(replies) != len(batch):
                raise RuntimeError(f"{len(replies)} replies to {len(batch)} requests")
        except asyncio.CancelledError:
            if not stalled:  # the lane closes
                call.cancel()
                for gather in batch:
                    gather.reply(self._place, self._down_failure())
                raise
            outcome = "stalled"
            self._fall(f"a call was not answered within {self._limits.stall_s:g} s of its deadline")
            replies = [self._down_failure()] * len(batch)
        except ShardUnavailableError as error:
            outcome = "unavailable"
            self._fall(error.message)
            replies = [self._down_failure()] * len(batch)
        except Exception as error:
            outcome = "error"
            # The whole call failed for a reason that is no request's: never blame the caller.
            failure = dataclasses.replace(Failure.of(error), fault="shard")
            replies = [failure] * len(batch)
        finally:
            timer.cancel()
        self._observer.call_ended(self.name, self._clock.now() - started, outcome)
        for gather, reply in zip(batch, replies, strict=True):
            gather.reply(self._place, reply)

    # ---- up and down ----

    def _fall(self, reason: str) -> None:
        self._falls += 1
        was_up, self.up, self.reason = self.up, False, reason
        if was_up:
            self._observer.shard_changed(self.name, False, reason)
        waiting, self._waiting = self._waiting, {}
        for gather in waiting:
            gather.reply(self._place, self._down_failure())
        if self._probe_task is None:
            self._probe_in(self._limits.probe_down_interval_s)

    def _rise(self, health: ShardHealth) -> None:
        was_up, self.up, self.reason = self.up, True, ""
        self.health = health
        if not was_up:
            self._observer.shard_changed(self.name, True, "")

    def _probe_in(self, seconds: float) -> None:
        if self._closed:
            return
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self._probe_timer = self._clock.call_at(self._clock.now() + seconds, self._probe_now)

    def _probe_now(self) -> None:
        if not self._closed and self._probe_task is None:
            self._probe_task = asyncio.get_running_loop().create_task(self.probe())

    async def probe(self) -> None:
        """Ask for health once, believe the answer, and arrange the next time."""
        falls = self._falls
        call = asyncio.ensure_future(self.channel.health())
        timed_out = False

        def give_up() -> None:
            nonlocal timed_out
            timed_out = True
            call.cancel()

        timer = self._clock.call_at(self._clock.now() + self._limits.probe_timeout_s, give_up)
        try:
            health = await call
        except asyncio.CancelledError:
            if not timed_out:
                call.cancel()
                raise
            self._probe_misses += 1
            if self._probe_misses >= self._limits.probe_misses_max or not self.up:
                self._fall(f"{self._probe_misses} health probes were not answered")
        except Exception as error:
            self._probe_misses = 0
            self._fall(str(error) or type(error).__name__)
        else:
            self._probe_misses = 0
            if health.failure is not None:
                self.health = health
                self._fall(f"{health.failure.kind}: {health.failure.message}")
            elif falls == self._falls:
                self._rise(health)
        finally:
            timer.cancel()
            self._probe_task = None
        limits = self._limits
        self._probe_in(limits.probe_interval_s if self.up else limits.probe_down_interval_s)

    async def close(self) -> None:
        self._closed = True
        self.up, self.reason = False, "the server is closing"
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        tasks = [*self._calls] + ([self._probe_task] if self._probe_task is not None else [])
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for gather in list(self._waiting):
            gather.reply(self._place, self._down_failure())
        self._waiting.clear()


class Router:
    """Fans a request out to every shard of one collection and merges what comes back in time.

    Parameters
    ----------
    name : str
        Name of the collection.
    channels : sequence of ShardChannel
        One a shard.
    limits : RouterLimits, optional
    clock : Clock, optional
    observer : Observer, optional
    """

    def __init__(
        self,
        name: str,
        channels: Sequence[ShardChannel],
        *,
        limits: RouterLimits | None = None,
        clock: Clock | None = None,
        observer: Observer | None = None,
    ) -> None:
        if not channels:
            raise InvalidArgumentError(f"collection {name!r} has no shards", argument="channels")
        self.name = name
        self.limits = limits or RouterLimits()
        self._clock: Clock = clock or LoopClock()
        self._observer: Observer = observer or _Silent()
        self._channels = tuple(channels)
        self._lanes = self._make_lanes()
        self._queries_admitted = 0
        self._closed = False

    def _make_lanes(self) -> list[_Lane]:
        return [
            _Lane(place, channel, self.limits, self._clock, self._observer)
            for place, channel in enumerate(self._channels)
        ]

    def observe(self, observer: Observer) -> None:
        """Report to another observer; before ``start``."""
        self._observer = observer
        self._lanes = self._make_lanes()

    @property
    def queries_admitted(self) -> int:
        """Queries taken in and not answered yet; never above ``limits.queue_queries_max``."""
        return self._queries_admitted

    @property
    def shards_up(self) -> int:
        """How many shards can be asked now."""
        return sum(lane.up for lane in self._lanes)

    @property
    def shards_total(self) -> int:
        """How many shards the collection has."""
        return len(self._lanes)

    def shards(self) -> list[ShardState]:
        """Return every shard as it stands."""
        return [
            ShardState(
                lane.name,
                "up" if lane.up else "down",
                lane.reason,
                lane.waiting_requests,
                lane.calls_in_flight,
                lane.health,
            )
            for lane in self._lanes
        ]

    async def start(self) -> None:
        """Ask every shard for its health once, and from then on regularly."""
        await asyncio.gather(*(lane.probe() for lane in self._lanes))

    async def close(self) -> None:
        """Stop probing, give up what is under way, refuse what comes."""
        self._closed = True
        await asyncio.gather(*(lane.close() for lane in self._lanes))

    async def search(self, request: SearchRequest) -> Answer:
        """Answer one request from all shards that reply by its deadline.

        Raises
        ------
        QueueFullError
            Too many queries wait already; nothing was sent.
        DeadlineExceededError
            The deadline passed before any shard replied.
        NoShardAnsweredError
            Every shard is down or failed, or one did and ``allow_partial`` is false.
        ShuttingDownError
            The router is closing.
        VeloError
            What the shards found wrong with the request.
        """
        outcome, hits = "error", None
        started = self._clock.now()
        try:
            answer = await self._search(request)
            if answer.thin_groups:
                answer = await self._fill(request, answer, started)
            outcome, hits = ("partial" if answer.partial else "complete"), answer.hits
            return answer
        except QueueFullError:
            outcome = "rejected"
            raise
        except DeadlineExceededError:
            outcome = "deadline"
            raise
        except (NoShardAnsweredError, ShuttingDownError):
            outcome = "unavailable"
            raise
        finally:
            self._observer.request_ended(outcome, len(request.queries), hits)

    async def _fill(self, request: SearchRequest, answer: Answer, started: float) -> Answer:
        """Ask all shards for the rows of groups that one of them may not have shown."""
        asked = self.limits.timeout_default_s if request.timeout_s is None else request.timeout_s
        for part in follow_ups(request, answer, self.limits.batch_queries_max):
            left_s = max(asked - (self._clock.now() - started), 0.001)
            more = await self._search(dataclasses.replace(part.request, timeout_s=left_s))
            answer = fill_groups(answer, request, part, more)
        return answer

    async def _search(self, request: SearchRequest) -> Answer:
        if self._closed:
            raise ShuttingDownError("the server is closing")
        count = len(request.queries)
        limits = self.limits
        if count > limits.queue_queries_max:
            raise InvalidArgumentError(
                f"a request of {count} queries is above the limit of {limits.queue_queries_max}",
                argument="queries",
            )
        if self._queries_admitted + count > limits.queue_queries_max:
            raise QueueFullError(
                f"{self._queries_admitted} queries wait already, the limit is {limits.queue_queries_max}",
                retry_after_s=limits.retry_after_s,
            )
        asked = limits.timeout_default_s if request.timeout_s is None else request.timeout_s
        deadline = self._clock.now() + min(asked, limits.timeout_max_s)
        gather = _Gather(request, len(self._lanes), deadline)
        timer = self._clock.call_at(deadline, gather.expire)
        self._queries_admitted += count
        try:
            for lane in self._lanes:
                lane.offer(gather)
            await gather.done
        finally:
            timer.cancel()
            self._queries_admitted -= count
            gather.done.cancel()  # when the caller went away: later replies find nobody
            for lane in self._lanes:
                lane.withdraw(gather)
        return await self._answer(gather)

    async def _answer(self, gather: _Gather) -> Answer:
        late = Failure("DeadlineExceededError", "no reply before the deadline", "deadline")
        replies = [
            (lane.name, late if reply is None else reply)
            for lane, reply in zip(self._lanes, gather.replies, strict=True)
        ]
        width = sum(reply.distances.shape[1] for _, reply in replies if isinstance(reply, Hits))
        if len(gather.request.queries) * width > MERGE_INLINE_MAX:
            return await asyncio.to_thread(answer_of, self.name, replies, gather.request)
        return answer_of(self.name, replies, gather.request)


def answer_of(collection: str, replies: Sequence[tuple[str, ShardReply]], request: SearchRequest) -> Answer:
    """Make one answer of what each shard replied, or raise if there is none to make.

    Parameters
    ----------
    collection : str
    replies : sequence of (str, ShardReply)
        Of every shard, by name.
    request : SearchRequest

    Raises
    ------
    DeadlineExceededError, NoShardAnsweredError, VeloError
        As in ``Router.search``.
    """
    parts = [reply for _, reply in replies if isinstance(reply, Hits)]
    failures = [ShardFailure(name, reply) for name, reply in replies if isinstance(reply, Failure)]
    for one in failures:
        if one.failure.fault == "caller":
            raise one.failure.to_error()
    if not parts or (failures and not request.allow_partial):
        raise _refusal(collection, failures, len(parts), len(replies))
    hits = merge(parts, request)
    thin = thin_groups(parts, hits, request) if request.group_by is not None else ()
    return Answer(hits, len(parts), len(replies), tuple(failures), thin)


def _refusal(collection: str, failures: Sequence[ShardFailure], answered: int, total: int) -> VeloError:
    told = "; ".join(f"{one.shard}: {one.failure.message}" for one in failures)
    message = f"{answered} of {total} shards of {collection!r} answered ({told})"
    if any(one.failure.fault == "deadline" for one in failures):
        return DeadlineExceededError(message)
    return NoShardAnsweredError(message)
