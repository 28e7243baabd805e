"""Placement of rows, and a write to a collection as writes to its shards.

A known id stays in its shard. A new one goes to its home, the shard that its hash names, or to the last shard
if the index numbers its rows. An id is in one shard at most, however many gateways write:

- New rows of an id go to its home only.
- A shard that is not the home of an id replaces its row only while the row exists, without a delete in
  between (``shard.rows``). If the row was deleted, the gateway looks again.

Each shard gets a request name that covers the ids sent to it (``_name_of``): a retry that places rows
elsewhere must not be taken for a repetition.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velo.errors import BusyError, DuplicateIdError, InvalidArgumentError, ReadOnlyError, VeloError
from velo.folder.shards import homes
from velo_serving.protocol.errors import (
    BodyTooLargeError,
    DeadlineExceededError,
    NoShardAnsweredError,
    PartialWriteError,
    outcome_of,
)
from velo_serving.protocol.types import Failure, FilterForm
from velo_serving.routing.router import Router
from velo_serving.transport.codec import stream_of, stream_of_ids

Verb: TypeAlias = Literal["insert", "upsert", "update", "delete"]
Maintenance: TypeAlias = Literal["flush", "optimize"]
Places: TypeAlias = npt.NDArray[np.int64]

#: Attempts to place rows that are deleted at the same time.
LOOKS_MAX: Final = 5

#: The limit of one call to a shard, below that of frames (``transport.server.ServerLimits``).
ARGUMENTS_BYTES_MAX: Final = 48 << 20


@dataclass(frozen=True, slots=True, eq=False)
class WriteRequest:
    """A write to a collection: ``columns`` are metadata, ``filter`` that of a delete.

    A shard that completed the ids of a ``request_id`` does not write them again.
    """

    verb: Verb
    vectors: npt.NDArray[Any] | None = None
    ids: Any = None
    columns: pa.Table | None = None
    filter: FilterForm | None = None
    request_id: str | None = None
    timeout_s: float | None = None

    @property
    def count(self) -> int:
        if self.ids is not None:
            return len(self.ids)
        return 0 if self.vectors is None else len(self.vectors)


@dataclass(frozen=True, slots=True)
class Wrote:
    """The result of a write in all shards, as ``velo.Written``; ``sequences`` are those of shards."""

    rows: int
    missing: int
    replaced: int
    first_id: int | None
    repeated: bool
    durable: bool
    pressure: float
    sequences: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The format of a collection's rows; ``numbered`` if the index numbers them."""

    dtype: np.dtype[Any]
    schema: pa.Schema
    numbered: bool


def row_format(router: Router) -> RowFormat:
    """The format of a collection's rows, as its shards last reported it."""
    found: RowFormat | None = None
    for name, health in zip(router.names, router.healths, strict=True):
        if health is None or health.failure is not None:
            raise NoShardAnsweredError(
                f"shard {name} of {router.name!r} does not say what its rows are like; nothing was written"
            )
        details = health.details
        if not details.get("writable"):
            raise ReadOnlyError(f"{router.name!r} is served to read: start velo serve with --writable")
        if found is None:
            found = _format_of(str(details["dtype"]), str(details["schema"]), bool(details["numbered"]))
    assert found is not None  # a router has shards
    return found


def _format_of(dtype: str, schema: str, numbered: bool) -> RowFormat:
    key = (dtype, schema, numbered)
    known = _FORMATS.get(key)
    if known is None:
        known = RowFormat(np.dtype(dtype), pa.ipc.read_schema(pa.py_buffer(b64decode(schema))), numbered)
        _FORMATS.clear()  # few differ at a time
        _FORMATS[key] = known
    return known


_FORMATS: dict[tuple[str, str, bool], RowFormat] = {}


async def write(router: Router, request: WriteRequest) -> Wrote:
    outcome, changed = "error", 0
    try:
        wrote = await _write(router, request)
        outcome, changed = "done", wrote.rows
        return wrote
    except Exception as error:
        outcome, changed = outcome_of(error), getattr(error, "rows", 0)
        raise
    finally:
        router.note_write(request.verb, outcome, changed)


async def _write(router: Router, request: WriteRequest) -> Wrote:
    rows = row_format(router)
    limit_s = router.limits.timeout_default_s if request.timeout_s is None else request.timeout_s
    deadline = time.monotonic() + min(limit_s, router.limits.timeout_max_s)
    shards = router.shards_total
    if request.verb in ("update", "delete"):
        return await _of_all(router, request, deadline)
    if shards == 1:
        replies = await router.write(request.verb, {0: _arguments(request, None)}, _left(deadline))
        return _wrote(router, request, replies)
    if request.ids is None:
        if not rows.numbered:
            raise InvalidArgumentError("this collection needs an id for each row", argument="ids")
        # Only the numbers after those of the last shard are free.
        last = shards - 1
        replies = await router.write(request.verb, {last: _arguments(request, None)}, _left(deadline))
        return _wrote(router, request, replies)
    if request.verb == "insert" and rows.numbered:
        raise InvalidArgumentError(
            "this collection numbers its rows itself: insert them without ids", argument="ids"
        )
    return await _spread(router, request, rows, deadline)


async def keep_up(router: Router, what: Maintenance, *, wait: bool, timeout_s: float | None) -> bool:
    """Flush or optimize all shards; return whether all are done."""
    row_format(router)
    asked = {place: {"wait": wait} for place in range(router.shards_total)}
    replies = await router.write(what, asked, timeout_s)
    failures = {place: reply for place, reply in replies.items() if isinstance(reply, Failure)}
    if failures:
        raise _failure(router, failures, len(replies) - len(failures), 0)
    return all(reply["done"] for reply in replies.values() if not isinstance(reply, Failure))


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


async def _of_all(router: Router, request: WriteRequest, deadline: float) -> Wrote:
    """An update or a delete: each shard changes its own rows."""
    arguments = _arguments(request, None)
    asked = dict.fromkeys(range(router.shards_total), arguments)
    replies = await router.write(request.verb, asked, _left(deadline))
    wrote = _wrote(router, request, replies)
    if request.ids is None:
        return wrote
    unique = np.unique(request.ids) if isinstance(request.ids, np.ndarray) else request.ids.unique()
    return dataclasses.replace(wrote, missing=max(0, len(unique) - wrote.rows))


async def _spread(router: Router, request: WriteRequest, rows: RowFormat, deadline: float) -> Wrote:
    """An insert or upsert of rows with ids: each goes to its own shard."""
    ids, shards = request.ids, router.shards_total
    home = homes(ids, shards, numbered=rows.numbered)
    todo: Places = np.arange(len(ids))
    replies: list[tuple[int, dict[str, Any] | Failure]] = []
    for _ in range(LOOKS_MAX):
        found = await _where(router, _taken(ids, todo), deadline)
        if request.verb == "insert":
            _refuse_known(request, found, home)
        target = np.where(found < 0, home[todo], found)
        asked: dict[int, dict[str, Any]] = {}
        parts: dict[int, Places] = {}
        for place in np.unique(target).tolist():
            inside = np.flatnonzero(target == place)
            parts[place] = todo[inside]
            stays = todo[inside[home[todo[inside]] != place]]
            asked[place] = _arguments(request, parts[place])
            if request.request_id is not None:
                asked[place]["request"] = _name_of(request.request_id, _taken(ids, parts[place]))
            if len(stays):
                asked[place]["expected"] = stream_of_ids(_taken(ids, stays))
        answers = await _write_in_order(router, request, asked, set(found.tolist()), deadline)
        moved = [place for place, one in answers.items() if not isinstance(one, Failure) and "moved" in one]
        replies += [(place, one) for place, one in answers.items() if place not in moved]
        if not moved:
            return _wrote(router, request, replies)
        # In the order of the request: the last row of an id counts, and names go by the order, too.
        todo = np.sort(np.concatenate([parts[place] for place in moved]))
    busy = Failure.of(BusyError("others delete the same rows all the time: try again"))
    return _wrote(router, request, [*replies, *((place, busy) for place in moved)])


async def _write_in_order(
    router: Router, request: WriteRequest, asked: Mapping[int, Any], known: set[int], deadline: float
) -> dict[int, dict[str, Any] | Failure]:
    """Write to all shards concurrently; a named insert asks shards that have some of its ids first.

    They report a repetition, or a duplicate, in which case no other shard writes.
    """
    first = {place: one for place, one in asked.items() if place in known}
    if request.verb != "insert" or not first:
        return await router.write(request.verb, asked, _left(deadline))
    answers = await router.write(request.verb, first, _left(deadline))
    rest = {place: one for place, one in asked.items() if place not in first}
    if rest and not any(isinstance(one, Failure) for one in answers.values()):
        answers |= await router.write(request.verb, rest, _left(deadline))
    return answers


def _refuse_known(request: WriteRequest, found: Places, home: Places) -> None:
    """Refuse an insert of existing ids; a repeated request finds its own rows in their home shards."""
    known = found >= 0
    if request.request_id is not None:
        known &= found != home
    if known.any():
        row = int(np.argmax(known))
        one = request.ids[row]
        raise DuplicateIdError(
            f"ids: {one.item() if isinstance(request.ids, np.ndarray) else one.as_py()!r} of row {row} "
            "is there already",
            argument="ids",
            row=row,
        )


async def _where(router: Router, ids: Any, deadline: float) -> Places:
    """The shard of each id, -1 for unknown ones."""
    asked = {"ids": stream_of_ids(ids)}
    replies = await router.look_up("present", asked, _left(deadline))
    away = [(name, reply) for name, reply in replies if isinstance(reply, Failure)]
    if away:
        reasons = "; ".join(f"{name}: {reply.message}" for name, reply in away)
        message = f"shards of {router.name!r} may have these ids and do not say; nothing was written"
        if all(reply.fault == "deadline" for _, reply in away):
            raise DeadlineExceededError(f"{message} ({reasons})")
        raise NoShardAnsweredError(f"{message} ({reasons})")
    found: Places = np.full(len(ids), -1, np.int64)
    for place, (_, reply) in enumerate(replies):
        assert not isinstance(reply, Failure)
        found[np.frombuffer(reply["present"], "<u4").astype(np.int64)] = place
    return found


def _name_of(request_id: str, ids: Any) -> str:
    """The request name for the shard that gets these ids."""
    numbers = isinstance(ids, np.ndarray)
    digest = hashlib.blake2b(digest_size=32)
    for one in [request_id] if numbers else [request_id, *ids.to_pylist()]:
        plain = one.encode()
        digest.update(len(plain).to_bytes(8, "little") + plain)
    if numbers:
        digest.update(np.ascontiguousarray(ids, "<i8").tobytes())
    return digest.hexdigest()


def _taken(values: Any, rows: Places) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else values.take(pa.array(rows))


def _arguments(request: WriteRequest, rows: Places | None) -> dict[str, Any]:
    vectors, ids, columns = request.vectors, request.ids, request.columns
    if rows is not None and len(rows) < request.count:
        vectors = None if vectors is None else vectors[rows]
        ids = None if ids is None else _taken(ids, rows)
        columns = None if columns is None else columns.take(rows)
    arguments: dict[str, Any] = {}
    if vectors is not None:
        plain = np.ascontiguousarray(vectors)
        arguments |= {"vectors": plain.tobytes(), "dtype": plain.dtype.str, "dim": plain.shape[1]}
    if ids is not None:
        arguments["ids"] = stream_of_ids(ids)
    if columns is not None:
        arguments["columns"] = stream_of(columns)
    if request.filter is not None:
        arguments["filter"] = request.filter
    if request.request_id is not None:
        arguments["request"] = request.request_id
    size = sum(len(one) for one in arguments.values() if isinstance(one, bytes))
    if size > ARGUMENTS_BYTES_MAX:
        raise BodyTooLargeError(
            f"the rows take {size} bytes, more than the {ARGUMENTS_BYTES_MAX} that go to a shard at once: "
            "give fewer a request"
        )
    return arguments


def _wrote(
    router: Router,
    request: WriteRequest,
    replies: Mapping[int, dict[str, Any] | Failure] | Sequence[tuple[int, dict[str, Any] | Failure]],
) -> Wrote:
    """Combine the results of shards, or raise their error."""
    pairs = list(replies.items()) if isinstance(replies, Mapping) else list(replies)
    wrote = [(place, one) for place, one in pairs if not isinstance(one, Failure)]
    failures = {place: one for place, one in pairs if isinstance(one, Failure)}
    rows = sum(int(one["rows"]) for _, one in wrote)
    if failures:
        raise _failure(router, failures, len(wrote), rows)
    first = [one["first_id"] for _, one in wrote if one.get("first_id") is not None]
    names = router.names
    return Wrote(
        rows=rows,
        missing=sum(int(one["missing"]) for _, one in wrote),
        replaced=sum(int(one.get("replaced", 0)) for _, one in wrote),
        first_id=first[0] if first else None,
        repeated=bool(wrote) and all(one.get("repeated", False) for _, one in wrote),
        durable=all(one["durable"] for _, one in wrote),
        pressure=max((float(one.get("pressure", 0.0)) for _, one in wrote), default=0.0),
        sequences={names[place]: int(one["sequence"]) for place, one in wrote},
    )


def _failure(router: Router, failures: Mapping[int, Failure], done: int, rows: int) -> VeloError:
    """The common error of all shards, or a ``PartialWriteError``."""
    first = next(iter(failures.values()))
    if done == 0 and all(one.kind == first.kind for one in failures.values()):
        return first.to_error()
    reasons = "; ".join(f"{router.names[place]}: {one.message}" for place, one in failures.items())
    return PartialWriteError(
        f"{len(failures)} of {len(failures) + done} shards of {router.name!r} did not write ({reasons}); "
        "to repeat it with the same request_id does what is missing",
        shards=tuple(router.names[place] for place in failures),
        rows=rows,
    )
