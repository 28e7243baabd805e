"""The router under a clock that the test cranks and shards that do as told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.serving.fakes import CommandedChannel, HandClock, hits, request, settle
from velo.errors import InvalidArgumentError, UnknownColumnError
from velo_serving.errors import (
    DeadlineExceededError,
    NoShardAnsweredError,
    QueueFullError,
    ShardUnavailableError,
    ShuttingDownError,
)
from velo_serving.observer import SilentObserver
from velo_serving.router import Router, RouterLimits
from velo_serving.types import Answer, Failure, SearchRequest, ShardHealth, ShardIdentity

LIMITS = RouterLimits(
    queue_queries_max=8,
    in_flight_queries_max=4,
    timeout_default_s=10.0,
    timeout_max_s=20.0,
    quiet_s=0.1,
    trial_s=0.12,
    probe_interval_s=2.0,
    probe_down_interval_s=0.25,
    probe_timeout_s=1.0,
)


class Stage:
    """A router, its shards and its clock."""

    def __init__(self, shards: int = 3, limits: RouterLimits = LIMITS) -> None:
        self.clock = HandClock()
        self.shards = [CommandedChannel(number) for number in range(shards)]
        self.router = Router("things", self.shards, limits=limits, clock=self.clock)

    def ask(self, **options: Any) -> asyncio.Task[Answer]:
        return asyncio.get_running_loop().create_task(self.router.search(request(**options)))

    @property
    def states(self) -> list[str]:
        return [shard.state for shard in self.router.shards()]


def on_stage(
    shards: int = 3, limits: RouterLimits = LIMITS
) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[], None]]:
    """Run a test on a started stage, and end it without anything left running."""

    def decorate(play: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            stage = Stage(shards, limits)
            await stage.router.start()
            await play(stage)
            await stage.router.close()
            await settle()
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert left == []
            assert stage.clock.timers_waiting == 0
            assert stage.router.queries_admitted == 0

        def test() -> None:
            asyncio.run(run())

        test.__name__ = test.__qualname__ = play.__name__
        test.__doc__ = play.__doc__
        return test

    return decorate


def gated(shard: CommandedChannel) -> asyncio.Event:
    """Let a shard answer only once the event is set."""
    gate = asyncio.Event()

    async def answer(request: SearchRequest) -> Any:
        await gate.wait()
        return await shard.at_once(request)

    shard.answer = answer
    return gate


@on_stage()
async def test_all_shards_answer_and_are_merged(stage: Stage) -> None:
    answer = await stage.router.search(request(queries=2, k=2))
    assert answer.hits.ids.tolist() == [[0, 1], [0, 1]]
    assert (answer.shards_answered, answer.shards_total, answer.partial) == (3, 3, False)
    assert answer.failures == ()


@on_stage(shards=1)
async def test_each_reply_leaves_when_it_is_ready(stage: Stage) -> None:
    shard = stage.shards[0]
    gate = asyncio.Event()

    async def answer(request: SearchRequest) -> Any:
        if request.k == 7:
            await gate.wait()
        return await shard.at_once(request)

    shard.answer = answer
    slow = stage.ask(k=7)
    light = await asyncio.gather(*(stage.ask(k=k) for k in (1, 2, 3)))
    assert [one.hits.ids.shape[1] for one in light] == [1, 2, 3]
    assert not slow.done()
    gate.set()
    assert (await slow).hits.ids.shape[1] == 7


@on_stage(shards=1)
async def test_what_a_shard_has_no_room_for_waits_in_order(stage: Stage) -> None:
    shard = stage.shards[0]
    gate = gated(shard)
    tasks = [stage.ask(queries=queries, k=k) for k, queries in enumerate((1, 2, 2, 1, 1), start=1)]
    await settle()
    # A limit of four: one and two go, and the third waits, and so do those behind it that would fit.
    assert [one.k for one in shard.requests] == [1, 2]
    assert stage.router.shards()[0].waiting_requests == 3
    gate.set()
    await asyncio.gather(*tasks)
    assert [one.k for one in shard.requests] == [1, 2, 3, 4, 5]


@on_stage(shards=1)
async def test_a_request_above_what_a_shard_takes_goes_alone(stage: Stage) -> None:
    gate = gated(stage.shards[0])
    small = stage.ask(queries=1, k=1)
    large, after = stage.ask(queries=6, k=2), stage.ask(queries=1, k=3)
    await settle()
    assert [one.k for one in stage.shards[0].requests] == [1]
    gate.set()
    await asyncio.gather(small, large, after)
    assert [one.k for one in stage.shards[0].requests] == [1, 2, 3]


@on_stage(limits=RouterLimits(in_flight_queries_max=2))
async def test_what_is_in_flight_is_bounded_a_shard(stage: Stage) -> None:
    gates = [gated(shard) for shard in stage.shards]
    tasks = [stage.ask() for _ in range(5)]
    await settle()
    assert [len(shard.requests) for shard in stage.shards] == [2, 2, 2]
    assert all(shard.calls_in_flight == 2 for shard in stage.router.shards())
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert [len(shard.requests) for shard in stage.shards] == [5, 5, 5]


@on_stage()
async def test_a_full_queue_refuses_and_says_when_to_come_back(stage: Stage) -> None:
    gates = [gated(shard) for shard in stage.shards]
    taken = [stage.ask(queries=4), stage.ask(queries=4)]
    await settle()
    assert stage.router.queries_admitted == 8
    with pytest.raises(QueueFullError) as refused:
        await stage.router.search(request())
    assert refused.value.retry_after_s > 0
    for gate in gates:
        gate.set()
    await asyncio.gather(*taken)
    assert (await stage.router.search(request())).shards_answered == 3


@on_stage()
async def test_a_request_above_the_whole_queue_is_the_callers_mistake(stage: Stage) -> None:
    with pytest.raises(InvalidArgumentError, match="limit of 8"):
        await stage.router.search(request(queries=9))


# ---- deadlines ----


@on_stage()
async def test_at_the_deadline_the_answer_is_what_has_come(stage: Stage) -> None:
    gated(stage.shards[1])
    task = stage.ask(timeout_s=3.0)
    await stage.clock.crank(2.9)
    assert not task.done()
    await stage.clock.crank(0.2)
    answer = task.result()
    assert (answer.shards_answered, answer.partial) == (2, True)
    assert answer.hits.ids.tolist() == [[0, 2, -1]]
    assert [(one.shard, one.failure.fault) for one in answer.failures] == [("1", "deadline")]
    # The shard was slow, not dead: nobody counts it out for one late answer.
    assert stage.states == ["up", "up", "up"]


@on_stage()
async def test_a_deadline_without_any_answer_is_an_error(stage: Stage) -> None:
    for shard in stage.shards:
        gated(shard)
    task = stage.ask(timeout_s=3.0)
    await stage.clock.crank(3.0)
    with pytest.raises(DeadlineExceededError):
        task.result()


@on_stage()
async def test_who_wants_all_shards_gets_an_error_instead_of_a_part(stage: Stage) -> None:
    gated(stage.shards[1])
    task = stage.ask(timeout_s=3.0, allow_partial=False)
    await stage.clock.crank(3.0)
    with pytest.raises(DeadlineExceededError, match="2 of 3 shards"):
        task.result()


@on_stage()
async def test_the_deadline_is_bounded_and_travels_with_the_call(stage: Stage) -> None:
    for shard in stage.shards:
        gated(shard)
    task = stage.ask(timeout_s=1e9)
    await stage.clock.crank(5.0)
    second = stage.ask(timeout_s=16.0)
    await settle()
    assert stage.shards[0].timeouts == [pytest.approx(20.0), pytest.approx(16.0)]
    await stage.clock.crank(14.9)
    assert not task.done()
    await stage.clock.crank(0.2)
    assert isinstance(task.exception(), DeadlineExceededError)
    await stage.clock.crank(1.0)
    assert isinstance(second.exception(), DeadlineExceededError)


@on_stage(shards=1)
async def test_a_request_that_expires_in_the_queue_is_never_sent(stage: Stage) -> None:
    gate = gated(stage.shards[0])
    first = stage.ask(queries=4)
    await settle()
    second = stage.ask(timeout_s=1.0)
    await stage.clock.crank(1.0)
    assert isinstance(second.exception(), DeadlineExceededError)
    assert stage.router.shards()[0].waiting_requests == 0
    gate.set()
    await first
    await settle()
    assert len(stage.shards[0].requests) == 1


@on_stage(shards=1)
async def test_a_caller_that_goes_away_leaves_the_queue_and_the_shard(stage: Stage) -> None:
    shard = stage.shards[0]
    gate = gated(shard)
    first, second, third = (stage.ask(queries=2, k=k) for k in (1, 2, 3))
    await settle()
    third.cancel()
    await settle()
    assert stage.router.shards()[0].waiting_requests == 0
    first.cancel()
    await settle()
    assert shard.canceled == 1
    assert stage.router.queries_admitted == 2
    assert stage.router.shards()[0].calls_in_flight == 1
    gate.set()
    await second


@on_stage(shards=1)
async def test_what_missed_its_deadline_is_canceled_at_the_shard(stage: Stage) -> None:
    gated(stage.shards[0])
    task = stage.ask(timeout_s=1.0)
    await stage.clock.crank(1.0)
    assert isinstance(task.exception(), DeadlineExceededError)
    await settle()
    assert stage.shards[0].canceled == 1


# ---- failures ----


@on_stage()
async def test_a_dead_shard_makes_answers_partial_then_comes_back(stage: Stage) -> None:
    dead = stage.shards[2]
    dead.answer = dead.raises(ShardUnavailableError("actor died"))
    dead.say = dead.raises(ShardUnavailableError("actor restarts"))
    answer = await stage.router.search(request())
    assert (answer.shards_answered, answer.shards_total, answer.partial) == (2, 3, True)
    assert stage.states == ["up", "up", "down"]

    calls = len(dead.requests)
    answer = await stage.router.search(request())
    assert answer.shards_answered == 2
    assert len(dead.requests) == calls, "a shard that is down is not asked"
    await stage.clock.crank(1.0)
    assert dead.probes > 3
    assert stage.states == ["up", "up", "down"]

    dead.answer, dead.say = dead.at_once, dead.well
    await stage.clock.crank(0.3)
    assert stage.states == ["up", "up", "up"]
    answer = await stage.router.search(request())
    assert (answer.shards_answered, answer.partial) == (3, False)


@on_stage(shards=1)
async def test_when_a_shard_falls_those_who_wait_for_it_are_told_at_once(stage: Stage) -> None:
    shard = stage.shards[0]
    breaks = asyncio.Event()

    async def die(request: SearchRequest) -> Any:
        await breaks.wait()
        raise ShardUnavailableError("actor died")

    shard.answer = die
    first = stage.ask(queries=4)
    await settle()
    second = stage.ask()
    await settle()
    breaks.set()
    await settle()
    for task in (first, second):
        with pytest.raises(NoShardAnsweredError, match="actor died"):
            task.result()
    assert len(shard.requests) == 1


@on_stage(shards=2)
async def test_a_connection_that_is_lost_fails_what_is_in_flight_at_once(stage: Stage) -> None:
    gated(stage.shards[0])
    task = stage.ask()
    await settle()
    stage.shards[0].lost("its process ended")
    answer = await task
    assert (answer.shards_answered, answer.shards_total) == (1, 2)
    assert "its process ended" in answer.failures[0].failure.message
    assert stage.states == ["down", "up"]
    await stage.clock.crank(LIMITS.probe_down_interval_s)
    assert stage.states == ["up", "up"]


@on_stage()
async def test_an_error_inside_one_shard_is_a_missing_part_not_a_dead_shard(stage: Stage) -> None:
    broken = stage.shards[1]

    async def corrupt(request: SearchRequest) -> Any:
        return Failure("CorruptIndexError", "page 7 of pages.bin is damaged", page=7)

    broken.answer = corrupt
    answer = await stage.router.search(request())
    assert answer.shards_answered == 2
    assert answer.failures[0].failure.page == 7
    assert stage.states == ["up", "up", "up"]


@on_stage()
async def test_what_the_caller_did_wrong_is_raised_without_waiting_for_all(stage: Stage) -> None:
    gated(stage.shards[0])

    async def refuse(request: SearchRequest) -> Any:
        return Failure("UnknownColumnError", "there is no column 'x'", "caller", query=0)

    stage.shards[2].answer = refuse
    with pytest.raises(UnknownColumnError, match="filter of query 0: there is no column 'x'"):
        await stage.router.search(request())


@on_stage()
async def test_a_call_that_fails_whole_blames_no_caller(stage: Stage) -> None:
    stage.shards[0].answer = stage.shards[0].raises(ValueError("a bug of ours"))
    answer = await stage.router.search(request())
    assert answer.shards_answered == 2
    assert answer.failures[0].failure.kind == "ValueError"


@on_stage()
async def test_all_shards_down_is_an_error(stage: Stage) -> None:
    for shard in stage.shards:
        shard.answer = shard.raises(ShardUnavailableError("gone"))
        shard.say = shard.raises(ShardUnavailableError("gone"))
    with pytest.raises(NoShardAnsweredError, match="0 of 3 shards"):
        await stage.router.search(request())
    assert stage.router.shards_up == 0


# ---- a shard that hangs ----


@on_stage(shards=2)
async def test_a_quiet_shard_is_tried_and_falls_whatever_its_health_says(stage: Stage) -> None:
    hung = stage.shards[0]
    hung.answer, hung.end_a_search = hung.never, hung.never
    trials = hung.trials
    task = stage.ask(timeout_s=3.0)
    await stage.clock.crank(LIMITS.quiet_s + 0.01)
    assert hung.trials == trials + 1
    assert not task.done()
    await stage.clock.crank(LIMITS.trial_s)
    assert task.result().shards_answered == 1
    assert stage.states == ["down", "up"]
    assert "search on trial" in stage.router.shards()[0].reason
    assert hung.resets > 0
    assert stage.router.shards()[0].calls_in_flight == 0
    assert (await stage.router.search(request())).shards_answered == 1  # nobody waits for it any more
    # Its health answers all the while. Only a search brings it back.
    probes = hung.probes
    await stage.clock.crank(5.0)
    assert hung.probes > probes + 5
    assert stage.states == ["down", "up"]
    hung.answer, hung.end_a_search = hung.at_once, hung.well
    await stage.clock.crank(1.0)
    assert stage.states == ["up", "up"]


@on_stage(shards=1)
async def test_a_prober_that_is_starved_takes_no_shard_for_hung(stage: Stage) -> None:
    """Whatever the clock says: what counts is time in which an answer would have been heard."""
    shard = stage.shards[0]
    shard.answer, shard.end_a_search = shard.never, shard.never
    task = stage.ask(timeout_s=60.0)
    await stage.clock.crank(LIMITS.quiet_s + 0.01)
    trials = shard.trials
    for _ in range(5):  # many times what a trial may take
        await stage.clock.stall(0.25)
    assert shard.trials == trials, "the same search is on trial"
    assert stage.states == ["up"]
    assert not task.done()
    # Once this process is awake, a shard that is hung is found as soon as ever.
    await stage.clock.crank(LIMITS.trial_s)
    assert stage.states == ["down"]
    with pytest.raises(NoShardAnsweredError):
        task.result()


@on_stage(shards=1)
async def test_a_slow_search_is_not_a_hung_shard(stage: Stage) -> None:
    shard = stage.shards[0]
    gate = gated(shard)
    task = stage.ask(timeout_s=5.0)
    await stage.clock.crank(3.0)
    assert shard.trials > 10  # it was asked all the while, and answered
    assert stage.states == ["up"]
    gate.set()
    assert (await task).shards_answered == 1


@on_stage(shards=1)
async def test_a_shard_that_is_at_work_is_given_time_and_not_for_ever(stage: Stage) -> None:
    shard = stage.shards[0]
    shard.answer, shard.end_a_search = shard.never, shard.works
    task = stage.ask(timeout_s=20.0)
    await stage.clock.crank(LIMITS.busy_max_s - 1.0)
    assert stage.states == ["up"]
    changes: list[str] = []
    stage.router._lanes[0]._observer = note = SilentObserver()
    note.shard_changed = lambda shard, up, reason: changes.append(reason)  # type: ignore[method-assign]
    await stage.clock.crank(1.5)
    assert "no search ended for 10 s" in changes[0]
    assert stage.states == ["down"], "to be at work is not enough to come back"
    assert isinstance(task.exception(), NoShardAnsweredError)
    shard.answer, shard.end_a_search = shard.at_once, shard.well


@on_stage(shards=1)
async def test_a_shard_that_answers_others_is_not_tried(stage: Stage) -> None:
    shard = stage.shards[0]
    gate = asyncio.Event()

    async def answer(request: SearchRequest) -> Any:
        if request.k == 7:
            await gate.wait()
        return await shard.at_once(request)

    shard.answer = answer
    slow = stage.ask(k=7)
    await settle()
    trials = shard.trials
    for _ in range(15):
        await stage.clock.crank(0.09)
        await stage.ask()
    assert shard.trials == trials
    gate.set()
    await slow


@on_stage(shards=1)
async def test_a_shard_with_much_to_do_is_given_time(stage: Stage) -> None:
    shard = stage.shards[0]
    limits = LIMITS

    async def slow_and_steady(request: SearchRequest) -> Any:
        await asyncio.Event().wait() if request.k == 9 else None
        return await shard.at_once(request)

    shard.answer = slow_and_steady
    # Forty queries at 50 ms each: then one of four may take 0.4 s before a trial is answered.
    for _ in range(20):
        gate = gated(shard)
        tasks = [stage.ask(queries=2)]
        await stage.clock.crank(0.1)
        gate.set()
        await asyncio.gather(*tasks)
    shard.answer, shard.end_a_search = shard.never, shard.never
    task = stage.ask(queries=4, timeout_s=5.0)
    await stage.clock.crank(limits.quiet_s + limits.trial_s + 0.1)
    assert stage.states == ["up"]
    await stage.clock.crank(0.5)
    assert stage.states == ["down"]
    with pytest.raises(NoShardAnsweredError):
        task.result()


# ---- early refusal ----


@on_stage(shards=2)
async def test_what_would_wait_for_most_of_its_time_is_refused_at_once(stage: Stage) -> None:
    for _ in range(20):
        gates = [gated(shard) for shard in stage.shards]
        task = stage.ask(queries=2)
        await stage.clock.crank(0.09)
        for gate in gates:
            gate.set()
        await task
    # A query takes 45 ms; six of them 0.27 s.
    for shard in stage.shards:
        gated(shard)
    taken = [stage.ask(queries=3), stage.ask(queries=3)]
    await settle()
    with pytest.raises(QueueFullError, match=r"would wait for 0\.3 s") as refused:
        await stage.router.search(request(timeout_s=0.4))
    assert 0.05 < refused.value.retry_after_s < 0.27
    patient = stage.ask(timeout_s=2.0)
    await settle()
    assert not patient.done()
    for task in (*taken, patient):
        task.cancel()
    await settle()


# ---- another index ----


@on_stage(shards=2)
async def test_a_shard_with_another_index_stays_down_until_its_own_is_back(stage: Stage) -> None:
    shard = stage.shards[1]
    shard.uuid = "other"
    await stage.clock.crank(LIMITS.probe_interval_s + 1.0)
    assert stage.states == ["up", "down"]
    assert "another index is there now: other" in stage.router.shards()[1].reason
    shard.uuid = "uuid-1"
    await stage.clock.crank(1.0)
    assert stage.states == ["up", "up"]


def test_a_shard_must_be_what_the_collection_says() -> None:
    async def run() -> None:
        shard = CommandedChannel(0)
        router = Router("things", [shard], identities=[ShardIdentity("mine", 4, "l2")], clock=HandClock())
        await router.start()
        assert router.shards()[0].state == "down"
        await router.close()

    asyncio.run(run())


# ---- probes ----


@on_stage()
async def test_an_idle_shard_that_dies_is_noticed_by_its_probe(stage: Stage) -> None:
    stage.shards[1].say = stage.shards[1].raises(ShardUnavailableError("gone"))
    await stage.clock.crank(LIMITS.probe_interval_s + 0.1)
    assert stage.states == ["up", "down", "up"]
    assert "gone" in stage.router.shards()[1].reason


@on_stage(shards=1)
async def test_an_idle_shard_that_does_not_answer_its_probe_is_down(stage: Stage) -> None:
    shard = stage.shards[0]
    for what in ("say", "end_a_search"):
        setattr(shard, what, shard.never)
        await stage.clock.crank(LIMITS.probe_interval_s + LIMITS.probe_timeout_s + 0.1)
        assert stage.states == ["down"]
        shard.say, shard.end_a_search = shard.well, shard.well
        await stage.clock.crank(LIMITS.probe_down_interval_s + LIMITS.probe_timeout_s + 0.1)
        assert stage.states == ["up"]


@on_stage(shards=1)
async def test_a_probe_older_than_the_fall_does_not_raise_the_shard(stage: Stage) -> None:
    shard = stage.shards[0]
    release = asyncio.Event()

    async def slow_and_well() -> ShardHealth:
        await release.wait()
        return await shard.well()

    shard.say = slow_and_well
    await stage.clock.crank(LIMITS.probe_interval_s)  # the probe is on its way
    shard.answer = shard.raises(ShardUnavailableError("died meanwhile"))
    with pytest.raises(NoShardAnsweredError):
        await stage.router.search(request())
    release.set()
    await settle()
    assert stage.states == ["down"], "what the shard said before it died is no news"
    await stage.clock.crank(LIMITS.probe_down_interval_s)
    assert stage.states == ["up"]


@on_stage(shards=1)
async def test_a_shard_that_says_it_has_no_index_is_down_and_says_why(stage: Stage) -> None:
    async def sick() -> ShardHealth:
        return ShardHealth(failure=Failure("ShardNotHereError", "there is no folder /data/x"))

    stage.shards[0].say = sick
    await stage.clock.crank(LIMITS.probe_interval_s)
    assert stage.states == ["down"]
    assert "there is no folder /data/x" in stage.router.shards()[0].reason


# ---- ending ----


def test_closing_refuses_what_comes_and_frees_what_waits() -> None:
    async def run() -> None:
        stage = Stage(shards=2)
        await stage.router.start()
        for shard in stage.shards:
            gated(shard)
        under_way = stage.ask(queries=4)
        await settle()
        queued = stage.ask()
        await settle()
        closing = asyncio.get_running_loop().create_task(stage.router.close())
        await settle()
        for task in (under_way, queued):
            with pytest.raises(NoShardAnsweredError, match="closing"):
                await task
        await closing
        with pytest.raises(ShuttingDownError):
            await stage.router.search(request())
        assert stage.router.queries_admitted == 0

    asyncio.run(run())


def test_before_the_start_every_shard_is_down() -> None:
    async def run() -> None:
        stage = Stage()
        with pytest.raises(NoShardAnsweredError, match="not asked yet"):
            await stage.router.search(request())

    asyncio.run(run())


def test_limits_must_be_above_zero() -> None:
    with pytest.raises(InvalidArgumentError, match="quiet_s"):
        RouterLimits(quiet_s=0)


def test_a_large_merge_is_the_same_as_a_small_one() -> None:
    async def run() -> None:
        stage = Stage(shards=3, limits=RouterLimits())

        for shard in stage.shards:

            async def wide(one: SearchRequest, shard: CommandedChannel = shard) -> Any:
                rows = range(shard.number, 3000, 3)
                return hits(rows, rows, queries=len(one.queries))

            shard.answer = wide
        await stage.router.start()
        answer = await stage.router.search(request(queries=10, k=1000))
        assert answer.hits.ids.tolist() == [list(range(1000))] * 10
        await stage.router.close()

    asyncio.run(run())
