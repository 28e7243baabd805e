"""Sizes by shape alone: the library computes them (zig/src/index/sizes.zig)."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from velo import _native
from velo.options.checks import UINT32_MAX

__all__ = ["SHARD_ROWS_MAX", "links_steps", "sizes_of"]

#: Rows of one index at most (docs/FORMAT.md).
SHARD_ROWS_MAX: Final = 2**31 - 1


def sizes_of(row_count: int, dim: int, **options: Any) -> _native.CData:
    """The ``velo_sizes`` of an index with these fields of ``velo_plan_options``; None leaves one open.

    Raises
    ------
    BudgetTooSmallError
        The index does not open within `memory_bytes`.
    """
    asked, sizes = _native.new("velo_plan_options"), _native.new("velo_sizes")
    asked.row_count, asked.dim = row_count, dim
    asked.record_bits = asked.links_kept = asked.record_code_bytes = UINT32_MAX
    asked.page_links = asked.page_codes = -1
    for name, value in options.items():
        if value is not None:
            setattr(asked, name, value)
    _native.check(_native.lib.velo_plan_sizes(asked, sizes))
    return sizes


@cache
def links_steps(*, shared: bool = False) -> tuple[int, ...]:
    """Numbers of links a vertex that an open index may keep below all that were built, descending.

    Those in lists that vertices share are fewer than all links of each vertex.
    """
    steps: list[int] = []
    while step := _native.lib.velo_links_step(len(steps), int(shared)):
        steps.append(step)
    return tuple(steps)
