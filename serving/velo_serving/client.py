"""The client of the gateway: one call for a search, blocking or awaited, retried where the server says so."""

from __future__ import annotations

import asyncio
import io
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from velo import errors as velo_errors
from velo.errors import DimensionMismatchError, InvalidArgumentError
from velo.results import RangeResult, SearchResult, Served
from velo_serving.answers import groups_result, nearest_result, ranges_result
from velo_serving.client_lookups import ClientLookups
from velo_serving.client_tries import ConnectionFailedError, Tries, httpx
from velo_serving.client_writes import ClientWrites, WriteCall

__all__ = ["Client", "ConnectionFailedError"]

BodyFormat: TypeAlias = Literal["json", "npy"]

_TYPES = {"json": "application/json", "npy": "application/x-npy"}
_NPZ = "application/x-npz"

#: Options of every search, of the nearest alone, of those within a radius alone.
_OPTIONS = frozenset(
    ("filter", "filters", "recall", "list_size", "return_metadata", "timeout_s", "allow_partial")
)
_OF_NEAREST = frozenset(("group_by", "group_size"))
_OF_RADIUS = frozenset(("radius", "limit"))


class Client(ClientLookups, ClientWrites):
    """A connection to a gateway; threads may share it, and so may the tasks of one event loop.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8000``.
    collection : str, optional
        Needed where the gateway serves several.
    body_format : {"json", "npy"}
        How vectors travel. npy is smaller and faster; where it cannot carry a request (a filter each,
        metadata), JSON is used.
    timeout_s : float
        Of a request as a whole, tries and pauses included.
    retries : int
        Further tries after 429, 503 or a broken connection, paced by ``Retry-After``.
    api_key : str, optional
        One of the server's file.
    verify : bool, path or ssl.SSLContext
        By what a server's certificate is trusted: the authorities that httpx brings, those of a file or
        folder in PEM, or, with False, anything. A certificate of the client's own goes with a context.
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
        transport: httpx.BaseTransport | None = None,
        async_transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if body_format not in _TYPES:
            raise InvalidArgumentError(
                f"body_format is 'json' or 'npy', not {body_format!r}", argument="body_format"
            )
        if retries < 0:
            raise InvalidArgumentError(f"retries must not be negative, not {retries}", argument="retries")
        self._path = "/v1/search" if collection is None else f"/v1/collections/{collection}/search"
        self._collection = collection
        self._url = url.rstrip("/")
        self._body_format = body_format
        self._timeout_s = timeout_s
        self._retries = retries
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {_plain_key(api_key)}"}
        self._verify = _verify_of(verify)
        self._transport = transport
        self._async_transport = async_transport
        self._sleep = sleep
        self._sleep_async = sleep_async
        self._jitter = random.Random()
        self._sync: httpx.Client | None = None
        self._async: httpx.AsyncClient | None = None

    # ---- searching ----

    def search(self, queries: npt.ArrayLike, k: int = 10, **options: Any) -> SearchResult:
        """Find the k nearest vectors of each query.

        Parameters
        ----------
        queries : array of shape (query_count, dim) or (dim,)
        k : int
        **options
            ``filter`` (a dict or SQL text for all), ``filters`` (one or None for each query), ``recall``,
            ``list_size``, ``return_metadata``, ``group_by``, ``group_size``, ``timeout_s``,
            ``allow_partial``.

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
        call = _Call.of(queries, k, self._body_format, options)
        response = self._send("POST", self._path, call)
        return call.result(response)

    async def search_async(self, queries: npt.ArrayLike, k: int = 10, **options: Any) -> SearchResult:
        """Find the k nearest vectors of each query without blocking the event loop.

        Parameters
        ----------
        queries, k, **options
            As for ``search``.

        Returns
        -------
        SearchResult
        """
        call = _Call.of(queries, k, self._body_format, options)
        response = await self._send_async("POST", self._path, call)
        return call.result(response)

    def range_search(self, queries: npt.ArrayLike, radius: float, **options: Any) -> RangeResult:
        """Find all vectors within a distance of each query, as ``velo.Index.range_search`` does.

        Parameters
        ----------
        queries : array of shape (query_count, dim) or (dim,)
        radius : float
        **options
            ``limit`` (hits of a query at most), and those of ``search`` but groups.

        Returns
        -------
        RangeResult
            Unpacks as ``lims, distances, ids``.
        """
        call = _Call.of(queries, None, self._body_format, {"radius": float(radius), **options})
        return call.ranges(self._send("POST", self._path, call))

    async def range_search_async(self, queries: npt.ArrayLike, radius: float, **options: Any) -> RangeResult:
        """Find all vectors within a distance without blocking the event loop.

        Parameters
        ----------
        queries, radius, **options
            As for ``range_search``.

        Returns
        -------
        RangeResult
        """
        call = _Call.of(queries, None, self._body_format, {"radius": float(radius), **options})
        return call.ranges(await self._send_async("POST", self._path, call))

    def _look_up(self, what: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if self._collection is None:
            raise InvalidArgumentError(f"{what} needs the name of a collection", argument="collection")
        try:
            body = json.dumps(fields, allow_nan=False).encode()
        except ValueError as error:
            raise velo_errors.NotFiniteError(f"an option is not finite: {error}") from None
        headers = {"Content-Type": _TYPES["json"], "Accept": _TYPES["json"]}
        call = _Call(body, headers, {}, False, 0, None)
        answer = self._send("POST", f"{self._info_path}/{what}", call).json()
        assert isinstance(answer, dict)
        return answer

    def _write(self, call: WriteCall) -> dict[str, Any]:
        answer = self._send("POST", self._write_path(call), self._write_call(call)).json()
        assert isinstance(answer, dict)
        return answer

    async def _write_async(self, call: WriteCall) -> dict[str, Any]:
        answer = (await self._send_async("POST", self._write_path(call), self._write_call(call))).json()
        assert isinstance(answer, dict)
        return answer

    def _write_path(self, call: WriteCall) -> str:
        if self._collection is None:
            raise InvalidArgumentError(f"{call.what} needs the name of a collection", argument="collection")
        return f"{self._info_path}/{call.what}"

    @staticmethod
    def _write_call(call: WriteCall) -> _Call:
        headers = {"Content-Type": call.media_type, "Accept": _TYPES["json"]}
        return _Call(call.body, headers, call.params, False, 0, None)

    def info(self) -> dict[str, Any]:
        """Ask what the gateway says of the collection, or of all where the client names none.

        Returns
        -------
        dict
        """
        answer = self._send("GET", self._info_path).json()
        assert isinstance(answer, dict)
        return answer

    async def info_async(self) -> dict[str, Any]:
        """Ask what the gateway says of the collection without blocking the event loop.

        Returns
        -------
        dict
        """
        answer = (await self._send_async("GET", self._info_path)).json()
        assert isinstance(answer, dict)
        return answer

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
        if self._sync is None:
            self._sync = httpx.Client(
                base_url=self._url,
                headers=self._headers,
                verify=self._verify,
                transport=self._transport,
                trust_env=False,
            )
        return self._sync

    def _client_async(self) -> httpx.AsyncClient:
        if self._async is None:
            self._async = httpx.AsyncClient(
                base_url=self._url,
                headers=self._headers,
                verify=self._verify,
                transport=self._async_transport,
                trust_env=False,
            )
        return self._async

    def _send(self, method: str, path: str, call: _Call | None = None) -> httpx.Response:
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
                return outcome
            self._sleep(pause_s)

    async def _send_async(self, method: str, path: str, call: _Call | None = None) -> httpx.Response:
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
                return outcome
            await self._sleep_async(pause_s)

    def _tries(self, method: str, path: str, call: _Call | None) -> Tries:
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


@dataclass(frozen=True)
class _Call:
    """One search as bytes out, and the way back from bytes to arrays."""

    body: bytes
    headers: Mapping[str, str]
    params: Mapping[str, Any]
    single: bool
    k: int
    group_size: int | None

    @classmethod
    def of(
        cls, queries: npt.ArrayLike, k: int | None, body_format: BodyFormat, options: Mapping[str, Any]
    ) -> _Call:
        """Without k it is a search by radius."""
        kind = _OF_NEAREST if k is not None else _OF_RADIUS
        for name in options:
            if name not in _OPTIONS and name not in kind:
                raise InvalidArgumentError(f"search has no option {name!r}", argument=name)
        matrix = np.asarray(queries, dtype=np.float32)
        if matrix.ndim not in (1, 2):
            raise DimensionMismatchError(
                f"queries of shape {matrix.shape} are no vector or matrix", argument="queries"
            )
        if not np.isfinite(matrix).all():
            raise velo_errors.NotFiniteError(
                "the queries hold a number that is not finite", argument="queries"
            )
        fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if "timeout_s" in fields:
            fields["timeout_ms"] = fields.pop("timeout_s") * 1000
        if "return_metadata" in fields:
            fields["return_metadata"] = list(fields["return_metadata"])
        single = matrix.ndim == 1
        rows = matrix.reshape(1, -1) if single else matrix
        group_size = int(fields.get("group_size", 1)) if "group_by" in fields else None
        if k is not None:
            fields["k"] = k
        if body_format == "npy" and not {"filters", "return_metadata", "group_by"} & fields.keys():
            file = io.BytesIO()
            np.save(file, rows, allow_pickle=False)
            params = {name: _query_text(value) for name, value in fields.items()}
            headers = {"Content-Type": _TYPES["npy"], "Accept": _NPZ}
            return cls(file.getvalue(), headers, params, single, k or 0, group_size)
        try:
            body = json.dumps({"vectors": rows.tolist(), **fields}, allow_nan=False).encode()
        except ValueError as error:
            raise velo_errors.NotFiniteError(f"an option is not finite: {error}") from None
        headers = {"Content-Type": _TYPES["json"], "Accept": _TYPES["json"]}
        return cls(body, headers, {}, single, k or 0, group_size)

    def ranges(self, response: httpx.Response) -> RangeResult:
        """Read an answer to a search by radius."""
        ids, distances, counts, status = _rows_of(response)
        limited = np.asarray(status["limited"], np.bool_)
        return ranges_result(ids, distances, counts, limited, *_told(status))

    def result(self, response: httpx.Response) -> SearchResult:
        """Read an answer."""
        ids, distances, counts, status = _rows_of(response, self.k * (self.group_size or 1))
        if self.group_size is None:
            return nearest_result(ids, distances, counts, self.single, *_told(status))
        groups = [[(group["value"], group["size"]) for group in row] for row in status["groups"]]
        return groups_result(ids, distances, groups, self.k, self.group_size, self.single, *_told(status))


def _rows_of(
    response: httpx.Response, k: int | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32], npt.NDArray[np.int64], dict[str, Any]]:
    """Ids, distances, counts and the rest of an answer; rows are padded to k, or to the longest."""
    if not response.headers.get("content-type", "").startswith(_NPZ):
        status = response.json()
        counts = np.asarray(status["counts"], dtype=np.int64)
        ids, distances = _padded(status["ids"], status["distances"], k or int(counts.max(initial=1)))
        return ids, distances, counts, status
    with np.load(io.BytesIO(response.content), allow_pickle=False) as arrays:
        ids, distances, counts = arrays["ids"], arrays["distances"], arrays["counts"]
    if ids.dtype.kind == "U":
        padded = ids.astype(object)
        padded[np.arange(ids.shape[1])[None, :] >= counts[:, None]] = None
        ids = padded
    return ids, distances, counts, json.loads(response.headers["velo-answer"])


def _told(status: Mapping[str, Any]) -> tuple[Any, dict[str, int], Served]:
    """What every answer says beside its hits: metadata, counters, shards."""
    served = Served(
        status["took_ms"], status["shards_answered"], status["shards_total"], status.get("failures", [])
    )
    return status.get("metadata"), status.get("stats", {}), served


def _query_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, allow_nan=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _padded(
    ids: Sequence[Sequence[Any]], distances: Sequence[Sequence[float]], k: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Fill rows of different lengths up to k, as the library itself answers."""
    strings = any(isinstance(one, str) for row in ids for one in row)
    shape = (len(ids), k)
    all_ids = np.full(shape, None, dtype=object) if strings else np.full(shape, -1, dtype=np.int64)
    all_distances = np.full(shape, np.inf, dtype=np.float32)
    for place, row in enumerate(ids):
        all_ids[place, : len(row)] = row
        all_distances[place, : len(row)] = distances[place]
    return all_ids, all_distances
