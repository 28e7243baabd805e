"""Spans of OpenTelemetry, which is imported on first use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from velo.errors import MissingDependencyError
from velo_serving.gateway.logs import StatusWatch, request_id
from velo_serving.protocol import spans

#: OpenTelemetry's own words for where spans go.
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

MISSING: Final = "OpenTelemetry is not installed; pip install 'veloann[otel]'"


def provider_of_environment() -> Any:
    """The provider that OpenTelemetry's variables configure (OTLP export), or None."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependencyError(MISSING) from error
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": "velo"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class _Span:
    def __init__(self, inner: Any, trace: Any) -> None:
        self._inner = inner
        self._error = trace.StatusCode.ERROR

    def note(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            if value is not None:
                self._inner.set_attribute(name, value)

    def end(self, failure: str = "") -> None:
        if failure:
            self._inner.set_status(self._error, failure)
        self._inner.end()


class _Maker:
    def __init__(self, tracer: Any, trace: Any) -> None:
        self._tracer = tracer
        self._trace = trace

    def start(self, name: str, **attributes: Any) -> _Span:
        kind = self._trace.SpanKind.CLIENT
        return _Span(self._tracer.start_span(name, kind=kind, attributes=attributes), self._trace)

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[_Span]:
        # An exception is recorded and fails the span; the context manager of the library does so.
        with self._tracer.start_as_current_span(name, attributes=attributes) as inner:
            yield _Span(inner, self._trace)


class Traced:
    """Middleware: a span for each request, below the one that its ``traceparent`` names."""

    def __init__(self, app: ASGIApp, provider: Any) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise MissingDependencyError(MISSING) from error
        self._app = app
        self._context = context
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("velo_serving")
        self._maker = _Maker(self._tracer, trace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = str(scope["method"])
        above = self._propagator.extract(dict(Headers(scope=scope).items()))
        one = self._tracer.start_span(
            method,
            context=above,
            kind=self._trace.SpanKind.SERVER,
            attributes={
                "http.request.method": method,
                "url.path": scope["path"],
                "url.scheme": scope.get("scheme", "http"),
                "velo.request_id": request_id.get(),
            },
        )
        watched = StatusWatch(send)
        token = self._context.attach(self._trace.set_span_in_context(one, above))
        before = spans.maker.set(self._maker)
        try:
            await self._app(scope, receive, watched)
        finally:
            spans.maker.reset(before)
            self._context.detach(token)
            route = getattr(scope.get("route"), "path", None)
            if route is not None:
                one.update_name(f"{method} {route}")
                one.set_attribute("http.route", route)
            one.set_attribute("http.response.status_code", watched.status)
            if watched.status >= 500:
                one.set_status(self._trace.StatusCode.ERROR)
            one.end()
