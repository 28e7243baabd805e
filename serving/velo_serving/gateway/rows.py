"""Rows without a search, over HTTP: count, get by ids, page through, explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
from msgspec import Meta, Struct
from pydantic_core import to_json

from velo_serving.gateway import bodies
from velo_serving.gateway.operations import ERRORS, Call, Operation
from velo_serving.gateway.schemas import Status, check_dims, check_filter, parsed, seconds
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
from velo_serving.routing.lookups import UnknownIds, look_up
from velo_serving.routing.served import Generation
from velo_serving.transport.codec import stream_of

#: Rows of one answer.
ROWS_MAX: Final = 1000

Columns: TypeAlias = Annotated[list[str] | bool, Meta(description="Names of columns, or true for all.")]


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
    unknown: Annotated[UnknownIds, Meta(description="Unknown ids are an error, or skipped.")] = "error"
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


class Looked(NamedTuple):
    """The result of a lookup."""

    fields: Mapping[str, Any]
    rows: pa.Table | None = None


Body = TypeVar("Body", bound=Struct)


def parsed_lookup(model: type[Body], call: Call) -> Body:
    asked = parsed(model, call.body)
    check_filter(getattr(asked, "filter", None), "filter", call.limits)
    return asked


def written(looked: Looked, media_type: str) -> bytes:
    """An answer in JSON, or its rows as Arrow with the other fields in the metadata of the schema."""
    rows, fields = looked.rows, dict(looked.fields)
    if rows is not None:
        if media_type == bodies.ARROW:
            return stream_of(rows.replace_schema_metadata({"velo": to_json(fields)}))
        fields = {"rows": rows.to_pylist(), **fields}
    return to_json(fields, inf_nan_mode="null", bytes_mode="base64")


async def _count(call: Call, now: Generation) -> Looked:
    asked = parsed_lookup(CountBody, call)
    arguments, timeout_s = {"filter": asked.filter}, seconds(asked.timeout_ms)
    found = await look_up(now.router, "count", arguments, timeout_s, allow_partial=asked.allow_partial)
    return Looked({"count": sum(int(reply["count"]) for _, reply in found.replies)} | found.status)


async def _get(call: Call, now: Generation) -> Looked:
    asked = parsed_lookup(GetBody, call)
    table, found = await lookups.get(
        now.router,
        asked.ids,
        asked.columns,
        unknown=asked.unknown,
        timeout_s=seconds(asked.timeout_ms),
        allow_partial=asked.allow_partial,
    )
    return Looked(found.status, table)


async def _rows(call: Call, now: Generation) -> Looked:
    asked = parsed_lookup(RowsBody, call)
    found = await lookups.rows(
        now.router,
        asked.filter,
        limit=asked.limit,
        after=asked.after,
        columns=asked.columns,
        timeout_s=seconds(asked.timeout_ms),
    )
    return Looked({}, found)


async def _explain(call: Call, now: Generation) -> Looked:
    asked = parsed_lookup(ExplainBody, call)
    check_dims([asked.vector], now.dim, "vector")
    arguments = {"query": asked.vector, "k": asked.k, "filter": asked.filter, **effort_of(asked)}
    found = await look_up(now.router, "explain", arguments, seconds(asked.timeout_ms))
    return Looked({"shards": found.by_shard} | found.status)


LOOKUPS: Final = (
    Operation("count", "Count rows", CountBody, CountAnswer, ERRORS, _count),
    Operation("get", "Rows of some ids", GetBody, GetAnswer, ERRORS, _get),
    Operation("rows", "Rows that pass a filter, page by page", RowsBody, RowsAnswer, ERRORS, _rows),
    Operation("explain", "How a query is answered", ExplainBody, ExplainAnswer, ERRORS, _explain),
)
