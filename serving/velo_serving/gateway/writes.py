"""Writes over HTTP: insert, upsert, update, delete, flush, optimize."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from velo_serving.gateway import bodies
from velo_serving.gateway.logs import note
from velo_serving.gateway.schemas import parsed, refuse_query, seconds, took_ms
from velo_serving.gateway.write_bodies import BODIES, parse_write
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.routing import writes as collection_writes
from velo_serving.routing.served import Generation
from velo_serving.routing.writes import Maintenance, Verb


class WriteAnswer(Struct):
    """The result of a write."""

    rows: Annotated[int, Meta(description="Rows that it changed.")]
    missing: Annotated[int, Meta(description="Ids that no row had.")]
    replaced: Annotated[int, Meta(description="Of an upsert: rows that took the place of others.")]
    first_id: Annotated[
        int | None, Meta(description="Where the collection numbers its rows: the id of the first one.")
    ]
    repeated: Annotated[bool, Meta(description="A request of this `request_id` was done before.")]
    durable: Annotated[bool, Meta(description="It is on the device already.")]
    pressure: Annotated[float, Meta(description="How full the memory for new rows is; at 1 writes wait.")]
    sequences: Annotated[
        dict[str, int], Meta(description="The number of the change, of each shard that had a part in it.")
    ]
    took_ms: float


class MaintenanceAnswer(Struct):
    """Whether it is done; else it goes on."""

    done: bool
    took_ms: float


Work = Callable[[str, bytes, list[tuple[str, str]], Generation, GatewayLimits, float], Awaitable[bytes]]


class WriteRoute(NamedTuple):
    """A path below a collection, and what it does."""

    what: str
    summary: str
    media_types: tuple[str, ...]
    answer: type[Struct]
    work: Work


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
    told = {one.name: getattr(wrote, one.name) for one in dataclasses.fields(wrote)}
    return msgspec.json.encode(WriteAnswer(**told, took_ms=took_ms(started)))


async def _keep_up(
    what: Maintenance,
    media_type: str,
    body: bytes,
    pairs: list[tuple[str, str]],
    now: Generation,
    limits: GatewayLimits,
    started: float,
) -> bytes:
    refuse_query(pairs)
    asked: Any = parsed(BODIES[what], body or b"{}")
    wait = getattr(asked, "wait", True)
    done = await collection_writes.keep_up(now.router, what, wait=wait, timeout_s=seconds(asked.timeout_ms))
    return msgspec.json.encode(MaintenanceAnswer(done, took_ms(started)))


def _rows(verb: Verb, summary: str) -> WriteRoute:
    return WriteRoute(verb, summary, (bodies.JSON, bodies.ARROW), WriteAnswer, partial(_write, verb))


def _maintenance(what: Maintenance, summary: str) -> WriteRoute:
    return WriteRoute(what, summary, (bodies.JSON,), MaintenanceAnswer, partial(_keep_up, what))


WRITE_ROUTES: Final = (
    _rows("insert", "Add rows"),
    _rows("upsert", "Add or replace rows"),
    _rows("update", "Change columns of rows"),
    _rows("delete", "Delete rows by id or filter"),
    _maintenance("flush", "Make a part of new rows, and put everything on the device"),
    _maintenance("optimize", "Make one part of all rows"),
)
