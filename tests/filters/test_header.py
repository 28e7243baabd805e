"""The header, the library's source and Python name the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

from velo.filters.columns import NativeType

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "zig" / "velo.h").read_text()


def in_header(prefix: str, enum: str) -> dict[str, int]:
    body = re.search(rf"typedef enum {enum} \{{(.*?)\}} {enum};", HEADER, re.DOTALL)
    assert body
    return {name.lower(): int(value) for name, value in re.findall(rf"{prefix}_(\w+) = (\d+)", body[1])}


def in_zig(path: str, enum: str) -> dict[str, int]:
    body = re.search(
        rf"pub const {enum} = enum\(\w+\) \{{(.*?)\n\s*(?:pub fn|\}};)", (ROOT / path).read_text(), re.DOTALL
    )
    assert body
    return {name: int(value) for name, value in re.findall(r"^\s*(\w+) = (\d+),", body[1], re.MULTILINE)}


def test_statuses() -> None:
    found = in_header("VELO", "velo_status")
    assert len(found) == 23
    assert in_zig("zig/src/capi/errors.zig", "Status") == found


def test_column_types() -> None:
    found = in_header("VELO_COLUMN", "velo_column_type")
    assert len(found) == 14
    assert in_zig("zig/src/filter/column.zig", "ColumnType") == found
    assert {kind.name.lower(): int(kind) for kind in NativeType} == found


def test_opcodes() -> None:
    from velo.filters import program

    zig = in_zig("zig/src/filter/program.zig", "Opcode")
    assert len(zig) == 10
    assert {name: getattr(program, f"_{name.upper()}") for name in zig} == zig
