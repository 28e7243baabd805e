"""The clients of the gateway, blocking and awaited; both ask again where the server says so."""

from __future__ import annotations

import asyncio
import email.utils
import functools
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from velo import errors as velo_errors
from velo.errors import InvalidArgumentError, MissingDependencyError, VeloError
from velo_serving.client.calls import BodyFormat, Call, Target
from velo_serving.client.requests import Requests
from velo_serving.protocol import errors as serving_errors
from velo_serving.protocol.errors import (
    CertificateError,
    ConnectionsBusyError,
    DeadlineExceededError,
    PartialWriteError,
    QueueFullError,
    RemoteError,
    ServingError,
)

try:
    import httpx as httpx
except ImportError as error:
    raise MissingDependencyError("httpx is not installed; pip install 'veloann[serving]'") from error

RETRY_STATUSES: Final = (429, 503)


class ConnectionFailedError(ServingError, ConnectionError):
    """The gateway cannot be reached, or the connection broke."""


class Tries:
    """Decides after each try: take it, pause and try again, or raise. Both kinds of sending share it."""

    def __init__(self, settings: _Settings, call: Call[Any]) -> None:
        self._request: dict[str, Any] = {"method": call.method, "url": call.path}
        if call.body is not None:
            self._request |= {"content": call.body, "headers": call.headers, "params": call.params}
        self._left = settings.retries
        self._made = 0
        self._timeout_s = settings.timeout_s
        self._deadline = time.monotonic() + settings.timeout_s
        self._jitter = settings.jitter
        self._url = settings.url

    def arguments(self) -> dict[str, Any]:
        return {**self._request, "timeout": self.left_s()}

    def after(self, outcome: httpx.Response | httpx.HTTPError) -> float | None:
        """Return the pause before the next try, None if this is the answer, or raise."""
        if isinstance(outcome, httpx.HTTPError):
            return self._after_error(outcome)
        return self._after_response(outcome)

    def left_s(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    def _after_error(self, error: httpx.HTTPError) -> float:
        if isinstance(error, httpx.PoolTimeout):
            raise ConnectionsBusyError(
                f"all connections to {self._url} were in use for {self._timeout_s:g} s: "
                "give the client a larger connections_max, or fewer calls at once"
            ) from error
        if isinstance(error, httpx.TimeoutException):
            raise DeadlineExceededError(f"{self._url} did not answer within {self._timeout_s:g} s") from error
        distrust = _distrust_in(error)
        if distrust is not None:
            raise CertificateError(f"{self._url}: {distrust.verify_message}") from error
        pause_s = self._pause(None)
        if pause_s is None:
            raise ConnectionFailedError(
                f"{self._url} cannot be reached: {str(error) or type(error).__name__}"
            ) from error
        return pause_s

    def _after_response(self, response: httpx.Response) -> float | None:
        if response.is_success:
            return None
        if response.status_code in RETRY_STATUSES:
            pause_s = self._pause(_retry_after_s(response))
            if pause_s is not None:
                return pause_s
        raise _error_of(response)

    def _pause(self, asked_s: float | None) -> float | None:
        if self._left == 0:
            return None
        self._left -= 1
        self._made += 1
        # A little longer than asked, each client differently, so that they do not all come back together.
        base_s = min(0.05 * 2**self._made, 2.0) if asked_s is None else asked_s
        pause_s = base_s * (1.0 + 0.25 * self._jitter.random())
        return pause_s if pause_s < self.left_s() else None


def _distrust_in(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The certificate error among the causes of a connection error, if any."""
    below: BaseException | None = error
    while below is not None and not isinstance(below, ssl.SSLCertVerificationError):
        below = below.__cause__ or below.__context__
    return below


def _retry_after_s(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _error_of(response: httpx.Response) -> VeloError:
    try:
        fault = response.json()["error"]
        kind, message = str(fault["type"]), str(fault["message"])
    except (ValueError, KeyError, TypeError):
        return RemoteError(f"the server answered {response.status_code}", status=response.status_code)
    known = getattr(serving_errors, kind, None) or getattr(velo_errors, kind, None)
    if known is QueueFullError:
        return QueueFullError(message, retry_after_s=_retry_after_s(response) or 1.0)
    if not (isinstance(known, type) and issubclass(known, VeloError)) or known is RemoteError:
        error: VeloError = RemoteError(f"{kind}: {message}", status=response.status_code)
    else:
        error = known(message)
    for name in ("argument", "file", "page", "row", "needed_bytes"):
        if fault.get(name) is not None:
            setattr(error, name, fault[name])
    if isinstance(error, PartialWriteError):
        error.shards, error.rows = tuple(fault.get("shards", ())), int(fault.get("rows", 0))
    return error


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
        self.retries = retries
        self.jitter = random.Random()
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
        self._target = Target(collection, body_format)
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
    move = awaited(Requests.move)
    publish = awaited(Requests.publish)
    _until_done = Requests._until_done

    async def ready(self) -> bool:
        """Ask whether the gateway can answer searches now.

        Returns
        -------
        bool
        """
        try:
            answer = await self._client().get("/readyz", timeout=self._settings.timeout_s)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

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
        client, tries = self._client(), Tries(self._settings, call)
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

    async def __aexit__(self, *exception: object) -> None:
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
        Needed if the gateway serves several.
    body_format : {"json", "arrow"}
        The format of vectors. Arrow is smaller and faster; JSON is used if the answer has metadata or groups,
        or the request has ids, texts or several filters.
    timeout_s : float
        Of a request as a whole, with retries and pauses.
    retries : int
        After 429, 503 or a broken connection, paced by ``Retry-After``.
    api_key : str, optional
    verify : bool, path or ssl.SSLContext
        Trusted authorities: those of httpx, those of a file or folder in PEM, or any with False. A
        certificate of the client needs a context.
    connections_max : int
        Connections at once; further calls wait.
    idle_s : float
        How long an unused connection stays open.
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
    move_async = _of_async(AsyncClient.move)
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
        client, tries = self._client(), Tries(self._settings, call)
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

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
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
