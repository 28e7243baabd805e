"""The instructions of a shard's process: the index that it opens, and the options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The path and options of a shard's index; it pickles and stays small.

    Parameters
    ----------
    name : str
        Unique within the collection.
    path : str
        Folder of the index on the node that holds it, or its place in an object store.
    memory, threads, io, plan
        As in ``velo.open``.
    writable : bool
        Whether this process is the one that writes to the index.
    durability : {"sync", "interval", "process"}
        As in ``velo.open``.
    follows : bool
        Whether another process writes to the index, and this one is to see it.
    locations : tuple of str
        Where else the index may be found.
    checksum : str
        Of the index's manifest; what comes out of a store must have it.
    uuid : str
        Of the index that was built; a folder in which another one was built is refused.
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

    def of_replica(self, replica: int) -> ShardSpec:
        """The instructions of a replica: the first one writes, the others see its writes."""
        if not self.writable or replica == 0:
            return self
        return dataclasses.replace(self, writable=False, follows=True)
