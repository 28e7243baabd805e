"""Plans for each rung: what lies in memory, how a search goes, what it reads over real placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.harness.datasets import Dataset
from bench.harness.sections import Context
from bench.rungs import codes as code_room
from bench.rungs import page_walks, placed, walks
from bench.rungs.codes import Codes
from bench.rungs.placed import Floats, Numbers, Placed

Row = dict[str, Any]

#: Queries at a time: each has a distance to every vector.
_TOGETHER = 25
#: σ below the k-th nearest within which pages are read.
_FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
_VERTEX_STEPS: tuple[int, ...] = (30, 60, 100, 200, 400)
_PAGE_STEPS: tuple[int, ...] = (20, 40, 80, 120)
#: The nearest that a scan hands to the bound.
_SCANNED = 8_000
#: Bits of a link in memory, as a share of log₂ n, with its share of what its list takes.
_LINK_BITS = 0.63 * 1.1
_LIST_BYTES = 1.7
#: Of a record beside its links, and of a page beside its records.
_RECORD_BYTES = 105
_PAGE_BYTES = 4096 - 24
#: Sets of pages to read in two to four rounds, as shares of all that are read.
_BURSTS = {2: (0.35, 0.65), 3: (0.25, 0.35, 0.4), 4: (0.1, 0.2, 0.3, 0.4)}
_READS = (20, 30, 40, 60, 80, 110, 160)


def codes_of(name: str, vectors: Floats) -> Codes:
    """Codes by name: ``grid 2+1`` is 2 bits behind 1 stage of centers, ``products 8`` has 8 bytes."""
    kind, _, what = name.partition(" ")
    match kind:
        case "grid":
            bits, stages = (int(part) for part in what.split("+"))
            return code_room.grid(vectors, bits, stages)
        case "unequal":
            return code_room.unequal(vectors, int(float(what) * vectors.shape[1]), 1)
        case "products":
            return code_room.products(vectors, int(what), 0)
    raise ValueError(name)


@dataclass(frozen=True)
class World:
    """A set in its placement, with queries and their true nearest as vertices."""

    placed: Placed
    queries: Floats
    truth: Numbers

    @staticmethod
    def of(context: Context) -> World:
        dataset = context.dataset(warm_up=0)
        told = placed.read(index_path(context, dataset), dataset)
        vertex_of = np.empty(told.n, dtype=np.int64)
        vertex_of[told.rows] = np.arange(told.n)
        return World(told, placed.targets(dataset.queries, dataset.metric), vertex_of[dataset.truth_ids])

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Some queries at a time, with their exact distances to all vertices."""
        whole = Codes(self.placed.vectors, np.zeros(self.placed.n, np.float32), np.zeros(1, np.float32), 0.0)
        for start in range(0, len(self.queries), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            yield part, whole.estimates(self.queries[part])


def index_path(context: Context, dataset: Dataset) -> Path:
    return context.folder / "rungs" / f"{dataset.name}-{dataset.n}" / "placed.velo"


def build(context: Context) -> Row:
    """The index whose placement and links all plans share: records of 6 bits a dimension, links apart."""
    dataset = context.dataset(warm_up=0)
    path = index_path(context, dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (path / "manifest.json").exists():
        options: Any = {"memory_bits": 2, "record_bits": 6, "page_links": False, "calibrate": False}
        options["metric"] = dataset.metric
        velo.build(path, dataset.base, threads=context.threads, **options).close()
    world = World.of(context)
    told = world.placed
    pages = [len(np.unique(told.page_of[row])) for row in world.truth]
    return {
        "n": told.n,
        "dim": told.dim,
        "pages": told.page_count,
        "records_a_page": told.n / told.page_count,
        "pages_of_truth": float(np.mean(pages)),
    }


def in_memory(context: Context, code: str, graphs: Sequence[str]) -> list[Row]:
    """Navigation without a read over ``code``, by each of ``graphs``, then bursts by bounds."""
    world = World.of(context)
    codes = codes_of(code, world.placed.vectors)
    entries = walks.entry_points(world.placed)
    lists = _all_lists(world.placed, graphs)
    found: dict[tuple[str, int, float], list[tuple[float, ...]]] = {}
    for part, exact in world.blocks():
        estimates = codes.estimates(world.queries[part])
        for own, true, near in zip(estimates, exact, world.truth[part], strict=True):
            for graph in graphs:
                for steps, candidates in _candidates(world.placed, graph, lists.get(graph), own, entries):
                    for factor in _FACTORS:
                        read = walks.burst(world.placed, codes, own, true, candidates, factor)
                        row = (
                            walks.recall(world.placed, read.pages, near),
                            len(read.pages),
                            len(read.rounds),
                            len(candidates) if graph != "scan" else world.placed.n,
                        )
                        found.setdefault((graph, steps, factor), []).append(row)
    rows = []
    for (graph, steps, factor), several in found.items():
        recall, reads, rounds, estimates_met = np.mean(several, axis=0).tolist()
        in_all = codes.bytes_each + links_bytes(world.placed, graph, lists.get(graph)) + 0.4
        rows.append(
            {
                "code": code,
                "graph": graph,
                "steps": steps,
                "factor": factor,
                "bytes": in_all,
                "recall": recall,
                "reads": reads,
                "rounds": rounds,
                "estimates": estimates_met,
            }
        )
    return rows


def _all_lists(told: Placed, graphs: Sequence[str]) -> dict[str, list[Numbers]]:
    """The lists of each graph. Shorter lists of pages are the heads of the longest."""
    of_pages = [int(graph.removeprefix("page ")) for graph in graphs if graph.startswith("page ")]
    longest = walks.page_links(told, max(of_pages)) if of_pages else []
    return {f"page {count}": [one[:count] for one in longest] for count in of_pages} | {
        graph: _lists(told, graph) for graph in graphs if graph.startswith(("vertex", "outward", "stretch"))
    }


def _lists(told: Placed, graph: str) -> list[Numbers]:
    kind, count = graph.split(" ")
    match kind:
        case "vertex":
            return walks.vertex_links(told, {8: 1, 12: 3, 16: 5}[int(count)])
        case "outward":
            tiers, same_page = (int(part) for part in count.split("/"))
            return walks.thinned_links(told, tiers, same_page)
        case "stretch":
            stretch, most = _shape(graph)
            return walks.stretch_links(told, stretch, most)
    raise ValueError(graph)


def _shape(graph: str) -> tuple[int, int]:
    stretch, links = (int(part) for part in graph.removeprefix("stretch ").split("/"))
    return stretch, links


def links_bytes(told: Placed, graph: str, lists: Sequence[Numbers] | None) -> float:
    """Bytes of links a vector: of lists of vertices, or of pages, whose heads count little."""
    if lists is None:
        return 0.0
    if graph.startswith("stretch"):
        stretch, most = _shape(graph)
        return float((4.5 + most * (3 + 0.75 * np.log2(told.n / most)) / 8) / stretch)
    one = _LINK_BITS * np.log2(told.n) / 8
    each = sum(map(len, lists)) / told.n * one
    return float(each + (_LIST_BYTES if len(lists) == told.n else _LIST_BYTES * told.page_count / told.n))


def _candidates(
    told: Placed, graph: str, lists: list[Numbers] | None, own: Floats, entries: Numbers
) -> Iterator[tuple[int, Numbers]]:
    if lists is None:
        yield 0, np.argpartition(own, min(_SCANNED, len(own) - 1))[:_SCANNED]
        return
    if graph.startswith("page"):
        steps, walk = _PAGE_STEPS, walks.by_pages(told, lists, own, entries, max(_PAGE_STEPS))
    else:
        siblings = told if graph.startswith(("outward", "stretch")) else None
        stretch = _shape(graph)[0] if graph.startswith("stretch") else 1
        steps = _VERTEX_STEPS
        walk = walks.by_vertices(lists, own, entries, max(_VERTEX_STEPS), siblings, stretch)
    for count in steps:
        yield count, walk.until(count)


def of_pages(context: Context, memory: str, beside: Sequence[str]) -> list[Row]:
    """Pages as vertices. ``memory`` is how many codes a page has there, or ``entries``; ``beside`` says what
    stands in pages beside records: nothing, ``records T`` links of T tiers, or ``pages M/C``: M links of the
    page with the codes of C bytes of what they lead to.
    """
    world = World.of(context)
    told = world.placed
    entries = walks.entry_points(told)
    if memory == "entries":
        known = page_walks.entry_codes(told, entries, 16)
    else:
        known = page_walks.page_codes(told, int(memory), 16)
    links: dict[str, list[Numbers]] = {}
    codes: dict[str, Codes] = {}
    for what in beside:
        kind, _, rest = what.partition(" ")
        if kind == "records":
            links[what] = walks.vertex_links(told, int(rest))
        elif kind == "pages":
            count, code_bytes = (int(part) for part in rest.split("/"))
            links[what] = walks.page_links(told, count)
            codes[what] = code_room.products(told.vectors, code_bytes, 0)
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for part, exact in world.blocks():
        ranks = known.codes.estimates(world.queries[part])
        told_here = {what: codes[what].estimates(world.queries[part]) for what in codes}
        for number, (true, near) in enumerate(zip(exact, world.truth[part], strict=True)):
            rank = page_walks.page_ranks(told.page_count, known, ranks[number])
            for what in beside:
                for rounds, shares in {1: (1.0,), **_BURSTS}.items() if what != "nothing" else [(1, (1.0,))]:
                    if what != "nothing" and rounds == 1:
                        continue
                    for reads in _READS:
                        sizes = [max(1, round(share * reads)) for share in shares]
                        pages = page_walks.in_bursts(
                            told,
                            sizes,
                            rank,
                            true,
                            links.get(what, []),
                            told_here[what][number] if what in codes else None,
                            of_records=what.startswith("records"),
                        )
                        row = (walks.recall(told, pages, near), float(len(pages)))
                        found.setdefault((what, rounds, reads), []).append(row)
    rows = []
    for (what, rounds, _), several in found.items():
        recall, reads = np.mean(several, axis=0).tolist()
        rows.append(
            {
                "code": f"{memory} a page" if memory != "entries" else "entry points alone",
                "graph": what,
                "bytes": known.bytes_each + 0.4,
                "recall": recall,
                "reads": reads * grown(told, what, links.get(what)),
                "rounds": rounds,
                "estimates": float(len(known.pages)),
            }
        )
    return rows


def grown(told: Placed, what: str, links: Sequence[Numbers] | None) -> float:
    """How many more pages an index has whose pages hold this beside records: reads grow as much."""
    if links is None:
        return 1.0
    one = _LINK_BITS * np.log2(told.n) / 8
    record = _RECORD_BYTES / 128 * told.dim if told.dim != 128 else _RECORD_BYTES
    if what.startswith("records"):
        return float(1 + (sum(map(len, links)) / told.n * one + 2) / record)
    code_bytes = int(what.rpartition("/")[2])
    taken = sum(map(len, links)) / told.page_count * (one + code_bytes)
    return float(1 / (1 - taken / _PAGE_BYTES))
