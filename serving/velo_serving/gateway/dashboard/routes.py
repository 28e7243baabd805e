"""Paths of the dashboard: costs of shards, vectors, texts, a map."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct

from velo.errors import InvalidArgumentError
from velo_serving.gateway.dashboard.directions import Directions
from velo_serving.gateway.dashboard.embedding import Embedding
from velo_serving.gateway.operations import ERRORS, Call, Operation
from velo_serving.gateway.rows import Looked, parsed_lookup
from velo_serving.gateway.schemas import Status, check_dims, seconds
from velo_serving.protocol.requests import AllowPartial, Ids, OneFilter, Timeout, check_ids
from velo_serving.routing import lookups
from velo_serving.routing.served import Generation

#: Points of a map, rows that may be marked in it, and ids whose vectors are brought at once.
MAP_ROWS_MAX: Final = 2000
IDS_MAX: Final = 100

#: Characters of a text to embed, and of a value that colors a point.
TEXT_MAX: Final = 8192
VALUE_MAX: Final = 80

#: How long a function may take for a text unless the request says otherwise.
EMBED_S: Final = 30.0

_MAX_SEED: Final = (1 << 53) - 1


class InfoBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Return the costs of each shard, and its segments."""

    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True


class VectorsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Bring the vectors of some rows, or nearly: what codes tell of those that are not stored."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"ids": [17, 4]}

    ids: Annotated[Ids, Meta(min_length=1, max_length=IDS_MAX)]
    timeout_ms: Timeout = None

    def __post_init__(self) -> None:
        check_ids(self.ids)


class EmbedBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Make a vector of a text, by the function that the server was given."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"text": "a red sofa"}

    text: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]
    timeout_ms: Timeout = None


class MapBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Draw rows at random, and place them along the two directions in which they spread most."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"limit": 500, "color": "year", "marks": [17]}

    filter: OneFilter = None
    limit: Annotated[int, Meta(ge=1, le=MAP_ROWS_MAX, description="Points at most.")] = 1000
    color: Annotated[str | None, Meta(description="Column whose values come with the points.")] = None
    marks: Annotated[Ids, Meta(max_length=IDS_MAX, description="Rows to place, drawn or not.")] = []
    vector: Annotated[list[float] | None, Meta(description="A query to place.")] = None
    seed: Annotated[int, Meta(ge=0, le=_MAX_SEED, description="Another one draws other rows.")] = 0
    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True

    def __post_init__(self) -> None:
        check_ids(self.marks, "marks")


class InfoAnswer(Status, kw_only=True):
    """The result of `Index.info` for each shard; `embeds`: whether texts can be searched for."""

    shards: list[dict[str, Any]]
    columns: Annotated[list[list[str]], Meta(description="Name and type of each.")]
    ids: str
    embeds: bool


class VectorsAnswer(Struct):
    """The vectors, in the order of the ids."""

    vectors: list[list[float]]


class EmbedAnswer(Struct):
    """The vector of the text."""

    vector: list[float]


class MapAnswer(Status, kw_only=True):
    """Points of the unit circle; `shares`: of the variance, along each direction."""

    rows: Annotated[int, Meta(description="Rows that pass the filter, from which these were drawn.")]
    ids: Ids
    points: list[list[float]]
    values: list[Any] | None
    marks: list[list[float]]
    query: list[float] | None
    shares: list[float]


def dashboard_routes(embedding: Embedding) -> tuple[Operation, ...]:
    async def info(call: Call, now: Generation) -> Looked:
        asked = parsed_lookup(InfoBody, call)
        timeout_s = seconds(asked.timeout_ms)
        found = await lookups.look_up(now.router, "info", {}, timeout_s, allow_partial=asked.allow_partial)
        shards = found.by_shard
        columns: list[list[str]] = [one.pop("columns") for one in shards]
        ids = next((one["ids"] for one in shards if one["n"]), shards[0]["ids"])
        fields = {"shards": shards, "columns": next(filter(None, columns), []), "ids": ids}
        return Looked(fields | {"embeds": bool(embedding)} | found.status)

    async def embed(call: Call, now: Generation) -> Looked:
        asked = parsed_lookup(EmbedBody, call)
        made = await embedding.vector(asked.text, now.dim, seconds(asked.timeout_ms) or EMBED_S)
        return Looked({"vector": made[0].tolist()})

    return (
        Operation("info", "What a collection costs", InfoBody, InfoAnswer, ERRORS, info),
        Operation("vectors", "Vectors of some ids, or nearly", VectorsBody, VectorsAnswer, ERRORS, _vectors),
        Operation("embed", "The vector of a text", EmbedBody, EmbedAnswer, ERRORS, embed),
        Operation("map", "A sample in the plane", MapBody, MapAnswer, ERRORS, _map),
    )


async def _vectors(call: Call, now: Generation) -> Looked:
    asked = parsed_lookup(VectorsBody, call)
    timeout_s = seconds(asked.timeout_ms)
    found = await lookups.vectors(now.router, asked.ids, now.dim, decoded=True, timeout_s=timeout_s)
    return Looked({"vectors": found.tolist()})


async def _map(call: Call, now: Generation) -> Looked:
    asked = parsed_lookup(MapBody, call)
    if asked.vector is not None:
        check_dims([asked.vector], now.dim, "vector")
    timeout_s = seconds(asked.timeout_ms)
    table, sample, rows, found = await lookups.sample(
        now.router,
        asked.filter,
        now.dim,
        limit=max(1, min(asked.limit, call.limits.vectors_bytes_max // (4 * now.dim))),
        columns=[] if asked.color is None else [asked.color],
        seed=asked.seed,
        timeout_s=timeout_s,
        allow_partial=asked.allow_partial,
    )
    marked = np.empty((0, now.dim), np.float32)
    if asked.marks:
        marked = await lookups.vectors(now.router, asked.marks, now.dim, decoded=True, timeout_s=timeout_s)
    query = np.array([asked.vector or []], np.float32)
    points = await asyncio.to_thread(_placed, table, sample, marked, query, now.metric, asked.seed)
    return Looked({"rows": rows, **points} | found.status)


def _placed(table: Any, sample: Any, marked: Any, query: Any, metric: str, seed: int) -> dict[str, Any]:
    directions = Directions(sample, metric, seed)
    values = None
    if table.num_columns > 1:
        if pa.types.is_nested(table.schema.field(1).type):
            raise InvalidArgumentError("a map is colored by a column of single values", argument="color")
        values = [one[:VALUE_MAX] if isinstance(one, str) else one for one in table.column(1).to_pylist()]
    return {
        "ids": table.column(0).to_pylist() if table.num_columns else [],
        "points": _rounded(directions.points),
        "values": values,
        "marks": _rounded(directions(marked)),
        "query": _rounded(directions(query))[0] if query.size else None,
        "shares": [round(share, 4) for share in directions.shares],
    }


def _rounded(points: Any) -> list[list[float]]:
    return [[float(x), float(y)] for x, y in np.round(points, 4)]
