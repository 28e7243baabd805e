"""Access: API keys that change while the server runs, TLS with certificates of every kind, origins."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import velo
from tests.serving.conftest import ADMIN, READ, Served, invoked, serving, until, write_keys
from tests.serving.exact_gateway import serving as in_process
from tests.serving.fakes import CommandedChannel, backend_of
from velo.errors import InvalidArgumentError
from velo_serving import Client, create_app
from velo_serving.client.client import ConnectionFailedError
from velo_serving.gateway.access import OPEN_PATHS, Access, ApiKeys
from velo_serving.protocol.errors import AdminKeyError, ApiKeyError, ApiKeyFileError, CertificateError
from velo_serving.routing.local_backend import open_local_backend

DIM = 4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that is written to."""
    path = tmp_path_factory.mktemp("access") / "small.velo"
    with velo.create(path, dim=DIM) as index:
        index.insert(np.eye(DIM, dtype=np.float32))
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    write_keys(path, f"# of the tests\n\nread {READ}\nadmin {ADMIN}\n")
    return path


@pytest.fixture(scope="module")
def guarded(small: Path, keys: Path) -> Iterator[Served]:
    """A gateway that asks for keys."""
    with serving(str(small), "--writable", "--api-keys", str(keys)) as served:
        yield served


# ---- keys ----


def test_the_documentation_asks_for_no_key(guarded: Served) -> None:
    for file in ("docs", "openapi.json", "docs-files/swagger-ui.css"):
        assert httpx.get(f"{guarded.url}/{file}").status_code == 200
    assert httpx.get(f"{guarded.url}/docs-files/../v1/collections").status_code == 401


def test_every_path_but_the_open_ones_asks_for_a_key(guarded: Served) -> None:
    document = httpx.get(f"{guarded.url}/openapi.json").json()
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    asked = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            url = guarded.url + path.replace("{name}", "small")
            answer = httpx.request(method, url)
            if path in OPEN_PATHS:
                assert answer.status_code in (200, 307), path
                assert "security" not in operation
                continue
            asked += 1
            assert operation["security"] == [{"apiKey": []}]
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["type"] == "ApiKeyError"
            assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]
            wrong = httpx.request(method, url, headers={"Authorization": f"Bearer {READ}x"})
            assert wrong.status_code == 401
            verbs = (
                "insert",
                "upsert",
                "update",
                "delete",
                "flush",
                "optimize",
                "publish",
                "snapshot",
                "move",
            )
            last = path.rsplit("/", 1)[-1]
            writes = last in verbs or (method, last) in (("post", "collections"), ("delete", "{name}"))
            assert ("403" in operation["responses"]) == writes
            reads = httpx.request(method, url, headers={"Authorization": f"Bearer {READ}"})
            assert (reads.status_code == 403) == writes, reads.text
    assert asked >= 15
    assert httpx.get(f"{guarded.url}/nothing").status_code == 401
    assert httpx.get(f"{guarded.url}//livez").status_code == 401


def test_clients_send_their_api_key(guarded: Served) -> None:
    with Client(guarded.url, collection="small", api_key=READ) as reader:
        assert reader.ready()
        assert reader.search(np.eye(DIM)[0], k=1).ids.tolist() == [0]
        with pytest.raises(AdminKeyError, match="for reading"):
            reader.insert(np.ones((1, DIM)))
        assert reader.count() == DIM
    with Client(guarded.url, collection="small", api_key=ADMIN) as admin:
        assert admin.insert(np.ones((1, DIM))).rows == 1
        assert admin.delete([DIM]).rows == 1
    with Client(guarded.url, collection="small") as nobody:
        assert nobody.ready()
        with pytest.raises(ApiKeyError, match="asks for a key"):
            nobody.count()
    for wrong in ("", "two words", "ключ", "line\n"):
        with pytest.raises(InvalidArgumentError, match="api_key"):
            Client(guarded.url, api_key=wrong)


def test_keys_change_while_the_server_runs(guarded: Served, keys: Path) -> None:
    before = keys.read_text()

    def works(key: str) -> bool:
        head = {"Authorization": f"bearer {key}"}
        return httpx.get(f"{guarded.url}/v1/collections", headers=head).status_code == 200

    another = "another-key-0123456789"
    try:
        assert works(READ)
        assert not works(another)
        write_keys(keys, f"read {another}\n")
        until(lambda: works(another))
        assert not works(READ)
        # An invalid file changes nothing, nor does a missing one.
        write_keys(keys, "root everything-is-mine\n")
        time.sleep(1.2)
        assert works(another)
        keys.unlink()
        time.sleep(1.2)
        assert works(another)
    finally:
        write_keys(keys, before)
    until(lambda: works(READ))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no key"),
        ("# read 0123456789abcdef\n", "names no key"),
        ("root 0123456789abcdef\n", "line 1: a line reads"),
        ("read\n", "line 1: a line reads"),
        ("\nread 0123456789abcdef twice\n", "line 2: a line reads"),
        ("read short\n", "line 1: a key has 16"),
        ("read 0123456789abcdef\nadmin 0123456789abcdef\n", "line 2: this key has another role"),
        ("read \ud800", "cannot"),
        (None, "cannot be read"),
    ],
)
def test_an_invalid_file_of_keys_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "keys.txt"
    if text == "read \ud800":
        path.write_bytes(b"read \xff\xfe0123456789abcdef")
        why = "is no text"
    elif text is not None:
        path.write_text(text)
    with pytest.raises(ApiKeyFileError, match=why) as told:
        ApiKeys(path)
    assert told.value.file == str(path)
    with pytest.raises(ApiKeyFileError):
        create_app(backend_of([CommandedChannel(0)]), access=Access(api_keys=str(path)))


def test_wrong_files_and_origins_are_refused_before_an_index_is_opened(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("nothing here is a key\n")
    for arguments, why in (
        (("--api-keys", str(tmp_path / "keys")), "a line reads"),
        (("--ssl-certfile", str(tmp_path / "none.pem")), "cannot be used"),
        (("--ssl-keyfile", str(tmp_path / "none.pem")), "needs a certificate"),
        (("--cors-origin", "example.com"), "an origin reads"),
    ):
        ended = invoked("serve", str(tmp_path / "no-index"), "--port", "0", *arguments)
        assert (ended.returncode, why in ended.stderr) == (1, True), ended.stderr


# ---- origins ----


async def test_web_pages_of_named_origins_may_ask(small: Path, keys: Path) -> None:
    page = {"Origin": "https://shop.example"}
    ask_before = {
        **page,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    access = Access(str(keys), ("https://shop.example", "http://localhost:3000"))

    async with in_process(open_local_backend(small, threads=1), access=access) as client:
        url = "/v1/search"
        before = await client.options(url, headers=ask_before)  # a browser sends it without a key
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == "https://shop.example"
        assert "Authorization" in before.headers["access-control-allow-headers"]
        answer = await client.post(
            url,
            headers={**page, "Authorization": f"Bearer {READ}"},
            json={"vector": [1, 0, 0, 0], "k": 1},
        )
        assert answer.json()["ids"] == [[0]]
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
        # A page can read why it was refused.
        refused = await client.post(url, headers=page, json={"vector": [1, 0, 0, 0]})
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (401, True)
        stranger = await client.options(url, headers={**ask_before, "Origin": "https://evil.example"})
        assert stranger.status_code == 400
        assert "access-control-allow-origin" not in stranger.headers


def test_without_the_option_no_origin_is_allowed(guarded: Served) -> None:
    answer = httpx.get(f"{guarded.url}/livez", headers={"Origin": "https://shop.example"})
    assert "access-control-allow-origin" not in answer.headers


# ---- TLS ----


def certificate(folder: Path, name: str, *, days: int, address: str = "IP:127.0.0.1") -> tuple[Path, Path]:
    """A certificate that vouches for itself, and its key."""
    folder.mkdir(exist_ok=True)
    key, request, made = (folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
    openssl = shutil.which("openssl")
    assert openssl is not None, "the tests of TLS make certificates with the command openssl"
    for line in (
        f"req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {key} -out {request} "
        f"-subj /CN=velo -addext subjectAltName={address}",
        f"x509 -req -in {request} -signkey {key} -days {days} -copy_extensions copy -out {made}",
    ):
        subprocess.run([openssl, *line.split()], check=True, capture_output=True, timeout=60)
    return made, key


def test_clients_verify_the_certificate_of_a_tls_server(small: Path, tmp_path: Path, keys: Path) -> None:
    made, key = certificate(tmp_path / "own", "good", days=2)
    other, _ = certificate(tmp_path / "other", "good", days=2)
    arguments = ("--ssl-certfile", str(made), "--ssl-keyfile", str(key), "--api-keys", str(keys))
    with serving(str(small), *arguments) as served:
        assert served.url.startswith("https://")
        query = np.eye(DIM)[1]
        for verify in (made, str(made), ssl.create_default_context(cafile=str(made)), False):
            with Client(served.url, verify=verify, api_key=READ) as client:
                assert client.search(query, k=1).ids.tolist() == [1]
        started = time.monotonic()
        for distrust in (True, other):
            with (
                Client(served.url, verify=distrust, api_key=READ, retries=50) as client,
                pytest.raises(CertificateError, match=r"self.signed"),
            ):
                client.search(query, k=1)
        assert time.monotonic() - started < 20, "there is no use in trying again"
        # Somebody who speaks no TLS is refused, and others go on.
        with (
            Client(served.url.replace("https", "http"), retries=0) as plain,
            pytest.raises(ConnectionFailedError),
        ):
            plain.search(query, k=1)
        with Client(served.url, verify=made, api_key=READ) as client:
            assert client.search(query, k=1).ids.tolist() == [1]
    with pytest.raises(InvalidArgumentError, match="verify"):
        Client("https://127.0.0.1", verify=tmp_path / "none.pem")


@pytest.mark.parametrize(
    ("days", "address", "why"),
    [(-1, "IP:127.0.0.1", "certificate has expired"), (2, "DNS:elsewhere.example", "mismatch")],
)
def test_an_expired_or_mismatched_certificate_is_a_typed_error(
    tmp_path: Path, days: int, address: str, why: str
) -> None:
    made, key = certificate(tmp_path / "own", "bad", days=days, address=address)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made, key)

    def shake_hands(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=shake_hands, args=(listener,))
        server.start()
        port = listener.getsockname()[1]
        with (
            Client(f"https://127.0.0.1:{port}", verify=made) as client,
            pytest.raises(CertificateError, match=why),
        ):
            client.search(np.eye(DIM)[1], k=1)
        server.join(30)


def test_a_server_may_require_certificates_of_clients(small: Path, tmp_path: Path) -> None:
    made, key = certificate(tmp_path / "own", "server", days=2)
    client_made, client_key = certificate(tmp_path / "theirs", "client", days=2)
    arguments = ("--ssl-certfile", str(made), "--ssl-keyfile", str(key), "--ssl-ca-certs", str(client_made))
    with serving(str(small), *arguments) as served:
        known = ssl.create_default_context(cafile=str(made))
        with Client(served.url, verify=known, retries=0) as nobody, pytest.raises(ConnectionFailedError):
            nobody.search(np.eye(DIM)[1], k=1)
        known.load_cert_chain(client_made, client_key)
        with Client(served.url, verify=known) as somebody:
            assert somebody.search(np.eye(DIM)[2], k=1).ids.tolist() == [2]
