"""Several gateways on one port: real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import httpx
import numpy as np
import pytest

import velo
from tests.serving.conftest import (
    LIST_SIZE,
    ROWS,
    SHARDS,
    Served,
    children,
    files_of,
    local_answer,
    sockets_of,
    until,
)
from velo_serving.hosting import workers
from velo_serving.protocol.types import SearchRequest

WORKERS = 2


@pytest.fixture(scope="module")
def served(sharded_path: Path) -> Iterator[Served]:
    options = ["--workers", str(WORKERS), "--threads", "1", "--ready-shards", str(SHARDS), "--drain-s", "30"]
    server = Served(str(sharded_path), *options)
    yield server
    server.kill()


def gateways(server: Served) -> list[int]:
    """Pids of the gateways of a server."""
    return children(server, b"gateway_process")


def ask(server: Served, query: np.ndarray) -> httpx.Response:
    """A search over a connection of its own, which any gateway may take."""
    body = {"vector": query.tolist(), "k": 10, "list_size": LIST_SIZE}
    return httpx.post(f"{server.url}/v1/search", json=body, timeout=30)


def metric(server: Served, name: str) -> float:
    """The sum of a metric, as some gateway tells it."""
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def answered(server: Served) -> float:
    return metric(server, "velo_searches_total")


def until_ready(server: Served) -> None:
    """Both gateways answer, each with all shards."""
    end = time.monotonic() + 60
    ready = 0
    while ready < 8:
        ready = ready + 1 if httpx.get(f"{server.url}/readyz", timeout=30).status_code == 200 else 0
        if metric(server, "velo_gateways") < WORKERS or metric(server, "velo_shard_up") < SHARDS:
            ready = 0
        assert time.monotonic() < end


def test_all_gateways_answer_and_their_metrics_add_up(
    served: Served, sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    until_ready(served)
    expected = local_answer(sharded_path, SearchRequest(sharded_queries, 10, list_size=LIST_SIZE)).hits.ids
    before = answered(served)
    for query, ids in zip(sharded_queries, expected, strict=True):
        assert ask(served, query).json()["ids"] == [ids.tolist()]
    # Each gateway reports the counts of all.
    assert {answered(served) - before for _ in range(6)} == {len(sharded_queries)}
    assert metric(served, "velo_vectors") == ROWS


def test_a_killed_gateway_is_restarted_and_the_other_answers_meanwhile(
    served: Served, sharded_queries: np.ndarray
) -> None:
    until_ready(served)
    before, counted = gateways(served), answered(served)
    assert len(before) == WORKERS
    os.kill(before[0], signal.SIGKILL)
    told = []
    end = time.monotonic() + 60
    while time.monotonic() < end and (len(gateways(served)) < WORKERS or len(told) < 40):
        response = ask(served, sharded_queries[len(told) % len(sharded_queries)])
        assert response.status_code == 200
        told.append(response.json()["shards_answered"])
    # The other one answers every request; a new one may still be looking for its shards.
    assert told.count(SHARDS) >= 0.9 * len(told)
    until_ready(served)
    now = gateways(served)
    assert len(now) == WORKERS
    assert before[0] not in now
    assert before[1] in now
    # What the dead one had counted is not lost, and nothing is counted twice.
    assert answered(served) == counted + len(told)


def test_a_stopped_gateway_delays_only_its_own_connections(
    served: Served, sharded_path: Path, sharded_queries: np.ndarray
) -> None:
    until_ready(served)
    both, counted = gateways(served), answered(served)
    victim = both[0]
    expected = local_answer(sharded_path, SearchRequest(sharded_queries, 10, list_size=LIST_SIZE)).hits.ids
    url = httpx.URL(served.url)
    body = json.dumps({"vector": sharded_queries[0].tolist(), "k": 10, "list_size": LIST_SIZE}).encode()
    head = f"POST /v1/search HTTP/1.1\r\nHost: velo\r\nContent-Length: {len(body)}\r\n"
    request = head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + body
    with contextlib.ExitStack() as stack:
        had, waiting = sockets_of(victim), []
        while sockets_of(victim) < had + 2:
            assert len(waiting) < 200, "all connections go to one gateway"
            one = stack.enter_context(socket.create_connection((url.host, url.port), timeout=30))
            waiting.append(one)
            time.sleep(0.005)
        os.kill(victim, signal.SIGSTOP)
        try:
            # Who comes now comes to the other one; few, as those who wait have ten seconds for their headers.
            few = sharded_queries[:20]
            for query, ids in zip(few, expected, strict=False):
                answer = ask(served, query)
                assert (answer.status_code, answer.json()["ids"]) == (200, [ids.tolist()])
            for one in waiting:
                one.sendall(request)
            time.sleep(1.0)
            answers = [one for one in waiting if select.select([one], [], [], 0)[0]]
            left = [one for one in waiting if one not in answers]
            assert left, "the gateway answers though it is stopped"
        finally:
            os.kill(victim, signal.SIGCONT)
        for one in waiting:
            assert b"".join(iter(lambda one=one: one.recv(65536), b"")).startswith(b"HTTP/1.1 200")  # type: ignore[misc]
    until_ready(served)
    assert gateways(served) == both
    assert answered(served) == counted + len(few) + len(waiting)


@pytest.mark.long(
    guarded_by="tests/serving/test_workers.py::test_gateways_that_do_not_answer_pings_are_killed"
)
def test_a_gateway_that_stays_stopped_is_replaced(served: Served, sharded_queries: np.ndarray) -> None:
    until_ready(served)
    both = gateways(served)
    os.kill(both[0], signal.SIGSTOP)
    end = time.monotonic() + 120
    while both[0] in gateways(served):
        assert time.monotonic() < end, "it is there still"
        time.sleep(0.1)
    until_ready(served)
    after = gateways(served)
    assert both[1] in after, "one that answers was replaced, too"
    assert len(after) == WORKERS
    assert {ask(served, query).status_code for query in sharded_queries[:10]} == {200}


@pytest.mark.long(
    guarded_by="tests/serving/test_metrics_folder.py::test_the_descriptor_of_a_gateway_keeps_the_folder"
)
def test_the_next_server_removes_the_metrics_of_a_killed_one(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(temporary))
    velo.build(temporary / "one.velo", np.eye(8, dtype=np.float32), threads=1).close()
    folders: list[set[Path]] = [set()]
    with contextlib.ExitStack() as stack:

        def start() -> Served:
            server = Served(str(temporary / "one.velo"), "--workers", "2", "--threads", "1")
            stack.callback(server.stop)
            folders.append(set(temporary.glob("velo-metrics-*")))
            return server

        killed = start()
        start()
        left = gateways(killed)
        owner = str(*folders[1]) + "/owner"
        for pid in left:  # who kills the server does not take from them what they count in
            assert owner in files_of(pid)
        killed.process.kill()
        killed.process.wait(60)
        end = time.monotonic() + 30
        while any(Path(f"/proc/{pid}/exe").exists() for pid in left):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert set(temporary.glob("velo-metrics-*")) == folders[2]
        start()
        assert len(folders[1]) == 1
        assert len(folders[2] - folders[1]) == 1
        assert folders[3] & folders[2] == folders[2] - folders[1]
        assert len(folders[3]) == 2
        for folder in folders[3]:
            assert list(folder.glob("*.db")), "a gateway has lost what it counts in"
    assert list(temporary.glob("velo-metrics-*")) == []


def test_gateways_that_do_not_answer_pings_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PING_S", 0.001)
    signals: SimpleQueue[int] = SimpleQueue()

    class Gateway:
        """Answers each ping, or none."""

        def __init__(self, name: str, answers: bool) -> None:
            self.name, self.answers = name, answers
            self.unheard, self.poked = 0, []

        def ping(self, message: object) -> int:
            self.unheard = 0 if self.answers else self.unheard + 1
            assert self.unheard <= workers.UNHEARD_MAX, "it was not killed"
            return self.unheard

        def poke(self, number: int) -> None:
            self.poked.append((number, self.unheard))
            signals.put(signal.SIGTERM)

    well, ill = Gateway("0", answers=True), Gateway("1", answers=False)
    assert workers._next_signal(signals, [well, ill]) == signal.SIGTERM
    assert (well.poked, ill.poked) == ([], [(signal.SIGKILL, workers.UNHEARD_MAX)])


def test_a_first_signal_drains_all_gateways_and_a_second_ends_them(served: Served) -> None:
    """The last test of this server."""
    until_ready(served)
    shards = [one["pid"] for one in httpx.get(f"{served.url}/v1/collections/sample").json()["shards"]]
    everyone = gateways(served) + shards
    served.process.terminate()
    end = time.monotonic() + 20
    draining = 0
    while draining < 10:  # in a row, so that both were asked
        status = httpx.get(f"{served.url}/readyz", timeout=30).status_code
        draining = draining + 1 if status == 503 else 0
        assert time.monotonic() < end
    assert httpx.get(f"{served.url}/livez", timeout=30).status_code == 200
    assert ask(served, np.zeros(128)).status_code == 200
    # Once the drain is over nothing new is accepted, though a gateway still waits for a body.
    url = httpx.URL(served.url)
    body = json.dumps({"vector": [0.0] * 128}).encode()
    head = f"POST /v1/search HTTP/1.1\r\nHost: velo\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    with socket.create_connection((url.host, url.port), timeout=30) as slow:
        slow.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body[:9])
        time.sleep(0.2)
        served.process.terminate()

        def is_refused() -> bool:
            try:
                socket.create_connection((url.host, url.port), timeout=5).close()
            except ConnectionRefusedError:
                return True
            return False

        until(is_refused, seconds=5)
        slow.sendall(body[9:])
        assert b"".join(iter(lambda: slow.recv(65536), b"")).startswith(b"HTTP/1.1 200")
    code, told = served.stop()
    assert code == 0, told
    assert "Traceback" not in told
    for pid in everyone:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
