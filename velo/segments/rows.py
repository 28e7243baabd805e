"""New rows of a caller, checked before anything is written."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import numpy as np

from velo import _native
from velo.errors import DimensionMismatchError, DtypeError, InvalidArgumentError, NotFiniteError
from velo.filters.arrow_values import arrow_of
from velo.folder.ids import check_each, checked_ids, given_ids
from velo.formats.source import Source, array_of, native_dtype
from velo.segments.added import LiveColumns
from velo.segments.columns import NativeIds, batch_bytes, given_columns, plain_schema, some_rows
from velo.segments.small_batch import SmallBatches
from velo.types import AnyArray

#: What a row takes of the delta beside its vector and its code, at least: its id and its places
#: (zig/src/live/delta.zig, codes.zig).
_DELTA_ROW_BYTES: Final = 32
#: Element types by the numbers of velo.h.
DTYPES: Final = (np.dtype("float32"), np.dtype("float16"), np.dtype("uint8"), np.dtype("int8"))
#: What each of them holds without a change.
_HOLDS: Final = {
    "float32": ("float32", "float16", "uint8", "int8"),
    "float16": ("float16", "uint8", "int8"),
    "uint8": ("uint8",),
    "int8": ("int8",),
}
#: As zig/src/index has it: beyond it sums of squares leave float32.
MAGNITUDE_MAX: Final = np.float32(1e16)
_REQUEST_BYTES_MAX: Final = 256
#: So few ids are looked at without Arrow, which gives up the interpreter and waits for it again.
_IDS_FEW: Final = 32

ROW, NUMBERS, STRINGS = 0, 1, 2


@dataclass(frozen=True)
class RowShape:
    """The shape and kind of an index's rows.

    `id_kind`: 0: numbers that the index gives, 1: whole numbers, 2: strings, -1: no row has told.
    """

    dim: int
    dtype: np.dtype[Any]
    id_kind: int
    columns: LiveColumns

    @property
    def delta_row_bytes(self) -> int:
        """Bytes of the delta per row, at least."""
        return self.dim * self.dtype.itemsize + self.dim // 2 + _DELTA_ROW_BYTES

    @property
    def schema(self) -> Any:
        """The columns as they are given; None: there are none."""
        return self.columns.schema

    @cached_property
    def small_batches(self) -> SmallBatches | None:
        """The metadata of a few rows."""
        return None if self.schema is None else SmallBatches(plain_schema(self.schema))


class GivenRows:
    """Rows of one call: the part common to inserts into the delta and new segments."""

    def __init__(self, count: int, kind: int, column: Any, request: Any, *, upsert: bool) -> None:
        self.count = count
        self.is_numbered = kind == ROW and column is None
        self._column = column
        self._keep: list[Any] = []
        options = self.options = _native.new("velo_live_insert_options")
        options.is_upsert = int(upsert)
        options.id_kind = kind
        options.row_count = count
        self._set("request", np.frombuffer(request_bytes(request), np.uint8))
        self._ids = None if column is None else NativeIds(column)
        self.ids = _native.ffi.NULL if self._ids is None else self._ids.struct

    def _set(self, field: str, value: AnyArray) -> None:
        if len(value):
            pointer = _native.pointer("uint8_t", value)
            self._keep += [value, pointer]
            setattr(self.options, field, pointer)
        setattr(self.options, f"{field}_size", len(value))

    def wait_until(self, deadline: float | None) -> None:
        """How long a call waits for those of other processes; None: as long as it does by default."""
        self.options.timeout_ms = left_ms(deadline)

    def id_at(self, row: int) -> Any:
        return self._column[row].item() if isinstance(self._column, np.ndarray) else self._column[row].as_py()


def left_ms(deadline: float | None) -> int:
    """The time left for a call of the library; 0, its default, without a deadline."""
    left = 0.0 if deadline is None else max(1.0, (deadline - time.monotonic()) * 1000)
    return int(min(left, 2**32 - 1))


class NewRows(GivenRows):
    """Rows of one call in the library's layout."""

    def __init__(
        self,
        shape: RowShape,
        vectors: Any,
        ids: Any,
        metadata: Any,
        request: Any,
        *,
        upsert: bool,
        is_distinct: bool = False,
    ) -> None:
        rows = _vectors(vectors, shape)
        kind, column, kept = checked_row_ids(ids, len(rows), shape.id_kind, upsert, is_distinct)
        buffers = None
        if shape.small_batches is not None and kept is None:
            buffers = shape.small_batches.buffers(metadata, len(rows))
        if buffers is None:
            table = given_columns(metadata, shape.schema, len(rows))
            kept_rows = table if table is None or kept is None else some_rows(table, kept)
            batch = batch_bytes(kept_rows, shape.schema)
        else:
            batch = b"".join(buffers)
        if kept is not None:
            rows = rows[kept]
        super().__init__(len(rows), kind, column, request, upsert=upsert)
        self._set("vectors", np.ascontiguousarray(rows).view(np.uint8).reshape(-1))
        self._set("metadata", np.frombuffer(batch, np.uint8))
        options = self.options
        options.mark = shape.columns.mark
        if buffers is not None:
            sizes = _native.ffi.new("uint64_t[]", [len(one) for one in buffers])
            self._keep.append(sizes)
            options.buffer_sizes, options.buffer_count = sizes, len(buffers)
            options.column_count = len(shape.schema)


def given_vectors(given: Any, shape: RowShape) -> AnyArray | Source:
    """Vectors as rows of the index's dimension; none is copied that is in an array or a source."""
    if isinstance(given, Source):
        if given.shape[0] == 0:
            return np.zeros((0, shape.dim), shape.dtype)
        rows: AnyArray | Source = given
    else:
        array = given if isinstance(given, np.ndarray) else array_of(given, "vectors")
        if array.dtype.kind == "O":
            raise DtypeError("vectors must be numbers; their rows may differ in length", argument="vectors")
        if array.size == 0 and (array.ndim == 1 or array.shape == (0, 0)):  # an empty table has no width
            array = array.reshape(0, shape.dim)
        rows = array.reshape(1, -1) if array.ndim == 1 else array
    if len(rows.shape) != 2 or rows.shape[1] != shape.dim:
        raise DimensionMismatchError(
            f"vectors have the shape {rows.shape}, this index takes (n, {shape.dim})", argument="vectors"
        )
    return rows


def in_type(array: AnyArray, shape: RowShape) -> AnyArray:
    """Vectors in the element type of the index."""
    if array.dtype == shape.dtype:
        return np.ascontiguousarray(array)
    native = native_dtype(array.dtype)
    if native.name not in _HOLDS[shape.dtype.name]:
        raise DtypeError(f"this index holds {shape.dtype} vectors, not {array.dtype}", argument="vectors")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is reported as such
        return np.ascontiguousarray(array, native).astype(shape.dtype, copy=False)


def not_finite(rows: AnyArray) -> int | None:
    """The first row with NaN, infinity or too large a magnitude."""
    if rows.dtype.kind != "f":
        return None
    bad = np.flatnonzero(~(np.abs(rows) <= MAGNITUDE_MAX).all(axis=1))
    return int(bad[0]) if len(bad) else None


def check_finite(rows: AnyArray, first: int = 0) -> None:
    """Refuse NaN, infinity and too large magnitudes; `first` is the number of the first row."""
    bad = not_finite(rows)
    if bad is not None:
        raise NotFiniteError(
            f"row {first + bad} of vectors holds NaN, infinity or a magnitude above {MAGNITUDE_MAX}",
            argument="vectors",
            row=first + bad,
        )


def _vectors(given: Any, shape: RowShape) -> AnyArray:
    array = given_vectors(given, shape)
    rows = in_type(array if isinstance(array, np.ndarray) else array.read(), shape)
    check_finite(rows)
    return rows


def checked_row_ids(
    given: Any, count: int, known: int, upsert: bool, is_distinct: bool = False
) -> tuple[int, Any, AnyArray | None]:
    """The kind of ids, the ids of the rows that stay, None where the index gives them, and which those are.

    All rows stay where the last is None. Of several that are upserted with one id the last does.
    """
    kind, column = _ids(given, count, known, upsert)
    if not upsert or is_distinct or column is None or count < 2:
        return kind, column, None
    kept = last_of_each(column)
    if len(kept) == count:
        return kind, column, None
    return kind, column[kept] if isinstance(column, np.ndarray) else column.take(arrow_of(kept)), kept


def _ids(given: Any, count: int, known: int, upsert: bool) -> tuple[int, Any]:
    """The kind of ids, and the column; None where the index gives them."""
    if given is None:
        if upsert:
            raise InvalidArgumentError(
                "upsert takes ids: those of the rows to replace or to add", argument="ids"
            )
        if known not in (ROW, -1):
            raise InvalidArgumentError(
                "this index has ids of its callers: give one for each row", argument="ids"
            )
        return ROW, None
    if isinstance(given, str | int | np.integer | UUID) and not isinstance(given, bool):
        given = [given]
    if isinstance(given, list) and len(given) <= _IDS_FEW and all(type(one) is int for one in given):
        with contextlib.suppress(OverflowError):  # checked_ids says what is wrong
            given = np.array(given, np.int64)
    if not upsert:
        column = given_ids(given, count)
    else:
        column = checked_ids(given)
        check_each(column, count)
    kind = NUMBERS if isinstance(column, np.ndarray) else STRINGS
    if known == ROW:
        if not upsert:
            raise InvalidArgumentError(
                "this index numbers its rows itself: insert them without ids", argument="ids"
            )
        if kind == NUMBERS:
            return ROW, column
    if known != -1 and kind != known and count:
        wanted = "strings" if known == STRINGS else "whole numbers"
        raise InvalidArgumentError(f"ids: the ids of this index are {wanted}", argument="ids")
    return kind, column


def last_of_each(column: Any) -> AnyArray:
    """The rows that stay where of several with one id the last one counts, in their order."""
    values = column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
    last = {value: row for row, value in enumerate(values)}
    return np.array(sorted(last.values()), np.int64)


def request_bytes(given: Any) -> bytes:
    """The name of a call as it was given; empty without one."""
    if given is None:
        return b""
    with contextlib.suppress(AttributeError, UnicodeError):  # no text, or half a surrogate pair
        name: bytes = given.encode()
        if 0 < len(name) <= _REQUEST_BYTES_MAX:
            return name
    raise InvalidArgumentError(
        f"request is a name of 1 to {_REQUEST_BYTES_MAX} bytes, not {given!r:.80}", argument="request"
    )
