"""Conversions of values between Arrow types that hold the same: for storing them, and back.

Arrow cannot take, concatenate or dictionary-encode arrays of every type at every depth. So rows are handled
in their storage type (:func:`storage_type`), and returned in the type they were given in (:func:`restore`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow
import pyarrow.compute

from velo.types import AnyArray

# Values here are of every Arrow type; the stubs are generic in the type and have nothing to check.
pa: Any = pyarrow
pc: Any = pyarrow.compute


def array_bytes(array: Any) -> int:
    """Bytes of the buffers of an Arrow array, without those of a dictionary."""
    return sum(buffer.size for buffer in array.buffers() if buffer is not None)


def arrow_of(values: AnyArray, valid: AnyArray | None = None) -> Any:
    """An Arrow array over the memory of numbers, copied if not contiguous; null where `valid` is False."""
    together = np.ascontiguousarray(values)
    arrow_type = pa.from_numpy_dtype(together.dtype)
    missing = 0 if valid is None else len(valid) - int(np.count_nonzero(valid))
    validity = mask_of(valid).buffers()[1] if valid is not None and missing else None
    return pa.Array.from_buffers(arrow_type, len(together), [validity, pa.py_buffer(together.data)], missing)


def mask_of(values: AnyArray) -> Any:
    """An Arrow array of bools without nulls."""
    bits = np.packbits(values, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits.data)])


def numpy_of(array: Any, dtype: np.dtype[Any] | type[np.generic]) -> AnyArray:
    """The numbers of an Arrow array without nulls, as a read-only view of its memory."""
    if len(array) == 0:
        return np.zeros(0, dtype)
    item_bytes = np.dtype(dtype).itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * item_bytes)


def bits_of(buffer: Any, start: int, count: int) -> AnyArray:
    """Some bits of a buffer, as an array of 0 and 1."""
    first = start // 8
    some = np.frombuffer(buffer, np.uint8, -(-(start + count) // 8) - first, first)
    return np.unpackbits(some, bitorder="little")[start - 8 * first :][:count]


def valid_of(array: Any) -> AnyArray:
    """An array of bool: which values of an Arrow array are not null."""
    if array.null_count == 0:
        return np.ones(len(array), bool)
    validity = array.buffers()[0]
    if validity is None:  # an array of the type null has no values at all
        return np.zeros(len(array), bool)
    return bits_of(validity, array.offset, len(array)).astype(bool)


def truths_of(array: Any) -> AnyArray:
    """An Arrow array of bools as an array of bool; null becomes False."""
    if len(array) == 0:
        return np.zeros(0, bool)
    return bits_of(array.buffers()[1], array.offset, len(array)).astype(bool) & valid_of(array)


def texts_of(texts: Sequence[str | None]) -> Any:
    """An Arrow array of large strings; None is null."""
    coded = [b"" if text is None else text.encode() for text in texts]
    offsets = np.zeros(len(coded) + 1, np.int64)
    np.cumsum([len(text) for text in coded], out=offsets[1:])
    valid = np.array([text is not None for text in texts], bool)
    missing = len(valid) - int(np.count_nonzero(valid))
    buffers = [
        mask_of(valid).buffers()[1] if missing else None,
        pa.py_buffer(offsets.data),
        pa.py_buffer(b"".join(coded)),
    ]
    return pa.Array.from_buffers(pa.large_string(), len(coded), buffers, missing)


ArrowType: TypeAlias = Any
ArrowArray: TypeAlias = Any

#: Floats by their bits.
_FLOATS: Final[dict[int, type[np.generic]]] = {16: np.float16, 32: np.float32, 64: np.float64}
#: Arrow codes no narrower decimals.
_DECIMAL_BITS: Final = 128


def is_string(kind: ArrowType) -> bool:
    """Whether a type is one of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_string_view(kind))


def _is_string_view(kind: ArrowType) -> bool:
    return bool(getattr(pa.types, "is_string_view", lambda _: False)(kind))


def is_list(kind: ArrowType) -> bool:
    """Whether a type is one of lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or is_list_view(kind))


def is_list_view(kind: ArrowType) -> bool:
    view = getattr(pa.types, "is_list_view", lambda _: False)
    large_view = getattr(pa.types, "is_large_list_view", lambda _: False)
    return bool(view(kind) or large_view(kind))


def one_array(column: ArrowArray) -> ArrowArray:
    """A column as one array; one that has a single chunk is not copied."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def plain_type(kind: ArrowType) -> ArrowType:
    """The type of the values, without dictionary, run lengths or extension around them."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def with_element(kind: ArrowType, element: ArrowType) -> ArrowType:
    """A type of lists of any length, with elements of another type."""
    field = kind.value_field.with_type(element)
    if pa.types.is_list(kind):
        return pa.list_(field)
    if pa.types.is_large_list(kind):
        return pa.large_list(field)
    made = pa.list_view if kind.id == pa.list_view(kind.value_type).id else pa.large_list_view
    return made(field)


def storage_type(kind: ArrowType, *, only: Callable[[ArrowType], bool] | None = None) -> ArrowType:
    """The storage type of values: without dictionaries, run lengths and views (if `only` holds for them)."""

    def inner(one: ArrowType) -> ArrowType:
        return storage_type(one, only=only)

    def field(one: Any) -> Any:
        return one.with_type(inner(one.type))

    goes = only or (lambda _: True)
    if isinstance(kind, pa.BaseExtensionType):
        storage = inner(kind.storage_type)
        return kind if storage == kind.storage_type else storage
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return inner(kind.value_type) if goes(kind) else kind
    if _is_string_view(kind) and goes(kind):
        return pa.large_string()
    if is_list_view(kind):
        if goes(kind):
            return pa.large_list(field(kind.value_field))
        return with_element(kind, inner(kind.value_type))
    if is_list(kind):
        return with_element(kind, inner(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field(kind.value_field), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(field(kind.key_field), field(kind.item_field), kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([field(one) for one in kind])
    return kind


def restore(stored: ArrowArray, kind: ArrowType) -> ArrowArray:
    """Convert stored values to the type they were given in; a dictionary gets wider indices where it must."""
    found = stored.type
    if found == kind:
        return stored
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, restore(stored, kind.storage_type))
    if isinstance(found, pa.BaseExtensionType):
        return restore(stored.storage, kind)
    if pa.types.is_null(kind):
        return pa.nulls(len(stored))
    if pa.types.is_dictionary(found):
        return restore(stored.dictionary_decode(), kind)
    if pa.types.is_run_end_encoded(found):
        return restore(pc.run_end_decode(stored), kind)
    if pa.types.is_dictionary(kind):
        return _coded(restore(stored, kind.value_type), kind)
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(restore(stored, kind.value_type), kind.run_end_type)
    if found.num_fields and kind.num_fields:
        return _restored_fields(stored, kind)
    return converted(stored, kind)


def indices_max(kind: ArrowType) -> int:
    """The number of values that indices of a type can count."""
    return int(2 ** (kind.bit_width - pa.types.is_signed_integer(kind)))


def _coded(values: ArrowArray, kind: ArrowType) -> ArrowArray:
    encoded = values.dictionary_encode()
    narrow = len(encoded.dictionary) > indices_max(kind.index_type)
    indices = encoded.indices if narrow else encoded.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=kind.ordered)


def _restored_fields(stored: ArrowArray, kind: ArrowType) -> ArrowArray:
    """A nested array whose elements are of other types."""
    found = stored.type
    if is_list_view(found):
        return restore(lists_of_views(stored), kind)
    missing = stored.is_null() if stored.null_count else None
    if pa.types.is_struct(kind) and pa.types.is_struct(found):
        if [one.name for one in found] != [one.name for one in kind]:
            return stored.cast(kind)
        fields = [restore(stored.field(at), one.type) for at, one in enumerate(kind)]
        named = [one.with_type(made.type) for one, made in zip(kind, fields, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=named, mask=missing)
    if pa.types.is_fixed_size_list(kind) and found.num_fields == 1:
        if not pa.types.is_fixed_size_list(found):
            return restore(stored.cast(pa.list_(found.value_field, kind.list_size)), kind)
        values = stored.values.slice(stored.offset * kind.list_size, len(stored) * kind.list_size)
        values = restore(values, kind.value_type)
        made = pa.list_(kind.value_field.with_type(values.type), kind.list_size)
        return pa.FixedSizeListArray.from_arrays(values, type=made, mask=missing)
    if pa.types.is_fixed_size_list(found):
        return restore(stored.cast(pa.large_list(found.value_field)), kind)
    # A copy: Arrow takes no slice of them beside a mask.
    offsets = numpy_of(stored.offsets, _int(stored.offsets.type)).astype(np.int64)
    if pa.types.is_map(kind) and pa.types.is_map(found):
        keys, items = restore(stored.keys, kind.key_type), restore(stored.items, kind.item_type)
        made = pa.map_(kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(_narrow(offsets), keys, items, type=made, mask=missing)
    if not (is_list(kind) and is_list(found)):
        return stored.cast(kind)
    values = restore(stored.values, kind.value_type)
    element = kind.value_field.with_type(values.type)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(_narrow(offsets), values, type=pa.list_(element), mask=missing)
    if pa.types.is_large_list(kind):
        made = pa.large_list(element)
        return pa.LargeListArray.from_arrays(arrow_of(offsets), values, type=made, mask=missing)
    starts, sizes = offsets[:-1], np.diff(offsets)
    if kind.id == pa.large_list_view(element).id:
        made = pa.large_list_view(element)
        return pa.LargeListViewArray.from_arrays(
            arrow_of(starts), arrow_of(sizes), values, type=made, mask=missing
        )
    return pa.ListViewArray.from_arrays(
        _narrow(starts), _narrow(sizes), values, type=pa.list_view(element), mask=missing
    )


def _narrow(offsets: AnyArray) -> ArrowArray:
    narrow = offsets.astype(np.int32)
    if not np.array_equal(narrow, offsets):
        raise pa.ArrowInvalid("the elements are more than 32-bit offsets count")
    return arrow_of(narrow)


def _int(kind: ArrowType) -> type[np.generic]:
    """Of offsets, sizes and the like."""
    return np.int32 if kind == pa.int32() else np.int64


def converted(values: ArrowArray, kind: ArrowType) -> ArrowArray:
    """Convert values to another type without loss; floats become the nearest that the type holds."""
    found = values.type
    if _sort(found) != _sort(kind) and None not in (_sort(found), _sort(kind)):
        raise pa.ArrowInvalid(f"values of type {found} are never taken for {kind}")
    if pa.types.is_floating(found) and pa.types.is_floating(kind):
        return _rounded(values, kind)
    made = values.cast(kind)
    if pa.types.is_temporal(found) and pa.types.is_temporal(kind):
        changed = pc.not_equal(made.cast(found), values)
        if pc.any(changed).as_py():
            row = pc.index(changed, True).as_py()
            raise pa.ArrowInvalid(f"row {row} holds {values[row]}, which {kind} would cut")
    return made


def _sort(kind: ArrowType) -> str | None:
    """The sort of a type: numbers, texts and truth values never become each other."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if pa.types.is_boolean(kind):
        return "bool"
    return "text" if is_string(kind) else None


def _rounded(values: ArrowArray, kind: ArrowType) -> ArrowArray:
    valid = valid_of(values)
    given = np.where(valid, numpy_of(values, _FLOATS[values.type.bit_width]), 0)
    with np.errstate(over="ignore"):
        nearest = given.astype(_FLOATS[kind.bit_width])
    beyond = np.flatnonzero(np.isinf(nearest) & ~np.isinf(given))
    if len(beyond):
        raise pa.ArrowInvalid(f"row {beyond[0]} holds {given[beyond[0]]}, which is beyond {kind}")
    return arrow_of(nearest, valid)


def _is_narrow_decimal(kind: ArrowType) -> bool:
    return bool(pa.types.is_decimal(kind)) and kind.bit_width < _DECIMAL_BITS


def why_not_stored(kind: ArrowType, *, inside: bool = False) -> str | None:
    """The reason why a column of a type cannot be stored; Arrow cannot take, join or encode all types."""
    if isinstance(kind, pa.BaseExtensionType):
        return why_not_stored(kind.storage_type, inside=inside)
    if pa.types.is_union(kind):
        return "unions cannot be stored"
    if pa.types.is_null(kind) and inside:
        return "elements and fields without a type cannot be stored"
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        value = kind.value_type
        if pa.types.is_run_end_encoded(kind) and inside:
            return "run lengths inside of other types cannot be stored"
        is_hard = pa.types.is_null(value) or _is_string_view(value) or _is_narrow_decimal(value)
        if value.num_fields or pa.types.is_dictionary(value) or is_hard:
            return f"values of type {value} cannot be coded"
        return why_not_stored(value, inside=True)
    if is_list(kind):
        element = kind.value_type
        if is_string(element) and not inside:  # stored as codes
            return None
        coded = pa.types.is_dictionary(element)
        if coded and not (is_string(element.value_type) or pa.types.is_integer(element.value_type)):
            return f"lists of codes hold texts or whole numbers, not {element.value_type}"
        return why_not_stored(element, inside=True)
    if (_is_string_view(kind) and inside) or kind == getattr(pa, "binary_view", pa.null)():
        return "views of bytes cannot be stored, nor views of texts inside of other types"
    for at in range(kind.num_fields):
        why = why_not_stored(kind.field(at).type, inside=True)
        if why is not None:
            return why
    return None


def lists_of_views(views: ArrowArray) -> ArrowArray:
    """List views as lists (pyarrow's own cast gets the offsets wrong)."""
    found = views.value_lengths()
    lengths = np.where(valid_of(found), numpy_of(found, _int(found.type)), 0).astype(np.int64)
    offsets = arrow_of(np.concatenate([[0], np.cumsum(lengths)]))
    missing = views.is_null() if views.null_count else None
    return pa.LargeListArray.from_arrays(offsets, views.flatten(), mask=missing)
