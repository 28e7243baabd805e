"""The queue before the gateway, in front of an app that only reads bodies."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from velo_serving.gateway.admission import STARTS_MAX, Admitted
from velo_serving.protocol.limits import RouterLimits

SCOPE = {"type": "http", "method": "POST", "path": "/v1/search", "headers": [], "query_string": b""}


@pytest.mark.parametrize("parts", [1, 2, 5])
async def test_bodies_of_any_number_of_parts_wait_for_their_turn(parts: int) -> None:
    turn, started = 0, Counter[int]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        started[turn] += 1

    async def send(message: Any) -> None:
        raise AssertionError(message)  # of a refusal

    admitted = Admitted(app, RouterLimits, 5.0)

    async def ask() -> None:
        rest = iter(range(1, parts + 1))

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{", "more_body": next(rest) < parts}

        await admitted(dict(SCOPE), receive, send)

    tasks = [asyncio.create_task(ask()) for _ in range(3 * STARTS_MAX)]
    while not all(map(asyncio.Task.done, tasks)):
        turn += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert sum(started.values()) == len(tasks)
    assert max(started.values()) <= STARTS_MAX
