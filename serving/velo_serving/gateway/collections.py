"""Collections over HTTP: create, drop, snapshot, publish, and move a shard."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import parse_qsl

import pyarrow as pa
from msgspec import Meta, Struct

from velo.errors import InvalidArgumentError
from velo.options import limit_of
from velo.options.columns import column_type
from velo_serving.gateway import bodies
from velo_serving.gateway.access import check_may_write
from velo_serving.gateway.logs import note
from velo_serving.gateway.operations import (
    CREATE_ERRORS,
    MOVE_ERRORS,
    PUBLISH_ERRORS,
    SNAPSHOT_ERRORS,
    Call,
    Operation,
)
from velo_serving.gateway.schemas import parsed, parsed_query, refuse_query, took_ms
from velo_serving.protocol.errors import AdminKeyError, MalformedBodyError, ProtocolError
from velo_serving.protocol.types import Shape
from velo_serving.routing.backend import Backend
from velo_serving.routing.served import ServedCollection
from velo_serving.transport.codec import table_of

#: Object stores whose URLs name no host, unless by an option other than the region.
STORES: Final = ("s3", "gs", "gcs", "file")

Path: TypeAlias = Annotated[str, Meta(min_length=1, max_length=4096)]


class CreateOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """A collection to make."""

    name: Annotated[str, Meta(min_length=1, max_length=128, description="What it is called.")]
    dim: Annotated[int, Meta(ge=1, le=limit_of("dim")[1], description="Numbers of a vector.")]
    metric: Annotated[Literal["l2", "ip", "cosine"], Meta(description="What is near.")] = "l2"
    dtype: Annotated[Literal["float32", "float16", "uint8", "int8"], Meta(description="Numbers.")] = "float32"


class CreateBody(CreateOptions, kw_only=True, forbid_unknown_fields=True):
    """A collection to make, without rows."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"name": "shop", "dim": 64, "metadata": {"price": "float32"}}

    metadata: Annotated[
        Annotated[dict[str, str], Meta(min_length=1, max_length=1024)] | None,
        Meta(description="Types of the columns by their names, such as int32, string, list<string>."),
    ] = None


class PublishBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The build to serve from now on."""

    path: Annotated[Path, Meta(description="A build: a folder that the shards see, or a URL of a store.")]
    version: Annotated[str, Meta(min_length=1, max_length=256, description="Its name, another one than now.")]


class SnapshotBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The folder of a copy."""

    path: Annotated[Path, Meta(description="A folder of the server, an absolute path: not there, or empty.")]


class MoveBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A shard, and the folder to which it moves."""

    shard: Annotated[str, Meta(min_length=1, max_length=128, description="Its name: a number from 0 on.")]
    path: Annotated[Path, Meta(description="A folder of its node, an absolute path: not there, or empty.")]
    pin: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="On Ray its node: `resource:NAME` or `label:KEY=VALUE`."),
    ] = None


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


class MoveAnswer(Struct):
    """The folder of the shard."""

    shard: str
    path: str
    held_ms: Annotated[float, Meta(description="For how long writes to the shard waited.")]
    took_ms: float


class DropAnswer(Struct):
    """The dropped collection, and the files that stay."""

    name: str
    left: Annotated[list[str], Meta(description="Files in its folder that velo did not make.")]
    took_ms: float


def _check_may_name_folders(has_keys: bool, what: str) -> None:
    """Require an admin key, and a server with keys: the caller names folders of the server."""
    if not has_keys:
        raise AdminKeyError(f"to {what} takes an admin key; the server has no keys: start it with --api-keys")
    check_may_write()


async def _create(backend: Backend, call: Call, _: None) -> CreateAnswer:
    schema: pa.Schema | None = None
    asked: CreateOptions
    if call.media_type == bodies.ARROW:
        try:
            schema = table_of(call.body).schema.remove_metadata()
        except ProtocolError as error:
            raise MalformedBodyError(f"the body is no Arrow stream: {error}") from error
        asked = parsed_query(CreateOptions, call.pairs)
    else:
        refuse_query(call.pairs)
        asked = given = parsed(CreateBody, call.body)
        if given.metadata is not None:
            types = {name: column_type(kind, name, "metadata") for name, kind in given.metadata.items()}
            schema = pa.schema(types)
    serialized = None if schema is None else schema.serialize().to_pybytes()
    served = await backend.create(asked.name, Shape(asked.dim, asked.metric, asked.dtype, serialized))
    now = served.now
    return CreateAnswer(served.name, now.dim, now.metric, took_ms(call.started))


async def drop(name: str, backend: Backend) -> DropAnswer:
    started = time.perf_counter()
    left = await backend.drop(name)
    return DropAnswer(name, left, took_ms(started))


def _check_place(path: str, allowed: Sequence[str]) -> None:
    """Refuse a place outside those that are allowed; without any, a URL that names a host of its own."""
    place, _, how = path.partition("?")
    scheme, mark, _ = place.partition("://")
    fits = not mark or (scheme in STORES and {name for name, _ in parse_qsl(how)} <= {"region"})
    if allowed:
        roots = (one.partition("?") for one in allowed)
        fits = any(
            how == query and f"{place}/".startswith(f"{root.rstrip('/')}/") for root, _, query in roots
        )
    if not fits or (allowed and ".." in place.split("/")):
        raise InvalidArgumentError(f"{path} is none of the places to publish from", argument="path")


async def _publish(
    has_keys: bool, allowed: Sequence[str], call: Call, served: ServedCollection
) -> PublishAnswer:
    _check_may_name_folders(has_keys, "publish")
    asked = parsed(PublishBody, call.body)
    note(path=asked.path, version=asked.version)
    _check_place(asked.path, allowed)
    now = await served.publish(asked.path, asked.version)
    return PublishAnswer(now.version, now.n, now.dim, now.metric, took_ms(call.started))


async def _snapshot(has_keys: bool, call: Call, served: ServedCollection) -> SnapshotAnswer:
    _check_may_name_folders(has_keys, "take a snapshot")
    asked = parsed(SnapshotBody, call.body)
    note(path=asked.path)
    await served.snapshot(asked.path)
    return SnapshotAnswer(asked.path, took_ms(call.started))


async def _move(has_keys: bool, call: Call, served: ServedCollection) -> MoveAnswer:
    _check_may_name_folders(has_keys, "move a shard")
    asked = parsed(MoveBody, call.body)
    note(shard=asked.shard, path=asked.path)
    held_s = await served.move(asked.shard, asked.path, asked.pin)
    return MoveAnswer(asked.shard, asked.path, round(1000 * held_s, 3), took_ms(call.started))


def administration(backend: Backend, has_keys: bool, publish_from: Sequence[str]) -> tuple[Operation, ...]:
    return (
        Operation(
            "publish",
            "Serve another build under this name",
            PublishBody,
            PublishAnswer,
            PUBLISH_ERRORS,
            partial(_publish, has_keys, publish_from),
            "admin",
        ),
        Operation(
            "snapshot",
            "Copy the served version to another folder",
            SnapshotBody,
            SnapshotAnswer,
            SNAPSHOT_ERRORS,
            partial(_snapshot, has_keys),
            "admin",
        ),
        Operation(
            "move",
            "Move a shard to another folder",
            MoveBody,
            MoveAnswer,
            MOVE_ERRORS,
            partial(_move, has_keys),
            "admin",
        ),
        Operation(
            "",
            "Create a collection without rows",
            CreateBody,
            CreateAnswer,
            CREATE_ERRORS,
            partial(_create, backend),
            "admin",
            "A stream without rows: its schema is that of the columns.",
            CreateOptions,
        ),
    )
