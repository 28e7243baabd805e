"""A report described by data: its options, sections, targets, tables and pictures, and one writer for all."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import curves, datasets, machine, pages, plots, runs, sections, targets
from bench.harness.curves import Row
from bench.harness.datasets import K
from bench.harness.plots import Picture
from bench.harness.sections import Context
from bench.harness.targets import Found, Line, Target

NONE = "–"
#: A column: a function of the row, or ``path.in.row/divisor:format``.
Cell = str | Callable[[Row], Any]
BUDGET_HELP = "share of n·d·4 bytes, with bits in memory and in the record after a colon: 20%%, 10%%:2+6"


# ---- tables ----


@dataclass(frozen=True)
class Table:
    """Columns by their heads over rows; a value that a row lacks is ``–``."""

    title: str
    columns: Mapping[str, Cell]
    rows: Sequence[Row]
    note: str = ""

    def markdown(self) -> list[str]:
        text = [f"## {self.title}", ""] if self.title else []
        cells = [[_text(spec, row) for spec in self.columns.values()] for row in self.rows]
        text += grid(list(self.columns), cells)
        return [*text, "", self.note] if self.note else text


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    every = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return every + ["| " + " | ".join(row) + " |" for row in rows]


def _text(spec: Cell, row: Row) -> str:
    if callable(spec):
        value, form = spec(row), ""
    else:
        path, _, form = spec.partition(":")
        path, _, divisor = path.partition("/")
        value = row
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if divisor and value is not None:
            value /= float(divisor)
    return NONE if value is None else format(value, form)


def at_cell(
    key: str, recall: float, form: str, divisor: float = 1.0, points: str = "points"
) -> Callable[[Row], str | None]:
    """A column over rows with curves: ``key`` of one at a recall, with * where it begins above."""

    def cell(row: Row) -> str | None:
        value = curves.at_recall(row.get(points, []), key, recall)
        return None if value is None else f"{value.value / divisor:{form}}{'' if value.exact else '*'}"

    return cell


BEGINS_ABOVE = "\\* of the system's first setting, whose recall is higher."

SETTINGS: dict[str, Cell] = {
    "system": "label",
    "list": lambda row: f"{row['list_size'] or NONE}" + (f"@{row['sigma']:g}" if "sigma" in row else ""),
    f"recall@{K}": f"{curves.RECALL}:.4f",
    "QPS": "qps:,.0f",
    "mean ms": "latency_mean_us/1000:.2f",
    "p99 ms": "latency_p99_us/1000:.2f",
    "reads": "reads:.1f",
    "rounds": "rounds:.2f",
    "hits": "cache_hits:.1f",
    "CPU µs": "cpu_us_per_query:,.0f",
    "load": "load:.1f",
}

BUILDS: Mapping[str, Cell] = {
    "system": "label",
    "version": "version",
    "options": lambda row: ", ".join(f"{key} {value}" for key, value in row["build"].items()) or None,
    "wall s": "build_s:,.1f",
    "CPU s": "build_cpu_s:,.1f",
    "peak memory MB": "build_peak_bytes/1e6:,.0f",
    "on disk MB": "disk_bytes/1e6:,.0f",
    "load": "build_load:.1f",
}

SECTIONS: Mapping[str, Cell] = {
    "section": "section",
    "seconds": "seconds:,.0f",
    "CPU s": "cpu_s:,.0f",
    "load": "load:.1f",
    "measured at": "measured_at",
    "": lambda row: row.get("error", ""),
}


def by_recall(name: str, title: str, every: Mapping[str, Sequence[Row]], *keys: tuple[str, str]) -> Picture:
    """A panel for each (key, name of the axis), a line for each label, over recall."""
    panels = []
    for key, y in keys:
        series = {
            label: [(row[curves.RECALL], row[key]) for row in rows if row.get(key) is not None]
            for label, rows in every.items()
        }
        shown = {label: points for label, points in series.items() if points}
        panels.append(plots.Panel(y, shown, log=True))
    return Picture(name, title, panels, scale="recall")


def over_memory(name: str, every: Mapping[str, Sequence[Row]], recall: float) -> Picture:
    """A point for each label: queries a second at a recall over the growth of the process."""
    points = {}
    for label, rows in every.items():
        if rate := curves.at_recall(rows, "qps", recall):
            grown = max(row["resident_growth_bytes"] for row in rows)
            points[label] = [(grown / 1e6, rate.value)]
    panel = plots.Panel("queries a second", points, log=True, joined=False)
    title = f"Queries a second at recall {recall} over memory"
    return Picture(name, title, [panel], x="growth of the process, MB", scale="log")


# ---- reports ----


@dataclass(frozen=True)
class Option:
    """An option of one report: a tuple is a list, False a flag, ``names`` a list with commas."""

    name: str
    default: Any
    help: str
    kind: Any = None
    required: bool = False

    @property
    def key(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    def add(self, parser: argparse.ArgumentParser) -> None:
        how: dict[str, Any] = {"help": self.help}
        if self.default is False:
            how["action"] = "store_true"
        elif isinstance(self.default, tuple):
            kind = self.kind or type(self.default[0])
            how |= {"nargs": "+", "default": list(self.default) or None, "type": kind}
        else:
            kind = str if self.kind == "names" else self.kind or type(self.default)
            how |= {"default": self.default, "type": str if kind is type(None) else kind}
        if self.required:
            how["required"] = True
        parser.add_argument(self.name, **how)

    def value(self, arguments: argparse.Namespace) -> Any:
        """The chosen value as JSON can keep it."""
        chosen = getattr(arguments, self.key)
        if self.kind == "names":
            return [] if chosen == "none" else chosen.split(",")
        return str(chosen.resolve()) if isinstance(chosen, Path) else chosen


@dataclass(frozen=True)
class Page:
    """A report that is being written: its head and the sections that were found."""

    out: Path
    name: str
    head: Row
    found: Found


def head_of(context: Context, *, probe: bool = True, **more: Any) -> Row:
    """Machine and set of a report; with ``probe`` the device's reads as well."""
    dataset = context.dataset()
    base = runs.export_arrays(dataset, context.folder).base
    return {
        "machine": machine.describe(context.folder, base if probe else None),
        "dataset": dataset.name,
        "n": dataset.n,
        "dim": dataset.dim,
        "query_count": min(context.query_count, len(dataset.queries)),
        "threads": context.threads,
        **more,
    }


@dataclass(frozen=True)
class Report:
    """A command of ``python -m bench`` that measures sections and writes a page, pictures and rows."""

    name: str
    help: str
    #: The module whose ``sections_of(context)`` returns the sections.
    module: str
    #: The page's title and first paragraph, formatted with the head.
    title: str
    about: str
    #: Pictures and tables of a page.
    content: Callable[[Page], Iterable[Picture | Table]]
    targets: Callable[[Page], Sequence[Target]] = lambda _: ()
    #: The sections, as targets name them.
    values: Callable[[Page], Found] = lambda page: page.found
    #: Rows that are computed from the sections and kept beside them.
    rows: Callable[[Page], Sequence[Row]] = lambda _: ()
    #: The first row of the page.
    head: Callable[[Context], Row] = head_of
    options: Sequence[Option] = ()
    #: The argument that names the folder of the set.
    data: str = "--data"
    #: Defaults of the shared arguments.
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        data: dict[str, Any] = {"required": True} if self.data.startswith("-") else {}
        parser.add_argument(self.data, type=Path, help="folder of the set", **data)
        for option in self.options:
            option.add(parser)
        add = parser.add_argument
        add("--limit", type=int, help="only the first N base vectors, with truth of their own")
        if not any(option.key == "queries" for option in self.options):
            add("--queries", type=int, help="only the first N queries")
        add("--single", type=int, default=300, help="queries of the one-at-a-time pass")
        add("--threads", type=int, default=2)
        add("--work", type=Path, default=Path(".bench"), help="indexes, environments, sections")
        add("--out", type=Path, default=Path("docs/results"))
        add("--name", help="name of the page (default: command and set)")
        add("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")
        parser.set_defaults(**self.defaults)

    def context(self, arguments: argparse.Namespace) -> Context:
        folder = getattr(arguments, self.data.lstrip("-")).resolve()
        queries = getattr(arguments, "queries", 0)
        if queries is None:
            queries = _query_count(folder)
        return Context(
            data=str(folder),
            work=str(arguments.work.resolve()),
            limit=arguments.limit,
            query_count=queries if isinstance(queries, int) else 0,
            single_count=arguments.single,
            threads=arguments.threads,
            options={option.key: option.value(arguments) for option in self.options},
        )

    def main(self, arguments: argparse.Namespace) -> list[Line]:
        context = self.context(arguments)
        name = arguments.name or f"{self.name}-{Path(context.data).stem}"
        return self.run(context, arguments.out, name, arguments.only)

    def run(self, context: Context, out: Path, name: str, only: list[str] | None = None) -> list[Line]:
        """Measure, write ``out/name.md``, ``out/name.jsonl`` and the pictures; returns the targets' lines."""
        every = importlib.import_module(self.module).sections_of(context)
        set_name = Path(context.data).name + (f"-{context.limit}" if context.limit else "")
        folder = context.folder / self.name / set_name / "sections"
        found = sections.run(self.module, every, context, folder=folder, only=only)
        return self.write(Page(out, name, self.head(context), found))

    def write(self, page: Page) -> list[Line]:
        values = self.values(page)
        lines = [target.line(values) for target in self.targets(page)]
        parts = list(self.content(page))
        pictures = [part for part in parts if isinstance(part, Picture) and not part.is_empty]
        if not plots.available():
            pictures = []
        for picture in pictures:
            plots.draw(picture, page.out / picture.file(page.name))
        tables = [part for part in parts if isinstance(part, Table) and part.rows]
        told = page.head | {"machine_line": machine_line(page.head["machine"])}
        text = [f"# {self.title.format(**told)}", "", self.about.format(**told), ""]
        for picture in pictures:
            text += [f"![{picture.title}]({picture.file(page.name)})", ""]
        if lines:
            text += ["## Targets", "", f"{targets.tally(lines)}.", "", *target_table(lines), ""]
        for table in [*tables, Table("Sections", SECTIONS, list(page.found.values()))]:
            text += [*table.markdown(), ""]
        records = [line.record() for line in lines]
        rows = [{"head": page.head}, *records, *self.rows(page), *page.found.values()]
        pages.write(page.out, page.name, rows, "\n".join(text))
        return lines

    def kept(self, out: Path, name: str) -> Page:
        """The page whose rows are kept in ``out/name.jsonl``."""
        rows = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
        return Page(out, name, rows[0]["head"], {row["section"]: row for row in rows if "section" in row})


def target_table(lines: Iterable[Line]) -> list[str]:
    return grid(
        ["what", "target", "measured", "", "how"],
        [
            [line.what, line.target, line.measured, line.verdict, "" if line.value is None else line.note]
            for line in lines
        ],
    )


def machine_line(host: Row) -> str:
    line = (
        f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB, "
        f"Linux {host['kernel']}, {host['device']}, Python {host['python']}."
    )
    reads = host.get("reads") or {}
    if "one_at_a_time_per_s" in reads:
        key = next(key for key in reads if key.startswith("threads"))
        line += (
            f" The device answers {reads['one_at_a_time_per_s']:,} reads of 4 KiB a second one at a time "
            f"(p50 {reads['one_at_a_time_p50_us']} µs) and {reads[key]:,}/s from {key.split('_')[1]} "
            "threads, asked from Python: a lower bound."
        )
    return line


def _query_count(folder: Path) -> int:
    """Half of a set's queries, the others fill caches; at most 5,000, or 2,000 of a small set."""
    dataset = datasets.load(folder)
    return min(len(dataset.queries) // 2, 5000 if dataset.n > 200_000 else 2000)
