"""Many connections without requests: others are answered, and each costs a bounded amount."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

import velo
from tests.long import count
from tests.serving.conftest import sockets_of
from velo_serving.protocol.limits import GatewayLimits

CONNECTIONS = count(2_500, 10_000)

#: What a process needs beside its connections.
OTHERS = 500

#: Of memory, for a connection that asks nothing. Most of it is a parser and a timer.
CONNECTION_BYTES = 16 << 10

#: What a gateway's memory may grow by through the questions alone.
CALM_BYTES = 16 << 20

PROGRAM = """
    import json, resource, sys
    from velo_serving.protocol.limits import GatewayLimits
    from velo_serving import serve_local

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # what a process usually has
    limits, say = GatewayLimits(**json.loads(sys.argv[2])), lambda url: print(url, flush=True)
    serve_local(sys.argv[1], port=0, threads=1, gateway_limits=limits, on_ready=say)
    """

VECTORS = np.random.default_rng(3).standard_normal((200, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("idle") / "few.velo"
    velo.build(folder, VECTORS, calibrate=False, threads=1).close()
    return folder


@contextlib.contextmanager
def many_descriptors() -> Iterator[int]:
    """Raise this process's limit; the connections that it then has room for, where the system allows less."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + OTHERS if hard == resource.RLIM_INFINITY else min(CONNECTIONS + OTHERS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield wanted - OTHERS
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def served(path: Path, limits: str) -> Iterator[tuple[str, int]]:
    """A gateway of its own process, with its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), path, limits],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def memory_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) << 10


def ask(url: str, row: int) -> None:
    """Over a connection of its own."""
    body = {"vector": VECTORS[row].tolist(), "k": 1}
    answer = httpx.post(f"{url}/v1/search", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.json()["ids"] == [[row]]


@contextlib.contextmanager
def idle(url: str, count: int) -> Iterator[list[socket.socket]]:
    """Others are answered while idle connections are open. One in ten of these has sent a request."""
    where = urlsplit(url)
    sockets: list[socket.socket] = []
    try:
        for number in range(count):
            one = socket.create_connection((where.hostname, where.port), timeout=30)
            sockets.append(one)
            if number % 10 == 0:
                one.sendall(b"GET /livez HTTP/1.1\r\nHost: velo\r\n\r\n")
                assert one.recv(1000).startswith(b"HTTP/1.1 200")
            if number % 500 == 0:
                ask(url, number % len(VECTORS))
        yield sockets
    finally:
        for one in sockets:
            one.close()


def test_the_oldest_idle_connections_are_closed_for_new_ones(path: Path) -> None:
    """With the limits of every gateway: it keeps so many and no more, and says nothing to the oldest."""
    with served(path, "{}") as (url, pid), many_descriptors() as room:
        ask(url, 0)
        before = memory_bytes(pid)
        with idle(url, room):
            for row in range(20):
                ask(url, row)
            kept = GatewayLimits().connections_waiting_max
            assert sockets_of(pid) <= kept + 20, f"of {room}, as far as descriptors reach here"
            grown = memory_bytes(pid) - before
            assert grown < CALM_BYTES + kept * CONNECTION_BYTES, f"{grown:,} bytes for {room} connections"
        ask(url, 1)


@pytest.mark.long(
    guarded_by="tests/serving/test_idle_connections.py::test_the_oldest_idle_connections_are_closed_for_new_ones"
)
def test_a_gateway_keeps_the_configured_number_of_idle_connections(path: Path) -> None:
    """It raises its own limit of descriptors, too: it was started with what a process usually has."""
    limits = f'{{"connections_waiting_max": {CONNECTIONS + OTHERS}, "headers_read_s": 600}}'
    with served(path, limits) as (url, pid), many_descriptors() as room:
        ask(url, 0)
        before, sockets_before = memory_bytes(pid), sockets_of(pid)
        with idle(url, room) as sockets:
            for row in range(20):
                ask(url, row)
            # Those that asked once may have ended: uvicorn keeps them for five seconds.
            assert sockets_of(pid) >= sockets_before + 0.9 * room, f"{room} is as far as descriptors reach"
            grown = memory_bytes(pid) - before
            assert grown < CALM_BYTES + room * CONNECTION_BYTES, f"{grown:,} bytes for {room} connections"
            print(f"{grown / room:,.0f} bytes a connection, {room} connections")
            # One that waited all the while is as good as a new one.
            sockets[1].sendall(b"GET /livez HTTP/1.1\r\nHost: velo\r\nConnection: close\r\n\r\n")
            assert sockets[1].recv(1000).startswith(b"HTTP/1.1 200")
        ask(url, 1)
