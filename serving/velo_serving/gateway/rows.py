"""Rows without a search, over HTTP: count, get by ids, page through, explain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from velo_serving.gateway.errors import RequestError
from velo_serving.gateway.schemas import (
    AllowPartial,
    Exact,
    FilterJson,
    ListSize,
    NeighborCount,
    Recall,
    ShardFailureAnswer,
    Timeout,
    check_filter,
    refusal,
)
from velo_serving.routing import lookups
from velo_serving.routing.lookups import Found
from velo_serving.routing.served import Generation
from velo_serving.words.limits import GatewayLimits

__all__ = [
    "ROUTES",
    "STRICT",
    "Lookup",
    "LookupRoute",
    "OneFilter",
    "Status",
    "json_body",
    "parsed",
    "seconds",
    "written",
]

#: Rows of one answer.
ROWS_MAX: Final = 1000

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Columns = Annotated[
    list[str] | bool, Field(description="Columns to bring: their names, or true for all of them.")
]
OneFilter = Annotated[
    FilterJson | None, Field(description="Restricts the rows: a dict of conditions, or SQL text.")
]


class CountBody(BaseModel):
    """Count the rows that pass a filter, or all."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"filter": {"year": 2020}}]})

    filter: OneFilter = None
    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True


class GetBody(BaseModel):
    """Bring the rows of some ids."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"ids": [17, 4]}]})

    ids: Annotated[list[int] | list[str], Field(min_length=1, max_length=ROWS_MAX)]
    columns: Columns = True
    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True


class RowsBody(BaseModel):
    """Page through the rows that pass a filter, in the order of the shards."""

    model_config = ConfigDict(
        **STRICT, json_schema_extra={"examples": [{"filter": {"year": 2020}, "limit": 50}]}
    )

    filter: OneFilter = None
    limit: Annotated[int, Field(ge=1, le=ROWS_MAX)] = 100
    page: Annotated[str | None, Field(description="What the answer before called `next`.")] = None
    columns: Columns = True
    timeout_ms: Timeout = None


class ExplainBody(BaseModel):
    """Run one query and tell how each shard answered it."""

    model_config = ConfigDict(**STRICT, json_schema_extra={"examples": [{"vector": [0.1, 0.2, 0.3]}]})

    vector: Annotated[list[float], Field(description="The query.")]
    k: NeighborCount = 10
    filter: OneFilter = None
    recall: Recall = None
    list_size: ListSize = None
    exact: Exact = None
    timeout_ms: Timeout = None


class Status(BaseModel):
    """How complete an answer is."""

    shards_answered: int
    shards_total: int
    partial: bool
    failures: list[ShardFailureAnswer] = []


class CountAnswer(Status):
    """How many rows there are."""

    count: int


class GetAnswer(Status):
    """The rows in the order asked for, null where no shard has the id."""

    rows: list[dict[str, Any] | None]


class RowsAnswer(BaseModel):
    """Some rows, and where the next page begins."""

    rows: list[dict[str, Any]]
    next: Annotated[str | None, Field(description="Give it as `page`; null on the last page.")]


class ExplainAnswer(Status):
    """What each shard did, as `Index.explain` tells it."""

    shards: list[dict[str, Any]]


Lookup = Callable[[bytes, Generation, GatewayLimits], Awaitable[bytes]]


class LookupRoute(NamedTuple):
    """A path below a collection, and what it does."""

    path: str
    summary: str
    body: type[BaseModel]
    answer: type[BaseModel]
    lookup: Lookup


Body = TypeVar("Body", bound=BaseModel)


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """What the OpenAPI page says of a body."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": model.model_json_schema()}},
        }
    }


def parsed(model: type[Body], body: bytes, limits: GatewayLimits) -> Body:
    """Read a body.

    Raises
    ------
    RequestError
    """
    try:
        read = model.model_validate_json(body)
    except ValidationError as error:
        raise refusal(error, body) from None
    condition = getattr(read, "filter", None)
    if isinstance(condition, str) and len(condition) > limits.sql_bytes_max:
        raise RequestError(
            f"filter: SQL of {len(condition)} characters is above the limit of {limits.sql_bytes_max}",
            status=413,
            argument="filter",
            place={"path": "filter"},
            kind="BodyTooLargeError",
        )
    check_filter(condition, "filter")
    return read


def seconds(timeout_ms: float | None) -> float | None:
    """The deadline of a body, as routers take it."""
    return None if timeout_ms is None else timeout_ms / 1000


def written(fields: Mapping[str, Any], found: Found | None = None) -> bytes:
    """An answer as JSON, with how complete it is."""
    body = dict(fields)
    if found is not None:
        body |= {
            "shards_answered": found.shards_answered,
            "shards_total": found.shards_total,
            "partial": found.shards_answered < found.shards_total,
            "failures": [
                {"shard": one.shard, "type": one.failure.kind, "message": one.failure.message}
                for one in found.failures
            ],
        }
    return to_json(body, inf_nan_mode="null", bytes_mode="base64")


async def _count(body: bytes, now: Generation, limits: GatewayLimits) -> bytes:
    asked = parsed(CountBody, body, limits)
    found = await lookups.count(
        now.router,
        asked.filter,
        timeout_s=seconds(asked.timeout_ms),
        allow_partial=asked.allow_partial,
    )
    return written({"count": found.value}, found)


async def _get(body: bytes, now: Generation, limits: GatewayLimits) -> bytes:
    asked = parsed(GetBody, body, limits)
    found = await lookups.get(
        now.router,
        asked.ids,
        asked.columns,
        timeout_s=seconds(asked.timeout_ms),
        allow_partial=asked.allow_partial,
    )
    return written({"rows": found.value}, found)


async def _rows(body: bytes, now: Generation, limits: GatewayLimits) -> bytes:
    asked = parsed(RowsBody, body, limits)
    found, page = await lookups.rows(
        now.router,
        asked.filter,
        limit=asked.limit,
        columns=asked.columns,
        page=asked.page,
        timeout_s=seconds(asked.timeout_ms),
    )
    return written({"rows": found, "next": page})


async def _explain(body: bytes, now: Generation, limits: GatewayLimits) -> bytes:
    asked = parsed(ExplainBody, body, limits)
    if len(asked.vector) != now.dim:
        raise RequestError(
            f"vector has {len(asked.vector)} numbers, the collection has {now.dim} dimensions",
            argument="vector",
            place={"path": "vector"},
            kind="DimensionMismatchError",
        )
    arguments = {
        "query": asked.vector,
        "k": asked.k,
        "filter": asked.filter,
        "recall": asked.recall,
        "list_size": asked.list_size,
        "exact": asked.exact,
    }
    found = await lookups.explain(now.router, arguments, timeout_s=seconds(asked.timeout_ms))
    return written({"shards": found.value}, found)


ROUTES: Final = (
    LookupRoute("count", "Count rows", CountBody, CountAnswer, _count),
    LookupRoute("get", "Rows of some ids", GetBody, GetAnswer, _get),
    LookupRoute("rows", "Rows that pass a filter, page by page", RowsBody, RowsAnswer, _rows),
    LookupRoute("explain", "How a query is answered", ExplainBody, ExplainAnswer, _explain),
)
