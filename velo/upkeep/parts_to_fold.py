"""Which parts are to become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["DEAD_SHARE", "parts_to_fold"]

#: Parts of about one size that are folded into one, and how many times as many rows are another size.
_SIZE_PARTS: Final = 4
#: All is folded into one part once the young ones have this share of the rows of the largest.
_YOUNG_SHARE: Final = 0.2
#: A part of which this share is dead is made anew.
DEAD_SHARE: Final = 0.2


def parts_to_fold(rows: Sequence[int], alive: Sequence[int]) -> list[int]:
    """Which parts are to become one now; none of them where nothing is to be done.

    As in a log-structured merge tree, parts of about one size become one of the next. So a row is written
    once a size. The largest part, which has most rows, is written anew only when it is worth it.

    Parameters
    ----------
    rows, alive : sequence of int
        Of each part: its rows, and those of them that live.

    Returns
    -------
    list of int
        Ascending.
    """
    if not rows:
        return []
    base = max(range(len(rows)), key=rows.__getitem__)
    young = [part for part in range(len(rows)) if part != base]
    if sum(alive[part] for part in young) >= _YOUNG_SHARE * max(1, rows[base]):
        return sorted([base, *young])
    for part in range(len(rows)):
        if rows[part] - alive[part] >= DEAD_SHARE * rows[part]:
            return [part]
    sizes: dict[int, list[int]] = {}
    for part in young:
        sizes.setdefault(int(math.log(rows[part], _SIZE_PARTS)), []).append(part)
    for _, group in sorted(sizes.items()):
        if len(group) >= _SIZE_PARTS:
            return group
    return []
