"""The share of memory and cores of each shard, and the check that it belongs to its collection."""

from __future__ import annotations

import os
from typing import Any

from velo.errors import DimensionMismatchError
from velo.options import memory_bytes
from velo_serving.catalog.collection import Collection
from velo_serving.protocol.types import ShardHealth


def share_of_cores(shards: int) -> int:
    """Threads of each of some shards on this machine that nobody gave a number: they share its cores."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, shards))


def split_memory(collection: Collection, memory: Any) -> list[Any]:
    """Divide a budget for the whole collection among its shards."""
    if memory is None:
        return [None] * len(collection.shards)
    if len(collection.shards) == 1:
        return [memory]
    total = memory_bytes(memory, collection.n, collection.dim)
    return [total * entry.rows // collection.n for entry in collection.shards]


def check_shard(collection: Collection, health: ShardHealth, name: str) -> None:
    """Refuse a shard that does not belong to its collection."""
    if collection.dim and (health.dim, health.metric) != (collection.dim, collection.metric):
        raise DimensionMismatchError(
            f"shard {name} holds {health.dim} dimensions under {health.metric!r}, "
            f"its collection {collection.dim} under {collection.metric!r}",
            file=str(collection.path),
        )
