"""Ways through a graph in memory, and the pages that a bound chooses behind them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.rungs.codes import Codes
from bench.rungs.placed import Floats, Numbers, Placed

K = 10
#: Entry points a search starts from, the best of all that there are.
_STARTS = 8
_ROUNDS_MAX = 8


@dataclass(frozen=True)
class Walk:
    """What a walk met, in its order: vertices, and at which step."""

    vertices: Numbers
    steps: Numbers

    def until(self, steps: int) -> Numbers:
        return self.vertices[: int(np.searchsorted(self.steps, steps, side="right"))]


def entry_points(placed: Placed) -> Numbers:
    """2·√n vertices, evenly over the placement, and the medoid."""
    count = min(placed.n, int(2 * np.sqrt(placed.n)))
    return np.append(np.linspace(0, placed.n - 1, count).astype(np.int64), placed.entry)


def vertex_links(placed: Placed, tiers: int) -> list[Numbers]:
    """Of each vertex the links of the first ``tiers`` tiers."""
    kept = (placed.links >= 0) & (placed.tiers < tiers)
    return [row[mask] for row, mask in zip(placed.links, kept, strict=True)]


def page_links(placed: Placed, count: int) -> list[Numbers]:
    """Of each page up to ``count`` vertices, one of a page: those that most of its links lead to."""
    return _shared_links(placed, placed.page_of, count, 8)


def _shared_links(placed: Placed, owners: Numbers, count: int, tiers: int) -> list[Numbers]:
    source, place = np.nonzero((placed.links >= 0) & (placed.tiers < tiers))
    target = placed.links[source, place]
    weight = 8.0 - placed.tiers[source, place]
    here, there = owners[source], placed.page_of[target]
    outward = placed.page_of[source] != there
    here, there, target, weight = here[outward], there[outward], target[outward], weight[outward]
    # How much leads from owner to page, and from an owner to a vertex.
    _, pair_number = np.unique(here * placed.page_count + there, return_inverse=True)
    pair_weight = np.bincount(pair_number, weight)[pair_number]
    _, link_number = np.unique(here * placed.n + target, return_inverse=True)
    link_weight = np.bincount(link_number, weight)[link_number]
    order = np.lexsort((-link_weight, there, -pair_weight, here))
    here, there, target = here[order], there[order], target[order]
    first = np.ones(len(here), dtype=bool)
    first[1:] = (here[1:] != here[:-1]) | (there[1:] != there[:-1])
    here, target = here[first], target[first]
    begins = np.searchsorted(here, np.arange(int(owners.max()) + 2))
    return [target[low : min(low + count, high)] for low, high in pairwise(begins)]


def thinned_links(placed: Placed, tiers: int, same_page: int, most: int = 255) -> list[Numbers]:
    """Of each vertex links of the first ``tiers`` tiers to other pages. Of one page at most ``same_page``
    lead to another, the first by tier.
    """
    kept = (placed.links >= 0) & (placed.tiers < tiers)
    source, place = np.nonzero(kept)
    target, tier = placed.links[source, place], placed.tiers[source, place]
    here, there = placed.page_of[source], placed.page_of[target]
    outward = here != there
    source, target, tier = source[outward], target[outward], tier[outward]
    pair = here[outward] * placed.page_count + there[outward]
    jitter = np.random.default_rng(1).random(len(source))
    order = np.lexsort((jitter, tier, pair))
    pair = pair[order]
    run = np.ones(len(pair), dtype=bool)
    run[1:] = pair[1:] != pair[:-1]
    rank = np.arange(len(pair)) - np.maximum.accumulate(np.where(run, np.arange(len(pair)), 0))
    chosen = order[rank < same_page]
    chosen = chosen[np.lexsort((tier[chosen], source[chosen]))]
    begins = np.searchsorted(source[chosen], np.arange(placed.n + 1))
    targets = target[chosen]
    return [targets[low : min(high, low + most)] for low, high in pairwise(begins)]


def stretch_links(placed: Placed, stretch: int, count: int) -> list[Numbers]:
    """Of each stretch of vertices up to ``count`` vertices, one a page, to which most of its links lead."""
    return _shared_links(placed, np.arange(placed.n) // stretch, count, 5)


def by_vertices(
    links: Sequence[Numbers],
    distances: Floats,
    entries: Numbers,
    steps: int,
    siblings: Placed | None = None,
    stretch: int = 1,
) -> Walk:
    """Best first, a vertex a step: the first of a stretch brings its links. With ``siblings`` the first
    of a page brings all of the page.
    """
    begun_pages: set[int] = set()
    begun: set[int] = set()
    met = np.zeros(len(distances), dtype=bool)
    starts = entries[np.argsort(distances[entries])[:_STARTS]]
    met[starts] = True
    waiting = [(float(distances[v]), int(v)) for v in starts]
    heapq.heapify(waiting)
    found, counts = [starts], [len(starts)]
    for _ in range(steps):
        if not waiting:
            break
        _, vertex = heapq.heappop(waiting)
        ahead = np.empty(0, dtype=np.int64)
        if (own := vertex // stretch) not in begun:
            begun.add(own)
            ahead = links[own]
        if siblings is not None and (page := int(siblings.page_of[vertex])) not in begun_pages:
            begun_pages.add(page)
            ahead = np.union1d(ahead, np.arange(siblings.starts[page], siblings.starts[page + 1]))
        fresh = ahead[~met[ahead]]
        met[fresh] = True
        for each in zip(distances[fresh].tolist(), fresh.tolist(), strict=True):
            heapq.heappush(waiting, each)
        found.append(fresh)
        counts.append(len(fresh))
    return Walk(np.concatenate(found), np.repeat(np.arange(len(counts)), counts))


def by_pages(
    placed: Placed, links: Sequence[Numbers], distances: Floats, entries: Numbers, steps: int
) -> Walk:
    """Best first, a page a step: the one with the nearest vertex that was met."""
    starts, page_of = placed.starts, placed.page_of
    met = np.zeros(len(distances), dtype=bool)
    begun = np.zeros(placed.page_count, dtype=bool)
    first = entries[np.argsort(distances[entries])[:_STARTS]]
    met[first] = True
    waiting = [(float(distances[v]), int(page_of[v])) for v in first]
    heapq.heapify(waiting)
    found, counts = [first], [len(first)]
    while len(counts) <= steps and waiting:
        _, page = heapq.heappop(waiting)
        if begun[page]:
            continue
        begun[page] = True
        own = np.arange(starts[page], starts[page + 1])
        fresh = np.concatenate([own[~met[own]], links[page][~met[links[page]]]])
        met[fresh] = True
        ahead = links[page]
        for distance, other in zip(distances[ahead].tolist(), page_of[ahead].tolist(), strict=True):
            if not begun[other]:
                heapq.heappush(waiting, (distance, other))
        found.append(fresh)
        counts.append(len(fresh))
    return Walk(np.concatenate(found), np.repeat(np.arange(len(counts)), counts))


@dataclass(frozen=True)
class Burst:
    """The pages that were read, the first first, and how many in each round."""

    pages: Numbers
    rounds: tuple[int, ...]


def burst(
    placed: Placed, codes: Codes, estimates: Floats, exact: Floats, candidates: Numbers, factor: float
) -> Burst:
    """The pages of candidates whose estimate, less ``factor`` σ, reaches the k-th best known: at first the
    k-th estimate, then the k-th of what was read.
    """
    own = estimates[candidates]
    low = own - factor * codes.deviations(own, candidates)
    order = np.argsort(low)
    pages, first = np.unique(placed.page_of[candidates[order]], return_index=True)
    by_bound = np.argsort(first)
    pages, bounds = pages[by_bound], low[order][first[by_bound]]
    reach = float(np.partition(own, K - 1)[K - 1]) if len(own) >= K else np.inf
    count, rounds = 0, []
    for _ in range(_ROUNDS_MAX):
        wanted = int(np.searchsorted(bounds, reach, side="right"))
        if wanted <= count:
            break
        rounds.append(wanted - count)
        count = wanted
        reach = kth(placed, exact, pages[:count])
    return Burst(pages[:count], tuple(rounds))


def records_of(placed: Placed, pages: Numbers) -> Numbers:
    """The vertices on these pages."""
    return np.concatenate([np.arange(placed.starts[p], placed.starts[p + 1]) for p in pages.tolist()])


def kth(placed: Placed, exact: Floats, pages: Numbers) -> float:
    """The k-th least distance on these pages."""
    known = exact[records_of(placed, pages)]
    return float(np.partition(known, K - 1)[K - 1]) if len(known) >= K else float("inf")


def recall(placed: Placed, pages: Numbers, truth: NDArray[np.int64]) -> float:
    """The share of the true nearest that lie on these pages; ``truth`` are vertices."""
    return float(np.isin(placed.page_of[truth], pages).mean())
