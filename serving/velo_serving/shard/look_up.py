"""Lookups in a shard's own rows, without a search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import InvalidArgumentError, UnknownIdError
from velo_serving.transport.codec import ids_of, stream_of


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


#: What anybody who reads may know of an index; its path is not among it.
_PUBLIC_FIELDS: Final = ("ids", "plan", "stores_vectors", "memory_bytes", "memory_budget_bytes", "live")


def _info(index: Any) -> dict[str, Any]:
    info = index.info()
    fields = {name: info[name] for name in _PUBLIC_FIELDS}
    kinds = [getattr(field.type, "value_type", field.type) for field in index.schema]
    names = zip(index.schema.names, kinds, index.schema.types, strict=True)
    columns = [[name, str(kind if pa.types.is_dictionary(whole) else whole)] for name, kind, whole in names]
    return {**fields, "n": len(index), "disk_bytes": sum(info["disk_bytes"].values()), "columns": columns}


def _sample(index: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Random rows and their vectors, decoded where not stored."""
    table = index.sample(**arguments)
    stored = _stored(index, table["id"].to_pylist(), decoded=True)
    kept: Any = pa.array(stored["ids"], table["id"].type)  # a row may have been deleted meanwhile
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
