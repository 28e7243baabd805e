"""The instructions of a shard's process: the index that it opens, and the options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The path and options of the index of a shard; it pickles and stays small.

    ``follows`` means that another process writes to the index. An index from a store must have ``checksum``;
    a folder must hold the index with ``uuid``. A shard that was moved reports the ``identity`` that it had
    before. ``processor`` is the first that its threads run on, since the
    library binds those of each process from the first one on. Other options are those of ``velo.open``.
    """

    name: str
    path: str
    memory: int | float | str | None = None
    threads: int | None = None
    io: str = "auto"
    plan: str = "auto"
    writable: bool = False
    durability: str = "sync"
    follows: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    locations: tuple[str, ...] = ()
    checksum: str = ""
    uuid: str = ""
    identity: str = ""
    processor: int | None = None

    def of_replica(self, replica: int) -> ShardSpec:
        """The specification of a replica: the first one writes, the others follow its writes."""
        if not self.writable or replica == 0:
            return self
        return dataclasses.replace(self, writable=False, follows=True)
