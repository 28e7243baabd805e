"""Spans of OpenTelemetry: what a request leaves in real exporters, and what is imported without any."""

from __future__ import annotations

import asyncio
import http.server
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import velo_serving
from tests.serving.conftest import python, serving
from tests.serving.exact_gateway import serving as in_process
from tests.serving.fakes import CommandedChannel, backend_of
from velo_serving.gateway.tracing import provider_of_environment

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_of(ask: Any, channels: list[CommandedChannel]) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def run() -> None:
        async with in_process(backend_of(channels), tracer_provider=provider) as client:
            await ask(client)

    asyncio.run(run())
    return exporter.get_finished_spans()


def by_name(spans: tuple[ReadableSpan, ...], name: str) -> list[ReadableSpan]:
    return [one for one in spans if one.name == name]


def test_a_search_leaves_a_span_for_the_request_the_search_and_each_shard() -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        head = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "order-17"}
        answer = await client.post("/v1/search", json={"vectors": [[0.0] * 4] * 2, "k": 3}, headers=head)
        assert answer.status_code == 200

    spans = spans_of(ask, [CommandedChannel(0), CommandedChannel(1)])
    assert len(spans) == 4
    (request,) = by_name(spans, "POST /v1/search")
    assert request.kind is SpanKind.SERVER
    assert request.context is not None
    assert request.parent is not None
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, PARENT)
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "/v1/search",
        "http.response.status_code": 200,
        "url.path": "/v1/search",
        "url.scheme": "http",
        "velo.request_id": "order-17",
    }
    (search,) = by_name(spans, "velo.search")
    assert search.context is not None
    assert search.parent is not None
    assert search.parent.span_id == request.context.span_id
    told = dict(search.attributes or {})
    assert told.pop("velo.reads") is not None
    assert told == {"velo.collection": "things", "velo.queries": 2, "velo.k": 3, "velo.shards_answered": 2}
    shards = by_name(spans, "velo.shard")
    assert {(one.attributes or {})["velo.shard"] for one in shards} == {"0", "1"}
    for one in shards:
        assert one.parent is not None
        assert one.parent.span_id == search.context.span_id
        assert one.kind is SpanKind.CLIENT
        assert one.status.status_code is StatusCode.UNSET
        assert one.start_time is not None
        assert request.start_time is not None
        assert one.start_time >= request.start_time


def test_a_failed_search_fails_its_span() -> None:
    slow, quick = CommandedChannel(0), CommandedChannel(1)

    async def never(request: Any) -> Any:
        await asyncio.sleep(60)

    async def ask(client: httpx.AsyncClient) -> None:
        slow.answer = never
        body = {"vector": [0.0] * 4, "timeout_ms": 500}
        assert (await client.post("/v1/search", json=body)).json()["partial"]
        quick.answer = never
        assert (await client.post("/v1/search", json=body)).status_code == 504
        assert (await client.post("/v1/search", json={"vector": [0.0]})).status_code == 422
        assert (await client.get("/nothing")).status_code == 404

    spans = spans_of(ask, [slow, quick])
    statuses = [one.status.status_code for one in by_name(spans, "velo.shard")]
    assert sorted(status.name for status in statuses) == ["ERROR", "ERROR", "ERROR", "UNSET"]
    first, second = by_name(spans, "velo.search")
    assert first.status.status_code is StatusCode.UNSET
    assert second.status.status_code is StatusCode.ERROR
    assert "DeadlineExceededError" in (second.status.description or "")
    requests = by_name(spans, "POST /v1/search")
    assert [one.status.status_code.name for one in requests] == ["UNSET", "ERROR", "UNSET"]
    (unknown,) = by_name(spans, "GET")  # no path that a client made up becomes a name
    assert (unknown.attributes or {})["http.response.status_code"] == 404


def test_requests_at_once_keep_their_spans_apart() -> None:
    async def ask(client: httpx.AsyncClient) -> None:
        async def one(number: int) -> None:
            head = {"traceparent": f"00-{number + 1:032x}-{PARENT}-01"}
            await client.post("/v1/search", json={"vector": [0.0] * 4}, headers=head)

        await asyncio.gather(*(one(number) for number in range(20)))

    spans = spans_of(ask, [CommandedChannel(0), CommandedChannel(1)])
    traces: dict[int, list[str]] = {}
    for one in spans:
        assert one.context is not None
        traces.setdefault(one.context.trace_id, []).append(one.name)
    assert sorted(traces) == list(range(1, 21))
    whole = ["POST /v1/search", "velo.search", "velo.shard", "velo.shard"]
    assert all(sorted(names) == whole for names in traces.values())


class _Collector(http.server.BaseHTTPRequestHandler):
    """Takes what the OTLP exporter of a server sends."""

    bodies: list[bytes] = []  # noqa: RUF012 - of the one test below

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") is None and self.path == "/v1/traces":
            self.bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_velo_serve_sends_spans_where_the_environment_says(
    things_path: Path, collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
    _Collector.bodies.clear()
    with serving(str(things_path)) as served:
        assert httpx.get(f"{served.url}/v1/collections").status_code == 200
    # The server has ended, so all is sent.
    sent = [ExportTraceServiceRequest.FromString(body) for body in _Collector.bodies]
    resources = [one for request in sent for one in request.resource_spans]
    assert {
        pair.value.string_value
        for one in resources
        for pair in one.resource.attributes
        if pair.key == "service.name"
    } == {"velo"}
    names = [span.name for one in resources for scope in one.scope_spans for span in scope.spans]
    assert names == ["GET /v1/collections"]


def test_without_a_tracer_nothing_of_the_extra_is_imported() -> None:
    """FastAPI imports OpenTelemetry's interface on its own account; what the extra brings it does not."""
    modules = Path(velo_serving.__file__).parent.rglob("*.py")
    assert [
        one.name for one in modules if re.search(r"^(from|import) opentelemetry", one.read_text(), re.M)
    ] == []
    ended = python(
        "import sys, asyncio, httpx\n"
        "from tests.serving.fakes import CommandedChannel, backend_of\n"
        "from velo_serving import create_app\n"
        "import velo_serving.hosting.serve\n"
        "async def run():\n"
        "    app = create_app(backend_of([CommandedChannel(0)]))\n"
        "    transport = httpx.ASGITransport(app)\n"
        "    async with app.router.lifespan_context(app), httpx.AsyncClient(\n"
        "        transport=transport, base_url='http://velo') as client:\n"
        "        told = await client.post('/v1/search', json={'vector': [0.0] * 4})\n"
        "        assert told.status_code == 200\n"
        "asyncio.run(run())\n"
        "extra = ('opentelemetry.sdk', 'opentelemetry.exporter')\n"
        "print([name for name in sys.modules if name.startswith(extra)])"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[]"


def test_a_missing_extra_is_named_where_spans_are_asked_for() -> None:
    ended = python(
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "from velo.errors import MissingDependencyError\n"
        "from velo_serving.gateway.tracing import provider_of_environment\n"
        "try: provider_of_environment()\n"
        "except MissingDependencyError as error: print(error)",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
    )
    assert ended.returncode == 0, ended.stderr
    assert "pip install 'veloann[otel]'" in ended.stdout


def test_spans_are_sent_only_where_the_environment_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    assert provider_of_environment() is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert provider_of_environment() is None
