"""Bodies of searches: JSON and Arrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from velo.errors import DimensionMismatchError, EmptyError
from velo.options import Fusion
from velo_serving.gateway.errors import RequestError
from velo_serving.gateway.schemas import (
    check_dims,
    check_filter,
    check_matrix,
    parsed,
    parsed_query,
    refuse_query,
    seconds,
)
from velo_serving.protocol.errors import (
    BodyTooLargeError,
    MalformedBodyError,
    ProtocolError,
    UnsupportedMediaTypeError,
)
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.protocol.requests import (
    NOT_IN_ARROW,
    FilterForm,
    Float32Matrix,
    SearchBody,
    SearchRequest,
    options_of,
)
from velo_serving.transport.codec import is_compressed, table_of

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"

READS = (JSON, ARROW)

#: Requests with a filter that are longer than this are parsed in a thread.
_FILTER_INLINE_MAX = 2 << 10

#: Characters of a text; as the library has it.
_TEXT_MAX = 1 << 16


def media_type_of(content_type: str | None) -> str:
    media_type = (content_type or JSON).partition(";")[0].strip().lower()
    if media_type in READS:
        return media_type
    raise UnsupportedMediaTypeError(f"content type {media_type!r} is none of {', '.join(READS)}")


def check_encoding(content_encoding: str | None) -> None:
    """Refuse compressed bodies, which could expand beyond the limit."""
    if content_encoding is not None and content_encoding.strip().lower() != "identity":
        raise UnsupportedMediaTypeError(f"content encoding {content_encoding!r} is not read; send it plain")


def parse_search(
    media_type: str,
    body: bytes,
    pairs: list[tuple[str, str]],
    *,
    dim: int,
    limits: GatewayLimits,
    columns: Callable[[], Sequence[str]] = tuple,
) -> SearchRequest:
    filters: tuple[FilterForm | None, ...] | None
    if media_type == JSON:
        refuse_query(pairs)
        asked = parsed(SearchBody, body)
        queries = _queries_of(asked, dim)
        filters = None if asked.filters is None else tuple(asked.filters)
    else:
        asked = _of_query(pairs)
        queries, filters = _matrix_of_arrow(body, limits)
        if filters is not None and asked.filter is not None:
            raise RequestError("give a filter in the query string or a column 'filter'", argument="filter")
    name = "filter" if asked.filters is None else "filters"
    if asked.filter is not None:
        filters = (asked.filter,)
    _check_sql(filters or (), name, limits)
    for place, one in enumerate(filters or ()):
        check_filter(one, name if asked.filter is not None else f"{name}[{place}]", limits)
    return _request(queries, filters, asked, dim, limits, columns)


def _of_query(pairs: Iterable[tuple[str, str]]) -> SearchBody:
    """Options of an Arrow body; ``return_metadata`` may repeat or hold commas, ``filter`` is JSON or SQL."""
    fields: list[tuple[str, Any]] = []
    columns: list[str] = []
    for name, value in pairs:
        if name in NOT_IN_ARROW:
            raise RequestError(f"{name}: there is no such field beside a body of Arrow", argument=name)
        if name == "return_metadata":
            columns += [part for part in value.split(",") if part]
        else:
            is_json = name == "filter" and _is_json(value)
            fields.append((name, _json_of(value) if is_json else value))
    return parsed_query(SearchBody, [*fields, *([("return_metadata", columns)] if columns else [])])


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place: dict[str, Any] = {}
        if isinstance(error, json.JSONDecodeError):
            place = {"line": error.lineno, "column": error.colno, "byte": error.pos}
        message = f"the filter is not JSON: {error}"
        raise RequestError(
            message, status=400, path="filter", place=place, kind="MalformedBodyError"
        ) from None


def _queries_of(asked: SearchBody, dim: int) -> Float32Matrix:
    """The vectors of a JSON body; zeros where ids or texts stand for them."""
    if asked.ids is not None:
        if not asked.ids:
            raise EmptyError("there is no id in the request", argument="ids")
        return np.zeros((len(asked.ids), dim), np.float32)
    rows, name = asked.vectors, "vectors"
    if asked.vector is not None:
        rows, name = [asked.vector], "vector"
    if rows is None:
        if asked.text is None:
            raise RequestError("give one of 'vector', 'vectors' and 'ids'")
        return np.zeros((1 if isinstance(asked.text, str) else len(asked.text), dim), np.float32)
    check_dims(rows, dim, name)
    with np.errstate(over="ignore"):
        return np.array(rows, dtype=np.float32).reshape(len(rows), dim)


def _check_sql(filters: Iterable[FilterForm | None], argument: str, limits: GatewayLimits) -> None:
    """Refuse long SQL, which is slow to parse; a dict of the same conditions is a hundred times faster."""
    total = sum(map(len, {one for one in filters if isinstance(one, str)}))
    if total > limits.sql_total_bytes_max:
        raise BodyTooLargeError(
            f"{argument}: SQL of {total} characters in all is above the limit of "
            f"{limits.sql_total_bytes_max}; dicts may be longer",
            argument=argument,
        )


def is_long_to_parse(body: bytes, pairs: list[tuple[str, str]], limits: GatewayLimits) -> bool:
    """Whether to parse in a thread: a large body, or a long filter."""
    if len(body) > limits.inline_bytes_max:
        return True
    if sum(len(value) for name, value in pairs if name == "filter") > _FILTER_INLINE_MAX:
        return True
    return len(body) > _FILTER_INLINE_MAX and b"filter" in body


def _request(
    queries: Float32Matrix,
    filters: tuple[FilterForm | None, ...] | None,
    options: SearchBody,
    dim: int,
    limits: GatewayLimits,
    columns: Callable[[], Sequence[str]],
) -> SearchRequest:
    count = len(queries)
    if count == 0:
        raise EmptyError("there is no vector in the request", argument="vectors")
    if count > limits.queries_max:
        raise BodyTooLargeError(f"{count} vectors exceed the limit {limits.queries_max}", argument="vectors")
    check_matrix(queries, dim)
    k, name = (10 if options.k is UNSET else options.k), "k"
    if options.radius is not None:
        name = "limit"
        hits_max = limits.hits_max
        if options.return_vectors:
            hits_max = min(hits_max, limits.vectors_bytes_max // (4 * dim))
        k = options.limit or max(1, min(limits.k_max, hits_max // count))
    group_size = options.group_size or 1
    if k * group_size > limits.k_max:
        request_text = f"{k}" if group_size == 1 else f"{k} groups of {group_size}"
        raise RequestError(f"{name}: {request_text} is above the limit of {limits.k_max}", path=name)
    if count * k * group_size > limits.hits_max:
        raise BodyTooLargeError(
            f"{count} vectors with {name} = {k} are above the limit of {limits.hits_max} hits", argument=name
        )
    vectors_bytes = count * k * group_size * dim * 4 if options.return_vectors else 0
    if vectors_bytes > limits.vectors_bytes_max:
        raise BodyTooLargeError(
            f"{count} vectors with {name} = {k} may bring {vectors_bytes} bytes of vectors; the limit is "
            f"{limits.vectors_bytes_max}",
            argument="return_vectors",
        )
    text = (options.text,) * count if isinstance(options.text, str) else options.text
    fusion = None
    if text is not None:
        for place, one in enumerate(text):
            if len(one) > _TEXT_MAX:
                raise RequestError(f"text[{place}] exceeds {_TEXT_MAX} characters", path=f"text[{place}]")
        if options.vector is not None or options.vectors is not None or options.ids is not None:
            fusion = options.fuses()
            _check_depth(fusion, k, count, limits)
    names = options.return_metadata
    if isinstance(names, bool):
        names = list(columns()) if names else None
    return SearchRequest(
        queries,
        k,
        filters,
        return_metadata=None if names is None else tuple(names),
        timeout_s=seconds(options.timeout_ms),
        ids=None if options.ids is None else tuple(options.ids),
        text=None if text is None else tuple(text),
        fusion=fusion,
        **options_of(options),
    )


def _check_depth(fusion: Fusion, k: int, count: int, limits: GatewayLimits) -> None:
    depth = fusion.depth_of(k)
    if fusion.depth is None:
        return
    if depth > limits.k_max:
        raise RequestError(f"fusion.depth: {depth} is above the limit of {limits.k_max}", path="fusion.depth")
    if count * depth > limits.hits_max:
        raise BodyTooLargeError(
            f"{count} vectors with a depth of {depth} are above the limit of {limits.hits_max} hits",
            argument="fusion",
        )


# ---- Arrow ----


def _matrix_of_arrow(
    body: bytes, limits: GatewayLimits
) -> tuple[Float32Matrix, tuple[FilterForm | None, ...] | None]:
    """Read a stream with a list column ``vector`` and, if there is one, a text column ``filter`` of JSON."""
    table = table_of_arrow(body, limits.queries_max, limits.body_bytes_max)
    if "vector" not in table.column_names:
        raise RequestError(
            f"the Arrow stream has no column 'vector' but {', '.join(table.column_names) or 'none'}",
            argument="vector",
        )
    for name in ("vector", "filter"):
        count = table.column_names.count(name)
        if count > 1:
            raise RequestError(f"the Arrow stream has {count} columns {name!r}", status=400, path=name)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = np.ascontiguousarray(array_of_arrow(table.column("vector")), dtype=np.float32)
    if "filter" not in table.column_names:
        return matrix, None
    texts = _texts(table.column("filter"))
    return matrix, tuple(_filter_of_text(place, text) for place, text in enumerate(texts))


def _texts(column: pa.ChunkedArray[Any]) -> list[str | None]:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_null(kind) or str(kind) in ("string", "large_string", "string_view")):
        raise RequestError(
            f"column 'filter' is {column.type}, not text", status=400, argument="filter", kind="FilterError"
        )
    texts: list[str | None] = column.to_pylist()
    return texts


def table_of_arrow(body: bytes, rows_max: int, bytes_max: int) -> Any:
    """Read an untrusted Arrow stream; a column may expand to ``bytes_max`` at most."""
    try:
        if is_compressed(body):
            raise UnsupportedMediaTypeError("compressed Arrow is not read here; send the stream plain")
        table = table_of(body)
    except ProtocolError as error:
        raise MalformedBodyError(f"the body cannot be read: {error}") from None
    if table.num_rows > rows_max:
        raise BodyTooLargeError(
            f"{table.num_rows} rows are above the limit of {rows_max}: give fewer a request",
            argument="vectors",
        )
    for name, column in zip(table.column_names, table.columns, strict=True):
        size = sum(map(_unfolded_bytes, column.chunks))
        if size > bytes_max:
            raise BodyTooLargeError(
                f"column {name!r} takes {size} bytes where each row has its own value, more than the limit "
                f"of {bytes_max}",
                argument=name,
            )
    return table


def _unfolded_bytes(array: Any) -> int:
    """An upper bound of the size of an array once shared values are expanded."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = array.dictionary
        if pa.types.is_primitive(kind.value_type):
            return len(array) * 8
        if str(kind.value_type) in ("string", "large_string", "binary", "large_binary"):
            lengths = pc.fill_null(pc.binary_length(values), 0)
            return int(pc.sum(pc.cast(lengths.take(array.indices), pa.int64())).as_py() or 0)
        return len(array) * _unfolded_bytes(values)
    if kind in (pa.string_view(), pa.binary_view()):
        heads = np.frombuffer(array.buffers()[1], "<i4", 4 * len(array), 16 * array.offset)
        return int(heads[::4].sum(dtype=np.int64))
    if pa.types.is_run_end_encoded(kind):
        return len(array) * _unfolded_bytes(array.values)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return len(array) * _unfolded_bytes(array.values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _unfolded_bytes(array.values)
    if pa.types.is_struct(kind):
        return sum(_unfolded_bytes(array.field(place)) for place in range(kind.num_fields))
    return int(array.nbytes)


def array_of_arrow(given: Any) -> Any:
    column: Any = given.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not lists or str(kind.value_type) not in ("float", "double", "halffloat", "uint8", "int8"):
        raise RequestError(
            f"column 'vector' is {kind}, not a list of numbers", argument="vector", kind="DtypeError"
        )
    if column.null_count:
        raise RequestError("column 'vector' holds nulls", argument="vector")
    values = column.flatten()
    if values.null_count:
        raise RequestError("a vector holds nulls", argument="vector")
    rows = len(column)
    lengths = np.unique(np.asarray(column.value_lengths())) if rows else np.zeros(1, dtype=np.int64)
    if len(lengths) > 1:
        raise DimensionMismatchError(f"the vectors have {len(lengths)} different lengths", argument="vector")
    return values.to_numpy(zero_copy_only=False).reshape(rows, int(lengths[0]))


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[")


def _filter_of_text(place: int, text: str | None) -> FilterForm | None:
    if text is None:
        return None
    try:
        condition = json.loads(text) if _is_json(text) else text
        if not isinstance(condition, dict | str):
            raise ValueError("it must be a JSON object or SQL text")
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(
            f"filter of query {place} cannot be read: {error}",
            status=400,
            argument="filter",
            place={"query": place},
            kind="FilterError",
        ) from None
    return condition
