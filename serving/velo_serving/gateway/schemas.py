"""Requests and answers as pydantic models: they check bodies and query strings, and make the OpenAPI page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    ValidationError,
    model_validator,
)

from velo.errors import FilterError, InvalidArgumentError
from velo.filters import from_dict, from_sql
from velo.hints import OPTIONS
from velo.options import RRF, Fusion, Weighted, fusion_of, limit_of
from velo_serving.gateway.errors import RequestError, filter_place
from velo_serving.words.types import FilterForm

__all__ = [
    "CollectionAnswer",
    "CollectionList",
    "ErrorAnswer",
    "FusionBody",
    "HealthAnswer",
    "QueryOptions",
    "ReadyAnswer",
    "SearchAnswer",
    "SearchBody",
    "check_filter",
    "parsed",
    "parsed_query",
    "refuse_query",
]

B = TypeVar("B", bound=BaseModel)

#: A filter in the dict form, or SQL text.
FilterJson = dict[str, Any] | str


def _within(argument: str, description: str) -> Any:
    """A field with the limits that the library has for this argument."""
    low, high = limit_of(argument)
    return Field(ge=low, le=high, description=description)


NeighborCount = Annotated[int, _within("k", "How many neighbors of each query.")]
ListSize = Annotated[int | None, _within("list_size", "Length of the candidate list.")]
Exact = Annotated[
    bool | None, Field(description="Whether distances are exact, from stored vectors, or estimates.")
]
GroupSize = Annotated[int | None, _within("group_hits", "Rows of a group; default 1.")]
HitLimit = Annotated[int | None, _within("limit", "Hits of a query within the radius, at most.")]
Recall = Annotated[
    float | None, Field(gt=0, le=1, description="Aim for this recall; 1 reads every stored vector.")
]
Columns = Annotated[list[str] | None, Field(description="Columns to bring with the hits.")]
ReturnVectors = Annotated[
    bool, Field(description="Bring the stored vectors of the hits; the build must have stored them.")
]
GroupBy = Annotated[
    str | None, Field(description="Column: answer with the nearest k groups of rows with equal values.")
]
Radius = Annotated[
    float | None, Field(description="Answer with all within this distance, instead of the nearest k.")
]
AllowPartial = Annotated[bool, Field(description="If false, an answer without some shard is an error.")]
Timeout = Annotated[float | None, Field(gt=0, description="Deadline of this request.")]

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


#: The forms of a fusion, as errors of pydantic call them.
_FUSION_NAME: Final = "fusion by its name"
_FUSION_BODY: Final = "fusion with weights"

Weight = Annotated[
    float | None,
    Field(ge=0, le=1e6, description="Weight of this list; 0 leaves it out. Default as in the library."),
]


class FusionBody(BaseModel):
    """How words and vectors become one list, with weights: ``velo.RRF`` or ``velo.Weighted``."""

    model_config = ConfigDict(
        **_STRICT,
        json_schema_extra={"examples": [{"method": "weighted", "vectors": 0.3, "words": 0.7}]},
    )

    method: Annotated[Literal["rrf", "weighted"], Field(description="By ranks, or by scores.")]
    vectors: Weight = None
    words: Weight = None
    depth: Annotated[int | None, _within("k", "Hits of each list; at least as many as are asked for.")] = None
    constant: Annotated[
        float | None,
        Field(ge=0, le=1e6, description="Of rrf: a hit scores weight / (constant + rank)."),
    ] = None

    @model_validator(mode="after")
    def _fits(self) -> FusionBody:
        if self.constant is not None and self.method != "rrf":
            raise ValueError("'constant' goes with 'rrf'")
        try:
            self.made()
        except InvalidArgumentError as error:
            raise ValueError(error.message) from None
        return self

    def made(self) -> Fusion:
        """As the library has it."""
        given = self.model_dump(exclude={"method"}, exclude_none=True)
        return RRF(**given) if self.method == "rrf" else Weighted(**given)


def _form_of_fusion(given: Any) -> str:
    return _FUSION_BODY if isinstance(given, dict | FusionBody) else _FUSION_NAME


class SearchBody(BaseModel):
    """A search in JSON: one `vector` or several `vectors`."""

    model_config = ConfigDict(
        **_STRICT,
        json_schema_extra={
            "examples": [
                {"vector": [0.1, 0.2, 0.3], "k": 5},
                {
                    "vectors": [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]],
                    "k": 10,
                    "filter": {"year": {"$gte": 2020}},
                    "return_metadata": ["title"],
                },
            ]
        },
    )

    vector: Annotated[list[float] | None, Field(description="One query.")] = None
    vectors: Annotated[
        list[list[float]] | None, Field(description="Several queries, all of the same length.")
    ] = None
    ids: Annotated[
        list[int] | list[str] | None,
        Field(description="Instead of vectors: rows whose stored vectors are the queries."),
    ] = None
    k: NeighborCount = 10
    filter: Annotated[
        FilterJson | None, Field(description="Restricts every query: a dict of conditions, or SQL text.")
    ] = None
    filters: Annotated[
        list[FilterJson | None] | None,
        Field(description="A filter for each query, in their order; null for none."),
    ] = None
    recall: Recall = None
    list_size: ListSize = None
    exact: Exact = None
    return_metadata: Annotated[
        list[str] | StrictBool | None,
        Field(description="Columns to bring with the hits; true for all of them."),
    ] = None
    return_vectors: ReturnVectors = False
    group_by: GroupBy = None
    group_size: GroupSize = None
    radius: Radius = None
    limit: HitLimit = None
    text: Annotated[
        str | list[str] | None,
        Field(
            description="Words that rows are found by, too: of all queries, or a text for each. Without "
            "vectors words alone are asked."
        ),
    ] = None
    fusion: Annotated[
        Annotated[
            Annotated[Literal["rrf", "weighted"] | None, Tag(_FUSION_NAME)]
            | Annotated[FusionBody, Tag(_FUSION_BODY)],
            Discriminator(_form_of_fusion),
        ],
        Field(
            description="How words and vectors become one list: by ranks, as by default, or by scores; an "
            "object has weights, too."
        ),
    ] = None
    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True

    @model_validator(mode="after")
    def _fits(self) -> SearchBody:
        given = sum(one is not None for one in (self.vector, self.vectors, self.ids))
        if given != 1 and not (self.text is not None and given == 0):
            raise ValueError("give one of 'vector', 'vectors' and 'ids'")
        if self.fusion is not None and (self.text is None or given == 0):
            raise ValueError("'fusion' goes with 'text' and vectors")
        if self.text is not None and (self.group_by is not None or self.radius is not None):
            raise ValueError("'text' goes without 'group_by' and 'radius'")
        if self.filter is not None and self.filters is not None:
            raise ValueError("give one of 'filter' and 'filters'")
        several = self.ids if self.vectors is None else self.vectors
        if given == 0 and isinstance(self.text, list):
            several = self.text
        count = 1 if several is None else len(several)
        if isinstance(self.text, list) and len(self.text) != count:
            raise ValueError(f"'text' has {len(self.text)} entries for {count} vectors")
        if self.filters is not None and len(self.filters) != count:
            raise ValueError(f"'filters' has {len(self.filters)} entries for {count} vectors")
        _check_kinds(self)
        return self

    def fuses(self) -> Fusion:
        """How words and vectors become one list."""
        return self.fusion.made() if isinstance(self.fusion, FusionBody) else fusion_of(self.fusion)


class QueryOptions(BaseModel):
    """The same options in the query string, for bodies that hold nothing but vectors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    k: NeighborCount = 10
    filter: Annotated[
        FilterJson | None, Field(description="A filter: JSON where it begins with a brace, else SQL.")
    ] = None
    recall: Recall = None
    list_size: ListSize = None
    exact: Exact = None
    return_metadata: Columns = None
    return_vectors: ReturnVectors = False
    group_by: GroupBy = None
    group_size: GroupSize = None
    radius: Radius = None
    limit: HitLimit = None
    timeout_ms: Timeout = None
    allow_partial: AllowPartial = True

    @model_validator(mode="after")
    def _fits(self) -> QueryOptions:
        _check_kinds(self)
        return self

    @classmethod
    def of(cls, pairs: list[tuple[str, str]]) -> QueryOptions:
        """Read a query string; ``return_metadata`` may repeat or hold commas, ``filter`` is JSON or SQL."""
        fields: dict[str, Any] = {}
        for name, value in pairs:
            if name == "return_metadata":
                fields.setdefault(name, []).extend(part for part in value.split(",") if part)
            elif name in fields:
                raise RequestError(f"{name} is given twice", argument=name, place={"path": name})
            elif name == "filter":
                fields[name] = _filter_text(value)
            else:
                fields[name] = value
        return parsed_query(cls, fields)


def _check_kinds(body: SearchBody | QueryOptions) -> None:
    """Nearest neighbors, groups, or all within a radius: fields of one kind alone."""
    if body.radius is not None and body.group_by is not None:
        raise ValueError("give one of 'radius' and 'group_by'")
    if body.radius is not None and "k" in body.model_fields_set:
        raise ValueError("'radius' goes with 'limit', not with 'k'")
    if body.radius is None and body.limit is not None:
        raise ValueError("'limit' goes with 'radius'")
    if body.group_by is None and body.group_size is not None:
        raise ValueError("'group_size' goes with 'group_by'")


def _filter_text(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place: dict[str, Any] = {"path": "filter"}
        if isinstance(error, json.JSONDecodeError):
            place |= {"line": error.lineno, "column": error.colno, "byte": error.pos}
        raise RequestError(
            f"the filter is not JSON: {error}",
            status=400,
            argument="filter",
            place=place,
            kind="MalformedBodyError",
        ) from None


#: The class that a client raises for what pydantic calls so.
_KINDS = {
    "finite_number": "NotFiniteError",
    "greater_than_equal": "InvalidArgumentError",
    "less_than_equal": "InvalidArgumentError",
}


def refusal(error: ValidationError, body: bytes) -> RequestError:
    """Turn what pydantic found into one error with its position: 400 where the body is no JSON, else 422."""
    faults = error.errors(include_url=False, include_input=False)
    first = faults[0]
    if first["type"] == "json_invalid":
        fault_text = str(first.get("ctx", {}).get("error", first["msg"]))
        match = re.search(r"^(.*?) at line (\d+) column (\d+)$", fault_text)
        if match is None:
            return RequestError(f"the body is not JSON: {fault_text}", status=400, kind="MalformedBodyError")
        line, column = int(match[2]), int(match[3])
        before = sum(len(text) for text in body.splitlines(keepends=True)[: line - 1])
        return RequestError(
            f"the body is not JSON: {fault_text}",
            status=400,
            place={"line": line, "column": column, "byte": before + max(column - 1, 0)},
            kind="MalformedBodyError",
        )
    path = _path(first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        word = OPTIONS.get(str(first["loc"][-1]), "")
        word = "radius" if word.startswith("range_search") else word
        message = "there is no such field"
        if word.split(",")[0] in SearchBody.model_fields:
            message += f"; velo's is {word}"
    return RequestError(
        f"{path}: {message}" if path else message,
        argument=str(first["loc"][0]) if first["loc"] else None,
        place={"path": path} if path else None,
        details=[{"path": _path(fault["loc"]), "message": fault["msg"]} for fault in faults[1:10]],
        kind=_KINDS.get(first["type"], "RequestError"),
    )


def parsed(model: type[B], body: bytes) -> B:
    """Read a body of JSON.

    Raises
    ------
    RequestError
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise refusal(error, body) from None


def parsed_query(model: type[B], fields: Mapping[str, Any]) -> B:
    """Read a query string, where a body holds rows alone.

    Raises
    ------
    RequestError
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise refusal(error, b"") from None


def refuse_query(pairs: Sequence[tuple[str, str]]) -> None:
    """Refuse a query string beside a body of JSON.

    Raises
    ------
    RequestError
    """
    if pairs:
        name = pairs[0][0]
        raise RequestError(f"{name}: with a JSON body the options stand in the body", argument=name)


#: What pydantic calls the forms that a field may have.
_FORMS: Final = ("dict[str,any]", "str", "list[int]", "list[str]", "bool", _FUSION_NAME, _FUSION_BODY)


def _path(location: tuple[int | str, ...]) -> str:
    """Write ('vectors', 3, 7) as vectors[3][7]."""
    text = ""
    for part in location:
        if part in _FORMS:  # which form was tried
            continue
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def check_filter(condition: FilterForm | None, path: str) -> None:
    """Refuse a filter that no index could evaluate, before any shard is asked.

    Whether its columns exist and have the right types, only shards know.
    """
    if condition is None:
        return
    argument = path.partition("[")[0]
    for where, value in _leaves(condition, path):
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(
                f"{where} is not a finite number",
                status=400,
                argument=argument,
                place={"path": where},
                kind="FilterError",
            )
    try:
        _ = from_sql(condition) if isinstance(condition, str) else from_dict(condition)
    except FilterError as error:
        raise RequestError(
            f"{path}: {error.message}",
            status=400,
            argument=argument,
            place=filter_place(error.message, path) or {"path": path},
            kind=type(error).__name__,
        ) from None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}")
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}[{place}]")
    else:
        yield path, value


# ---- answers: written by hand where speed counts, declared here for the OpenAPI page and the tests ----


class ShardFailureAnswer(BaseModel):
    """Why one shard is missing from an answer."""

    shard: str
    type: str
    message: str


class GroupAnswer(BaseModel):
    """One group of a query's hits: the next `size` of its row."""

    value: Any
    size: int


class SearchStats(BaseModel):
    """What the search cost, summed over queries and shards."""

    reads: int
    bytes_read: int
    shared_reads: int
    cache_hits: int


class SearchAnswer(BaseModel):
    """Neighbors of each query, nearest first; a row is shorter than k where fewer match."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "ids": [[17, 4]],
                    "distances": [[0.12, 0.31]],
                    "counts": [2],
                    "metadata": [[{"title": "a"}, {"title": "b"}]],
                    "took_ms": 1.7,
                    "shards_answered": 1,
                    "shards_total": 1,
                    "partial": False,
                    "failures": [],
                    "stats": {"reads": 5, "bytes_read": 20480, "shared_reads": 0, "cache_hits": 0},
                }
            ]
        }
    )

    ids: list[list[int]] | list[list[str]]
    distances: Annotated[list[list[float | None]], Field(description="Null where words alone were asked.")]
    counts: list[int]
    metadata: list[list[dict[str, Any]]] | None = None
    vectors: Annotated[
        list[list[list[float] | None]] | None,
        Field(
            description="With `return_vectors`: of each hit; null where its row or shard went away meanwhile."
        ),
    ] = None
    scores: Annotated[
        list[list[float]] | None,
        Field(description="With `text`: of each hit, descending. Then distances follow no order."),
    ] = None
    groups: Annotated[
        list[list[GroupAnswer]] | None,
        Field(description="With `group_by`: each query's groups, nearest first, as they follow in its row."),
    ] = None
    limited: Annotated[
        list[bool] | None, Field(description="With `radius`: whether `limit` left some out.")
    ] = None
    took_ms: float
    shards_answered: int
    shards_total: int
    partial: bool
    version: Annotated[str | None, Field(description="Of the collection, where it has one.")] = None
    failures: Annotated[
        list[ShardFailureAnswer], Field(description="Why shards are missing, if any are.")
    ] = []
    stats: SearchStats


class ErrorDetail(BaseModel):
    """What was wrong, and where."""

    model_config = ConfigDict(extra="allow")

    type: str
    message: str
    argument: str | None = None
    position: dict[str, Any] | int | None = None
    request_id: Annotated[str, Field(description="As in the header X-Request-Id and in the log.")] = ""


class ErrorAnswer(BaseModel):
    """The body of every answer that is not 2xx."""

    error: ErrorDetail


class ShardAnswer(BaseModel):
    """One shard as the gateway sees it."""

    name: str
    state: Literal["up", "down"]
    reason: str
    n: int
    node: str
    pid: int
    memory_bytes: int
    device: str
    threads: Annotated[int, Field(description="Threads that search.")]
    waiting_requests: int
    calls_in_flight: int


class CollectionSummary(BaseModel):
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
    writable: Annotated[bool, Field(description="Whether rows can be written here.")]
    queries_admitted: int
    shards: list[ShardAnswer]


class CollectionList(BaseModel):
    """All collections served here."""

    collections: list[CollectionSummary]
    aliases: Annotated[dict[str, str], Field(description="Other names, and what they stand for.")] = {}


class HealthAnswer(BaseModel):
    """The process is alive."""

    status: Literal["ok"]


class ReadyAnswer(BaseModel):
    """Whether searches can be answered, and by how many shards."""

    status: Literal["ready", "not ready"]
    collections: dict[str, str]
