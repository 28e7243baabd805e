"""The choice of segments to merge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

__all__ = ["DEAD_SHARE", "segments_of_a_size", "segments_to_merge"]

#: Segments of about one size that become one, and how many times as many rows are another size.
_SIZE_SEGMENTS: Final = 4
#: All becomes one segment once the young ones have this share of the rows of the largest and none come.
_YOUNG_SHARE: Final = 0.2
#: While rows come all is not merged before the young ones have this share: each such merge writes every row.
_YOUNG_SHARE_MAX: Final = 1.0
#: A segment with this share of deleted rows is rewritten.
DEAD_SHARE: Final = 0.2


def segments_to_merge(rows: Sequence[int], alive: Sequence[int], *, is_calm: bool) -> list[int]:
    """The segments to merge now, the largest among them, or one with many deleted rows; ascending, may be
    empty.

    The largest segment is written again only when it is worth it. `alive` counts the rows of each that are
    not deleted; `is_calm`: no rows are being written.
    """
    if not rows:
        return []
    base = _largest(rows)
    young = [segment for segment in range(len(rows)) if segment != base]
    share = _YOUNG_SHARE if is_calm else _YOUNG_SHARE_MAX
    if sum(alive[segment] for segment in young) >= share * max(1, rows[base]):
        return sorted([base, *young])
    for segment in range(len(rows)):
        if rows[segment] - alive[segment] >= DEAD_SHARE * rows[segment]:
            return [segment]
    return []


def segments_of_a_size(rows: Sequence[int], others: Sequence[int]) -> list[int]:
    """Small segments of about one size to merge into one of the next, without `others`; ascending, may be
    empty.

    As in a log-structured merge tree, a row is written once for each size.
    """
    sizes: dict[int, list[int]] = {}
    for segment in range(len(rows)):
        if segment not in others and segment != _largest(rows):
            sizes.setdefault(int(math.log(rows[segment], _SIZE_SEGMENTS)), []).append(segment)
    for _, group in sorted(sizes.items()):
        if len(group) >= _SIZE_SEGMENTS:
            return group
    return []


def _largest(rows: Sequence[int]) -> int:
    return max(range(len(rows)), key=rows.__getitem__)
