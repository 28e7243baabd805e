"""Parameters of the query string: the document names those that a gateway reads, with types and limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import Served
from tests.serving.exact_gateway import ARROW, arrow
from velo_serving.gateway.write_bodies import WriteOptions
from velo_serving.protocol.requests import NOT_IN_ARROW, SearchBody

SEARCHES = ("/v1/search", "/v1/collections/{name}/search")
CREATE = "/v1/collections"
BINARY = {ARROW["Content-Type"]}

#: A value of each that is taken, and what must be beside it.
TAKEN: dict[str, tuple[str, dict[str, str]]] = {
    "k": ("3", {}),
    "filter": ('{"year": {"$gt": 3}}', {}),
    "recall": ("0.9", {}),
    "list_size": ("50", {}),
    "exact": ("true", {}),
    "return_metadata": ("year", {}),
    "return_vectors": ("true", {}),
    "group_by": ("year", {}),
    "group_size": ("2", {"group_by": "year"}),
    "radius": ("2.5", {}),
    "limit": ("4", {"radius": "2.5"}),
    "timeout_ms": ("9000", {}),
    "allow_partial": ("false", {}),
    "request_id": ("openapi", {}),
    "name": ("shop", {}),
    "dim": ("8", {}),
    "metric": ("cosine", {}),
    "dtype": ("uint8", {}),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of one small index that numbers by given ids, and may be written to."""
    folder = tmp_path_factory.mktemp("openapi") / "things.velo"
    vectors = np.random.default_rng(4).standard_normal((50, 3)).astype(np.float32)
    table = pa.table({"year": list(range(50))})
    velo.build(folder, vectors, ids=list(range(50)), metadata=table, store_vectors=True, threads=1).close()
    server = Served(str(folder), "--threads", "1", "--writable", "--durability", "process")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{served.url}/openapi.json").json()
    return found


def query_of(operation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Its parameters of the query string, by name."""
    return {one["name"]: one for one in operation.get("parameters", ()) if one["in"] == "query"}


def schema_of(parameter: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = parameter["schema"]
    return schema


def ask(served: Served, path: str, params: Any, vector: Any = (0.0, 0.0, 0.0)) -> httpx.Response:
    """Ask by an Arrow body."""
    url = served.url + path.replace("{name}", "things")
    if path == CREATE:
        needed = {"name": "made", "dim": "3", **params}
        return httpx.post(url, params=needed, content=arrow(year=[]), headers=ARROW)
    if path.endswith(("update", "delete")):
        columns = {"id": [1002], "year": [3]} if path.endswith("update") else {"id": [1002]}
        return httpx.post(url, params=params, content=arrow(**columns), headers=ARROW)
    columns = {"vector": pa.array([list(vector)], pa.list_(pa.float32()))}
    if not path.endswith("search"):
        columns["id"] = pa.array([1002])
    return httpx.post(url, params=params, content=arrow(**columns), headers=ARROW)


def test_paths_that_read_a_query_string_name_its_parameters(document: dict[str, Any]) -> None:
    named = {}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            content = set(operation.get("requestBody", {}).get("content", {}))
            assert bool(content & BINARY) == bool(query_of(operation)), path
            named[path] = set(query_of(operation))
    for path in SEARCHES:
        assert named[path] == set(SearchBody.__struct_fields__) - NOT_IN_ARROW
    for verb in ("insert", "upsert", "update", "delete"):
        assert named[f"/v1/collections/{{name}}/{verb}"] == set(WriteOptions.__struct_fields__)


def test_a_gateway_takes_documented_parameters_only(served: Served, document: dict[str, Any]) -> None:
    asked = set()
    for path, methods in document["paths"].items():
        parameters = query_of(methods.get("post", {}))
        for name in parameters:
            value, beside = TAKEN[name]
            response = ask(served, path, {name: value, **beside})
            told = response.json()
            # Writes may lack what else a row needs: the parameter itself is not what is wrong.
            wrong = told.get("error", {})
            assert wrong.get("argument") != name, (path, name, told)
            assert "no such field" not in wrong.get("message", ""), (path, name, told)
            if path in SEARCHES:
                assert response.status_code == 200, (path, name, told)
            asked.add(name)
        if parameters:
            for name in (set(TAKEN) | {"speed", "vectors"}) - set(parameters):
                response = ask(served, path, {name: TAKEN.get(name, ("1", {}))[0]})
                assert response.status_code == 422, (path, name, response.text)
                assert response.json()["error"]["argument"] == name
    assert asked == set(TAKEN)


def beyond(schema: dict[str, Any]) -> Iterator[str]:
    """Values outside of the limits and types of a schema."""
    kind = schema.get("type")
    if kind in ("integer", "number"):
        yield "many"
        if "minimum" in schema:
            yield str(schema["minimum"] - 1)
        if "maximum" in schema:
            yield str(schema["maximum"] + 1)
        if "exclusiveMinimum" in schema:
            yield str(schema["exclusiveMinimum"])
    if kind == "boolean":
        yield "perhaps"
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
        yield ""


def test_limits_are_those_of_the_gateway(served: Served, document: dict[str, Any]) -> None:
    tried = set()
    for path, methods in document["paths"].items():
        for name, parameter in query_of(methods.get("post", {})).items():
            assert parameter["required"] is False
            assert len(parameter["description"]) > 20
            schema = schema_of(parameter)
            assert "null" not in json.dumps(schema)
            for value in beyond(schema):
                response = ask(served, path, {**TAKEN[name][1], name: value})
                assert response.status_code == 422, (path, name, value, response.text)
                assert response.json()["error"]["argument"] == name
                tried.add(name)
            if "default" in schema and path in SEARCHES:
                default = json.dumps(schema["default"])
                assert ask(served, path, {name: default}).json()["ids"] == ask(served, path, {}).json()["ids"]
    assert tried >= {"k", "recall", "list_size", "group_size", "limit", "timeout_ms", "allow_partial"}
    assert tried >= {"radius", "return_vectors", "request_id"}


def test_a_json_body_leaves_no_room_for_them(served: Served) -> None:
    response = httpx.post(f"{served.url}/v1/search", params={"k": 3}, json={"vector": [0.0, 0.0, 0.0]})
    assert response.status_code == 422
    assert response.json()["error"]["argument"] == "k"


def test_columns_may_repeat(served: Served) -> None:
    for params in ([("return_metadata", "year")], [("return_metadata", "year"), ("return_metadata", "year")]):
        assert "year" in ask(served, "/v1/search", params).json()["metadata"][0][0]
