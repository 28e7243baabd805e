"""What a shard finds in its own rows without a search."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from velo.errors import InvalidArgumentError, UnknownIdError
from velo_serving.wire.codec import ids_of, stream_of

__all__ = ["look_up"]


def look_up(index: Any, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Look something up in an index; plain data and Arrow streams come back.

    Parameters
    ----------
    index : velo.Index
    what : str
        "count", "explain", "present", "rows" or "vectors".
    arguments : mapping
    """
    if what == "count":
        return {"count": int(index.count(arguments["filter"]))}
    if what == "rows":
        return {"table": stream_of(index.rows(**arguments))}
    if what == "present":
        return {"present": np.flatnonzero(index.contains(ids_of(arguments["ids"]))).astype("<u4").tobytes()}
    if what == "vectors":
        return _stored(index, arguments["ids"])
    if what == "explain":
        query = np.asarray(arguments["query"], np.float32)
        options = {name: value for name, value in arguments.items() if name != "query"}
        # Through JSON, so that what numpy counted becomes what travels.
        plain: dict[str, Any] = json.loads(
            json.dumps(index.explain(query, **options).to_dict(), default=lambda value: value.item())
        )
        return plain
    raise InvalidArgumentError(f"nothing called {what!r} is looked up", argument="what")


def _stored(index: Any, ids: Sequence[Any]) -> dict[str, Any]:
    """The ids that are there, and their vectors."""
    known = list(ids)
    while True:
        known = [one for one, there in zip(known, index.contains(known), strict=True) if there]
        try:
            found = index.get_vectors(known) if known else np.empty((0, index.dim), np.float32)
        except UnknownIdError:  # a row was deleted just now
            continue
        return {"ids": known, "vectors": found.astype("<f4").tobytes()}
