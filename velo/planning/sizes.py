"""Memory, disk space and work of an index that does not exist yet, from its shape alone.

Sizes follow from the format. Reads and processor time are those of SIFT descriptors (128 dimensions, ten
neighbors at recall 0.95), measured at 100,000 and a million vectors, and at ten million with 20 %; beyond
that they are extrapolated.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from velo.errors import BudgetTooSmallError, InvalidArgumentError
from velo.options import BuildOptions, in_range, memory_bytes, sizes_of, whole_number
from velo.options.sizes import SHARD_ROWS_MAX
from velo.types import DtypeName, Memory

__all__ = ["MEASURED_ROWS_MAX", "SizePlan", "size_plan"]

#: Vectors a shard beyond which nothing was measured.
MEASURED_ROWS_MAX: Final = 10_000_000

_ROWS_MAX: Final = 10**13
#: In the order of the library's numbers.
_DTYPES: Final = ("f32", "f16", "u8", "i8")
_MEMORY_PARTS: Final = {"codes": "codes", "links": "links", "pages": "page directory"}
_DISK_PARTS: Final = {
    name: name.replace("_", " ") for name in ("codes", "pages", "page_codes", "links", "ids", "vectors")
}


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
#: Without codes of vectors, by codes per page; processor time is estimated (decision 0024).
_WALK: Final = {
    7: _Query(42.6, 9.8, 350.0, 1.9),
    3: _Query(45.6, 10.3, 350.0, 2.0),
    1: _Query(47.3, 10.6, 350.0, 2.0),
}
#: With a code of each record, by its bytes; 28 were measured, the others follow from 100,000 rows; processor
#: time is estimated (decision 0024).
_RECORDS: Final = {
    36: _Query(17.7, 2.4, 600.0, 1.67),
    28: _Query(20.2, 2.6, 600.0, 1.67),
    24: _Query(23.0, 2.7, 600.0, 1.67),
    20: _Query(26.4, 2.9, 600.0, 1.67),
    0: _Query(33.0, 3.2, 600.0, 1.67),
}
#: Of the pages that queries want, those found in memory where it holds such a share of all.
_HITS: Final = ((0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0), (0.0, 0.09, 0.16, 0.3, 0.42, 0.63, 0.8, 1.0))
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
    """Plan an index by its shape: memory, disk, build, and the cost of a query.

    Parameters
    ----------
    rows, dim : int
        Vectors of all shards, and dimensions.
    memory : int, float or str, optional
        Budget of searches, of all shards together. It chooses the bits that are not given.
    shards : int
    dtype : {"f32", "f16", "u8", "i8"}
        Of the stored vectors.
    store_vectors : bool
    memory_bits, record_bits, degree : int, optional
        As for :func:`velo.build`.

    Returns
    -------
    SizePlan

    Raises
    ------
    BudgetTooSmallError
        `memory` does not hold a code of each page; ``needed_bytes`` is enough.
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
    if dtype not in _DTYPES:
        raise InvalidArgumentError(f"dtype is one of {', '.join(_DTYPES)}", argument="dtype")
    budget = memory_bytes(memory, rows, dim)
    options = BuildOptions(
        memory_bits=memory_bits,
        record_bits=record_bits,
        degree=BuildOptions.degree if degree is None else degree,
    )
    try:
        sizes = sizes_of(
            rows,
            dim,
            shards=shards,
            memory_bytes=budget,
            dtype=_DTYPES.index(dtype),
            degree=options.degree,
            memory_bits=memory_bits,
            record_bits=record_bits,
            store_vectors=store_vectors,
        )
    except BudgetTooSmallError as error:
        raise BudgetTooSmallError(
            f"memory is {budget:,} bytes; a code of each page of {rows:,} vectors, codebooks and the page "
            f"directory take {error.needed_bytes:,}",
            argument="memory",
            needed_bytes=error.needed_bytes,
        ) from None
    links, page_codes = int(sizes.links_kept), int(sizes.page_codes_kept)
    record_code_bytes = int(sizes.record_code_bytes) if page_codes else 0
    query = _query(int(sizes.memory_bits), links, page_codes, record_code_bytes)
    memory_parts = _parts(sizes, "memory", _MEMORY_PARTS)
    if sizes.memory_cache_bytes:
        memory_parts["cached pages"] = int(sizes.memory_cache_bytes)
        cached = sizes.memory_cache_bytes / sizes.disk_pages_bytes
        query = query._replace(reads=query.reads * (1 - float(np.interp(cached, *_HITS))))
    disk_parts = _parts(sizes, "disk", _DISK_PARTS)
    grown = _grown(own, (query.growth, max(query.growth, _READS_GROWTH_LEAST)))
    # With links on disk a longer way to the nearest takes more rounds; without codes later rounds are larger.
    more_rounds = 1.0 if links else math.sqrt(grown) if page_codes else grown
    work = _BUILD_US * 1e-6 * _grown(own, _BUILD_GROWTH) * (1 + _BUILD_SHARE_OF_DIM * (dim / 128 - 1))
    return SizePlan(
        rows=rows,
        dim=dim,
        shards=shards,
        memory_bits=int(sizes.memory_bits),
        record_bits=int(sizes.record_bits),
        links=links,
        page_codes=page_codes,
        memory_bytes=memory_parts | {"total": sum(memory_parts.values())},
        disk_bytes=disk_parts | {"total": sum(disk_parts.values())},
        float32_bytes=rows * dim * 4,
        build_memory_bytes={
            "in_one_piece": int(sizes.build_whole_bytes),
            "least": int(sizes.build_least_bytes),
        },
        build_core_s=rows * work,
        reads=query.reads * grown,
        rounds=max(1.0, query.rounds * more_rounds),
        query_core_us=query.core_us * _grown(own, _QUERY_GROWTH),
        measured=own <= MEASURED_ROWS_MAX,
    )


def _parts(sizes: Any, kind: str, names: dict[str, str]) -> dict[str, int]:
    """Fields such as ``memory_codes_bytes``, by the names that users see."""
    return {shown: int(getattr(sizes, f"{kind}_{name}_bytes")) for name, shown in names.items()}


def _grown(rows: int, growth: tuple[float, float]) -> float:
    """By how much something differs from what it is at a million vectors."""
    tens = math.log10(max(rows, 1) / 1e6)
    return float(growth[0 if tens < 0 else 1] ** np.clip(tens, -2, 4))


def _query(memory_bits: int, links: int, page_codes: int, record_code_bytes: int) -> _Query:
    """The cost of a query over a million descriptors."""
    if record_code_bytes:
        return next(query for count, query in _RECORDS.items() if record_code_bytes >= count)
    if page_codes:
        return next(query for count, query in _WALK.items() if page_codes >= count)
    if links == 0:
        return _LINKS_ON_DISK[min(memory_bits, max(_LINKS_ON_DISK))]
    own = _OWN_LINKS[min(memory_bits, max(_OWN_LINKS))]
    if links not in _SHARED_READS:
        return own
    return own._replace(reads=own.reads * _SHARED_READS[links], core_us=own.core_us + _SHARED_US[links])
