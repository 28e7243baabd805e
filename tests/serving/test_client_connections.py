"""The client's connections: as many as it may have, and a typed error where none comes free."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from velo.errors import InvalidArgumentError
from velo_serving import Client
from velo_serving.protocol.errors import ConnectionsBusyError, DeadlineExceededError

CALLS = 8
ANSWER = json.dumps(
    {
        "ids": [[1]],
        "distances": [[0.5]],
        "counts": [1],
        "took_ms": 1.0,
        "shards_answered": 1,
        "shards_total": 1,
    }
).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class CountingServer:
    """Answers each request after `pause_s`, and counts connections that are open at once.

    While `released` is not set an answer has begun and does not end, so its connection is in use.
    """

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.released = threading.Event()
        self.released.set()
        self.open_now = self.open_most = self.opened = self.requests = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.opened += 1
                self.open_now += 1
                self.open_most = max(self.open_most, self.open_now)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while True:
                size = None
                while line := lines.readline().strip():
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split(b":")[1])
                if size is None:
                    break
                lines.read(size)
                with self._lock:
                    self.requests += 1
                time.sleep(self.pause_s)
                connection.sendall(HEAD)
                while not self.released.wait(0.05):
                    connection.sendall(b"1\r\n \r\n")  # a blank before the JSON
                connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(ANSWER), ANSWER))
        with self._lock:
            self.open_now -= 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def server() -> Iterator[CountingServer]:
    one = CountingServer(0.05)
    yield one
    one.close()


def test_threads_and_tasks_share_connections_up_to_the_limit(server: CountingServer) -> None:
    with Client(server.url, connections_max=2) as client, ThreadPoolExecutor(CALLS) as threads:
        found = list(threads.map(lambda _: client.search([0.0], 1).ids.tolist(), range(CALLS)))
    assert found == [[1]] * CALLS

    async def run() -> None:
        async with Client(server.url, connections_max=2) as client:
            found = await asyncio.gather(*(client.search_async([0.0], 1) for _ in range(CALLS)))
            assert [one.ids.tolist() for one in found] == [[1]] * CALLS

    asyncio.run(run())
    assert server.requests == 2 * CALLS
    assert server.open_most == 2


def test_without_that_limit_there_are_more(server: CountingServer) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(CALLS) as threads:
        list(threads.map(lambda _: client.search([0.0], 1), range(CALLS)))
    assert server.open_most > 2


def test_idle_connections_are_given_up(server: CountingServer) -> None:
    for idle_s, opened in ((60.0, 1), (0.0, 3)):
        before = server.opened
        with Client(server.url, idle_s=idle_s) as client:
            for _ in range(3):
                client.search([0.0], 1)
                time.sleep(0.01)
        assert server.opened - before == opened


def test_no_connection_in_time_is_an_error_of_its_own(server: CountingServer) -> None:
    server.released.clear()
    with Client(server.url, connections_max=1, timeout_s=1.0) as client, ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.search, [0.0], 1)
        wait_for_a_request(server)
        try:
            with pytest.raises(ConnectionsBusyError, match="connections_max"):
                client.search([0.0], 1)
        finally:
            server.released.set()
        assert first.result().ids.tolist() == [1]
    assert issubclass(ConnectionsBusyError, DeadlineExceededError)
    assert server.requests == 1


def test_no_connection_in_time_is_that_error_for_tasks_too(server: CountingServer) -> None:
    async def run() -> None:
        async with Client(server.url, connections_max=1, timeout_s=1.0) as client:
            first = asyncio.create_task(client.search_async([0.0], 1))
            await asyncio.to_thread(wait_for_a_request, server)
            try:
                with pytest.raises(ConnectionsBusyError, match="connections_max"):
                    await client.search_async([0.0], 1)
            finally:
                server.released.set()
            assert (await first).ids.tolist() == [1]

    server.released.clear()
    asyncio.run(run())
    assert server.requests == 1


def wait_for_a_request(server: CountingServer) -> None:
    end = time.monotonic() + 30
    while server.requests == 0:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_limits_that_cannot_be() -> None:
    with pytest.raises(InvalidArgumentError, match="connection"):
        Client("http://velo", connections_max=0)
    with pytest.raises(InvalidArgumentError, match="idle_s"):
        Client("http://velo", idle_s=float("nan"))
