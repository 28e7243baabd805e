"""The page of ``bench soak``: verdicts, calls beside events, and a picture of everything over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.commands.soak_events import ANNOUNCED, Window
from bench.commands.soak_load import Call
from bench.harness import pages, plots
from bench.harness.curves import Row
from bench.harness.plots import Panel, Picture
from bench.harness.report import Cell, Table, machine_line

#: Stretches of the picture.
STRETCHES = 180


@dataclass(frozen=True)
class Sample:
    """Memory and descriptors of a kind of process at a moment, all of that kind together."""

    at_s: float
    who: str
    count: int
    memory_bytes: int
    descriptors: int


def rows_of(calls: Sequence[Call], windows: Sequence[Window]) -> list[Row]:
    """A row for each kind of event, and for the calls that met none."""
    quiet = [call for call in calls if not any(one.meets(call) for one in windows)]
    rows: list[Row] = [
        {"what": "quiet", "event": "none"}
        | {f"{kind}s": _spread([call for call in quiet if call.kind == kind]) for kind in ("read", "write")}
    ]
    for what in ANNOUNCED:
        own = [one for one in windows if one.what == what]
        met = [call for call in calls if any(one.meets(call) for one in own)]
        well = [one.recovered_s - one.start_s for one in own if one.recovered_s > 0]
        if own:
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


def _spread(calls: Sequence[Call]) -> Row:
    if not calls:
        return {"calls": 0}
    took = np.array([call.took_s for call in calls]) * 1e3
    p50, p99 = np.percentile(took, [50, 99])
    return {"calls": len(calls), "p50_ms": float(p50), "p99_ms": float(p99), "longest_ms": float(took.max())}


VERDICTS: dict[str, Cell] = {
    "condition": "line",
    "": lambda row: "holds" if row["holds"] else "**does not hold**",
    "measured": lambda row: row["told"].split("\n")[0],
}
CALLS: dict[str, Cell] = {
    "event": "event",
    "times": "times",
    "well after, s": "well_after_s:.1f",
    "reads": "reads.calls:,",
    "p50, ms": "reads.p50_ms:,.1f",
    "p99, ms": "reads.p99_ms:,.0f",
    "longest, ms": "reads.longest_ms:,.0f",
    "writes": "writes.calls:,",
    "longest write, ms": "writes.longest_ms:,.0f",
    "announced errors": lambda row: ", ".join(
        f"{count} × {kind}" for kind, count in sorted(row.get("outcomes", {}).items())
    ),
}


def picture_of(calls: Sequence[Call], windows: Sequence[Window], samples: Sequence[Sample]) -> Picture:
    """Four panels over the same minutes: latency, errors, memory, descriptors; events as vertical lines."""
    width_s = max(1.0, max((call.at_s for call in calls), default=1.0) / STRETCHES)

    def over_time(some: Sequence[Call], of: str) -> list[tuple[float, float]]:
        stretches: dict[int, list[float]] = {}
        for call in some:
            stretches.setdefault(int(call.at_s // width_s), []).append(call.took_s * 1e3)
        value: Any = {"median": np.median, "longest": np.max, "count": len}[of]
        return [((number + 0.5) * width_s / 60, float(value(took))) for number, took in stretches.items()]

    well = {
        kind: [call for call in calls if call.kind == kind and not call.outcome] for kind in ("read", "write")
    }
    latency = {f"{kind}s, {of}": over_time(well[kind], of) for kind in well for of in ("median", "longest")}
    bad = [call for call in calls if call.outcome]
    announced = [call for call in bad if any(one.announces(call) for one in windows)]
    others = [call for call in bad if call not in announced]
    errors = {
        f"announced errors: {len(announced):,}": over_time(announced, "count"),
        f"NOT announced: {len(others):,}": over_time(others, "count"),
    }
    kinds = list(dict.fromkeys(one.who for one in samples))
    memory = {who: [(s.at_s / 60, s.memory_bytes / 2**20) for s in samples if s.who == who] for who in kinds}
    open_ = {who: [(s.at_s / 60, float(s.descriptors)) for s in samples if s.who == who] for who in kinds}
    moments = {what: [one.start_s / 60 for one in windows if one.what == what] for what in ANNOUNCED}
    panels = [
        Panel("latency, ms", latency, log=True, marked=False, moments=moments),
        Panel(f"errors in {width_s:.0f} s", errors, joined=False),
        Panel("memory (RSS), MiB", memory, marked=False),
        Panel("descriptors", open_, marked=False),
    ]
    return Picture("", "Calls and processes over time", panels, x="minutes")


def write(out: Path, name: str, rows: Sequence[Row], picture: Picture) -> str:
    """Write the page, its rows and its picture; returns the page."""
    plan = next(row for row in rows if row["what"] == "plan")
    host = next(row for row in rows if row["what"] == "machine")
    plots.draw(picture, out / picture.file(name))
    text = [
        f"# {name}: {plan['took_s'] / 60:.0f} minutes of reads, writes, kills, stops and publications",
        "",
        f"{machine_line(host)} `velo serve` with {plan['shards']} shards of two replicas in processes of "
        f"their own, {plan['workers']} gateways, {plan['readers']} callers that read and {plan['writers']} "
        f"that write; two builds of {plan['rows']:,} rows replace each other. Seed {plan['seed']}"
        + (", patient." if plan["patient"] else "."),
        "",
        f"![{picture.title}]({picture.file(name)})",
        "",
        *Table("Verdicts", VERDICTS, [row for row in rows if row["what"] == "verdict"]).markdown(),
        "",
        *Table(
            "Calls by the event that they met",
            CALLS,
            [row for row in rows if row["what"] in ("quiet", "event")],
            "Writes beside an event are those that succeeded.",
        ).markdown(),
    ]
    pages.write(out, name, rows, "\n".join(text) + "\n")
    return (out / f"{name}.md").read_text()
