"""``bench quotes``: what README and docs quote of the results, held against the rows it was taken from.

A quote is a text with ``{}`` for each number. It must stand in its file once, with just the numbers that the
rows say now; ``--write`` puts them there. So what was measured again cannot stay as it was elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import velo
from bench.commands import report_sections
from bench.harness import curves, pages
from bench.harness.curves import RECALL
from bench.harness.datasets import DataError
from bench.harness.sections import Results

#: What is compared is compared at equal recall: docs at the first of these, README's table at both.
AT, MORE_AT = 0.95, 0.99
#: Reads of a single setting are those of the first that reaches this recall.
FIRST_AT = 0.96
#: The report in README's table is the one that it links.
README_REPORT = re.compile(r"\]\(docs/results/(report-\w+)\.md\)")
#: Sizes and shares of memory that the page on plans computes.
PLANNED = {10**7: "10 million", 10**8: "100 million", 10**9: "a billion"}
PLANNED_SHARES = (0.5, 2, 4.5, 6, 10, 15, 20, 30)
#: Sets by the report's name, as README says them.
SETS = {"report-sift1m": ("A million", "a million"), "report-sift100k": ("100,000", "100,000")}


@dataclass(frozen=True)
class Quote:
    """``text`` in ``file``, and what belongs in its gaps."""

    file: str
    text: str
    values: tuple[str, ...]

    @property
    def pattern(self) -> re.Pattern[str]:
        """Spaces may be ends of lines; a gap takes what a number, a name or a commit may be."""
        parts = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in self.text.split("{}")]
        return re.compile(r"([^|\n]+?)".join(parts))

    def filled(self) -> str:
        return self.text.format(*self.values)


def rows_of(root: Path, name: str) -> list[Results]:
    """All lines of a result."""
    file = root / "docs" / "results" / f"{name}.jsonl"
    if not file.exists():
        raise DataError(f"{file} is missing, which README and docs quote")
    return [json.loads(line) for line in file.read_text().splitlines()]


def sections_in(rows: Sequence[Results]) -> dict[str, Results]:
    return {row["section"]: row for row in rows if "section" in row}


def readme_report(root: Path) -> str:
    """The report that README's table is made of."""
    found = set(README_REPORT.findall((root / "README.md").read_text()))
    if len(found) != 1 or not found <= set(SETS):
        raise DataError(f"README links {sorted(found)}; it takes one of {', '.join(SETS)}")
    return str(found.pop())


def quotes(root: Path, report: str | None = None) -> list[Quote]:
    """Every quote; README's table of ``report``, else of the report that it links."""
    name = report or readme_report(root)
    if name not in SETS:
        raise DataError(f"no report {name!r}; there are {', '.join(SETS)}")
    million = sections_in(rows_of(root, "report-sift1m"))
    return [
        *readme_table(rows_of(root, name), name),
        *of_the_million(million),
        *of_a_tenth(sections_in(rows_of(root, "report-sift100k")), million),
        *of_speed(sections_in(rows_of(root, "speed-sift1m"))),
        *of_filters(sections_in(rows_of(root, "filters-sift1m"))),
        *of_plans([row["row"] for row in rows_of(root, "budgets-sift1m") if "row" in row]),
    ]


def readme_table(rows: list[Results], name: str) -> Iterator[Quote]:
    """README's table, its heading, velo beside others that read from the disk, and the library measured."""
    found = sections_in(rows)
    capital, small = SETS[name]
    file = "README.md"
    yield Quote(
        file,
        "![Queries a second at recall 0.95 over memory, {} SIFT vectors, two threads]"
        "(docs/results/{}-memory.png)\n\n{} SIFT descriptors (128 dimensions), 10 neighbors",
        (small, name, capital),
    )
    yield Quote(
        file,
        "times vary by some 20 %, counts do not.\n{}\n[All settings, the machine and the targets that were "
        "missed](docs/results/{}.md)",
        (pages.measured_line(rows), name),
    )
    for label, section in (
        ("**velo**, 20 %", "velo20"),
        ("**velo**, 30 %", "velo30"),
        ("diskannpy {}, codes of 20 %", "peer-diskannpy"),
        ("zvec {} (DiskANN), codes of 20 %", "peer-zvec"),
        ("hnswlib {}, all in memory", "peer-hnswlib"),
    ):
        points = report_sections.curve(found, section)
        yield Quote(
            file,
            f"| {label} | {{}} MB | {{}} | {{}} | {{}} | {{}} | {{}} |",
            (
                *([points[0]["version"]] if "{}" in label else []),
                f"{max(point['resident_growth_bytes'] for point in points) / 1e6:,.0f}",
                *(f"{value(points, 'qps', recall):,.0f}" for recall in (AT, MORE_AT)),
                *(milliseconds(value(points, "latency_mean_us", recall)) for recall in (AT, MORE_AT)),
                reads_at(points, AT),
            ),
        )
    mine = report_sections.curve(found, "velo20")
    times = [
        value(mine, "qps", recall) / value(report_sections.curve(found, peer), "qps", recall)
        for peer in ("peer-diskannpy", "peer-zvec")
        for recall in (AT, MORE_AT)
    ]
    yield Quote(
        file,
        "velo with 20 % answers {} to {} times as many queries as the others",
        (f"{min(times):.1f}", f"{max(times):.1f}"),
    )


def milliseconds(us: float) -> str:
    return f"{us / 1e3:.2f}" if us < 10_000 else f"{us / 1e3:.0f}"


def reads_text(point: Results) -> str:
    """Reads of 4 KiB: velo counts its own; of others the kernel's bytes say; none of what lies in memory."""
    if "reads" in point:
        return f"{point['reads']:.1f}"
    return f"{point['device_bytes_per_query'] / 4096:.0f}" if point["home"] == "disk" else "–"


def reads_at(rows: list[Results], recall: float) -> str:
    """The same at a recall, between two settings."""
    if "reads" in rows[0]:
        return f"{value(rows, 'reads', recall):.1f}"
    if rows[0]["home"] != "disk":
        return "–"
    return f"{value(rows, 'device_bytes_per_query', recall) / 4096:.0f}"


def value(rows: list[Results], key: str, recall: float = AT) -> float:
    """A curve's value at a recall; a quote needs one."""
    at = curves.at_recall(rows, key, recall)
    if at is None:
        raise DataError(f"a quote takes {key}: {curves.why_missing(rows, recall)}")
    return at.value


def of_the_million(found: dict[str, Results]) -> Iterator[Quote]:
    """Sentences and tables that say a million themselves."""
    curve = {section: report_sections.curve(found, section) for section in found}
    mine = curve["velo20"]
    yield Quote(
        "docs/index.md",
        "takes {} reads in {} rounds at recall 0.95, with 20 %",
        (f"{value(mine, 'reads'):.1f}", f"{value(mine, 'rounds'):.1f}"),
    )
    yield Quote(
        "README.md",
        "A build takes about {} bytes of memory a vector at 128 dimensions",
        (f"{round(mine[0]['build_peak_bytes'] / mine[0]['n'], -1):.0f}",),
    )
    yield Quote(
        "docs/howto/sizing.md", "were measured at {} MB ([results]", (f"{mine[0]['disk_bytes'] / 1e6:,.0f}",)
    )
    yield Quote(
        "docs/howto/sizing.md",
        "A query over a million vectors took {} µs of a core at recall 0.95",
        (f"{value(mine, 'cpu_us_per_query'):.0f}",),
    )
    yield Quote(
        "docs/howto/sizing.md",
        "A million vectors of 128 dimensions took {} s of processor time",
        (f"{mine[0]['build_cpu_s']:,.0f}",),
    )
    for label, section, built in (
        ("velo, 15 %", "velo15", True),
        ("velo, 20 %", "velo20", True),
        ("velo, 30 %", "velo30", True),
        ("hnswlib {}", "peer-hnswlib", True),
        ("diskannpy {}, codes of 20 %", "peer-diskannpy", True),
        ("zvec {}, DiskANN, codes of 20 %", "peer-zvec", True),
        ("numpy, exact", "peer-numpy", False),
    ):
        rows = curve[section]
        yield Quote(
            "docs/comparison.md",
            f"| {label} | {{}} MB | {{}} | {{}} ms | {{}} µs | {'{} s' if built else '–'} |",
            (
                *([rows[0]["version"]] if "{}" in label else []),
                f"{max(row['resident_growth_bytes'] for row in rows) / 1e6:,.0f}",
                f"{value(rows, 'qps'):,.0f}",
                milliseconds(value(rows, "latency_mean_us")),
                f"{value(rows, 'cpu_us_per_query'):,.0f}",
                *([f"{rows[0]['build_cpu_s']:,.0f}"] if built else []),
            ),
        )
    first = [
        next(row for row in curve[one] if row[RECALL] >= FIRST_AT) for one in ("peer-diskannpy", "velo20")
    ]
    yield Quote(
        "docs/comparison.md",
        "diskannpy took {} reads, velo {}.",
        (reads_text(first[0]), f"{first[1]['reads']:.0f}"),
    )


def of_a_tenth(found: dict[str, Results], million: dict[str, Results]) -> Iterator[Quote]:
    """What is said of 100,000 vectors, and of both sets."""
    peer, mine = (value(report_sections.curve(found, one), "qps") for one in ("peer-hnswlib", "velo20"))
    yield Quote(
        "docs/comparison.md",
        "hnswlib answers {} queries a second and velo with 20 % answers {} ([the report]",
        (f"{peer:,.0f}", f"{mine:,.0f}"),
    )
    yield Quote(
        "README.md",
        "over 100,000 vectors hnswlib answers {} times as many queries a second",
        (f"{peer / mine:.1f}",),
    )
    tenth, whole = (f"{value(report_sections.curve(one, 'velo20'), 'reads'):.1f}" for one in (found, million))
    yield Quote(
        "docs/howto/sizing.md",
        "a search of 100,000 SIFT vectors takes {} reads, one of a million {}, and",
        (tenth, whole),
    )


def of_speed(found: dict[str, Results]) -> Iterator[Quote]:
    """Processor time of a query over a million, on one thread, beside what holds all in memory."""
    mine, graph, quick = (
        found[section]["result"]["rows"] for section in ("velo:20%", "peer:hnswlib", "peer:rabitqlib")
    )

    def cost(rows: list[Results]) -> tuple[str, str]:
        grown = rows[0]["resident_growth_bytes"] / (1 << 20)
        return f"{value(rows, 'cpu_us_per_query'):.1f}", f"{grown:,.0f}"

    yield Quote(
        "README.md",
        "a query takes velo {} µs of processor time in {} MiB. With all vectors in memory hnswlib takes {} "
        "µs in {} MiB, SymphonyQG {} µs in {} MiB",
        (*cost(mine), *cost(graph), *cost(quick)),
    )
    yield Quote(
        "README.md",
        "over a million, on one thread, {} times.",
        (f"{value(graph, 'qps') / value(mine, 'qps'):.2f}",),
    )


def of_filters(found: dict[str, Results]) -> Iterator[Quote]:
    """What a filter costs, by the share of the rows that passes."""
    tenth, peer = found["uniform10"]["result"], report_sections.curve(found, "hnswlib-uniform10")
    mine, late = (value(tenth[key], "reads", 0.9) for key in ("rows", "late"))
    yield Quote(
        "README.md",
        "Where 10 % of the rows pass, a search reads {} pages, and one that filters afterwards {}.",
        (f"{mine:.1f}", f"{late:.0f}"),
    )
    rates = (value(peer, "qps", 0.9), value(tenth["rows"], "qps", 0.9))
    yield Quote(
        "docs/comparison.md",
        "it answered {} queries a second at recall 0.9; velo answered {}\n([filters]",
        tuple(f"{rate:,.0f}" for rate in rates),
    )
    for share, says in (("0.5", "50"), ("0.1", "10"), ("0.02", "2"), ("0.001", "0.1"), ("0.0001", "0.01")):
        result = found[f"share_{share}"]["result"]
        both = [result[key] for key in ("rows", "late") if key in result]
        reads = [f"{value(rows, 'reads', 0.9):.1f}" for rows in both]
        rates_text = [f"{value(rows, 'qps', 0.9):,.0f}" for rows in both]
        pair = "{} | {}" if len(both) == 2 else "{} | –"
        yield Quote("docs/filters.md", f"| {says} % | {pair} | {pair} |", (*reads, *rates_text))


def of_plans(measured: Sequence[Results]) -> Iterator[Quote]:
    """Pages on memory: what was measured of a million vectors, and what is computed of more."""
    file = "docs/howto/plan.md"
    for row in measured:
        yield Quote(
            "docs/howto/memory.md",
            f"| {row['share'] * 100:.1f} % | {{}} | {{}} | {{}} | {{}} | {{}} |",
            (
                _kept(row.get("page_codes", 0), row["links"]),
                f"{row['bytes']:.1f}",
                *(f"{row[key]:.1f}" for key in ("reads", "rounds")),
                f"{row['qps']:,.0f}",
            ),
        )
        yield Quote(
            file,
            f"| {row['share'] * 100:.1f} % | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} |",
            (
                *(row["bits"], _kept(row.get("page_codes", 0), row["links"])),
                f"{row['bytes'] / 1e3:.3f}",
                f"{row['disk_bytes'] / 1e3:.2f}",
                *(f"{row[key]:.1f}" for key in ("reads", "rounds")),
                f"{row['cpu_us_per_query']:,.0f}" + ("¹" if "report" in row else ""),
            ),
        )
    for rows, says in PLANNED.items():
        for share in PLANNED_SHARES:
            plan = velo.size_plan(rows, 128, memory=f"{share}%")
            yield Quote(
                file,
                f"| {says} | {share:g} % | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} |",
                (
                    *(f"{plan.memory_bits}+{plan.record_bits}", _kept(plan.page_codes, plan.links)),
                    f"{plan.memory_bytes['total'] / 1e9:.1f}",
                    f"{plan.disk_bytes['total'] / 1e9:,.0f}",
                    *(f"{plan.reads:.0f}", f"{plan.rounds:.1f}"),
                    f"{plan.query_core_us:,.0f}",
                    f"{plan.build_core_s / 3600:,.0f}",
                ),
            )


def _kept(page_codes: int, links: int) -> str:
    return f"{page_codes} a page" if page_codes else str(links or "on disk")


def faults(root: Path, found: Sequence[Quote]) -> list[str]:
    """A line for each quote that does not stand in its file as the rows have it."""
    wrong = []
    for quote in found:
        matches = list(quote.pattern.finditer((root / quote.file).read_text()))
        if len(matches) != 1:
            wrong.append(f"{quote.file} has {len(matches)} times: {quote.text}")
        elif matches[0].groups() != quote.values:
            stands = " ".join(matches[0][0].split())
            wrong.append(f"{quote.file}: {stands!r}, but the rows say: {quote.filled()!r}")
    return wrong


def write(root: Path, found: Sequence[Quote]) -> None:
    """Put into each file what the rows say; a text that is not there stays a fault."""
    for quote in found:
        file = root / quote.file
        text = file.read_text()
        if match := quote.pattern.search(text):
            for number in range(len(quote.values), 0, -1):  # from the end, so that places hold
                start, end = match.span(number)
                text = text[:start] + quote.values[number - 1] + text[end:]
            file.write_text(text)


def run(root: Path, report: str | None, *, put: bool) -> list[str]:
    """Check, or ``put``, all quotes; returns the faults that are left."""
    found = quotes(root, report)
    if put:
        write(root, found)
    return faults(root, found)
