"""Storage, filtering and return of columns of all Arrow types.

=====================================  ======================================  ==========================
as given                               as stored in ``columns.arrow``          what a filter sees
=====================================  ======================================  ==========================
bool, integers, float32, float64       as given                                as given
float16                                float32                                 float32
timestamp, duration, date, time        as given                                its integers
string (any kind)                      codes of a sorted dictionary            the codes
dictionary of any of these             as its values                           as its values
list of string                         list of codes                           the codes
list of integer                        list of int64; of codes if an element   the integers, or the codes
                                       is null or beyond int64
null                                   bool, all null                          bool
decimal, struct, list of float         as given                                see :mod:`velo.filters.made`
anything else                          as given                                nothing: returned, not filtered
=====================================  ======================================  ==========================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow
import pyarrow.compute

from velo.errors import InvalidArgumentError
from velo.filters.arrow_values import (
    arrow_of,
    is_list,
    is_list_view,
    is_string,
    lists_of_views,
    numpy_of,
    one_array,
    plain_type,
    valid_of,
    why_not_stored,
)
from velo.filters.domain import FloatSpace, RankSpace, Space, WholeSpace
from velo.types import AnyArray

# Values here are of every Arrow type; the stubs are generic in the type and have nothing to check.
pa: Any = pyarrow
pc: Any = pyarrow.compute
ArrowType: TypeAlias = Any
ArrowArray: TypeAlias = Any


class NativeType(IntEnum):
    """``velo_column_type`` of ``velo.h``."""

    BOOL = 0
    I8 = 1
    I16 = 2
    I32 = 3
    I64 = 4
    U8 = 5
    U16 = 6
    U32 = 7
    U64 = 8
    F32 = 9
    F64 = 10
    CODE32 = 11
    LIST_CODE32 = 12
    LIST_I64 = 13


#: The kind of constant that a column, or an element of its lists, is compared with.
Kind: TypeAlias = Literal[
    "bool", "int", "float", "decimal", "string", "timestamp", "date", "time", "duration"
]

_INTEGERS: Final = {
    pa.type_for_alias(f"{'u' if one.name[0] == 'U' else ''}int{one.name[1:]}"): one
    for one in list(NativeType)[NativeType.I8 : NativeType.F32]
}
_SECOND: Final = 10**9
_UNITS: Final = {"s": _SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
#: Values that a dictionary holds at most.
CODES_MAX: Final = 2**31 - 1
#: How strings are stored.
_CODES: Final = pa.dictionary(pa.int32(), pa.large_string())


@dataclass(frozen=True)
class FilterColumn:
    """One column as filters see it.

    `native_type`: None: stored and returned, but not filtered on.
    `unit_ns`: Nanoseconds in one unit of a temporal column.
    `scale`: Decimal places; values are counted in units of the last.
    `float_bits`: Width of the elements of a list of floats as they were given.
    `owner`: The native columns that hold this derived column; with a single row it is the value of all
      rows.
    """

    name: str
    arrow_type: ArrowType
    native_type: NativeType | None
    kind: Kind | None
    dictionary: ArrowArray | None = None
    has_nulls: bool = True
    unit_ns: int = 1
    zone: str | None = None
    elements: ArrowArray | None = None
    scale: int = 0
    float_bits: int = 64
    owner: Any = None

    @property
    def is_list(self) -> bool:
        return self.native_type in (NativeType.LIST_CODE32, NativeType.LIST_I64)

    @property
    def has_nan(self) -> bool:
        return self.kind == "float"

    @cached_property
    def distinct(self) -> AnyArray:
        """The elements that lists have, by rank, ascending; found when a range of them is first asked for."""
        if self.dictionary is not None:
            return np.arange(len(self.dictionary))
        return np.unique(numpy_of(self.elements, np.int64))

    @cached_property
    def space(self) -> Space:
        """The integers that represent its values, or the elements of its lists."""
        native = self.native_type
        if self.dictionary is not None:
            return RankSpace(self.dictionary)
        if native in (NativeType.F32, NativeType.F64):
            bits = 32 if native == NativeType.F32 else 64
            return FloatSpace(bits, 16 if pa.types.is_float16(plain_type(self.arrow_type)) else bits)
        if native == NativeType.BOOL:
            return WholeSpace(0, 1)
        width = {"8": 8, "6": 16, "2": 32, "4": 64}[NativeType(native or 0).name[-1]]
        if native in (NativeType.U8, NativeType.U16, NativeType.U32, NativeType.U64):
            return WholeSpace(0, 2**width - 1)
        return WholeSpace(-(2 ** (width - 1)), 2 ** (width - 1) - 1)


def plain_values(column: ArrowArray) -> ArrowArray:
    """The values of a chunked column, in its plain type."""
    while True:
        kind = column.type
        if isinstance(kind, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], kind.storage_type)
        elif pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        elif pa.types.is_run_end_encoded(kind):
            column = pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], kind.value_type)
        else:
            return column


def encode(name: str, column: ArrowArray, rows: Any) -> ArrowArray:
    """The stored form of a column, in placement order: `rows` has the row of each vertex."""
    check_type(name, column.type)
    plain = plain_values(column)
    kind = plain.type
    if is_string(kind):
        return _codes(name, plain).take(rows)
    if is_list(kind):
        element = plain_type(kind.value_type)
        if is_string(element) or pa.types.is_integer(element):
            return _with_null_codes(_lists(name, plain, element).take(rows))
    elif pa.types.is_float16(kind):
        return one_array(plain.take(rows)).cast(pa.float32())
    elif pa.types.is_null(kind):
        return pa.nulls(len(rows), pa.bool_())
    return one_array(_take(name, plain, rows))


def check_type(name: str, kind: ArrowType) -> None:
    """Refuse a column of a type that cannot be stored, with InvalidArgumentError."""
    why = why_not_stored(kind)
    if why is not None:
        raise InvalidArgumentError(
            f"metadata: column {name!r} of type {kind} cannot be stored: {why}", argument="metadata"
        )


def _take(name: str, column: ArrowArray, rows: Any) -> ArrowArray:
    try:
        return column.take(rows)
    except pa.ArrowException as error:
        message = f"metadata: column {name!r} of type {column.type} cannot be stored: {error}"
        raise InvalidArgumentError(message, argument="metadata") from error


def _codes(name: str, column: ArrowArray) -> ArrowArray:
    """Strings, or integers, as codes whose order is the order of the values."""
    wide = pa.large_string() if is_string(column.type) else column.type
    encoded = one_array(column.cast(wide)).dictionary_encode()
    values = encoded.dictionary
    if len(values) > CODES_MAX:
        message = (
            f"metadata: column {name!r} has {len(values)} distinct values, at most {CODES_MAX} are possible"
        )
        raise InvalidArgumentError(message, argument="metadata")
    order = numpy_of(pc.sort_indices(values), np.uint64)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    valid = valid_of(encoded)
    codes = np.zeros(len(encoded), np.int32)
    codes[valid] = rank[numpy_of(encoded.indices, np.int32)[valid]]
    return pa.DictionaryArray.from_arrays(arrow_of(codes, valid), values.take(arrow_of(order)))


def _with_null_codes(lists: ArrowArray) -> ArrowArray:
    """The same lists with code -1 below every null element: the library looks at the codes alone."""
    elements = lists.values
    if not pa.types.is_dictionary(elements.type) or not elements.null_count:
        return lists
    valid = valid_of(elements)
    codes = np.where(valid, numpy_of(elements.indices, np.int32), np.int32(-1))
    marked = pa.DictionaryArray.from_arrays(arrow_of(codes, valid), elements.dictionary)
    return pa.ListArray.from_arrays(lists.offsets, marked, mask=lists.is_null() if lists.null_count else None)


def _lists(name: str, column: ArrowArray, element: ArrowType) -> ArrowArray:
    """Lists with 32-bit offsets, of codes or of int64."""
    kind = column.type
    if is_list_view(kind):
        kind = pa.large_list(kind.value_type)
        column = pa.chunked_array([lists_of_views(chunk) for chunk in column.chunks], kind)
    if kind.value_type != element:  # elements in a dictionary, or in run lengths
        column = column.cast(pa.large_list(element))
    lists = one_array(column.cast(pa.large_list(pa.large_string() if is_string(element) else element)))
    offsets = numpy_of(lists.offsets, np.int64)
    first, last = int(offsets[0]) if len(offsets) else 0, int(offsets[-1]) if len(offsets) else 0
    if last - first > CODES_MAX:
        message = (
            f"metadata: the lists of column {name!r} hold {last - first} elements, at most {CODES_MAX} fit"
        )
        raise InvalidArgumentError(message, argument="metadata")
    elements = lists.values.slice(first, last - first)
    beyond = element == pa.uint64() and len(elements) and (pc.max(elements).as_py() or 0) > 2**63 - 1
    if is_string(element) or elements.null_count or beyond:
        stored = _codes(name, pa.chunked_array([elements]))
    else:
        stored = elements.cast(pa.int64())
    narrow = arrow_of((offsets - first).astype(np.int32))
    return pa.ListArray.from_arrays(narrow, stored, mask=lists.is_null() if lists.null_count else None)


def describe(name: str, arrow_type: ArrowType, stored: ArrowArray) -> FilterColumn:
    """The filter's view of a stored column that was given as `arrow_type`."""
    has_nulls = stored.null_count > 0
    plain = plain_type(arrow_type)
    kind = stored.type

    def column(native: NativeType | None, constant: Kind | None, **more: Any) -> FilterColumn:
        return FilterColumn(name, arrow_type, native, constant, has_nulls=has_nulls, **more)

    if pa.types.is_dictionary(kind) and is_string(plain):
        return column(NativeType.CODE32, "string", dictionary=stored.dictionary)
    if pa.types.is_list(kind) and is_list(plain):
        element = plain_type(plain.value_type)
        constant: Kind = "string" if is_string(element) else "int"
        if pa.types.is_dictionary(kind.value_type):
            return column(NativeType.LIST_CODE32, constant, dictionary=stored.values.dictionary)
        if pa.types.is_int64(kind.value_type) and pa.types.is_integer(element):
            return column(NativeType.LIST_I64, constant, elements=stored.values)
        return column(None, None)
    if pa.types.is_boolean(kind):
        return column(NativeType.BOOL, "bool")
    if kind in _INTEGERS:
        return column(_INTEGERS[kind], "int")
    if pa.types.is_floating(kind):
        return column(NativeType.F32 if kind == pa.float32() else NativeType.F64, "float")
    if pa.types.is_timestamp(kind):
        return column(NativeType.I64, "timestamp", unit_ns=_UNITS[kind.unit], zone=kind.tz)
    if pa.types.is_duration(kind):
        return column(NativeType.I64, "duration", unit_ns=_UNITS[kind.unit])
    if pa.types.is_date32(kind):
        return column(NativeType.I32, "date", unit_ns=86400 * _SECOND)
    if pa.types.is_date64(kind):
        return column(NativeType.I64, "date", unit_ns=_UNITS["ms"])
    if pa.types.is_time32(kind) or pa.types.is_time64(kind):
        native = NativeType.I32 if pa.types.is_time32(kind) else NativeType.I64
        return column(native, "time", unit_ns=_UNITS[kind.unit])
    return column(None, None)


def _is_stored_as(arrow_type: ArrowType, stored: ArrowType) -> bool:
    """Whether a column given as `arrow_type` is stored in this type; the table above, read backwards."""
    kind = plain_type(arrow_type)
    if is_string(kind):
        return bool(stored.equals(_CODES))
    if is_list(kind):
        element = plain_type(kind.value_type)
        if is_string(element) or pa.types.is_integer(element):
            possible = [_CODES] if is_string(element) else [pa.int64(), pa.dictionary(pa.int32(), element)]
            return pa.types.is_list(stored) and any(stored.value_type.equals(one) for one in possible)
    if pa.types.is_float16(kind):
        return bool(stored.equals(pa.float32()))
    return bool(stored.equals(pa.bool_() if pa.types.is_null(kind) else kind))


def check_stored(name: str, arrow_type: ArrowType, stored: ArrowArray) -> None:
    """Check a stored column against the assumptions of filters and results."""
    if not _is_stored_as(arrow_type, stored.type):
        raise ValueError(f"column {name!r}, given as {arrow_type}, is stored as {stored.type}")
    lists = pa.types.is_list(stored.type)
    values = stored.values if lists else stored
    if not pa.types.is_dictionary(values.type):
        return
    dictionary = values.dictionary
    if dictionary.null_count or (
        len(dictionary) > 1 and not pc.all(pc.less(dictionary[:-1], dictionary[1:])).as_py()
    ):
        raise ValueError(f"the dictionary of column {name!r} is not in order")
    # The library looks at codes without their validity: below a null element of a list there is -1.
    if len(values) == 0:
        return
    codes = np.frombuffer(values.indices.buffers()[1], np.int32, len(values), 4 * values.indices.offset)
    if int(codes.min()) < (-1 if lists else 0) or int(codes.max()) >= max(1, len(dictionary)):
        raise ValueError(f"column {name!r} holds codes that are none of its dictionary")
