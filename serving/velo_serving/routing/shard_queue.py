"""The queue of one shard: waiting requests, requests in flight, and the state of the shard.

Every request is a call of its own, so a slow query delays no other. Requests wait while the shard has enough
to do; heavy ones wait apart from others.

    up ──(connection lost, or requests in flight and no answer to probe searches for a second)──▶ down
    up ◀──(healthy, the same index, and an answer to a probe search)───────────────────────────── down

A health answer alone proves nothing: a shard with a stuck disk still sends one from memory. While a shard is
down its requests fail at once, and answers are partial instead of late. A shard that leaves the first probe
search unanswered is ``silent`` but up: a stall of a process is no reason to fail its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from velo.errors import SearchTimeoutError, VeloError
from velo_serving.protocol.errors import DeadlineExceededError, ShardUnavailableError, WrongShardError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.loops import Clock, Timer
from velo_serving.protocol.spans import Observer, ShardSpans
from velo_serving.protocol.types import (
    Failure,
    SearchRequest,
    ShardChannel,
    ShardHealth,
    ShardIdentity,
    ShardReply,
)

T = TypeVar("T")

#: The decay of former replies in the rate of a shard.
RATE_MEMORY = 0.98

#: The number of answered queries before the rate counts.
RATE_QUERIES_MIN = 32

#: A time limit passes in steps of a minimal length. A step that takes longer than ``STEP_LATE`` times its
#: length counts as that: the process was suspended.
STEPS = 20
STEP_MIN_S = 0.01
STEP_LATE = 1.5

#: The shard gets this share of the time of a probe search, so that its answer arrives.
TRIAL_SHARE = 0.75

#: The decay of the longest time of a probe search.
SLOW_MEMORY = 0.9


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard as the router sees it."""

    name: str
    state: Literal["up", "down"]
    reason: str
    waiting_requests: int
    calls_in_flight: int
    health: ShardHealth | None


class PendingRequest:
    """One request on its way to the shards of ``names``, by place: what they replied so far."""

    __slots__ = ("deadline", "done", "heavy", "missing", "replies", "request", "spans")

    def __init__(self, request: SearchRequest, names: Mapping[int, str], deadline: float) -> None:
        self.request = request
        self.heavy = request.is_heavy
        self.deadline = deadline
        self.replies: dict[int, ShardReply] = {}
        self.missing = len(names)
        self.spans = ShardSpans(names)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reply(self, shard: int, reply: ShardReply) -> None:
        if self.done.done():
            return  # too late: the caller has its answer
        assert shard not in self.replies
        self.replies[shard] = reply
        self.spans.reply(shard, reply)
        self.missing -= 1
        # What is wrong with the request itself is wrong at every shard: no need to hear it from all.
        if self.missing == 0 or (isinstance(reply, Failure) and reply.fault == "caller"):
            self.done.set_result(None)

    def expire(self) -> None:
        """Complete the request at its deadline with the replies so far."""
        if not self.done.done():
            self.done.set_result(None)


class _Sent(NamedTuple):
    at: float
    queries: int
    future: asyncio.Future[ShardReply]


class _Rate:
    """The time that a busy shard takes for a query, over about a hundred replies."""

    __slots__ = ("_busy_s", "_last", "_queries")

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._queries = 0.0
        self._last = 0.0

    def reply(self, sent_at: float, now: float, queries: int) -> None:
        self._busy_s = self._busy_s * RATE_MEMORY + (now - max(sent_at, self._last))
        self._queries = self._queries * RATE_MEMORY + queries
        self._last = now

    @property
    def seconds_per_query(self) -> float:
        """Zero if too few queries were answered."""
        return self._busy_s / self._queries if self._queries >= RATE_QUERIES_MIN else 0.0


class _Load:
    """Requests of one kind, heavy or not: those of the other kind never wait for them here."""

    __slots__ = ("in_flight", "queries_in_flight", "queries_waiting", "rate", "waiting")

    def __init__(self) -> None:
        # In order of arrival; dicts, so that one can leave from the middle. Who waits: since when.
        self.waiting: dict[PendingRequest, float] = {}
        self.in_flight: dict[PendingRequest, _Sent] = {}
        self.queries_waiting = self.queries_in_flight = 0
        self.rate = _Rate()

    @property
    def wait_s(self) -> float:
        return (self.queries_waiting + self.queries_in_flight) * self.rate.seconds_per_query

    def clear(self) -> None:
        self.waiting, self.in_flight = {}, {}
        self.queries_waiting = self.queries_in_flight = 0


class ShardQueue:
    """The queue of one shard.

    Queries in flight of either kind stay within their limit, except for a single larger request. A queue that
    is down holds no requests. A shard keeps its identity, which is ``identity`` or the first one reported.
    ``deliver`` is called with each reply, ``on_silent`` when the shard becomes silent, and ``on_health`` with
    the health of the right shard.
    """

    def __init__(
        self,
        channel: ShardChannel,
        limits: RouterLimits,
        clock: Clock,
        observer: Observer,
        deliver: Callable[[ShardQueue, PendingRequest, ShardReply], None],
        on_silent: Callable[[ShardQueue], None],
        identity: ShardIdentity | None = None,
        on_health: Callable[[ShardHealth], None] | None = None,
    ) -> None:
        self.channel = channel
        self.health: ShardHealth | None = None
        self.up = False
        self.silent = False
        self.reason = "not asked yet"
        self._kind = ShardUnavailableError.__name__
        self._deliver = deliver
        self._on_silent = on_silent
        self._on_health = on_health
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._identity = identity
        self._light, self._heavy = self._loads = _Load(), _Load()
        self._sign_at = 0.0  # when the shard last showed that it answers, or works
        self._ended_at = 0.0  # when it last showed that a search ended
        self._slow_trial_s = 0.0  # what a trial takes at worst where processors are short; it fades
        self._outages = 0  # an older probe says nothing
        self._quiet_timer: Timer | None = None
        self._trial: asyncio.Task[None] | None = None
        self._probe_timer: Timer | None = None
        self._probe_task: asyncio.Task[None] | None = None
        self._closed = False
        channel.watch(self._lost)

    @property
    def name(self) -> str:
        return self.channel.name

    @property
    def queries(self) -> int:
        return sum(load.queries_waiting + load.queries_in_flight for load in self._loads)

    def wait_s(self, heavy: bool) -> float:
        """The expected wait of a new request; zero if unknown."""
        return (self._heavy if heavy else self._light).wait_s

    def state(self) -> ShardState:
        return ShardState(
            self.name,
            "up" if self.up else "down",
            self.reason,
            sum(len(load.waiting) for load in self._loads),
            sum(len(load.in_flight) for load in self._loads),
            self.health,
        )

    # ---- requests ----

    def offer(self, pending: PendingRequest) -> None:
        """Send a request, let it wait, or fail it at once."""
        if not self.up:
            self._deliver(self, pending, self.failure())
            return
        load = self._heavy if pending.heavy else self._light
        load.waiting[pending] = self._clock.now()
        load.queries_waiting += len(pending.request.queries)
        self._pump(load)

    def withdraw(self, pending: PendingRequest) -> None:
        load = self._heavy if pending.heavy else self._light
        if pending in load.waiting:
            del load.waiting[pending]
            load.queries_waiting -= len(pending.request.queries)
            return
        sent = load.in_flight.pop(pending, None)
        if sent is not None:
            load.queries_in_flight -= sent.queries
            sent.future.cancel()
            self._observer.call_ended(self.name, self._clock.now() - sent.at, "canceled")
            self._pump(load)

    async def look_up(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Look up without waiting in the queue; failures do not affect the state of the shard."""
        return await self._in_time(self.channel.look_up(what, arguments, timeout_s), timeout_s)

    async def write(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Write without waiting in the queue; after a timeout the outcome is unknown."""
        if not self.up:
            raise ShardUnavailableError(self.failure().message)
        try:
            return await self._in_time(self.channel.write(what, arguments, timeout_s), timeout_s)
        except ShardUnavailableError as error:
            raise ShardUnavailableError(f"{error.message}; it may have been written") from None
        except SearchTimeoutError:
            raise DeadlineExceededError(
                f"shard {self.name} did not answer within {timeout_s:g} s; it may have been written"
            ) from None

    def failure(self) -> Failure:
        if self.up:
            return Failure(ShardUnavailableError.__name__, f"shard {self.name} is silent: {self.reason}")
        return Failure(self._kind, f"shard {self.name} is down: {self.reason}")

    def _pump(self, load: _Load) -> None:
        while load.waiting and self.up:
            pending = next(iter(load.waiting))
            queries = len(pending.request.queries)
            if load.in_flight and load.queries_in_flight + queries > self._limits.in_flight_queries_max:
                break
            since = load.waiting.pop(pending)
            load.queries_waiting -= queries
            now = self._clock.now()
            future = self.channel.submit(pending.request, max(pending.deadline - now, 0.001))
            load.in_flight[pending] = _Sent(now, queries, future)
            load.queries_in_flight += queries
            self._observer.call_sent(self.name, queries, now - since)
            future.add_done_callback(lambda future, pending=pending: self._ended(pending, future))  # type: ignore[misc]
        if load.in_flight and self._quiet_timer is None and self._trial is None:
            self._listen()

    def _ended(self, pending: PendingRequest, future: asyncio.Future[ShardReply]) -> None:
        load = self._heavy if pending.heavy else self._light
        sent = load.in_flight.get(pending)
        if sent is None or sent.future is not future:
            if not future.cancelled():
                future.exception()  # the request was abandoned; this marks the exception as seen
            return
        now = self._clock.now()
        reply: ShardReply
        outcome = "ok"
        error = ShardUnavailableError("the call was given up") if future.cancelled() else future.exception()
        if isinstance(error, ShardUnavailableError):
            self._mark_down(error.message, detail=error.detail)  # fails all requests, this one included
            return
        if error is not None:
            outcome = "error"
            # The call failed for a reason that is not the request's: never blame the caller.
            reply = dataclasses.replace(Failure.of(error), fault="shard")
        else:
            reply = future.result()
        if isinstance(reply, Failure) and reply.fault == "shard":
            self._observer.shard_failed(self.name, reply)
        del load.in_flight[pending]
        load.queries_in_flight -= sent.queries
        load.rate.reply(sent.at, now, sent.queries)
        self._ended_at = now
        self._note_sign()
        self._observer.call_ended(self.name, now - sent.at, outcome)
        self._deliver(self, pending, reply)
        self._pump(load)

    # ---- is it hung? ----

    def _listen(self) -> None:
        """Arm the timer that detects silence."""
        due = max(self._sign_at, self._oldest_at()) + self._limits.quiet_s
        self._quiet_timer = self._clock.call_at(due, self._when_quiet)

    def _when_quiet(self) -> None:
        self._quiet_timer = None
        if not (self.up and any(load.in_flight for load in self._loads)):
            return
        if self._clock.now() < max(self._sign_at, self._oldest_at()) + self._limits.quiet_s:
            self._listen()
        else:
            self._trial = asyncio.get_running_loop().create_task(self._run_probe_search())

    async def _run_probe_search(self) -> None:
        """Repeat a probe search until the shard shows a sign, or is down."""
        outages, outcome = self._outages, None
        silent_s = self._limits.quiet_s
        try:
            while outcome is None:
                began = self._clock.now()
                in_flight_s = sum(one.queries_in_flight * one.rate.seconds_per_query for one in self._loads)
                timeout_s = max(self._limits.trial_s, 2.0 * self._slow_trial_s) + 2.0 * in_flight_s
                outcome = await self._on_trial(timeout_s)
                if outages != self._outages or self._sign_at > began:
                    break
                if outcome is None:
                    silent_s += timeout_s
                    self.reason = f"it answered nothing for {1000 * silent_s:.0f} ms, not even a probe search"
                    if silent_s >= self._limits.silence_max_s:
                        self._mark_down(self.reason, "hung")
                        break
                    if not self.silent:
                        self.silent = True
                        self._on_silent(self)
        except ShardUnavailableError as error:
            if outages == self._outages:
                self._mark_down(error.message, detail=error.detail)
        finally:
            self._trial = None
        if outages != self._outages:
            return
        now = self._clock.now()
        if outcome is not None:
            self._note_sign()
        if outcome:
            self._ended_at = now
        if outcome is False and now - max(self._ended_at, self._oldest_at()) > self._limits.busy_max_s:
            self._mark_down(f"no search ended for {self._limits.busy_max_s:g} s, though it works", "hung")
        for load in self._loads:
            self._pump(load)

    def _note_sign(self) -> None:
        self._sign_at = self._clock.now()
        if self.silent:
            self.silent, self.reason = False, ""

    def _oldest_at(self) -> float:
        oldest = (sent.at for load in self._loads for sent in itertools.islice(load.in_flight.values(), 1))
        return min(oldest, default=self._clock.now())

    async def _on_trial(self, timeout_s: float) -> bool | None:
        """Whether a probe search ends in time; False if the shard is at work, None without an answer."""
        began = self._clock.now()
        with contextlib.suppress(SearchTimeoutError):
            outcome = await self._in_time(self.channel.trial(TRIAL_SHARE * timeout_s), timeout_s)
            took_s = self._clock.now() - began
            self._slow_trial_s = max(took_s, SLOW_MEMORY * self._slow_trial_s)
            return outcome
        return None

    async def _in_time(self, asking: Coroutine[Any, Any, T], timeout_s: float) -> T:
        call = asyncio.ensure_future(asking)
        with self._time_limit(timeout_s, call.cancel):
            try:
                return await call
            except asyncio.CancelledError:
                if not call.cancelled():
                    call.cancel()
                    raise  # the queue closes
                raise SearchTimeoutError(f"no answer within {timeout_s:g} s") from None

    @contextlib.contextmanager
    def _time_limit(self, seconds: float, give_up: Callable[[], object]) -> Iterator[None]:
        """Call ``give_up`` after a time in which this process was running.

        A starved or busy process reads answers late, which must not count against the shard. So time passes
        in steps, and a step that ends late counts once.
        """
        step_s = min(max(seconds / STEPS, STEP_MIN_S), seconds)
        left_s, last = seconds, self._clock.now()
        timer: Timer

        def look() -> None:
            nonlocal left_s, last
            now = self._clock.now()
            left_s -= min(now - last, step_s * STEP_LATE)
            last = now
            if left_s > STEP_MIN_S / 10:
                arm()
            else:
                give_up()

        def arm() -> None:
            nonlocal timer
            timer = self._clock.call_at(last + min(step_s, left_s), look)

        arm()
        try:
            yield
        finally:
            timer.cancel()

    # ---- up and down ----

    def _lost(self, reason: str) -> None:
        if self.up and not self._closed:
            self._mark_down(reason)

    def _mark_down(
        self,
        reason: str,
        outcome: str = "unavailable",
        kind: str = ShardUnavailableError.__name__,
        detail: str = "",
    ) -> None:
        self._outages += 1
        self._kind = kind
        was_up, self.up, self.silent, self.reason = self.up, False, False, reason
        if was_up or self._outages == 1:
            self._observer.shard_changed(self.name, False, f"{reason} ({detail})" if detail else reason)
        self._fail_all(outcome)
        self.channel.reset()
        if self._probe_task is None:
            self._probe_in(self._limits.probe_down_interval_s)

    def _fail_all(self, outcome: str) -> None:
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
            self._quiet_timer = None
        now = self._clock.now()
        waiting = [pending for load in self._loads for pending in load.waiting]
        in_flight = {pending: sent for load in self._loads for pending, sent in load.in_flight.items()}
        for load in self._loads:
            load.clear()
        failure = self.failure()
        for pending, sent in in_flight.items():
            sent.future.cancel()
            self._observer.call_ended(self.name, now - sent.at, outcome)
            self._deliver(self, pending, failure)
        for pending in waiting:
            self._deliver(self, pending, failure)

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
        """Check health, run a probe search, change the state, and schedule the next check."""
        outages = self._outages
        try:
            health = await self._in_time(self.channel.health(), self._limits.probe_timeout_s)
            if health.failure is not None:
                self.health = health
                raise ShardUnavailableError(f"{health.failure.kind}: {health.failure.message}")
            self._check_identity(health)
            self.health = health
            if self._on_health is not None:
                self._on_health(health)
            # One that hung must answer as fast as it will have to; a fresh one may be slow once.
            was_down = self._outages > 0 and not self.up
            patience_s = self._limits.silence_max_s if was_down else self._limits.probe_timeout_s
            outcome = await self._on_trial(patience_s)
            if outcome is None or (was_down and not outcome):
                raise ShardUnavailableError(f"a probe search was not answered within {patience_s:g} s")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            kind = WrongShardError if isinstance(error, WrongShardError) else ShardUnavailableError
            reason = error.message if isinstance(error, VeloError) else type(error).__name__
            self._mark_down(reason, kind=kind.__name__, detail=getattr(error, "detail", str(error)))
        else:
            if outages == self._outages:
                self._mark_up()
        finally:
            self._probe_task = None
        limits = self._limits
        self._probe_in(limits.probe_interval_s if self.up else limits.probe_down_interval_s)

    def _check_identity(self, health: ShardHealth) -> None:
        identity = health.identity
        if self._identity is None:
            self._identity = identity
        if identity != self._identity:
            raise WrongShardError(f"another index is there now: {identity}, not {self._identity}")

    def _mark_up(self) -> None:
        was_up, self.up, self.reason = self.up, True, ""
        self.silent = False
        self._sign_at = self._clock.now()
        if not was_up:
            self._observer.shard_changed(self.name, True, "")

    async def close(self) -> None:
        self._closed = True
        self.up, self.reason = False, "the server is closing"
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self._fail_all("canceled")
        tasks = [task for task in (self._trial, self._probe_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        await self.channel.close()
