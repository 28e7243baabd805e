"""A request of the client as bytes out, and the way back from bytes to arrays and tables."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from velo.errors import DimensionMismatchError, InvalidArgumentError, NotFiniteError
from velo.folder.ids import checked_ids
from velo.folder.metadata import given_metadata
from velo.options import RRF, fusion_of
from velo.results import RangeResult, SearchResult, Served, Written
from velo_serving.protocol.answers import groups_result, nearest_result, ranges_result
from velo_serving.protocol.hits import COSTS, no_hits
from velo_serving.protocol.requests import NOT_IN_ARROW
from velo_serving.protocol.types import Hits
from velo_serving.transport.codec import stream_of, table_of

if TYPE_CHECKING:
    import httpx

R = TypeVar("R")
BodyFormat: TypeAlias = Literal["json", "arrow"]

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"

#: Options that need JSON: an Arrow body has no place for them, or the answer none for what they bring.
_JSON_ONLY: Final = NOT_IN_ARROW | {"return_metadata", "group_by"}

#: Defaults of the server's, which need not travel.
_DEFAULTS: Final = {"allow_partial": True, "return_vectors": False}

#: A longer filter goes into a body: servers and proxies bound the length of a URL.
FILTER_IN_URL_BYTES_MAX: Final = 2 << 10


@dataclass(frozen=True)
class Call(Generic[R]):
    """One request, the reader of its response, and whether to ask again after a result."""

    method: str
    path: str
    read: Callable[[httpx.Response], R]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    again: Callable[[R], bool] = lambda result: False


@dataclass(frozen=True)
class Target:
    """The collection that is asked, and the form of searches."""

    collection: str | None
    body_format: BodyFormat

    def __post_init__(self) -> None:
        if self.body_format not in get_args(BodyFormat):
            raise InvalidArgumentError(
                f"body_format is 'json' or 'arrow', not {self.body_format!r}", argument="body_format"
            )

    @property
    def info(self) -> str:
        return "/v1/collections" if self.collection is None else f"/v1/collections/{self.collection}"

    @property
    def search(self) -> str:
        return "/v1/search" if self.collection is None else f"{self.info}/search"

    def path(self, what: str = "") -> str:
        if self.collection is None:
            raise InvalidArgumentError(f"{what or 'drop'} needs a collection's name", argument="collection")
        return f"{self.info}/{what}" if what else self.info


def json_call(path: str, fields: Mapping[str, Any], read: Callable[[Any], R]) -> Call[R]:
    """A request with JSON in both directions; ``timeout_s`` becomes ``timeout_ms``."""
    sent = dict(fields)
    if "timeout_s" in sent:
        seconds = sent.pop("timeout_s")
        sent |= {} if seconds is None else {"timeout_ms": seconds * 1000}
    try:
        body = json.dumps(sent, allow_nan=False).encode()
    except ValueError as error:
        raise NotFiniteError(f"an option is not finite: {error}") from None
    headers = {"Content-Type": JSON, "Accept": JSON}
    return Call("POST", path, lambda response: read(response.json()), body, headers)


def for_rows(path: str, fields: Mapping[str, Any]) -> Call[pa.Table]:
    call: Call[Any] = json_call(path, fields, dict)
    return replace(call, read=_table_of, headers={**call.headers, "Accept": ARROW})


def _table_of(response: httpx.Response) -> pa.Table:
    return table_of(response.content).replace_schema_metadata(None)


# ---- searches ----


def search_call(target: Target, queries: npt.ArrayLike | None, **options: Any) -> Call[SearchResult]:
    k, group_size = int(options["k"]), options["group_size"]
    if options["group_by"] is None:
        group_size = None
        if options["group_size"] == 1:
            options["group_size"] = None
    call, single = _call_of(target, queries, options)
    return replace(call, read=partial(_nearest_of, k=k, group_size=group_size, single=single))


def range_call(target: Target, queries: npt.ArrayLike | None, **options: Any) -> Call[RangeResult]:
    return replace(_call_of(target, queries, options)[0], read=_ranges_of)


def _call_of(
    target: Target, queries: npt.ArrayLike | None, options: Mapping[str, Any]
) -> tuple[Call[Any], bool]:
    """A search request, and whether it has a single query. None leaves an option to the server."""
    fields = {
        name: value
        for name, value in options.items()
        if value is not None and (name not in _DEFAULTS or value != _DEFAULTS[name])
    }
    columns = fields.get("return_metadata")
    if columns is not None:
        fields["return_metadata"] = column_names(columns, "return_metadata")
    if queries is None and "ids" not in fields and "text" in fields:  # words alone
        return json_call(target.search, fields, dict), isinstance(fields["text"], str)
    if (queries is None) == ("ids" not in fields):
        raise InvalidArgumentError("a search takes queries or ids, and one of them", argument="queries")
    if queries is None:
        ids = np.asarray(fields["ids"])
        fields["ids"] = np.atleast_1d(ids).tolist()
        return json_call(target.search, fields, dict), ids.ndim == 0
    rows = _matrix(queries)
    single = rows.ndim == 1
    rows = rows.reshape(1, -1) if single else rows
    is_short = len(_query_text(fields.get("filter", "")).encode()) <= FILTER_IN_URL_BYTES_MAX
    if target.body_format == "json" or _JSON_ONLY & fields.keys() or not is_short:
        return json_call(target.search, {"vectors": rows.tolist(), **fields}, dict), single
    if "timeout_s" in fields:
        fields["timeout_ms"] = fields.pop("timeout_s") * 1000
    params = {name: _query_text(value) for name, value in fields.items()}
    body = stream_of(pa.table({"vector": _lists(rows)}))
    headers = {"Content-Type": ARROW, "Accept": ARROW}
    return Call("POST", target.search, _ranges_of, body, headers, params), single


def _lists(rows: npt.NDArray[Any]) -> Any:
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])


def _ranges_of(response: httpx.Response) -> RangeResult:
    return ranges_result(*_answer_of(response))


def _nearest_of(response: httpx.Response, k: int, group_size: int | None, single: bool) -> SearchResult:
    hits, served = _answer_of(response, k * (group_size or 1))
    if group_size is None:
        return nearest_result(hits, served, single=single)
    return groups_result(hits, served, k, group_size, single=single)


def fusion_field(given: Any) -> Any:
    """``search(fusion=)`` as a field of a JSON body."""
    if given is None:
        return None
    fusion = fusion_of(given)
    if isinstance(given, str):
        return given
    given_fields = {name: value for name, value in asdict(fusion).items() if value is not None}
    return {"method": "rrf" if isinstance(fusion, RRF) else "weighted", **given_fields}


def column_names(given: Any, argument: str) -> list[str] | bool:
    if isinstance(given, bool):
        return given
    if not isinstance(given, Iterable):
        raise InvalidArgumentError(f"columns are True or a list, not {given!r}", argument=argument)
    return [given] if isinstance(given, str) else list(given)


def _matrix(queries: npt.ArrayLike) -> npt.NDArray[np.float32]:
    matrix = np.asarray(queries, dtype=np.float32)
    if matrix.ndim not in (1, 2):
        raise DimensionMismatchError(f"queries of shape {matrix.shape} are no matrix", argument="queries")
    if not np.isfinite(matrix).all():
        raise NotFiniteError("the queries hold a number that is not finite", argument="queries")
    return matrix


def _answer_of(response: httpx.Response, k: int | None = None) -> tuple[Hits, Served]:
    """Read an answer; its rows are padded to k, or to the longest."""
    if response.headers.get("content-type", "").startswith(ARROW):
        table = table_of(response.content)
        status = json.loads((table.schema.metadata or {})[b"velo"])
        hits = _hits_of_arrow(table, status["query_count"], k)
    else:
        status = response.json()
        counts = np.asarray(status["counts"], dtype=np.int64)
        width = k or int(counts.max(initial=1))
        given, strings = status["ids"], any(isinstance(one, str) for row in status["ids"] for one in row)
        ids, distances = no_hits(len(counts), width, strings=strings)
        scores = None if status.get("scores") is None else np.zeros_like(distances)
        for query, row in enumerate(given):
            ids[query, : len(row)] = row
            distances[query, : len(row)] = status["distances"][query]
            if scores is not None:
                scores[query, : len(row)] = status["scores"][query]
        distances[np.isnan(distances)] = np.inf  # null: a full-text search has no distances
        groups = status.get("groups")
        hits = Hits(
            ids,
            distances,
            counts,
            _tables_of(status.get("metadata")),
            groups=groups and [[(one["value"], one["size"]) for one in row] for row in groups],
            vectors=_vectors_of(status.get("vectors"), width),
            scores=scores,
        )
    costs = {name: status.get("stats", {}).get(name, 0) for name in COSTS}
    hits = replace(hits, limited=status.get("limited"), **costs)
    return hits, Served(
        status["took_ms"], status["shards_answered"], status["shards_total"], status.get("failures", [])
    )


def _hits_of_arrow(table: pa.Table, query_count: int, k: int | None) -> Hits:
    query, rank, found = (np.asarray(table[name]) for name in ("query", "rank", "id"))
    counts = np.bincount(query, minlength=query_count).astype(np.int64)
    width = k or int(counts.max(initial=1))
    ids, distances = no_hits(len(counts), width, strings=found.dtype == object)
    ids[query, rank], distances[query, rank] = found, np.asarray(table["distance"])
    vectors: npt.NDArray[np.float32] | None = None
    if "vector" in table.column_names:
        lists: Any = table["vector"]
        dim, real = lists.type.list_size, np.asarray(lists.is_valid())
        vectors = np.full((len(counts), width, dim), np.nan, np.float32)
        vectors[query[real], rank[real]] = np.asarray(pc.list_flatten(lists)).reshape(-1, dim)
    return Hits(ids, distances, counts, vectors=vectors)


def _tables_of(metadata: Sequence[list[dict[str, Any]]] | None) -> list[pa.Table] | None:
    """The rows of each query as a table; a column has one type in all of them."""
    if metadata is None:
        return None
    rows = [row for part in metadata for row in part]
    whole = pa.Table.from_pylist(rows) if rows else pa.table({})
    ends = itertools.accumulate(map(len, metadata))
    return [whole.slice(end - len(part), len(part)) for end, part in zip(ends, metadata, strict=True)]


def _vectors_of(
    rows: Sequence[Sequence[Sequence[float] | None]] | None, k: int
) -> npt.NDArray[np.float32] | None:
    if rows is None:
        return None
    dim = max((len(one) for row in rows for one in row if one is not None), default=0)
    vectors = np.full((len(rows), k, dim), np.nan, np.float32)
    for query, row in enumerate(rows):
        for place, one in enumerate(row):
            if one is not None:
                vectors[query, place] = one
    return vectors


def _query_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, allow_nan=False)
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- writes ----


def _name(request: str | None) -> str | None:
    try:
        if request is not None:
            request.encode()
    except (UnicodeEncodeError, AttributeError):
        raise InvalidArgumentError(f"request is Unicode text, not {request!r}", argument="request") from None
    return request


def write_call(
    path: str,
    vectors: npt.ArrayLike | None,
    ids: Any,
    metadata: Any,
    request: str | None,
    timeout_s: float | None,
) -> Call[Written]:
    columns: dict[str, Any] = {}
    count = 0
    if vectors is not None:
        matrix = np.asarray(vectors)
        matrix = matrix.reshape(1, -1) if matrix.ndim == 1 else matrix
        if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
            raise DimensionMismatchError(
                f"vectors of shape {matrix.shape} and type {matrix.dtype} are no matrix of numbers",
                argument="vectors",
            )
        if matrix.dtype.kind == "f" and not np.isfinite(matrix).all():
            raise NotFiniteError("the vectors hold a number that is not finite", argument="vectors")
        if matrix.dtype.name not in ("float32", "float64", "float16", "uint8", "int8"):
            matrix = matrix.astype(np.float32)
        columns["vector"] = _lists(matrix)
        count = len(matrix)
    if ids is not None:
        column = id_column(ids)
        columns["id"] = pa.array(column) if isinstance(column, np.ndarray) else column
        if vectors is not None and len(column) != count:
            raise InvalidArgumentError(f"{len(column)} ids were given for {count} vectors", argument="ids")
        count = len(column)
    if metadata is not None:
        table = given_metadata(metadata, count).table()
        for name in table.column_names:
            label = f"metadata.{name}" if name in ("vector", "id") else name
            columns[label] = table.column(name)
    # A caller that misses the answer repeats the request, which is executed only once.
    params = {"request_id": _name(request) or secrets.token_hex(16)}
    if timeout_s is not None:
        params["timeout_ms"] = str(timeout_s * 1000)
    headers = {"Content-Type": ARROW, "Accept": JSON}
    read: Callable[[httpx.Response], Written] = lambda response: written(response.json())  # noqa: E731
    return Call("POST", path, read, stream_of(pa.table(columns)), headers, params)


def id_column(ids: Any) -> Any:
    return checked_ids([ids] if isinstance(ids, str | int | np.integer) else ids)


def written(answer: Mapping[str, Any]) -> Written:
    same = ("rows", "missing", "durable", "replaced", "first_id", "repeated", "pressure")
    sequence = max(answer["sequences"].values(), default=0)
    return Written(sequence=sequence, **{name: answer[name] for name in same})
