"""Publishing over HTTP, aliases, and the files that SIGHUP reads again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import velo
from tests.serving.conftest import ADMIN, READ, Served, children, serving, until, write_keys
from tests.serving.exact_gateway import serving as in_process
from tests.serving.fakes import CommandedChannel, backend_of
from velo.errors import InvalidArgumentError, VeloError
from velo_serving import Access, Client, create_app
from velo_serving.hosting.processes import open_processes
from velo_serving.protocol.errors import (
    AdminKeyError,
    AliasFileError,
    PublicationError,
    UnknownCollectionError,
)
from velo_serving.protocol.types import SearchRequest
from velo_serving.routing.local_backend import open_local_backend
from velo_serving.routing.served import served_collection

DIM = 8
ROWS = 400


def built(path: Path, first: int, shards: int) -> Path:
    """A build whose ids show its version."""
    vectors = np.random.default_rng(5).standard_normal((ROWS, DIM)).astype(np.float32)
    ids = np.arange(first, first + ROWS)
    return velo.build_collection(path, vectors, shards=shards, ids=ids, calibrate=False, threads=1)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("first") / "books.velo", 0, 1)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("second") / "other.velo", 1000, 2)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_keys(tmp_path / "keys.txt", f"read {READ}\nadmin {ADMIN}\n")
    return tmp_path / "keys.txt"


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(
            ["--replicas", "2"],
            marks=pytest.mark.long(
                guarded_by="tests/serving/test_publish.py::test_a_version_is_published_under_load"
            ),
        ),
        ["--workers", "2"],
    ],
    ids=["one", "replicas", "workers"],
)
def test_a_version_is_published_under_load(
    first: Path, second: Path, keys: Path, options: list[str], tmp_path: Path
) -> None:
    query = np.zeros((4, DIM), np.float32)
    over = threading.Event()
    seen: list[tuple[str, set[str]]] = []
    failures: list[BaseException] = []

    def load(url: str) -> None:
        try:
            while not over.is_set():
                # A client of its own each time: whichever gateway takes the connection.
                with Client(url, collection="books", api_key=READ, retries=0) as client:
                    answer = client.search(query, k=5, allow_partial=False)
                    versions = {"new" if one >= 1000 else "old" for row in answer.ids for one in row}
                    seen.append((client.info()["version"], versions))
                time.sleep(0.2)
        except BaseException as error:
            failures.append(error)

    with serving(str(first), "--api-keys", str(keys), *options) as served:
        before = children(served, b"shard.process")
        loads = [threading.Thread(target=load, args=(served.url,)) for _ in range(2)]
        for one in loads:
            one.start()
        with Client(served.url, collection="books", api_key=ADMIN, timeout_s=60.0) as admin:
            if not options:
                shutil.copytree(second, tmp_path / "broken")
                (tmp_path / "broken" / "shard-00001" / "pages.bin").unlink()
                with pytest.raises(PublicationError, match=r"pages\.bin"):
                    admin.publish(str(tmp_path / "broken"), "broken")
            with pytest.raises(PublicationError, match="nothing-here"):
                admin.publish(str(tmp_path / "nothing-here"), "gone")
            assert admin.info()["version"] == ""
            told = admin.publish(str(second), "two")
            assert (told["version"], told["n"], told["dim"], told["metric"]) == ("two", ROWS, DIM, "l2")
            with pytest.raises(InvalidArgumentError, match="served already"):
                admin.publish(str(second), "two")
            until(lambda: bool(failures) or seen[-2:] == [("two", {"new"})] * 2)
            over.set()
            for one in loads:
                one.join()
            assert admin.info()["shards_total"] == 2
            if "--workers" not in options:
                assert admin.publish(str(first), "three")["version"] == "three"  # and back again
        assert failures == []
        assert all(len(versions) == 1 for _, versions in seen), "an answer of two versions"
        if before:
            until(lambda: not set(before) & set(children(served, b"shard.process")))
            # Two replicas of one shard, or two shards. Former ones stay while a gateway is connected to them.
            until(lambda: len(children(served, b"shard.process")) == 2, seconds=120)
        if "--workers" in options:
            restarted_gateways_serve(served, "two")


def restarted_gateways_serve(served: Served, version: str) -> None:
    """Kill both gateways; those started in their place serve this version."""
    for pid in children(served, b"gateway_process"):
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: pid not in children(served, b"gateway_process"))
    until(lambda: len(children(served, b"gateway_process")) == 2)

    def answers() -> bool:
        with Client(served.url, collection="books", api_key=READ, retries=0) as client:
            answer = client.search(np.zeros(DIM, np.float32), k=5)
            return client.info()["version"] == version and answer.shards_answered == 2

    def all_answer() -> bool:
        try:
            return all(answers() for _ in range(8))
        except VeloError:
            return False

    until(all_answer)


async def test_a_gateway_that_missed_a_publication_finds_the_next_version(first: Path, second: Path) -> None:
    shards = open_processes(first, threads=1)
    previous, processes = shards.records[0], shards.shards["books"]
    try:
        await shards.exchange("books", str(second), "two")
        for one in processes:
            await asyncio.to_thread(one.close)
        served = served_collection(previous, shards)
        await served.start()
        try:
            end = time.monotonic() + 30
            while served.now.version != "two":
                assert time.monotonic() < end, "it did not happen"
                await asyncio.sleep(0.05)
            answer = await served.router.search(SearchRequest(np.zeros((1, DIM), np.float32), 5))
            assert answer.shards_answered == 2
        finally:
            await served.close()
    finally:
        shards.close()


async def test_only_an_admin_key_may_publish(first: Path, second: Path, keys: Path) -> None:
    path = "/v1/collections/books/publish"

    body = {"path": str(second), "version": "two"}
    async with in_process(open_local_backend(first, threads=1), access=Access(str(keys))) as client:
        told = await client.post(path, json=body, headers={"Authorization": f"Bearer {READ}"})
        assert (told.status_code, told.json()["error"]["type"]) == (403, AdminKeyError.__name__)
        assert "for reading" in told.json()["error"]["message"]
        head = {"Authorization": f"Bearer {ADMIN}"}
        wrong: list[Any] = [{}, {"path": "", "version": "x"}, {"path": "x", "version": "y", "more": 1}]
        for one in wrong:
            assert (await client.post(path, json=one, headers=head)).status_code == 422
        told = await client.post(path, content=b"{", headers=head | {"Content-Type": "application/json"})
        assert told.status_code == 400
    async with in_process(open_local_backend(first, threads=1)) as client:
        told = await client.post(path, json=body)
        assert (told.status_code, told.json()["error"]["type"]) == (403, AdminKeyError.__name__)
        assert "has no keys" in told.json()["error"]["message"]


# ---- aliases ----


@pytest.mark.parametrize(
    "workers",
    [
        1,
        pytest.param(
            2,
            marks=pytest.mark.long(
                guarded_by="tests/serving/test_publish.py::test_an_alias_changes_while_the_server_runs"
            ),
        ),
    ],
)
def test_an_alias_changes_while_the_server_runs(
    first: Path, second: Path, tmp_path: Path, workers: int
) -> None:
    aliases = tmp_path / "aliases.txt"
    write_keys(aliases, "# what users ask\nshop books\n\nbest books\n")
    with serving(str(first), str(second), "--aliases", str(aliases), "--workers", str(workers)) as served:
        vector = [0.0] * DIM

        def ids_of(name: str) -> set[bool]:
            """Whether an alias stands for the second collection, at several gateways."""
            found = set()
            for _ in range(1 if workers == 1 else 6):
                told = httpx.post(
                    f"{served.url}/v1/collections/{name}/search", json={"vector": vector, "k": 1}
                )
                found.add(told.json()["ids"][0][0] >= 1000 if told.status_code == 200 else None)
            return found

        assert ids_of("shop") == {False}
        listed = httpx.get(f"{served.url}/v1/collections").json()
        assert listed["aliases"] == {"shop": "books", "best": "books"}
        write_keys(aliases, "shop other\n")
        served.process.send_signal(signal.SIGHUP)
        until(lambda: ids_of("shop") == {True})
        assert ids_of("best") == {None}
        # An invalid file changes nothing.
        write_keys(aliases, "shop nowhere\n")
        served.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert ids_of("shop") == {True}
        assert served.process.poll() is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("shop\n", "line 1: a line reads"),
        ("a/b things\n", "line 1: a line reads"),
        ("shop things\nshop others\n", "line 2: this alias has another collection"),
        ("shop nowhere\n", "'nowhere', which is not served here"),
        ("things things\n", "is a collection, so it cannot be an alias"),
        (None, "cannot be read"),
    ],
)
def test_an_invalid_file_of_aliases_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "aliases.txt").write_text(text)
    backend = backend_of([CommandedChannel("0")])
    with pytest.raises(AliasFileError, match=why):
        create_app(backend, access=Access(aliases=str(tmp_path / "aliases.txt")))
    with pytest.raises(UnknownCollectionError):
        backend.collection("shop")


# ---- SIGHUP ----


@pytest.fixture
def certificates(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Makes a certificate for localhost with some words in it, at ``server.pem``."""

    def make(word: str) -> None:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-nodes", "-keyout", tmp_path / "server.key", "-out", tmp_path / "server.pem"),
                *("-days", "2", "-subj", f"/CN={word}", "-addext", "subjectAltName=IP:127.0.0.1"),
            ],
            check=True,
            capture_output=True,
        )

    return make


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(
            1,
            marks=pytest.mark.long(
                guarded_by="tests/serving/test_publish.py::test_sighup_reads_keys_and_certificate_again"
            ),
        ),
        2,
    ],
)
def test_sighup_reads_keys_and_certificate_again(
    first: Path, keys: Path, tmp_path: Path, certificates: Callable[[str], None], workers: int
) -> None:
    certificates("before")
    options = ["--ssl-certfile", str(tmp_path / "server.pem"), "--ssl-keyfile", str(tmp_path / "server.key")]
    options += ["--api-keys", str(keys), "--workers", str(workers)]
    with serving(str(first), *options) as served:
        port = int(served.url.rsplit(":", 1)[1])

        def shown() -> bytes:
            """The certificate that a connection sees, as bytes."""
            return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))

        def all_show(word: bytes) -> bool:
            return all(word in shown() for _ in range(6))

        assert all_show(b"before")
        with httpx.Client(verify=False) as http:  # a connection of before goes on

            def status(key: str) -> int:
                head = {"Authorization": f"Bearer {key}"}
                return http.get(f"{served.url}/v1/collections", headers=head).status_code

            assert status(READ) == 200
            certificates("after")
            write_keys(keys, f"admin {ADMIN}\n")
            served.process.send_signal(signal.SIGHUP)
            until(lambda: all_show(b"after"))
            assert (status(READ), status(ADMIN)) == (401, 200)
            (tmp_path / "server.pem").write_text("this is no certificate")
            write_keys(keys, "this is no key\n")
            served.process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert all_show(b"after")
            assert status(ADMIN) == 200
        assert os.path.exists(f"/proc/{served.process.pid}")


@pytest.mark.parametrize("path", ["x" * 4096, "/" + "x" * 300, "x/" * 2040, "../none", "a\0b"])
async def test_publishing_an_invalid_path_is_refused(tmp_path: Path, path: str) -> None:
    velo.build(tmp_path / "one.velo", np.eye(8), threads=1, calibrate=False).close()
    keys = tmp_path / "keys.txt"
    keys.write_text(f"admin {'k' * 20}\n")

    backend = open_local_backend(tmp_path / "one.velo", threads=1)
    async with in_process(backend, access=Access(str(keys))) as client:
        answer = await client.post(
            "/v1/collections/one/publish",
            json={"path": path, "version": "2"},
            headers={"Authorization": f"Bearer {'k' * 20}"},
        )
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["type"] in ("InvalidArgumentError", "PublicationError")
        assert (await client.get("/livez")).status_code == 200
