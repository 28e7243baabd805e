"""Writes over HTTP: insert, upsert, update, delete, flush, optimize."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from velo_serving.gateway.logs import note
from velo_serving.gateway.operations import WRITE_ERRORS, Call, Operation
from velo_serving.gateway.schemas import parsed, refuse_query, seconds, took_ms
from velo_serving.gateway.write_bodies import BODIES, WriteOptions, parse_write
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


async def _write(verb: Verb, call: Call, now: Generation) -> WriteAnswer:
    rows = collection_writes.row_format(now.router)
    parse = partial(parse_write, verb, *call[:3], dim=now.dim, rows=rows, limits=call.limits)
    apart = len(call.body) > call.limits.inline_bytes_max
    request = await asyncio.to_thread(parse) if apart else parse()
    note(version=now.version, rows=request.count)
    wrote = await collection_writes.write(now.router, request)
    fields = {one.name: getattr(wrote, one.name) for one in dataclasses.fields(wrote)}
    return WriteAnswer(**fields, took_ms=took_ms(call.started))


async def _keep_up(what: Maintenance, call: Call, now: Generation) -> MaintenanceAnswer:
    refuse_query(call.pairs)
    asked: Any = parsed(BODIES[what], call.body or b"{}")
    wait = getattr(asked, "wait", True)
    done = await collection_writes.keep_up(now.router, what, wait=wait, timeout_s=seconds(asked.timeout_ms))
    return MaintenanceAnswer(done, took_ms(call.started))


def _rows(verb: Verb, summary: str) -> Operation:
    return Operation(
        verb,
        summary,
        BODIES[verb],
        WriteAnswer,
        WRITE_ERRORS,
        partial(_write, verb),
        "write",
        "Columns `vector` and `id`, and those of the metadata; options in the query string.",
        WriteOptions,
    )


def _maintenance(what: Maintenance, summary: str) -> Operation:
    work = partial(_keep_up, what)
    return Operation(what, summary, BODIES[what], MaintenanceAnswer, WRITE_ERRORS, work, "write")


WRITES: Final = (
    _rows("insert", "Add rows"),
    _rows("upsert", "Add or replace rows"),
    _rows("update", "Change columns of rows"),
    _rows("delete", "Delete rows by id or filter"),
    _maintenance("flush", "Make a part of new rows, and put everything on the device"),
    _maintenance("optimize", "Make one part of all rows"),
)
