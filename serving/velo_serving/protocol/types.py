"""The data between gateway, router and shards, and the interfaces between the packages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo import errors as velo_errors
from velo.errors import FilterError, VeloError
from velo_serving.protocol import errors as serving_errors
from velo_serving.protocol.requests import FilterForm as FilterForm
from velo_serving.protocol.requests import Float32Matrix as Float32Matrix
from velo_serving.protocol.requests import SearchRequest as SearchRequest

#: int64 with -1 where there is no hit, or objects: strings with None where there is no hit.
IdArray: TypeAlias = npt.NDArray[Any]
Fault: TypeAlias = Literal["caller", "shard", "deadline"]

#: What a shard does to its rows, and to its files.
WRITES: Final = ("insert", "upsert", "update", "delete", "flush", "optimize")

#: The fields of an error, beside its message.
ERROR_FIELDS: Final = ("argument", "file", "page", "row", "position", "needed_bytes")

#: Failures that every shard would answer alike, because the request itself is wrong.
CALLER_ERRORS = (
    velo_errors.InvalidArgumentError,
    velo_errors.DimensionMismatchError,
    velo_errors.DtypeError,
    velo_errors.EmptyError,
    velo_errors.FilterError,
    velo_errors.NotFiniteError,
    velo_errors.ReadOnlyError,
    velo_errors.UnknownIdError,
    velo_errors.UnsupportedError,
)


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The nearest vectors of every query of a request, from one shard or merged.

    ``ids`` and ``distances`` have the shape (query_count, k), ``counts`` the number of hits of each query,
    and ``metadata`` a table with a row for each hit of a query. ``groups`` has (value, hits) of each group of
    each query; the row of hits holds one group after another. ``limited`` says whether there may be more
    within the radius. ``vectors`` are NaN where missing; ``scores`` of a full-text search descend. Costs are
    sums over all queries.
    """

    ids: IdArray
    distances: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    metadata: list[pa.Table] | None = None
    reads: int = 0
    bytes_read: int = 0
    shared_reads: int = 0
    cache_hits: int = 0
    groups: list[list[tuple[Any, int]]] | None = None
    limited: npt.NDArray[np.bool_] | None = None
    vectors: npt.NDArray[np.float32] | None = None
    scores: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as data; ``kind`` is its class, ``query`` the query that caused it."""

    kind: str
    message: str
    fault: Fault = "shard"
    argument: str | None = None
    file: str | None = None
    page: int | None = None
    row: int | None = None
    position: int | None = None
    needed_bytes: int | None = None
    query: int | None = None

    @classmethod
    def of(cls, error: BaseException, *, query: int | None = None) -> Failure:
        fault: Fault = "shard"
        if isinstance(error, velo_errors.SearchTimeoutError):
            fault = "deadline"
        elif isinstance(error, CALLER_ERRORS):
            fault = "caller"
        name = type(error).__name__
        if not isinstance(error, VeloError):
            return cls(name, str(error) or name, fault, query=query)
        return cls(
            name, error.message, fault, **{one: getattr(error, one) for one in ERROR_FIELDS}, query=query
        )

    def to_error(self) -> VeloError:
        """The exception again; an unknown class becomes a ``RemoteError`` that names it."""
        known = getattr(serving_errors, self.kind, None) or getattr(velo_errors, self.kind, None)
        if not (isinstance(known, type) and issubclass(known, VeloError)):
            return serving_errors.RemoteError(f"{self.kind}: {self.message}")
        message = self.message
        if self.query is not None and issubclass(known, FilterError):
            message = f"filter of query {self.query}: {message}"
        error = known(message)
        for name in ERROR_FIELDS:
            setattr(error, name, getattr(self, name))
        if self.query is not None:
            error.row = self.query
        return error


ShardReply: TypeAlias = Hits | Failure


@dataclass(frozen=True, slots=True)
class ShardFailure:
    """Why one shard is missing from an answer."""

    shard: str
    failure: Failure

    def to_dict(self) -> dict[str, str]:
        return {"shard": self.shard, "type": self.failure.kind, "message": self.failure.message}


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The merged answer to a request and how complete it is."""

    hits: Hits
    shards_answered: int
    shards_total: int
    failures: tuple[ShardFailure, ...] = ()
    #: (query, value) of the groups with rows that a shard may not have returned.
    thin_groups: tuple[tuple[int, Any], ...] = ()
    #: Of the collection.
    version: str = ""
    #: Place of the shard that each hit is from, by id, where vectors are asked for.
    homes: Mapping[Any, int] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        return self.shards_answered < self.shards_total


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """The index that a shard serves: answers of another one must not be merged."""

    uuid: str
    dim: int
    metric: str
    version: str = ""

    def __str__(self) -> str:
        version = f", version {self.version}" if self.version else ""
        return f"{self.uuid or 'no uuid'} ({self.dim} dimensions, {self.metric}{version})"


@dataclass(frozen=True, slots=True)
class ShardHealth:
    """The state of a shard; ``failure`` is why it has no open index, if it has none."""

    uuid: str = ""
    version: str = ""
    n: int = 0
    dim: int = 0
    metric: str = ""
    node: str = ""
    pid: int = 0
    memory_bytes: int = 0
    device: str = ""
    #: The generation of its collection that comes after this one, where there is one; else zero.
    successor: int = 0
    failure: Failure | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> ShardIdentity:
        return ShardIdentity(self.uuid, self.dim, self.metric, self.version)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a new collection, as ``velo.create`` takes it; ``schema`` is a serialized Arrow schema."""

    dim: int
    metric: str = "l2"
    dtype: str = "float32"
    schema: bytes | None = None


class SearchIndex(Protocol):
    """The part of ``velo.Index`` that a shard needs; further options as there."""

    def search_async(self, *arguments: Any, **options: Any) -> Any: ...
    def range_search_async(self, *arguments: Any, **options: Any) -> Any: ...
    def info(self) -> Mapping[str, Any]: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...


class ShardChannel(Protocol):
    """The router's connection to one shard: in this process, over a socket, or a fake in tests.

    Canceling the future of ``submit`` ends the search; an unreachable shard fails it. ``health`` connects if
    necessary, or raises ``ShardUnavailableError``. ``trial`` is that of ``Shard``. ``watch`` sets a callback
    for a lost connection. ``reset`` drops the connection to a shard that does not answer; ``close`` releases
    everything.
    """

    @property
    def name(self) -> str: ...
    def submit(self, request: SearchRequest, timeout_s: float) -> asyncio.Future[ShardReply]: ...
    async def health(self) -> ShardHealth: ...
    async def trial(self, timeout_s: float) -> bool: ...
    async def look_up(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]: ...
    async def write(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]: ...
    def watch(self, lost: Callable[[str], None]) -> None: ...
    def reset(self) -> None: ...
    async def close(self) -> None: ...
