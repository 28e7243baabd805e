"""What stands where in the files of an index: the one table that the fuzzer knows of docs/FORMAT.md.

Each file is a run of entries, one after another: (kind, name) is one number, (kind, name, count) an array
whose count follows from the numbers before it, and an ``align`` skips to the next multiple. Where a format
changes, change it here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Little-endian numbers, by the names that the table uses.
KINDS: Final = {
    "u8": "<B",
    "u16": "<H",
    "i32": "<i",
    "u32": "<I",
    "i64": "<q",
    "u64": "<Q",
    "f32": "<f",
    "f64": "<d",
}

Numbers = Mapping[str, int]
Count = Callable[[Numbers], int]


@dataclass(frozen=True)
class Field:
    """A number, or an array of them, in a file."""

    name: str
    kind: str
    at: int
    count: int = 1

    @property
    def size(self) -> int:
        return struct.calcsize(KINDS[self.kind])


def _groups(numbers: Numbers) -> int:
    return -(-numbers["n"] // 16)


CODES: Final = (
    ("u64", "magic"),
    ("u32", "format_version"),
    ("u32", "entry_vertex"),
    ("u64", "n"),
    ("u32", "dim_in"),
    ("u32", "dim_code"),
    ("i32", "metric"),
    ("u32", "memory_bits"),
    ("u32", "record_bits"),
    ("u32", "center_count"),
    ("u64", "rotation_seed"),
    ("f32", "tan_upper"),
    ("f32", "tan_full"),
    ("f32", "norm2_per_f2"),
    ("f32", "remote_norm2"),
    ("u32", "reserved", lambda h: 14),
    ("f32", "mean", lambda h: h["dim_in"]),
    ("f32", "centers", lambda h: h["dim_code"] * h["center_count"]),
    ("align", 64),
    ("u8", "codes", lambda h: h["n"] * h["dim_code"] * h["memory_bits"] // 8),
    ("align", 64),
    ("u16", "factors", lambda h: 2 * h["n"]),
    ("u8", "center_ids", lambda h: h["n"]),
)

LINKS: Final = (
    ("u64", "magic"),
    ("u64", "n"),
    ("u32", "links_built"),
    ("u32", "zero"),
    ("u64", "heap_bytes"),
    ("u8", "code_lengths", lambda h: 66),
    ("u8", "zeros", lambda h: 30),
    ("u64", "groups", lambda h: _groups(h) + 1),
    ("u8", "list_lengths", lambda h: 16 * _groups(h)),
    ("u8", "heap", lambda h: h["heap_bytes"]),
    ("u8", "tiers", lambda h: h["n"] * ((3 * h["links_built"] + 7) // 8)),
)

PAGE_STARTS: Final = (
    ("u64", "magic"),
    ("u32", "pages"),
    ("u32", "n"),
    ("u32", "low_bits"),
    ("u32", "zero"),
    ("u8", "low", lambda h: -(-h["pages"] * h["low_bits"] // 8)),
    ("u8", "high", lambda h: -(-(h["pages"] + (h["n"] >> h["low_bits"]) + 1) // 8)),
)

PAGES: Final = (
    ("u64", "magic"),
    ("u64", "checksum"),
    ("u32", "page_size"),
    ("u32", "page_count"),
    ("u32", "salt"),
    ("u32", "lower_bytes"),
    ("u8", "longest"),
    ("u8", "code_lengths", lambda h: 27 * 33),
)

PAGE_CODES: Final = (
    ("u64", "magic"),
    ("u32", "page_count"),
    ("u32", "level_count"),
    ("u32", "counts", lambda h: 4),
    ("f32", "f_upper_max"),
    ("u32", "zeros", lambda h: 7),
)

#: page_codes.bin of an index whose pages have tables; levels and cells follow.
PAGE_PRODUCTS: Final = (
    ("u64", "magic"),
    ("u32", "page_count"),
    ("u32", "code_bytes"),
    ("u32", "product_bytes"),
    ("u32", "level_count"),
    ("f32", "code_error"),
    ("f32", "f_upper_max"),
    ("u32", "counts", lambda h: 3),
    ("f32", "spreads", lambda h: 3),
    ("u32", "record_codes"),
    ("u32", "zeros"),
    ("u32", "dim"),
    ("u32", "parts"),
    ("u32", "axes"),
    ("i32", "exponent"),
    ("f32", "error2"),
    ("u32", "centroids"),
    ("u8", "reserved", lambda h: 8),
    ("u16", "books", lambda h: (h["product_bytes"] - 32) // 2),
)

#: A level, or codes of cells, with ``entries`` codes.
PAGE_PRODUCTS_CODES: Final = (
    ("align", 64),
    ("u8", "codes", lambda h: h["entries"] * h["code_bytes"]),
    ("u8", "padding", lambda h: 64),
)

#: Of a level with ``entries`` codes of ``code_bytes``.
PAGE_CODES_LEVEL: Final = (
    ("align", 64),
    ("u8", "codes", lambda h: h["entries"] * h["code_bytes"]),
    ("align", 64),
    ("u16", "factors", lambda h: 2 * h["entries"]),
    ("u8", "center_ids", lambda h: h["entries"]),
    ("u8", "padding", lambda h: 64),
)

#: A data page; ``lower_bytes`` is of the header, ``upper_bytes`` is 0 in pages without whole codes, ``lists``
#: in pages without lists. The rest of the page has lists and a table of neighbors.
PAGE: Final = (
    ("u64", "checksum"),
    ("u32", "number"),
    ("u32", "first_vertex"),
    ("u32", "salt"),
    ("u16", "records"),
    ("u16", "lists_at"),
    ("u16", "factors", lambda h: 2 * h["records"] if h["upper_bytes"] else 0),
    ("u8", "center_ids", lambda h: h["records"] if h["upper_bytes"] else 0),
    ("u8", "upper", lambda h: h["records"] * h["upper_bytes"]),
    ("u8", "lower", lambda h: h["records"] * h["lower_bytes"]),
    ("f32", "offsets", lambda h: h["records"]),
    ("u16", "ratios", lambda h: h["records"]),
    ("u8", "colors", lambda h: h["records"]),
    ("u16", "list_ends", lambda h: h["records"] if h["lists"] else 0),
)

#: A page of vectors.bin; rows follow.
VECTORS_PAGE: Final = (
    ("u64", "checksum"),
    ("u32", "number"),
    ("u32", "salt"),
)


def vectors_page_size(manifest: Mapping[str, Any]) -> int:
    """The smallest page that is filled to seven tenths, of 4,096 to 65,536 bytes."""
    row_bytes = manifest["dim"] * {"f32": 4, "f16": 2, "u8": 1, "i8": 1}[manifest["dtype"]]
    size = 4096
    while size < 65536 and (size - 16) // row_bytes * row_bytes * 10 < size * 7:
        size *= 2
    return size


def _code_bytes(manifest: Mapping[str, Any]) -> int:
    """Of an upper code."""
    return -(-int(manifest["dim"]) // 16) * 16 * int(manifest["memory_bits"]) // 8


POSTINGS: Final = (
    ("u64", "magic"),
    ("u64", "checksum"),
    ("u32", "version"),
    ("u32", "column_count"),
    ("u64", "n"),
    ("u64", "directory_size"),
    ("u64", "file_size"),
    ("u64", "generation"),
    ("u64", "zero"),
)

POSTINGS_COLUMN: Final = (
    ("u32", "name_at"),
    ("u32", "name_size"),
    ("u32", "type"),
    ("u32", "form"),
    ("u64", "nulls"),
    ("u64", "entries"),
    ("u64", "distinct"),
    ("u64", "part_at"),
    ("u64", "part_size"),
    ("u64", "part_checksum"),
    ("u64", "signatures_at"),
    ("u64", "signatures_checksum"),
)

TABLES: Final[dict[str, tuple[Any, ...]]] = {
    "codes.bin": CODES,
    "links.bin": LINKS,
    "page_starts.bin": PAGE_STARTS,
    "pages.bin": PAGES,
    "page_codes.bin": PAGE_CODES,
    "columns.postings": POSTINGS,
    "vectors.bin": VECTORS_PAGE,
}


def walk(
    table: tuple[Any, ...], data: bytes, at: int = 0, known: Numbers | None = None
) -> tuple[list[Field], dict[str, int], int]:
    """The fields of `table` from `at` on, the numbers among them, and where they end."""
    fields: list[Field] = []
    numbers: dict[str, Any] = dict(known or {})
    for entry in table:
        if entry[0] == "align":
            at = -(-at // entry[1]) * entry[1]
            continue
        kind, name = entry[0], entry[1]
        count = entry[2](numbers) if len(entry) > 2 else 1
        field = Field(name, kind, at, count)
        if len(entry) == 2:
            numbers[name] = struct.unpack_from(KINDS[kind], data, at)[0]
        if count:
            fields.append(field)
        at += field.size * count
    return fields, numbers, at


def fields_of(name: str, data: bytes, manifest: Mapping[str, Any]) -> Iterator[Field]:
    """All fields of a sound file of the table."""
    if name == "vectors.bin":
        size = vectors_page_size(manifest)
        for begin in range(0, len(data), size):
            own, _, end = walk(VECTORS_PAGE, data, begin)
            yield from own
            yield Field("rows", "f32", end, (begin + size - end) // 4)
        return
    table = PAGE_PRODUCTS if name == "page_codes.bin" and manifest.get("page_tables") else TABLES[name]
    fields, numbers, at = walk(table, data)
    yield from fields
    if name == "pages.bin":
        size = numbers["page_size"]
        for page in range(numbers["page_count"]):
            begin = (page + 1) * size
            known = {"lower_bytes": numbers["lower_bytes"], "lists": int(manifest.get("page_links", True))}
            known["upper_bytes"] = _code_bytes(manifest) if manifest.get("page_codes") else 0
            own, _, end = walk(PAGE, data, begin, known)
            yield from own
            if end < begin + size:
                yield Field("lists", "u8", end, begin + size - end)
    elif name == "page_codes.bin" and manifest.get("page_tables"):
        counts = struct.unpack_from("<3I", data, next(one.at for one in fields if one.name == "counts"))
        cells = -(-numbers["page_count"] // 64)
        levels = [count * numbers["page_count"] for count in counts[: numbers["level_count"]]]
        of_records = [numbers["record_codes"] * numbers["page_count"]] if numbers["record_codes"] else []
        for number, entries in enumerate([*levels, *of_records, cells]):
            if of_records and number == len(levels) + 1:
                begin = -(-at // 64) * 64
                yield Field("page_centers", "u8", begin, numbers["page_count"])
                at = begin + numbers["page_count"] + 64
            known = {"entries": entries, "code_bytes": numbers["code_bytes"]}
            own, _, at = walk(PAGE_PRODUCTS_CODES, data, at, known)
            yield from own
        yield Field("cell_places", "u8", -(-at // 64) * 64, cells)
    elif name == "page_codes.bin":
        counts = struct.unpack_from("<4I", data, next(one.at for one in fields if one.name == "counts"))
        for count in counts[: numbers["level_count"]]:
            known = {"entries": count * numbers["page_count"], "code_bytes": _code_bytes(manifest)}
            own, _, at = walk(PAGE_CODES_LEVEL, data, at, known)
            yield from own
    elif name == "columns.postings":
        for _ in range(numbers["column_count"]):
            own, column, at = walk(POSTINGS_COLUMN, data, at)
            yield from own
            for segment, bytes_ in (
                ("part", column["part_size"]),
                ("signatures", 8 * numbers["n"] if column["signatures_at"] else 0),
            ):
                for kind in ("u64", "u32", "u8"):
                    if bytes_ >= 8:
                        yield Field(
                            segment, kind, column[f"{segment}_at"], bytes_ // struct.calcsize(KINDS[kind])
                        )
        if at < numbers["directory_size"]:
            yield Field("names", "u8", at, numbers["directory_size"] - at)
