"""What ``bench soak`` writes: rows, a page, and a picture of everything over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.commands.soak_events import ANNOUNCED, Window
from bench.commands.soak_load import Call
from bench.harness.plots import ASKED, GRID, MOMENTS, SHADES, WRONG
from bench.harness.tables import machine_line, table

__all__ = ["Sample", "draw", "event_rows", "load_rows", "page", "process_rows"]

#: Of the stretches that latencies are summed up in.
STRETCH_S = 10.0

_SHORT = {
    "a replica that writes is killed": "writer killed",
    "a replica that reads is killed": "reader killed",
    "a replica that writes is stopped": "writer stopped",
    "a replica that reads is stopped": "reader stopped",
    "both replicas of a shard are killed": "both killed",
    "a gateway is killed": "gateway killed",
    "a gateway is stopped": "gateway stopped",
    "another build is published": "published",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """What a kind of process has at a moment, all of that kind together."""

    at_s: float
    who: str
    count: int
    memory_bytes: int
    descriptors: int


def _spread(calls: Sequence[Call]) -> Row:
    if not calls:
        return {"calls": 0}
    took = np.array([call.took_s for call in calls]) * 1e3
    p50, p99 = np.percentile(took, [50, 99])
    return {"calls": len(calls), "p50_ms": float(p50), "p99_ms": float(p99), "longest_ms": float(took.max())}


def event_rows(calls: Sequence[Call], windows: Sequence[Window]) -> list[Row]:
    """A row a kind of event: how often, how soon all was well, what came of the calls that met it."""
    rows = []
    for what in ANNOUNCED:
        own = [one for one in windows if one.what == what]
        if not own:
            continue
        met = [call for call in calls if any(one.meets(call) for one in own)]
        well = [one.recovered_s - one.start_s for one in own if one.recovered_s > 0]
        rows.append(
            {
                "what": "event",
                "event": what,
                "times": len(own),
                "well_after_s": float(np.median(well)) if well else None,
                "reads": _spread([call for call in met if call.kind == "read"]),
                "writes": _spread([call for call in met if call.kind == "write" and not call.outcome]),
                "outcomes": dict(Counter(f"{call.kind}: {call.outcome}" for call in met if call.outcome)),
            }
        )
    return rows


def load_rows(calls: Sequence[Call], windows: Sequence[Window]) -> list[Row]:
    """Calls that met no event, and all of them by stretches of time."""
    quiet = [call for call in calls if not any(one.meets(call) for one in windows)]
    rows: list[Row] = [
        {"what": "quiet", "kind": kind, **_spread([call for call in quiet if call.kind == kind])}
        for kind in ("read", "write")
    ]
    stretches: dict[tuple[int, str], list[Call]] = {}
    for call in calls:
        stretches.setdefault((int(call.at_s // STRETCH_S), call.kind), []).append(call)
    for (number, kind), some in sorted(stretches.items()):
        errors = dict(Counter(call.outcome for call in some if call.outcome))
        rows.append(
            {"what": "stretch", "at_s": number * STRETCH_S, "kind": kind, **_spread(some), "outcomes": errors}
        )
    return rows


def process_rows(samples: Sequence[Sample]) -> list[Row]:
    """What processes had, a sample a stretch."""
    seen: dict[tuple[int, str], Sample] = {}
    for one in samples:
        seen.setdefault((int(one.at_s // STRETCH_S), one.who), one)
    return [
        {
            "what": "processes",
            "at_s": round(one.at_s, 1),
            "who": one.who,
            "count": one.count,
            "memory_mib": round(one.memory_bytes / 2**20, 1),
            "descriptors": one.descriptors,
        }
        for one in seen.values()
    ]


def page(rows: Sequence[Row], name: str) -> list[str]:
    """The page in Markdown."""
    plan = next(row for row in rows if row["what"] == "plan")
    machine = next(row for row in rows if row["what"] == "machine")
    patient = " --patient" if plan["patient"] else ""
    lines = [
        f"# Soak {name}: {plan['took_s'] / 60:.0f} min of reads, writes, kills, stops and publications",
        "",
        f"{machine_line(machine)} `python -m bench soak --minutes {plan['minutes']:g}{patient}`: "
        f"`velo serve` with {plan['shards']} shards of two replicas in processes of their own, "
        f"{plan['workers']} gateways, {plan['readers']} callers that read and {plan['writers']} that write; "
        f"two builds of {plan['rows']:,} rows take each other's place. Seed {plan['seed']}.",
        "",
        f"![Latency, errors, memory and descriptors over time](soak-{name}.png)",
        "",
    ]
    lines += table(
        ["what must hold", "", "measured"],
        [
            [row["line"], "holds" if row["holds"] else "**does not hold**", row["told"].split("\n")[0]]
            for row in rows
            if row["what"] == "verdict"
        ],
    )
    lines += ["", "Calls that met no event:", ""]
    lines += table(
        ["kind", "calls", "p50, ms", "p99, ms", "longest, ms"],
        [[row["kind"], *_cells(row)] for row in rows if row["what"] == "quiet"],
    )
    lines += ["", "Calls that met an event; of writes, those that succeeded:", ""]
    lines += table(
        [
            "event",
            "times",
            "well after, s",
            "reads",
            "p50",
            "p99",
            "longest",
            "writes",
            "longest",
            "errors, all announced",
        ],
        [
            [
                row["event"],
                str(row["times"]),
                "never" if row["well_after_s"] is None else f"{row['well_after_s']:.1f}",
                *_cells(row["reads"]),
                _cells(row["writes"])[0],
                _cells(row["writes"])[3],
                ", ".join(f"{count} × {kind}" for kind, count in sorted(row["outcomes"].items())) or "none",
            ]
            for row in rows
            if row["what"] == "event"
        ],
    )
    return lines


def _cells(row: Mapping[str, Any]) -> list[str]:
    if not row["calls"]:
        return ["0", "–", "–", "–"]
    return [
        f"{row['calls']:,}",
        f"{row['p50_ms']:,.1f}",
        f"{row['p99_ms']:,.0f}",
        f"{row['longest_ms']:,.0f}",
    ]


def draw(calls: Sequence[Call], windows: Sequence[Window], samples: Sequence[Sample], path: Path) -> None:
    """Four panels over the same minutes: latency, errors, memory, descriptors; events as upright lines."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, panels = plt.subplots(4, 1, figsize=(11, 11), dpi=110, layout="constrained", sharex=True)
    colors = dict(zip(ANNOUNCED, MOMENTS, strict=True))
    for axes in panels:
        axes.set_axisbelow(True)
        axes.margins(x=0.01)
        axes.grid(True, axis="y", color=GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        seen: set[str] = set()
        for one in windows:
            label = _SHORT[one.what] if axes is panels[0] and one.what not in seen else None
            seen.add(one.what)
            axes.axvline(one.start_s / 60, color=colors[one.what], linewidth=0.9, label=label)
    end_s = max((call.at_s for call in calls), default=1.0)
    width_s = max(1.0, end_s / 180)
    for kind, color in (("read", SHADES[0]), ("write", ASKED)):
        stretches: dict[int, list[float]] = {}
        for call in calls:
            if call.kind == kind and not call.outcome:
                stretches.setdefault(int(call.at_s // width_s), []).append(call.took_s * 1e3)
        at = [(number + 0.5) * width_s / 60 for number in sorted(stretches)]
        for share, style in ((50, "-"), (100, ":")):
            values = [np.percentile(stretches[number], share) for number in sorted(stretches)]
            label = f"{kind}s, {'median' if share == 50 else 'longest'}"
            panels[0].plot(at, values, color=color, linestyle=style, linewidth=1.1, label=label)
    panels[0].set_yscale("log")
    panels[0].set_ylabel("latency, ms")
    panels[0].legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    bad = [call for call in calls if call.outcome]
    for announced, color in ((True, SHADES[0]), (False, WRONG)):
        counts = Counter(
            int(call.at_s // width_s)
            for call in bad
            if any(one.announces(call) for one in windows) == announced
        )
        panels[1].bar(
            [(number + 0.5) * width_s / 60 for number in counts],
            list(counts.values()),
            width=width_s / 60,
            color=color,
            label=f"{'announced' if announced else 'NOT announced'}: {sum(counts.values()):,}",
        )
    panels[1].set_ylabel(f"errors in {width_s:.0f} s")
    panels[1].legend(frameon=False, fontsize=7, loc="upper right")
    for number, who in enumerate(("parent", "gateways", "shards")):
        own = [one for one in samples if one.who == who]
        at = [one.at_s / 60 for one in own]
        color = SHADES[number]
        panels[2].plot(at, [one.memory_bytes / 2**20 for one in own], color=color, linewidth=1.0, label=who)
        panels[3].plot(at, [one.descriptors for one in own], color=color, linewidth=1.0, label=who)
    for axes, label in ((panels[2], "memory (RSS), MiB"), (panels[3], "descriptors")):
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    panels[3].set_xlabel("minutes")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path)
    plt.close(drawn)
