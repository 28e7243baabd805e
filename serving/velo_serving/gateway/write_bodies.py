"""Writes over HTTP: bodies in JSON and Arrow, and the operations."""

from __future__ import annotations

import asyncio
import base64
import binascii
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct

from velo.errors import DtypeError, DuplicateIdError, InvalidArgumentError, UnknownColumnError
from velo_serving.gateway import bodies
from velo_serving.gateway.errors import RequestError
from velo_serving.gateway.logs import note
from velo_serving.gateway.operations import WRITE_ERRORS, Call, Operation
from velo_serving.gateway.schemas import (
    check_dims,
    check_filter,
    check_matrix,
    parsed,
    parsed_query,
    refuse_query,
    seconds,
    took_ms,
)
from velo_serving.protocol.errors import BodyTooLargeError
from velo_serving.protocol.limits import GatewayLimits
from velo_serving.protocol.requests import Ids, OneFilter, Timeout, check_ids
from velo_serving.routing import writes as collection_writes
from velo_serving.routing.served import Generation
from velo_serving.routing.writes import Maintenance, RowFormat, Verb, WriteRequest

#: What an Arrow column is called that is metadata of the name of another part of the row.
_METADATA: Final = "metadata."

RequestId: TypeAlias = Annotated[
    Annotated[str, Meta(min_length=1, max_length=256)] | None,
    Meta(description="A name for this request. To send it again with the same name does nothing twice."),
]
MetadataRows: TypeAlias = Annotated[
    list[dict[str, Any]] | dict[str, list[Any]],
    Meta(description="Columns of the rows: an object a row, or a list a column."),
]


class WriteOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a write of rows; in the query string where the body is Arrow."""

    request_id: RequestId = None
    timeout_ms: Timeout = None


class InsertBody(WriteOptions, kw_only=True, forbid_unknown_fields=True):
    """Add rows. Ids that are there already are refused."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {
        "vectors": [[0.1, 0.2, 0.3]],
        "ids": [17],
        "metadata": [{"title": "dawn"}],
    }

    vectors: Annotated[list[list[float]], Meta(description="One a row, all of the same length.")]
    ids: Annotated[Ids | None, Meta(description="One for each row, unless the rows are numbered.")] = None
    metadata: MetadataRows | None = None

    def __post_init__(self) -> None:
        check_ids(self.ids)


class UpsertBody(InsertBody, kw_only=True, forbid_unknown_fields=True):
    """Add rows, each in the place of the one that has its id, where there is one."""

    ids: Annotated[Ids, Meta(description="One a row; of several rows with one id the last counts.")]


class UpdateBody(WriteOptions, kw_only=True, forbid_unknown_fields=True):
    """Change columns of rows; their vectors and other columns stay."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"ids": [17], "metadata": [{"title": "noon"}]}

    ids: Ids
    metadata: MetadataRows

    def __post_init__(self) -> None:
        check_ids(self.ids)


class DeleteBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Delete rows by id, or all that pass a filter."""

    EXAMPLE: ClassVar[Mapping[str, Any]] = {"ids": [17, 4]}

    ids: Ids | None = None
    filter: OneFilter = None
    timeout_ms: Timeout = None

    def __post_init__(self) -> None:
        check_ids(self.ids)
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give one of 'ids' and 'filter'")


class FlushBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Make a segment of new rows, and put everything on the device."""

    timeout_ms: Timeout = None


class OptimizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Make one segment of all rows."""

    wait: Annotated[bool, Meta(description="Whether to wait for the end, as long as there is time.")] = True
    timeout_ms: Timeout = None


def parse_write(
    verb: Verb,
    media_type: str,
    body: bytes,
    pairs: list[tuple[str, str]],
    *,
    dim: int,
    rows: RowFormat,
    limits: GatewayLimits,
) -> WriteRequest:
    if media_type == bodies.JSON:
        request = _of_json(verb, body, pairs, dim, rows, limits)
    else:
        request = _of_arrow(verb, body, parsed_query(WriteOptions, pairs), dim, rows, limits)
    if request.count > limits.rows_max:
        raise BodyTooLargeError(f"{request.count} rows exceed the limit of {limits.rows_max} a request")
    if request.vectors is not None and request.vectors.nbytes > limits.body_bytes_max:
        raise BodyTooLargeError(
            f"the vectors take {request.vectors.nbytes} bytes, more than the limit of "
            f"{limits.body_bytes_max}: give fewer a request",
            argument="vectors",
        )
    _check_ids(request)
    return request


def _of_json(
    verb: Verb, body: bytes, pairs: list[tuple[str, str]], dim: int, rows: RowFormat, limits: GatewayLimits
) -> WriteRequest:
    refuse_query(pairs)
    asked: Any = parsed(_BODIES[verb], body)
    given = getattr(asked, "vectors", None)
    vectors = None if given is None else _matrix(given, dim, rows.dtype)
    condition = getattr(asked, "filter", None)
    check_filter(condition, "filter", limits)
    ids = None if asked.ids is None else _id_column(asked.ids)
    metadata = getattr(asked, "metadata", None)
    count = len(ids) if vectors is None and ids is not None else 0 if vectors is None else len(vectors)
    return WriteRequest(
        verb,
        vectors,
        ids,
        None if metadata is None else _table(metadata, rows.schema, count),
        condition,
        getattr(asked, "request_id", None),
        seconds(asked.timeout_ms),
    )


def _of_arrow(
    verb: Verb, body: bytes, options: WriteOptions, dim: int, rows: RowFormat, limits: GatewayLimits
) -> WriteRequest:
    table = bodies.table_of_arrow(body, limits.rows_max, limits.body_bytes_max)
    for name, count in Counter(table.column_names).items():
        if count > 1:
            raise RequestError(f"the Arrow stream has {count} columns {name!r}", status=400, argument=name)
    vectors = ids = None
    if verb in ("insert", "upsert"):
        if "vector" not in table.column_names:
            raise RequestError("the Arrow stream has no column 'vector'", argument="vector")
        vectors = check_matrix(bodies.array_of_arrow(table.column("vector")), dim)
    if "id" in table.column_names:
        ids = _id_column(table.column("id"))
    elif verb != "insert":
        raise RequestError("the Arrow stream has no column 'id'", argument="id")
    parts = [name for name in table.column_names if name not in ("vector", "id")]
    if "vector" in table.column_names and vectors is None:
        raise RequestError(f"{verb} takes no vectors", argument="vector")
    columns = None
    if parts and verb == "delete":
        raise RequestError(f"delete takes ids, and no column {parts[0]!r}", argument=parts[0])
    if parts:
        given = {
            name.removeprefix(_METADATA)
            if name in ("metadata.id", "metadata.vector")
            else name: table.column(name)
            for name in parts
        }
        columns = _columns(given, rows.schema)
    return WriteRequest(
        verb, vectors, ids, columns, request_id=options.request_id, timeout_s=seconds(options.timeout_ms)
    )


# ---- vectors and ids ----


def _matrix(given: Sequence[Sequence[float]], dim: int, dtype: np.dtype[Any]) -> Any:
    """JSON numbers in the type of the index; values that it cannot represent are refused."""
    check_dims(given, dim)
    exact = np.array(given, np.float64).reshape(len(given), dim)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return check_matrix(exact.astype(dtype), dim)
    info = np.iinfo(dtype)
    wrong = (exact != np.floor(exact)) | (exact < info.min) | (exact > info.max)
    if wrong.any():
        at, column = (int(place) for place in np.argwhere(wrong)[0])
        raise DtypeError(
            f"vectors[{at}][{column}] is no {dtype}: this collection holds whole numbers from {info.min} to "
            f"{info.max}",
            argument="vectors",
            row=at,
        )
    return exact.astype(dtype)


def _id_column(given: Any) -> Any:
    """Ids as int64, or as an Arrow array of large strings."""
    column: Any = given
    try:
        if not isinstance(given, pa.ChunkedArray):
            column = pa.chunked_array([pa.array(given, pa.int64() if not given else None)])
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if column.null_count:
            raise InvalidArgumentError("ids: there is a null among them", argument="ids")
        if pa.types.is_integer(column.type):
            return np.asarray(column.cast(pa.int64()))
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise InvalidArgumentError(
                f"ids must be whole numbers or strings, not {column.type}", argument="ids"
            )
        return pa.concat_arrays([pa.array([], pa.large_string()), *column.cast(pa.large_string()).chunks])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"ids are 64-bit integers or strings: {error}", argument="ids") from None


def _check_ids(request: WriteRequest) -> None:
    """Refuse ids here that a shard would refuse after another one had written its rows."""
    ids = request.ids
    if ids is None:
        return
    if request.vectors is not None and len(ids) != len(request.vectors):
        raise InvalidArgumentError(f"{len(ids)} ids for {len(request.vectors)} vectors", argument="ids")
    if isinstance(ids, np.ndarray) and request.verb in ("insert", "upsert") and bool((ids == -1).any()):
        row = int(np.argmax(ids == -1))
        raise InvalidArgumentError(
            f"ids: row {row} has the id -1, which means no hit in answers",
            argument="ids",
            row=row,
        )
    if request.verb != "insert":
        return
    seen: dict[Any, int] = {}
    for row, one in enumerate(ids.tolist() if isinstance(ids, np.ndarray) else ids.to_pylist()):
        first = seen.setdefault(one, row)
        if first != row:
            raise DuplicateIdError(
                f"ids: {one!r} of row {row} was given to row {first} already", argument="ids", row=row
            )


# ---- metadata ----


def _table(given: Any, schema: pa.Schema, count: int) -> pa.Table:
    if isinstance(given, list):
        names = list(dict.fromkeys(name for row in given for name in row))
        found = len(given)
        lists = {name: [row.get(name) for row in given] for name in names}
    else:
        lists = given
        found = len(next(iter(lists.values()))) if lists else count
        for name, values in lists.items():
            if len(values) != found:
                raise InvalidArgumentError(
                    f"metadata: column {name!r} has {len(values)} values, another has {found}",
                    argument="metadata",
                )
    if found != count:
        raise InvalidArgumentError(f"metadata has {found} rows, {count} are needed", argument="metadata")
    return _columns(lists, schema)


def _columns(given: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    fields, arrays = [], []
    for name, values in given.items():
        if name not in schema.names:
            known = ", ".join(map(repr, schema.names)) or "no columns"
            raise UnknownColumnError(f"there is no column {name!r}, only {known}", argument="metadata")
        field = schema.field(name)
        fields.append(field)
        try:
            arrays.append(
                values.cast(field.type) if isinstance(values, pa.ChunkedArray) else _array(values, field.type)
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError, binascii.Error) as error:
            raise InvalidArgumentError(
                f"metadata: column {name!r} is {field.type}: {error}", argument="metadata"
            ) from None
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: list[Any], kind: Any) -> Any:
    """Values of JSON in the type of a column: times are ISO 8601, bytes are base64."""
    if pa.types.is_dictionary(kind):
        return _array(values, kind.value_type).cast(kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array(
            [None if one is None else base64.b64decode(one, b"-_", validate=True) for one in values], kind
        )
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        texts = all(one is None or isinstance(one, str) for one in values)
        if texts:
            return pa.array(values, pa.string()).cast(kind)
    for value in values:
        _check_number(value, kind)
    return pa.array(values, kind)


def _check_number(value: Any, kind: Any) -> None:
    """Refuse a number, also in lists and objects, that Arrow would truncate or convert."""
    if value is None or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return
    if isinstance(value, list) and (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        for one in value:
            _check_number(one, kind.value_type)
    elif isinstance(value, dict) and pa.types.is_struct(kind):
        for field in kind:
            _check_number(value.get(field.name), field.type)
    elif pa.types.is_floating(kind):
        if isinstance(value, bool):
            raise ValueError(f"{value} is no number")
        if isinstance(value, int | float) and abs(value) > float(np.finfo(kind.to_pandas_dtype()).max):
            raise ValueError(f"{value} is above what it holds")
    elif isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is no whole number")


class WriteAnswer(Struct):
    """The result of a write."""

    rows: Annotated[int, Meta(description="Rows that it changed.")]
    missing: Annotated[int, Meta(description="Ids that no row had.")]
    replaced: Annotated[int, Meta(description="Of an upsert: rows that took the place of others.")]
    first_id: Annotated[int | None, Meta(description="The first id, if rows are numbered.")]
    repeated: Annotated[bool, Meta(description="A request of this `request_id` was done before.")]
    durable: Annotated[bool, Meta(description="It is on the device already.")]
    pressure: Annotated[float, Meta(description="How full the memory for new rows is; at 1 writes wait.")]
    sequences: Annotated[dict[str, int], Meta(description="The number of the change in each shard.")]
    took_ms: float


class MaintenanceAnswer(Struct):
    """Whether it is done; else it goes on."""

    done: bool
    took_ms: float


async def _write(verb: Verb, call: Call, now: Generation) -> WriteAnswer:
    rows = collection_writes.row_format(now.router)
    parse = partial(parse_write, verb, *call[:3], dim=now.dim, rows=rows, limits=call.limits)
    apart = len(call.body) > call.limits.inline_bytes_max
    request = await asyncio.to_thread(parse) if apart else parse()
    note(version=now.version, rows=request.count)
    wrote = await collection_writes.write(now.router, request)
    fields = {one.name: getattr(wrote, one.name) for one in dataclasses.fields(wrote)}
    return WriteAnswer(**fields, took_ms=took_ms(call.started))


async def _keep_up(what: Maintenance, call: Call, now: Generation) -> MaintenanceAnswer:
    refuse_query(call.pairs)
    asked: Any = parsed(_BODIES[what], call.body or b"{}")
    wait = getattr(asked, "wait", True)
    done = await collection_writes.keep_up(now.router, what, wait=wait, timeout_s=seconds(asked.timeout_ms))
    return MaintenanceAnswer(done, took_ms(call.started))


def _rows(verb: Verb, summary: str, body: type[Struct]) -> Operation:
    return Operation(
        verb,
        summary,
        body,
        WriteAnswer,
        WRITE_ERRORS,
        partial(_write, verb),
        "write",
        "Columns `vector` and `id`, and those of the metadata; options in the query string.",
        WriteOptions,
    )


def _maintenance(what: Maintenance, summary: str, body: type[Struct]) -> Operation:
    work = partial(_keep_up, what)
    return Operation(what, summary, body, MaintenanceAnswer, WRITE_ERRORS, work, "write")


WRITES: Final = (
    _rows("insert", "Add rows", InsertBody),
    _rows("upsert", "Add or replace rows", UpsertBody),
    _rows("update", "Change columns of rows", UpdateBody),
    _rows("delete", "Delete rows by id or filter", DeleteBody),
    _maintenance("flush", "Make a segment of new rows, and put everything on the device", FlushBody),
    _maintenance("optimize", "Make one segment of all rows", OptimizeBody),
)

_BODIES: Final = {one.path: one.body for one in WRITES}
