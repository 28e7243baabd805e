"""What the OpenAPI document says of a path: parameters of the query string, bodies, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from velo_serving.gateway import bodies
from velo_serving.gateway.schemas import ErrorAnswer, QueryOptions, SearchAnswer, SearchBody

__all__ = [
    "CREATE_ERRORS",
    "DROP_ERRORS",
    "ERRORS",
    "PUBLISH_ERRORS",
    "SEARCH",
    "SNAPSHOT_ERRORS",
    "WRITE_ERRORS",
    "query_parameters",
]


def query_parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """The fields of a model as parameters of the query string.

    Parameters
    ----------
    model : type
        What reads the query string where a body holds rows alone.

    Returns
    -------
    list of dict
    """
    return [_parameter(name, field) for name, field in model.model_json_schema()["properties"].items()]


def _parameter(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """One field; in a query string nothing is null, and an object is its JSON as text."""
    schema = {key: value for key, value in field.items() if key not in ("title", "description", "anyOf")}
    kinds = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    if any(one.get("type") == "object" for one in kinds):
        kinds = [{"type": "string"}]
    schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}
    if schema.get("default", ...) is None:
        del schema["default"]
    told: dict[str, Any] = {
        "name": name,
        "in": "query",
        "required": False,
        "description": f"{field['description']} Not with a JSON body, which has it as a field.",
    }
    told["schema"] = schema
    return told | ({"style": "form", "explode": True} if schema.get("type") == "array" else {})


ERRORS: Mapping[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The body or a filter cannot be read; `position` says where."},
    404: {"model": ErrorAnswer, "description": "No such collection."},
    406: {"model": ErrorAnswer, "description": "None of the accepted content types can be written."},
    408: {"model": ErrorAnswer, "description": "The body took too long to arrive."},
    413: {"model": ErrorAnswer, "description": "The body, or what it asks for, is above a limit."},
    415: {"model": ErrorAnswer, "description": "A content type that is not read here."},
    422: {
        "model": ErrorAnswer,
        "description": "Well-formed but wrong: type, dimension, k, a number that is not finite.",
    },
    429: {
        "model": ErrorAnswer,
        "description": "Too many queries wait; `Retry-After` says when to come back.",
    },
    503: {"model": ErrorAnswer, "description": "No shard answered, or the server starts or stops."},
    504: {"model": ErrorAnswer, "description": "The deadline passed before any shard answered."},
}

WRITE_ERRORS: Mapping[int | str, dict[str, Any]] = {
    **ERRORS,
    409: {"model": ErrorAnswer, "description": "An id is there already, or the collection is only read."},
    503: {
        "model": ErrorAnswer,
        "description": "Shards are away. `shards` names those that did not write, if others did.",
    },
    504: {"model": ErrorAnswer, "description": "The deadline passed; it may have been written."},
    507: {"model": ErrorAnswer, "description": "A device is full; nothing was written there."},
}

PUBLISH_ERRORS: Mapping[int | str, dict[str, Any]] = {
    **{status: told for status, told in ERRORS.items() if status not in (406, 504)},
    403: {"model": ErrorAnswer, "description": "A key that is for reading, or a server without keys."},
    422: {"model": ErrorAnswer, "description": "The version is served already, or the build cannot be."},
}

_KEEP_ERRORS: Mapping[int | str, dict[str, Any]] = {
    status: told for status, told in PUBLISH_ERRORS.items() if status != 422
}

SNAPSHOT_ERRORS: Mapping[int | str, dict[str, Any]] = {
    **_KEEP_ERRORS,
    409: {"model": ErrorAnswer, "description": "There is something at the path."},
    422: {"model": ErrorAnswer, "description": "No folder can be made there, or no snapshot taken here."},
    507: WRITE_ERRORS[507],
}

CREATE_ERRORS: Mapping[int | str, dict[str, Any]] = {
    **{status: told for status, told in _KEEP_ERRORS.items() if status not in (403, 404)},
    409: {"model": ErrorAnswer, "description": "There is one of that name, or a folder."},
    422: {"model": ErrorAnswer, "description": "A wrong name, size or type, or no folder for collections."},
    507: WRITE_ERRORS[507],
}

DROP_ERRORS: Mapping[int | str, dict[str, Any]] = {
    404: ERRORS[404],
    422: {"model": ErrorAnswer, "description": "It lies elsewhere, or there is no folder for collections."},
    429: {"model": ErrorAnswer, "description": "Somebody else writes to it."},
    503: ERRORS[503],
}

_BINARY = {"type": "string", "format": "binary"}

SEARCH: Mapping[str, Any] = {
    "response_model": SearchAnswer,
    "responses": {
        200: {
            "description": "The nearest vectors.",
            "content": {bodies.ARROW: {"schema": _BINARY}},
        },
        **ERRORS,
    },
    "openapi_extra": {
        "parameters": query_parameters(QueryOptions),
        "requestBody": {
            "required": True,
            "content": {
                bodies.JSON: {"schema": SearchBody.model_json_schema()},
                bodies.ARROW: {
                    "schema": _BINARY
                    | {"description": "Column `vector`, optionally `filter`; options in the query string."}
                },
            },
        },
    },
}
