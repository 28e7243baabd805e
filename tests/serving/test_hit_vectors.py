"""Vectors with hits: they are the stored ones, whatever the form, and what cannot be brought is said."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.serving.conftest import THINGS_DIM, THINGS_SHARDS, Served
from tests.serving.exact_gateway import ARROW, ARROW_TYPE, asked, rows_in_arrow, serving
from tests.serving.fakes import CommandedChannel, backend_of
from velo.errors import UnknownIdError, UnsupportedError
from velo_serving import Client
from velo_serving.protocol.errors import (
    BodyTooLargeError,
    DeadlineExceededError,
    NoShardAnsweredError,
    ShardUnavailableError,
)
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.shard.rows import look_up
from velo_serving.transport.codec import table_of


@pytest.mark.parametrize("body_format", ["json", "arrow"])
def test_vectors_of_hits_are_the_stored_ones(
    things_served: Served, things_vectors: np.ndarray, body_format: Any
) -> None:
    with Client(things_served.url, collection="things", body_format=body_format, retries=20) as client:
        found = client.search(things_vectors[:4], k=70, return_vectors=True)
        assert found.vectors is not None
        assert found.vectors.shape == (4, 70, THINGS_DIM)
        assert len({int(one) // 100 for one in found.ids[0]}) == THINGS_SHARDS, (
            "hits of one shard show little"
        )
        assert np.array_equal(found.vectors, things_vectors[found.ids])
        one = client.search(things_vectors[0], k=90, filter={"color": "c1"}, return_vectors=True)
        assert one.vectors is not None
        assert one.vectors.shape == (90, THINGS_DIM)
        assert np.array_equal(one.vectors[:60], things_vectors[one.ids[:60]])
        assert np.isnan(one.vectors[60:]).all()
        near = client.range_search(things_vectors[:3], 20.0, limit=40, return_vectors=True)
        assert near.vectors is not None
        assert len(near.ids) > 3
        assert np.array_equal(near.vectors, things_vectors[near.ids])
        nothing = client.search(things_vectors[0], k=3, filter={"color": "none"}, return_vectors=True)
        assert nothing.counts.tolist() == [0]
        assert client.search(things_vectors[0], k=3).vectors is None


def test_vectors_of_groups(things_served: Served, things_vectors: np.ndarray) -> None:
    with Client(things_served.url, collection="things", retries=20) as client:
        found = client.search(
            things_vectors[:3],
            k=4,
            group_by="color",
            group_size=6,
            return_metadata=["color"],
            return_vectors=True,
        )
        assert found.vectors is not None
        assert found.vectors.shape == (3, 4, 6, THINGS_DIM)
        assert (found.ids >= 0).all()
        assert np.array_equal(found.vectors, things_vectors[found.ids])


def test_vectors_by_names(things_served: Served, things_vectors: np.ndarray) -> None:
    with Client(things_served.url, collection="names", retries=20) as client:
        found = client.search(things_vectors[:2], k=5, return_vectors=True)
        assert found.vectors is not None
        rows = np.array([[int(name[1:]) for name in row] for row in found.ids])
        assert np.array_equal(found.vectors, things_vectors[rows])


def test_vectors_in_arrow(things_served: Served, things_vectors: np.ndarray) -> None:
    url = f"{things_served.url}/v1/collections/things/search"
    options = {"k": "5", "return_vectors": "true", "return_metadata": "vector,color"}
    answer = httpx.post(
        url,
        params=options,
        content=rows_in_arrow(things_vectors[:2]),
        headers={**ARROW, "Accept": ARROW_TYPE},
    )
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table.column_names == ["query", "rank", "id", "distance", "vector", "metadata.vector", "color"]
    stored = np.stack(table["vector"].to_pylist()).astype(np.float32)
    assert np.array_equal(stored, things_vectors[table["id"].to_pylist()])
    assert table["metadata.vector"].to_pylist() == table["id"].to_pylist()


def test_a_build_without_vectors_says_so(things_served: Served, things_vectors: np.ndarray) -> None:
    with Client(things_served.url, collection="codes", retries=20) as client:
        with pytest.raises(UnsupportedError, match="store_vectors"):
            client.search(things_vectors[0], k=3, return_vectors=True)
        assert client.search(things_vectors[0], k=3).counts.tolist() == [3]


class Deleting:
    """An index that loses a row between two lookups."""

    dim = 2

    def __init__(self) -> None:
        self.rows = {1: [0.5, 1.0], 2: [1.5, 2.0]}
        self.going = [2]

    def __len__(self) -> int:
        return len(self.rows)

    def contains(self, ids: list[int]) -> np.ndarray:
        there = np.array([one in self.rows for one in ids])
        while self.going:
            del self.rows[self.going.pop()]
        return there

    def sample(self, limit: int) -> pa.Table:
        return pa.table({"id": list(self.rows), "word": ["one", "two"]}).slice(0, limit)

    def get_vectors(self, ids: list[int], *, decoded: bool) -> np.ndarray:
        if not self.rows.keys() >= set(ids):
            raise UnknownIdError("gone")
        return np.array([self.rows[one] for one in ids], np.float32)


def test_a_row_that_is_deleted_meanwhile_is_no_error() -> None:
    found = look_up(Deleting(), "vectors", {"ids": [1, 2, 3]})
    assert found["ids"] == [1]
    assert np.frombuffer(found["vectors"], "<f4").tolist() == [0.5, 1.0]
    drawn = look_up(Deleting(), "sample", {"limit": 2})
    assert table_of(drawn["table"]).to_pylist() == [{"id": 1, "word": "one"}]
    assert np.frombuffer(drawn["vectors"], "<f4").tolist() == [0.5, 1.0]


class Storing(CommandedChannel):
    """A shard of one row, its own number, that brings its vector as commanded."""

    brings = True

    async def look_up(self, what: str, arguments: Any, timeout_s: float) -> dict[str, Any]:
        await super().look_up(what, arguments, timeout_s)
        self.timeouts.append(timeout_s)
        assert arguments == {"ids": [self.number]}
        if not self.brings:
            raise ShardUnavailableError("it went away")
        vector = np.full(4, self.number, "<f4")
        return {"ids": [self.number], "vectors": vector.tobytes()}


def scene(channels: list[Storing], *bodies: dict[str, Any], limits: GatewayLimits | None = None) -> list[Any]:
    """Answers of a gateway over channels."""

    async def run() -> list[Any]:
        async with serving(backend_of(channels), limits=limits) as client:
            return [await client.post("/v1/search", json=body) for body in bodies]

    return asyncio.run(run())


BODY = {"vector": [0.0] * 4, "k": 2, "return_vectors": True}


def test_only_shards_with_hits_are_asked() -> None:
    channels = [Storing(number) for number in range(3)]
    (answer,) = scene(channels, BODY | {"timeout_ms": 4000})
    assert answer.json()["ids"] == [[0, 1]]
    assert answer.json()["vectors"] == [[[0.0] * 4, [1.0] * 4]]
    assert [channel.looked_up for channel in channels] == [["vectors"], ["vectors"], []]
    assert all(0 < channel.timeouts[-1] < 4 for channel in channels[:2])


def test_a_shard_that_keeps_its_vectors_is_missing() -> None:
    channels = [Storing(number) for number in range(3)]
    channels[1].brings = False
    bodies = [BODY, BODY | {"allow_partial": False}, {**BODY, "return_vectors": False}]
    partial, whole, without = scene(channels, *bodies)
    told = partial.json()
    assert told["ids"] == [[0, 1]]
    assert told["vectors"] == [[[0.0] * 4, None]]
    assert (told["shards_answered"], told["shards_total"], told["partial"]) == (2, 3, True)
    assert [(one["shard"], one["type"]) for one in told["failures"]] == [("1", "ShardUnavailableError")]
    assert whole.status_code == 503
    assert whole.json()["error"]["type"] == NoShardAnsweredError.__name__
    assert without.json()["partial"] is False


def test_no_vectors_at_all_are_an_error() -> None:
    channels = [Storing(0)]
    channels[0].brings = False
    (answer,) = scene(channels, BODY)
    assert answer.status_code == 503

    class Late(Storing):
        async def look_up(self, what: str, arguments: Any, timeout_s: float) -> dict[str, Any]:
            await asyncio.sleep(60)
            raise AssertionError("no caller waits this long")

    (answer,) = scene([Late(0)], BODY | {"timeout_ms": 80})
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == DeadlineExceededError.__name__


def test_bytes_of_vectors_are_bounded() -> None:
    limits = GatewayLimits(vectors_bytes_max=4 * 4 * 10)
    bodies = [
        {**BODY, "k": 10},
        {**BODY, "k": 11},
        {**BODY, "k": 11, "return_vectors": False},
        {"vector": [0.0] * 4, "radius": 1.0, "return_vectors": True},
        {"vector": [0.0] * 4, "radius": 1.0, "limit": 11, "return_vectors": True},
        {"vectors": [[0.0] * 4] * 3, "k": 2, "group_by": "a", "group_size": 2, "return_vectors": True},
    ]
    channels = [Storing(0)]
    answers = scene(channels, *bodies, limits=limits)
    assert [one.status_code for one in answers] == [200, 413, 200, 200, 413, 413]
    assert answers[1].json()["error"]["type"] == BodyTooLargeError.__name__
    assert answers[1].json()["error"]["argument"] == "return_vectors"
    assert [one.k for one in channels[0].requests] == [10, 11, 10], "by radius as many as vectors may come"


def test_the_client_skips_unknown_ids() -> None:
    channels = [Storing(number) for number in range(2)]
    channels[0].brings = False

    for body_format in ("json", "arrow"):
        client = {"body_format": body_format}
        found = asked(backend_of(channels), "search", [0.0] * 4, 3, client=client, return_vectors=True)
        assert found.vectors is not None
        assert np.isnan(found.vectors[[0, 2]]).all()
        assert found.vectors[1].tolist() == [1.0] * 4
        assert found.partial
