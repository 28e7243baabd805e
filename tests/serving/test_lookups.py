"""Rows without a search, and searches by id: over real shards, in this process and in others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.conftest import THINGS_ROWS, Served
from tests.serving.exact_gateway import serving
from tests.serving.fakes import CommandedChannel, backend_of
from velo.errors import (
    FilterError,
    InvalidArgumentError,
    UnknownColumnError,
    UnknownIdError,
    UnsupportedError,
)
from velo_serving import Client
from velo_serving.protocol.errors import NoShardAnsweredError, ShardUnavailableError


@pytest.fixture(scope="module")
def client(things_served: Served) -> Iterator[Client]:
    with Client(things_served.url, collection="things", retries=20) as one:
        yield one


def test_counts_add_up_over_shards(client: Client) -> None:
    assert client.count() == THINGS_ROWS
    assert client.count({"color": "c3"}) == THINGS_ROWS / 5
    assert client.count("size >= 290 AND color = 'c0'") == 2
    with pytest.raises(UnknownColumnError, match="colour"):
        client.count({"colour": 1})
    with pytest.raises(FilterError):
        client.count({"size": {"$near": 1}})


def test_rows_of_ids_come_in_the_order_asked_for(client: Client, things_served: Served) -> None:
    found = client.get([250, 3, 120, 3])
    assert found.to_pylist() == [
        {"id": row, "color": f"c{row % 5}", "size": row, "vector": row} for row in (250, 3, 120, 3)
    ]
    with pytest.raises(UnknownIdError, match="10000") as told:
        client.get([250, 10_000])
    assert (told.value.argument, told.value.row) == ("ids", 1)
    assert client.get([250, 10_000, 3], columns=["size"], unknown="skip").to_pylist() == [
        {"id": 250, "size": 250},
        {"id": 3, "size": 3},
    ]
    assert client.get(7, columns=False).to_pylist() == [{"id": 7}]
    with Client(things_served.url, collection="names") as names:
        assert names.get(["n4", "n99"], unknown="skip").to_pylist() == [{"id": "n4"}]
    with pytest.raises(UnknownColumnError):
        client.get([7], columns=["weight"])


def test_rows_are_those_of_the_library(client: Client, things_path: Path) -> None:
    """Type by type and page by page, over three shards."""
    with velo.open(things_path) as index:
        assert client.get([250, 3]).equals(index.get([250, 3]))
        wanted = {"color": "c1"}
        last, ids = None, []
        while last is None or len(ids) < THINGS_ROWS // 5:
            page = client.rows(wanted, limit=7, after=last, columns=["size"])
            assert page.equals(index.rows(wanted, limit=7, after=last, columns=["size"]))
            ids += page["id"].to_pylist()
            last = page["id"][-1]
        assert ids == list(range(1, THINGS_ROWS, 5))
    assert len(client.rows(wanted, after=last)) == 0
    assert len(client.rows(limit=1000)) == THINGS_ROWS
    assert client.rows({"color": "none"}).column_names == ["id", "color", "size", "vector"]


def test_rows_travel_as_json_and_as_arrow(client: Client) -> None:
    url = f"{client._settings.url}/v1/collections/things"
    told = httpx.post(f"{url}/get", json={"ids": [3]}).json()
    assert told["rows"] == [{"id": 3, "color": "c3", "size": 3, "vector": 3}]
    assert (told["shards_answered"], told["partial"]) == (3, False)
    arrow = "application/vnd.apache.arrow.stream"
    told_too = httpx.post(f"{url}/get", json={"ids": [3]}, headers={"Accept": arrow})
    assert told_too.headers["content-type"] == arrow
    with pa.ipc.open_stream(told_too.content) as reader:
        assert json.loads(reader.schema.metadata[b"velo"])["shards_answered"] == 3
        assert reader.read_all().to_pylist() == told["rows"]
    counted = httpx.post(f"{url}/count", json={}, headers={"Accept": f"{arrow}, application/json;q=0.5"})
    assert counted.json()["count"] == THINGS_ROWS
    assert httpx.post(f"{url}/rows", json={}, headers={"Accept": "text/html"}).status_code == 406


def test_exact_distances_are_those_of_the_vectors(
    client: Client, things_served: Served, things_vectors: np.ndarray
) -> None:
    """Through a gateway and over shards: nearest, in groups, within a radius, in either body."""
    queries = things_vectors[[5, 250]] + np.float32(0.25)
    distances = ((things_vectors[None, :, :] - queries[:, None, :]).astype(np.float64) ** 2).sum(2)
    nearest = np.argsort(distances, axis=1)[:, :10]
    wanted = np.take_along_axis(distances, nearest, 1).astype(np.float32)
    estimates = client.search(queries, 10, list_size=300)
    assert not np.array_equal(estimates.distances, wanted)
    with Client(things_served.url, collection="things", body_format="arrow") as other:
        for one in (client, other):
            found = one.search(queries, 10, list_size=300, exact=True)
            np.testing.assert_array_equal(found.ids, nearest)
            np.testing.assert_allclose(found.distances, wanted, rtol=2e-7)
    groups = client.search(queries, 3, list_size=300, exact=True, group_by="color")
    np.testing.assert_allclose(groups.distances[:, 0, 0], wanted[:, 0], rtol=2e-7)
    near = client.range_search(queries, float(wanted[0, 4]), list_size=300, exact=True)
    np.testing.assert_allclose(np.sort(near.distances[: near.lims[1]]), wanted[0, :5], rtol=2e-7)
    with Client(things_served.url, collection="codes") as codes, pytest.raises(UnsupportedError):
        codes.search(queries[0], exact=True)


def test_a_search_by_id_is_a_search_by_its_vector(
    client: Client, things_served: Served, things_vectors: np.ndarray
) -> None:
    url = f"{things_served.url}/v1/collections/things/search"
    by_id = httpx.post(url, json={"ids": [5, 250], "k": 4, "list_size": 100}).json()
    by_vector = httpx.post(
        url, json={"vectors": things_vectors[[5, 250]].tolist(), "k": 4, "list_size": 100}
    ).json()
    assert by_id["ids"] == by_vector["ids"]
    assert [row[0] for row in by_id["ids"]] == [5, 250]
    asked = client.search(ids=[5, 250], k=4, list_size=100)
    assert asked.ids.tolist() == by_id["ids"]
    assert client.search(ids=5, k=4, list_size=100).ids.tolist() == by_id["ids"][0]
    near = client.range_search(None, 1e-3, ids=np.array([5, 250]))
    assert near.ids.tolist() == [5, 250]
    unknown = httpx.post(url, json={"ids": [5, 999]})
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == UnknownIdError.__name__
    stored = httpx.post(f"{things_served.url}/v1/collections/codes/search", json={"ids": [1]})
    assert stored.status_code == 422
    assert stored.json()["error"]["type"] == UnsupportedError.__name__
    both = httpx.post(url, json={"ids": [5], "vector": things_vectors[5].tolist()})
    assert both.status_code == 422


def test_every_shard_explains_itself(client: Client, things_vectors: np.ndarray) -> None:
    told = client.explain(things_vectors[3], k=5, filter={"color": "c3"})
    assert [one["shard"] for one in told] == ["0", "1", "2"]
    assert [one["n"] for one in told] == [100, 100, 100]
    assert sum(one["matches"] for one in told) == THINGS_ROWS / 5
    with pytest.raises(InvalidArgumentError, match="collection"):
        Client(client._settings.url).explain(things_vectors[3])


async def test_awaited_lookups_answer_the_same(
    client: Client, things_served: Served, things_vectors: np.ndarray
) -> None:
    async with Client(things_served.url, collection="things", retries=20) as one:
        wanted = {"color": "c1"}
        assert await one.count_async(wanted) == client.count(wanted)
        ids = [7, 9]
        assert (await one.get_async(ids, columns=["size"])).equals(client.get(ids, columns=["size"]))
        page = await one.rows_async(wanted, columns=["size"], limit=7, after=11)
        assert page.equals(client.rows(wanted, columns=["size"], limit=7, after=11))
        assert page["id"].to_pylist() == list(range(16, 47, 5))
        told = await one.explain_async(things_vectors[3], k=5, filter=wanted)
        assert [shard["matches"] for shard in told] == [
            shard["matches"] for shard in client.explain(things_vectors[3], k=5, filter=wanted)
        ]
        with pytest.raises(UnknownColumnError, match="colour"):
            await one.count_async({"colour": 1})


async def test_a_missing_shard_makes_a_lookup_partial_or_an_error() -> None:
    channels = [CommandedChannel(number) for number in range(3)]
    channels[1].say = channels[1].raises(ShardUnavailableError("it is off"))
    async with serving(backend_of(channels)) as asking:
        told = (await asking.post("/v1/collections/things/count", json={})).json()
        assert told["count"] == 2
        assert (told["shards_answered"], told["partial"]) == (2, True)
        assert told["failures"][0]["shard"] == "1"
        whole = await asking.post("/v1/collections/things/count", json={"allow_partial": False})
        assert whole.status_code == 503
        assert whole.json()["error"]["type"] == NoShardAnsweredError.__name__
        # A page that skipped a shard's rows would be wrong.
        assert (await asking.post("/v1/collections/things/rows", json={})).status_code == 503


def test_bodies_are_checked(things_served: Served) -> None:
    for what, body, status in (
        ("count", {"filters": []}, 422),
        ("count", {"filter": "a = '" + "x" * (17 << 10) + "'"}, 413),
        ("get", {"ids": []}, 422),
        ("get", {"ids": [1.5]}, 422),
        ("get", {"ids": [1], "unknown": "none"}, 422),
        ("get", {"ids": ["word"]}, 422),
        ("get", {"ids": [999]}, 404),
        ("get", {"ids": list(range(1001))}, 422),
        ("rows", {"limit": 0}, 422),
        ("rows", {"limit": 1001}, 422),
        ("rows", {"after": 1.5}, 422),
        ("rows", {"after": "word"}, 422),
        ("explain", {"vector": [1.0]}, 422),
        ("explain", {}, 422),
    ):
        response = httpx.post(f"{things_served.url}/v1/collections/things/{what}", json=body)
        assert response.status_code == status, (what, response.text)
    path = f"{things_served.url}/v1/collections/things/count"
    assert httpx.post(path, content=b"{").status_code == 400
    assert httpx.post(path, content=b"x", headers={"Content-Type": "application/x-npy"}).status_code == 415
    assert httpx.post(path.replace("things", "nothing"), json={}).status_code == 404


def test_paths(things_served: Served) -> None:
    paths = httpx.get(f"{things_served.url}/openapi.json").json()["paths"]
    for what in ("count", "get", "rows", "explain"):
        assert f"/v1/collections/{{name}}/{what}" in paths
