"""The clients of the gateway, blocking and awaited; both ask again where the server says so."""

from __future__ import annotations

import asyncio
import functools
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_args

from velo.errors import InvalidArgumentError
from velo_serving.client.calls import BodyFormat, Call, Target
from velo_serving.client.requests import Requests
from velo_serving.client.tries import ConnectionFailedError as ConnectionFailedError
from velo_serving.client.tries import Tries, httpx

P = ParamSpec("P")
R = TypeVar("R")


class _Settings:
    """The settings of a client, checked."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        retries: int,
        api_key: str | None,
        verify: bool | str | Path | ssl.SSLContext,
        connections_max: int,
        idle_s: float,
    ) -> None:
        if retries < 0:
            raise InvalidArgumentError(f"retries must not be negative, not {retries}", argument="retries")
        if connections_max < 1:
            raise InvalidArgumentError(
                f"there is at least one connection, not {connections_max}", argument="connections_max"
            )
        if not idle_s >= 0:
            raise InvalidArgumentError(f"idle_s must not be negative, not {idle_s}", argument="idle_s")
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._retries = retries
        self._jitter = random.Random()
        self.http: dict[str, Any] = {
            "base_url": self.url,
            "headers": {} if api_key is None else {"Authorization": f"Bearer {_plain_key(api_key)}"},
            "verify": _verify_of(verify),
            "limits": httpx.Limits(
                max_connections=connections_max,
                max_keepalive_connections=connections_max,
                keepalive_expiry=idle_s,
            ),
            "trust_env": False,
        }

    def tries(self, call: Call[Any]) -> Tries:
        request: dict[str, Any] = {"method": call.method, "url": call.path}
        if call.body is not None:
            request |= {"content": call.body, "headers": dict(call.headers), "params": dict(call.params)}
        return Tries(self._retries, self.timeout_s, self._jitter, self.url, request)


def _target_of(collection: str | None, body_format: BodyFormat) -> Target:
    if body_format not in get_args(BodyFormat):
        raise InvalidArgumentError(
            f"body_format is 'json' or 'arrow', not {body_format!r}", argument="body_format"
        )
    return Target(collection, body_format)


def awaited(
    function: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """A method of ``Requests`` for a client whose ``_send`` is a coroutine function."""
    return cast("Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]", function)


class AsyncClient:
    """A connection to a gateway for the tasks of one event loop, which it never blocks.

    It takes the parameters of ``Client``, with `transport` and `sleep` of its own kind, and its methods are
    those of ``Client``, awaited.
    """

    def __init__(
        self,
        url: str,
        *,
        collection: str | None = None,
        body_format: BodyFormat = "json",
        timeout_s: float = 30.0,
        retries: int = 3,
        api_key: str | None = None,
        verify: bool | str | Path | ssl.SSLContext = True,
        connections_max: int = 100,
        idle_s: float = 5.0,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._target = _target_of(collection, body_format)
        self._settings = _Settings(url, timeout_s, retries, api_key, verify, connections_max, idle_s)
        self._transport = transport
        self._sleep = sleep
        self._connections: httpx.AsyncClient | None = None

    search = awaited(Requests.search)
    range_search = awaited(Requests.range_search)
    count = awaited(Requests.count)
    get = awaited(Requests.get)
    rows = awaited(Requests.rows)
    explain = awaited(Requests.explain)
    info = awaited(Requests.info)
    insert = awaited(Requests.insert)
    upsert = awaited(Requests.upsert)
    update = awaited(Requests.update)
    delete = awaited(Requests.delete)
    flush = awaited(Requests.flush)
    optimize = awaited(Requests.optimize)
    create = awaited(Requests.create)
    drop = awaited(Requests.drop)
    snapshot = awaited(Requests.snapshot)
    publish = awaited(Requests.publish)
    _until_done = Requests._until_done

    async def ready(self) -> bool:
        """Ask whether the gateway can answer searches now.

        Returns
        -------
        bool
        """
        try:
            told = await self._client().get("/readyz", timeout=self._settings.timeout_s)
        except httpx.HTTPError:
            return False
        return told.status_code == 200

    def _client(self) -> httpx.AsyncClient:
        if self._connections is None:
            self._connections = httpx.AsyncClient(**self._settings.http, transport=self._transport)
        return self._connections

    async def _send(self, call: Call[R]) -> R:
        while True:
            result = call.read(await self._answer(call))
            if not call.again(result):
                return result

    async def _answer(self, call: Call[Any]) -> httpx.Response:
        client, tries = self._client(), self._settings.tries(call)
        while True:
            outcome: httpx.Response | httpx.HTTPError
            try:
                outcome = await client.request(**tries.arguments())
            except httpx.HTTPError as error:
                outcome = error
            pause_s = tries.after(outcome)
            if pause_s is None:
                assert isinstance(outcome, httpx.Response)
                return outcome
            await self._sleep(pause_s)

    async def aclose(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            await self._connections.aclose()
            self._connections = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _of_async(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], Coroutine[Any, Any, R]]:
    """A method of the ``AsyncClient`` of a ``Client``."""

    def asked(client: Client, /, *arguments: P.args, **keywords: P.kwargs) -> Coroutine[Any, Any, R]:
        return method(client._awaited, *arguments, **keywords)

    functools.update_wrapper(asked, method)
    asked.__name__ = f"{method.__name__}_async"
    asked.__qualname__ = f"Client.{asked.__name__}"
    head, _, rest = (method.__doc__ or "").partition("\n")
    asked.__doc__ = f"{head.rstrip('.')}, without blocking the event loop; as of ``AsyncClient``.\n{rest}"
    return asked


class Client(Requests):
    """A connection to a gateway that threads may share.

    Methods whose names end in ``_async`` are those of an ``AsyncClient`` with the same settings.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8000``.
    collection : str, optional
        Needed where the gateway serves several.
    body_format : {"json", "arrow"}
        How vectors travel. Arrow is smaller and faster; JSON is used where the answer brings metadata or
        groups, or the request has ids, texts or a filter for each query.
    timeout_s : float
        Of a request as a whole, tries and pauses included.
    retries : int
        Further tries after 429, 503 or a broken connection, paced by ``Retry-After``.
    api_key : str, optional
        One of the server's file.
    verify : bool, path or ssl.SSLContext
        By what a server's certificate is trusted: the authorities that httpx brings, those of a file or
        folder in PEM, or, with False, anything. A certificate of the client's own goes with a context.
    connections_max : int
        Connections at once; calls beyond them wait for one, as long as their own time lasts.
    idle_s : float
        How long a connection that nobody uses stays open.
    transport, async_transport : optional
        httpx transports, for tests.

    Examples
    --------
    >>> from velo_serving import Client
    >>> with Client(url) as client:
    ...     ids, distances = client.search(queries, k=10)
    >>> ids.shape
    (5, 10)
    """

    def __init__(
        self,
        url: str,
        *,
        collection: str | None = None,
        body_format: BodyFormat = "json",
        timeout_s: float = 30.0,
        retries: int = 3,
        api_key: str | None = None,
        verify: bool | str | Path | ssl.SSLContext = True,
        connections_max: int = 100,
        idle_s: float = 5.0,
        transport: httpx.BaseTransport | None = None,
        async_transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._awaited = AsyncClient(
            url,
            collection=collection,
            body_format=body_format,
            timeout_s=timeout_s,
            retries=retries,
            api_key=api_key,
            verify=verify,
            connections_max=connections_max,
            idle_s=idle_s,
            transport=async_transport,
            sleep=sleep_async,
        )
        self._target = self._awaited._target
        self._settings = self._awaited._settings
        self._transport = transport
        self._sleep = sleep
        self._first = threading.Lock()
        self._connections: httpx.Client | None = None

    search_async = _of_async(AsyncClient.search)
    range_search_async = _of_async(AsyncClient.range_search)
    count_async = _of_async(AsyncClient.count)
    get_async = _of_async(AsyncClient.get)
    rows_async = _of_async(AsyncClient.rows)
    explain_async = _of_async(AsyncClient.explain)
    info_async = _of_async(AsyncClient.info)
    insert_async = _of_async(AsyncClient.insert)
    upsert_async = _of_async(AsyncClient.upsert)
    update_async = _of_async(AsyncClient.update)
    delete_async = _of_async(AsyncClient.delete)
    create_async = _of_async(AsyncClient.create)
    drop_async = _of_async(AsyncClient.drop)
    snapshot_async = _of_async(AsyncClient.snapshot)
    publish_async = _of_async(AsyncClient.publish)

    def ready(self) -> bool:
        """Ask whether the gateway can answer searches now.

        Returns
        -------
        bool
        """
        try:
            return self._client().get("/readyz", timeout=self._settings.timeout_s).status_code == 200
        except httpx.HTTPError:
            return False

    def _client(self) -> httpx.Client:
        with self._first:  # threads that call together share one pool
            if self._connections is None:
                self._connections = httpx.Client(**self._settings.http, transport=self._transport)
            return self._connections

    def _send(self, call: Call[R]) -> R:
        while True:
            result = call.read(self._answer(call))
            if not call.again(result):
                return result

    def _answer(self, call: Call[Any]) -> httpx.Response:
        client, tries = self._client(), self._settings.tries(call)
        while True:
            outcome: httpx.Response | httpx.HTTPError
            try:
                outcome = client.request(**tries.arguments())
            except httpx.HTTPError as error:
                outcome = error
            pause_s = tries.after(outcome)
            if pause_s is None:
                assert isinstance(outcome, httpx.Response)
                return outcome
            self._sleep(pause_s)

    def close(self) -> None:
        """Close the blocking connections."""
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    async def aclose(self) -> None:
        """Close all connections."""
        self.close()
        await self._awaited.aclose()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _plain_key(key: str) -> str:
    if not key.isascii() or not key.isprintable() or " " in key or not key:
        raise InvalidArgumentError("an API key is text without spaces, of ASCII alone", argument="api_key")
    return key


def _verify_of(given: bool | str | Path | ssl.SSLContext) -> bool | ssl.SSLContext:
    if not isinstance(given, str | Path):
        return given
    path = Path(given)
    try:
        return ssl.create_default_context(
            cafile=None if path.is_dir() else str(path), capath=str(path) if path.is_dir() else None
        )
    except OSError as error:
        raise InvalidArgumentError(f"{path} has no valid certificate: {error}", argument="verify") from None
