"""Derived columns: no file holds them, and they are made when a filter first needs them.

=====================================  ==============================================
condition on                           derived column
=====================================  ==============================================
the length of a list                   int32
a field of a struct (``shape.x``)      a column of that field's type
a decimal                              int64, in units of its last place
a list of floats                       lists of codes of its sorted distinct values
=====================================  ==============================================

Each takes memory of its own, and each filter over it tests all rows once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute

from velo.filters.arrow_values import arrow_of, is_list, is_string, numpy_of, plain_type, valid_of
from velo.filters.columns import FilterColumn, NativeType, describe, encode, plain_values

# Values here are of every Arrow type; the stubs are generic in the type and have nothing to check.
pa: Any = pyarrow
pc: Any = pyarrow.compute

_WORDS_OF_128_BITS: Final = 2


def can_be_made(arrow_type: Any) -> bool:
    """Whether filters have a column to look at where they cannot look at one of this type as it is stored."""
    kind = plain_type(arrow_type)
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return bool(pa.types.is_floating(plain_type(kind.value_type)))
    return bool(pa.types.is_struct(kind) or _is_decimal(kind))


def can_be_filtered(arrow_type: Any) -> bool:
    """Whether a filter can look at a column of this type at all."""
    kind = plain_type(arrow_type)
    if is_list(kind):
        element = plain_type(kind.value_type)
        return is_string(element) or bool(pa.types.is_integer(element) or pa.types.is_floating(element))
    looked_at = (
        *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_null),
        *(pa.types.is_timestamp, pa.types.is_duration, pa.types.is_date, pa.types.is_time),
    )
    return is_string(kind) or any(test(kind) for test in looked_at) or can_be_made(kind)


def _is_decimal(kind: Any) -> bool:
    return bool(pa.types.is_decimal(kind)) and kind.bit_width <= 128


def made_column(
    name: str, of: str, arrow_type: Any, stored: Any, path: list[str]
) -> tuple[FilterColumn, Any] | None:
    """The derived column, and its values in placement order; None where none can be derived.

    `name` is the column or ``column.field`` as the filter has it, `path` the fields below `stored`, and `of`
    is "value" or "length".
    """
    kind = plain_type(arrow_type)
    values = stored
    if path:
        for field in path:
            if not pa.types.is_struct(kind) or kind.get_field_index(field) < 0:
                return None
            kind = plain_type(kind.field(field).type)
            values = plain_values(pa.chunked_array([pc.struct_field(values, [field])])).combine_chunks()
        if of == "value" and not can_be_made(kind):
            return _encoded(name, kind, values)
    if of == "length":
        if not (is_list(kind) or pa.types.is_fixed_size_list(kind)):
            return None
        lengths = pc.list_value_length(values).cast(pa.int32())
        return describe(f"length of {name}", pa.int32(), lengths), lengths
    if _is_decimal(kind):
        return _decimals(name, kind, values)
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists_of_floats(name, kind, values)
    return None


def _encoded(name: str, kind: Any, values: Any) -> tuple[FilterColumn, Any] | None:
    coded = encode(name, pa.chunked_array([values]), arrow_of(np.arange(len(values))))
    column = describe(name, kind, coded)
    return None if column.native_type is None else (column, coded)


def _decimals(name: str, kind: Any, values: Any) -> tuple[FilterColumn, Any] | None:
    """Whole numbers in units of the last place; None where some do not fit into 64 bits."""
    wide = values.cast(pa.decimal128(38, kind.scale))
    words = np.frombuffer(wide.buffers()[1], np.int64)
    words = words[_WORDS_OF_128_BITS * wide.offset :][: _WORDS_OF_128_BITS * len(wide)].reshape(-1, 2)
    valid = valid_of(wide)
    low, high = np.where(valid, words[:, 0], 0), np.where(valid, words[:, 1], 0)
    if (high != low >> 63).any():
        return None
    whole = arrow_of(low, valid)
    column = describe(name, pa.int64(), whole)
    return replace(column, arrow_type=kind, kind="decimal", scale=kind.scale), whole


def _lists_of_floats(name: str, kind: Any, values: Any) -> tuple[FilterColumn, Any] | None:
    element = plain_type(kind.value_type)
    if not pa.types.is_floating(element):
        return None
    lists = values.cast(pa.large_list(element)).cast(pa.large_list(pa.float64()))
    first, last = (lists.offsets[at].as_py() for at in (0, -1)) if len(lists.offsets) else (0, 0)
    elements = pc.add(lists.values.slice(first, last - first), 0.0)  # -0.0 is 0.0
    elements = pc.if_else(pc.is_nan(elements), pa.scalar(None, pa.float64()), elements)
    coded = pc.dictionary_encode(elements)
    order = numpy_of(pc.sort_indices(coded.dictionary), np.uint64)
    rank = np.full(len(order) + 1, -1, np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    codes = rank[np.where(valid_of(coded), numpy_of(coded.indices, np.int32), len(order))]
    offsets = arrow_of((numpy_of(lists.offsets, np.int64) - first).astype(np.int32))
    dictionary = coded.dictionary.take(arrow_of(order))
    missing = lists.is_null() if lists.null_count else None
    found = pa.ListArray.from_arrays(offsets, arrow_of(codes), mask=missing)
    column = FilterColumn(
        name,
        kind,
        NativeType.LIST_CODE32,
        "float",
        dictionary=dictionary,
        has_nulls=found.null_count > 0,
        float_bits=element.bit_width,
    )
    return column, found
