"""A router under a clock that a test cranks, over shards that do as told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.serving.fakes import CommandedChannel, HandClock, request, settle
from velo_serving.protocol.limits import RouterLimits
from velo_serving.protocol.spans import Observer
from velo_serving.protocol.types import Answer, SearchRequest
from velo_serving.routing.router import Router

LIMITS = RouterLimits(
    queue_queries_max=8,
    in_flight_queries_max=4,
    timeout_default_s=10.0,
    timeout_max_s=20.0,
    quiet_s=0.1,
    trial_s=0.12,
    silence_max_s=0.5,
    probe_interval_s=2.0,
    probe_down_interval_s=0.25,
    probe_timeout_s=1.0,
)


def held_back(shard: CommandedChannel, k: int) -> asyncio.Event:
    """Hold back the answers of a shard to searches for k hits until the event is set."""
    gate = asyncio.Event()

    async def answer(request: SearchRequest) -> Any:
        if request.k == k:
            await gate.wait()
        return await shard.at_once(request)

    shard.answer = answer
    return gate


class Waits(Observer):
    """How long each request waited before it went to a shard."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def call_sent(self, shard: str, queries: int, waited_s: float) -> None:
        self.seconds.append(waited_s)


class Stage:
    """A router, its shards and its clock."""

    def __init__(self, shards: int = 3, limits: RouterLimits = LIMITS) -> None:
        self.clock = HandClock()
        self.shards = [CommandedChannel(number) for number in range(shards)]
        self.waits = Waits()
        self.router = Router("things", self.shards, limits=limits, clock=self.clock, observer=self.waits)

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
