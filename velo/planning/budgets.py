"""The effect of each budget: how an open would divide it, and the cost of searches.

Reads, rounds and estimates come from the calibration of the index.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from velo import _native
from velo.errors import BudgetTooSmallError, NotAnIndexError, UnsupportedError
from velo.folder.manifest import data_folders, read_manifest
from velo.folder.replace import read_consistently
from velo.index import Index, open_index
from velo.options import (
    PLAN_CODES,
    BuildOptions,
    fill_search,
    folder_path,
    memory_bytes,
    sizes_of,
)
from velo.types import Memory, PathLike

__all__ = ["SHARES", "PlannedBudget", "plans"]

#: Budgets of the table, as shares of the float32 vectors, beside the least that opens.
SHARES: Final = (0.01, 0.02, 0.05, 0.06, 0.08, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50)

_STEP: Final = 0.05
_PLANS: Final = {code: name for name, code in PLAN_CODES.items()}


@dataclass(frozen=True)
class PlannedBudget:
    """The effect of one budget; ``recall`` and all fields after it are None if the index was not calibrated.

    Attributes
    ----------
    share, budget_bytes : float, int
        Of n·d·4 bytes, and in bytes.
    needed_bytes : int or None
        The smallest budget that opens; set if this one does not, and all other fields are None then.
    memory_bits, links_kept : int or None
        An open may keep one step of links less: the length of shorter lists is an estimate.
    page_codes_kept : int or None
        Codes of each page if codes of vectors do not fit, else 0.
    memory_bytes : dict of str to int
        Codes, links, cache and page directory.
    list_size, recall, reads, rounds, estimates : optional
        Of a search for the given recall, with new queries.
    more : dict of str to float, or None
        Reads, rounds and estimates with another 5 % of the vectors' size.
    build_bits : tuple of int, or None
        Bits in memory and in the record that a build would choose for this budget; None: it is too small.
    """

    share: float
    budget_bytes: int
    needed_bytes: int | None = None
    plan: str | None = None
    memory_bits: int | None = None
    links_kept: int | None = None
    page_codes_kept: int | None = None
    memory_bytes: dict[str, int] | None = None
    list_size: int | None = None
    recall: float | None = None
    reads: float | None = None
    rounds: float | None = None
    estimates: float | None = None
    more: dict[str, float] | None = None
    build_bits: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def plans(
    path: PathLike, *, memory: Memory | None = None, recall: float = 0.95, k: int = 10
) -> list[PlannedBudget]:
    """Plan budgets from the smallest one that opens to 50 % of the float32 vectors.

    Parameters
    ----------
    path : path
        An index. If it has several segments, the largest is planned, with its share of each budget: most
        reads of a search are there.
    memory : int, float or str, optional
        A further budget for the table.
    recall, k : float, int
        Of the searches.

    Returns
    -------
    list of PlannedBudget
        By ascending budget.

    Raises
    ------
    UnsupportedError
        The index has no segment yet.

    Examples
    --------
    >>> for budget in velo.plans("shop.velo"):
    ...     if budget.plan is not None:
    ...         print(f"{budget.share:.0%}: {budget.plan}, {budget.reads:.1f} reads a query")
    1...%: links_on_disk, ... reads a query
    2...%: links_in_memory, ... reads a query...
    """
    folder = folder_path(path)
    return read_consistently(folder, partial(_plans, folder, memory, recall, k))


def _plans(folder: Path, memory: Memory | None, recall: float, k: int) -> list[PlannedBudget]:
    index, rows = _open_largest(folder)
    with index:
        whole = index.n * index.dim * 4
        budgets = {int(share * whole) for share in SHARES}
        least = _planned(index, 1, whole, recall, k).needed_bytes
        if least is not None:
            budgets.add(least)
        if memory is not None:
            budgets.add(memory_bytes(memory, rows, index.dim) * index.n // rows)
        return [_with_next(index, budget, whole, recall, k) for budget in sorted(budgets)]


def _open_largest(folder: Path) -> tuple[Index, int]:
    """Open the largest segment with the least memory; returns it and the rows of all segments."""
    folders = data_folders(folder)
    if not folders:
        raise UnsupportedError(f"{folder} has no segment yet: flush it first")
    rows = [read_manifest(segment).row_count for segment in folders]
    segment = folders[rows.index(max(rows))]
    try:
        index = open_index(segment, threads=1, follow=False, memory=1)
    except BudgetTooSmallError as error:
        index = open_index(segment, threads=1, follow=False, memory=error.needed_bytes)
    if index.info()["live"] is not None:
        index.close()
        raise NotAnIndexError(f"{folder} got its first write meanwhile", argument="path")
    return index, sum(rows)


def _with_next(index: Index, budget: int, whole: int, recall: float, k: int) -> PlannedBudget:
    one = _planned(index, budget, whole, recall, k)
    with suppress(BudgetTooSmallError):
        sizes = sizes_of(index.n, index.dim, degree=BuildOptions.degree, memory_bytes=budget)
        one = replace(one, build_bits=(int(sizes.memory_bits), int(sizes.record_bits)))
    if one.reads is None:
        return one
    next_one = _planned(index, budget + int(_STEP * whole), whole, recall, k)
    return replace(one, more={name: getattr(next_one, name) for name in ("reads", "rounds", "estimates")})


def _planned(index: Index, budget: int, whole: int, recall: float, k: int) -> PlannedBudget:
    options = _native.new("velo_search_options")
    fill_search(options, k, recall, None, None, None)
    split, expected = _native.new("velo_memory_plan"), _native.new("velo_expectation")
    share = budget / whole
    try:
        [segment] = index._seen().segments
        status = _native.lib.velo_plan_for(segment.opened.handle, budget, options, split, expected)
        _native.check(status, "memory")
    except BudgetTooSmallError as error:
        return PlannedBudget(share, budget, needed_bytes=error.needed_bytes)
    names = ("recall", "reads", "rounds", "estimates") if expected.calibrated else ()
    measured: dict[str, Any] = {name: float(getattr(expected, name)) for name in names}
    return PlannedBudget(
        share,
        budget,
        plan=_PLANS[split.plan],
        memory_bits=index.info()["memory_bits"],
        links_kept=int(split.links_kept),
        page_codes_kept=int(split.page_codes_kept),
        memory_bytes={
            name: int(getattr(split, f"{name}_bytes")) for name in ("codes", "links", "cache", "pages")
        },
        list_size=int(expected.list_size),
        **measured,
    )
