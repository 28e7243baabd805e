"""The folder in which clients make collections, and what they may make there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import velo
from velo.errors import InvalidArgumentError, NotAnIndexError, UnsupportedError
from velo.folder.remove import is_half_removed, remove_index
from velo.folder.snapshot import snapshot
from velo_serving.catalog.collection import Collection, checked_name, read_collection
from velo_serving.protocol.types import Shape

#: What one server serves, with what clients make: each has threads and a process of its own.
COLLECTIONS_MAX: Final = 256

_SUFFIX: Final = ".velo"


class Root:
    """A folder of collections: all that are there are served, and others come and go."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        if not self.folder.is_dir():
            raise InvalidArgumentError(f"{folder} is no folder", argument="root")

    def paths(self) -> list[Path]:
        """The folders of collections; removals that were interrupted are finished first."""
        found = []
        for path in sorted(self.folder.glob(f"*{_SUFFIX}")):
            if is_half_removed(path):
                remove_index(path)
            try:
                read_collection(path)
            except NotAnIndexError:
                continue
            found.append(path)
        return found

    def create(self, name: str, shape: Shape) -> Collection:
        if checked_name(name).startswith("."):
            raise InvalidArgumentError(f"a name begins with no dot, as {name!r} does", argument="name")
        how: dict[str, Any] = {"dim": shape.dim, "metric": shape.metric, "dtype": shape.dtype}
        if shape.schema is not None:
            how["metadata"] = pa.ipc.read_schema(pa.py_buffer(shape.schema))
        path = self.folder / f"{name}{_SUFFIX}"
        velo.create(path, **how).close()
        return read_collection(path)

    def drop(self, collection: Collection) -> list[str]:
        """Remove a collection that is not served; return the names of foreign files, which stay."""
        path = Path(collection.path)
        left = remove_index(path.resolve())
        if path.is_symlink():  # to the folder to which its only shard was moved
            path.unlink()
        return left

    def check_drop(self, collection: Collection) -> None:
        if Path(collection.path).parent != self.folder:
            raise UnsupportedError(f"{collection.name} is not in {self.folder}")


def snapshot_collection(collection: Collection, path: str) -> None:
    """Copy the current rows of a collection to another folder, as ``velo.Index.snapshot``."""
    source = collection.path
    shards = [] if collection.shards[0].path == source else [entry.path for entry in collection.shards]
    if not all(isinstance(one, Path) for one in (source, *shards)):
        raise UnsupportedError(f"{collection.name} is in an object store")
    folder = Path(source)
    target = Path(path)
    if not target.is_absolute():
        raise InvalidArgumentError(f"path is an absolute one of the server, not {path!r}", argument="path")
    snapshot(folder, target, [str(Path(one).relative_to(folder)) for one in shards])
