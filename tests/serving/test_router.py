"""The router under a clock that the test cranks: answers, queues, deadlines, ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.serving.fakes import CommandedChannel, hits, request, settle
from tests.serving.router_stage import Stage, gated, held_back, on_stage
from velo.errors import InvalidArgumentError
from velo_serving.protocol.errors import (
    DeadlineExceededError,
    NoShardAnsweredError,
    QueueFullError,
    ShuttingDownError,
)
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.types import SearchRequest


@on_stage()
async def test_all_shards_answer_and_are_merged(stage: Stage) -> None:
    answer = await stage.router.search(request(queries=2, k=2))
    assert answer.hits.ids.tolist() == [[0, 1], [0, 1]]
    assert (answer.shards_answered, answer.shards_total, answer.partial) == (3, 3, False)
    assert answer.failures == ()


@on_stage(shards=1)
async def test_each_reply_leaves_when_it_is_ready(stage: Stage) -> None:
    shard = stage.shards[0]
    gate = held_back(shard, k=7)
    slow = stage.ask(k=7)
    light = await asyncio.gather(*(stage.ask(k=k) for k in (1, 2, 3)))
    assert [one.hits.ids.shape[1] for one in light] == [1, 2, 3]
    assert not slow.done()
    gate.set()
    assert (await slow).hits.ids.shape[1] == 7


@on_stage(shards=1)
async def test_requests_beyond_the_limit_wait_in_order(stage: Stage) -> None:
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
async def test_a_request_above_the_limit_of_a_shard_is_sent_alone(stage: Stage) -> None:
    gate = gated(stage.shards[0])
    small = stage.ask(queries=1, k=1)
    large, after = stage.ask(queries=6, k=2), stage.ask(queries=1, k=3)
    await settle()
    assert [one.k for one in stage.shards[0].requests] == [1]
    gate.set()
    await asyncio.gather(small, large, after)
    assert [one.k for one in stage.shards[0].requests] == [1, 2, 3]


@pytest.mark.parametrize(
    "heavy",
    [{"k": 5000}, {"exact": True}, {"recall": 1.0}, {"radius": 1.0}],
    ids=lambda options: "-".join(options),
)
def test_light_requests_do_not_wait_for_heavy_ones(heavy: dict[str, Any]) -> None:
    @on_stage(shards=1)
    async def scene(stage: Stage) -> None:
        gate = gated(stage.shards[0])
        much = [stage.ask(queries=3, **heavy) for _ in range(2)]
        little = [stage.ask(k=k) for k in (1, 2)]
        await settle()
        asked = [one.k for one in stage.shards[0].requests]
        assert len(asked) == 3  # the second heavy one waits for the first
        assert asked[1:] == [1, 2]
        states = stage.router.shards()[0]
        assert (states.waiting_requests, states.calls_in_flight) == (1, 3)
        gate.set()
        await asyncio.gather(*much, *little)

    scene()


@on_stage(shards=1)
async def test_heavy_requests_do_not_count_in_estimated_waits(stage: Stage) -> None:
    for _ in range(20):
        gate = gated(stage.shards[0])
        task = stage.ask(queries=2, k=9000)
        await stage.clock.crank(1.0)
        gate.set()
        await task
    gate = gated(stage.shards[0])
    much = stage.ask(queries=4, k=9000)
    await settle()
    with pytest.raises(QueueFullError, match="would wait"):
        await stage.router.search(request(k=9000, timeout_s=2.0))
    little = stage.ask()
    await settle()
    assert stage.router.shards()[0].calls_in_flight == 2
    gate.set()
    await asyncio.gather(much, little)


@on_stage(limits=RouterLimits(in_flight_queries_max=2))
async def test_requests_in_flight_are_bounded_per_shard(stage: Stage) -> None:
    gates = [gated(shard) for shard in stage.shards]
    tasks = [stage.ask() for _ in range(5)]
    await settle()
    assert [len(shard.requests) for shard in stage.shards] == [2, 2, 2]
    assert all(shard.calls_in_flight == 2 for shard in stage.router.shards())
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    assert [len(shard.requests) for shard in stage.shards] == [5, 5, 5]


@on_stage(shards=1, limits=RouterLimits(in_flight_queries_max=1))
async def test_the_wait_of_a_request_is_observed(stage: Stage) -> None:
    gate = gated(stage.shards[0])
    tasks = [stage.ask() for _ in range(2)]
    await settle()
    assert stage.waits.seconds == [0]
    await stage.clock.crank(0.01)
    gate.set()
    await asyncio.gather(*tasks)
    assert stage.waits.seconds == [0, pytest.approx(0.01)]


@on_stage()
async def test_a_full_queue_refuses_with_a_time_to_retry(stage: Stage) -> None:
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
async def test_at_the_deadline_the_answer_is_partial(stage: Stage) -> None:
    gated(stage.shards[1])
    task = stage.ask(timeout_s=3.0)
    await stage.clock.crank(2.9)
    assert not task.done()
    await stage.clock.crank(0.2)
    answer = task.result()
    assert (answer.shards_answered, answer.partial) == (2, True)
    assert answer.hits.ids.tolist() == [[0, 2, -1]]
    assert [(one.shard, one.failure.fault) for one in answer.failures] == [("1", "deadline")]
    # The shard was slow, not dead: one late answer does not take it out.
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
async def test_without_partial_answers_a_missing_shard_is_an_error(stage: Stage) -> None:
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
async def test_a_canceled_request_leaves_the_queue_and_the_shard(stage: Stage) -> None:
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
async def test_a_request_past_its_deadline_is_canceled_at_the_shard(stage: Stage) -> None:
    gated(stage.shards[0])
    task = stage.ask(timeout_s=1.0)
    await stage.clock.crank(1.0)
    assert isinstance(task.exception(), DeadlineExceededError)
    await settle()
    assert stage.shards[0].canceled == 1


# ---- early refusal ----


@on_stage(shards=2)
async def test_a_request_that_would_wait_too_long_is_refused_at_once(stage: Stage) -> None:
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


# ---- ending ----


def test_closing_refuses_new_requests_and_fails_waiting_ones() -> None:
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


async def test_before_the_start_every_shard_is_down() -> None:
    stage = Stage()
    with pytest.raises(NoShardAnsweredError, match="not asked yet"):
        await stage.router.search(request())


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
