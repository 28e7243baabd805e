"""The gateway over shards that are slow, full, damaged or dead, and clients that are slow or leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.exact_gateway import JSON, SEARCH_SCOPE, VECTOR, VECTORS, checked, play, serving
from tests.serving.fakes import CommandedChannel, ExactIndex, backend_of, settle
from velo.errors import CorruptIndexError
from velo_serving.catalog.spec import ShardSpec
from velo_serving.gateway import create_app
from velo_serving.protocol.errors import ShardUnavailableError
from velo_serving.protocol.limits import GatewayLimits, RouterLimits
from velo_serving.routing.local_backend import LocalChannel
from velo_serving.shard.shard import Shard

# ---- load and failure ----


async def test_a_full_queue_is_429_with_retry_after() -> None:
    shards = [CommandedChannel(0)]
    gate = asyncio.Event()

    async def wait(request: Any) -> Any:
        await gate.wait()
        return await shards[0].at_once(request)

    shards[0].answer = wait
    limits = RouterLimits(queue_queries_max=2)

    async with serving(backend_of(shards, limits=limits)) as client:
        taken = [asyncio.create_task(client.post("/v1/search", json={"vector": VECTOR})) for _ in range(2)]
        await settle(100)
        refused = await client.post("/v1/search", json={"vector": VECTOR})
        checked(refused, 429)
        assert refused.headers["retry-after"] == "1"
        gate.set()
        assert [response.status_code for response in await asyncio.gather(*taken)] == [200, 200]
        assert 'outcome="rejected"} 1.0' in (await client.get("/metrics")).text


async def test_a_slow_sender_takes_no_place_in_the_queue() -> None:
    shard = CommandedChannel(0)
    gate = asyncio.Event()

    async def wait(request: Any) -> Any:
        await gate.wait()
        return await shard.at_once(request)

    async with serving(backend_of([shard]), limits=GatewayLimits(requests_max=1)) as client:
        sent = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b'{"vector": [1, 2,'
            await sent.wait()
            yield b" 3, 4]}"

        slow = asyncio.create_task(client.post("/v1/search", content=slowly(), headers=JSON))
        await settle(100)
        # The only place is free: it is taken once the whole body is there.
        assert (await client.post("/v1/search", json={"vector": VECTOR})).status_code == 200
        shard.answer = wait
        taken = asyncio.create_task(client.post("/v1/search", json={"vector": VECTOR}))
        await settle(100)
        refused = await client.post("/v1/search", json={"vector": VECTOR})
        checked(refused, 429)
        assert refused.headers["retry-after"] == "1"
        gate.set()
        assert (await taken).status_code == 200
        sent.set()
        assert (await slow).status_code == 200


async def test_bodies_that_arrive_are_bounded_together() -> None:
    async with serving(
        backend_of([CommandedChannel(0)]), limits=GatewayLimits(bodies_bytes_max=1000)
    ) as client:
        sent = asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield b" " * 900
            await sent.wait()
            yield json.dumps({"vector": VECTOR}).encode()

        slow = asyncio.create_task(client.post("/v1/search", content=slowly(), headers=JSON))
        await settle(100)
        body = b" " * 200 + json.dumps({"vector": VECTOR}).encode()
        checked(await client.post("/v1/search", content=body, headers=JSON), 429)
        sent.set()
        assert (await slow).status_code == 200
        assert (await client.post("/v1/search", content=body, headers=JSON)).status_code == 200


def test_a_disconnected_client_cancels_its_search() -> None:
    shards = [CommandedChannel(number) for number in range(3)]
    for shard in shards:
        shard.answer = shard.never

    async def run() -> None:
        backend = backend_of(shards)
        app = create_app(backend)
        hung_up = asyncio.Event()
        body = json.dumps({"vector": VECTOR}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        async with app.router.lifespan_context(app):
            request = asyncio.create_task(app(dict(SEARCH_SCOPE), receive, send))
            await asyncio.sleep(0.05)
            assert [len(shard.requests) for shard in shards] == [1, 1, 1]
            hung_up.set()
            await asyncio.wait_for(request, 5)
            await settle()
            assert [shard.canceled for shard in shards] == [1, 1, 1]
            assert backend.collection().router.queries_admitted == 0

    asyncio.run(run())


async def test_a_request_that_outlives_the_server_gets_a_typed_503() -> None:
    backend = backend_of([CommandedChannel(0)])
    app = create_app(backend)
    sent: list[Any] = []
    parts: list[Any] = []

    async def receive() -> Any:
        while not parts:
            await asyncio.Event().wait()
        return parts.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    async with app.router.lifespan_context(app):
        part = {"type": "http.request", "body": b"{", "more_body": True}
        for drained, parts[:] in ((False, []), (True, []), (True, [part])):
            sent.clear()
            task = asyncio.create_task(app(dict(SEARCH_SCOPE), receive, send))
            await settle()
            if drained:
                backend.drain()
            task.cancel()  # as uvicorn does once the time for running requests is over
            await asyncio.wait({task})
            assert task.cancelled() is not drained
            if drained:
                assert sent[0]["status"] == 503
                assert json.loads(sent[1]["body"])["error"]["type"] == "ShuttingDownError"


async def test_readiness_requires_the_configured_number_of_shards() -> None:
    shards = [CommandedChannel(number) for number in range(3)]
    shards[1].say = shards[1].raises(ShardUnavailableError("gone"))

    for wanted, status in ((None, 200), (1, 200), (2, 200), (3, 503), (99, 503)):
        backend = backend_of(shards)
        async with serving(backend, ready_shards=wanted) as client:
            answer = await client.get("/readyz")
            assert answer.status_code == status, wanted
            assert answer.json()["collections"] == {"things": "2/3 shards"}
            assert (await client.get("/livez")).json() == {"status": "ok"}
            backend.drain()
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/livez")).status_code == 200
            assert (await client.post("/v1/search", json={"vector": VECTOR})).status_code == 200


async def test_dead_shards_partial_then_503_and_readiness() -> None:
    shards = [CommandedChannel(number) for number in range(2)]
    limits = RouterLimits(probe_down_interval_s=0.01, probe_interval_s=0.05)

    async with serving(backend_of(shards, limits=limits)) as client:
        body = {"vector": VECTOR, "k": 2}
        assert (await client.get("/readyz")).json() == {
            "status": "ready",
            "collections": {"things": "2/2 shards"},
        }
        for shard in shards:
            shard.answer = shard.raises(ShardUnavailableError("gone"))
            shard.say = shard.raises(ShardUnavailableError("gone"))
            if shard.number == 0:
                answer = (await client.post("/v1/search", json=body)).json()
                assert (answer["shards_answered"], answer["shards_total"], answer["partial"]) == (1, 2, True)
                assert answer["failures"][0]["shard"] == "0"
                assert (await client.get("/readyz")).status_code == 200
                strict = await client.post("/v1/search", json=body | {"allow_partial": False})
                checked(strict, 503)
        refused = await client.post("/v1/search", json=body)
        assert checked(refused, 503)["type"] == "NoShardAnsweredError"
        assert "retry-after" in refused.headers
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        told = (await client.get("/v1/collections/things")).json()
        assert [shard["state"] for shard in told["shards"]] == ["down", "down"]
        for shard in shards:
            shard.answer, shard.say = shard.at_once, shard.well
        await asyncio.sleep(0.2)
        answer = (await client.post("/v1/search", json=body)).json()
        assert (answer["shards_answered"], answer["partial"]) == (2, False)


async def test_the_deadline_is_504() -> None:
    shard = CommandedChannel(0)
    shard.answer = shard.never

    async with serving(backend_of([shard])) as client:
        response = await client.post("/v1/search", json={"vector": VECTOR, "timeout_ms": 30})
        assert checked(response, 504)["type"] == "DeadlineExceededError"


async def test_a_slow_shard_does_not_hold_up_the_event_loop() -> None:
    shard = CommandedChannel(0)
    shard.answer = shard.never

    async with serving(backend_of([shard])) as client:
        search = asyncio.create_task(client.post("/v1/search", json={"vector": VECTOR, "timeout_ms": 200}))
        await settle()
        assert (await client.get("/healthz")).status_code == 200
        assert not search.done()
        await search


def test_a_mistake_of_ours_is_500_and_tells_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    shard = CommandedChannel(0)
    backend = backend_of([shard])

    async def explode(request: Any) -> Any:
        raise RuntimeError("secret")

    async def scene(client: httpx.AsyncClient) -> None:
        backend.collections[0].router.search = explode  # type: ignore[method-assign]
        error = checked(await client.post("/v1/search", json={"vector": VECTOR}), 500)
        assert "secret" not in json.dumps(error)

    play(backend, scene)
    assert "secret" in caplog.text


async def test_a_damaged_index_is_503_and_names_the_page(tmp_path: Path) -> None:
    index = ExactIndex(VECTORS)
    index.fail = lambda call: CorruptIndexError("page 9 of pages.bin is damaged", file="pages.bin", page=9)
    shard = Shard(ShardSpec("0", str(tmp_path)), lambda spec: index)
    shard.open()

    async with serving(backend_of([LocalChannel(shard)])) as client:
        error = checked(await client.post("/v1/search", json={"vector": VECTOR}), 503)
        assert "page 9 of pages.bin" in error["message"]
