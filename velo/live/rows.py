"""What a caller gives as new rows, checked before anything is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from velo import _native
from velo.errors import (
    DimensionMismatchError,
    DtypeError,
    InvalidArgumentError,
    NotFiniteError,
)
from velo.folder.ids import NO_ID, checked_ids, given_ids
from velo.formats.source import array_of, native_dtype
from velo.live.added import LiveColumns
from velo.live.columns import NativeIds, batch_bytes, given_columns, plain_schema
from velo.live.small_batch import SmallBatches
from velo.types import AnyArray

__all__ = ["DTYPES", "MAGNITUDE_MAX", "NUMBERS", "ROW", "STRINGS", "NewRows", "RowShape", "last_of_each"]

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
    """What rows of an index are like.

    Attributes
    ----------
    dim : int
    dtype : numpy.dtype
    id_kind : int
        0: numbers that the index gives, 1: whole numbers, 2: strings, -1: no row has told.
    columns : LiveColumns
    """

    dim: int
    dtype: np.dtype[Any]
    id_kind: int
    columns: LiveColumns

    @property
    def schema(self) -> Any:
        """The columns as they are given; None: there are none."""
        return self.columns.schema

    @cached_property
    def small_batches(self) -> SmallBatches | None:
        """What encodes the metadata of a few rows."""
        return None if self.schema is None else SmallBatches(plain_schema(self.schema))


class NewRows:
    """Rows of one call in the library's layout.

    Parameters
    ----------
    shape : RowShape
    vectors, ids, metadata, request :
        As they were given.
    upsert : bool
    is_distinct : bool
        No two ids are equal, as is known already.

    Attributes
    ----------
    count : int
    options : velo_live_insert_options
    ids : velo_ids or NULL

    Raises
    ------
    InvalidArgumentError, DimensionMismatchError, DtypeError, NotFiniteError, DuplicateIdError
    UnknownColumnError
    """

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
        kind, column = _ids(ids, len(rows), shape.id_kind, upsert)
        may_repeat = upsert and not is_distinct and column is not None and len(rows) > 1
        kept = last_of_each(column) if may_repeat else None
        if kept is not None and len(kept) == len(rows):
            kept = None
        batch = (
            shape.small_batches.encode(metadata, len(rows)) if shape.small_batches and kept is None else None
        )
        if batch is None:
            table = given_columns(metadata, shape.schema, len(rows))
            kept_rows = table if table is None or kept is None else table.take(pa.array(kept))
            batch = batch_bytes(kept_rows, shape.schema)
        batch = shape.columns.marked(batch)
        if kept is not None:
            rows = rows[kept]
            column = column[kept] if isinstance(column, np.ndarray) else column.take(pa.array(kept))
        self.count = len(rows)
        self.is_numbered = kind == ROW and column is None
        self._column = column
        options = self.options = _native.new("velo_live_insert_options")
        options.is_upsert = int(upsert)
        options.id_kind = kind
        options.row_count = len(rows)
        name = _request(request)
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1)
        self._keep: list[Any] = [data]
        for field, value in (
            ("vectors", data),
            ("metadata", np.frombuffer(batch, np.uint8)),
            ("request", np.frombuffer(name, np.uint8)),
        ):
            if len(value):
                pointer = _native.pointer("uint8_t", value)
                self._keep.append(pointer)
                setattr(options, field, pointer)
            setattr(options, f"{field}_size", len(value))
        self._ids = None if column is None else NativeIds(column)
        self.ids = _native.ffi.NULL if self._ids is None else self._ids.struct

    def id_at(self, row: int) -> Any:
        """The id of a row."""
        return self._column[row].item() if isinstance(self._column, np.ndarray) else self._column[row].as_py()


def _vectors(given: Any, shape: RowShape) -> AnyArray:
    array = given if isinstance(given, np.ndarray) else array_of(given, "vectors")
    if array.dtype.kind == "O":
        raise DtypeError("vectors must be numbers; their rows may differ in length", argument="vectors")
    if array.size == 0 and (array.ndim == 1 or array.shape == (0, 0)):  # a table of no rows tells no width
        array = array.reshape(0, shape.dim)
    if array.ndim == 1:
        array = array.reshape(1, -1)
    if array.ndim != 2 or array.shape[1] != shape.dim:
        raise DimensionMismatchError(
            f"vectors have the shape {array.shape}, this index takes (n, {shape.dim})", argument="vectors"
        )
    if array.dtype == shape.dtype:
        rows = np.ascontiguousarray(array)
    else:
        native = native_dtype(array.dtype)
        if native.name not in _HOLDS[shape.dtype.name]:
            raise DtypeError(f"this index holds {shape.dtype} vectors, not {array.dtype}", argument="vectors")
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is reported as such
            rows = np.ascontiguousarray(array, native).astype(shape.dtype, copy=False)
    if rows.dtype.kind == "f":
        bad = np.flatnonzero(~(np.abs(rows) <= MAGNITUDE_MAX).all(axis=1))
        if len(bad):
            row = int(bad[0])
            raise NotFiniteError(
                f"row {row} of vectors holds NaN, infinity or a magnitude above {MAGNITUDE_MAX}",
                argument="vectors",
                row=row,
            )
    return rows


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
        if len(column) != count:
            raise InvalidArgumentError(f"{len(column)} ids were given for {count} vectors", argument="ids")
        if isinstance(column, np.ndarray) and bool((column == NO_ID).any()):
            row = int(np.flatnonzero(column == NO_ID)[0])
            raise InvalidArgumentError(
                f"ids: row {row} has the id {NO_ID}, which in answers means that there is no hit",
                argument="ids",
                row=row,
            )
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


def _request(given: Any) -> bytes:
    if given is None:
        return b""
    with contextlib.suppress(AttributeError, UnicodeError):  # no text, or half a surrogate pair
        name: bytes = given.encode()
        if 0 < len(name) <= _REQUEST_BYTES_MAX:
            return name
    raise InvalidArgumentError(
        f"request is a name of 1 to {_REQUEST_BYTES_MAX} bytes, not {given!r:.80}", argument="request"
    )
