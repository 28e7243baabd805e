"""Memory, disk space and work of an index that does not exist yet, from its shape alone.

Sizes follow from the format. Reads and processor time are those of SIFT descriptors (128 dimensions, ten
neighbors at recall 0.95), measured at 100,000 and a million vectors on every memory tier, and at ten million
with 20 %; beyond that they are extrapolated.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from velo.errors import BudgetTooSmallError, InvalidArgumentError
from velo.options import BuildOptions, in_range, memory_bytes, whole_number
from velo.options.bits import (
    LINKS_ENOUGH,
    LINKS_STEPS,
    LIST_BYTES,
    PAGE_BYTES,
    SHARD_ROWS_MAX,
    SHARED_LINKS,
    dim_code_of,
    directory_bytes,
    link_bytes,
    links_fit,
    memory_code_bytes,
    page_levels,
    record_bytes,
    shared_links_bytes,
    shared_links_within,
)
from velo.types import DtypeName, Memory

__all__ = ["MEASURED_ROWS_MAX", "SizePlan", "size_plan"]

#: Vectors a shard beyond which nothing was measured.
MEASURED_ROWS_MAX: Final = 10_000_000

_ROWS_MAX: Final = 10**13
_PAGE_HEAD_BYTES: Final = 24
_VECTOR_PAGE_HEAD_BYTES: Final = 16
_PAGE_BYTES_MAX: Final = 65_536
_RECORDS_MAX: Final = 512
_ELEMENT_BYTES: Final = {"f32": 4, "f16": 2, "u8": 1, "i8": 1}


class _Query(NamedTuple):
    """The cost of a query over a million descriptors, and the growth of its reads with ten times the rows."""

    reads: float
    rounds: float
    core_us: float
    growth: float


#: With links of each vertex, by bits in memory (docs/results/budgets-sift1m.md; growth: from 100,000 on).
_OWN_LINKS: Final = {
    4: _Query(8.2, 1.3, 65.0, 1.19),
    3: _Query(11.0, 1.5, 125.0, 1.34),
    2: _Query(15.7, 1.8, 142.0, 1.56),
    1: _Query(37.2, 1.9, 157.0, 2.1),
}
#: With codes of pages alone, by how many of them there are for a record, at most.
_PAGES: Final = (
    (0.1, _Query(336.0, 3.1, 1_228.0, 3.1)),
    (0.25, _Query(217.0, 2.0, 934.0, 2.7)),
    (0.5, _Query(121.0, 1.0, 639.0, 2.2)),
    (1.0, _Query(67.4, 1.0, 586.0, 2.2)),
)
#: Of the pages that queries want, those found in memory where it holds such a share of all.
_HITS: Final = ((0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0), (0.0, 0.09, 0.16, 0.3, 0.42, 0.63, 0.8, 1.0))
#: Fewer pages are not cached (zig/src/search/shared.zig).
_PAGES_SHARE_LEAST: Final = 0.05
#: With links on disk; more bits were not measured.
_LINKS_ON_DISK: Final = {2: _Query(20.0, 8.6, 179.0, 1.6), 1: _Query(39.4, 17.0, 285.0, 2.1)}
#: With shared links: the factor of reads against own links, and the processor time added.
_SHARED_READS: Final = {6: 0.99, 4: 1.14, 2: 1.225}
_SHARED_US: Final = {6: 233.0, 4: 391.0, 2: 453.0}
#: Growth of reads at 20 % from a million to ten million vectors; the least that is assumed elsewhere.
_READS_GROWTH_LEAST: Final = 1.41
#: By how much more processor a query takes for ten times the vectors, and a vector's building: from 100,000
#: to a million, then from a million on.
_QUERY_GROWTH: Final = (1.99, 2.9)
_BUILD_GROWTH: Final = (1.27, 1.27)
_BUILD_US: Final = 285.0
#: Of the work of building a vector, the part that grows with its dimensions.
_BUILD_SHARE_OF_DIM: Final = 0.32

#: Building in one piece, and in the most partitions, in bytes a vector.
_BUILD_LISTS_BYTES: Final = 4.9
_BUILD_BYTES_LEAST: Final = 20


@dataclass(frozen=True)
class SizePlan:
    """The size of a collection, of all shards together unless a field says otherwise.

    Attributes
    ----------
    rows, dim, shards : int
    memory_bits, record_bits : int
        Bits a dimension of the code in memory, and of its rest on disk.
    links : int
        Links a vertex in memory; 0 if they are on disk, or nowhere.
    page_codes : int
        Codes of each page in memory if neither links nor codes of vectors fit; else 0.
    memory_bytes, disk_bytes : dict of str to int
        By part; ``total`` is their sum.
    float32_bytes : int
        Size of the vectors as float32, to which shares refer.
    build_memory_bytes : dict of str to int
        Of one shard: ``in_one_piece``, and ``least`` in partitions.
    build_core_s : float
        Processor time of all builds.
    reads, rounds, query_core_us : float
        A query of one shard of descriptors like SIFT's, ten neighbors at recall 0.95.
    measured : bool
        Whether shards of this size were measured; beyond, reads and times are extrapolated.
    """

    rows: int
    dim: int
    shards: int
    memory_bits: int
    record_bits: int
    links: int
    page_codes: int
    memory_bytes: dict[str, int]
    disk_bytes: dict[str, int]
    float32_bytes: int
    build_memory_bytes: dict[str, int]
    build_core_s: float
    reads: float
    rounds: float
    query_core_us: float
    measured: bool

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it.

        Returns
        -------
        dict
        """
        return asdict(self)


def size_plan(
    rows: int,
    dim: int,
    *,
    memory: Memory | None = None,
    shards: int = 1,
    dtype: DtypeName = "f32",
    store_vectors: bool = False,
    memory_bits: int | None = None,
    record_bits: int | None = None,
    degree: int | None = None,
) -> SizePlan:
    """Plan an index by its shape: memory, disk, building, and what a query may take.

    Parameters
    ----------
    rows, dim : int
        Vectors of all shards, and their dimensions.
    memory : int, float or str, optional
        What searches will have, of all shards together. It chooses the bits that are left open.
    shards : int
    dtype : {"f32", "f16", "u8", "i8"}
        Of the vectors, where they are stored.
    store_vectors : bool
    memory_bits, record_bits, degree : int, optional
        As for :func:`velo.build`.

    Returns
    -------
    SizePlan

    Raises
    ------
    BudgetTooSmallError
        `memory` does not hold a code of each page; it says what does.
    InvalidArgumentError

    Examples
    --------
    >>> plan = velo.size_plan(500_000_000, 768, memory="128GiB", shards=10)
    >>> plan.memory_bits, plan.links > 0
    (2, True)
    """
    rows = whole_number(rows, "rows", 1, _ROWS_MAX)
    dim = in_range(dim, "dim")
    shards = in_range(shards, "shards")
    own = -(-rows // shards)
    if own > SHARD_ROWS_MAX:
        raise InvalidArgumentError(
            f"a shard holds up to {SHARD_ROWS_MAX:,} vectors: {-(-rows // SHARD_ROWS_MAX)} shards or more",
            argument="shards",
        )
    if dtype not in _ELEMENT_BYTES:
        raise InvalidArgumentError(f"dtype is one of {', '.join(_ELEMENT_BYTES)}", argument="dtype")
    budget = memory_bytes(memory, rows, dim)
    chosen: dict[str, Any] = {"memory_bits": memory_bits, "record_bits": record_bits}
    if degree is not None:
        chosen["degree"] = degree
    try:
        options = BuildOptions(search_memory=budget // shards if budget else None, **chosen).for_vectors(
            own, dim
        )
    except BudgetTooSmallError as error:
        needed = None if error.needed_bytes is None else error.needed_bytes * shards
        raise BudgetTooSmallError(
            f"memory is {budget:,} bytes; a code of each page of {rows:,} vectors and the page directory "
            f"take {needed:,}",
            argument="memory",
            needed_bytes=needed,
        ) from None
    assert options.memory_bits is not None
    assert options.record_bits is not None
    assert options.links_kept is not None
    bits = (options.memory_bits, options.record_bits)
    code = memory_code_bytes(own, dim, options.memory_bits)
    record, page = _record_bytes(own, dim, options)
    one_link = link_bytes(own)
    directory = rows * directory_bytes(record)
    links, page_codes = 0, 0
    levels = page_levels(own, dim, *bits, bool(options.page_links))
    if options.page_codes:
        page_codes = max(count for count, size in levels.items() if size <= budget // shards)
        held = int((PAGE_BYTES - _PAGE_HEAD_BYTES) / record) or 1
        query = next(query for most, query in _PAGES if page_codes <= max(1.0, most * held))
        memory_parts = {
            "codes": shards * levels[page_codes] - directory,
            "links": 0.0,
            "page directory": directory,
        }
    else:
        links = _links(budget // shards, own, dim, bits, options.links_kept)
        query = _query(options.memory_bits, links)
        memory_parts = {
            "codes": rows * code,
            "links": rows * _links_bytes(links, own),
            "page directory": directory,
        }
        pages = rows * page
        left = budget - _summed(memory_parts)["total"]
        if links and links not in SHARED_LINKS and left > _PAGES_SHARE_LEAST * pages:
            memory_parts["cached pages"] = min(left, pages)
            query = query._replace(reads=query.reads * (1 - float(np.interp(left / pages, *_HITS))))
    grown = _grown(own, (query.growth, max(query.growth, _READS_GROWTH_LEAST)))
    disk_parts = {
        "codes": rows * code,
        "pages": rows * page,
        "page codes": _page_codes_disk(levels) * shards if options.page_codes else 0.0,
        "links": rows * (options.links_kept * (one_link + 3 / 8) + 1.5),
        "ids": rows * 8.0,
        "vectors": rows * _vector_bytes(dim * _ELEMENT_BYTES[dtype]) if store_vectors else 0.0,
    }
    reads = query.reads * grown
    one_piece = own * (dim_code_of(dim) + 12 + options.degree * _BUILD_LISTS_BYTES)
    return SizePlan(
        rows=rows,
        dim=dim,
        shards=shards,
        memory_bits=options.memory_bits,
        record_bits=options.record_bits,
        links=links,
        page_codes=page_codes,
        memory_bytes=_summed(memory_parts),
        disk_bytes=_summed(disk_parts),
        float32_bytes=rows * dim * 4,
        build_memory_bytes={"in_one_piece": round(one_piece), "least": own * _BUILD_BYTES_LEAST},
        build_core_s=rows
        * _BUILD_US
        * 1e-6
        * _grown(own, _BUILD_GROWTH)
        * (1 + _BUILD_SHARE_OF_DIM * (dim / 128 - 1)),
        reads=reads,
        # With links on disk a longer way to the nearest is more rounds; so are pages beyond a burst.
        rounds=max(1.0, query.rounds * (1.0 if links else grown)),
        query_core_us=query.core_us * _grown(own, _QUERY_GROWTH),
        measured=own <= MEASURED_ROWS_MAX,
    )


def _summed(parts: dict[str, float]) -> dict[str, int]:
    whole = {name: round(value) for name, value in parts.items()}
    return whole | {"total": sum(whole.values())}


def _grown(rows: int, growth: tuple[float, float]) -> float:
    """By how much something differs from what it is at a million vectors."""
    tens = math.log10(max(rows, 1) / 1e6)
    return float(growth[0 if tens < 0 else 1] ** np.clip(tens, -2, 4))


def _links(budget_bytes: int, rows: int, dim: int, bits: tuple[int, int], most: int) -> int:
    """Links a vertex that have room, shared ones too; all where there is no budget, 0 where too few have."""
    if not budget_bytes:
        return most
    enough = min(most, LINKS_ENOUGH)
    for links in (enough, *(step for step in LINKS_STEPS if step < enough)):
        if links_fit(budget_bytes, rows, dim, bits[0], links):
            return links
    return shared_links_within(budget_bytes, rows, dim, *bits) if most >= LINKS_STEPS[-1] else 0


def _links_bytes(links: int, rows: int) -> float:
    """Of a vertex's links in memory."""
    if links in SHARED_LINKS:
        return shared_links_bytes(links, rows)
    return links * link_bytes(rows) + LIST_BYTES if links else 0.0


def _query(memory_bits: int, links: int) -> _Query:
    """The cost of a query over a million descriptors."""
    if links == 0:
        return _LINKS_ON_DISK[min(memory_bits, max(_LINKS_ON_DISK))]
    own = _OWN_LINKS[min(memory_bits, max(_OWN_LINKS))]
    if links not in SHARED_LINKS:
        return own
    return own._replace(reads=own.reads * _SHARED_READS[links], core_us=own.core_us + _SHARED_US[links])


def _record_bytes(rows: int, dim: int, options: BuildOptions) -> tuple[float, float]:
    """Of a vector in `pages.bin`: its record, and with what its page leaves empty."""
    assert options.record_bits is not None
    assert options.memory_bits is not None
    record = record_bytes(dim, options.record_bits, options.memory_bits if options.page_codes else 0)
    if options.page_links:
        record += 2 + options.degree * link_bytes(rows)
    page = PAGE_BYTES
    while page < _PAGE_BYTES_MAX and page - _PAGE_HEAD_BYTES < record:
        page *= 2
    held = min(_RECORDS_MAX, max(1, int((page - _PAGE_HEAD_BYTES) / record)))
    return record, page / held


def _page_codes_disk(levels: dict[int, int]) -> float:
    """Of `page_codes.bin`: all levels, the coarsest once."""
    least = min(levels.values())
    return float(least + sum(size - least for size in levels.values()))


def _vector_bytes(row_bytes: int) -> float:
    """Of a row in `vectors.bin`, with what its page leaves empty."""
    page = PAGE_BYTES
    while True:
        held = (page - _VECTOR_PAGE_HEAD_BYTES) // row_bytes
        if page == _PAGE_BYTES_MAX or held * row_bytes * 10 >= 7 * page:
            return page / max(1, held)
        page *= 2
