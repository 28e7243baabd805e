"""A collection of local shards, open as one index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from velo.errors import UnknownIdError
from velo.filters.arrow_values import arrow_of
from velo.folder.ids import checked_ids
from velo.folder.metadata import given_metadata
from velo.folder.opened import shown
from velo.folder.snapshot import snapshot
from velo.index.folder import OpenFolder, index_info
from velo.index.index import Index, Resources
from velo.index.shard_writer import ShardWriter
from velo.options import folder_path
from velo.types import PathLike


class ShardedIndex(Index):
    """A collection of shards, open in this process; :func:`velo.open` makes it.

    It has all methods of :class:`Index`, and searches its shards as one index does its segments: one native
    call, one bound, one set of workers. A budget is divided by rows.

    **A write is atomic within each shard**, not over all: what can be refused is refused before any shard
    writes, and where one fails after others have written, the error says which did. An id that a row has
    stays in that row's shard, a new one goes to the shard that its hash names; where velo numbers the rows,
    new ones go to the last shard. Writes through one object come one after the other, and inserts and upserts
    of several processes, too.

    Attributes
    ----------
    path : pathlib.Path
    n, dim : int
    metric : {"l2", "ip", "cosine"}
    shards : tuple of Index
        One for each shard; to close one closes the collection.
    """

    def __init__(
        self,
        path: Path,
        resources: Resources,
        folders: Sequence[OpenFolder],
        reopen: partial[Any],
        names: Sequence[str],
    ) -> None:
        is_writable = folders[0].compactor is not None
        self._names = names
        self._sharded = ShardWriter(folders, names, resources.guard) if is_writable else None
        super().__init__(path, resources, folders, reopen, self._sharded)
        writers = [None] * len(folders) if self._sharded is None else self._sharded.writers
        self.shards = tuple(
            Index(folder.opened.path, resources, [folder], reopen, writer)
            for folder, writer in zip(folders, writers, strict=True)
        )

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"velo.ShardedIndex({shown(self.path)!r}, n={self.n}, shards={len(self.shards)}{state})"

    def info(self) -> dict[str, Any]:
        """Describe the collection and its cost.

        Returns
        -------
        dict
            As :meth:`Index.info` of the largest shard, with rows and bytes of all, and ``shards``: the
            description of each one, with its changes.
        """
        with self._guard.inside():
            views = self._snapshot().views
            infos = [index_info(one, view) for one, view in zip(self._folders, views, strict=True)]
        summed = (
            "n",
            "page_count",
            "memory_bytes_total",
            "memory_within_budget_bytes",
            "memory_beside_budget_bytes",
        )
        budgets = [info["memory_budget_bytes"] for info in infos]
        return {
            **max(infos, key=lambda info: info["n"]),
            "path": str(self.path),
            **{name: sum(info[name] for info in infos) for name in summed},
            **{name: _summed([info[name] for info in infos]) for name in ("memory_bytes", "column_bytes")},
            "memory_budget_bytes": None if None in budgets else sum(budgets),
            "cache_refused": any(info["cache_refused"] for info in infos),
            "disk_bytes": {
                f"{name}/{file}": size
                for name, info in zip(self._names, infos, strict=True)
                for file, size in info["disk_bytes"].items()
            },
            "live": None,
            "shards": infos,
        }

    def snapshot(self, path: PathLike) -> None:
        """Make another folder a collection that holds what this one holds now, as :meth:`Index.snapshot`.

        Parameters
        ----------
        path : path
            Writes of another process during the call may be in some shards of the copy and not in others.
        """
        with self._guard.inside():
            if self._sharded is None:
                snapshot(self.path, folder_path(path), self._names)
                return
            with self._sharded.lock:
                snapshot(self.path, folder_path(path), self._names)

    def _change_metadata(self, table: Any, **how: Any) -> None:
        at = self._snapshot()
        name = how.get("ids_column")
        given = given_metadata(table, at.n).table()
        places = np.repeat(np.arange(len(self._folders)), [view.n for view in at.views])
        if name is not None and name in given.column_names:
            vertices = at.ids.find(checked_ids(given.column(name)))
            if (vertices < 0).any():
                row = int(np.argmax(vertices < 0))
                one = given.column(name)[row].as_py()
                raise UnknownIdError(f"no vector has the id {one!r}", argument="ids_column", row=row)
            places = at.view_of(vertices)
        for place, folder in enumerate(self._folders):
            folder.change_metadata(given.take(arrow_of(np.flatnonzero(places == place))), **how)


def _summed(segments: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(segment.get(name, 0) for segment in segments) for name in segments[0]}
