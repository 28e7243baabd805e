"""Errors of serving: each is a :class:`velo.errors.VeloError`, so one ``except`` catches both halves."""

from __future__ import annotations

from velo.errors import (
    BusyError,
    ClosedError,
    FormatError,
    InvalidArgumentError,
    NotAnIndexError,
    SearchTimeoutError,
    VeloError,
)


def outcome_of(error: BaseException) -> str:
    """The outcome of a failed request: "partial", "rejected", "deadline", "unavailable" or "error"."""
    away = (NoShardAnsweredError, ShardUnavailableError, ShuttingDownError)
    outcomes: dict[str, type[BaseException] | tuple[type[BaseException], ...]] = {
        "partial": PartialWriteError,
        "rejected": BusyError,
        "deadline": SearchTimeoutError,
        "unavailable": away,
    }
    return next((name for name, kind in outcomes.items() if isinstance(error, kind)), "error")


class ServingError(VeloError):
    """Base of the errors that only serving raises."""


class ShardNotHereError(ServingError, NotAnIndexError):
    """The folder of a shard does not exist on the node that was to open it."""


class ShardUnavailableError(ServingError):
    """A shard cannot be reached at the moment: its process died, restarts, or does not answer.

    ``detail`` has addresses and texts of others; it is for the log, never for clients.
    """

    def __init__(self, message: str = "", *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class WrongShardError(ShardUnavailableError):
    """Another index is where a shard was, or where its replica should be: its answers are never merged."""


class SupersededError(ShardUnavailableError):
    """A shard belongs to a version that is no longer served; ``generation`` is the one that is."""

    def __init__(self, message: str = "", *, generation: int = 0) -> None:
        super().__init__(message)
        self.generation = generation


class ShardMovedError(ShardUnavailableError):
    """The rows of a shard are in another folder now; the process of the former one wrote nothing."""


class LocationError(ServingError, OSError):
    """A location in an object store, or the cache folder, cannot be read or written; ``file`` names it."""


class BuildTaskError(ServingError):
    """A task that built a shard died too often; what is finished stays, and the same call goes on."""


class ProtocolError(ServingError, FormatError):
    """A message between router and shard violates the protocol."""


class ProtocolVersionError(ProtocolError):
    """The other side of a connection speaks another version of the protocol."""


class FrameTooLargeError(ProtocolError):
    """A frame is above the limit of bytes."""


class WrongTokenError(ProtocolError):
    """A connection was opened without the secret that the shard asks for."""


class WrongPlaceError(ProtocolError):
    """Another shard, or another replica, listens where a shard was."""


class ChildEndedError(ShardUnavailableError):
    """A process of the server ended as it started."""


class NoShardAnsweredError(ServingError):
    """Too few shards answered to give the answer that was asked for."""


class PartialWriteError(ServingError):
    """Some shards wrote, in all ``rows``; ``shards`` did not, or did not answer.

    A write is atomic within each shard. Repeating it with the same ``request_id`` completes it.
    """

    def __init__(self, message: str = "", *, shards: tuple[str, ...] = (), rows: int = 0) -> None:
        super().__init__(message)
        self.shards = shards
        self.rows = rows


class DeadlineExceededError(ServingError, SearchTimeoutError):
    """The deadline of a request passed before any shard had answered."""


class ConnectionsBusyError(DeadlineExceededError):
    """All connections of a client were in use until the time of a call was over; nothing was sent."""


class EmbeddingError(ServingError):
    """The server's embedding function failed, or made no vector of a text."""


class QueueFullError(ServingError, BusyError):
    """Too many queries wait already; retry after ``retry_after_s``."""

    def __init__(self, message: str = "", *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDownError(ServingError, ClosedError):
    """The server is closing and takes no further requests."""


class ApiKeyError(ServingError):
    """The server asks for a key, and was given none that it knows."""


class AdminKeyError(ApiKeyError):
    """The request needs an admin key, and the one given is for reading."""


class ApiKeyFileError(ServingError, FormatError):
    """The file of keys cannot be read, or has a line that is none."""


class AliasFileError(ServingError, FormatError):
    """The file of aliases cannot be read, has a line that is none, or names what is not served."""


class PublicationError(ServingError):
    """The build cannot be served; the version of before still is."""


class CertificateError(ServingError, ConnectionError):
    """The certificate of a server is not trusted: expired, or of another host or authority."""


class UnknownCollectionError(ServingError, LookupError):
    """No collection of that name is served."""


class CollectionFormatError(ServingError, FormatError):
    """``collection.json`` is missing a field, or does not fit the shards beside it."""


class MalformedBodyError(ServingError, FormatError):
    """The body of a request is not what its content type promises."""


class BodyTooLargeError(ServingError):
    """The body of a request, or the number of vectors in it, is above the limit."""


class UnsupportedMediaTypeError(ServingError):
    """The content type of a request is none that the gateway reads."""


class NotAcceptableError(ServingError):
    """The client accepts none of the content types that the gateway writes."""


class PortInUseError(ServingError, OSError):
    """The address to serve at is taken, or may not be used."""


class PlacementError(ServingError):
    """No node of the Ray cluster has the resource or label that a shard is pinned to."""


class ClusterExistsError(ServingError, InvalidArgumentError):
    """Actors of a collection of that name run already."""


class RemoteError(ServingError):
    """A server answered with an error of an unknown class; ``status`` is the HTTP status."""

    def __init__(self, message: str = "", *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
