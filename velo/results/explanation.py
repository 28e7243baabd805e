"""How a query was answered, and how its filter was applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from velo.results.hits import SearchResult, html_table, kept_text, size_text


def _gpu_text(gpu: Mapping[str, Any]) -> str:
    """The GPU, and why this query did not use it."""
    if gpu["state"] == "ready":
        return f"{gpu['name']}, for calls of many queries; this single one was answered by the CPU"
    return f"not used: {gpu['reason']}"


@dataclass(frozen=True)
class FilterCost:
    """The expected cost per query of one plan of a filtered search.

    `possible`: False if the plan is unavailable in the open index.
    `reads, estimates, expanded`: Pages read, distances estimated in memory, vertices expanded.
    `cost_us`: Time on one core, for comparing plans; not a prediction for this machine.
    """

    possible: bool
    reads: float
    estimates: float
    expanded: float
    cost_us: float


@dataclass(frozen=True)
class FilterPlan:
    """The plan of a filtered search, and its reason.

    `matches`: Expected number of rows that pass.
    `matches_exact`: Whether `matches` was counted instead of estimated from a sample.
    `costs`: For ``"scan"``, ``"gate"`` and ``"late"``.
    `gate_needs_bytes`: With links on disk: the memory that makes the gate available; otherwise 0.
    """

    chosen: str
    reason: str
    matches: float
    matches_exact: bool
    costs: Mapping[str, FilterCost]
    gate_needs_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Lines of the printed `Explanation`."""
        counted = "exactly" if self.matches_exact else "about"
        shown = [f"filtering   {self.chosen}: {self.reason} ({counted} {self.matches:,.0f} matches)"]
        for name, cost in self.costs.items():
            if cost.possible:
                shown.append(
                    f"  {name:<9} {cost.reads:,.0f} reads, {cost.estimates:,.0f} estimates, "
                    f"{cost.expanded:,.0f} hops expected, about {cost.cost_us:,.0f} µs"
                )
            elif name == "gate":
                shown.append(
                    f"  {name:<9} needs links in memory: open with memory={self.gate_needs_bytes} or more"
                    if self.gate_needs_bytes
                    else f"  {name:<9} needs links in memory: build with links_kept"
                )
        return shown


@dataclass(frozen=True, repr=False)
class Explanation:
    """How one query was answered, as text or in parts.

    Attributes
    ----------
    result : SearchResult
        The result.
    index : dict
        ``Index.info()``.
    matches : int or None
        Rows that pass the filter; None without one.
    times_us : dict of str to float
        Time of each stage as measured in Python, in microseconds.
    request : dict
        The options: k, list_size, recall.
    filter_plan : FilterPlan or None
        How the filter was applied, and the expected cost of each plan; None without a filter.
    """

    result: SearchResult
    index: Mapping[str, Any]
    matches: int | None
    times_us: Mapping[str, float]
    request: Mapping[str, Any]
    filter_plan: FilterPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, for JSON.

        Returns
        -------
        dict
        """
        return {
            "plan": self.index["plan"],
            "filter_plan": None if self.filter_plan is None else self.filter_plan.to_dict(),
            "device": self.index["device"]["name"],
            "gpu": self.index["gpu"],
            "request": dict(self.request),
            "expected": None if self.result.expected is None else asdict(self.result.expected),
            "matches": self.matches,
            "n": self.index["n"],
            "memory_bytes": dict(self.index["memory_bytes"]),
            **{name: int(values[0]) for name, values in self.result.stats.items()},
            "found": int(self.result.counts[0]),
            "times_us": dict(self.times_us),
        }

    def _repr_html_(self) -> str:
        rows = [(line[:12].strip(), line[12:]) for line in str(self).splitlines()]
        return html_table(("", ""), rows)

    def __repr__(self) -> str:
        info, stats = self.index, {name: int(values[0]) for name, values in self.result.stats.items()}
        memory = info["memory_bytes"]
        device = info["device"]
        lines = [
            f"plan        {info['plan']}, {info['memory_bits']} + {info['record_bits']} bits per dimension, "
            f"{kept_text(info)} in memory",
            f"device      {device['name']}{', O_DIRECT' if device['direct'] else ', buffered'}",
            "memory      " + ", ".join(f"{name} {size_text(size)}" for name, size in memory.items()),
            "asked       " + ", ".join(f"{name} {value}" for name, value in self.request.items()),
        ]
        if (gpu := info["gpu"]) is not None:
            lines.insert(2, f"gpu         {_gpu_text(gpu)}")
        expected = self.result.expected
        if expected is not None and expected.recall is not None and self.matches is None:
            lines.append(
                f"expected    recall {expected.recall:.3f}, {expected.reads:.1f} reads in "
                f"{expected.rounds:.1f} rounds, as measured by the build"
            )
        if self.matches is not None:
            share = self.matches / info["n"] if info["n"] else 0.0
            lines.append(
                f"filter      {self.matches:,} of {info['n']:,} rows pass ({share:.2%}); "
                f"{stats['filtered']:,} vertices navigated through that do not"
            )
        if self.filter_plan is not None:
            lines += self.filter_plan.lines()
        lines += [
            f"navigate    {stats['expanded']:,} hops, {stats['estimates']:,} distances estimated in memory",
            f"read        {stats['reads']:,} reads in {stats['rounds']:,} rounds, "
            f"{size_text(stats['bytes_read'])}, {stats['cache_hits']:,} cache hits",
            f"score       {stats['records_scored']:,} records scored, {stats['records_used']:,} of them used",
            f"found       {int(self.result.counts[0])} neighbors",
            "time        "
            + ", ".join(f"{name} {value:,.0f} µs" for name, value in self.times_us.items())
            + f" (in the worker {stats['latency_us']:,} µs)",
        ]
        return "\n".join(lines)
