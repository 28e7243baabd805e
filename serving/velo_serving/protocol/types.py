"""The data between gateway, router and shards, and the interfaces between the packages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from velo import errors as velo_errors
from velo.errors import FilterError, VeloError
from velo_serving.protocol import errors as serving_errors
from velo_serving.protocol.requests import EffortKeywords
from velo_serving.protocol.requests import FilterForm as FilterForm
from velo_serving.protocol.requests import Float32Matrix as Float32Matrix
from velo_serving.protocol.requests import SearchRequest as SearchRequest

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: int64 with -1 where there is no hit, or objects: strings with None where there is no hit.
IdArray: TypeAlias = npt.NDArray[Any]
MetadataRow: TypeAlias = Mapping[str, Any]
Fault: TypeAlias = Literal["caller", "shard", "deadline"]

#: What a shard does to its rows, and to its files.
WRITES: Final = ("insert", "upsert", "update", "delete", "flush", "optimize")

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

    Attributes
    ----------
    counts : ndarray of shape (query_count,), int64
        How many of the k are hits.
    metadata : list or None
        For every query one dict a hit, without padding.
    groups : list or None
        Of a search by groups: for every query (value, hits) of each group; the row of hits holds one group
        after another, so only within a group do distances ascend.
    limited : ndarray of shape (query_count,), bool, or None
        Of a search by radius: whether there may be more.
    reads, bytes_read, shared_reads, cache_hits : int
        What the request cost, summed over its queries.
    tables : list or None
        Metadata as an index brings it, an Arrow table a query; whoever reads it makes rows of it
        (``hits.with_rows``).
    vectors : ndarray of shape (query_count, k, dim), float32, or None
        As stored; NaN where there is no hit, or its vector could not be brought.
    scores : ndarray of shape (query_count, k), float32, or None
        Of a search by words, descending; 0 where there is no hit.
    """

    ids: IdArray
    distances: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    metadata: list[list[MetadataRow]] | None = None
    reads: int = 0
    bytes_read: int = 0
    shared_reads: int = 0
    cache_hits: int = 0
    groups: list[list[tuple[Any, int]]] | None = None
    limited: npt.NDArray[np.bool_] | None = None
    tables: list[Any] | None = None
    vectors: npt.NDArray[np.float32] | None = None
    scores: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as data, so that it crosses processes whatever they have installed.

    Attributes
    ----------
    kind : str
        Name of the exception's class.
    query : int or None
        Which query of the request it was about.
    """

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
        """Describe an exception."""
        fault: Fault = "shard"
        if isinstance(error, velo_errors.SearchTimeoutError):
            fault = "deadline"
        elif isinstance(error, CALLER_ERRORS):
            fault = "caller"
        if not isinstance(error, VeloError):
            return cls(type(error).__name__, str(error) or type(error).__name__, fault, query=query)
        return cls(
            type(error).__name__,
            error.message,
            fault,
            error.argument,
            error.file,
            error.page,
            error.row,
            error.position,
            error.needed_bytes,
            query,
        )

    def to_error(self) -> VeloError:
        """Make the exception again; one that velo does not know becomes a ``RemoteError`` that names it."""
        known = getattr(serving_errors, self.kind, None) or getattr(velo_errors, self.kind, None)
        if not (isinstance(known, type) and issubclass(known, VeloError)):
            return serving_errors.RemoteError(f"{self.kind}: {self.message}")
        message = self.message
        if self.query is not None and issubclass(known, FilterError):
            message = f"filter of query {self.query}: {message}"
        error = known(message)
        for name in ("argument", "file", "page", "row", "position", "needed_bytes"):
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


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The merged answer to a request and how complete it is."""

    hits: Hits
    shards_answered: int
    shards_total: int
    failures: tuple[ShardFailure, ...] = ()
    #: (query, value) of the groups of which some shard may have rows that it did not show.
    thin_groups: tuple[tuple[int, Any], ...] = ()
    #: Of the collection.
    version: str = ""
    #: Place of the shard that each hit is from, by id, where vectors are asked for.
    homes: Mapping[Any, int] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """Whether some shard is missing."""
        return self.shards_answered < self.shards_total


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """Which index a shard serves: answers of another one must not be merged as if they were its own.

    Attributes
    ----------
    uuid : str
        Of the index.
    version : str
        Of the collection that the shard belongs to.
    """

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
        """Which index this is."""
        return ShardIdentity(self.uuid, self.dim, self.metric, self.version)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a new collection, as ``velo.create`` takes it.

    Attributes
    ----------
    schema : bytes or None
        Of the columns, as Arrow writes one.
    """

    dim: int
    metric: str = "l2"
    dtype: str = "float32"
    schema: bytes | None = None


class SearchIndex(Protocol):
    """The part of ``velo.Index`` that a shard needs."""

    async def search_async(
        self,
        queries: Float32Matrix | None,
        k: int = ...,
        *,
        filter: Any = ...,  # noqa: A002 - the public name
        return_metadata: Sequence[str] | None = ...,
        group_by: str | None = ...,
        group_size: int = ...,
        timeout_s: float | None = ...,
        text: Any = ...,
        **effort: Unpack[EffortKeywords],
    ) -> Any:
        """Search without blocking the event loop."""

    async def range_search_async(
        self,
        queries: Float32Matrix,
        radius: float,
        *,
        filter: Any = ...,  # noqa: A002
        limit: int = ...,
        return_metadata: Sequence[str] | None = ...,
        timeout_s: float | None = ...,
        **effort: Unpack[EffortKeywords],
    ) -> Any:
        """Search by radius without blocking the event loop."""

    def info(self) -> Mapping[str, Any]:
        """Return ``n``, ``dim``, ``metric``, ``memory_bytes``, ``device``."""

    def close(self) -> None:
        """Release the index."""


class ShardChannel(Protocol):
    """How the router reaches one shard: in this process, over a socket, or a fake in tests."""

    @property
    def name(self) -> str:
        """Name of the shard in answers, logs and metrics."""

    def submit(self, request: SearchRequest, timeout_s: float) -> asyncio.Future[ShardReply]:
        """Send a request; canceling the future ends the search at the shard.

        The future holds the reply, or ``ShardUnavailableError`` where the shard cannot be reached.
        """

    async def health(self) -> ShardHealth:
        """Connect if need be and ask the shard how it is, or raise ``ShardUnavailableError``."""

    async def trial(self, timeout_s: float) -> bool:
        """Let the shard show that searches still end there; as ``Shard.trial``."""

    async def look_up(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Look something up in the shard's rows; as ``lookups.look_up``."""

    async def write(self, what: str, arguments: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Do something to the shard's rows; as ``Shard.write``."""

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call back, with the reason, when the connection is lost."""

    def reset(self) -> None:
        """Let go of a connection that leads to a shard which does not answer; ``health`` makes a new one."""

    async def close(self) -> None:
        """Let go of everything."""
