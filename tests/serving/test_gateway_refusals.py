"""The gateway over exact shards: every kind of bad request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.serving.exact_gateway import (
    ARROW,
    ARROW_TYPE,
    JSON,
    VECTOR,
    VECTORS,
    arrow,
    checked,
    exact_backend,
    rows_in_arrow,
    serving,
)
from velo.options import limit_of
from velo_serving.gateway.bodies import parse_search
from velo_serving.protocol.limits import GatewayLimits

# ---- bad requests ----


@pytest.mark.parametrize(
    ("body", "position"),
    [
        (b"", {"line": 1, "column": 0, "byte": 0}),
        (b"vector", {"line": 1, "column": 1, "byte": 0}),
        (b'{"vector": [1, 2, 3, 4}', {"line": 1, "column": 23, "byte": 22}),
        (b'{"vector": [1, 2,\n  3, x]}', {"line": 2, "column": 6, "byte": 23}),
        (b'{"vector": [1, 2, 3, 4]', {"line": 1, "column": 23, "byte": 22}),
        (b'{"vector": [1, 2, 3, 4]} {}', {"line": 1, "column": 26, "byte": 25}),
        (b'{"text": "\xff"}', None),
        (b'{"filter": {"a": ' + b"[" * 5000, None),
    ],
)
async def test_invalid_json_is_400_with_its_position(tmp_path: Path, body: bytes, position: Any) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        error = checked(await client.post("/v1/search", content=body, headers=JSON), 400)
        assert error["type"] == "MalformedBodyError"
        if position is not None:
            assert error["position"] == position


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
async def test_bad_fields_are_refused_with_their_path(
    tmp_path: Path, body: Any, status: int, path: str | None
) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        error = checked(await client.post("/v1/search", json=body), status)
        if path is not None:
            assert error["position"]["path"] == path, error


@pytest.mark.parametrize("argument", ["k", "list_size", "limit", "group_size"])
async def test_limits_include_their_ends(tmp_path: Path, argument: str) -> None:
    """The schema has the limits of ``velo.h``, in JSON and in the query string."""
    low, high = limit_of("group_hits" if argument == "group_size" else argument)
    others: dict[str, Any] = {"limit": {"radius": 1.0}, "group_size": {"group_by": "parity", "k": 1}}
    body = {"vector": VECTOR, **others.get(argument, {})}
    own = GatewayLimits(k_max=1 << 25, hits_max=1 << 26)  # the service's bounds lie above

    async with serving(exact_backend(tmp_path)) as client:
        for value in (low - 1, high + 1):
            error = checked(await client.post("/v1/search", json=body | {argument: value}), 422)
            assert (error["type"], error["argument"]) == ("InvalidArgumentError", argument)
            assert error["position"]["path"] == argument
            options = {name: one for name, one in body.items() if name != "vector"} | {argument: value}
            response = await client.post(
                "/v1/search", params=options, content=rows_in_arrow(VECTORS[:1]), headers=ARROW
            )
            assert checked(response, 422)["type"] == "InvalidArgumentError"
        parse_search(JSON["Content-Type"], json.dumps(body | {argument: low}).encode(), [], dim=4, limits=own)
        parse_search(
            JSON["Content-Type"], json.dumps(body | {argument: high}).encode(), [], dim=4, limits=own
        )


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1e39", "-1e39"])
async def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, number: str) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        body = f'{{"vectors": [[0, 0, 0, 0], [0, {number}, 0, 0]]}}'
        response = await client.post("/v1/search", content=body, headers=JSON)
        assert response.status_code in (400, 422), response.text
        assert response.json()["error"]["type"] in ("NotFiniteError", "MalformedBodyError")
        assert "[1][1]" in response.text or "column" in response.text
        if number != "1e39" and number != "-1e39":
            body = f'{{"vector": [0, 0, 0, 0], "filter": {{"parity": {{"$gt": {number}}}}}}}'
            checked(await client.post("/v1/search", content=body, headers=JSON), 400)


async def test_the_wrong_filter_of_many_is_named(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        body = {"vectors": [VECTOR] * 3, "filters": [None, {"parity": 1}, {"colour": 1}]}
        error = checked(await client.post("/v1/search", json=body), 400)
        assert error["position"] == {"path": "$.colour", "query": 2}
        assert error["type"] == "UnknownColumnError"


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
        (rows_in_arrow(np.zeros((1, 4), np.int64)), 422),
        (rows_in_arrow(np.zeros((2, 3), np.float32)), 422),
        (rows_in_arrow(np.full((2, 4), np.nan, np.float32)), 422),
        (rows_in_arrow(np.full((2, 4), 1e300)), 422),
        (arrow(vector=pa.array([[1.0] * 4]), filter=pa.array(["{"])), 400),
        (arrow(vector=pa.array([[1.0] * 4]), filter=pa.array(["[]"])), 400),
        (arrow(vector=pa.array([[1.0] * 4]), filter=pa.array([7])), 400),
    ],
)
async def test_bad_arrow(tmp_path: Path, body: bytes, status: int) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        checked(await client.post("/v1/search", content=body, headers={"Content-Type": ARROW_TYPE}), status)


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
async def test_bad_query_strings(tmp_path: Path, params: Any, status: int) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        checked(
            await client.post("/v1/search", content=rows_in_arrow(VECTORS[:1]), headers=ARROW, params=params),
            status,
        )


async def test_options_beside_a_json_body_are_refused_not_ignored(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        error = checked(await client.post("/v1/search", json={"vector": VECTOR}, params={"k": 3}), 422)
        assert error["argument"] == "k"


async def test_methods_paths_and_types(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        assert checked(await client.get("/v1/nothing"), 404)["type"] == "NotFound"
        assert checked(await client.get("/v1/search"), 405)["type"] == "MethodNotAllowed"
        for content_type in ("text/plain", "application/x-npy", "multipart/form-data"):
            response = await client.post("/v1/search", content=b"{}", headers={"Content-Type": content_type})
            assert checked(response, 415)["type"] == "UnsupportedMediaTypeError"
        body = {"vector": VECTOR}
        checked(await client.post("/v1/search", json=body, headers={"Content-Encoding": "gzip"}), 415)
        for written in ("text/html", "application/x-npz"):
            checked(await client.post("/v1/search", json=body, headers={"Accept": written}), 406)
        for accepted in ("*/*", "text/html, application/json;q=0.5", "application/json; charset=utf-8"):
            response = await client.post("/v1/search", json=body, headers={"Accept": accepted})
            assert response.headers["content-type"] == "application/json"


async def test_bodies_above_the_limits_are_413(tmp_path: Path) -> None:
    limits = GatewayLimits(body_bytes_max=4096, queries_max=8, hits_max=100, body_discard_bytes_max=10_000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b" " * 500

    async with serving(exact_backend(tmp_path), limits=limits) as client:
        for content in (b" " * 4097, b" " * 50_000, chunks()):
            error = checked(await client.post("/v1/search", content=content, headers=JSON), 413)
            assert error["type"] == "BodyTooLargeError"
        checked(await client.post("/v1/search", json={"vectors": [VECTOR] * 9}), 413)
        checked(await client.post("/v1/search", json={"vectors": [VECTOR] * 8, "k": 13}), 413)
        assert (await client.post("/v1/search", json={"vectors": [VECTOR] * 8, "k": 12})).status_code == 200
        assert (
            await client.post("/v1/search", content=b'{"vector": [0,0,0,0]}'.ljust(4096), headers=JSON)
        ).is_success


async def test_a_body_that_is_not_sent_is_408(tmp_path: Path) -> None:
    async def slow(*parts: bytes) -> AsyncIterator[bytes]:
        for part in parts:
            yield part
        await asyncio.sleep(30)

    async with serving(exact_backend(tmp_path), limits=GatewayLimits(body_read_s=0.05)) as client:
        for parts in ((), (b"{",)):
            checked(await client.post("/v1/search", content=slow(*parts), headers=JSON), 408)
