"""The rungs of memory: how bits are divided, and what of the links a budget leaves in memory.

Tests of filters, live data, damage and exactness run over them; `tests/search/test_rungs.py` holds them
against what velo chooses by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import velo
from velo import errors
from velo.options import links_steps


@dataclass(frozen=True)
class Rung:
    """Bits in memory and in the record, whether pages hold links; links a vertex in memory, 0: on disk.

    Below 0 are codes of pages alone, `PAGES` or `PAGES_LEAST`, or also of records: `RECORDS`.
    """

    memory_bits: int
    record_bits: int
    page_links: bool
    links: int
    #: Of the pages, so many have room in memory beside codes and links.
    cached: float = 0
    #: Of a code of each record, with `RECORDS`.
    record_code_bytes: int = 0

    @property
    def page_codes(self) -> bool:
        return self.links < 0

    def __str__(self) -> str:
        names = {0: "disk", PAGES: "pages", PAGES_LEAST: "pages, least", RECORDS: "records"}
        name = names.get(self.links, str(self.links))
        cached = f", {min(self.cached, 1):.0%} of pages" if self.cached else ""
        return f"{self.memory_bits}+{self.record_bits}-{name}{cached}"

    @property
    def build(self) -> dict[str, Any]:
        """Options of a build."""
        names = ("memory_bits", "record_bits", "page_links", "page_codes", "record_code_bytes")
        return {name: getattr(self, name) for name in names}

    @property
    def kind(self) -> str:
        return kind_of(self.links)

    def memory(self, path: Path) -> int:
        """The least budget in which an index keeps so many links and pages."""
        pages = sum(file.stat().st_size for file in path.rglob("pages.bin"))
        return budget_of(path, self.links) + int(self.cached * pages)

    def share(self, path: Path) -> str:
        """The same as a share, which grows with the rows."""
        with velo.open(path, threads=1) as index:
            return f"{math.ceil(1e6 * self.memory(path) / (index.n * index.dim * 4)) / 1e4:.4f}%"


#: Several codes of each page in memory and none of vectors; one code of each; a code of each record.
PAGES, PAGES_LEAST, RECORDS = -2, -3, -1
#: From everything in memory to the least that opens.
RUNGS = (
    Rung(4, 6, False, 16, cached=1.5),
    Rung(4, 6, False, 16, cached=0.4),
    Rung(4, 6, False, 14),
    Rung(4, 6, True, 8),
    Rung(3, 7, False, 12),
    Rung(2, 6, False, 6),
    Rung(2, 6, False, 4),
    Rung(1, 7, False, 2),
    Rung(2, 6, True, 0),
    Rung(1, 7, True, 0),
    Rung(1, 7, False, RECORDS, record_code_bytes=16),
    Rung(1, 7, False, PAGES),
    Rung(2, 6, True, PAGES_LEAST),
)
ON_DISK = RUNGS[9]
#: What one index that holds links in its pages keeps of them, by its budget.
LINKS = (16, 8, *links_steps(shared=True), 0)


def kind_of(links: int) -> str:
    """Where links are."""
    if links < 0:
        return "codes of records" if links == RECORDS else "codes of pages"
    if not links:
        return "on disk"
    return f"shared, {links}" if links in links_steps(shared=True) else "of each vertex"


def budget_of(path: Path, links: int) -> int:
    """The least budget in which an index keeps so many links, or so much instead of links."""
    with velo.open(path, threads=1) as index:
        info = index.info()
    enough = 2 * info["memory_within_budget_bytes"]
    with pytest.raises(errors.BudgetTooSmallError) as refused:
        velo.open(path, memory=1, threads=1)
    too_little = (refused.value.needed_bytes or 0) - 1
    if not info["links_built"] or links == (PAGES_LEAST if info["page_codes"] else 0):
        return too_little + 1
    while enough - too_little > 1:
        between = (too_little + enough) // 2
        if links_in(path, between) >= links:
            enough = between
        else:
            too_little = between
    return enough


def links_in(path: Path, memory: int) -> int:
    """Links a vertex in memory that an index keeps in a budget."""
    with velo.open(path, memory=memory, threads=1) as index:
        info = index.info()
    if info["page_codes_kept"]:
        if info["record_code_bytes"]:
            return RECORDS
        return PAGES if info["page_codes_kept"] > 1 else PAGES_LEAST
    return int(info["links_kept"]) if info["plan"] == "links_in_memory" else 0
