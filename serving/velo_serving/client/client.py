"""The client of the gateway: one call for a search, blocking or awaited, retried where the server says so."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy.typing as npt

from velo.errors import InvalidArgumentError
from velo.hints import hinted
from velo.options import Fusion
from velo.results import RangeResult, SearchResult
from velo_serving.client.awaited import awaited
from velo_serving.client.calls import TYPES, BodyFormat, ClientCall, fusion_field
from velo_serving.client.collections import ClientCollections
from velo_serving.client.lookups import ClientLookups
from velo_serving.client.tries import ConnectionFailedError, Tries, httpx
from velo_serving.client.writes import ClientWrites
from velo_serving.words.types import FilterForm

__all__ = ["Client", "ConnectionFailedError"]

R = TypeVar("R")


class Client(ClientLookups, ClientWrites, ClientCollections):
    """A connection to a gateway; threads may share it, and so may the tasks of one event loop.

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
        if body_format not in TYPES:
            raise InvalidArgumentError(
                f"body_format is 'json' or 'arrow', not {body_format!r}", argument="body_format"
            )
        if retries < 0:
            raise InvalidArgumentError(f"retries must not be negative, not {retries}", argument="retries")
        if connections_max < 1:
            raise InvalidArgumentError(
                f"there is at least one connection, not {connections_max}", argument="connections_max"
            )
        if not idle_s >= 0:
            raise InvalidArgumentError(f"idle_s must not be negative, not {idle_s}", argument="idle_s")
        self._path = "/v1/search" if collection is None else f"/v1/collections/{collection}/search"
        self._collection = collection
        self._url = url.rstrip("/")
        self._body_format = body_format
        self._timeout_s = timeout_s
        self._retries = retries
        self._settings: dict[str, Any] = {
            "base_url": self._url,
            "headers": {} if api_key is None else {"Authorization": f"Bearer {_plain_key(api_key)}"},
            "verify": _verify_of(verify),
            "limits": httpx.Limits(
                max_connections=connections_max,
                max_keepalive_connections=connections_max,
                keepalive_expiry=idle_s,
            ),
            "trust_env": False,
        }
        self._transport = transport
        self._async_transport = async_transport
        self._sleep = sleep
        self._sleep_async = sleep_async
        self._jitter = random.Random()
        self._first = threading.Lock()
        self._sync: httpx.Client | None = None
        self._async: httpx.AsyncClient | None = None

    # ---- searching ----

    @hinted
    def search(
        self,
        queries: npt.ArrayLike | None = None,
        k: int = 10,
        *,
        ids: Sequence[int] | Sequence[str] | int | str | None = None,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        filters: Sequence[FilterForm | None] | None = None,
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        return_vectors: bool = False,
        group_by: str | None = None,
        group_size: int = 1,
        text: str | Sequence[str] | None = None,
        fusion: Fusion | Literal["rrf", "weighted"] | None = None,
        timeout_s: float | None = None,
        allow_partial: bool = True,
    ) -> SearchResult:
        """Find the k nearest vectors of each query.

        Parameters
        ----------
        queries : array of shape (query_count, dim) or (dim,)
            None with `ids`, or with `text` alone.
        k : int
        ids : sequence of int or str, or one, optional
            Instead of queries: rows whose stored vectors are the queries.
        filter : dict or str, optional
            Restricts every query: conditions, or SQL text.
        filters : sequence of dict, str or None, optional
            A filter for each query, in their order.
        recall, list_size, exact
            As in ``velo.Index.search``.
        return_metadata : sequence of str or True, optional
            Columns to bring with the hits; True for all.
        return_vectors : bool
            Bring the stored vectors of the hits, too, as ``vectors`` of the answer. The build must have
            stored them (``store_vectors=True``).
        group_by : str, optional
            A column: answer with the nearest k groups of rows with equal values.
        group_size : int
            Rows of a group.
        text : str or sequence of str, optional
            Words that rows are found by, too, as in ``velo.Index.search``; without queries words alone are
            asked. Each shard ranks words by what its own rows tell of them.
        fusion : {"rrf", "weighted"}, velo.RRF or velo.Weighted, optional
            How words and vectors become one list.
        timeout_s : float, optional
            Deadline of this search at the server; default: the server's.
        allow_partial : bool
            False: an answer without some shard is an error.

        Returns
        -------
        SearchResult
            What ``velo.Index.search`` answers with, a ``GroupedResult`` with ``group_by``. ``stats`` are each
            query's share of what the request cost; times and dates in ``metadata`` are ISO 8601 texts.

        Raises
        ------
        VeloError
            The error that the gateway answered with, by its own class; ``ConnectionFailedError`` if it cannot
            be reached.
        """
        call = ClientCall.of(
            queries,
            self._body_format,
            k=k,
            ids=ids,
            filter=filter,
            filters=filters,
            recall=recall,
            list_size=list_size,
            exact=exact,
            return_metadata=return_metadata,
            return_vectors=return_vectors,
            group_by=group_by,
            group_size=group_size,
            text=text if text is None or isinstance(text, str) else list(text),
            fusion=fusion_field(fusion),
            timeout_s=timeout_s,
            allow_partial=allow_partial,
        )
        return self._ask("POST", self._path, call, call.result)

    search_async = awaited(search)
    """As ``search``, without blocking the event loop."""

    @hinted
    def range_search(
        self,
        queries: npt.ArrayLike | None,
        radius: float,
        *,
        ids: Sequence[int] | Sequence[str] | int | str | None = None,
        filter: FilterForm | None = None,  # noqa: A002 - as in velo.Index.search
        filters: Sequence[FilterForm | None] | None = None,
        recall: float | None = None,
        list_size: int | None = None,
        exact: bool | None = None,
        return_metadata: Sequence[str] | bool | None = None,
        return_vectors: bool = False,
        limit: int | None = None,
        timeout_s: float | None = None,
        allow_partial: bool = True,
    ) -> RangeResult:
        """Find all vectors within a distance of each query, as ``velo.Index.range_search`` does.

        Parameters
        ----------
        queries : array of shape (query_count, dim) or (dim,)
            None with `ids`.
        radius : float
        ids, filter, filters, recall, list_size, exact, return_metadata, return_vectors :
            As for ``search``.
        limit : int, optional
            Hits of a query at most; default: as many as the server allows.
        timeout_s, allow_partial :
            As for ``search``.

        Returns
        -------
        RangeResult
            Unpacks as ``lims, distances, ids``.
        """
        call = ClientCall.of(
            queries,
            self._body_format,
            radius=float(radius),
            ids=ids,
            filter=filter,
            filters=filters,
            recall=recall,
            list_size=list_size,
            exact=exact,
            return_metadata=return_metadata,
            return_vectors=return_vectors,
            limit=limit,
            timeout_s=timeout_s,
            allow_partial=allow_partial,
        )
        return self._ask("POST", self._path, call, call.ranges)

    range_search_async = awaited(range_search)
    """As ``range_search``, without blocking the event loop."""

    def _path_of(self, what: str) -> str:
        if self._collection is None:
            raise InvalidArgumentError(
                f"{what or 'drop'} needs the name of a collection", argument="collection"
            )
        return f"{self._info_path}/{what}" if what else self._info_path

    def info(self) -> dict[str, Any]:
        """Ask what the gateway says of the collection, or of all where the client names none.

        Returns
        -------
        dict
        """
        return self._ask("GET", self._info_path, None, lambda told: dict(told.json()))

    info_async = awaited(info)
    """As ``info``, without blocking the event loop."""

    @property
    def _info_path(self) -> str:
        return "/v1/collections" if self._collection is None else f"/v1/collections/{self._collection}"

    def ready(self) -> bool:
        """Ask whether the gateway can answer searches now.

        Returns
        -------
        bool
        """
        try:
            return self._client().get("/readyz", timeout=self._timeout_s).status_code == 200
        except httpx.HTTPError:
            return False

    # ---- sending ----

    def _client(self) -> httpx.Client:
        with self._first:  # threads that call together share one pool
            if self._sync is None:
                self._sync = httpx.Client(**self._settings, transport=self._transport)
            return self._sync

    def _client_async(self) -> httpx.AsyncClient:
        if self._async is None:
            self._async = httpx.AsyncClient(**self._settings, transport=self._async_transport)
        return self._async

    def _ask(self, method: str, path: str, call: ClientCall | None, read: Callable[[httpx.Response], R]) -> R:
        client, tries = self._client(), self._tries(method, path, call)
        while True:
            outcome: httpx.Response | httpx.HTTPError
            try:
                outcome = client.request(**tries.arguments())
            except httpx.HTTPError as error:
                outcome = error
            pause_s = tries.after(outcome)
            if pause_s is None:
                assert isinstance(outcome, httpx.Response)
                return read(outcome)
            self._sleep(pause_s)

    async def _ask_async(
        self, method: str, path: str, call: ClientCall | None, read: Callable[[httpx.Response], R]
    ) -> R:
        client, tries = self._client_async(), self._tries(method, path, call)
        while True:
            outcome: httpx.Response | httpx.HTTPError
            try:
                outcome = await client.request(**tries.arguments())
            except httpx.HTTPError as error:
                outcome = error
            pause_s = tries.after(outcome)
            if pause_s is None:
                assert isinstance(outcome, httpx.Response)
                return read(outcome)
            await self._sleep_async(pause_s)

    def _tries(self, method: str, path: str, call: ClientCall | None) -> Tries:
        request: dict[str, Any] = {"method": method, "url": path}
        if call is not None:
            request |= {"content": call.body, "headers": dict(call.headers), "params": dict(call.params)}
        return Tries(self._retries, self._timeout_s, self._jitter, self._url, request)

    # ---- ending ----

    def close(self) -> None:
        """Close the blocking connections."""
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    async def aclose(self) -> None:
        """Close all connections."""
        self.close()
        if self._async is not None:
            await self._async.aclose()
            self._async = None

    def __enter__(self) -> Client:
        """Return this client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    async def __aenter__(self) -> Client:
        """Return this client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
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
        raise InvalidArgumentError(
            f"{path} holds no certificates that can be read: {error}", argument="verify"
        ) from None
