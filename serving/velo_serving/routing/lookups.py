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
from velo_serving.protocol.hits import joined
from velo_serving.protocol.types import Failure, Float32Matrix, ShardFailure
from velo_serving.routing.router import Router
from velo_serving.transport.codec import table_of

#: What becomes of ids that no row has.
UnknownIds: TypeAlias = Literal["error", "skip"]


@dataclass(frozen=True, slots=True)
class Found:
    """The replies of shards to a lookup, by their names, and how complete they are."""

    replies: Sequence[tuple[str, dict[str, Any]]]
    shards_total: int
    failures: tuple[ShardFailure, ...]

    @property
    def status(self) -> dict[str, Any]:
        answered = self.shards_total - len(self.failures)
        return {
            "shards_answered": answered,
            "shards_total": self.shards_total,
            "partial": answered < self.shards_total,
            "failures": [one.to_dict() for one in self.failures],
        }

    @property
    def by_shard(self) -> list[dict[str, Any]]:
        return [{"shard": name, **reply} for name, reply in self.replies]

    def table(self) -> pa.Table:
        return joined([table_of(reply["table"]) for _, reply in self.replies])


async def look_up(
    router: Router,
    what: str,
    arguments: Mapping[str, Any],
    timeout_s: float | None = None,
    *,
    allow_partial: bool = True,
) -> Found:
    """Look up something in all shards."""
    return _found(router, await router.look_up(what, arguments, timeout_s), allow_partial)


def _found(
    router: Router, replies: Sequence[tuple[str, dict[str, Any] | Failure]], allow_partial: bool
) -> Found:
    found = [(name, reply) for name, reply in replies if not isinstance(reply, Failure)]
    failures = tuple(ShardFailure(name, reply) for name, reply in replies if isinstance(reply, Failure))
    if not found or (failures and not allow_partial):
        raise NoShardAnsweredError(
            f"{len(found)} of {len(replies)} shards of {router.name!r} answered ({_reasons(failures)})"
        )
    return Found(found, len(replies), failures)


def _reasons(failures: Sequence[ShardFailure]) -> str:
    return "; ".join(f"{one.shard}: {one.failure.message}" for one in failures)


async def get(
    router: Router,
    ids: Sequence[Any],
    columns: Sequence[str] | bool,
    *,
    unknown: UnknownIds,
    timeout_s: float | None,
    allow_partial: bool,
) -> tuple[pa.Table, Found]:
    """Rows of ids, as ``velo.Index.get``; an id that only an absent shard may have is an error."""
    arguments = {"filter": list(ids), "limit": len(ids), "columns": columns}
    try:
        found = await look_up(router, "rows", arguments, timeout_s, allow_partial=allow_partial)
    except FilterTypeError as error:
        why = error.message.removeprefix("filter ")
        raise InvalidArgumentError(f"ids: {why}", argument="ids") from error
    table = found.table()
    places = pc.index_in(pa.array(ids, table["id"].type), table["id"])
    if places.null_count and unknown == "error":
        row = places.is_null().index(True).as_py()
        if found.failures:
            raise NoShardAnsweredError(f"id {ids[row]!r} may be in lost shards ({_reasons(found.failures)})")
        raise UnknownIdError(f"no vector has the id {ids[row]!r}", argument="ids", row=row)
    return table.take(places.drop_null()), found


async def rows(
    router: Router,
    condition: Any,
    *,
    limit: int,
    after: int | str | None,
    columns: Sequence[str] | bool,
    timeout_s: float | None,
) -> pa.Table:
    """A page of rows in the order of ids, as ``velo.Index.rows``; all shards must answer."""
    arguments = {"filter": condition, "limit": limit, "after": after, "columns": columns}
    found = await look_up(router, "rows", arguments, timeout_s, allow_partial=False)
    return found.table().sort_by("id").slice(0, limit)


async def vectors(
    router: Router, ids: Sequence[Any], dim: int, *, decoded: bool = False, timeout_s: float | None = None
) -> Float32Matrix:
    """The stored vectors of ids; if ``decoded``, approximations for rows without them."""
    arguments = {"ids": list(ids), "decoded": decoded}
    found = await look_up(router, "vectors", arguments, timeout_s, allow_partial=False)
    by_id: dict[Any, Any] = {}
    for _, reply in found.replies:
        matrix = np.frombuffer(reply["vectors"], "<f4").reshape(len(reply["ids"]), dim)
        by_id |= zip(reply["ids"], matrix, strict=True)
    for row, one in enumerate(ids):
        if one not in by_id:
            raise UnknownIdError(f"no vector has the id {one!r}", argument="ids", row=row)
    return np.stack([by_id[one] for one in ids]).astype(np.float32)


async def sample(
    router: Router,
    condition: Any,
    dim: int,
    *,
    limit: int,
    columns: Sequence[str],
    seed: int,
    timeout_s: float | None,
    allow_partial: bool,
) -> tuple[pa.Table, Float32Matrix, int, Found]:
    """Draw rows and vectors at random, from each shard its share; also the number of rows that pass."""
    counts = await router.look_up("count", {"filter": condition}, timeout_s)
    found = _found(router, counts, allow_partial)
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
        drawn = _found(router, replies, allow_partial)
        parts = [table_of(reply["table"]) for _, reply in drawn.replies]
        matrices += [np.frombuffer(reply["vectors"], "<f4").reshape(-1, dim) for _, reply in drawn.replies]
        found = replace(drawn, shards_total=len(counts), failures=(*found.failures, *drawn.failures))
    table = joined(parts).slice(0, limit) if parts else pa.table({})
    return table, np.concatenate(matrices)[:limit], total, found
