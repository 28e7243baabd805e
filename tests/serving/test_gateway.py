"""The gateway over exact shards: answers in every form, documents and metrics."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import velo
from tests.serving.exact_gateway import (
    ARROW,
    ARROW_TYPE,
    VECTORS,
    arrow,
    exact,
    exact_backend,
    rows_in_arrow,
    serving,
)
from velo_serving.gateway.schemas import CollectionAnswer, SearchAnswer

# ---- answers ----


async def test_json_one_and_many(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        one = await client.post("/v1/search", json={"vector": VECTORS[5].tolist(), "k": 3})
        assert one.status_code == 200
        answer = msgspec.convert(one.json(), SearchAnswer)
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


async def test_filters_for_all_and_for_each(tmp_path: Path) -> None:
    odd = np.arange(len(VECTORS)) % 2 == 1

    async with serving(exact_backend(tmp_path)) as client:
        body: dict[str, Any] = {"vectors": VECTORS[:2].tolist(), "k": 4}
        answer = await client.post("/v1/search", json=body | {"filter": {"parity": 1}})
        assert answer.json()["ids"] == exact(VECTORS[:2], 4, odd)
        answer = await client.post("/v1/search", json=body | {"filters": [None, {"parity": 1}]})
        assert answer.json()["ids"] == exact(VECTORS[:1], 4) + exact(VECTORS[1:2], 4, odd)


async def test_fewer_matches_than_k_are_shorter_rows(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        answer = (await client.post("/v1/search", json={"vector": VECTORS[0].tolist(), "k": 60})).json()
        assert answer["counts"] == [40]
        assert len(answer["ids"][0]) == len(answer["distances"][0]) == 40
        nothing = {"vector": VECTORS[0].tolist(), "filter": {"parity": 2}}
        answer = (await client.post("/v1/search", json=nothing)).json()
        assert (answer["ids"], answer["counts"]) == ([[]], [0])


async def test_metadata_in_json_and_arrow(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
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


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
async def test_arrow_in_arrow_out(tmp_path: Path, dtype: str) -> None:
    queries = VECTORS[:5].astype(dtype)

    async with serving(exact_backend(tmp_path)) as client:
        response = await client.post(
            "/v1/search",
            content=rows_in_arrow(queries),
            headers=ARROW | {"Accept": ARROW_TYPE},
            params={"k": 3, "filter": '{"parity": 1}'},
        )
        assert response.status_code == 200, response.text
        table = pa.ipc.open_stream(response.content).read_all()
        odd = np.arange(len(VECTORS)) % 2 == 1
        found = exact(queries.astype(np.float32), 3, odd)
        assert table.column("id").to_pylist() == [one for row in found for one in row]
        assert table.schema.field("distance").type == pa.float32()
        assert json.loads(table.schema.metadata[b"velo"])["shards_answered"] == 4


async def test_arrow_in_with_a_filter_each(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
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


async def test_several_collections(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path, ("a", "b"))) as client:
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
        told = msgspec.convert((await client.get("/v1/collections/a")).json(), CollectionAnswer)
        assert (told.dim, told.metric, told.columns) == (4, "l2", ["parity"])
        assert [(shard.name, shard.state, shard.n) for shard in told.shards] == [
            (str(i), "up", 10) for i in range(4)
        ]
        assert (await client.get("/v1/collections/c")).status_code == 404


# ---- documents and metrics ----


async def test_the_documentation_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
        page = await client.get("/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "http://" not in page.text
        assert "https://" not in page.text
        document = (await client.get("/openapi.json")).json()
        search = document["paths"]["/v1/search"]["post"]
        assert set(search["requestBody"]["content"]) == {"application/json", ARROW_TYPE}
        assert {"400", "404", "413", "415", "422", "429", "503", "504"} <= set(search["responses"])
        assert "SearchAnswer" in document["components"]["schemas"]
        files = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
        assert len(files) >= 3
        for file in files:
            assert (await client.get(file)).status_code == 200, file
        root = await client.get("/")
        assert (root.status_code, root.headers["location"]) == (307, "docs")


async def test_common_field_names_of_others_are_answered_with_ours(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
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


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async with serving(exact_backend(tmp_path)) as client:
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
            'velo_shard_queue_seconds_count{collection="things",shard="0"} 1.0',
            'velo_shard_call_seconds_bucket{collection="things",le="5e-05",shard="0"}',
            f'velo_build_info{{python="{platform.python_version()}",version="{velo.__version__}"}} 1.0',
        ):
            assert line in text, line
