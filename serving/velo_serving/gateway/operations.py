"""Operations on collections, and the OpenAPI document of all operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from fastapi import FastAPI
from fastapi.responses import Response
from msgspec import Struct

from velo_serving.gateway import bodies
from velo_serving.gateway.schemas import ErrorAnswer, components, content_of, query_parameters
from velo_serving.protocol.limits import GatewayLimits

Errors = Mapping[int, str]

ERRORS: Errors = {
    400: "The body or a filter cannot be read; `position` says where.",
    404: "No such collection.",
    406: "None of the accepted content types can be written.",
    408: "The body took too long to arrive.",
    413: "The body, or what it asks for, is above a limit.",
    415: "A content type that is not read here.",
    422: "Well-formed but wrong: type, dimension, k, a number that is not finite.",
    429: "Too many queries wait; `Retry-After` says when to come back.",
    503: "No shard answered, or the server starts or stops.",
    504: "The deadline passed before any shard answered.",
}

WRITE_ERRORS: Errors = {
    **{status: text for status, text in ERRORS.items() if status != 406},
    409: "An id is there already, or the collection is only read.",
    503: "Shards are away. `shards` names those that did not write, if others did.",
    504: "The deadline passed; it may have been written.",
    507: "A device is full; nothing was written there.",
}

PUBLISH_ERRORS: Errors = {
    **{status: text for status, text in ERRORS.items() if status not in (406, 504)},
    403: "A key that is for reading, or a server without keys.",
    422: "The version is served already, or the build cannot be.",
}

SNAPSHOT_ERRORS: Errors = {
    **PUBLISH_ERRORS,
    409: "There is something at the path.",
    422: "No folder can be made there, or no snapshot taken here.",
    507: WRITE_ERRORS[507],
}

MOVE_ERRORS: Errors = {
    **SNAPSHOT_ERRORS,
    409: "There is something at the path.",
    422: "No such shard or folder, or no shard moves here.",
    429: "The shard is being moved, flushed or optimized.",
    507: "The device of the path is full; the shard was not moved.",
}

CREATE_ERRORS: Errors = {
    **{status: text for status, text in PUBLISH_ERRORS.items() if status not in (403, 404)},
    409: "There is one of that name, or a folder.",
    422: "A wrong name, size or type, or no folder for collections.",
    507: WRITE_ERRORS[507],
}

DROP_ERRORS: Errors = {
    404: ERRORS[404],
    422: "It is elsewhere, or there is no folder for collections.",
    429: "Another process writes to it.",
    503: ERRORS[503],
}


class Call(NamedTuple):
    """A request to an operation, whose body has arrived."""

    media_type: str
    body: bytes
    pairs: list[tuple[str, str]]
    limits: GatewayLimits
    started: float


class Operation(NamedTuple):
    """A POST below a collection, or without a path on all of them.

    ``work`` gets the call and the generation of the collection, or in administration the collection itself.
    ``arrow`` describes an Arrow body, if one is read, and ``query`` the options beside it.
    """

    path: str
    summary: str
    body: type[Struct]
    answer: type[Struct]
    errors: Errors
    work: Callable[[Call, Any], Awaitable[Any]]
    kind: Literal["lookup", "write", "admin"] = "lookup"
    arrow: str = ""
    query: type[Struct] | None = None

    @property
    def full_path(self) -> str:
        return f"/v1/collections/{{name}}/{self.path}" if self.path else "/v1/collections"


class Document:
    """Describes the operations of an app with the structs that they read and write."""

    def __init__(self) -> None:
        self._models: set[type[Struct]] = {ErrorAnswer}

    def operation(
        self,
        summary: str,
        answer: type[Struct],
        errors: Errors | None = None,
        *,
        body: type[Struct] | None = None,
        arrow: str = "",
        query: type[Struct] | None = None,
        without: Iterable[str] = (),
        arrow_answer: bool = False,
    ) -> dict[str, Any]:
        self._models |= {one for one in (answer, body) if one is not None}
        binary = {"type": "string", "format": "binary"}
        answers = content_of(answer) | ({bodies.ARROW: {"schema": binary}} if arrow_answer else {})
        responses: dict[int | str, dict[str, Any]] = {200: {"description": "Done.", "content": answers}}
        for status, text in (errors or {}).items():
            responses[status] = {"description": text, "content": content_of(ErrorAnswer)}
        extra: dict[str, Any] = {}
        if body is not None:
            read = content_of(body)
            if arrow:
                read[bodies.ARROW] = {"schema": binary | {"description": arrow}}
            extra["requestBody"] = {"required": True, "content": read}
        if query is not None:
            extra["parameters"] = query_parameters(query, without)
        operation = {"summary": summary, "response_class": Response, "responses": responses}
        return operation | {"openapi_extra": extra}

    def attach(self, app: FastAPI, secure: Callable[[dict[str, Any]], None] | None) -> None:
        """Add the structs to the app's document, which ``secure`` completes."""
        plain = app.openapi

        def described() -> dict[str, Any]:
            if app.openapi_schema is None:
                document = plain()
                schemas = document.setdefault("components", {}).setdefault("schemas", {})
                schemas.update(components(sorted(self._models, key=lambda one: one.__name__)))
                if secure is not None:
                    secure(document)
                app.openapi_schema = document
            return app.openapi_schema

        app.openapi = described  # type: ignore[method-assign]
