"""Division of a vector's bits between memory and disk for a given budget."""

from __future__ import annotations

import math
from typing import Final

from velo.options.checks import limit_of

__all__ = [
    "LINKS_ENOUGH",
    "LINKS_STEPS",
    "LIST_BYTES",
    "PAGE_BYTES",
    "SHARD_ROWS_MAX",
    "SHARED_LINKS",
    "bits_around",
    "bits_usual",
    "bits_within",
    "codes_bytes",
    "codes_bytes_least",
    "dim_code_of",
    "directory_bytes",
    "link_bytes",
    "links_fit",
    "memory_code_bytes",
    "page_codes_bytes",
    "page_codes_bytes_least",
    "page_levels",
    "record_bytes",
    "shared_links_bytes",
    "shared_links_within",
]


#: Bits of a code in all: with these the longest lists end near recall@10 0.996 on a million SIFT descriptors,
#: with one less near 0.993. At 128 dimensions a bit is 16 bytes of a record of about 165.
_BITS_IN_ALL: Final = 10
_MEMORY_BITS_DEFAULT: Final = 4
#: Bits in memory and in the record by what a budget has room for. Pages in memory save more reads than longer
#: codes would (docs/decisions/0022).
_BITS: Final = ((4, 6), (3, 7))
#: The same where vertices share links, or links go to disk (docs/decisions/0016).
_BITS_SHARED: Final = ((2, 6), (1, 7))
#: Links per vertex that a budget is spent on (zig/src/index/lists_in_memory.zig), fewer if memory is short.
LINKS_ENOUGH: Final = 16
_LINKS_LEAST: Final = 12

#: Codes are as long as a multiple of this (zig/src/base/limits.zig).
_DIM_CODE_MULTIPLE: Final = 16
#: Rows that one index can have (docs/FORMAT.md).
SHARD_ROWS_MAX: Final = 2**31 - 1
#: The smallest page.
PAGE_BYTES: Final = 4096
#: Approximate bytes of a record's links.
_RECORD_LINKS_BYTES: Final = 53

#: Bytes of a page beside its records, and of a record beside its code.
_PAGE_HEAD_BYTES: Final = 24
_RECORD_HEAD_BYTES: Final = 7
#: Of a code: two factors and a center.
_FACTORS_BYTES: Final = 5
#: Of levels of page_codes.bin, beside their codes.
_LEVEL_BYTES: Final = 512
#: Factor for pages that are not quite full.
_PAGES_MORE: Final = 1.02
#: Codes of its finer levels, as shares of the records of an average page (zig/src/index/page_codes.zig).
_LEVEL_SHARES: Final = (0.17, 0.42, 0.75)
#: Of codes.bin, beside the mean and what vectors take.
_CODES_HEAD_BYTES: Final = 256
#: Of short lists in memory, however few.
_LISTS_HEAD_BYTES: Final = 160

#: Finding a vertex's list of links in memory.
LIST_BYTES: Final = 1.7

#: Numbers of links a vertex that an open index may keep below all that were built (zig/src/layout/links.zig).
LINKS_STEPS: Final = (24, 20, 16, 14, 12, 10, 8)

#: If eight links a vertex do not fit, a block of vertices shares one list. By the reported links a vertex:
#: the vertices of a block and the links of its list (index/block_adjacency.zig).
SHARED_LINKS: Final = {6: (5, 32), 4: (10, 48), 2: (40, 96)}


def shared_links_bytes(links: int, row_count: int) -> float:
    """Bytes of a vertex that keeps `links` in shared lists, rounded up a little."""
    stretch, count = SHARED_LINKS[links]
    gap_bits = 3 + 0.75 * math.log2(max(1.0, row_count / count))
    return (3 + min(count, row_count) * gap_bits / 8 + 1.5) / stretch + _LISTS_HEAD_BYTES / max(1, row_count)


def shared_links_within(
    budget_bytes: int, row_count: int, dim: int, memory_bits: int, record_bits: int
) -> int:
    """The links a vertex that fit beside codes in shared lists; 0 if none fit.

    The page directory is that of pages without links, since an index may be built so.
    """
    codes = memory_code_bytes(row_count, dim, memory_bits) + directory_bytes(record_bytes(dim, record_bits))
    room = budget_bytes / max(1, row_count) - codes
    return next((links for links in SHARED_LINKS if shared_links_bytes(links, row_count) <= room), 0)


def links_fit(
    budget_bytes: int, row_count: int, dim: int, memory_bits: int, links: int = _LINKS_LEAST
) -> bool:
    """Whether `links` of a vertex have room beside codes of `memory_bits`."""
    vector = memory_code_bytes(row_count, dim, memory_bits) + LIST_BYTES + links * link_bytes(row_count)
    return vector <= budget_bytes / max(1, row_count)


def link_bytes(row_count: int) -> float:
    """Of a link in memory: about 0.63·log2 n bits (gaps of ids in placement order), and a tenth to spare."""
    return 0.63 * 1.1 * math.log2(max(2, row_count)) / 8


def bits_usual(memory_bits: int | None) -> tuple[int, int]:
    """Bits in memory and in the record where no budget chooses them."""
    in_memory = _MEMORY_BITS_DEFAULT if memory_bits is None else memory_bits
    return in_memory, min(limit_of("record_bits").high, _BITS_IN_ALL - in_memory)


def bits_within(budget_bytes: int, row_count: int, dim: int) -> tuple[int, int]:
    """Bits a dimension (in memory, in the record) for an index that will be open within a budget.

    These are the most bits in memory that leave room for enough links, own or shared.
    """
    for memory_bits, record_bits in _BITS:
        links = _LINKS_LEAST if memory_bits == _BITS[-1][0] else LINKS_ENOUGH
        if links_fit(budget_bytes, row_count, dim, memory_bits, links):
            return memory_bits, record_bits
    # Two bits and links on disk read half of what one bit and shared links do, in more rounds.
    return next(
        (bits for bits in _BITS_SHARED if codes_bytes(row_count, dim, *bits) <= budget_bytes),
        _BITS_SHARED[-1],
    )


def bits_around(budget_bytes: int, row_count: int, dim: int) -> list[tuple[int, int]]:
    """The choice of `bits_within`, and one bit more and one less in memory, if codes fit; may be empty."""
    ladder = (*_BITS, *_BITS_SHARED)
    chosen = ladder.index(bits_within(budget_bytes, row_count, dim))
    near = ladder[max(0, chosen - 1) : chosen + 2]
    return [bits for bits in near if codes_bytes(row_count, dim, *bits) <= budget_bytes]


def codes_bytes_least(row_count: int, dim: int) -> int:
    """Memory of the shortest codes that `bits_around` considers, with the page directory."""
    return codes_bytes(row_count, dim, *_BITS_SHARED[-1])


def codes_bytes(row_count: int, dim: int, memory_bits: int, record_bits: int) -> int:
    """Bytes of codes and page directory, rounded up a little."""
    record = record_bytes(dim, record_bits) + _RECORD_LINKS_BYTES
    vector = memory_code_bytes(row_count, dim, memory_bits) + directory_bytes(record)
    return math.ceil(row_count * vector)


def record_bytes(dim: int, record_bits: int, whole_of: int = 0) -> float:
    """Of a record on disk without links; in pages of whole codes with its `whole_of` bits in memory."""
    whole = dim_code_of(dim) * whole_of / 8 + _FACTORS_BYTES if whole_of else 0
    return dim_code_of(dim) * record_bits / 8 + _RECORD_HEAD_BYTES + whole


def page_levels(
    row_count: int, dim: int, memory_bits: int, record_bits: int, page_links: bool = False
) -> dict[int, int]:
    """The memory of page codes and page directory by number of codes for each page, ascending.

    Bytes are rounded up a little. One code for each page precedes each finer level.
    """
    record = record_bytes(dim, record_bits, memory_bits) + (_RECORD_LINKS_BYTES if page_links else 0)
    held = max(1, int((PAGE_BYTES - _PAGE_HEAD_BYTES) / record))
    pages = _PAGES_MORE * row_count / held + 2
    code = dim_code_of(dim) * memory_bits / 8 + _FACTORS_BYTES
    beside = row_count * directory_bytes(record) + _shared_bytes(row_count, dim) + _LEVEL_BYTES
    most = limit_of("links_kept").high
    counts = sorted({1, *(min(most, max(1, round(share * held))) for share in _LEVEL_SHARES)})
    return {count: math.ceil(pages * code * (1 if count == 1 else 1 + count) + beside) for count in counts}


def page_codes_bytes(
    row_count: int, dim: int, memory_bits: int, record_bits: int, page_links: bool = False
) -> int:
    """The smallest value of :func:`page_levels`."""
    return min(page_levels(row_count, dim, memory_bits, record_bits, page_links).values())


def page_codes_bytes_least(row_count: int, dim: int) -> int:
    """Memory of one code for each page in the shortest codes, with the page directory: less does not open."""
    return page_codes_bytes(row_count, dim, *_BITS_SHARED[-1])


def directory_bytes(record: float) -> float:
    """Of a vector in the page directory, by the bytes of a record (zig/src/layout/page_starts.zig)."""
    return 0.25 + 4 / max(1, (PAGE_BYTES - _PAGE_HEAD_BYTES) // record)


def dim_code_of(dim: int) -> int:
    """Dimensions of a code."""
    return -(-dim // _DIM_CODE_MULTIPLE) * _DIM_CODE_MULTIPLE


def memory_code_bytes(row_count: int, dim: int, memory_bits: int) -> float:
    """A vector's code, factors and center, and its share of centers and mean (docs/FORMAT.md, codes.bin)."""
    shared = _shared_bytes(row_count, dim)
    return dim_code_of(dim) * memory_bits / 8 + _FACTORS_BYTES + shared / max(1, row_count)


def _shared_bytes(row_count: int, dim: int) -> int:
    centers = min(256, max(1, row_count // 256))
    return centers * dim_code_of(dim) * 4 + dim * 4 + _CODES_HEAD_BYTES
