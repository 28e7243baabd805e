"""What can be chosen when building, opening and searching, checked before the library sees it."""

from __future__ import annotations

import math
import numbers
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from velo.errors import BudgetTooSmallError, InvalidArgumentError
from velo.hints import metric_hint
from velo.types import Memory

__all__ = [
    "DTYPE_CODES",
    "FILTER_PLANS",
    "IO_CODES",
    "LINKS_KEPT_USUAL",
    "LINKS_STEPS",
    "METRIC_CODES",
    "PLAN_CODES",
    "BuildOptions",
    "OpenTuning",
    "SearchTuning",
    "code_of",
    "folder_path",
    "memory_bytes",
    "whole_number",
]

METRIC_CODES: Final = {"l2": 0, "ip": 1, "cosine": 2}
DTYPE_CODES: Final = {"float32": 0, "float16": 1, "uint8": 2, "int8": 3}
IO_CODES: Final = {"auto": 0, "uring": 1, "threads": 2, "simulated": 3}
PLAN_CODES: Final = {"auto": 0, "links_in_memory": 1, "links_on_disk": 2}
FILTER_PLANS: Final = {"auto": 0, "late": 1, "gate": 3, "scan": 4}

UINT32_MAX: Final = 2**32 - 1

#: More than any machine has.
_MEMORY_MAX: Final = 2**62

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def memory_bytes(memory: Memory | None, row_count: int, dim: int, argument: str = "memory") -> int:
    """A budget in bytes.

    Parameters
    ----------
    memory : int, float, str or None
        Bytes (int), a share of ``row_count * dim * 4`` bytes (float up to 1, or ``"15%"``), or a size with
        its unit (``"2GiB"``, ``"500 MB"``). None is 0, which stands for no budget.
    row_count, dim : int
        The shape that a share refers to: float32 vectors, whatever their type in the input.
    argument : str
        Its name, for errors.

    Returns
    -------
    int
    """
    if memory is None:
        return 0
    bad = InvalidArgumentError(
        f'{argument} must be bytes (int), a share ("15%" or 0.15) or a size ("2GiB"), not {memory!r}',
        argument=argument,
    )
    if isinstance(memory, bool):
        raise bad
    if isinstance(memory, numbers.Integral):
        size = int(memory)
    elif isinstance(memory, numbers.Real):
        share = float(memory)
        if not 0.0 < share <= 1.0:
            raise InvalidArgumentError(
                f"{argument} as a float is a share of the vectors, above 0 and at most 1, not {share}; "
                "bytes are an int",
                argument=argument,
            )
        size = math.floor(share * row_count * dim * 4)
    elif isinstance(memory, str) and len(memory) < 100:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[a-z]*)\s*", memory.lower())
        if match is None or (match[2] != "%" and match[2] not in _UNITS):
            raise bad
        if match[2] == "%":
            size = math.floor(float(match[1]) / 100 * row_count * dim * 4)
        else:
            size = math.floor(float(match[1]) * _UNITS[match[2]])
    else:
        raise bad
    if size <= 0:
        raise InvalidArgumentError(f"{argument} must be more than 0 bytes, not {memory!r}", argument=argument)
    if size > _MEMORY_MAX:
        raise InvalidArgumentError(f"{argument} is more than any machine has: {memory!r}", argument=argument)
    return size


def folder_path(path: Any, argument: str = "path") -> Path:
    """`path` as a path that the system takes."""
    try:
        folder = Path(path)
        if b"\0" not in bytes(folder):
            return folder
    except (TypeError, UnicodeError):
        pass
    raise InvalidArgumentError(f"{argument} must be a path, not {path!r}", argument=argument)


def whole_number(value: Any, argument: str, low: int, high: int) -> int:
    """`value` as an int between `low` and `high`, or an `InvalidArgumentError`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidArgumentError(f"{argument} must be a whole number, not {value!r}", argument=argument)
    if not low <= int(value) <= high:
        bound = f"at least {low}" if int(value) < low else f"at most {high}"
        raise InvalidArgumentError(f"{argument} must be {bound}, not {int(value)}", argument=argument)
    return int(value)


def code_of(codes: dict[str, int], value: Any, argument: str) -> int:
    """The native number behind a name such as ``"l2"``."""
    if not isinstance(value, str) or value not in codes:
        names = ", ".join(repr(name) for name in codes)
        hint = metric_hint(value) if codes is METRIC_CODES else ""
        message = f"{argument} must be one of {names}, not {value!r}{hint}"
        raise InvalidArgumentError(message, argument=argument)
    return codes[value]


def _real_number(value: Any, argument: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not low <= float(value) <= high:
        raise InvalidArgumentError(
            f"{argument} must be between {low} and {high}, not {value!r}", argument=argument
        )
    return float(value)


#: Bits of a code in all: with these the longest lists end near recall@10 0.996 on a million SIFT descriptors,
#: with one less near 0.993. At 128 dimensions a bit is 16 bytes of a record of about 165.
_BITS_IN_ALL: Final = 10
_RECORD_BITS_MAX: Final = 8
_MEMORY_BITS_DEFAULT: Final = 4
#: Bits in memory and in the record by what a budget has room for: the more in memory, the fewer reads.
_BITS: Final = ((6, 4), (5, 5), (4, 6), (3, 7))
#: Where links go to disk whatever the bits, short codes leave room for records.
_BITS_LINKS_ON_DISK: Final = (2, 6)
#: Links a vertex that must have room beside the codes; where memory is short, fewer do.
_LINKS_WANTED: Final = 16
_LINKS_LEAST: Final = 12


#: Links a vertex that a build keeps for memory, where the degree allows it.
LINKS_KEPT_USUAL: Final = 32

#: Codes are as long as a multiple of this (zig/src/base/limits.zig).
_DIM_CODE_MULTIPLE: Final = 16
_PAGE_BYTES: Final = 4096
#: Factors and links of a record, more or less.
_RECORD_BEYOND_CODES: Final = 60

#: Numbers of links a vertex that an open index may keep below all that were built (zig/src/layout/links.zig).
LINKS_STEPS: Final = (24, 20, 16, 14, 12, 10, 8)


def links_fit(
    budget_bytes: int, row_count: int, dim: int, memory_bits: int, links: int = _LINKS_LEAST
) -> bool:
    """Whether `links` of a vertex have room beside codes of `memory_bits`.

    A link takes about 0.63·log2 n bits (gaps of ids in placement order), and finding its list 1.5 bytes a
    vertex.
    """
    link_bytes = 0.63 * math.log2(max(2, row_count)) / 8 * 1.1
    dim_code = math.ceil(dim / _DIM_CODE_MULTIPLE) * _DIM_CODE_MULTIPLE
    vector = _memory_code_bytes(row_count, dim_code, memory_bits) + 1.7
    return vector + links * link_bytes <= budget_bytes / max(1, row_count)


def bits_within(budget_bytes: int, row_count: int, dim: int) -> tuple[int, int]:
    """Bits a dimension in memory and in the record for indexes that will be open within a budget.

    The most bits in memory beside which enough links fit.

    Parameters
    ----------
    budget_bytes : int
        What searches will have.
    row_count, dim : int

    Returns
    -------
    memory_bits, record_bits : int
    """
    for memory_bits, record_bits in _BITS:
        links = _LINKS_LEAST if memory_bits == _BITS[-1][0] else _LINKS_WANTED
        if links_fit(budget_bytes, row_count, dim, memory_bits, links):
            return memory_bits, record_bits
    return _BITS_LINKS_ON_DISK


def bits_around(budget_bytes: int, row_count: int, dim: int) -> list[tuple[int, int]]:
    """What `bits_within` chooses, and one bit more and one less in memory, as far as codes have room.

    Returns
    -------
    list of (memory_bits, record_bits)
        Empty where not even the shortest codes fit.
    """
    ladder = (*_BITS, _BITS_LINKS_ON_DISK)
    chosen = ladder.index(bits_within(budget_bytes, row_count, dim))
    near = ladder[max(0, chosen - 1) : chosen + 2]
    return [bits for bits in near if _codes_bytes(row_count, dim, *bits) <= budget_bytes]


def codes_bytes_least(row_count: int, dim: int) -> int:
    """What the shortest codes that `bits_around` knows take, with the page directory."""
    return _codes_bytes(row_count, dim, *_BITS_LINKS_ON_DISK)


def _codes_bytes(row_count: int, dim: int, memory_bits: int, record_bits: int) -> int:
    """Bytes of codes and page directory (12 a page), a little more than less."""
    dim_code = -(-dim // _DIM_CODE_MULTIPLE) * _DIM_CODE_MULTIPLE
    record = dim_code * record_bits / 8 + _RECORD_BEYOND_CODES
    vector = _memory_code_bytes(row_count, dim_code, memory_bits) + 12 * record / _PAGE_BYTES
    return math.ceil(row_count * vector) + _PAGE_BYTES


def _memory_code_bytes(row_count: int, dim_code: int, memory_bits: int) -> float:
    """A vector's code, factors and center, and its share of the centers (docs/FORMAT.md, codes.bin)."""
    centers = min(256, max(1, row_count // 256))
    return dim_code * memory_bits / 8 + 5 + centers * dim_code * 4 / max(1, row_count)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What shapes a new index; see :func:`velo.build` for the meaning of each.

    ``affinity_percent`` is for experiments: records of a page belong to one color, which a cache keeps
    together, if they lie within this percentile of the distances to a cluster's centroid (VeloANN, §3.4).
    """

    metric: str = "l2"
    memory_bits: int | None = None
    record_bits: int | None = None
    #: A budget that searches will have, which chooses the bits that are not given.
    search_memory: Memory | None = None
    degree: int = 48
    build_list_size: int = 100
    alpha: float = 1.2
    #: None: 32, or the degree where that is less.
    links_kept: int | None = None
    #: None: only where `search_memory` is given and has room for links are they left out of pages.
    page_links: bool | None = None
    threads: int | None = None
    seed: int = 0
    #: None: only where the build finds that codes alone do not reach a recall.
    store_vectors: bool | None = None
    affinity_percent: int = 5
    #: Seconds at least between two times that the state of a long stage is saved, for a build that is killed.
    checkpoint_s: float = 30.0
    calibrate: bool = True

    def __post_init__(self) -> None:
        code_of(METRIC_CODES, self.metric, "metric")
        if self.memory_bits is not None:
            whole_number(self.memory_bits, "memory_bits", 1, 6)
        if self.record_bits is not None:
            whole_number(self.record_bits, "record_bits", 0, 8)
        memory_bytes(self.search_memory, 1_000_000, 1_000, "search_memory")
        whole_number(self.degree, "degree", 1, 1024)
        whole_number(self.build_list_size, "build_list_size", 1, 100_000)
        if self.links_kept is not None:
            whole_number(self.links_kept, "links_kept", 0, self.degree)
        if self.links_kept == 0 and self.page_links is False:
            raise InvalidArgumentError(
                "links_kept is 0, and pages shall hold no links either: nothing could be searched",
                argument="links_kept",
            )
        whole_number(self.affinity_percent, "affinity_percent", 1, 99)
        whole_number(self.seed, "seed", 0, 2**64 - 1)
        _real_number(self.alpha, "alpha", 1.0, 10.0)
        _real_number(self.checkpoint_s, "checkpoint_s", 0.001, 1e6)
        if self.threads is not None:
            whole_number(self.threads, "threads", 1, 4096)

    def for_vectors(self, row_count: int, dim: int) -> BuildOptions:
        """With what was left open chosen: bits, and which links are kept where.

        Raises
        ------
        BudgetTooSmallError
            The codes alone would not fit in `search_memory`, so that the index could not be opened in it.
        """
        links_kept = min(LINKS_KEPT_USUAL, self.degree) if self.links_kept is None else self.links_kept
        memory_bits = _MEMORY_BITS_DEFAULT if self.memory_bits is None else self.memory_bits
        record_bits = min(_RECORD_BITS_MAX, _BITS_IN_ALL - memory_bits)
        page_links = True if self.page_links is None else self.page_links
        budget = memory_bytes(self.search_memory, row_count, dim, "search_memory")
        if budget:
            if self.memory_bits is None:
                memory_bits, record_bits = bits_within(budget, row_count, dim)
            if self.page_links is None:
                page_links = not (links_kept and links_fit(budget, row_count, dim, memory_bits))
        if self.record_bits is not None:
            record_bits = self.record_bits
        needed = _codes_bytes(row_count, dim, memory_bits, record_bits)
        if budget and needed > budget:
            given = " as asked" if self.memory_bits is not None else ", the shortest there are,"
            raise BudgetTooSmallError(
                f"search_memory is {budget} bytes; codes of {memory_bits} bits a dimension in memory{given} "
                f"and the page directory take {needed}",
                argument="search_memory",
                needed_bytes=needed,
            )
        return replace(
            self,
            memory_bits=memory_bits,
            record_bits=record_bits,
            links_kept=links_kept,
            page_links=page_links,
        )

    def fill(self, struct: Any) -> None:
        """Write these into a ``velo_build_options``; what was left open must be chosen (`for_vectors`)."""
        struct.metric = METRIC_CODES[self.metric]
        struct.memory_bits = self.memory_bits
        struct.record_bits = self.record_bits
        struct.degree = self.degree
        struct.build_list_size = self.build_list_size
        struct.alpha = self.alpha
        struct.links_kept = UINT32_MAX if self.links_kept is None else self.links_kept
        struct.no_page_links = int(not self.page_links)
        struct.threads = self.threads or 0
        struct.seed = self.seed
        struct.store_vectors = int(bool(self.store_vectors))
        struct.affinity_percent = self.affinity_percent
        struct.checkpoint_ms = int(self.checkpoint_s * 1000)


@dataclass(frozen=True, kw_only=True)
class OpenTuning:
    """What an open index can be tuned by, beyond its budget; the defaults are the plan's own choice.

    Attributes
    ----------
    links_kept : int, optional
        Links of a vertex kept in memory; at most as many as were built.
    queries_in_flight : int, optional
        Queries that a worker interleaves; without it as many as cover the device's latency, as measured while
        running, at most 16.
    queue_depth : int, optional
        Reads in flight of a worker.
    buffered : bool
        Read through the system's page cache even where O_DIRECT works.
    cache_share : float, optional
        Share of the budget for the record cache.
    simulated_seed, simulated_faults : int
        For the simulated device of the test library.
    """

    links_kept: int | None = None
    queries_in_flight: int | None = None
    queue_depth: int | None = None
    buffered: bool = False
    cache_share: float | None = None
    simulated_seed: int = 0
    simulated_faults: int = 0

    def __post_init__(self) -> None:
        for name in ("links_kept", "queries_in_flight", "queue_depth"):
            value = getattr(self, name)
            if value is not None:
                whole_number(value, name, 1, 65_536)
        if self.cache_share is not None:
            _real_number(self.cache_share, "cache_share", 0.0, 1.0)
        whole_number(self.simulated_seed, "simulated_seed", 0, 2**64 - 1)
        whole_number(self.simulated_faults, "simulated_faults", 0, UINT32_MAX)

    def fill(self, struct: Any) -> None:
        """Write these into a ``velo_open_options``."""
        struct.links_kept = self.links_kept or 0
        struct.queries_in_flight = self.queries_in_flight or 0
        struct.queue_depth = self.queue_depth or 0
        struct.buffered = int(self.buffered)
        struct.cache_share = -1.0 if self.cache_share is None else self.cache_share
        struct.simulated_seed = self.simulated_seed
        struct.simulated_faults = self.simulated_faults


@dataclass(frozen=True, kw_only=True)
class SearchTuning:
    """What a search can be tuned by, beyond ``recall`` and ``list_size``; for benches and experiments.

    Attributes
    ----------
    beam_width : int, optional
        Links on disk: how many of the nearest candidates are looked at ahead, for reading and for one that is
        at hand already. 4 by default, at most 64.
    burst_max : int, optional
        Pages of the first burst at most.
    sigma : float, optional
        A candidate is read if its estimate lies within this many standard deviations of the k-th.
    filter_plan : {"auto", "late", "early", "gate", "scan"}
        How a search with a filter goes about it. "auto" chooses by cost between the last two; "late" reads
        and scores every candidate and asks the filter for results, as engines that filter afterwards do;
        "gate" reads only what passes and navigates through
        the rest in memory (where links are on disk it is "late"); "scan" looks at the codes of all that pass.
    count_used : bool
        Count ``records_used``, which is 0 otherwise.
    """

    beam_width: int | None = None
    burst_max: int | None = None
    sigma: float | None = None
    filter_plan: str = "auto"
    count_used: bool = False

    def __post_init__(self) -> None:
        if self.beam_width is not None:
            whole_number(self.beam_width, "beam_width", 1, 4096)
        if self.burst_max is not None:
            whole_number(self.burst_max, "burst_max", 1, 65_536)
        if self.sigma is not None:
            _real_number(self.sigma, "sigma", 1e-9, 100.0)
        code_of(FILTER_PLANS, self.filter_plan, "filter_plan")

    def fill(self, struct: Any) -> None:
        """Write these into a ``velo_search_options``."""
        struct.beam_width = self.beam_width or 0
        struct.burst_max = self.burst_max or 0
        struct.sigma = self.sigma or 0.0
        struct.filter_plan = FILTER_PLANS[self.filter_plan]
        struct.count_used = int(self.count_used)


def fill_search(
    struct: Any,
    k: Any,
    recall: Any,
    list_size: Any,
    timeout_s: Any,
    tuning: SearchTuning | None,
    exact: Any = None,
) -> None:
    """Check what a search was asked for and write it into a ``velo_search_options``."""
    struct.k = whole_number(k, "k", 1, 1 << 24)
    if recall is not None:
        if isinstance(recall, bool) or not isinstance(recall, numbers.Real) or not 0.0 < float(recall) <= 1.0:
            raise InvalidArgumentError(
                f"recall must be above 0 and at most 1, not {recall!r}", argument="recall"
            )
        struct.recall = float(recall)
    if list_size is not None:
        struct.list_size = whole_number(list_size, "list_size", 1, 1 << 20)
    if timeout_s is not None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, numbers.Real) or not float(timeout_s) > 0:
            raise InvalidArgumentError(
                f"timeout_s must be more than 0 seconds, not {timeout_s!r}", argument="timeout_s"
            )
        # No search lasts an hour; the bound keeps infinity and its like out of the integer.
        struct.timeout_us = max(1, int(min(float(timeout_s), 3600.0) * 1e6))
    if exact is not None:
        if not isinstance(exact, bool):
            raise InvalidArgumentError(f"exact must be True, False or None, not {exact!r}", argument="exact")
        struct.exact = 1 if exact else -1
    if tuning is not None:
        tuning.fill(struct)
