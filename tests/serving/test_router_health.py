"""The router under a clock that the test cranks: shards that fail, hang, change and come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.serving.fakes import CommandedChannel, HandClock, request, settle
from tests.serving.router_stage import LIMITS, Stage, gated, held_back, on_stage
from velo.errors import UnknownColumnError
from velo_serving.protocol.errors import NoShardAnsweredError, ShardUnavailableError
from velo_serving.protocol.spans import Observer
from velo_serving.protocol.types import Failure, SearchRequest, ShardHealth, ShardIdentity
from velo_serving.routing.router import Router

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
async def test_requests_waiting_for_a_shard_fail_at_once_when_it_goes_down(stage: Stage) -> None:
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
async def test_a_lost_connection_fails_requests_in_flight_at_once(stage: Stage) -> None:
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
async def test_an_error_of_the_caller_is_raised_without_waiting_for_all_shards(stage: Stage) -> None:
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
async def test_a_silent_shard_goes_down_even_if_its_health_is_good(stage: Stage) -> None:
    hung = stage.shards[0]
    hung.answer, hung.end_a_search = hung.never, hung.never
    trials = hung.trials
    task = stage.ask(timeout_s=3.0)
    await stage.clock.crank(LIMITS.quiet_s + 0.01)
    assert hung.trials == trials + 1
    assert not task.done()
    await stage.clock.crank(LIMITS.silence_max_s)
    assert task.result().shards_answered == 1
    assert stage.states == ["down", "up"]
    assert "probe search" in stage.router.shards()[0].reason
    assert hung.resets > 0
    assert stage.router.shards()[0].calls_in_flight == 0
    assert (await stage.router.search(request())).shards_answered == 1  # it is no longer waited for
    # Its health answers all the while. Only a search brings it back.
    probes = hung.probes
    await stage.clock.crank(5.0)
    assert hung.probes > probes + 5
    assert stage.states == ["down", "up"]
    hung.answer, hung.end_a_search = hung.at_once, hung.well
    await stage.clock.crank(1.0)
    assert stage.states == ["up", "up"]


@on_stage(shards=2)
async def test_a_shard_that_stalls_loses_no_request(stage: Stage) -> None:
    stalled = stage.shards[0]
    gate = gated(stalled)
    stalled.end_a_search = stalled.never
    early = stage.ask()
    await stage.clock.crank(LIMITS.quiet_s + LIMITS.trial_s + 0.01)
    assert stage.states == ["up", "up"]
    answer = await stage.ask()
    assert (answer.shards_answered, answer.failures[0].failure.kind) == (1, "ShardUnavailableError")
    assert "is silent" in answer.failures[0].failure.message
    whole = stage.ask(allow_partial=False)
    await stage.clock.crank(0.1)
    assert not early.done()
    assert not whole.done(), "one that must be complete waits"
    gate.set()
    assert (await early).shards_answered == (await whole).shards_answered == 2
    assert (await stage.ask()).shards_answered == 2
    stalled.end_a_search = stalled.well
    await stage.clock.crank(LIMITS.trial_s)
    assert stage.states == ["up", "up"]


@on_stage(shards=2)
async def test_requests_wait_where_all_shards_stall(stage: Stage) -> None:
    gates = [gated(shard) for shard in stage.shards]
    for shard in stage.shards:
        shard.end_a_search = shard.never
    tasks = [stage.ask()]
    await stage.clock.crank(LIMITS.quiet_s + LIMITS.trial_s + 0.01)
    tasks.append(stage.ask())
    await stage.clock.crank(0.1)
    assert not any(task.done() for task in tasks)
    for gate, shard in zip(gates, stage.shards, strict=True):
        shard.end_a_search = shard.well
        gate.set()
    assert [(await task).shards_answered for task in tasks] == [2, 2]
    await stage.clock.crank(LIMITS.trial_s)


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
    await stage.clock.crank(LIMITS.silence_max_s)
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
async def test_a_working_shard_gets_bounded_extra_time(stage: Stage) -> None:
    shard = stage.shards[0]
    shard.answer, shard.end_a_search = shard.never, shard.works
    task = stage.ask(timeout_s=20.0)
    await stage.clock.crank(LIMITS.busy_max_s - 1.0)
    assert stage.states == ["up"]
    changes: list[str] = []
    stage.router._queues[0]._observer = note = Observer()
    note.shard_changed = lambda shard, up, reason: changes.append(reason)  # type: ignore[method-assign]
    await stage.clock.crank(1.5)
    assert "no search ended for 10 s" in changes[0]
    assert stage.states == ["down"], "to be at work is not enough to come back"
    assert isinstance(task.exception(), NoShardAnsweredError)
    shard.answer, shard.end_a_search = shard.at_once, shard.well


@on_stage(shards=1)
async def test_a_shard_that_answers_others_is_not_tried(stage: Stage) -> None:
    shard = stage.shards[0]
    gate = held_back(shard, k=7)
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
    assert stage.router._queues[0].silent is False
    await stage.clock.crank(0.6)
    assert stage.states == ["down"]
    with pytest.raises(NoShardAnsweredError):
        task.result()


# ---- another index ----


@on_stage(shards=2)
async def test_a_shard_with_another_index_stays_down_until_its_own_is_back(stage: Stage) -> None:
    shard = stage.shards[1]
    shard.uuid = "other"
    await stage.clock.crank(LIMITS.probe_interval_s + 1.0)
    assert stage.states == ["up", "down"]
    assert "another index is there now: other" in stage.router.shards()[1].reason
    answer = await stage.ask()
    assert [(one.shard, one.failure.kind) for one in answer.failures] == [("1", "WrongShardError")]
    shard.uuid = "uuid-1"
    await stage.clock.crank(1.0)
    assert stage.states == ["up", "up"]


async def test_a_shard_must_be_what_the_collection_says() -> None:
    shard = CommandedChannel(0)
    router = Router("things", [shard], identities=[ShardIdentity("mine", 4, "l2")], clock=HandClock())
    await router.start()
    assert router.shards()[0].state == "down"
    await router.close()


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
