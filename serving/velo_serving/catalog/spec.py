"""The instructions of a shard's process: the index that it opens, and the options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The path and options of the index of a shard; it pickles and stays small.

    An index from a store must have ``checksum``; a folder must hold the index with ``uuid``. A shard that was
    moved reports the ``identity`` that it had before. ``processor`` is the first that its threads run on,
    since the library binds those of each process from the first one on. Other options are those of
    ``velo.open``.
    """

    name: str
    path: str
    memory: int | float | str | None = None
    threads: int | None = None
    io: str = "auto"
    plan: str = "auto"
    writable: bool = False
    durability: str = "sync"
    options: Mapping[str, Any] = field(default_factory=dict)
    locations: tuple[str, ...] = ()
    checksum: str = ""
    uuid: str = ""
    identity: str = ""
    processor: int | None = None
