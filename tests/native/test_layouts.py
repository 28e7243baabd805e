"""Structs are typed twice, in ``velo.h`` and in the library: here the two are compared, field by field."""

from __future__ import annotations

from typing import Any, NamedTuple

import cffi
import pytest

from velo import _native
from velo._native import loader
from velo._native.declarations import declarations


class Field(NamedTuple):
    name: str
    offset: int
    size: int
    type: str


class Struct(NamedTuple):
    size: int
    fields: tuple[Field, ...]


def of_library(text: str) -> dict[str, Struct]:
    """The structs that ``velo_struct_layouts`` tells of."""
    structs = {}
    for line in text.splitlines():
        name, size, *fields = line.split(" ")
        segments = (field.split(":") for field in fields)
        structs[name] = Struct(int(size), tuple(Field(a, int(b), int(c), d) for a, b, c, d in segments))
    return structs


def of_header(header: str) -> dict[str, Struct]:
    """The structs of a header as cffi reads them; handles, which have no fields to see, are left out."""
    ffi: Any = cffi.FFI()
    ffi.cdef(declarations(header))
    structs = {}
    for name in ffi.list_types()[0]:
        kind = ffi.typeof(name)
        if kind.kind == "struct" and kind.fields is not None:
            fields = tuple(
                Field(field, at.offset, ffi.sizeof(at.type), type_of(at.type)) for field, at in kind.fields
            )
            structs[name] = Struct(ffi.sizeof(kind), fields)
    return structs


def type_of(kind: Any) -> str:
    if kind.kind == "array":
        return f"char[{kind.length}]"
    return "pointer" if kind.kind == "pointer" else str(kind.cname)


def differences(library: dict[str, Struct], header: dict[str, Struct]) -> list[str]:
    """What is not the same in both, a line each."""
    found = [f"{name} is only in the library" for name in library.keys() - header.keys()]
    found += [f"{name} is only in velo.h" for name in header.keys() - library.keys()]
    for name in library.keys() & header.keys():
        one, other = library[name], header[name]
        if one.size != other.size:
            found.append(f"{name} takes {one.size} bytes in the library, {other.size} in velo.h")
        if len(one.fields) != len(other.fields):
            found.append(f"{name} has {len(one.fields)} fields in the library, {len(other.fields)} in velo.h")
        found += [
            f"{name}: {left} in the library, {right} in velo.h"
            for left, right in zip(one.fields, other.fields, strict=False)
            if left != right
        ]
    return found


@pytest.fixture(scope="module")
def library() -> dict[str, Struct]:
    return of_library(_native.text(_native.lib.velo_struct_layouts()))


@pytest.fixture(scope="module")
def text() -> str:
    return loader.header_path().read_text(encoding="utf-8")


def test_every_struct_lies_in_the_library_as_in_the_header(library: dict[str, Struct], text: str) -> None:
    header = of_header(text)
    # velo_completion, velo_filter_cost and velo_segment have none.
    assert len(header) == text.count("struct_size;") + 3
    assert differences(library, header) == []


@pytest.mark.parametrize(
    ("written", "instead", "told"),
    [
        # Two fields of one type change places: every size and offset stays what it was.
        (
            "    uint64_t codes_bytes;\n    uint64_t pages_bytes;\n",
            "    uint64_t pages_bytes;\n    uint64_t codes_bytes;\n",
            "velo_memory_plan",
        ),
        ("    uint32_t degree;               /* R", "    int32_t degree;                /* R", "int32_t"),
        ("    float sigma; ", "    double sigma; ", "double"),
        ("    uint64_t dead_rows;\n", "", "velo_live_info has"),
        ("    char uuid[40];\n", "    char uuid[36];\n", "char[36]"),
        ("} velo_live_done;", "} velo_done;", "velo_done is only in velo.h"),
    ],
)
def test_a_header_that_differs_is_found_out(
    library: dict[str, Struct], text: str, written: str, instead: str, told: str
) -> None:
    assert text.count(written) == 1
    changed = text.replace(written, instead).replace("velo_live_done *", "void *")
    found = differences(library, of_header(changed))
    assert found
    assert told in " ".join(found)
