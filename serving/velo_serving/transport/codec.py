"""Requests and replies as heads and bodies of frames. What arrives is checked before it is believed."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import itertools
import json
import math
import struct
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from velo.errors import InvalidArgumentError, VeloError
from velo.filters import from_dict, to_dict
from velo_serving.protocol.errors import ProtocolError
from velo_serving.protocol.hits import COSTS, Costs, costs_of, joined, rows_of_hits
from velo_serving.protocol.requests import SearchOptions, effort_of, options_of
from velo_serving.protocol.types import (
    Failure,
    FilterForm,
    Hits,
    SearchRequest,
    ShardHealth,
    ShardReply,
)

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()
encode = _ENCODER.encode


class Hello(msgspec.Struct, array_like=True):
    """The first message of a client: its token, and the shard that it expects."""

    token: str
    shard: str = ""


class Call(msgspec.Struct, array_like=True):
    """Anything but a search: a method of the shard and its arguments, plain data."""

    method: str
    arguments: dict[str, Any] = {}


class _Search(SearchOptions, array_like=True, frozen=True, kw_only=True):
    rows: int
    dim: int
    k: int
    filters: list[str | None] | None = None
    return_metadata: list[str] | None = None
    text: list[str] | None = None
    heavy: bool = False


class _Hits(msgspec.Struct, array_like=True):
    """Which arrays lie in the body, one after another, and how large they are."""

    rows: int
    width: int
    names: list[list[str]] | None  # ids that are strings; numbers are in the body
    limited: bool
    group_sizes: list[list[int]] | None
    group_bytes: int
    table_bytes: int
    reads: int
    bytes_read: int
    shared_reads: int
    cache_hits: int


class _Replies(msgspec.Struct, array_like=True):
    """The hits of several requests of one query each: numbers and costs lie in the body with them."""

    rows: int
    width: int
    names: list[list[str]] | None


_DECODERS: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (Hello, Call, Failure, ShardHealth, _Search, _Hits, _Replies, bool, dict)
}


def decode(head: bytes, kind: type[T]) -> T:
    try:
        message: T = _DECODERS[kind].decode(head)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise ProtocolError(f"the head of a frame is no {kind.__name__.strip('_')}: {error}") from None
    return message


# ---- searches ----


def encode_search(request: SearchRequest) -> tuple[bytes, bytes]:
    """Head and body of a search, encoded once for all shards."""
    frame: tuple[bytes, bytes] | None = request.encoded
    if frame is None:
        queries = np.ascontiguousarray(request.queries, dtype="<f4")
        rows, dim = queries.shape
        columns = request.return_metadata
        head = encode(
            _Search(
                rows=rows,
                dim=dim,
                k=request.k,
                filters=None if request.filters is None else [_filter_text(one) for one in request.filters],
                return_metadata=None if columns is None else list(columns),
                text=None if request.text is None else list(request.text),
                heavy=request.is_heavy,
                **options_of(request),
            )
        )
        frame = head, queries.tobytes()
        msgspec.structs.force_setattr(request, "encoded", frame)
    return frame


def encode_each(requests: Sequence[SearchRequest]) -> tuple[bytes, bytes]:
    first = requests[0]
    head = encode(_Search(rows=len(requests), dim=first.queries.shape[1], k=first.k, **options_of(first)))
    return head, b"".join([one.queries.astype("<f4", copy=False).tobytes() for one in requests])


def decode_search(head: bytes, body: bytes) -> SearchRequest:
    message = decode(head, _Search)
    if message.rows < 0 or message.dim < 1 or message.rows * message.dim * 4 != len(body):
        raise ProtocolError(f"{message.rows} vectors of {message.dim} numbers do not fit {len(body)} bytes")
    if message.k < 1 or (message.group_by is not None and message.radius is not None):
        raise ProtocolError(f"no search has k = {message.k}, or both groups and a radius")
    if message.filters is not None and len(message.filters) not in (1, message.rows):
        raise ProtocolError(f"{len(message.filters)} filters do not go with {message.rows} vectors")
    if message.text is not None and len(message.text) != message.rows:
        raise ProtocolError(f"{len(message.text)} texts do not go with {message.rows} vectors")
    columns = message.return_metadata
    return SearchRequest(
        queries=np.frombuffer(body, dtype="<f4").reshape(message.rows, message.dim),
        k=message.k,
        filters=None if message.filters is None else tuple(_filter_of(text) for text in message.filters),
        return_metadata=None if columns is None else tuple(columns),
        text=None if message.text is None else tuple(message.text),
        of_heavy=message.heavy,
        **options_of(message),
    )


def _filter_text(condition: FilterForm | None) -> str | None:
    """A filter as text with a type prefix: ``s`` for SQL, ``j`` for JSON."""
    if condition is None:
        return None
    if isinstance(condition, str):
        return "s" + condition
    try:
        return "j" + json.dumps(condition)
    except (TypeError, ValueError):
        pass  # dates, numpy's numbers: the tree knows how to write them
    try:
        return "j" + json.dumps(to_dict(from_dict(condition)), default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, VeloError):
            raise
        raise InvalidArgumentError(f"the filter cannot travel: {error}", argument="filter") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return str(value) if isinstance(value, np.datetime64 | np.timedelta64) else value.item()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        sign = "-" if value < dt.timedelta(0) else ""
        return f"{sign}PT{abs(value).total_seconds():.6f}S"
    raise TypeError(f"{type(value).__name__} has no form that travels")


def _filter_of(text: str | None) -> FilterForm | None:
    if text is None:
        return None
    if text.startswith("s"):
        return text[1:]
    try:
        condition = json.loads(text[1:]) if text.startswith("j") else None
    except (ValueError, RecursionError):
        condition = None
    if not isinstance(condition, dict):
        raise ProtocolError("a filter is neither SQL nor a dict")
    return condition


# ---- hits ----


def _pieces_of(hits: Hits) -> tuple[list[list[str]] | None, list[bytes]]:
    """Ids that are strings, and the arrays of the body: other ids, counts and distances."""
    counts, distances = hits.counts.astype("<i8", copy=False), hits.distances.astype("<f4", copy=False)
    arrays = [counts.tobytes(), distances.tobytes()]
    if hits.ids.dtype != object:
        return None, [hits.ids.astype("<i8", copy=False).tobytes(), *arrays]
    return [row[:count] for row, count in zip(hits.ids.tolist(), counts.tolist(), strict=True)], arrays


def _read_arrays(message: _Hits | _Replies, body: bytes, start: int) -> tuple[Any, Any, Any]:
    """Ids, distances and counts."""
    rows, width = message.rows, message.width
    after_ids = start + (0 if message.names is not None else 8 * rows * width)
    counts = np.frombuffer(body, "<i8", rows, after_ids)
    if rows and not 0 <= min(each := counts.tolist()) <= max(each) <= width:
        raise ProtocolError("a row has more hits than it is wide")
    if message.names is None:
        ids: Any = np.frombuffer(body, "<i8", rows * width, start).reshape(rows, width)
    else:
        ids = _ids_of(message.names, counts, width)
    distances = np.frombuffer(body, "<f4", rows * width, after_ids + 8 * rows).reshape(rows, width)
    return ids, distances, counts


def encode_hits(hits: Hits) -> tuple[bytes, list[bytes]]:
    rows, width = hits.distances.shape
    names, pieces = _pieces_of(hits)
    if hits.limited is not None:
        pieces.append(hits.limited.astype("?").tobytes())
    sizes, group_bytes, table_bytes = None, b"", b""
    if hits.groups is not None:
        sizes = [[size for _, size in row] for row in hits.groups]
        values = [value for row in hits.groups for value, _ in row]
        try:
            column = pa.array(values)
        except OverflowError:  # pyarrow does not infer uint64
            column = pa.array(values, pa.uint64())
        group_bytes = stream_of(pa.table({"value": column}))
        pieces.append(group_bytes)
    if hits.metadata:
        table_bytes = stream_of(joined(hits.metadata))
        pieces.append(table_bytes)
    limited, lengths = hits.limited is not None, (len(group_bytes), len(table_bytes))
    head = encode(_Hits(rows, width, names, limited, sizes, *lengths, **costs_of([hits])))
    return head, pieces


def encode_replies(numbers: Sequence[int], hits: Hits, costs: Costs) -> tuple[bytes, list[bytes]]:
    """Head and body pieces of the replies to several requests, a row each."""
    names, pieces = _pieces_of(hits)
    rows, width = hits.distances.shape
    head = encode(_Replies(rows, width, names))
    return head, [np.array([numbers, *costs], "<i8").tobytes(), *pieces]


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode_hits(head: bytes, body: bytes) -> Hits:
    message = decode(head, _Hits)
    rows, width = message.rows, message.width
    sizes = [
        0 if message.names is not None else rows * width * 8,
        rows * 8,
        rows * width * 4,
        rows if message.limited else 0,
        message.group_bytes,
        message.table_bytes,
    ]
    if min(rows, width, *sizes) < 0 or sum(sizes) != len(body):
        raise ProtocolError(f"{rows} rows of {width} hits do not lie in {len(body)} bytes")
    ends = list(itertools.accumulate(sizes))
    starts = [0, *ends[:-1]]
    ids, distances, counts = _read_arrays(message, body, 0)
    hits_of_rows = counts.tolist()
    return Hits(
        ids=ids,
        distances=distances,
        counts=counts,
        metadata=None if not message.table_bytes else _tables_of(body[starts[5] :], hits_of_rows),
        **{name: getattr(message, name) for name in COSTS},
        groups=None
        if message.group_sizes is None
        else _groups_of(body[starts[4] : ends[4]], message.group_sizes, hits_of_rows),
        limited=np.frombuffer(body, "?", rows, starts[3]) if message.limited else None,
    )


def decode_replies(head: bytes, body: bytes) -> tuple[list[int], list[Hits]]:
    message = decode(head, _Replies)
    rows, width = message.rows, message.width
    count = (1 + len(COSTS)) * rows
    sizes = (8 * count, 0 if message.names is not None else 8 * rows * width, 8 * rows, 4 * rows * width)
    if min(rows, width) < 0 or sum(sizes) != len(body):
        raise ProtocolError(f"{rows} replies of {width} hits do not lie in {len(body)} bytes")
    numbers_and_costs = np.frombuffer(body, "<i8", count).reshape(1 + len(COSTS), rows)
    hits = Hits(*_read_arrays(message, body, 8 * count))
    return numbers_and_costs[0].tolist(), rows_of_hits(hits, numbers_and_costs[1:])


def _ids_of(names: Sequence[Sequence[str]], counts: Any, width: int) -> Any:
    if [len(row) for row in names] != counts.tolist():
        raise ProtocolError("the ids are not as many as the hits")
    ids = np.full((len(names), width), None, dtype=object)
    for place, row in enumerate(names):
        ids[place, : len(row)] = row
    return ids


def is_compressed(stream: bytes) -> bool:
    """Whether buffers of an Arrow stream are compressed, and could expand to any size."""
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(stream))
        return any(_compresses(message.metadata.to_pybytes()) for message in messages)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
        raise ProtocolError(f"this is no Arrow stream: {error}") from None


#: Kinds of Arrow's ``Message``, and the fields of their tables (format/Message.fbs).
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_HEADER_KIND, _HEADER, _DATA, _COMPRESSION = 1, 2, 1, 3
#: Where Arrow 0.17 said it, in a message's own metadata; today's Arrow reads that still.
_COMPRESSION_OF_0_17 = b"ARROW:experimental_compression"


def _compresses(metadata: bytes) -> bool:
    """Whether a verified Arrow message declares compressed buffers."""

    def field(table: int, number: int) -> int | None:
        vtable: int = table - struct.unpack_from("<i", metadata, table)[0]
        if struct.unpack_from("<H", metadata, vtable)[0] < 6 + 2 * number:
            return None
        offset: int = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]
        return table + offset if offset else None

    def below(table: int | None, number: int) -> int | None:
        at = None if table is None else field(table, number)
        return None if at is None else at + int(struct.unpack_from("<I", metadata, at)[0])

    message: int = struct.unpack_from("<I", metadata)[0]
    at = field(message, _HEADER_KIND)
    kind = 0 if at is None else metadata[at]
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return False
    if _COMPRESSION_OF_0_17 in metadata:
        return True
    batch = below(message, _HEADER)
    if kind == _DICTIONARY_BATCH:
        batch = below(batch, _DATA)
    return below(batch, _COMPRESSION) is not None


def table_of(stream: bytes) -> pa.Table:
    if is_compressed(stream):
        raise ProtocolError("this Arrow stream is compressed")
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ProtocolError(f"this is no Arrow stream: {error}") from None
    for field in table.schema:
        if _holds_unreadable(field.type):
            raise ProtocolError(f"column {field.name!r} is of a type that cannot be read: {field.type}")
    return table


def stream_of_ids(ids: Any) -> bytes:
    return stream_of(pa.table({"id": ids}))


def ids_of(stream: bytes) -> Any:
    """Ids of a stream: int64, or an Arrow array of large strings."""
    column: Any = table_of(stream).column("id").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return np.asarray(column, np.int64) if pa.types.is_integer(column.type) else column


def _holds_unreadable(kind: pa.DataType) -> bool:
    """Whether pyarrow has no array class for a type or a part of it, so that access raises KeyError."""
    if str(kind) in ("month_interval", "day_time_interval"):
        return True
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        inner.append(kind.value_type)
    return any(map(_holds_unreadable, inner))


def _tables_of(stream: bytes, counts: Sequence[int]) -> list[pa.Table]:
    table = table_of(stream)
    if len(table) != sum(counts):
        raise ProtocolError(f"{len(table)} rows of metadata do not go with {sum(counts)} hits")
    ends = itertools.accumulate(counts)
    return [table.slice(end - count, count) for end, count in zip(ends, counts, strict=True)]


def _groups_of(
    stream: bytes, sizes: Sequence[Sequence[int]], counts: Sequence[int]
) -> list[list[tuple[Any, int]]]:
    table = table_of(stream)
    if table.column_names != ["value"]:
        raise ProtocolError("the groups have no values")
    column: Any = table.column("value")
    # Nanoseconds have no type of Python's own that keeps them whole.
    exact = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    values = list(np.asarray(column)) if exact else column.to_pylist()
    if len(values) != sum(map(len, sizes)) or [sum(row) for row in sizes] != list(counts):
        raise ProtocolError("the groups do not go with the hits")
    rest = iter(values)
    return [[(next(rest), size) for size in row] for row in sizes]


@functools.cache
def import_pandas() -> None:
    """Let pyarrow import pandas, if it is installed.

    It does so for the first list that becomes an array, for up to some seconds, in which an event loop would
    stop.
    """
    pa.array([None])


#: Requests with more hits travel alone: in a frame all would wait for their bytes.
TOGETHER_K_MAX: Final = 256

#: Requests whose time differs by less travel together.
TIMEOUT_STEP_S: Final = 0.1


def is_plain(request: SearchRequest) -> bool:
    """Whether a request may share a frame: a light search without filter, text and metadata."""
    return (
        request.k <= TOGETHER_K_MAX
        and request.filters is None
        and request.return_metadata is None
        and request.text is None
        and not request.is_heavy
    )


class Waiting(asyncio.Future[ShardReply]):
    """The pending reply to one of them."""

    #: Called with ``place`` on cancellation.
    withdraw: Callable[[Any], None] | None = None
    place: Any = None

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        if self.withdraw is not None:
            self.withdraw(self.place)
        return True


class Together:
    """Groups requests by their options and sends them in the next turn of the event loop."""

    def __init__(self, send: Callable[[Sequence[SearchRequest], Sequence[Waiting], float], None]) -> None:
        self._send = send
        self._kinds: dict[Hashable, tuple[list[SearchRequest], list[Waiting], float]] = {}

    def add(self, request: SearchRequest, timeout_s: float) -> Waiting:
        """Add a request to the next frame; canceling the future cancels it."""
        loop = asyncio.get_running_loop()
        future = Waiting(loop=loop)
        steps = math.ceil(timeout_s / TIMEOUT_STEP_S)
        kind = request.k, request.queries.shape[1], steps, *effort_of(request).values()
        found = self._kinds.get(kind)
        if found is None:
            if not self._kinds:
                loop.call_soon(self._flush)
            found = self._kinds[kind] = [], [], steps * TIMEOUT_STEP_S
        found[0].append(request)
        found[1].append(future)
        return future

    def _flush(self) -> None:
        kinds, self._kinds = self._kinds, {}
        for requests, futures, timeout_s in kinds.values():
            if any(map(asyncio.Future.done, futures)):
                left = [place for place, future in enumerate(futures) if not future.done()]
                if not left:
                    continue
                requests, futures = [requests[place] for place in left], [futures[place] for place in left]
            self._send(requests, futures, timeout_s)
