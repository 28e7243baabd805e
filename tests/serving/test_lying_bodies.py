"""Bodies that lie about their length: refused, and never read as another client's request."""

from __future__ import annotations

import json
import re
import socket

import httpx
import pytest

from tests.serving.conftest import Served

BODY = json.dumps({"vector": [0.0] * 128, "k": 1}).encode()

#: What would be smuggled: it must not be answered.
HIDDEN = b"GET /v1/collections HTTP/1.1\r\nHost: velo\r\n\r\n"

#: Asked after something that was refused in order; HIDDEN, read as a request, would be answered before.
LAST = b"GET /livez HTTP/1.1\r\nHost: velo\r\nConnection: close\r\n\r\n"

CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def post(*headers: str, path: str = "/v1/search", kind: str = "application/json") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: velo", f"Content-Type: {kind}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def answers(served: Served, sent: bytes) -> tuple[list[int], bytes]:
    """The statuses of all answers until the gateway closes the connection, and what it wrote."""
    url = httpx.URL(served.url)
    told = b""
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        try:
            connection.sendall(sent)
            while piece := connection.recv(1 << 16):
                told += piece
        except ConnectionError:  # it closed while we were sending
            pass
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) ", told)], told


def is_well(served: Served) -> None:
    answer = httpx.post(f"{served.url}/v1/search", content=BODY, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["ids"]) == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 10", f"Content-Length: {len(BODY)}"], BODY),
        ([f"Content-Length: {len(BODY)}", "Content-Length: 10"], BODY),
        ([f"Content-Length: {len(BODY)}, 10"], BODY),
        ([f"Content-Length: {len(BODY)}", "Transfer-Encoding: chunked"], CHUNKED),
        (["Transfer-Encoding: chunked", f"Content-Length: {len(BODY)}"], CHUNKED),
        (["Transfer-Encoding: chunked", "Content-Length: 0"], b"0\r\n\r\n"),
        (["Transfer-Encoding: chunked, identity"], CHUNKED),
        (["Transfer-Encoding : chunked"], CHUNKED),
        (["Content-Length: -1"], BODY),
        ([f"Content-Length: +{len(BODY)}"], BODY),
        (["Content-Length: 0x10"], BODY),
        (["Content-Length: 1 0"], BODY),
        (["Content-Length: 99999999999999999999999999"], BODY),
        (["Transfer-Encoding: chunked"], b"-5\r\n" + BODY),
        (["Transfer-Encoding: chunked"], b"ffffffffffffffffff\r\n" + BODY),
        (["Transfer-Encoding: chunked"], b"5\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ],
)
def test_conflicting_and_invalid_lengths_are_refused(
    served_index: Served, headers: list[str], body: bytes
) -> None:
    statuses, told = answers(served_index, post(*headers) + body + HIDDEN + LAST)
    # One refusal at most, and the connection ends: the start of a next request is unknown.
    assert statuses in ([400], []), told
    is_well(served_index)


def test_the_rest_of_a_body_longer_than_its_length_is_no_request(served_index: Served) -> None:
    for length in (0, 1, 10, len(BODY) - 1):
        statuses, told = answers(served_index, post(f"Content-Length: {length}") + BODY + LAST)
        # The part that counts as the body is refused, or not even that, as the rest is no HTTP.
        assert statuses
        assert set(statuses) <= {400, 422}, told
        assert statuses[-1] == 400
    is_well(served_index)


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/v1/search", "application/json", 400),
        ("/v1/search", "text/csv", 415),
        ("/v1/collections/none/search", "application/json", 404),
        ("/v1/nowhere", "application/json", 404),
        ("/livez", "application/json", 405),
    ],
)
def test_a_refused_body_that_looks_like_a_request_is_a_body(
    served_index: Served, path: str, kind: str, status: int
) -> None:
    """Also where the refusal does not wait for the body."""
    length = f"Content-Length: {len(HIDDEN)}"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
    for sent in (
        post(length, path=path, kind=kind) + HIDDEN,
        post("Transfer-Encoding: chunked", path=path, kind=kind) + chunks,
    ):
        statuses, told = answers(served_index, sent + LAST)
        assert statuses == [status, 200], told
    is_well(served_index)


def test_a_body_that_is_too_large_is_not_read_as_requests(served_index: Served) -> None:
    body = HIDDEN * ((33 << 20) // len(HIDDEN))
    statuses, told = answers(served_index, post(f"Content-Length: {len(body)}") + body + LAST)
    assert statuses == [413, 200], told[:2000]
    is_well(served_index)
