"""The client's keywords: they are the fields that the paths read, each by its name, and nothing else."""

from __future__ import annotations

import inspect
import json
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from velo_serving import Client
from velo_serving.client.calls import FILTER_IN_URL_BYTES_MAX
from velo_serving.gateway.rows import CountBody, ExplainBody, GetBody, RowsBody
from velo_serving.gateway.write_bodies import DeleteBody, InsertBody, UpdateBody, UpsertBody
from velo_serving.protocol.requests import SearchBody

#: What a field is called where it comes from Python.
NAMES = {"timeout_ms": "timeout_s", "vector": "query", "vectors": "vectors", "request_id": "request"}

#: Per method: its body, fields that it fills in itself, other names of its own.
METHODS: dict[str, tuple[Any, set[str], dict[str, str]]] = {
    "search": (SearchBody, {"vector", "radius", "limit"}, {"vectors": "queries"}),
    "range_search": (
        SearchBody,
        {"vector", "k", "group_by", "group_size", "text", "fusion"},
        {"vectors": "queries"},
    ),
    # A count or a row of most shards would be of nothing in particular: these ask for all of them.
    "count": (CountBody, {"allow_partial"}, {}),
    "get": (GetBody, {"allow_partial"}, {}),
    "rows": (RowsBody, set(), {}),
    "explain": (ExplainBody, set(), {}),
    "insert": (InsertBody, set(), {}),
    "upsert": (UpsertBody, set(), {}),
    "update": (UpdateBody, set(), {}),
    "delete": (DeleteBody, set(), {}),
}


def keywords(method: str) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(getattr(Client, method)).parameters)
    del parameters["self"]
    return parameters


@pytest.mark.parametrize("method", METHODS)
def test_keywords_are_the_fields_of_the_path(method: str) -> None:
    body, own, names = METHODS[method]
    fields = set(body.__struct_fields__)
    assert own <= fields, "the test names fields that are gone"
    assert set(keywords(method)) == {{**NAMES, **names}.get(one, one) for one in fields - own}


@pytest.mark.parametrize("method", METHODS)
def test_every_keyword_has_a_type_and_a_word(method: str) -> None:
    told = inspect.getdoc(getattr(Client, method)) or ""
    for name, parameter in keywords(method).items():
        assert parameter.kind is not inspect.Parameter.VAR_KEYWORD
        assert parameter.annotation is not inspect.Parameter.empty
        assert name in told, f"{method} says nothing of {name}"


def test_an_unknown_keyword_is_pythons_own_error() -> None:
    client = Client("http://velo", collection="things")
    for call in (client.search, client.range_search, client.search_async, client.explain, client.count):
        with pytest.raises(TypeError, match="speed"):
            call([0.0], 1, speed="fast")  # type: ignore[operator]
    with pytest.raises(TypeError, match="velo's word is list_size"):
        client.search([0.0], ef=3)  # type: ignore[call-arg]


def sent(body_format: Any, **options: Any) -> httpx.Request:
    """The request that a search makes."""
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(503, json={"error": {"type": "NoShardAnsweredError", "message": "none"}})

    transport = httpx.MockTransport(answer)
    with (
        Client("http://velo", body_format=body_format, transport=transport, retries=0) as client,
        pytest.raises(Exception, match="none"),
    ):
        client.search(np.zeros((2, 3)), **options)
    return requests[0]


EVERYTHING: dict[str, Any] = {
    "filters": [{"year": 2020}, None],
    "recall": 0.9,
    "list_size": 50,
    "exact": True,
    "return_metadata": ["title"],
    "group_by": "year",
    "group_size": 2,
    "timeout_s": 1.5,
    "allow_partial": False,
}


def test_every_keyword_travels() -> None:
    expected = {**EVERYTHING, "vectors": [[0.0] * 3] * 2, "k": 7, "timeout_ms": 1500.0}
    del expected["timeout_s"]
    body = json.loads(sent("json", k=7, **EVERYTHING).content)
    assert body == expected
    msgspec.convert(body, SearchBody)
    plain = {
        name: EVERYTHING[name] for name in ("recall", "list_size", "exact", "timeout_s", "allow_partial")
    }
    request = sent("arrow", k=7, filter="year = 2020", **plain)
    assert dict(request.url.params) == {
        "k": "7",
        "filter": "year = 2020",
        "recall": "0.9",
        "list_size": "50",
        "exact": "true",
        "timeout_ms": "1500.0",
        "allow_partial": "false",
    }
    assert sent("arrow").headers["content-type"] == "application/vnd.apache.arrow.stream"


def test_a_long_filter_goes_into_the_body() -> None:
    condition = {"id": {"$in": list(range(FILTER_IN_URL_BYTES_MAX))}}
    request = sent("arrow", filter=condition)
    assert len(str(request.url)) < 100
    assert json.loads(request.content)["filter"] == condition
    assert "filter" in sent("arrow", filter={"id": {"$in": [1]}}).url.params
