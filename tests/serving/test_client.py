"""The client: what it sends, what it understands, when it comes back and when it gives up."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.serving.exact_gateway import VECTORS, client_of, exact, exact_backend
from velo.errors import (
    DimensionMismatchError,
    InvalidArgumentError,
    NotFiniteError,
    UnknownColumnError,
    VeloError,
)
from velo_serving import AsyncClient, Client
from velo_serving.client.client import ConnectionFailedError
from velo_serving.protocol.errors import (
    DeadlineExceededError,
    NoShardAnsweredError,
    QueueFullError,
    RemoteError,
    UnknownCollectionError,
)
from velo_serving.transport.codec import stream_of

OK = {
    "ids": [[1, 2]],
    "distances": [[0.5, 1.5]],
    "counts": [2],
    "took_ms": 1.0,
    "shards_answered": 1,
    "shards_total": 1,
    "partial": False,
}


class Script:
    """A server that gives the answers of a list in turn, and a sleep that only notes its length."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses_s: list[float] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep_async(self, seconds: float) -> None:
        self.pauses_s.append(seconds)

    def client(self, **options: Any) -> Client:
        transport = httpx.MockTransport(self.handle)
        return Client(
            "http://velo",
            transport=transport,
            async_transport=transport,
            sleep=self.pauses_s.append,
            sleep_async=self.sleep_async,
            **options,
        )


def busy(status: int = 429, retry_after: str | None = "2", kind: str = "QueueFullError") -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status, json={"error": {"type": kind, "message": "busy"}}, headers=headers)


def search(client: Client, asynchronous: bool, *arguments: Any, **options: Any) -> Any:
    """Search by either way."""
    if not asynchronous:
        with client:
            return client.search(*arguments, **options)

    async def run() -> Any:
        async with client:
            return await client.search_async(*arguments, **options)

    return asyncio.run(run())


both = pytest.mark.parametrize("asynchronous", [False, True])


@both
def test_the_client_retries_after_the_given_time(asynchronous: bool) -> None:
    script = Script(busy(429), busy(503, "0.5"), httpx.ConnectError("refused"), httpx.Response(200, json=OK))
    result = search(script.client(), asynchronous, [0.0, 0.0], 2)
    assert result.ids.tolist() == [1, 2]
    assert len(script.requests) == 4
    first, second, third = script.pauses_s
    assert 2.0 <= first <= 2.5
    assert 0.5 <= second <= 0.625
    assert third > 0
    assert len({request.content for request in script.requests}) == 1


@both
def test_the_client_gives_up_after_its_retries(asynchronous: bool) -> None:
    script = Script(*[busy() for _ in range(3)])
    with pytest.raises(QueueFullError, match="busy") as raised:
        search(script.client(retries=2), asynchronous, [0.0], 1)
    assert raised.value.retry_after_s == 2.0
    assert len(script.requests) == 3


@both
def test_the_client_does_not_wait_beyond_its_deadline(asynchronous: bool) -> None:
    script = Script(busy(503, "60", "NoShardAnsweredError"))
    with pytest.raises(NoShardAnsweredError):
        search(script.client(timeout_s=5), asynchronous, [0.0], 1)
    assert script.pauses_s == []


@both
def test_permanent_errors_are_not_retried(asynchronous: bool) -> None:
    for status, kind, known in (
        (400, "UnknownColumnError", UnknownColumnError),
        (404, "UnknownCollectionError", UnknownCollectionError),
        (504, "DeadlineExceededError", DeadlineExceededError),
        (500, "ZeroDivisionError", RemoteError),
        (422, "os", RemoteError),
    ):
        script = Script(busy(status, None, kind))
        with pytest.raises(VeloError) as raised:
            search(script.client(), asynchronous, [0.0], 1)
        assert type(raised.value) is known
        assert len(script.requests) == 1


def test_an_answer_that_is_no_error_of_ours_keeps_its_status() -> None:
    script = Script(httpx.Response(502, text="<html>bad gateway"))
    with pytest.raises(RemoteError, match="502") as raised:
        search(script.client(), False, [0.0], 1)
    assert raised.value.status == 502


def test_a_timeout_is_not_retried() -> None:
    script = Script(httpx.ReadTimeout("slow"))
    with pytest.raises(DeadlineExceededError):
        search(script.client(), False, [0.0], 1)
    assert len(script.requests) == 1


def test_a_refused_connection_is_a_typed_error_after_retries() -> None:
    script = Script(*[httpx.ConnectError("refused") for _ in range(5)])
    with pytest.raises(ConnectionFailedError, match="refused"):
        search(script.client(), False, [0.0], 1)
    assert script.pauses_s == sorted(script.pauses_s)
    with script.client() as client:
        assert client.ready() is False


def test_retry_after_as_a_date() -> None:
    from email.utils import formatdate

    script = Script(busy(429, formatdate(time.time() + 3)), busy(429, "soon"), httpx.Response(200, json=OK))
    search(script.client(), False, [0.0], 2)
    assert 1.0 <= script.pauses_s[0] <= 4.0
    assert script.pauses_s[1] < 1.0


def test_wrong_arguments_are_refused_before_a_request() -> None:
    client = Script().client()
    with pytest.raises(InvalidArgumentError, match="queries or ids"):
        client.search()
    with pytest.raises(InvalidArgumentError, match="queries or ids"):
        client.search([0.0], ids=[1])
    with pytest.raises(NotFiniteError):
        client.search([float("nan")])
    with pytest.raises(DimensionMismatchError):
        client.search(np.zeros((1, 1, 2)))
    with pytest.raises(InvalidArgumentError, match="body_format"):
        Client("http://velo", body_format="xml")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="retries"):
        Client("http://velo", retries=-1)


@pytest.mark.parametrize("body_format", ["json", "arrow"])
async def test_against_the_gateway(tmp_path: Path, body_format: Any) -> None:
    odd = np.arange(len(VECTORS)) % 2 == 1

    async with client_of(exact_backend(tmp_path), body_format=body_format) as client:
        ids, distances = await client.search(VECTORS[:3], k=4)
        assert ids.tolist() == exact(VECTORS[:3], 4)
        assert distances.dtype == np.float32
        one = await client.search(VECTORS[0], k=60, filter={"parity": 1}, timeout_s=5, allow_partial=False)
        assert one.ids.shape == one.distances.shape == (60,)
        assert one.counts.tolist() == [20]
        assert one.ids[:20].tolist() == exact(VECTORS[0], 20, odd)[0]
        assert (one.ids[20:] == -1).all()
        assert np.isinf(one.distances[20:]).all()
        assert (one.shards_answered, one.partial, one.stats["reads"].sum()) == (4, False, 12)
        each = await client.search(
            VECTORS[:2], k=2, filters=[None, {"parity": 1}], return_metadata=["parity"]
        )
        assert each.ids.tolist() == exact(VECTORS[:1], 2) + exact(VECTORS[1:2], 2, odd)
        assert each.metadata is not None
        assert each.metadata[1].column("parity").to_pylist() == [1, 1]
        whole = await client.search(VECTORS[0], k=2, return_metadata=True)
        assert whole.metadata.column_names == ["parity"]
        none = await client.search(VECTORS[0], k=2, return_metadata=False)
        assert none.metadata is None
        with pytest.raises(InvalidArgumentError, match="return_metadata"):
            await client.search(VECTORS[0], return_metadata=5)  # type: ignore[arg-type]
        with pytest.raises(UnknownColumnError, match="colour"):
            await client.search(VECTORS[0], filter={"colour": 1})
        with pytest.raises(DimensionMismatchError):
            await client.search([1.0, 2.0])


# ---- one source, blocking and awaited ----

_WROTE = {"rows": 1, "missing": 0, "replaced": 0, "first_id": None, "repeated": False, "durable": True}
_FOUND: dict[str, Any] = {
    "ids": [[3]],
    "distances": [[0.5]],
    "counts": [1],
    "limited": [False],
    "took_ms": 1.0,
}
_FOUND["stats"] = dict.fromkeys(("reads", "bytes_read", "shared_reads", "cache_hits"), 1)
_ROWS = pa.table({"id": [3]})
#: A question of each kind, and what a gateway answers.
_QUESTIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any] | pa.Table]] = {
    "search": (([[0.0, 1.0]], 1), _FOUND),
    "range_search": (([[0.0, 1.0]], 2.0), _FOUND),
    "count": ((), {"count": 7}),
    "get": (([3],), _ROWS),
    "rows": ((), _ROWS),
    "explain": (([0.0, 1.0],), {"shards": [{"shard": "0"}]}),
    "publish": (("/x", "v2"), {"version": "v2"}),
    "snapshot": (("/x",), {"path": "/x"}),
    "move": (("1", "/x"), {"shard": "1", "path": "/x", "held_ms": 1.0}),
    "drop": ((), {"left": []}),
    "create": (("things",), {"name": "things"}),
    "insert": (([[0.0, 1.0]], [3]), _WROTE),
    "upsert": (([[0.0, 1.0]], [3]), _WROTE),
    "update": (([3], {"year": [1]}), _WROTE),
    "delete": (([3],), _WROTE),
    "info": ((), {"name": "things"}),
}


def test_the_table_has_every_awaited_method() -> None:
    awaited = {name.removesuffix("_async") for name in dir(Client) if name.endswith("_async")}
    assert {name for name in awaited if not name.startswith("_")} == set(_QUESTIONS)


@pytest.mark.parametrize("name", _QUESTIONS)
def test_awaited_methods_agree_with_blocking_ones(name: str) -> None:
    arguments, answer = _QUESTIONS[name]
    keywords = {"dim": 8} if name == "create" else {}
    status = {"shards_answered": 1, "shards_total": 1, "sequences": {"0": 4}, "pressure": 0.0}
    asked: list[tuple[str, str]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path))
        if isinstance(answer, pa.Table):
            return httpx.Response(200, content=stream_of(answer))
        return httpx.Response(200, json={**status, **answer} if name != "info" else answer)

    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError("the loop was blocked")

    with Client("http://velo", collection="things", transport=httpx.MockTransport(respond)) as client:
        blocking = getattr(client, name)(*arguments, **keywords)

    async def run() -> Any:
        transports: dict[str, Any] = {
            "transport": httpx.MockTransport(refuse),
            "async_transport": httpx.MockTransport(respond),
        }
        async with Client("http://velo", collection="things", **transports) as client:
            beside = await getattr(client, f"{name}_async")(*arguments, **keywords)
        alone = httpx.MockTransport(respond)
        async with AsyncClient("http://velo", collection="things", transport=alone) as client:
            return beside, await getattr(client, name)(*arguments, **keywords)

    assert [repr(one) for one in asyncio.run(run())] == [repr(blocking)] * 2
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize(("name", "waits"), [("flush", 2), ("optimize", 2)])
def test_unfinished_flushes_and_optimizations_are_polled(name: str, waits: int) -> None:
    answers = [{"done": one == waits} for one in range(waits + 1)]
    asked: list[dict[str, Any]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json=answers[(len(asked) - 1) % len(answers)])

    async def run() -> bool:
        alone = httpx.MockTransport(respond)
        async with AsyncClient("http://velo", collection="things", transport=alone) as client:
            return bool(await getattr(client, name)())

    with Client("http://velo", collection="things", transport=httpx.MockTransport(respond)) as client:
        assert getattr(client, name)() is True
        assert len(asked) == waits + 1
        assert asyncio.run(run()) is True
        assert len(asked) == 2 * (waits + 1)
        if name == "optimize":
            assert client.optimize(wait=False) is False
            assert asked[-1] == {"wait": False}
