"""Requests that would cost others: half-sent headers, filters that take seconds to read, columns twice."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.serving.exact_gateway import ARROW_TYPE, VECTORS, arrow, exact_backend, serving
from velo.filters import from_sql
from velo_serving.gateway import schemas
from velo_serving.protocol.limits import GatewayLimits

PROGRAM = """
    import sys
    from velo_serving.protocol.limits import GatewayLimits
    from velo_serving import serve_local

    limits = GatewayLimits(headers_read_s=float(sys.argv[2]), connections_waiting_max=int(sys.argv[3]))
    say = lambda url: print(url, flush=True)
    serve_local(sys.argv[1], port=0, threads=1, gateway_limits=limits, on_ready=say)
    """


@contextlib.contextmanager
def served(path: Path, headers_read_s: float, waiting: int) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), path, str(headers_read_s), str(waiting)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(entry for entry in sys.path if entry)},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


@contextlib.contextmanager
def half_sent(url: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have sent the beginning of a request's headers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    where = urlsplit(url)
    sockets = []
    try:
        for _ in range(count):
            one = socket.create_connection((where.hostname, where.port), timeout=30)
            sockets.append(one)
            with contextlib.suppress(OSError):
                one.sendall(b"POST /v1/search HTTP/1.1\r\nHost: velo\r\nX-Slow: ")
        yield sockets
    finally:
        for one in sockets:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_half_sent_headers_do_not_block_others(sample_path: Path) -> None:
    """1,500 of them, which never end: searches and /healthz are answered meanwhile."""
    with served(sample_path, 600, 64) as url, half_sent(url, 1_500), httpx.Client(timeout=30) as client:
        for _ in range(3):
            assert client.get(f"{url}/healthz").status_code == 200
            body = {"vector": [1.0] * 128, "k": 3}
            assert client.post(f"{url}/v1/search", json=body).status_code == 200


def test_headers_must_arrive_within_their_time(sample_path: Path) -> None:
    with served(sample_path, 1.0, 64) as url, half_sent(url, 3) as sockets:
        slow = sockets[0]
        began = time.monotonic()
        for one in sockets:
            one.settimeout(30)
        with contextlib.suppress(OSError):
            for _ in range(40):  # a byte now and then is no progress
                slow.sendall(b"x")
                time.sleep(0.05)
        assert b"408" in sockets[1].recv(100)
        assert sockets[2].recv(100)
        assert time.monotonic() - began < 20
        with httpx.Client(timeout=30) as client:  # who keeps a connection and is quick is not concerned
            for _ in range(3):
                assert client.get(f"{url}/healthz").status_code == 200
                time.sleep(0.5)


async def test_sql_that_takes_seconds_to_read_is_refused_at_once(tmp_path: Path) -> None:
    ors = " OR ".join(f"parity = {number}" for number in range(4_000))

    async with serving(exact_backend(tmp_path)) as client:
        json_body = {"vector": VECTORS[0].tolist(), "filter": ors}
        many = {
            "vectors": VECTORS[:8].tolist(),
            "filters": [f"{ors[: 14_000 + number]} 1" for number in range(8)],
        }
        stream = arrow(vector=pa.array(VECTORS[:1].tolist()), filter=pa.array([ors]))
        for answer in (
            await client.post("/v1/search", json=json_body),
            await client.post("/v1/search", json=many),
            await client.post("/v1/search", content=stream, headers={"Content-Type": ARROW_TYPE}),
        ):
            assert answer.status_code == 413, answer.text
            assert "SQL" in answer.json()["error"]["message"]
        # The same as a dict is read: what is refused is that this index knows no such filter.
        as_dict = {"vector": VECTORS[0].tolist(), "filter": {"parity": {"$in": list(range(4_000))}}}
        assert (await client.post("/v1/search", json=as_dict)).status_code == 400


async def test_a_long_filter_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest SQL that is taken: while it is read others are answered, and its deadline holds."""
    ors = " OR ".join(f"parity = {number}" for number in range(1_000))[: 15 << 10].rpartition(" OR ")[0]

    def slow(text: str) -> Any:
        time.sleep(0.5)
        return from_sql(text)

    monkeypatch.setattr(schemas, "from_sql", slow)
    async with serving(exact_backend(tmp_path), limits=GatewayLimits()) as client:
        late = asyncio.create_task(
            client.post("/v1/search", json={"vector": VECTORS[0].tolist(), "filter": ors, "timeout_ms": 1})
        )
        answered = 0
        while not late.done():
            await asyncio.sleep(0.001)
            assert (await client.get("/healthz")).status_code == 200
            answered += 1
        answer = await late
        assert answer.status_code == 504, answer.text
        assert "deadline" in answer.json()["error"]["message"]
        # Read on the event loop, it would let one or two through, before and after it.
        assert answered >= 6


@pytest.mark.parametrize("name", ["vector", "filter"])
async def test_a_repeated_column_is_refused(name: str, tmp_path: Path) -> None:
    vectors = pa.array(np.asarray(VECTORS[:2]).tolist())
    filters = pa.array(["parity = 1"] * 2)
    columns = [("vector", vectors), ("filter", filters), (name, vectors if name == "vector" else filters)]
    table = pa.Table.from_arrays([array for _, array in columns], names=[one for one, _ in columns])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue().to_pybytes()

    async with serving(exact_backend(tmp_path)) as client:
        answer = await client.post("/v1/search", content=body, headers={"Content-Type": ARROW_TYPE})
        assert answer.status_code == 400, answer.text
        assert f"2 columns '{name}'" in answer.json()["error"]["message"]
