"""A server behind a proxy: a Unix socket, a prefix, hosts, connections that stay open."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.serving.conftest import serving
from velo_serving.hosting.server import bind
from velo_serving.protocol.errors import PortInUseError

HEADERS_S = 0.5


def test_a_server_behind_a_proxy(things_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "velo.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # what a killed server leaves
    how = ("--uds", str(path), "--root-path", "/velo", "--trusted-host", "*.example.com")
    with serving(str(things_path), *how, "--limit", f"headers_read_s={HEADERS_S}") as served:
        assert served.url == f"unix:{path}"
        with pytest.raises(PortInUseError, match=r"velo\.sock is in use"):
            bind("127.0.0.1", 0, path)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://10.1.2.3") as client:
            assert client.get("/readyz").status_code == 200
            refused = client.get("/v1/collections")
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "RequestError")
            client.headers["Host"] = "search.example.com:443"
            assert client.get("/openapi.json").json()["servers"] == [{"url": "/velo"}]
            assert "/velo/openapi.json" in client.get("/docs").text
            search = client.post("/v1/search", json={"vector": [0.0] * 16, "k": 2})
            assert search.status_code == 200, search.text


def test_an_idle_connection_outlives_the_time_for_headers(things_path: Path) -> None:
    with serving(str(things_path), "--limit", f"headers_read_s={HEADERS_S}") as served:
        url = httpx.URL(served.url)
        get = b"GET /livez HTTP/1.1\r\nHost: velo\r\n\r\n"
        with socket.create_connection((url.host, url.port), timeout=30) as connection:
            for _ in range(2):
                connection.sendall(get)
                told = b""
                while not told.endswith(b"}"):
                    told += connection.recv(4096)
                assert told.startswith(b"HTTP/1.1 200")
                time.sleep(3 * HEADERS_S)
            connection.sendall(get[:9])  # but a request that has begun must go on
            assert connection.recv(4096).startswith(b"HTTP/1.1 408")
