"""The value of a curve at a recall between two settings, and the ratio of two curves there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.datasets import K

RECALL = f"recall_at_{K}"
#: Rates are interpolated by their inverse: the time a query takes adds up, queries a second do not.
RATES = ("qps",)

Row = dict[str, Any]


@dataclass(frozen=True)
class At:
    """A curve's value at a recall, and the settings around it.

    It is not ``exact`` where the curve begins above the recall: a lower recall might have cost less.
    """

    value: float
    how: str
    exact: bool = True


def at_recall(rows: Sequence[Row], key: str, recall: float) -> At | None:
    """Interpolate ``key`` linearly in recall between the two settings that enclose ``recall``.

    Rows are one system's, of any order; they are taken by ascending list size, and the first pair that
    crosses the recall counts. Costs (reads, rounds, µs) are interpolated as they are, rates by their inverse.
    None where no setting reaches the recall, or where the rows lack the key.
    """
    points = sorted((row for row in rows if row.get(key) is not None), key=lambda row: row["list_size"])
    if not points:
        return None
    first = points[0]
    if first[RECALL] >= recall:
        return At(float(first[key]), f"{setting(first)}, recall {first[RECALL]:.4f}", exact=False)
    for low, high in itertools.pairwise(points):
        if low[RECALL] < recall <= high[RECALL]:
            part = (recall - low[RECALL]) / (high[RECALL] - low[RECALL])
            below, above = float(low[key]), float(high[key])
            if key in RATES:
                value = 1 / ((1 - part) / below + part / above)
            else:
                value = (1 - part) * below + part * above
            return At(value, f"between {setting(low)} and {setting(high)}")
    return None


def setting(row: Row) -> str:
    """``list 64``."""
    return f"list {row['list_size']}" if row["list_size"] else "exact"


def best_recall(rows: Sequence[Row]) -> float:
    return max((row[RECALL] for row in rows), default=0.0)


def ratio(mine: Sequence[Row], theirs: Sequence[Row], key: str, recall: float) -> At | None:
    """``key`` of one curve over that of another at the same recall; None where either does not reach it."""
    upper, lower = at_recall(mine, key, recall), at_recall(theirs, key, recall)
    if upper is None or lower is None or lower.value == 0:
        return None
    return At(
        upper.value / lower.value,
        f"{upper.value:,.4g} ({upper.how}) / {lower.value:,.4g} ({lower.how})",
        upper.exact and lower.exact,
    )


def why_missing(rows: Sequence[Row], recall: float) -> str:
    """The reason why a curve has no value at a recall."""
    if not rows:
        return "no curve"
    return f"recall {recall:g} not reached (best {best_recall(rows):.4f})"
