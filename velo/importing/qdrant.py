"""Collections of Qdrant, on a server or in a folder of its client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from velo.errors import FormatError, InvalidArgumentError, MissingDependencyError, UnsupportedError
from velo.importing.files import Asked, Batch, ForeignIndex, metric_of

#: Points of one call.
_POINTS: Final = 1_000
_METRICS: Final = {"Cosine": "cosine", "Dot": "ip", "Euclid": "l2"}


def open_qdrant(asked: Asked) -> ForeignIndex:
    """Open a collection; the fields of its payloads become columns.

    A field with values that do not fit into one column is stored as JSON text.
    """
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise MissingDependencyError(
            "collections of Qdrant need its client: pip install qdrant-client"
        ) from error
    is_server = asked.source.startswith(("http://", "https://"))
    if not is_server and not (Path(asked.source) / "meta.json").is_file():
        raise FormatError(
            f"{asked.source} is neither the address of a server nor a folder of Qdrant's client",
            file=asked.source,
        )
    client = QdrantClient(url=asked.source) if is_server else QdrantClient(path=asked.source)
    names = sorted(one.name for one in client.get_collections().collections)
    name = asked.collection
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in names:
        there = ", ".join(names) or "none"
        raise InvalidArgumentError(f"say which collection; there are: {there}", argument="collection")
    dim, told = _vectors_of(client.get_collection(name).config.params.vectors, asked)
    metric = metric_of(asked, told)
    points = _Points(client, name, asked.vector)
    schema, columns, notes = points.look()
    return ForeignIndex(dim, metric, points.batches(schema, columns), schema, notes)


def _vectors_of(config: Any, asked: Asked) -> tuple[int, str]:
    """Dimensions and metric of the vectors that were asked for."""
    if isinstance(config, dict):
        there = ", ".join(config) or "none"
        if asked.vector not in config:
            raise InvalidArgumentError(f"say which vector of a point; there are: {there}", argument="vector")
        config = config[asked.vector]
    elif asked.vector is not None:
        raise InvalidArgumentError("points have one vector, without a name", argument="vector")
    distance = str(config.distance.value)
    if distance not in _METRICS or config.multivector_config is not None:
        raise UnsupportedError(f"{asked.source}: {distance} or several vectors a point are not there in velo")
    return int(config.size), _METRICS[distance]


class _Points:
    """The points of a collection, in the order of their ids."""

    def __init__(self, client: Any, name: str, vector: str | None) -> None:
        self._client = client
        self._name = name
        self._vector = vector
        self._are_numbers = True

    def _pages(self, **what: Any) -> Iterator[list[Any]]:
        offset = None
        while True:
            points, offset = self._client.scroll(self._name, limit=_POINTS, offset=offset, **what)
            if points:
                yield points
            if offset is None:
                return

    def look(self) -> tuple[Any, dict[str, bool], tuple[str, ...]]:
        """The columns that hold all payloads, which of them are JSON, and what to say of that."""
        types: dict[str, Any] = {}
        for points in self._pages(with_payload=True, with_vectors=False):
            self._are_numbers &= all(isinstance(one.id, int) for one in points)
            for field in {field for one in points for field in one.payload or {}}:
                kind = _type_of([(one.payload or {}).get(field) for one in points])
                types[field] = _common(types[field], kind) if field in types else kind
        kept = {field: kind for field, kind in types.items() if kind is None or not pa.types.is_null(kind)}
        schema = pa.schema([(field, kind or pa.string()) for field, kind in sorted(kept.items())])
        as_json = {field: kind is None for field, kind in kept.items()}
        mixed = sorted(field for field, is_json in as_json.items() if is_json)
        notes = [f"values of several kinds are kept as JSON: {', '.join(mixed)}"] if mixed else []
        return (schema if kept else None), as_json, tuple(notes)

    def batches(self, schema: Any, as_json: dict[str, bool]) -> Iterator[Batch]:
        """Yield ids, vectors and columns."""
        for points in self._pages(with_payload=True, with_vectors=True):
            ids = [one.id if self._are_numbers else str(one.id) for one in points]
            vectors = [self._vector_of(one) for one in points]
            yield ids, np.asarray(vectors, np.float32), _table(points, schema, as_json)
        self._client.close()

    def _vector_of(self, point: Any) -> Any:
        vector = point.vector if self._vector is None else (point.vector or {}).get(self._vector)
        if vector is None:
            raise UnsupportedError(f"the point {point.id!r} has no vector, and a row of velo has one")
        return vector


def _type_of(values: list[Any]) -> Any:
    """The type of a column of some values; None: there is none."""
    try:
        kind = pa.array(values).type
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return None if pa.types.is_nested(kind) and not pa.types.is_list(kind) else kind


def _common(one: Any, other: Any) -> Any:
    """The type that holds the values of both; None: there is none."""
    if one is None or other is None:
        return None
    try:
        schemas = [pa.schema([("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _table(points: list[Any], schema: Any, as_json: dict[str, bool]) -> Any:
    if schema is None:
        return None
    columns = {}
    for field in schema.names:
        values = [(one.payload or {}).get(field) for one in points]
        if as_json[field]:
            values = [None if one is None else json.dumps(one, ensure_ascii=False) for one in values]
        columns[field] = pa.array(values, schema.field(field).type)
    return pa.table(columns)
