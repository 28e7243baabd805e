"""Lookups and writes in the rows of a shard, whose folder other processes may write to as well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import InvalidArgumentError, ReadOnlyError, UnknownIdError
from velo.folder.sides import side_of
from velo_serving.shard.moving import MoveSource
from velo_serving.transport.codec import ids_of, stream_of, table_of


def look_up(index: Any, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Look something up in an index; plain data and Arrow streams come back."""
    if what == "count":
        return {"count": int(index.count(arguments["filter"]))}
    if what == "rows":
        return {"table": stream_of(index.rows(**arguments))}
    if what == "present":
        return {"present": np.flatnonzero(index.contains(ids_of(arguments["ids"]))).astype("<u4").tobytes()}
    if what == "vectors":
        return _stored(index, arguments["ids"], decoded=bool(arguments.get("decoded")))
    if what == "info":
        return _info(index)
    if what == "sample":
        return _sample(index, arguments)
    if what == "explain":
        query = np.asarray(arguments["query"], np.float32)
        options = {name: value for name, value in arguments.items() if name != "query"}
        # Through JSON, so that what numpy counted becomes what travels.
        plain: dict[str, Any] = json.loads(
            json.dumps(index.explain(query, **options).to_dict(), default=lambda value: value.item())
        )
        return plain
    raise InvalidArgumentError(f"nothing called {what!r} is looked up", argument="what")


#: The public facts of an index; its path is none.
_PUBLIC_FIELDS: Final = ("ids", "plan", "stores_vectors", "memory_bytes", "memory_budget_bytes", "live")


def _info(index: Any) -> dict[str, Any]:
    count = len(index)  # sees what other processes wrote
    info = index.info()
    fields = {name: info[name] for name in _PUBLIC_FIELDS}
    kinds = [getattr(field.type, "value_type", field.type) for field in index.schema]
    names = zip(index.schema.names, kinds, index.schema.types, strict=True)
    columns = [[name, str(kind if pa.types.is_dictionary(whole) else whole)] for name, kind, whole in names]
    return {**fields, "n": count, "disk_bytes": sum(info["disk_bytes"].values()), "columns": columns}


def _sample(index: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Random rows and their vectors, decoded where not stored."""
    table = index.sample(**arguments)
    stored = _stored(index, table["id"].to_pylist(), decoded=True)
    kept: Any = pa.array(stored["ids"], table["id"].type)  # without rows that have just been deleted
    table = table.filter(pc.is_in(table["id"], value_set=kept))
    return {"table": stream_of(table), "vectors": stored["vectors"]}


def _stored(index: Any, ids: Sequence[Any], *, decoded: bool = False) -> dict[str, Any]:
    known = list(ids)
    while True:
        known = [one for one, there in zip(known, index.contains(known), strict=True) if there]
        try:
            found = (
                index.get_vectors(known, decoded=decoded) if known else np.empty((0, index.dim), np.float32)
            )
        except UnknownIdError:  # a row was deleted just now
            continue
        return {"ids": known, "vectors": found.astype("<f4").tobytes()}


#: Writes at once. They wait together for one sync, and for room.
WRITES_AT_ONCE: Final = 32

#: The index gets this share of the time that is left, so that its answer arrives.
TIME_SHARE: Final = 0.9


class ShardWriter:
    """Writes to one index."""

    def __init__(self, name: str, writable: bool, moves: MoveSource) -> None:
        self._name = name
        self._moves = moves
        self._writable = writable
        self._threads = ThreadPoolExecutor(WRITES_AT_ONCE, thread_name_prefix=f"velo-write-{name}")
        self._maintenance = ThreadPoolExecutor(1, thread_name_prefix=f"velo-upkeep-{name}")
        #: Running maintenance, which further calls share.
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def write(
        self, folder: Path, index: Any, what: str, arguments: Mapping[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        """Run one of ``WRITES``; return ``{"moved": True}`` if rows that must exist do not."""
        if not self._writable:
            raise ReadOnlyError(f"shard {self._name} was opened to read: serve it with --writable")
        if what in ("flush", "optimize"):
            return await self._keep_up(index, what, bool(arguments.get("wait", True)), timeout_s)
        work = _VERBS.get(what)
        if work is None:
            raise InvalidArgumentError(f"nothing called {what!r} is written", argument="what")
        patience_s = None if timeout_s is None else TIME_SHARE * timeout_s
        await self._moves.admit()
        writing = self._threads.submit(work, folder, index, dict(arguments), patience_s)
        self._moves.writing.add(writing)  # also after its caller was canceled
        writing.add_done_callback(self._moves.writing.discard)
        return await asyncio.wrap_future(writing)

    @property
    def maintains(self) -> bool:
        return bool(self._under_way)

    async def _keep_up(self, index: Any, what: str, wait: bool, timeout_s: float | None) -> dict[str, Any]:
        task = self._under_way.get(what)
        if task is None:
            self._moves.check_maintenance()
            loop = asyncio.get_running_loop()
            task = loop.run_in_executor(self._maintenance, getattr(index, what))
            self._under_way[what] = task
            task.add_done_callback(lambda done: self._ended(what, done))
        if wait:
            patience_s = None if timeout_s is None else TIME_SHARE * timeout_s
            await asyncio.wait({task}, timeout=patience_s)
        if not task.done():
            return {"done": False}
        task.result()
        return {"done": True}

    def _ended(self, what: str, task: asyncio.Future[None]) -> None:
        self._under_way.pop(what, None)
        if not task.cancelled():
            task.exception()  # marks it as seen; info() has it, too

    def close(self) -> None:
        """Wait for running writes and stop."""
        self._threads.shutdown()
        self._maintenance.shutdown()


def _rows_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    vectors, dim = arguments["vectors"], int(arguments["dim"])
    dtype = np.dtype(arguments["dtype"])
    ids, columns = arguments.get("ids"), arguments.get("columns")
    return {
        "vectors": np.frombuffer(vectors, dtype).reshape(-1, dim),
        "ids": None if ids is None else ids_of(ids),
        "metadata": None if columns is None else table_of(columns),
        "request": arguments.get("request"),
    }


def _fields_of(done: Any) -> dict[str, Any]:
    return {
        "rows": done.rows,
        "missing": done.missing,
        "sequence": done.sequence,
        "durable": done.durable,
        "replaced": done.replaced,
        "first_id": done.first_id,
        "repeated": done.repeated,
        "pressure": done.pressure,
    }


def _insert(folder: Path, index: Any, arguments: dict[str, Any], timeout_s: float | None) -> Any:
    return _fields_of(index.insert(**_rows_given(arguments), timeout_s=timeout_s))


def _upsert(folder: Path, index: Any, arguments: dict[str, Any], timeout_s: float | None) -> Any:
    expected = arguments.get("expected")
    if expected is None:
        return _fields_of(index.upsert(**_rows_given(arguments), timeout_s=timeout_s))
    ids = ids_of(expected)
    with side_of(folder, "upsert", timeout_s):
        if not index.contains(ids).all():
            return {"moved": True}
        return _fields_of(index.upsert(**_rows_given(arguments), timeout_s=timeout_s))


def _update(folder: Path, index: Any, arguments: dict[str, Any], timeout_s: float | None) -> Any:
    columns = table_of(arguments["columns"])
    ids = ids_of(arguments["ids"])
    return _fields_of(index.update(ids, columns, arguments.get("request"), timeout_s))


def _delete(folder: Path, index: Any, arguments: dict[str, Any], timeout_s: float | None) -> Any:
    with side_of(folder, "delete", timeout_s):
        ids = arguments.get("ids")
        if ids is not None:
            return _fields_of(index.delete(ids_of(ids)))
        return _fields_of(index.delete(filter=arguments["filter"]))


_VERBS: Final = {"insert": _insert, "upsert": _upsert, "update": _update, "delete": _delete}
