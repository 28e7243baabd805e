"""What the log says of a request, and by which id everybody knows it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.serving.exact_gateway import serving
from tests.serving.fakes import CommandedChannel, backend_of
from velo.errors import CorruptIndexError
from velo_serving.gateway.logs import Lines
from velo_serving.protocol.errors import ShardUnavailableError
from velo_serving.protocol.limits import RouterLimits

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What velo's server writes, as it writes it with ``--log-json``."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(Lines(as_json=True))
    logger = logging.getLogger("velo_serving")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield written
    logger.removeHandler(handler)


def ask(
    channels: list[CommandedChannel], *calls: dict[str, Any], slow_s: float | None
) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        async with serving(backend_of(channels), slow_s=slow_s) as client:
            return [await client.post("/v1/search", **call) for call in calls]

    return asyncio.run(run())


def test_a_slow_request_is_logged_with_its_cost(lines: io.StringIO) -> None:
    body = {"vector": [0.0] * 4, "k": 3, "filter": {"parity": 1}}
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    slow, quick = CommandedChannel(0), CommandedChannel(0)

    async def later(asked: Any) -> Any:
        await asyncio.sleep(0.08)
        return await slow.at_once(asked)

    slow.answer = later
    (response,) = ask([slow], {"json": body, "headers": headers}, slow_s=0.05)
    assert response.headers["x-request-id"] == TRACE
    (line,) = (json.loads(line) for line in lines.getvalue().splitlines())
    assert line["message"] == "slow request"
    assert line["took_ms"] >= 80
    assert {name: line[name] for name in ("path", "status", "queries", "k", "filters", "reads")} == {
        "path": "/v1/search",
        "status": 200,
        "queries": 1,
        "k": 3,
        "filters": 1,
        "reads": 1,
    }
    assert (line["request_id"], line["trace_id"], line["parent_id"]) == (TRACE, TRACE, "b7ad6b7169203331")
    ask([quick], {"json": body}, slow_s=30.0)
    ask([quick], {"json": body}, slow_s=None)
    assert len(lines.getvalue().splitlines()) == 1


async def test_what_happens_to_shards_is_logged_without_a_word_to_clients(lines: io.StringIO) -> None:
    well, away = CommandedChannel(0), CommandedChannel(1)
    limits = RouterLimits(probe_down_interval_s=0.02)

    def logged() -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines.getvalue().splitlines()]

    async with serving(backend_of([well, away], limits=limits)) as client:
        away.answer = away.say = away.raises(
            ShardUnavailableError("shard 1 cannot be reached", detail="10.1.2.3:7100: Connection refused")
        )
        told = [await client.post("/v1/search", json={"vector": [0.0] * 4}) for _ in range(5)]
        told.append(await client.get("/v1/collections/things"))
        assert not [one for one in told if "10.1.2.3" in one.text or one.status_code != 200]
        away.answer, away.say = away.at_once, away.well
        while "up again" not in lines.getvalue():
            await asyncio.sleep(0.01)
        well.answer = well.raises(CorruptIndexError("page 7 is damaged"))
        await client.post("/v1/search", json={"vector": [0.0] * 4})
    down, partial, up, failed = logged()
    assert {one["collection"] for one in (down, partial, up, failed)} == {"things"}
    assert (down["message"], down["shard"]) == ("shard is down", "1")
    assert down["reason"] == "shard 1 cannot be reached (10.1.2.3:7100: Connection refused)"
    assert (partial["message"], partial["shards"], partial["times"]) == ("answer is partial", ["1"], 1)
    assert (up["message"], up["shard"]) == ("shard is up again", "1")
    assert up["down_s"] > 0
    assert (failed["message"], failed["reason"]) == ("shard failed", "CorruptIndexError: page 7 is damaged")


async def test_each_change_is_logged_for_an_audit(lines: io.StringIO) -> None:
    async with serving(backend_of([CommandedChannel(0)])) as client:
        await client.post("/v1/collections/things/flush", json={}, headers={"X-Request-Id": "mine"})
        await client.post("/v1/collections/things/count", json={})
        await client.delete("/v1/collections/things")
    flush, drop = (json.loads(line) for line in lines.getvalue().splitlines())
    assert (flush["message"], flush["audit"], flush["collection"]) == ("audit", "flush", "things")
    assert (flush["status"], flush["request_id"], flush["client"]) == (409, "mine", "127.0.0.1")
    assert flush["error"].startswith("ReadOnlyError: ")
    assert flush["took_ms"] >= 0
    assert (drop["audit"], drop["status"]) == ("drop", 422)


def test_the_log_in_text_has_the_same_facts() -> None:
    record = logging.makeLogRecord(
        {"msg": "shard is down", "levelname": "WARNING", "created": 0.5, "msecs": 500.0}
        | {"velo": {"shard": "1", "reason": "it ended", "down_s": 0.5}}
    )
    text = '1970-01-01T00:00:00.500Z warning shard is down shard="1" reason="it ended" down_s=0.5'
    assert Lines(as_json=False).format(record) == text


def test_ids_are_taken_over_or_made() -> None:
    body = {"vector": [0.0] * 4}
    answers = ask(
        [CommandedChannel(0)],
        {"json": body, "headers": {"X-Request-Id": "order-17"}},
        {"json": body, "headers": {"X-Request-Id": "a b\t{}"}},
        {"json": body, "headers": {"X-Request-Id": "x" * 129}},
        {"json": body, "headers": {"traceparent": "00-short-01"}},
        {"json": body},
        slow_s=None,
    )
    ids = [one.headers["x-request-id"] for one in answers]
    assert ids[0] == "order-17"
    assert len(set(ids)) == 5
    assert all(len(one) == 32 for one in ids[1:])


def test_errors_tell_the_id_even_those_that_are_our_mistake(lines: io.StringIO) -> None:
    broken = CommandedChannel(0)
    refused, unknown = ask(
        [broken],
        {"json": {"vector": [0.0]}},
        {"content": b"{", "headers": {"X-Request-Id": "bad"}},
        slow_s=None,
    )
    for one in (refused, unknown):
        assert one.json()["error"]["request_id"] == one.headers["x-request-id"]

    def crash(*_: Any) -> Any:
        raise RuntimeError("not what anybody expected")

    broken.submit = crash  # type: ignore[method-assign]
    (mistake,) = ask(
        [broken], {"json": {"vector": [0.0] * 4}, "headers": {"X-Request-Id": "mine"}}, slow_s=None
    )
    assert mistake.status_code == 500
    assert mistake.json()["error"]["request_id"] == mistake.headers["x-request-id"] == "mine"
    (line,) = (json.loads(line) for line in lines.getvalue().splitlines())
    assert line["request_id"] == "mine"
    assert "not what anybody expected" in line["trace"]
