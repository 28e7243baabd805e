"""Bodies of requests are read into structs here; the structs of answers, and the OpenAPI schema of both."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct

from velo.errors import DimensionMismatchError, FilterError, NotFiniteError
from velo.filters import from_dict, from_sql
from velo.hints import OPTIONS
from velo_serving.gateway.errors import RequestError, filter_place
from velo_serving.protocol.errors import BodyTooLargeError
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.protocol.requests import FilterForm, SearchBody

B = TypeVar("B")

#: What msgspec calls the types of JSON.
_TYPES: Final = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
}

#: The class that a client raises for a value beyond a limit.
_KINDS: Final = {
    " >= ": "InvalidArgumentError",
    " <= ": "InvalidArgumentError",
    "out of range": "NotFiniteError",
}


# ---- bodies ----


#: By struct. 1e999 in a filter becomes infinite, which ``check_filter`` refuses by its place.
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def parsed(model: type[B], body: bytes) -> B:
    try:
        if model not in _DECODERS:
            _DECODERS[model] = msgspec.json.Decoder(model, float_hook=float)
        read: B = _DECODERS[model].decode(body)
        return read
    except msgspec.ValidationError as error:
        refusal = _refusal(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        refusal = _not_json(error, body)
    raise refusal


def parsed_query(model: type[B], pairs: Iterable[tuple[str, Any]]) -> B:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise RequestError(f"{name} is given twice", path=name)
        fields[name] = value
    try:
        return msgspec.convert(fields, model, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None


def refuse_query(pairs: Sequence[tuple[str, str]]) -> None:
    if pairs:
        name = pairs[0][0]
        raise RequestError(f"{name}: with a JSON body the options belong in the body", argument=name)


def seconds(timeout_ms: float | None) -> float | None:
    """Milliseconds as seconds."""
    return None if timeout_ms is None else timeout_ms / 1000


def took_ms(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)


def _refusal(fault: str) -> RequestError:
    message, _, place = fault.partition(" - at `$")
    path = place.rstrip("`").lstrip(".").replace("[...]", "")
    field = re.fullmatch(r"Object (?:contains unknown|missing required) field `(.*)`", message)
    if field is not None:
        path = f"{path}.{field[1]}" if path else field[1]
        message = "it is needed"
        if fault.startswith("Object contains"):
            word = OPTIONS.get(field[1], "")
            word = "radius" if word.startswith("range_search") else word
            message = "there is no such field"
            if word.split(",")[0] in SearchBody.__struct_fields__:
                message += f"; velo's is {word}"
    kind = next((kind for part, kind in _KINDS.items() if part in message), "RequestError")
    words = lambda types: " or ".join(_TYPES.get(one, one) for one in types[1].split(" | "))  # noqa: E731
    message = re.sub("`([^`]*)`", words, message)
    text = f"{path}: {message[:1].lower()}{message[1:]}" if path else message
    return RequestError(text, path=path, kind=kind)


def _not_json(error: Exception, body: bytes) -> RequestError:
    if isinstance(error, RecursionError | UnicodeDecodeError):
        fault = "nested too deeply" if isinstance(error, RecursionError) else "not UTF-8"
        return RequestError(f"the body is {fault}", status=400, kind="MalformedBodyError")
    found = re.search(r"^(?:JSON is malformed: )?(.*?)(?: \(byte (\d+)\))?$", str(error), re.S)
    assert found is not None  # every text matches
    message = found[1]
    byte = max(len(body) - 1, 0) if found[2] is None else int(found[2]) - (message == "trailing characters")
    line = body[:byte].count(b"\n") + 1
    column = min(byte - (body.rfind(b"\n", 0, byte) + 1) + 1, len(body))
    text = f"{message} at line {line} column {column}"
    place = {"line": line, "column": column, "byte": byte}
    if re.match(rb"-?(?:NaN|Infinity)", body[max(byte - 1, 0) : byte + 9].lstrip(b" ,:[")):
        return RequestError(f"a number is not finite: {text}", status=400, place=place, kind="NotFiniteError")
    return RequestError(f"the body is not JSON: {text}", status=400, place=place, kind="MalformedBodyError")


def check_filter(condition: FilterForm | None, path: str, limits: GatewayLimits) -> None:
    """Refuse an invalid filter before any shard is asked; only shards know its columns and their types."""
    if condition is None:
        return
    if isinstance(condition, str) and len(condition) > limits.sql_bytes_max:
        raise BodyTooLargeError(
            f"{path}: SQL of {len(condition)} characters is above the limit of {limits.sql_bytes_max}; "
            "a dict may be longer",
            argument=re.split(r"\[", path)[0],
        )
    for where, value in _leaves(condition, path):
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"{where} is not a finite number", status=400, path=where, kind="FilterError")
    try:
        _ = from_sql(condition) if isinstance(condition, str) else from_dict(condition)
    except FilterError as error:
        raise RequestError(
            f"{path}: {error.message}",
            status=400,
            path=path,
            place=filter_place(error.message, path),
            kind=type(error).__name__,
        ) from None


def check_dims(rows: Sequence[Sequence[float]], dim: int, name: str = "vectors") -> None:
    for place, row in enumerate(rows):
        if len(row) != dim:
            path = name if name == "vector" else f"{name}[{place}]"
            raise RequestError(
                f"{path} has {len(row)} numbers, the collection has {dim} dimensions",
                path=path,
                kind="DimensionMismatchError",
            )


def check_matrix(matrix: Any, dim: int) -> Any:
    if matrix.shape[1] != dim:
        message = f"the vectors have {matrix.shape[1]} dimensions, the collection {dim}"
        raise DimensionMismatchError(message, argument="vectors")
    if matrix.dtype.kind == "f" and not (finite := np.isfinite(matrix)).all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        raise NotFiniteError(f"vectors[{row}][{column}] is not finite", argument="vectors", row=row)
    return matrix


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}")
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}[{place}]")
    else:
        yield path, value


# ---- the OpenAPI document ----


def content_of(model: type[Struct]) -> dict[str, Any]:
    example = getattr(model, "EXAMPLE", None)
    shown = {} if example is None else {"example": example}
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"application/json": {"schema": schema, **shown}}


def components(models: Iterable[type[Struct]]) -> dict[str, Any]:
    return msgspec.json.schema_components(models, ref_template="#/components/schemas/{name}")[1]


def query_parameters(model: type[Struct], without: Iterable[str] = ()) -> list[dict[str, Any]]:
    """The fields of a struct as query parameters beside an Arrow body, except those in ``without``."""
    fields = components([model])[model.__name__]["properties"]
    return [_parameter(name, field) for name, field in fields.items() if name not in set(without)]


def _parameter(name: str, field: Mapping[str, Any]) -> dict[str, Any]:
    """One field: query strings have no null, and an object is JSON text."""
    schema = {key: value for key, value in field.items() if key not in ("title", "description", "anyOf")}
    kinds = [one for one in field.get("anyOf", ()) if one.get("type") not in ("null", "boolean")]
    kinds = kinds or [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    if any(one.get("type") == "object" for one in kinds):
        kinds = [{"type": "string"}]
    schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}
    if schema.get("default", ...) is None:
        del schema["default"]
    parameter: dict[str, Any] = {
        "name": name,
        "in": "query",
        "required": False,
        "description": f"{field['description']} Not with a JSON body, which has it as a field.",
        "schema": schema,
    }
    return parameter | ({"style": "form", "explode": True} if schema.get("type") == "array" else {})


# ---- answers: those of searches are written by hand, for speed ----


class ShardFailureAnswer(Struct):
    """Why one shard is missing from an answer."""

    shard: str
    type: str
    message: str


class Status(Struct, kw_only=True):
    """The completeness of an answer."""

    shards_answered: int
    shards_total: int
    partial: bool
    failures: Annotated[list[ShardFailureAnswer], Meta(description="Why shards are missing.")] = []


class GroupAnswer(Struct):
    """One group of a query's hits: the next `size` of its row."""

    value: Any
    size: int


class SearchStats(Struct):
    """The cost of the search, summed over queries and shards."""

    reads: int
    bytes_read: int
    shared_reads: int
    cache_hits: int


class SearchAnswer(Status, kw_only=True):
    """Neighbors of each query, nearest first; a row is shorter than k where fewer match."""

    ids: list[list[int | str]]
    distances: Annotated[list[list[float | None]], Meta(description="Null in full-text search.")]
    counts: list[int]
    took_ms: float
    stats: SearchStats
    metadata: list[list[dict[str, Any]]] | None = None
    vectors: Annotated[
        list[list[list[float] | None]] | None,
        Meta(description="With `return_vectors`: of each hit; null if its row or shard is missing."),
    ] = None
    scores: Annotated[
        list[list[float]] | None,
        Meta(description="With `text`: of each hit, descending. Then distances follow no order."),
    ] = None
    groups: Annotated[
        list[list[GroupAnswer]] | None,
        Meta(description="With `group_by`: each query's groups, nearest first, as they follow in its row."),
    ] = None
    limited: Annotated[list[bool] | None, Meta(description="With `radius`: whether there are more.")] = None
    version: Annotated[str | None, Meta(description="Of the collection, where it has one.")] = None


class ErrorDetail(Struct):
    """The fault and its place; there may be further fields."""

    type: str
    message: str
    argument: str | None = None
    position: dict[str, Any] | int | None = None
    request_id: Annotated[str, Meta(description="As in the header X-Request-Id and in the log.")] = ""


class ErrorAnswer(Struct):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


class ShardAnswer(Struct):
    """One shard as the gateway sees it."""

    name: str
    state: Literal["up", "down"]
    reason: str
    n: int
    node: str
    pid: int
    memory_bytes: int
    device: str
    threads: Annotated[int, Meta(description="Threads that search.")]
    waiting_requests: int
    calls_in_flight: int


class CollectionSummary(Struct):
    """A collection in the list."""

    name: str
    version: str
    n: int
    dim: int
    metric: str
    shards_up: int
    shards_total: int


class CollectionAnswer(CollectionSummary):
    """A collection with its shards."""

    columns: list[str]
    writable: Annotated[bool, Meta(description="Whether rows can be written here.")]
    queries_admitted: int
    shards: list[ShardAnswer]


class CollectionList(Struct):
    """All collections served here."""

    collections: list[CollectionSummary]
    aliases: Annotated[dict[str, str], Meta(description="Collections by their aliases.")] = {}


class HealthAnswer(Struct):
    """The process is alive."""

    status: Literal["ok"]


class ReadyAnswer(Struct):
    """Whether searches can be answered, and by how many shards."""

    status: Literal["ready", "not ready"]
    collections: dict[str, str]
