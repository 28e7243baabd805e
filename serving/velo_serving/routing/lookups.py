"""Lookups of rows without a search: each shard runs ``shard.look_up``, and the results are merged here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import FilterTypeError, InvalidArgumentError, UnknownIdError
from velo_serving.protocol.errors import NoShardAnsweredError
from velo_serving.protocol.types import Failure, Float32Matrix, ShardFailure
from velo_serving.routing.router import Router
from velo_serving.transport.codec import table_of

#: What becomes of ids that no row has.
UnknownIds: TypeAlias = Literal["error", "skip"]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a lookup, and how complete it is."""

    value: Any
    shards_answered: int
    shards_total: int
    failures: tuple[ShardFailure, ...] = ()


async def _of_all(
    router: Router, what: str, arguments: Mapping[str, Any], timeout_s: float | None, allow_partial: bool
) -> tuple[list[tuple[str, dict[str, Any]]], Found]:
    return _status_of(router, await router.look_up(what, arguments, timeout_s), allow_partial)


def _status_of(
    router: Router, replies: Sequence[tuple[str, dict[str, Any] | Failure]], allow_partial: bool
) -> tuple[list[tuple[str, dict[str, Any]]], Found]:
    """The successful replies and their completeness."""
    found = [(name, reply) for name, reply in replies if not isinstance(reply, Failure)]
    failures = tuple(ShardFailure(name, reply) for name, reply in replies if isinstance(reply, Failure))
    if not found or (failures and not allow_partial):
        raise NoShardAnsweredError(
            f"{len(found)} of {len(replies)} shards of {router.name!r} answered ({_reasons(failures)})"
        )
    return found, Found(None, len(found), len(replies), failures)


def _reasons(failures: Sequence[ShardFailure]) -> str:
    return "; ".join(f"{one.shard}: {one.failure.message}" for one in failures)


async def count(
    router: Router, condition: Any, *, timeout_s: float | None = None, allow_partial: bool = True
) -> Found:
    found, status = await _of_all(router, "count", {"filter": condition}, timeout_s, allow_partial)
    total = sum(int(reply["count"]) for _, reply in found)
    return replace(status, value=total)


async def get(
    router: Router,
    ids: Sequence[Any],
    columns: Sequence[str] | bool,
    *,
    unknown: UnknownIds = "error",
    timeout_s: float | None = None,
    allow_partial: bool = True,
) -> Found:
    """Rows of ids, as ``velo.Index.get``; an id that only an absent shard may have is an error."""
    arguments = {"filter": list(ids), "limit": len(ids), "columns": columns}
    try:
        found, status = await _of_all(router, "rows", arguments, timeout_s, allow_partial)
    except FilterTypeError as error:
        why = error.message.removeprefix("filter ")
        raise InvalidArgumentError(f"ids: {why}", argument="ids") from error
    table = _one_table(found)
    places = pc.index_in(pa.array(ids, table["id"].type), table["id"])
    if places.null_count and unknown == "error":
        row = places.is_null().index(True).as_py()
        if status.failures:
            raise NoShardAnsweredError(f"id {ids[row]!r} may be in lost shards ({_reasons(status.failures)})")
        raise UnknownIdError(f"no vector has the id {ids[row]!r}", argument="ids", row=row)
    return replace(status, value=table.take(places.drop_null()))


async def rows(
    router: Router,
    condition: Any,
    *,
    limit: int,
    after: int | str | None,
    columns: Sequence[str] | bool,
    timeout_s: float | None = None,
) -> pa.Table:
    """A page of rows in the order of ids, as ``velo.Index.rows``; all shards must answer."""
    arguments = {"filter": condition, "limit": limit, "after": after, "columns": columns}
    found, _ = await _of_all(router, "rows", arguments, timeout_s, False)
    return _one_table(found).sort_by("id").slice(0, limit)


def _one_table(found: Sequence[tuple[str, Mapping[str, Any]]]) -> pa.Table:
    return pa.concat_tables([table_of(reply["table"]) for _, reply in found]).unify_dictionaries()


async def vectors(
    router: Router, ids: Sequence[Any], dim: int, *, decoded: bool = False, timeout_s: float | None = None
) -> Float32Matrix:
    """The stored vectors of ids; if ``decoded``, approximations for rows without them."""
    arguments = {"ids": list(ids), "decoded": decoded}
    found, _ = await _of_all(router, "vectors", arguments, timeout_s, False)
    by_id: dict[Any, Any] = {}
    for _, reply in found:
        matrix = np.frombuffer(reply["vectors"], "<f4").reshape(len(reply["ids"]), dim)
        by_id |= dict(zip(reply["ids"], matrix, strict=True))
    for row, one in enumerate(ids):
        if one not in by_id:
            raise UnknownIdError(f"no vector has the id {one!r}", argument="ids", row=row)
    matrix = np.stack([by_id[one] for one in ids])
    return matrix.astype(np.float32)


async def info(router: Router, *, timeout_s: float | None = None, allow_partial: bool = True) -> Found:
    found, status = await _of_all(router, "info", {}, timeout_s, allow_partial)
    return replace(status, value=[{"shard": name, **reply} for name, reply in found])


async def sample(
    router: Router,
    condition: Any,
    dim: int,
    *,
    limit: int,
    columns: Sequence[str],
    seed: int = 0,
    timeout_s: float | None = None,
    allow_partial: bool = True,
) -> Found:
    """Draw rows and vectors at random, from each shard its share; also the number of rows that pass."""
    counts = await router.look_up("count", {"filter": condition}, timeout_s)
    _, status = _status_of(router, counts, allow_partial)
    passing = {at: int(one["count"]) for at, (_, one) in enumerate(counts) if not isinstance(one, Failure)}
    total = sum(passing.values())
    common = {"filter": condition, "columns": list(columns), "seed": seed}
    arguments = {
        place: {**common, "limit": -(-min(limit, total) * rows // total)}
        for place, rows in passing.items()
        if rows
    }
    parts, matrices = [], [np.empty((0, dim), np.float32)]
    if arguments:
        replies = await router.look_up_each("sample", arguments, timeout_s)
        found, drawn = _status_of(router, replies, allow_partial)
        parts = [table_of(reply["table"]) for _, reply in found]
        matrices += [np.frombuffer(reply["vectors"], "<f4").reshape(-1, dim) for _, reply in found]
        missing = (*status.failures, *drawn.failures)
        status = Found(None, status.shards_total - len(missing), status.shards_total, missing)
    table = pa.concat_tables(parts).slice(0, limit) if parts else pa.table({})
    return replace(status, value=(table, np.concatenate(matrices)[:limit], total))


async def explain(router: Router, arguments: Mapping[str, Any], *, timeout_s: float | None = None) -> Found:
    found, status = await _of_all(router, "explain", arguments, timeout_s, True)
    value = [{"shard": name, **reply} for name, reply in found]
    return replace(status, value=value)
