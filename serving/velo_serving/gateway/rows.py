"""Rows without a search, over HTTP: count, get by ids, page through, explain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
from msgspec import Meta, Struct
from pydantic_core import to_json

from velo_serving.gateway import bodies
from velo_serving.gateway.errors import RequestError
from velo_serving.gateway.schemas import Status, check_filter, parsed, seconds
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.protocol.requests import (
    AllowPartial,
    Effort,
    Ids,
    NeighborCount,
    OneFilter,
    Timeout,
    check_ids,
    effort_of,
)
from velo_serving.routing import lookups
from velo_serving.routing.lookups import Found, UnknownIds
from velo_serving.routing.served import Generation
from velo_serving.transport.codec import stream_of

#: Rows of one answer.
ROWS_MAX: Final = 1000

Columns: TypeAlias = Annotated[
    list[str] | bool, Meta(description="Columns to bring: their names, or true for all of them.")
]


class CountBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Count the rows that pass a filter, or all."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"filter": {"year": 2020}}

    filter: OneFilter = None
    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True


class GetBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Bring the rows of some ids."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"ids": [17, 4]}

    ids: Annotated[Ids, Meta(min_length=1, max_length=ROWS_MAX)]
    columns: Columns = True
    unknown: Annotated[
        UnknownIds, Meta(description="Ids that no row has are an error, or left out with `skip`.")
    ] = "error"
    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True

    def __post_init__(self) -> None:
        check_ids(self.ids)


class RowsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Page through the rows that pass a filter, in the order of their ids."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"filter": {"year": 2020}, "limit": 50}

    filter: OneFilter = None
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 100
    after: Annotated[int | str | None, Meta(description="The last id of the page before.")] = None
    columns: Columns = True
    timeout_ms: Timeout = None


class ExplainBody(Effort, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run one query and tell how each shard answered it."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"vector": [0.1, 0.2, 0.3]}

    vector: Annotated[list[float], Meta(description="The query.")]
    k: NeighborCount = 10
    filter: OneFilter = None
    timeout_ms: Timeout = None


class CountAnswer(Status, kw_only=True):
    """The number of rows."""

    count: int


class RowsAnswer(Struct):
    """Rows, each with its `id`; a last page has fewer than `limit`."""

    rows: list[dict[str, Any]]


class GetAnswer(Status, kw_only=True):
    """The rows in the order asked for, each with its `id`."""

    rows: list[dict[str, Any]]


class ExplainAnswer(Status, kw_only=True):
    """The work of each shard, as `Index.explain` reports it."""

    shards: list[dict[str, Any]]


#: From a body to what JSON says, or to rows and what is said of them.
Lookup = Callable[[bytes, Generation, GatewayLimits], Awaitable["Looked"]]


class Looked(NamedTuple):
    """The result of a lookup."""

    fields: Mapping[str, Any]
    rows: pa.Table | None = None


class LookupRoute(NamedTuple):
    """A path below a collection, and what it does."""

    path: str
    summary: str
    body: type[Struct]
    answer: type[Struct]
    lookup: Lookup


Body = TypeVar("Body", bound=Struct)


def parsed_lookup(model: type[Body], body: bytes, limits: GatewayLimits) -> Body:
    asked = parsed(model, body)
    condition = getattr(asked, "filter", None)
    if isinstance(condition, str) and len(condition) > limits.sql_bytes_max:
        raise RequestError(
            f"filter: SQL of {len(condition)} characters is above the limit of {limits.sql_bytes_max}",
            status=413,
            path="filter",
            kind="BodyTooLargeError",
        )
    check_filter(condition, "filter")
    return asked


def check_dim(vector: Sequence[float], dim: int) -> None:
    if len(vector) != dim:
        raise RequestError(
            f"vector has {len(vector)} numbers, the collection has {dim} dimensions",
            path="vector",
            kind="DimensionMismatchError",
        )


def written(looked: Looked, media_type: str) -> bytes:
    """An answer in JSON, or its rows as Arrow with the other fields in the metadata of the schema."""
    rows, fields = looked.rows, dict(looked.fields)
    if rows is None:
        return to_json(fields, inf_nan_mode="null", bytes_mode="base64")
    if media_type == bodies.ARROW:
        return stream_of(rows.replace_schema_metadata({"velo": to_json(fields)}))
    return to_json({"rows": rows.to_pylist()} | fields, inf_nan_mode="null", bytes_mode="base64")


def status_of(found: Found) -> dict[str, Any]:
    return {
        "shards_answered": found.shards_answered,
        "shards_total": found.shards_total,
        "partial": found.shards_answered < found.shards_total,
        "failures": [
            {"shard": one.shard, "type": one.failure.kind, "message": one.failure.message}
            for one in found.failures
        ],
    }


async def _count(body: bytes, now: Generation, limits: GatewayLimits) -> Looked:
    asked = parsed_lookup(CountBody, body, limits)
    found = await lookups.count(
        now.router, asked.filter, timeout_s=seconds(asked.timeout_ms), allow_partial=asked.allow_partial
    )
    return Looked({"count": found.value} | status_of(found))


async def _get(body: bytes, now: Generation, limits: GatewayLimits) -> Looked:
    asked = parsed_lookup(GetBody, body, limits)
    found = await lookups.get(
        now.router,
        asked.ids,
        asked.columns,
        unknown=asked.unknown,
        timeout_s=seconds(asked.timeout_ms),
        allow_partial=asked.allow_partial,
    )
    return Looked(status_of(found), found.value)


async def _rows(body: bytes, now: Generation, limits: GatewayLimits) -> Looked:
    asked = parsed_lookup(RowsBody, body, limits)
    found = await lookups.rows(
        now.router,
        asked.filter,
        limit=asked.limit,
        after=asked.after,
        columns=asked.columns,
        timeout_s=seconds(asked.timeout_ms),
    )
    return Looked({}, found)


async def _explain(body: bytes, now: Generation, limits: GatewayLimits) -> Looked:
    asked = parsed_lookup(ExplainBody, body, limits)
    check_dim(asked.vector, now.dim)
    arguments = {"query": asked.vector, "k": asked.k, "filter": asked.filter, **effort_of(asked)}
    found = await lookups.explain(now.router, arguments, timeout_s=seconds(asked.timeout_ms))
    return Looked({"shards": found.value} | status_of(found))


ROUTES: Final = (
    LookupRoute("count", "Count rows", CountBody, CountAnswer, _count),
    LookupRoute("get", "Rows of some ids", GetBody, GetAnswer, _get),
    LookupRoute("rows", "Rows that pass a filter, page by page", RowsBody, RowsAnswer, _rows),
    LookupRoute("explain", "How a query is answered", ExplainBody, ExplainAnswer, _explain),
)
