"""``velo serve`` as a process, asked over real sockets."""

from __future__ import annotations

import json
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import velo
from tests.serving.conftest import LIST_SIZE, SHARDS, Served, command, invoked, local_answer, until
from velo.errors import DimensionMismatchError, FilterError, UnknownColumnError
from velo_serving import Client
from velo_serving.protocol.types import SearchRequest


def test_http_answers_equal_those_of_the_library(
    served_index: Served, sample_path: Path, sample: Any
) -> None:
    queries = sample.queries[:50].astype(np.float32)
    condition = {"uniform10": 3}
    with velo.open(sample_path, threads=1) as index, Client(served_index.url) as client:
        plain = index.search(queries, k=10, list_size=LIST_SIZE)
        options = {
            "k": 10,
            "list_size": LIST_SIZE,
            "filter": condition,
            "return_metadata": ["price", "tags", "ts"],
        }
        filtered = index.search(queries, **options)
        for body_format in ("json", "arrow"):
            with Client(served_index.url, body_format=body_format) as other:
                answer = other.search(queries, k=10, list_size=LIST_SIZE)
                assert np.array_equal(answer.ids, plain.ids)
                assert np.array_equal(answer.distances, plain.distances)
        answer = client.search(queries, **options)
        assert np.array_equal(answer.ids, filtered.ids)
        assert answer.metadata is not None
        for found, table in zip(answer.metadata, filtered.metadata, strict=True):
            assert found.column("tags").to_pylist() == table.column("tags").to_pylist()
            assert found.column("price").to_pylist() == table.column("price").to_pylist()
        assert (answer.shards_answered, answer.shards_total, answer.partial) == (1, 1, False)
        # Whether a page came from the device, with a read for another query, or from memory depends on time.
        wanted, got = (
            sum(round(one.stats[name].sum()) for name in ("reads", "shared_reads", "cache_hits"))
            for one in (filtered, answer)
        )
        assert got == wanted > 0


def test_recall_through_http(served_index: Served, sample: Any) -> None:
    with Client(served_index.url, body_format="arrow") as client:
        answer = client.search(sample.queries.astype(np.float32), k=10)
    found = [len(set(row) & set(exact)) for row, exact in zip(answer.ids, sample.truth[:, :10], strict=True)]
    assert np.mean(found) / 10 >= 0.9


def test_errors_arrive_as_the_librarys_own(served_index: Served) -> None:
    with Client(served_index.url) as client:
        with pytest.raises(UnknownColumnError, match="colour"):
            client.search(np.zeros(128), filter={"colour": 1})
        with pytest.raises(FilterError):
            client.search(np.zeros(128), filter={"uniform10": {"$foo": 1}})
        with pytest.raises(FilterError):
            client.search(np.zeros(128), filter={"uniform10": "three"})
        with pytest.raises(DimensionMismatchError):
            client.search(np.zeros(127))


def test_bad_input_over_a_real_socket(served_index: Served) -> None:
    with httpx.Client(base_url=served_index.url, timeout=60) as client:
        json_type = {"Content-Type": "application/json"}
        assert client.post("/v1/search", content=b"{oops", headers=json_type).status_code == 400
        assert client.post("/v1/search", content=b"{}", headers=json_type).status_code == 422
        assert (
            client.post("/v1/search", content=b"{}", headers={"Content-Type": "text/csv"}).status_code == 415
        )
        assert client.post("/v1/collections/none/search", json={}).status_code == 404
        for size in ((32 << 20) + 1, 100 << 20):
            response = client.post("/v1/search", content=b" " * size, headers=json_type)
            assert response.status_code == 413
            assert response.json()["error"]["type"] == "BodyTooLargeError"
        # And after all that it still works.
        assert client.post("/v1/search", json={"vector": [0] * 128}).status_code == 200


def test_nonsense_instead_of_http_does_no_harm(served_index: Served) -> None:
    address = (httpx.URL(served_index.url).host, httpx.URL(served_index.url).port)
    for rubbish in (
        b"\x00" * 64,
        b"GET\r\n\r\n",
        b"POST /v1/search HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{",
    ):
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(rubbish)
    assert httpx.get(f"{served_index.url}/healthz").status_code == 200


def test_many_clients_at_once(served_index: Served, sample: Any) -> None:
    queries = sample.queries.astype(np.float32)
    with Client(served_index.url) as client:
        expected = client.search(queries, k=5, list_size=LIST_SIZE).ids

        def ask(row: int) -> bool:
            return (
                client.search(queries[row], k=5, list_size=LIST_SIZE).ids.tolist() == expected[row].tolist()
            )

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(ask, range(len(queries))))
    text = httpx.get(f"{served_index.url}/metrics").text
    calls = next(line for line in text.splitlines() if line.startswith("velo_shard_call_queries_count"))
    assert float(calls.split()[-1]) >= 1


def test_documents(served_index: Served) -> None:
    assert "velo_http_requests_total" in httpx.get(f"{served_index.url}/metrics").text
    assert httpx.get(f"{served_index.url}/readyz").json()["status"] == "ready"
    page = httpx.get(f"{served_index.url}/docs")
    assert page.status_code == 200
    assert "openapi.json" in page.text
    told = httpx.get(f"{served_index.url}/v1/collections").json()["collections"]
    assert [(one["name"], one["n"], one["dim"]) for one in told] == [("sample", 20000, 128)]


def test_a_port_in_use_is_refused_in_one_line(sample_path: Path, served_index: Served) -> None:
    port = str(httpx.URL(served_index.url).port)
    ended = command("serve", str(sample_path), "--port", port)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1
    assert f"port {port} of 127.0.0.1 is in use" in ended.stderr


def test_unusable_paths_and_hosts_are_refused_in_one_line(sharded_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sharded_path, copy)
    shutil.rmtree(copy / "shard-00001")
    port = ("--port", "0")
    for arguments, why in (
        ((str(tmp_path / "nothing"), *port), str(tmp_path)),
        ((str(tmp_path), *port), str(tmp_path)),
        ((str(tmp_path), "--host", "no such host", *port), "no such host"),
        ((str(copy), *port), "shard 1 is not on node"),
    ):
        ended = invoked("serve", *arguments)
        assert (ended.returncode, ended.stdout) == (1, ""), arguments
        assert len(ended.stderr.strip().splitlines()) == 1
        assert why in ended.stderr


def test_a_server_of_shards_ends_cleanly_after_the_request_under_way(
    sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    served = Served(str(sharded_path), "--threads", "1")
    try:
        with Client(served.url, collection="sample") as client:
            answer = client.search(sharded_queries, k=10, list_size=LIST_SIZE)
        expected = local_answer(sharded_path, SearchRequest(sharded_queries, 10, list_size=LIST_SIZE))
        assert np.array_equal(answer.ids, expected.hits.ids)
        assert answer.shards_answered == SHARDS

        # A request that is under way when the signal comes is still answered.
        body = json.dumps({"vector": sharded_queries[0].tolist(), "k": 3}).encode()
        url = httpx.URL(served.url)
        with socket.create_connection((url.host, url.port), timeout=30) as connection:
            head = "POST /v1/search HTTP/1.1\r\nHost: velo\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # the gateway waits for the body
            served.process.terminate()
            time.sleep(0.2)
            connection.sendall(body)
            answered = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answered.startswith(b"HTTP/1.1 200"), answered
    finally:
        code, told = served.stop()
    assert code == 0, told
    assert "Traceback" not in told


def test_a_draining_server_is_not_ready_and_still_answers(
    sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    served = Served(str(sharded_path), "--drain-s", "1.0", "--threads", "1")
    try:
        with httpx.Client(base_url=served.url, timeout=30) as client:
            ready = client.get("/readyz")
            assert ready.json()["collections"] == {"sample": f"{SHARDS}/{SHARDS} shards"}
            served.process.terminate()
            until(lambda: client.get("/readyz").status_code == 503)
            answer = client.post("/v1/search", json={"vector": sharded_queries[0].tolist()})
            assert answer.status_code == 200
            assert answer.json()["shards_answered"] == SHARDS
        assert served.process.wait(timeout=30) == 0  # by itself, once the drain is over
    finally:
        served.kill()
