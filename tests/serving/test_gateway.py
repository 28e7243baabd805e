"""The gateway over exact shards: answers in every form, and every kind of bad request."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.serving.fakes import CommandedChannel, ExactIndex, backend_of, settle
from velo.errors import CorruptIndexError
from velo.options import limit_of
from velo_serving.backend import Backend, Generation, ServedCollection
from velo_serving.errors import ShardUnavailableError
from velo_serving.gateway import GatewayLimits, create_app
from velo_serving.gateway.bodies import parse_search
from velo_serving.gateway.schemas import CollectionAnswer, ErrorAnswer, SearchAnswer
from velo_serving.local_backend import LocalChannel
from velo_serving.router import Router, RouterLimits
from velo_serving.shard import Shard, ShardSpec

VECTORS = np.random.default_rng(3).standard_normal((40, 4)).astype(np.float32)
SHARDS = 4
NPY = {"Content-Type": "application/x-npy"}
ARROW_TYPE = "application/vnd.apache.arrow.stream"
JSON = {"Content-Type": "application/json"}


def exact_backend(folder: Path, names: tuple[str, ...] = ("things",)) -> Backend:
    """Collections of four exact shards each, all over the same vectors."""
    served = []
    for name in names:
        per_shard = len(VECTORS) // SHARDS
        channels = []
        for number in range(SHARDS):
            part = ExactIndex(VECTORS[number * per_shard : (number + 1) * per_shard], number * per_shard)
            shard = Shard(ShardSpec(str(number), str(folder)), lambda spec, part=part: part)
            shard.open()
            channels.append(LocalChannel(shard))
        served.append(ServedCollection(name, Generation(len(VECTORS), 4, "l2", Router(name, channels))))
    return Backend(served)


@asynccontextmanager
async def serving(backend: Backend, limits: GatewayLimits | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app that runs in this event loop."""
    app = create_app(backend, limits=limits)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://velo") as client,
    ):
        yield client


def play(
    backend: Backend,
    scene: Callable[[httpx.AsyncClient], Awaitable[None]],
    limits: GatewayLimits | None = None,
) -> None:
    """Run a scene against a served backend."""

    async def run() -> None:
        async with serving(backend, limits) as client:
            await scene(client)

    asyncio.run(run())


def exact(queries: np.ndarray, k: int, passing: np.ndarray | None = None) -> list[list[int]]:
    """Row numbers of the nearest vectors."""
    distances = ((VECTORS[None] - np.atleast_2d(queries)[:, None]) ** 2).sum(axis=2)
    if passing is not None:
        distances[:, ~passing] = np.inf
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return [
        [int(one) for one in row if np.isfinite(distances[place, one])] for place, row in enumerate(order)
    ]


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def arrow(**columns: Any) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


# ---- answers ----


def test_json_one_and_many(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        one = await client.post("/v1/search", json={"vector": VECTORS[5].tolist(), "k": 3})
        assert one.status_code == 200
        answer = SearchAnswer.model_validate(one.json())
        assert answer.ids == exact(VECTORS[5], 3)
        assert answer.ids[0][0] == 5
        assert answer.distances[0][0] == pytest.approx(0.0)
        assert (answer.shards_answered, answer.shards_total, answer.partial) == (4, 4, False)
        assert answer.took_ms > 0
        assert answer.stats.reads == 12
        many = await client.post("/v1/search", json={"vectors": VECTORS[:7].tolist(), "k": 5})
        assert many.json()["ids"] == exact(VECTORS[:7], 5)
        assert many.json()["counts"] == [5] * 7
        whole = await client.post("/v1/search", json={"vectors": [[0, 1, 2, 3]]})  # whole numbers are numbers
        assert whole.status_code == 200

    play(exact_backend(tmp_path), scene)


def test_filters_for_all_and_for_each(tmp_path: Path) -> None:
    odd = np.arange(len(VECTORS)) % 2 == 1

    async def scene(client: httpx.AsyncClient) -> None:
        body: dict[str, Any] = {"vectors": VECTORS[:2].tolist(), "k": 4}
        answer = await client.post("/v1/search", json=body | {"filter": {"parity": 1}})
        assert answer.json()["ids"] == exact(VECTORS[:2], 4, odd)
        answer = await client.post("/v1/search", json=body | {"filters": [None, {"parity": 1}]})
        assert answer.json()["ids"] == exact(VECTORS[:1], 4) + exact(VECTORS[1:2], 4, odd)

    play(exact_backend(tmp_path), scene)


def test_fewer_matches_than_k_are_shorter_rows(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        answer = (await client.post("/v1/search", json={"vector": VECTORS[0].tolist(), "k": 60})).json()
        assert answer["counts"] == [40]
        assert len(answer["ids"][0]) == len(answer["distances"][0]) == 40
        nothing = {"vector": VECTORS[0].tolist(), "filter": {"parity": 2}}
        answer = (await client.post("/v1/search", json=nothing)).json()
        assert (answer["ids"], answer["counts"]) == ([[]], [0])

    play(exact_backend(tmp_path), scene)


def test_metadata_in_json_and_arrow(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        body = {"vectors": VECTORS[:3].tolist(), "k": 2, "return_metadata": ["parity"]}
        answer = (await client.post("/v1/search", json=body)).json()
        assert answer["metadata"] == [[{"parity": one % 2} for one in row] for row in answer["ids"]]
        response = await client.post("/v1/search", json=body, headers={"Accept": ARROW_TYPE})
        assert response.headers["content-type"] == ARROW_TYPE
        table = pa.ipc.open_stream(response.content).read_all()
        assert table.column_names == ["query", "rank", "id", "distance", "parity"]
        assert table.column("id").to_pylist() == [one for row in answer["ids"] for one in row]
        assert table.column("query").to_pylist() == [0, 0, 1, 1, 2, 2]
        status = json.loads(table.schema.metadata[b"velo"])
        assert (status["shards_answered"], status["query_count"], status["k"]) == (4, 3, 2)

    play(exact_backend(tmp_path), scene)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_in_npz_out(tmp_path: Path, dtype: str, order: Any) -> None:
    queries = np.array(VECTORS[:5].astype(dtype), order=order)

    async def scene(client: httpx.AsyncClient) -> None:
        response = await client.post(
            "/v1/search",
            content=npy(queries),
            headers=NPY | {"Accept": "application/x-npz"},
            params={"k": 3, "filter": '{"parity": 1}'},
        )
        assert response.status_code == 200, response.text
        with np.load(io.BytesIO(response.content)) as arrays:
            odd = np.arange(len(VECTORS)) % 2 == 1
            assert arrays["ids"].tolist() == exact(queries.astype(np.float32), 3, odd)
            assert arrays["counts"].tolist() == [3] * 5
            assert arrays["distances"].dtype == np.float32
        assert json.loads(response.headers["velo-answer"])["shards_answered"] == 4
        as_json = await client.post("/v1/search", content=npy(queries[0]), headers=NPY, params={"k": 3})
        assert as_json.json()["ids"] == exact(queries[0].astype(np.float32), 3)

    play(exact_backend(tmp_path), scene)


def test_arrow_in_with_a_filter_each(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        for kind in (pa.list_(pa.float32()), pa.list_(pa.float64()), pa.list_(pa.float32(), 4)):
            body = arrow(
                vector=pa.array(VECTORS[:2].tolist(), kind),
                filter=pa.array(['{"parity": 1}', None], pa.string()),
            )
            response = await client.post(
                "/v1/search", content=body, headers={"Content-Type": ARROW_TYPE}, params={"k": 3}
            )
            odd = np.arange(len(VECTORS)) % 2 == 1
            assert response.json()["ids"] == exact(VECTORS[:1], 3, odd) + exact(VECTORS[1:2], 3)

    play(exact_backend(tmp_path), scene)


def test_several_collections(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        body = {"vector": VECTORS[5].tolist(), "k": 3}
        assert (await client.post("/v1/search", json=body)).status_code == 404
        response = await client.post("/v1/collections/b/search", json=body)
        assert response.json()["ids"] == exact(VECTORS[5], 3)
        response = await client.post("/v1/collections/c/search", json=body)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "UnknownCollectionError"
        assert "a, b" in response.json()["error"]["message"]
        listed = (await client.get("/v1/collections")).json()["collections"]
        assert [(one["name"], one["n"], one["shards_up"]) for one in listed] == [("a", 40, 4), ("b", 40, 4)]
        told = CollectionAnswer.model_validate((await client.get("/v1/collections/a")).json())
        assert (told.dim, told.metric, told.columns) == (4, "l2", ["parity"])
        assert [(shard.name, shard.state, shard.n) for shard in told.shards] == [
            (str(i), "up", 10) for i in range(4)
        ]
        assert (await client.get("/v1/collections/c")).status_code == 404

    play(exact_backend(tmp_path, ("a", "b")), scene)


# ---- bad requests ----


def checked(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an answer that must have this status."""
    assert response.status_code == status, response.text
    ErrorAnswer.model_validate(response.json())
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"", {"line": 1, "column": 0, "byte": 0}),
        (b"vector", {"line": 1, "column": 1, "byte": 0}),
        (b'{"vector": [1, 2, 3, 4}', {"line": 1, "column": 23, "byte": 22}),
        (b'{"vector": [1, 2,\n  3, x]}', {"line": 2, "column": 6, "byte": 23}),
        (b'{"vector": [1, 2, 3, 4]', {"line": 1, "column": 23, "byte": 22}),
        (b'{"vector": [1, 2, 3, 4]} {}', {"line": 1, "column": 26, "byte": 25}),
        (b'{"vector": "\xff"}', None),
        (b"[" * 5000, None),
    ],
)
def test_what_is_not_json_is_400_with_the_position(tmp_path: Path, body: bytes, position: Any) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        error = checked(await client.post("/v1/search", content=body, headers=JSON), 400)
        assert error["type"] == "MalformedBodyError"
        if position is not None:
            assert error["position"] == position

    play(exact_backend(tmp_path), scene)


VECTOR = [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ({"k": 3}, 422, None),
        ([], 422, None),
        ({"vector": VECTOR, "vectors": [VECTOR]}, 422, None),
        ({"vector": "text"}, 422, "vector"),
        ({"vector": [1, 2, "3", 4]}, 422, "vector[2]"),
        ({"vector": [1, 2, True, 4]}, 422, "vector[2]"),
        ({"vector": [1, 2, None, 4]}, 422, "vector[2]"),
        ({"vectors": [VECTOR, [1, 2]]}, 422, "vectors[1]"),
        ({"vector": [1, 2, 3]}, 422, "vector"),
        ({"vector": [1, 2, 3, 4, 5]}, 422, "vector"),
        ({"vector": []}, 422, "vector"),
        ({"vectors": []}, 422, None),
        ({"vectors": VECTOR}, 422, "vectors[0]"),
        ({"vector": VECTOR, "k": 0}, 422, "k"),
        ({"vector": VECTOR, "k": -1}, 422, "k"),
        ({"vector": VECTOR, "k": "3"}, 422, "k"),
        ({"vector": VECTOR, "k": 2.5}, 422, "k"),
        ({"vector": VECTOR, "k": 10**30}, 422, "k"),
        ({"vector": VECTOR, "k": 10_001}, 422, "k"),
        ({"vector": VECTOR, "recall": 1.5}, 422, "recall"),
        ({"vector": VECTOR, "list_size": 0}, 422, "list_size"),
        ({"vector": VECTOR, "timeout_ms": 0}, 422, "timeout_ms"),
        ({"vector": VECTOR, "return_metadata": "parity"}, 422, "return_metadata"),
        ({"vector": VECTOR, "speed": "fast"}, 422, "speed"),
        ({"vector": VECTOR, "filters": [None, None]}, 422, None),
        ({"vector": VECTOR, "filter": {"parity": 1}, "filters": [None]}, 422, None),
        ({"vector": VECTOR, "filter": "parity = = 1"}, 400, "filter"),
        ({"vector": VECTOR, "filter": 3}, 422, "filter"),
        ({"vector": VECTOR, "filter": {"parity": {"$gtt": 1}}}, 400, "filter.parity.$gtt"),
        ({"vector": VECTOR, "filter": {"$or": {}}}, 400, "filter.$or"),
        ({"vectors": [VECTOR] * 2, "filters": [{}, {"a": {"b": 1}}]}, 400, "filters[1].a"),
        ({"vector": VECTOR, "filter": {"colour": 1}}, 400, "$.colour"),
        ({"vector": VECTOR, "filter": {"parity": "odd"}}, 400, "$.parity"),
    ],
)
def test_bad_fields_are_refused_with_their_path(
    tmp_path: Path, body: Any, status: int, path: str | None
) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        error = checked(await client.post("/v1/search", json=body), status)
        if path is not None:
            assert error["position"]["path"] == path, error

    play(exact_backend(tmp_path), scene)


@pytest.mark.parametrize("argument", ["k", "list_size", "limit", "group_size"])
def test_both_ends_of_a_limit_are_taken_and_nothing_beyond(tmp_path: Path, argument: str) -> None:
    """The schema has the limits of ``velo.h``, in JSON and in the query string."""
    low, high = limit_of("group_hits" if argument == "group_size" else argument)
    others: dict[str, Any] = {"limit": {"radius": 1.0}, "group_size": {"group_by": "parity", "k": 1}}
    body = {"vector": VECTOR, **others.get(argument, {})}
    own = GatewayLimits(k_max=1 << 25, hits_max=1 << 26)  # the service's bounds lie above

    async def scene(client: httpx.AsyncClient) -> None:
        for value in (low - 1, high + 1):
            error = checked(await client.post("/v1/search", json=body | {argument: value}), 422)
            assert (error["type"], error["argument"]) == ("InvalidArgumentError", argument)
            assert error["position"]["path"] == argument
            options = {name: one for name, one in body.items() if name != "vector"} | {argument: value}
            response = await client.post(
                "/v1/search", params=options, content=npy(np.zeros((1, 4), np.float32)), headers=NPY
            )
            assert checked(response, 422)["type"] == "InvalidArgumentError"
        parse_search(JSON["Content-Type"], json.dumps(body | {argument: low}).encode(), [], dim=4, limits=own)
        parse_search(
            JSON["Content-Type"], json.dumps(body | {argument: high}).encode(), [], dim=4, limits=own
        )

    play(exact_backend(tmp_path), scene)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1e39", "-1e39"])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, number: str) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        body = f'{{"vectors": [[0, 0, 0, 0], [0, {number}, 0, 0]]}}'
        response = await client.post("/v1/search", content=body, headers=JSON)
        assert response.status_code in (400, 422), response.text
        assert response.json()["error"]["type"] in ("NotFiniteError", "MalformedBodyError")
        assert "[1][1]" in response.text or "column" in response.text
        if number != "1e39" and number != "-1e39":
            body = f'{{"vector": [0, 0, 0, 0], "filter": {{"parity": {{"$gt": {number}}}}}}}'
            checked(await client.post("/v1/search", content=body, headers=JSON), 400)

    play(exact_backend(tmp_path), scene)


def test_the_wrong_filter_of_many_is_named(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        body = {"vectors": [VECTOR] * 3, "filters": [None, {"parity": 1}, {"colour": 1}]}
        error = checked(await client.post("/v1/search", json=body), 400)
        assert error["position"] == {"path": "$.colour", "query": 2}
        assert error["type"] == "UnknownColumnError"

    play(exact_backend(tmp_path), scene)


def header_of(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"hello", 400),
        (b"\x93NUMPY\x01\x00\xff\xff", 400),
        (b"\x93NUMPY\x09\x00" + b"\x00" * 100, 400),
        (npy(VECTORS[:2])[:-1], 400),
        (npy(VECTORS[:2]) + b"x", 400),
        (header_of("(1000000000000, 4)"), 400),
        (header_of("(4611686018427387904, 4)"), 400),
        (header_of("(-1, 4)"), 422),
        (header_of("__import__('os')"), 400),
        (header_of("(1, 4)", "'|O'") + b"\x00" * 8, 422),
        (header_of("(1,)", "[('a', '<f4', 4)]") + b"\x00" * 16, 422),
        (npy(np.zeros((1, 4), dtype=np.int64)), 422),
        (npy(np.zeros((1, 4), dtype=np.complex64)), 422),
        (npy(np.zeros((1, 1, 4), dtype=np.float32)), 422),
        (npy(np.float32(1.0)), 422),
        (npy(np.zeros((2, 3), dtype=np.float32)), 422),
        (npy(np.zeros((0, 4), dtype=np.float32)), 422),
        (npy(np.full((2, 4), np.nan, dtype=np.float32)), 422),
        (npy(np.full((2, 4), 1e300)), 422),
    ],
)
def test_bad_npy(tmp_path: Path, body: bytes, status: int) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        checked(await client.post("/v1/search", content=body, headers=NPY), status)

    play(exact_backend(tmp_path), scene)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"not arrow", 400),
        (arrow(vector=pa.array(VECTORS[:2].tolist()))[:-40], 400),
        (arrow(other=pa.array([1])), 422),
        (arrow(vector=pa.array([1.0])), 422),
        (arrow(vector=pa.array([["a"]])), 422),
        (arrow(vector=pa.array([[1.0] * 4, None])), 422),
        (arrow(vector=pa.array([[1.0, None, 1.0, 1.0]])), 422),
        (arrow(vector=pa.array([[1.0] * 4, [1.0]])), 422),
        (arrow(vector=pa.array([], pa.list_(pa.float32()))), 422),
        (arrow(vector=pa.array([[1.0] * 4]), filter=pa.array(["{"])), 400),
        (arrow(vector=pa.array([[1.0] * 4]), filter=pa.array(["[]"])), 400),
        (arrow(vector=pa.array([[1.0] * 4]), filter=pa.array([7])), 400),
    ],
)
def test_bad_arrow(tmp_path: Path, body: bytes, status: int) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        checked(await client.post("/v1/search", content=body, headers={"Content-Type": ARROW_TYPE}), status)

    play(exact_backend(tmp_path), scene)


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"k": "many"}, 422),
        ({"k": 0}, 422),
        ({"speed": "fast"}, 422),
        ({"filter": "{"}, 400),
        ({"filter": "[]"}, 422),
        ({"filter": '{"parity": {"$gt": NaN}}'}, 400),
        ({"filter": '{"colour": 1}'}, 400),
        ([("k", 1), ("k", 2)], 422),
        ({"timeout_ms": "nan"}, 422),
    ],
)
def test_bad_query_strings(tmp_path: Path, params: Any, status: int) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        checked(await client.post("/v1/search", content=npy(VECTORS[:1]), headers=NPY, params=params), status)

    play(exact_backend(tmp_path), scene)


def test_options_beside_a_json_body_are_refused_not_ignored(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        error = checked(await client.post("/v1/search", json={"vector": VECTOR}, params={"k": 3}), 422)
        assert error["argument"] == "k"

    play(exact_backend(tmp_path), scene)


def test_methods_paths_and_types(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        assert checked(await client.get("/v1/nothing"), 404)["type"] == "NotFound"
        assert checked(await client.get("/v1/search"), 405)["type"] == "MethodNotAllowed"
        for content_type in ("text/plain", "application/xml", "multipart/form-data"):
            response = await client.post("/v1/search", content=b"{}", headers={"Content-Type": content_type})
            assert checked(response, 415)["type"] == "UnsupportedMediaTypeError"
        body = {"vector": VECTOR}
        checked(await client.post("/v1/search", json=body, headers={"Content-Encoding": "gzip"}), 415)
        checked(await client.post("/v1/search", json=body, headers={"Accept": "text/html"}), 406)
        for accepted in ("*/*", "text/html, application/json;q=0.5", "application/json; charset=utf-8"):
            response = await client.post("/v1/search", json=body, headers={"Accept": accepted})
            assert response.headers["content-type"] == "application/json"
        named = body | {"return_metadata": ["parity"]}
        checked(await client.post("/v1/search", json=named, headers={"Accept": "application/x-npz"}), 406)

    play(exact_backend(tmp_path), scene)


def test_bodies_above_the_limits_are_413(tmp_path: Path) -> None:
    limits = GatewayLimits(body_bytes_max=4096, queries_max=8, hits_max=100, body_discard_bytes_max=10_000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 500

    async def scene(client: httpx.AsyncClient) -> None:
        for content in (b" " * 4097, b" " * 50_000, chunks()):
            error = checked(await client.post("/v1/search", content=content, headers=JSON), 413)
            assert error["type"] == "BodyTooLargeError"
        checked(await client.post("/v1/search", json={"vectors": [VECTOR] * 9}), 413)
        checked(await client.post("/v1/search", json={"vectors": [VECTOR] * 8, "k": 13}), 413)
        assert (await client.post("/v1/search", json={"vectors": [VECTOR] * 8, "k": 12})).status_code == 200
        assert (
            await client.post("/v1/search", content=b'{"vector": [0,0,0,0]}'.ljust(4096), headers=JSON)
        ).is_success

    play(exact_backend(tmp_path), scene, limits)


def test_a_body_that_does_not_come_is_408(tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    async def scene(client: httpx.AsyncClient) -> None:
        checked(await client.post("/v1/search", content=slow(), headers=JSON), 408)

    play(exact_backend(tmp_path), scene, GatewayLimits(body_read_s=0.05))


# ---- load and failure ----


def test_a_full_queue_is_429_with_retry_after() -> None:
    shards = [CommandedChannel(0)]
    gate = asyncio.Event()

    async def wait(request: Any) -> Any:
        await gate.wait()
        return await shards[0].at_once(request)

    shards[0].answer = wait
    limits = RouterLimits(queue_queries_max=2)

    async def scene(client: httpx.AsyncClient) -> None:
        taken = [asyncio.create_task(client.post("/v1/search", json={"vector": VECTOR})) for _ in range(2)]
        await settle(100)
        refused = await client.post("/v1/search", json={"vector": VECTOR})
        checked(refused, 429)
        assert refused.headers["retry-after"] == "1"
        gate.set()
        assert [response.status_code for response in await asyncio.gather(*taken)] == [200, 200]
        assert 'outcome="rejected"} 1.0' in (await client.get("/metrics")).text

    play(backend_of(shards, limits=limits), scene)


def test_a_client_that_sends_slowly_holds_nobodys_place() -> None:
    shard = CommandedChannel(0)
    gate = asyncio.Event()

    async def wait(request: Any) -> Any:
        await gate.wait()
        return await shard.at_once(request)

    async def scene(client: httpx.AsyncClient) -> None:
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

    play(backend_of([shard]), scene, GatewayLimits(requests_max=1))


def test_bodies_that_arrive_are_bounded_together() -> None:
    async def scene(client: httpx.AsyncClient) -> None:
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

    play(backend_of([CommandedChannel(0)]), scene, GatewayLimits(bodies_bytes_max=1000))


def test_a_client_that_hangs_up_ends_its_search() -> None:
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

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/search",
            "raw_path": b"/v1/search",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        async with app.router.lifespan_context(app):
            request = asyncio.create_task(app(scope, receive, send))
            await asyncio.sleep(0.05)
            assert [len(shard.requests) for shard in shards] == [1, 1, 1]
            hung_up.set()
            await asyncio.wait_for(request, 5)
            await settle()
            assert [shard.canceled for shard in shards] == [1, 1, 1]
            assert backend.collection().router.queries_admitted == 0

    asyncio.run(run())


def test_who_asks_for_all_shards_is_not_ready_without_one() -> None:
    shards = [CommandedChannel(number) for number in range(3)]
    shards[1].say = shards[1].raises(ShardUnavailableError("gone"))

    async def run() -> None:
        for wanted, status in ((None, 200), (1, 200), (2, 200), (3, 503), (99, 503)):
            backend = backend_of(shards)
            app = create_app(backend, ready_shards=wanted)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://velo") as client,
            ):
                answer = await client.get("/readyz")
                assert answer.status_code == status, wanted
                assert answer.json()["collections"] == {"things": "2/3 shards"}
                assert (await client.get("/livez")).json() == {"status": "ok"}
                backend.drain()
                assert (await client.get("/readyz")).status_code == 503
                assert (await client.get("/livez")).status_code == 200
                assert (await client.post("/v1/search", json={"vector": VECTOR})).status_code == 200

    asyncio.run(run())


def test_dead_shards_partial_then_503_and_readiness() -> None:
    shards = [CommandedChannel(number) for number in range(2)]
    limits = RouterLimits(probe_down_interval_s=0.01, probe_interval_s=0.05)

    async def scene(client: httpx.AsyncClient) -> None:
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

    play(backend_of(shards, limits=limits), scene)


def test_the_deadline_is_504() -> None:
    shard = CommandedChannel(0)
    shard.answer = shard.never

    async def scene(client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/search", json={"vector": VECTOR, "timeout_ms": 30})
        assert checked(response, 504)["type"] == "DeadlineExceededError"

    play(backend_of([shard]), scene)


def test_a_slow_shard_does_not_hold_up_the_event_loop() -> None:
    shard = CommandedChannel(0)
    shard.answer = shard.never

    async def scene(client: httpx.AsyncClient) -> None:
        search = asyncio.create_task(client.post("/v1/search", json={"vector": VECTOR, "timeout_ms": 200}))
        await settle()
        assert (await client.get("/healthz")).status_code == 200
        assert not search.done()
        await search

    play(backend_of([shard]), scene)


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


def test_a_damaged_index_is_503_and_names_the_page(tmp_path: Path) -> None:
    index = ExactIndex(VECTORS)
    index.fail = lambda call: CorruptIndexError("page 9 of pages.bin is damaged", file="pages.bin", page=9)
    shard = Shard(ShardSpec("0", str(tmp_path)), lambda spec: index)
    shard.open()

    async def scene(client: httpx.AsyncClient) -> None:
        error = checked(await client.post("/v1/search", json={"vector": VECTOR}), 503)
        assert "page 9 of pages.bin" in error["message"]

    play(backend_of([LocalChannel(shard)]), scene)


# ---- documents and metrics ----


def test_the_documentation_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        page = await client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        for path in ("/v1/search", "/v1/collections/{name}/search", "/healthz", "/readyz", "/metrics"):
            assert path in page.text
        assert "http://" not in page.text
        assert "https://" not in page.text
        document = (await client.get("/openapi.json")).json()
        search = document["paths"]["/v1/search"]["post"]
        assert set(search["requestBody"]["content"]) == {"application/json", "application/x-npy", ARROW_TYPE}
        assert {"400", "404", "413", "415", "422", "429", "503", "504"} <= set(search["responses"])
        assert "SearchAnswer" in document["components"]["schemas"]
        # Defaults of the fields, and an answer to look at.
        assert "<td><code>k</code></td><td>integer</td><td><code>10</code></td>" in page.text
        assert "&quot;shards_answered&quot;: 1" in page.text
        root = await client.get("/")
        assert (root.status_code, root.headers["location"]) == (307, "docs")

    play(exact_backend(tmp_path), scene)


def test_a_field_of_another_name_is_told_velos(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        for field, said in (
            ("top_k", "top_k: there is no such field; velo's is k"),
            ("ef", "ef: there is no such field; velo's is list_size, or recall"),
            ("with_payload", "velo's is return_metadata"),
            ("score_threshold", "velo's is radius"),
            ("colour", "colour: there is no such field"),
            ("M", "M: there is no such field"),
        ):
            answer = await client.post("/v1/search", json={"vector": [0.0] * 4, field: 3})
            assert answer.status_code == 422
            assert answer.json()["error"]["message"].endswith(said)

    play(exact_backend(tmp_path), scene)


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async def scene(client: httpx.AsyncClient) -> None:
        await client.post("/v1/search", json={"vectors": VECTORS[:3].tolist()})
        await client.post("/v1/search", json={"vector": [1]})
        await client.get("/nowhere/at/all")
        text = (await client.get("/metrics")).text
        for line in (
            'velo_searches_total{collection="things",outcome="complete"} 1.0',
            'velo_queries_total{collection="things"} 3.0',
            'velo_reads_total{collection="things"} 36.0',
            'velo_http_requests_total{method="POST",route="/v1/search",status="200"} 1.0',
            'velo_http_requests_total{method="POST",route="/v1/search",status="422"} 1.0',
            'velo_http_requests_total{method="GET",route="unmatched",status="404"} 1.0',
            'velo_shard_up{collection="things",shard="3"} 1.0',
            'velo_shard_calls_total{collection="things",outcome="ok",shard="0"} 1.0',
            'velo_vectors{collection="things"} 40.0',
            'velo_queries_admitted{collection="things"} 0.0',
        ):
            assert line in text, line

    play(exact_backend(tmp_path), scene)
