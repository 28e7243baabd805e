"""Collections over HTTP: what is served under a name is created, copied, exchanged, and dropped."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import pyarrow as pa
from msgspec import Meta, Struct

from velo.options import limit_of
from velo.options.columns import column_type
from velo_serving.gateway import bodies
from velo_serving.gateway.access import check_may_write
from velo_serving.gateway.logs import note
from velo_serving.gateway.schemas import parsed, parsed_query, refuse_query, took_ms
from velo_serving.protocol.errors import AdminKeyError, MalformedBodyError, ProtocolError
from velo_serving.protocol.types import Shape
from velo_serving.routing.backend import Backend
from velo_serving.routing.served import ServedCollection
from velo_serving.transport.codec import table_of

#: Bodies that create a collection.
CREATE_TYPES = (bodies.JSON, bodies.ARROW)


Path: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]


class CreateOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """A collection to make."""

    name: Annotated[str, Meta(min_length=1, max_length=128, description="What it is called.")]
    dim: Annotated[int, Meta(ge=1, le=limit_of("dim")[1], description="Numbers of a vector.")]
    metric: Annotated[Literal["l2", "ip", "cosine"], Meta(description="What is near.")] = "l2"
    dtype: Annotated[
        Literal["float32", "float16", "uint8", "int8"], Meta(description="Numbers of vectors.")
    ] = "float32"


class CreateBody(CreateOptions, kw_only=True, forbid_unknown_fields=True):
    """A collection to make, without rows."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"name": "shop", "dim": 64, "metadata": {"price": "float32"}}

    metadata: Annotated[
        Annotated[dict[str, str], Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Types of the columns by their names, such as int32, string, list<string>."),
    ] = None


class PublishBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The build to serve from now on."""

    path: Annotated[
        Path, Meta(description="A build: a folder that the shards' processes see, or in an object store.")
    ]
    version: Annotated[
        str, Meta(min_length=1, max_length=256, description="What it is called; another one than now.")
    ]


class SnapshotBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The folder of a copy."""

    path: Annotated[Path, Meta(description="A folder of the server, an absolute path: not there, or empty.")]


class CreateAnswer(Struct):
    """The new collection."""

    name: str
    dim: int
    metric: str
    took_ms: float


class PublishAnswer(Struct):
    """The build that is served now."""

    version: str
    n: int
    dim: int
    metric: str
    took_ms: float


class SnapshotAnswer(Struct):
    """The folder of the copy."""

    path: str
    took_ms: float


class DropAnswer(Struct):
    """The dropped collection, and the files that stay."""

    name: str
    left: Annotated[list[str], Meta(description="Files in its folder that velo did not make.")]
    took_ms: float


def _check_may_name_folders(has_keys: bool, what: str) -> None:
    """Require an admin key, and a server with keys: the caller names folders of the server."""
    if not has_keys:
        raise AdminKeyError(
            f"to {what} takes an admin key, and this server has no keys: start it with --api-keys"
        )
    check_may_write()


async def create(
    media_type: str, body: bytes, pairs: Sequence[tuple[str, str]], backend: Backend
) -> CreateAnswer:
    started = time.perf_counter()
    schema: pa.Schema | None = None
    asked: CreateOptions
    if media_type == bodies.ARROW:
        try:
            schema = table_of(body).schema.remove_metadata()
        except ProtocolError as error:
            raise MalformedBodyError(f"the body is no Arrow stream: {error}") from error
        asked = parsed_query(CreateOptions, pairs)
    else:
        refuse_query(pairs)
        asked = told = parsed(CreateBody, body)
        if told.metadata is not None:
            types = {name: column_type(kind, name, "metadata") for name, kind in told.metadata.items()}
            schema = pa.schema(types)
    serialized = None if schema is None else schema.serialize().to_pybytes()
    served = await backend.create(asked.name, Shape(asked.dim, asked.metric, asked.dtype, serialized))
    now = served.now
    return CreateAnswer(name=served.name, dim=now.dim, metric=now.metric, took_ms=took_ms(started))


async def drop(name: str, backend: Backend) -> DropAnswer:
    started = time.perf_counter()
    left = await backend.drop(name)
    return DropAnswer(name=name, left=left, took_ms=took_ms(started))


async def publish(body: bytes, served: ServedCollection, *, has_keys: bool) -> PublishAnswer:
    """Serve another build under the name of a collection."""
    _check_may_name_folders(has_keys, "publish")
    started = time.perf_counter()
    asked = parsed(PublishBody, body)
    note(path=asked.path, version=asked.version)
    now = await served.publish(asked.path, asked.version)
    return PublishAnswer(
        version=now.version, n=now.n, dim=now.dim, metric=now.metric, took_ms=took_ms(started)
    )


async def snapshot(body: bytes, served: ServedCollection, *, has_keys: bool) -> SnapshotAnswer:
    """Copy the current rows of a collection to another folder."""
    _check_may_name_folders(has_keys, "take a snapshot")
    started = time.perf_counter()
    asked = parsed(SnapshotBody, body)
    note(path=asked.path)
    await served.snapshot(asked.path)
    return SnapshotAnswer(path=asked.path, took_ms=took_ms(started))
