"""A shard with several replicas: on a manual clock, with scripted shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.serving.fakes import CommandedChannel, HandClock, request, settle
from velo.errors import CorruptIndexError, InvalidArgumentError
from velo_serving.protocol.errors import DeadlineExceededError, NoShardAnsweredError, ShardUnavailableError
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.spans import Observer
from velo_serving.protocol.types import Answer, Failure, SearchRequest, ShardReply
from velo_serving.routing.router import Router

LIMITS = RouterLimits(
    quiet_s=0.1, trial_s=0.12, silence_max_s=0.5, probe_interval_s=2.0, probe_down_interval_s=0.25
)

#: What a call takes where a test lets it take time, and what one takes that is worth a hedge.
USUAL_S = 0.01
SLOW_S = 0.09


class Noting(Observer):
    def __init__(self) -> None:
        self.hedges = 0

    def hedge_sent(self, shard: str) -> None:
        self.hedges += 1


class Stage:
    """Two shards of two replicas each."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.note = Noting()
        self.shards = [
            [CommandedChannel(10 * shard + replica, f"{shard}/{replica}") for replica in range(2)]
            for shard in range(2)
        ]
        self.router = Router("things", self.shards, limits=LIMITS, clock=self.clock, observer=self.note)

    def ask(self, **options: Any) -> asyncio.Task[Answer]:
        return asyncio.get_running_loop().create_task(self.router.search(request(**options)))

    def takes(self, channel: CommandedChannel, seconds: Callable[[int], float]) -> None:
        """Let a replica answer its nth request after so long."""
        asked = 0

        async def answer(asked_for: SearchRequest) -> ShardReply:
            nonlocal asked
            number, asked = asked, asked + 1
            done = asyncio.Event()
            self.clock.call_at(self.clock.now() + seconds(number), done.set)
            await done.wait()
            return await channel.at_once(asked_for)

        channel.answer = answer


def on_stage(play: Callable[[Stage], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        stage = Stage()
        await stage.router.start()
        await play(stage)
        await stage.router.close()
        await settle()
        assert stage.clock.timers_waiting == 0

    def test() -> None:
        asyncio.run(run())

    test.__name__ = play.__name__
    test.__doc__ = play.__doc__
    return test


@on_stage
async def test_replicas_share_the_work_and_one_shard_is_one_part_of_an_answer(stage: Stage) -> None:
    for _ in range(20):
        answer = await stage.ask()
        assert (answer.shards_answered, answer.shards_total) == (2, 2)
    assert [len(one.requests) for shard in stage.shards for one in shard] == [10, 10, 10, 10]
    assert [state.name for state in stage.router.shards()] == ["0/0", "0/1", "1/0", "1/1"]


@on_stage
async def test_requests_of_a_dead_replica_go_to_the_other_at_once(stage: Stage) -> None:
    first, second = stage.shards[0]
    first.answer = second.answer = first.never
    tasks = [stage.ask() for _ in range(4)]
    await settle()
    assert (len(first.requests), len(second.requests)) == (2, 2)
    second.answer = second.at_once
    first.lost("its process was killed")
    await settle()
    assert len(second.requests) == 4, "they went over without a moment's wait"
    assert sum(task.done() for task in tasks) == 2
    for _ in range(6):
        answer = await stage.ask()
        assert answer.shards_answered == 2
    assert len(first.requests) == 2
    assert stage.router.shards_up == 2
    second.lost("its process was killed, too")
    await settle()
    for task in tasks:
        assert (await task).shards_answered in (1, 2)
    assert stage.router.shards_up == 1
    assert [one.shard for one in (await stage.ask()).failures] == ["0"]


@on_stage
async def test_a_page_that_is_damaged_in_one_replica_is_read_in_the_other(stage: Stage) -> None:
    first, second = stage.shards[0]
    damage = Failure.of(CorruptIndexError("page 7 is damaged"))

    async def damaged(asked: SearchRequest) -> ShardReply:
        return damage

    first.answer = damaged
    for _ in range(10):
        answer = await stage.ask()
        assert answer.shards_answered == 2
        assert 1 in answer.hits.ids
    assert first.requests
    second.answer = damaged
    answer = await stage.ask()
    assert [one.failure.message for one in answer.failures] == ["page 7 is damaged"]


@on_stage
async def test_a_wrong_request_is_not_sent_to_the_other_replica(stage: Stage) -> None:
    wrong = Failure.of(InvalidArgumentError("k is odd", argument="k"))

    async def refuse(asked: SearchRequest) -> ShardReply:
        return wrong

    for shard in stage.shards:
        for one in shard:
            one.answer = refuse
    with pytest.raises(InvalidArgumentError, match="k is odd"):
        await stage.ask()
    assert sum(len(one.requests) for one in stage.shards[0]) == 1


@on_stage
async def test_hedges_start_after_the_95th_percentile_and_are_few(stage: Stage) -> None:
    """One call in ten is slow at a replica: a second one is asked for some of these, and for no other."""
    for replica in stage.shards[0]:
        stage.takes(replica, lambda number: SLOW_S if number % 10 == 9 else USUAL_S)
    count = 400
    took: list[float] = []

    async def one() -> None:
        began = stage.clock.now()
        assert (await stage.router.search(request())).shards_answered == 2
        took.append(stage.clock.now() - began)

    tasks = []
    for _ in range(count):
        tasks.append(asyncio.ensure_future(one()))
        await stage.clock.crank(0.02)
    await stage.clock.crank(1.0)
    await asyncio.gather(*tasks)
    assert 5 <= stage.note.hedges <= 0.05 * count
    asked = sum(len(one.requests) for one in stage.shards[0])
    assert asked == count + stage.note.hedges
    # The slower one was canceled.
    assert sum(one.canceled for one in stage.shards[0]) == stage.note.hedges
    assert min(took) == pytest.approx(USUAL_S)


@on_stage
async def test_a_slow_call_is_saved_by_a_hedge(stage: Stage) -> None:
    replicas = stage.shards[0]
    for replica in replicas:
        stage.takes(replica, lambda number: 0.001 * (1 + number % 20))
    for _ in range(100):
        task = stage.ask()
        await stage.clock.crank(0.03)
        assert task.done()
    before = [len(one.requests) for one in replicas]
    for one in replicas:
        one.answer = one.never
    task = stage.ask()
    await settle()
    (spare,) = (one for one, count in zip(replicas, before, strict=True) if len(one.requests) == count)
    spare.answer = spare.at_once
    await stage.clock.crank(0.015)
    assert not task.done(), "it was asked before 95 of 100 calls would have ended"
    await stage.clock.crank(0.01)
    assert task.done(), "long before anybody could know that the first one hangs"
    assert spare.number in (await task).hits.ids


@on_stage
async def test_requests_of_a_silent_replica_go_to_the_other_before_it_is_down(stage: Stage) -> None:
    hung, other = stage.shards[0]
    for one in (hung, other):
        one.answer = one.end_a_search = one.never
    tasks = [stage.ask() for _ in range(10)]
    await settle()
    assert len(hung.requests) == 5
    other.answer = other.end_a_search = other.at_once
    await stage.clock.crank(LIMITS.quiet_s + LIMITS.trial_s + 0.01)
    assert len(other.requests) == 10, "all of them, though hedges are few"
    assert sum(task.done() for task in tasks) == 5
    assert [one.state for one in stage.router.shards()] == ["up"] * 4
    for _ in range(6):
        assert (await stage.ask()).shards_answered == 2
    assert len(hung.requests) == 5, "new requests go to the replica that answers"
    hung.answer, hung.end_a_search = hung.at_once, hung.well
    await stage.clock.crank(LIMITS.trial_s)
    for _ in range(6):
        await stage.ask()
    assert len(hung.requests) > 5, "a probe search that succeeds brings it back"
    for task in tasks:
        task.cancel()


@on_stage
async def test_a_canceled_request_is_canceled_at_all_replicas(stage: Stage) -> None:
    for one in stage.shards[0]:
        one.answer = one.never
    task = stage.ask(timeout_s=1.0)
    await settle()
    task.cancel()
    await settle()
    assert sum(one.canceled for one in stage.shards[0]) == 1
    for one in stage.shards[1]:
        one.answer = one.never
    late = stage.ask(timeout_s=0.05)
    await stage.clock.crank(0.06)
    assert isinstance(late.exception(), DeadlineExceededError)


@on_stage
async def test_a_shard_without_a_working_replica_reports_each_failure(stage: Stage) -> None:
    for shard in stage.shards:
        for one in shard:
            one.answer = one.raises(ShardUnavailableError("the wire was cut"))
            one.say = one.raises(ShardUnavailableError("the wire was cut"))
    with pytest.raises(NoShardAnsweredError, match="the wire was cut"):
        await stage.ask()
    assert stage.router.shards_up == 0
