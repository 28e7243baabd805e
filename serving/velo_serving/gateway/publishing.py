"""Publishing over HTTP: another build under the name of a collection."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from velo_serving.gateway.access import check_may_write
from velo_serving.gateway.logs import note
from velo_serving.gateway.schemas import refusal
from velo_serving.routing.served import ServedCollection
from velo_serving.words.errors import AdminKeyError

__all__ = ["PublishAnswer", "PublishBody", "publish"]


class PublishBody(BaseModel):
    """What shall be served from now on."""

    model_config = ConfigDict(extra="forbid")

    path: Annotated[
        str,
        Field(
            min_length=1,
            max_length=4096,
            description="A build: a folder that the shards' processes see, or a place in an object store.",
        ),
    ]
    version: Annotated[
        str, Field(min_length=1, max_length=256, description="What it is called; another one than now.")
    ]


class PublishAnswer(BaseModel):
    """What is served now."""

    version: str
    n: int
    dim: int
    metric: str
    took_ms: float


async def publish(body: bytes, served: ServedCollection, *, has_keys: bool) -> bytes:
    """Serve another build; searches go on meanwhile.

    Raises
    ------
    AdminKeyError
        The key is for reading, or the server asks for none: who may publish may read any folder of it.
    PublicationError
        It cannot be opened; what was served still is.
    """
    if not has_keys:
        raise AdminKeyError(
            "to publish takes an admin key, and this server has no keys: start it with --api-keys"
        )
    check_may_write()
    started = time.perf_counter()
    try:
        asked = PublishBody.model_validate_json(body)
    except ValidationError as error:
        raise refusal(error, body) from None
    note(path=asked.path, version=asked.version)
    now = await served.publish(asked.path, asked.version)
    took_ms = round((time.perf_counter() - started) * 1000, 3)
    return (
        PublishAnswer(version=now.version, n=now.n, dim=now.dim, metric=now.metric, took_ms=took_ms)
        .model_dump_json()
        .encode()
    )
