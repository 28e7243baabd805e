"""Servers, scripts and web workers write to the same folders at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import velo
from tests import child
from tests.long import count
from tests.serving.conftest import ADMIN, serving, until, write_keys
from velo.errors import DuplicateIdError, VeloError
from velo_serving import Client

DIM, ROWS, SHARDS = 8, 90, 2
CALLS = count(25, 300)

#: Four of these are the workers of gunicorn; each opens the folder in its own lifespan.
APP = """
import os
from contextlib import asynccontextmanager

import numpy as np
import velo
from fastapi import FastAPI

@asynccontextmanager
async def lifespan(app):
    with velo.open(os.environ["NOTES"], writable=True, durability="process", threads=1) as app.state.index:
        yield

app = FastAPI(lifespan=lifespan)

@app.post("/insert/{one}")
def insert(one: int):
    try:
        app.state.index.insert(np.full((1, 8), one, np.float32), ids=[one])
    except velo.DuplicateIdError:
        return {"pid": os.getpid(), "new": False}
    return {"pid": os.getpid(), "new": True}

@app.get("/search/{one}")
async def search(one: int):
    found = await app.state.index.search_async(np.full(8, one, np.float32), 1, exact=True)
    return {"pid": os.getpid(), "nearest": found.ids.tolist(), "rows": len(app.state.index)}
"""


def vectors(ids: Any) -> np.ndarray:
    """Each id has a vector of its own."""
    return np.stack([np.random.default_rng(one).standard_normal(DIM) for one in ids]).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A collection of shards, whose ids are those of their rows and not homes."""
    ids = np.arange(ROWS)
    return velo.build_collection(
        tmp_path / "rows.velo",
        vectors(ids),
        shards=SHARDS,
        ids=ids,
        store_vectors=True,
        calibrate=False,
        threads=1,
    )


def check(path: Path, ids: set[int]) -> None:
    """Each row is there once, with its vector."""
    with velo.open(path, threads=1) as index:
        found = index.rows(limit=100_000)["id"].to_pylist()
        assert len(found) == len(set(found)), "an id has two rows"
        assert set(found) == ids
        assert (index.get_vectors(sorted(ids)) == vectors(sorted(ids))).all()
        index.verify()


def test_two_servers_over_one_collection_see_each_other_at_once(path: Path) -> None:
    options = (str(path), "--writable", "--durability", "process", "--processes")
    with serving(*options) as one, serving(*options) as other:
        clients = [Client(each.url, collection="rows", retries=20) for each in (one, other)]
        with clients[0] as first, clients[1] as second:
            for client, beside in ((first, second), (second, first)):
                new = [ROWS, ROWS + 1, ROWS + 2]
                client.insert(vectors(new), new)
                assert beside.search(vectors(new), k=1, exact=True).ids[:, 0].tolist() == new
                with pytest.raises(DuplicateIdError):
                    beside.insert(vectors(new[:1]), new[:1])
                client.upsert(vectors([7]), [3])  # stays in its shard
                assert beside.search(vectors([7]), k=2, exact=True).ids[0].tolist() in ([3, 7], [7, 3])
                client.delete([3])
                assert beside.count() == ROWS + 2
                beside.insert(vectors([3]), [3])  # in its home by now
                assert client.count() == ROWS + 3
                client.optimize()
                client.delete(new)
                assert beside.count() == ROWS

            def churn(number: int) -> None:
                """The same ids through both servers: no id ever comes into two shards."""
                random = np.random.default_rng(number)
                for _ in range(CALLS):
                    ids = random.choice(ROWS, 4, replace=False)
                    if random.random() < 0.4:
                        clients[number % 2].delete(ids)
                    clients[number % 2].upsert(vectors(ids), ids)

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(churn, range(4)))
            first.upsert(vectors(range(ROWS)), np.arange(ROWS))
            assert second.count() == ROWS
    check(path, set(range(ROWS)))


#: Writes as its parent says, line by line, and tells when each call was acknowledged.
SCRIPT = """
import sys
import numpy as np
import velo
from tests.serving.test_several_writers import vectors

with velo.open(sys.argv[1], writable=True, durability=sys.argv[2], threads=1) as index:
    print("open", flush=True)
    for line in sys.stdin:
        verb, *ids = line.split()
        ids = [int(one) for one in ids]
        try:
            if verb == "optimize":
                index.optimize()
            elif verb == "columns":
                index.add_columns({"stock": 0})
            elif verb == "contains":
                assert index.contains(ids).all()
            elif verb == "delete":
                index.delete(ids)
            else:
                index.insert(vectors(ids), ids=ids)
        except velo.VeloError as error:
            print(type(error).__name__, error, flush=True)
        else:
            print("done", flush=True)
"""


@contextmanager
def script(path: Path, durability: str = "sync") -> Iterator[Any]:
    with child.start(SCRIPT, path, durability, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def do(*words: Any) -> str:
            process.stdin.write(" ".join(map(str, words)) + "\n")
            process.stdin.flush()
            return str(process.stdout.readline())

        assert process.stdout.readline() == "open\n"
        yield do
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("writable", [("--writable",), ()], ids=["writable", "reading"])
def test_a_script_writes_next_to_a_server(path: Path, writable: tuple[str, ...]) -> None:
    with (
        serving(str(path), *writable) as served,
        Client(served.url, collection="rows", retries=20) as client,
        script(path) as do,
    ):
        ids = set(range(ROWS))
        for number in range(CALLS):
            new = ROWS + 10 * number
            assert do("insert", new, new + 1) == "done\n"
            assert client.search(vectors([new]), k=1, exact=True).ids[0, 0] == new
            assert do("delete", new, number) == "done\n"
            ids = ids - {number} | {new + 1}
            if writable:
                client.insert(vectors([new + 2]), [new + 2])
                assert do("contains", new + 1, new + 2) == "done\n"
                ids.add(new + 2)
            assert client.count() == len(ids)
        assert do("optimize") == "done\n"
        assert client.count() == len(ids)
        assert do("columns") == "done\n"
        assert client.count("stock = 0") == len(ids)
        if writable:
            until(lambda: has_taken(client, 5000))
            ids.add(5000)
            assert client.get([5000], columns=["stock"])["stock"].to_pylist() == [7]
    check(path, ids)


def has_taken(client: Client, one: int) -> bool:
    """Gateways learn of a new column with the next health of a shard."""
    try:
        return client.insert(vectors([one]), [one], {"stock": [7]}).rows == 1
    except VeloError:
        return False


def test_a_move_ends_the_writes_of_a_script_and_loses_none(path: Path, tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.txt", f"admin {ADMIN}\n")
    options = ("--writable", "--api-keys", str(tmp_path / "keys.txt"))
    with (
        serving(str(path), *options) as served,
        script(path) as do,
        Client(served.url, collection="rows", api_key=ADMIN, retries=20) as client,
    ):
        assert do("insert", *range(1000, 1020)) == "done\n"
        client.move("0", tmp_path / "elsewhere")
        assert client.count() == ROWS + 20
        assert do("insert", *range(2000, 2020)) != "done\n", "half of the rows belong to the former folder"
        client.upsert(vectors(range(2000, 2020)), np.arange(2000, 2020))
        assert client.count() == ROWS + 40
    check(path, {*range(ROWS), *range(1000, 1020), *range(2000, 2020)})


def test_a_replica_writes_while_the_first_one_is_down(path: Path) -> None:
    options = (str(path), "--writable", "--durability", "process", "--replicas", "2")
    with serving(*options) as served, Client(served.url, collection="rows", retries=20) as client:
        until(lambda: all(one["state"] == "up" for one in client.info()["shards"]))
        for shard in client.info()["shards"]:
            if shard["name"].endswith("/0"):
                os.kill(shard["pid"], signal.SIGKILL)
        client.insert(vectors([ROWS]), [ROWS], request="once")
        assert client.insert(vectors([ROWS]), [ROWS], request="once").repeated
        for _ in range(8):  # requests go from one replica to the next
            assert client.search(vectors([ROWS]), k=1, exact=True).ids[0, 0] == ROWS
    check(path, set(range(ROWS + 1)))


def test_workers_of_gunicorn_write_to_one_folder(tmp_path: Path) -> None:
    path = tmp_path / "notes.velo"
    velo.create(path, dim=DIM, threads=1).close()
    (tmp_path / "notes_app.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "notes_app:app", "--workers", "4"]
    command += ["--worker-class", "uvicorn.workers.UvicornWorker", "--bind", f"127.0.0.1:{port}"]
    environment = child.environment() | {"NOTES": str(path)}
    log = tmp_path / "gunicorn.log"
    with log.open("w") as told:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=told, stderr=told)
    url = f"http://127.0.0.1:{port}"
    pids: set[int] = set()

    def ask(method: str, what: str) -> Any:
        """On a connection of its own, which any worker takes."""
        answer = httpx.request(method, f"{url}/{what}", timeout=60)
        assert answer.status_code == 200, log.read_text()
        pids.add(answer.json()["pid"])
        return answer.json()

    def is_up() -> bool:
        try:
            ask("GET", "search/0")
        except httpx.TransportError:
            return False
        return len(pids) == 4

    def write(number: int) -> int:
        new = 0
        for call in range(CALLS):
            one = 1 + call * 2 + number % 2  # two of four callers give the same ids
            new += ask("POST", f"insert/{one}")["new"]
            found = ask("GET", f"search/{one}")
            assert found["nearest"] == [one], found
            assert found["rows"] >= new
        return new

    try:
        until(is_up)
        with ThreadPoolExecutor(4) as pool:
            new = sum(pool.map(write, range(4)))
    finally:
        server.terminate()
        code = server.wait(60)
    assert new == 2 * CALLS, "an id was inserted twice, or never"
    assert (code, "Traceback" in log.read_text()) == (0, False), log.read_text()
    with velo.open(path, threads=1) as index:
        assert sorted(index.rows(limit=10_000)["id"].to_pylist()) == list(range(1, 2 * CALLS + 1))
    velo.verify(path)
