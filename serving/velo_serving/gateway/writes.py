"""Writes over HTTP: insert, upsert, update, delete, flush, optimize."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, Field
from pydantic_core import to_json

from velo_serving.gateway import bodies
from velo_serving.gateway.logs import note
from velo_serving.gateway.operations import query_parameters
from velo_serving.gateway.schemas import parsed, refuse_query
from velo_serving.gateway.write_bodies import BODIES, WriteOptions, parse_write
from velo_serving.routing import writes as collection_writes
from velo_serving.routing.served import Generation
from velo_serving.routing.writes import Upkeep, Verb
from velo_serving.words.limits import GatewayLimits

__all__ = ["WRITE_ROUTES", "WriteRoute", "write_body"]


class WriteAnswer(BaseModel):
    """What became of a write."""

    rows: Annotated[int, Field(description="Rows that it changed.")]
    missing: Annotated[int, Field(description="Ids that no row had.")]
    replaced: Annotated[int, Field(description="Of an upsert: rows that took the place of others.")]
    first_id: Annotated[
        int | None, Field(description="Where the collection numbers its rows: the id of the first one.")
    ]
    repeated: Annotated[bool, Field(description="A request of this `request_id` was done before.")]
    durable: Annotated[bool, Field(description="It is on the device already.")]
    pressure: Annotated[float, Field(description="How full the memory for new rows is; at 1 writes wait.")]
    sequences: Annotated[
        dict[str, int], Field(description="The number of the change, of each shard that had a part in it.")
    ]
    took_ms: float


class UpkeepAnswer(BaseModel):
    """Whether it is done; else it goes on."""

    done: bool
    took_ms: float


Work = Callable[[str, bytes, list[tuple[str, str]], Generation, GatewayLimits, float], Awaitable[bytes]]


class WriteRoute(NamedTuple):
    """A path below a collection, and what it does."""

    what: str
    summary: str
    media_types: tuple[str, ...]
    answer: type[BaseModel]
    work: Work


def write_body(route: WriteRoute) -> dict[str, Any]:
    """What the OpenAPI page says of a body."""
    binary = {"type": "string", "format": "binary"}
    content: dict[str, Any] = {bodies.JSON: {"schema": BODIES[route.what].model_json_schema()}}
    told: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if bodies.ARROW in route.media_types:
        words = "Columns `vector` and `id`, and those of the metadata; options are in the query string."
        content[bodies.ARROW] = {"schema": binary | {"description": words}}
        told["parameters"] = query_parameters(WriteOptions)
    return told


def _took_ms(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


async def _write(
    verb: Verb,
    media_type: str,
    body: bytes,
    pairs: list[tuple[str, str]],
    now: Generation,
    limits: GatewayLimits,
    started: float,
) -> bytes:
    rows = collection_writes.row_format(now.router)
    parse = partial(parse_write, verb, media_type, body, pairs, dim=now.dim, rows=rows, limits=limits)
    request = await asyncio.to_thread(parse) if len(body) > limits.inline_bytes_max else parse()
    note(version=now.version, rows=request.count)
    wrote = await collection_writes.write(now.router, request)
    return to_json(
        {
            "rows": wrote.rows,
            "missing": wrote.missing,
            "replaced": wrote.replaced,
            "first_id": wrote.first_id,
            "repeated": wrote.repeated,
            "durable": wrote.durable,
            "pressure": wrote.pressure,
            "sequences": dict(wrote.sequences),
            "took_ms": _took_ms(started),
        }
    )


async def _keep_up(
    what: Upkeep,
    media_type: str,
    body: bytes,
    pairs: list[tuple[str, str]],
    now: Generation,
    limits: GatewayLimits,
    started: float,
) -> bytes:
    refuse_query(pairs)
    asked: Any = parsed(BODIES[what], body or b"{}")
    timeout_s = None if asked.timeout_ms is None else asked.timeout_ms / 1000
    done = await collection_writes.keep_up(
        now.router, what, wait=getattr(asked, "wait", True), timeout_s=timeout_s
    )
    return to_json({"done": done, "took_ms": _took_ms(started)})


def _rows(verb: Verb, summary: str) -> WriteRoute:
    return WriteRoute(verb, summary, (bodies.JSON, bodies.ARROW), WriteAnswer, partial(_write, verb))


def _upkeep(what: Upkeep, summary: str) -> WriteRoute:
    return WriteRoute(what, summary, (bodies.JSON,), UpkeepAnswer, partial(_keep_up, what))


WRITE_ROUTES: Final = (
    _rows("insert", "Add rows"),
    _rows("upsert", "Add or replace rows"),
    _rows("update", "Change columns of rows"),
    _rows("delete", "Delete rows by id or filter"),
    _upkeep("flush", "Make a part of new rows, and put everything on the device"),
    _upkeep("optimize", "Make one part of all rows"),
)
