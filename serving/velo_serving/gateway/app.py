"""The FastAPI app: routes over a backend. Long work happens in shards or threads, never on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from msgspec import Struct, structs
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

import velo
from velo_serving.gateway import bodies, collections
from velo_serving.gateway.access import (
    DOCS_FILES,
    Access,
    ApiKeys,
    Guarded,
    HostChecked,
    check_may_write,
    describe_security,
)
from velo_serving.gateway.admission import Admitted, arrived_at, stopped_by_server
from velo_serving.gateway.dashboard import Embedding, add_dashboard, dashboard_routes
from velo_serving.gateway.encoders import choose_type, encoded
from velo_serving.gateway.errors import BodyTimeoutError, install
from velo_serving.gateway.logs import Logged, note
from velo_serving.gateway.metrics import CONTENT_TYPE, Measured, Metrics
from velo_serving.gateway.operations import DROP_ERRORS, ERRORS, Call, Document, Operation
from velo_serving.gateway.rows import LOOKUPS, Looked, written
from velo_serving.gateway.schemas import (
    CollectionAnswer,
    CollectionList,
    CollectionSummary,
    ErrorAnswer,
    HealthAnswer,
    ReadyAnswer,
    SearchAnswer,
    ShardAnswer,
    content_of,
)
from velo_serving.gateway.tracing import Traced
from velo_serving.gateway.watched import Aliases
from velo_serving.gateway.write_bodies import WRITES
from velo_serving.protocol.errors import (
    BodyTooLargeError,
    DeadlineExceededError,
    QueueFullError,
    UnsupportedMediaTypeError,
)
from velo_serving.protocol.limits import GatewayLimits, RouterLimits
from velo_serving.protocol.loops import converted
from velo_serving.protocol.requests import NOT_IN_ARROW, SearchBody, effort_of
from velo_serving.protocol.types import Answer, SearchRequest, ShardHealth
from velo_serving.routing import hybrid, lookups
from velo_serving.routing.backend import Backend
from velo_serving.routing.router import Router
from velo_serving.routing.served import Generation, ServedCollection
from velo_serving.transport.codec import import_pandas

DESCRIPTION = (
    "Nearest neighbors from indexes that live on SSDs. Bodies hold one or many vectors, each with a filter "
    "of its own; an answer says how many shards took part in it."
)

#: Encoding more numbers, or more rows of metadata, leaves the event loop for a thread.
ENCODE_INLINE_MAX = 2_000
ENCODE_ROWS_INLINE_MAX = 100

#: Answers may be so late.
LATE_S = 0.02

#: Most searches end before anybody could leave; only longer ones look whether their client is still there.
LOOK_FOR_CLIENT_S = 0.003


def create_app(
    backend: Backend,
    *,
    limits: GatewayLimits | None = None,
    ready_shards: int | None = None,
    slow_s: float | None = None,
    access: Access | None = None,
    tracer_provider: Any = None,
    embed: Callable[[Sequence[str]], Any] | str | None = None,
) -> FastAPI:
    """Make the gateway over a backend.

    Parameters
    ----------
    backend : Backend
        Started and closed with the app.
    limits : GatewayLimits, optional
    ready_shards : int, optional
        Shards of every collection that must be up for ``/readyz``; default: one.
    slow_s : float, optional
        Requests that take at least this long are logged to ``velo_serving.requests``.
    access : Access, optional
        API keys, and origins whose web pages may send requests; TLS is up to the server of the app.
    tracer_provider : opentelemetry.trace.TracerProvider, optional
        Gets a span for each request, its search, and each shard (``pip install 'veloann[otel]'``).
    embed : callable or str, optional
        For texts in the dashboard at ``/ui``: from a list of texts to an array with a row for each; a string
        such as ``"module:function"`` is imported.

    Returns
    -------
    FastAPI
    """
    import_pandas()
    bounds = limits or GatewayLimits()
    metrics = Metrics(backend)
    gate = _Gate(bounds)
    who = access or Access()
    who.check()
    keys = None if who.api_keys is None else ApiKeys(who.api_keys)
    aliases = None if who.aliases is None else Aliases(who.aliases, backend)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await backend.start()
        tasks = [asyncio.create_task(metrics.keep())]
        if aliases is not None:
            tasks.append(asyncio.create_task(aliases.keep()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await backend.close()

    app = FastAPIOffline(
        title="velo",
        version=velo.__version__,
        description=DESCRIPTION,
        redoc_url=None,
        static_url=DOCS_FILES,
        lifespan=lifespan,
    )
    app.state.reload = lambda: [one.reload() for one in (keys, aliases) if one is not None]
    app.state.draining = lambda: backend.draining
    app.add_middleware(Admitted, limits=lambda: _limits_of(backend), body_read_s=bounds.body_read_s)
    if keys is not None:
        app.add_middleware(Guarded, keys=keys)
    app.add_middleware(Measured, metrics=metrics)
    if tracer_provider is not None:
        app.add_middleware(Traced, provider=tracer_provider)
    if who.trusted_hosts:
        app.add_middleware(HostChecked, hosts=who.trusted_hosts)
    app.add_middleware(Logged, slow_s=slow_s)
    if who.cors_origins:
        # Outermost: what a browser asks before it asks has no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(who.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Accept", "Authorization", "Content-Type", "X-Request-Id", "traceparent"],
            expose_headers=["Retry-After", "X-Request-Id"],
        )
    install(app)

    document = Document()

    def post(path: str, answer: Callable[..., Coroutine[Any, Any, Response]], **options: Any) -> None:
        app.router.add_api_route(path, answer, methods=["POST"], route_class_override=_PlainRoute, **options)

    async def search(request: Request) -> Response:
        return await gate.search(request, backend, None)

    async def search_collection(request: Request, name: str) -> Response:
        return await gate.search(request, backend, name)

    for path, answer, summary in (
        ("/v1/search", search, "Search the only collection"),
        ("/v1/collections/{name}/search", search_collection, "Search one of several collections"),
    ):
        described = document.operation(
            summary,
            SearchAnswer,
            ERRORS,
            body=SearchBody,
            arrow="Column `vector`, optionally `filter`; options in the query string.",
            query=SearchBody,
            without=NOT_IN_ARROW,
            arrow_answer=True,
        )
        post(path, answer, **described)

    def run(operation: Operation) -> Callable[..., Coroutine[Any, Any, Response]]:
        async def on_one(request: Request, name: str) -> Response:
            return await gate.run(request, operation, backend.collection(name))

        async def on_all(request: Request) -> Response:
            return await gate.run(request, operation, None)

        return on_one if operation.path else on_all

    admin = collections.administration(backend, keys is not None, who.publish_from)
    for one in (*LOOKUPS, *dashboard_routes(Embedding(embed)), *WRITES, *admin):
        described = document.operation(
            one.summary, one.answer, one.errors, body=one.body, arrow=one.arrow, query=one.query
        )
        post(one.full_path, run(one), name=one.path or "create", **described)

    @app.delete(
        "/v1/collections/{name}",
        **document.operation("Drop a collection", collections.DropAnswer, DROP_ERRORS),
    )
    async def drop(name: str) -> Response:
        note(audit="drop", collection=name)
        check_may_write()
        return _json(await _uncanceled(collections.drop(name, backend)))

    @app.get("/v1/collections", **document.operation("List the collections", CollectionList))
    async def listed() -> Response:
        summaries = [_summary(served) for served in backend.collections]
        return _json(CollectionList(summaries, dict(backend.aliases)))

    @app.get(
        "/v1/collections/{name}",
        **document.operation("One collection and its shards", CollectionAnswer, {404: ERRORS[404]}),
    )
    async def collection(name: str) -> Response:
        return _json(_describe(backend.collection(name)))

    @app.get("/livez", **document.operation("Is the process alive?", HealthAnswer))
    @app.get("/healthz", **document.operation("The former name of /livez", HealthAnswer))
    async def livez() -> Response:
        return _json(HealthAnswer("ok"))

    readiness = document.operation("Can searches be answered?", ReadyAnswer)
    readiness["responses"][503] = {
        "description": "Too few shards of some collection are up, or it ends.",
        "content": content_of(ReadyAnswer),
    }

    @app.get("/readyz", **readiness)
    async def readyz() -> Response:
        served = backend.collections
        ready = backend.ready(ready_shards) and not backend.draining
        up = {one.name: f"{one.router.shards_up}/{one.router.shards_total} shards" for one in served}
        return _json(ReadyAnswer("ready" if ready else "not ready", up), 200 if ready else 503)

    @app.get("/metrics", response_class=Response, summary="Metrics for Prometheus")
    async def scrape() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/", include_in_schema=False)
    async def start() -> RedirectResponse:
        return RedirectResponse("docs")

    add_dashboard(app)
    writes = [("post", one.full_path) for one in (*WRITES, *admin)] + [("delete", "/v1/collections/{name}")]
    errors = content_of(ErrorAnswer)
    secure = None if keys is None else partial(describe_security, writes=writes, errors=errors)
    document.attach(app, secure)
    return app


def _json(answer: Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type=bodies.JSON)


class _PlainRoute(APIRoute):
    """A route whose function reads its request itself: nothing is solved, checked or converted before it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        function = self.endpoint

        async def handle(request: Request) -> Response:
            with stopped_by_server(request.scope):
                response: Response = await function(request, **request.path_params)
            return response

        return handle


class _Gate:
    """The way of a search through HTTP: admission, body, router, answer."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._requests = 0
        self._bytes_arriving = 0
        self._bytes_written = 0

    async def search(self, request: Request, backend: Backend, name: str | None) -> Response:
        started = time.perf_counter()
        served = backend.collection(name)
        media_type = bodies.media_type_of(request.headers.get("content-type"))
        bodies.check_encoding(request.headers.get("content-encoding"))
        body = await self._body(request)
        with self._admitted(), served.hold() as now:
            return await self._answer(request, now, media_type, body, started)

    async def run(self, request: Request, operation: Operation, served: ServedCollection | None) -> Response:
        """Run an operation; a disconnect of the client does not cancel it, except for lookups."""
        started = time.perf_counter()
        if operation.kind != "lookup":
            note(audit=operation.path or "create", **({} if served is None else {"collection": served.name}))
        if operation.kind == "write" or served is None:
            check_may_write()
        media_type = bodies.media_type_of(request.headers.get("content-type"))
        bodies.check_encoding(request.headers.get("content-encoding"))
        read = (bodies.JSON, bodies.ARROW) if operation.arrow else (bodies.JSON,)
        if media_type not in read:
            raise UnsupportedMediaTypeError(f"this path reads {', '.join(read)}, not {media_type}")
        body = await self._body(request)
        call = Call(media_type, body, request.query_params.multi_items(), self._limits, started)
        if served is None or operation.kind == "admin":
            return _json(await _uncanceled(operation.work(call, served)))
        if operation.kind == "write":
            with self._admitted(written=len(body)), served.hold() as now:
                return _json(await _uncanceled(operation.work(call, now)))
        answer_type = choose_type(request.headers.get("accept"), (bodies.JSON, bodies.ARROW))
        with self._admitted(), served.hold() as now:
            looked: Looked = await operation.work(call, now)
        media_type = bodies.JSON if looked.rows is None else answer_type
        encode = partial(written, looked, media_type)
        big = looked.rows is not None and looked.rows.num_rows > ENCODE_ROWS_INLINE_MAX
        return Response(await converted(encode) if big else encode(), media_type=media_type)

    async def _body(self, request: Request) -> bytes:
        try:
            return await asyncio.wait_for(self._read(request), self._limits.body_read_s)
        except (asyncio.TimeoutError, TimeoutError):
            raise BodyTimeoutError(f"the body did not arrive within {self._limits.body_read_s:g} s") from None

    @contextmanager
    def _admitted(self, *, written: int = 0) -> Iterator[None]:
        """Count a request, and bytes to write, once its body has arrived: slow senders hold no slot."""
        if self._requests >= self._limits.requests_max:
            raise QueueFullError(f"{self._requests} requests run, the limit is {self._limits.requests_max}")
        if written and self._bytes_written + written > self._limits.writes_bytes_max:
            raise QueueFullError(f"writes of {self._bytes_written} bytes are under way already")
        self._requests += 1
        self._bytes_written += written
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes_written -= written

    async def _answer(
        self, request: Request, now: Generation, media_type: str, body: bytes, started: float
    ) -> Response:
        limits, arrived = self._limits, arrived_at(request.scope)
        pairs = request.query_params.multi_items()
        parse = partial(
            bodies.parse_search,
            media_type,
            body,
            pairs,
            dim=now.dim,
            limits=limits,
            columns=lambda: _columns_of(now.router),
        )
        apart = bodies.is_long_to_parse(body, pairs, limits)
        parsed = await asyncio.to_thread(parse) if apart else parse()
        limit_s = parsed.timeout_s or now.router.limits.timeout_default_s
        spent_s = time.monotonic() - arrived
        _check_in_time(spent_s, limit_s)
        parsed = structs.replace(parsed, timeout_s=limit_s - spent_s)
        answer_type = choose_type(request.headers.get("accept"), (bodies.JSON, bodies.ARROW))
        note(
            version=now.version,
            queries=len(parsed.queries),
            k=parsed.k,
            filters=0 if parsed.filters is None else len(parsed.filters),
            **effort_of(parsed),
        )
        answer = await _unless_disconnected(request, _search(now, parsed))
        note(
            reads=answer.hits.reads, shards_answered=answer.shards_answered, shards_total=answer.shards_total
        )
        took_ms = (time.perf_counter() - started) * 1000
        hits = answer.hits
        numbers = hits.ids.size if hits.vectors is None else hits.vectors.size
        big = numbers > ENCODE_INLINE_MAX or (
            hits.metadata is not None and hits.counts.sum() > ENCODE_ROWS_INLINE_MAX
        )
        encode = partial(encoded, answer, took_ms, answer_type)
        content = await converted(encode) if big else encode()
        # A search that ends with its deadline has this time for its answer.
        _check_in_time(time.monotonic() - arrived, limit_s + LATE_S)
        return Response(content, media_type=answer_type)

    async def _read(self, request: Request) -> bytes:
        limit = self._limits.body_bytes_max
        announced = request.headers.get("content-length", "")
        parts: list[bytes] = []
        size = kept = 0
        too_large = BodyTooLargeError(f"the body is above the limit of {limit} bytes")
        refusal: Exception | None = too_large if announced.isdigit() and int(announced) > limit else None
        try:
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    refusal = too_large
                elif self._bytes_arriving + len(part) > self._limits.bodies_bytes_max:
                    refusal = QueueFullError(f"bodies of {self._bytes_arriving} bytes are arriving already")
                if refusal is not None:
                    # Discard the rest: a client that is still sending would not see the answer.
                    parts.clear()
                    self._bytes_arriving -= kept
                    kept = 0
                    if size > self._limits.body_discard_bytes_max:
                        break
                    continue
                parts.append(part)
                kept += len(part)
                self._bytes_arriving += len(part)
        finally:
            self._bytes_arriving -= kept
        if refusal is not None:
            raise refusal
        return b"".join(parts)


async def _uncanceled(work: Awaitable[Struct]) -> Struct:
    return await asyncio.shield(asyncio.ensure_future(work))


async def _unless_disconnected(request: Request, searching: Coroutine[Any, Any, Answer]) -> Answer:
    """Wait for an answer; cancel the search if the client disconnects."""
    search = asyncio.ensure_future(searching)
    disconnect: asyncio.Future[Any] | None = None
    try:
        await asyncio.wait({search}, timeout=LOOK_FOR_CLIENT_S)
        if not search.done():
            # The body is here, so what comes next is that the client leaves, or nothing.
            disconnect = asyncio.ensure_future(request.receive())
            await asyncio.wait({search, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not search.done():
            raise ClientDisconnect
        return search.result()
    finally:
        for one in (search, disconnect):
            if one is not None and not one.done():
                one.cancel()


async def _search(now: Generation, parsed: SearchRequest) -> Answer:
    started = time.perf_counter()
    if parsed.ids is not None:
        queries = await lookups.vectors(now.router, parsed.ids, now.dim, timeout_s=parsed.timeout_s)
        parsed = structs.replace(parsed, queries=queries, ids=None)
    answer = await hybrid.search(now.router, parsed, now.dim, spent_s=time.perf_counter() - started)
    return replace(answer, version=now.version)


def _check_in_time(spent_s: float, limit_s: float) -> None:
    """Refuse to search, or to answer, after the deadline, which counts from the request line."""
    if spent_s >= limit_s:
        raise DeadlineExceededError(f"the deadline passed: {spent_s:.3f} s since the request arrived")


def _limits_of(backend: Backend) -> RouterLimits:
    return next((served.router.limits for served in backend.collections), RouterLimits())


def _summary(served: ServedCollection) -> CollectionSummary:
    return CollectionSummary(
        name=served.name,
        version=served.now.version,
        n=served.rows,
        dim=served.now.dim,
        metric=served.now.metric,
        shards_up=served.router.shards_up,
        shards_total=served.router.shards_total,
    )


def _columns_of(router: Router) -> list[str]:
    reported = ((one.health or ShardHealth()).details.get("columns", ()) for one in router.shards())
    return [str(name) for name in next(filter(None, reported), ())]


def _describe(served: ServedCollection) -> CollectionAnswer:
    states = [(state, state.health or ShardHealth()) for state in served.router.shards()]
    names = ("n", "node", "pid", "memory_bytes", "device")
    shards = [
        ShardAnswer(
            state.name,
            state.state,
            state.reason,
            **{name: getattr(health, name) for name in names},
            threads=int(health.details.get("threads", 0)),
            waiting_requests=state.waiting_requests,
            calls_in_flight=state.calls_in_flight,
        )
        for state, health in states
    ]
    return CollectionAnswer(
        **structs.asdict(_summary(served)),
        columns=_columns_of(served.router),
        writable=any(bool(health.details.get("writable")) for _, health in states),
        queries_admitted=served.router.queries_admitted,
        shards=shards,
    )
