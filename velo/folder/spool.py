"""Arrays that grow batch by batch, in files and not in memory, until all of them can be mapped.

A file of columns holds one record batch, whose buffers follow each other. So while rows are still being
appended, each buffer of a column grows in an unnamed file of its own, or in memory while it is small.
Complete buffers move into one :class:`Body`, which is mapped at the end.
"""

from __future__ import annotations

import contextlib
import mmap
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow

from velo.errors import InvalidArgumentError
from velo.filters.arrays import bits_of
from velo.types import AnyArray

__all__ = ["Body", "Placed", "Spool", "can_grow"]

# Values here are of every Arrow type; the stubs are generic in the type and have nothing to check.
pa: Any = pyarrow

#: A larger buffer moves from memory into a file.
_IN_MEMORY_BYTES: Final = 1 << 16
_COPIED_BYTES: Final = 1 << 20
#: Arrow's pool keeps freed memory: it is released after this number of bytes.
_PASSED_BYTES: Final = 1 << 20
#: Alignment of buffers, as in Arrow files.
_ALIGNMENT: Final = 64
_OFFSET_MAX: Final = 2**31 - 1

#: Makes the array once the body with its buffers is mapped.
Placed: TypeAlias = Callable[["Body"], Any]


class Body:
    """Complete buffers, one after the other, in an unnamed file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = contextlib.ExitStack()
        self._file = self.opened(tempfile.TemporaryFile, dir=folder)
        self._size = 0
        self._passed = 0
        self._mapped: Any = None

    def __enter__(self) -> Body:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def opened(self, make: Callable[..., Any], **how: Any) -> Any:
        """Open a file that closes no later than this."""
        return self._files.enter_context(make(**how))

    def passed(self, size: int) -> None:
        """Count bytes of arrays that are no longer needed, and return them to the system now and then."""
        self._passed += size
        if self._passed >= _PASSED_BYTES:
            self._passed = 0
            pa.default_memory_pool().release_unused()

    def take(self, file: Any) -> slice:
        """Append all of a file; returns its place."""
        padding = -self._size % _ALIGNMENT
        self._file.write(bytes(padding))
        start = self._size + padding
        file.seek(0)
        shutil.copyfileobj(file, self._file, _COPIED_BYTES)
        self._size = self._file.tell()
        return slice(start, self._size)

    def stored(self, array: Any) -> Placed:
        """Append a whole array of any type."""
        batch = pa.record_batch([array], names=["column"])
        with tempfile.TemporaryFile(dir=self.folder) as file:
            with pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            place = self.take(file)
        return lambda body: pa.ipc.open_file(body.buffer(place)).get_batch(0).column(0)

    def buffer(self, place: slice) -> Any:
        """The buffer at a place; nothing can be appended afterwards."""
        if place.start == place.stop:
            return pa.py_buffer(b"")
        if self._mapped is None:
            self._file.flush()
            self._mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ))
        return self._mapped.slice(place.start, place.stop - place.start)


class _Bytes:
    """A buffer that grows."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._file = body.opened(
            tempfile.SpooledTemporaryFile, max_size=_IN_MEMORY_BYTES, dir=str(body.folder)
        )

    def append(self, values: AnyArray | memoryview) -> None:
        self._file.write(values)
        self._body.passed(values.nbytes)

    def place(self) -> slice:
        with self._file:
            return self._body.take(self._file)


class _Bits:
    """A bit a value; those of a byte that is not full yet wait."""

    def __init__(self, body: Body) -> None:
        self._bytes = _Bytes(body)
        self._waiting: AnyArray = np.zeros(0, np.uint8)

    def append(self, bits: AnyArray) -> None:
        """Append bits, an array of 0 and 1."""
        waiting = np.concatenate([self._waiting, bits])
        whole = len(waiting) & ~7
        self._bytes.append(np.packbits(waiting[:whole], bitorder="little"))
        self._waiting = waiting[whole:]

    def place(self) -> slice:
        self._bytes.append(np.packbits(self._waiting, bitorder="little"))
        return self._bytes.place()


def can_grow(kind: Any) -> bool:
    """Whether arrays of a type can grow: the type contains no dictionary and no view."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return can_grow(kind.storage_type)
    if types.is_struct(kind) or types.is_fixed_size_list(kind) or _offset_type(kind) is not None:
        return all(can_grow(kind.field(at).type) for at in range(kind.num_fields))
    return bool(types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind))


def _offset_type(kind: Any) -> Any:
    """The type of the offsets of texts, bytes and lists; None for other types."""
    types = pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_list(kind) or types.is_map(kind):
        return np.int32
    if types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind):
        return np.int64
    return None


class Spool:
    """A growing array of a type that :func:`can_grow`, placed in `body` at the end."""

    def __init__(self, kind: Any, name: str, body: Body) -> None:
        self.kind = kind
        self.count = self.null_count = 0
        self._name, self._body = name, body
        self._validity: _Bits | None = None
        self._storage: Spool | None = None
        self._children: list[Spool] = []
        self._data: _Bytes | _Bits | None = None
        self._offsets: _Bytes | None = None
        self._end = 0
        if isinstance(kind, pa.BaseExtensionType):
            self._storage = Spool(kind.storage_type, name, body)
            return
        self._offset_type = _offset_type(kind)
        if self._offset_type is not None:
            self._offsets = _Bytes(body)
            self._offsets.append(np.zeros(1, self._offset_type))
        if kind.num_fields:
            self._children = [Spool(kind.field(at).type, name, body) for at in range(kind.num_fields)]
        elif not pa.types.is_struct(kind):
            self._data = _Bits(body) if pa.types.is_boolean(kind) else _Bytes(body)

    def append(self, array: Any) -> None:
        """Append an array of this type.

        Raises
        ------
        InvalidArgumentError
            There are more texts, bytes or elements than offsets of this type count.
        """
        count, at = len(array), array.offset
        if self._storage is not None:
            self._storage.append(array.storage)
            return
        if count == 0:
            return
        self._append_validity(array)
        buffers = array.buffers()
        if self._offsets is not None:
            first_byte = at * np.dtype(self._offset_type).itemsize
            offsets = np.frombuffer(buffers[1], self._offset_type, count + 1, first_byte)
            first, last = int(offsets[0]), int(offsets[-1])
            if self._end + last - first > _OFFSET_MAX and self._offset_type is np.int32:
                raise InvalidArgumentError(
                    f"metadata: column {self._name!r} of type {self.kind} holds more than {_OFFSET_MAX} "
                    "bytes or elements in all rows together, and its type counts no more",
                    argument="metadata",
                )
            self._offsets.append(offsets[1:] + self._offset_type(self._end - first))
            self._end += last - first
            if self._children:
                self._children[0].append(array.values.slice(first, last - first))
            elif last > first:
                assert isinstance(self._data, _Bytes)
                self._data.append(memoryview(buffers[2])[first:last])
        elif pa.types.is_fixed_size_list(self.kind):
            size = self.kind.list_size
            self._children[0].append(array.values.slice(at * size, count * size))
        elif self._children:
            for number, child in enumerate(self._children):
                child.append(array.field(number))
        elif isinstance(self._data, _Bits):
            self._data.append(bits_of(buffers[1], at, count))
        elif self._data is not None:
            width = self.kind.bit_width // 8
            if width:
                self._data.append(memoryview(buffers[1])[at * width : (at + count) * width])
        self.count += count

    def _append_validity(self, array: Any) -> None:
        if array.null_count and self._validity is None:
            self._validity = _Bits(self._body)
            for start in range(0, self.count, _COPIED_BYTES):
                self._validity.append(np.ones(min(_COPIED_BYTES, self.count - start), np.uint8))
        if self._validity is not None:
            own = array.buffers()[0] if array.null_count else None
            count = len(array)
            self._validity.append(
                np.ones(count, np.uint8) if own is None else bits_of(own, array.offset, count)
            )
        self.null_count += array.null_count

    def place(self) -> Placed:
        """Move the array into the body; nothing can be appended afterwards."""
        if self._storage is not None:
            storage, kind = self._storage.place(), self.kind
            return lambda body: pa.ExtensionArray.from_storage(kind, storage(body))
        own = [self._validity, self._offsets, self._data]
        has = [True, self._offsets is not None, self._data is not None]
        places = [None if one is None else one.place() for one in own]
        children = [child.place() for child in self._children]

        def array(body: Body) -> Any:
            buffers = [
                None if place is None else body.buffer(place)
                for place, is_there in zip(places, has, strict=True)
                if is_there
            ]
            made = [child(body) for child in children]
            return pa.Array.from_buffers(self.kind, self.count, buffers, self.null_count, 0, made or None)

        return array
