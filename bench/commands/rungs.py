"""``bench rungs``: which plan reads least where memory is short, simulated over velo's own placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.harness import kept, pages, plots, sections, tables
from bench.harness.sections import Context, Results, Section
from bench.rungs import cached, plans, wide

MODULE = "bench.commands.rungs"
_LIMIT_S = 600.0
#: A build goes on where it was ended.
_BUILD_LIMIT_S = 3600.0
Row = dict[str, Any]

_SHORT = ["scan", "outward 3/2", "page 64", "page 96"]
#: What is built (zig/src/index/page_ways.zig).
_STRETCHES = ["stretch 5/32", "stretch 10/48", "stretch 40/96"]
#: Codes in memory, and the ways through them.
CODES = {
    "grid 4+1": ["scan", "vertex 16"],
    "grid 3+1": ["scan", "vertex 8", "outward 3/2"],
    "grid 2+1": ["scan", "vertex 8", "vertex 16", "outward 1/1", "outward 3/2", "page 96", *_STRETCHES],
    "grid 2+2": ["scan", "outward 3/2", "page 96"],
    "grid 1+1": [*_SHORT, "vertex 12", *_STRETCHES],
    "grid 1+2": [*_SHORT, "vertex 12"],
    "unequal 1": _SHORT,
    "products 16": _SHORT,
    "products 8": _SHORT,
    "products 4": ["scan", "page 64", "page 96"],
}
#: Codes of a page in memory, and what stands beside records in pages.
PAGES = {
    "8": ["nothing", "records 1", "records 4", "pages 64/8"],
    "4": ["nothing", "records 1", "records 4", "pages 64/8"],
    "1": ["nothing", "records 1", "records 4", "pages 32/16", "pages 64/8"],
    "entries": ["records 4", "pages 32/16", "pages 64/8", "pages 128/8"],
}
#: Shares of the float32 vectors that the table looks at.
SHARES = (0.10, 0.06, 0.05, 0.02, 0.01)
#: Microseconds of an estimate and of a read, by which settings of one plan are compared.
_ESTIMATE_US, _READ_US = 0.036, 4.9


def run(context: Context, out: Path, name: str, only: list[str] | None) -> None:
    """Measure, write ``out/name.md``, ``out/name.png`` and ``out/name.jsonl``."""
    dataset = context.dataset(warm_up=0)
    folder = context.folder / "rungs" / f"{dataset.name}-{dataset.n}"
    results = sections.run(MODULE, sections_of(context), context, folder=folder, only=only)
    target = float(context.options["recall"])
    _write(
        out,
        name,
        {"dataset": dataset.name, "n": dataset.n, "dim": dataset.dim, "recall": target},
        results,
    )


def rewrite(out: Path, name: str) -> None:
    """The page and its picture anew, from the rows that are kept."""
    found = kept.load(out, name)
    _write(out, name, found.head, found.results)


def _write(out: Path, name: str, head: Row, results: dict[str, Results]) -> None:
    best = least(results, head["recall"])
    if best and plots.available():
        _draw(out, name, head, best)
    rows = [{"head": head}, *results.values()]
    pages.write(out, name, rows, _markdown(name, head, best, results))


def sections_of(context: Context) -> Mapping[str, Section]:
    every = [Section("placed", plans.build, _BUILD_LIMIT_S)]
    every += [Section(f"memory:{code}", partial(_in_memory, code), _LIMIT_S) for code in CODES]
    every += [Section(f"pages:{memory}", partial(_of_pages, memory), _LIMIT_S) for memory in PAGES]
    every += [Section("cached", cached.measure, _LIMIT_S)]
    if context.options["wide"]:
        every += [Section(f"wide:{plan}", partial(wide.measure, plan), _BUILD_LIMIT_S) for plan in wide.PLANS]
    return {section.name: section for section in every}


def _in_memory(code: str, context: Context) -> Results:
    return {"rows": plans.in_memory(context, code, CODES[code])}


def _of_pages(memory: str, context: Context) -> Results:
    return {"rows": plans.of_pages(context, memory, PAGES[memory])}


def least(results: Mapping[str, Results], target: float) -> list[Row]:
    """Of each plan the setting that costs least at the recall asked, between measured ones."""
    curves: dict[tuple[str, str, Any], list[Row]] = {}
    for name, told in results.items():
        if name.startswith(("memory:", "pages:")):
            for row in told.get("result", {}).get("rows", ()):
                setting = row["steps"] if "steps" in row else row["rounds"]
                curves.setdefault((row["code"], row["graph"], setting), []).append(row)
    best: dict[tuple[str, str], Row] = {}
    for (code, graph, setting), rows in curves.items():
        found = _between(rows, target)
        key = (code, graph)
        if found is not None and (key not in best or _cost(found) < _cost(best[key])):
            best[key] = found | {"setting": setting}
    return sorted(best.values(), key=lambda row: -row["bytes"])


def _cost(row: Row) -> float:
    return float(_READ_US * row["reads"] + _ESTIMATE_US * row["estimates"])


def _between(rows: Sequence[Row], target: float) -> Row | None:
    ordered = sorted(rows, key=lambda row: row["reads"])
    for low, high in pairwise(ordered):
        if low["recall"] < target <= high["recall"]:
            share = (target - low["recall"]) / (high["recall"] - low["recall"])
            mixed = {
                key: low[key] + share * (high[key] - low[key]) for key in ("reads", "rounds", "estimates")
            }
            return low | mixed | {"recall": target}
    return ordered[0] if ordered and ordered[0]["recall"] >= target else None


def _draw(out: Path, name: str, head: Row, best: Sequence[Row]) -> None:
    drawn, axes = plots.figure()
    kinds = ("scan", "vertex", "outward", "stretch", "page", "nothing", "records", "pages")
    for number, kind in enumerate(kinds):
        shown = [row for row in best if row["graph"].split(" ")[0] == kind]
        axes.plot(
            [row["bytes"] / head["dim"] / 4 for row in shown],
            [row["reads"] for row in shown],
            color=plots.shade(number).color,
            marker=plots.shade(number).mark,
            linestyle="none",
            label=_KINDS[kind],
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    plots.plain_log(axes.yaxis)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.1%}")
    title = f"{head['dataset']}: pages read at recall@10 {head['recall']:g}, simulated"
    plots.save(drawn, axes, out / f"{name}.png", title=title, x="memory, share of float32", y="reads a query")


_KINDS = {
    "scan": "all codes looked at",
    "vertex": "links of vertices",
    "outward": "links to other pages, whole pages met",
    "stretch": "links of stretches, whole pages met",
    "page": "links of pages, whole pages met",
    "nothing": "codes of pages alone",
    "records": "codes of pages, links in pages",
    "pages": "codes beside links in pages",
}


_WORDS = (
    "- *grid b+s*: velo's codes of b bits behind s stages of 256 centers.",
    "- *unequal*: bits where variance is (after SAQ).",
    "- *products c*: c bytes (PQ).",
    "- *k a page*: centers of each page's records, coded in 16 bytes.",
    "- *scan*: the nearest of all codes, so what a code alone allows.",
    "- *vertex m*: m links a vertex.",
    "- *outward t/s*: links of the first t tiers that leave their page, s at most from one page to another; "
    "who follows a vertex looks at its whole page.",
    "- *stretch s/m*: s neighboring vertices share m links, and again the whole page.",
    "- *page m*: m links a page, and again the whole page.",
    "- *nothing*, *records t*, *pages m/c*: pages are vertices; beside records stand nothing, links of t "
    "tiers, or m links of the page with codes of c bytes. Reads have grown by what that takes of a page.",
)


def _cells(row: Row, dim: int) -> list[str]:
    looked = "all" if row["graph"] == "scan" else f"{row['estimates']:,.0f}"
    return [
        row["code"],
        row["graph"],
        f"{row['bytes']:.1f}",
        f"{row['bytes'] / dim / 4:.1%}",
        f"{row['reads']:.1f}",
        f"{row['rounds']:.1f}",
        looked,
    ]


def _markdown(name: str, head: Row, best: Sequence[Row], results: Mapping[str, Results]) -> str:
    dim = head["dim"]
    build = results.get("placed", {}).get("result", {})
    columns = ["codes", "ways", "bytes a vector", "of float32", "reads", "rounds", "estimates"]
    text = [
        f"# {name}",
        "",
        f"{head['dataset']}: {head['n']:,} × {dim}. **Simulated** in numpy over the placement and the links "
        f"of an index that velo built: {build.get('pages', 0):,} pages of "
        f"{build.get('records_a_page', 0):.1f} records. The true ten lie on "
        f"{build.get('pages_of_truth', 0):.1f} pages. Reads are those of recall@10 {head['recall']:g}, "
        "between measured settings; of each plan the setting that takes least time by "
        f"{_READ_US:g} µs a read and {_ESTIMATE_US:g} an estimate. Records that were read count as known "
        "exactly. Bytes are codes, links and page directory; short lists take more than is counted: at a "
        "million, 8 links a vertex took 17.9 bytes instead of 15.5, *outward 3/2* 18.1 instead of 14.6.",
        "",
        *_WORDS,
        "",
        f"![reads over memory]({name}.png)",
        "",
        "## The best of each budget",
        "",
        *tables.table(
            ["budget", *columns],
            [
                [f"{share:.0%}", *_cells(row, dim)]
                for share in SHARES
                if (row := _best_within(best, share * dim * 4))
            ],
        ),
        "",
        "## Every plan",
        "",
        *tables.table(columns, [_cells(row, dim) for row in best]),
    ]
    text += _cached_lines(results)
    text += wide.lines_of(results)
    missing = [f"- {key}: {told['error']}" for key, told in results.items() if "error" in told]
    if missing:
        text += ["", "Not measured:", "", *missing]
    return "\n".join(text) + "\n"


def _cached_lines(results: Mapping[str, Results]) -> list[str]:
    found = results.get("cached", {}).get("result")
    if found is None:
        return []
    names = ("pages by links", "pages by answers", "records by links", "records by answers")
    return [
        "",
        "## Memory above codes and links",
        "",
        f"Pages that a query reads of the {found['rows'][0]['pages']:.2f} on which its true ten lie, "
        "where a share of pages.bin is in memory: the pages, or as many bytes of single records, with the "
        "most links to them, "
        f"or with the most answers of {found['taught']:,} rows taken as queries.",
        "",
        *tables.table(
            ["share", *names],
            [[f"{row['share']:.0%}", *(f"{row[name]:.2f}" for name in names)] for row in found["rows"]],
        ),
    ]


def _best_within(best: Sequence[Row], budget_bytes: float) -> Row | None:
    """Plans that can be run: a scan of all codes is a bound and none."""
    fits = [row for row in best if row["bytes"] <= budget_bytes and row["graph"] != "scan"]
    return min(fits, key=lambda row: row["reads"]) if fits else None
