"""Pages as vertices: a few codes a page in memory, or none; what a page that was read tells of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.rungs import codes as code_room
from bench.rungs import walks
from bench.rungs.codes import Codes
from bench.rungs.placed import Floats, Numbers, Placed

#: The best records of a round, whose links are looked at.
_LEADING = 24
_CHUNK = 1_000
_ROUNDS = 6


@dataclass(frozen=True)
class PageCodes:
    """Codes of places in pages: ``pages`` says whose each is."""

    codes: Codes
    pages: Numbers
    bytes_each: float


def page_codes(placed: Placed, count: int, code_bytes: int) -> PageCodes:
    """``count`` centers of the records of each page, in codes of ``code_bytes`` (PQ)."""
    centers = _centers(placed, count)
    codes = code_room.products(centers.reshape(-1, placed.dim), code_bytes, 0)
    pages = np.repeat(np.arange(placed.page_count), count)
    return PageCodes(codes, pages, codes.bytes_each * len(pages) / placed.n)


def entry_codes(placed: Placed, entries: Numbers, code_bytes: int) -> PageCodes:
    """Some vertices alone."""
    codes = code_room.products(placed.vectors[entries], code_bytes, 0)
    return PageCodes(codes, placed.page_of[entries], codes.bytes_each * len(entries) / placed.n)


def _centers(placed: Placed, count: int) -> Floats:
    """Of each page ``count`` centers of its records, by k-means over all pages at once."""
    sizes = np.diff(placed.starts)
    most = int(sizes.max())
    out = np.empty((placed.page_count, count, placed.dim), dtype=np.float32)
    for begin in range(0, placed.page_count, _CHUNK):
        end = min(placed.page_count, begin + _CHUNK)
        at = placed.starts[begin:end, None] + np.minimum(np.arange(most), sizes[begin:end, None] - 1)
        records = placed.vectors[at]
        spread = (np.arange(count) * sizes[begin:end, None]) // count
        centers = placed.vectors[placed.starts[begin:end, None] + spread]
        own = np.einsum("pij,pij->pi", records, records)
        for _ in range(_ROUNDS if count > 1 else 1):
            far = own[:, :, None] + np.einsum("pij,pij->pi", centers, centers)[:, None, :]
            far -= 2 * records @ centers.transpose(0, 2, 1)
            member = (far.argmin(axis=2)[:, :, None] == np.arange(count)).astype(np.float32)
            member *= (np.arange(most) < sizes[begin:end, None])[:, :, None]
            held = member.sum(axis=1)
            sums = member.transpose(0, 2, 1) @ records
            centers = np.where(held[:, :, None] > 0, sums / np.maximum(held, 1)[:, :, None], centers)
        out[begin:end] = centers
    return out


def page_ranks(page_count: int, codes: PageCodes, estimates: Floats) -> Floats:
    """Of each page the nearest of its codes; infinity where it has none."""
    ranks = np.full(page_count, np.inf, dtype=np.float32)
    np.minimum.at(ranks, codes.pages, estimates)
    return ranks


def in_bursts(
    placed: Placed,
    bursts: Sequence[int],
    ranks: Floats,
    exact: Floats,
    links: Sequence[Numbers],
    told: Floats | None,
    *,
    of_records: bool,
) -> Numbers:
    """Pages by rank first; each further burst is chosen from what the pages read so far link to.

    ``links`` are of pages, or of vertices (``of_records``): then those of the best records count. ``told``
    are estimates of vertices by codes that lie beside links. Where there are none, a page's rank decides
    among those that are linked, divided by how many of the best records lead there.
    """
    read = np.argsort(ranks)[: bursts[0]]
    read = read[np.isfinite(ranks[read])]
    scores = np.full(placed.page_count, np.inf, dtype=np.float32)
    fresh = read
    done = np.zeros(placed.page_count, dtype=bool)
    done[read] = True
    for size in bursts[1:]:
        if of_records:
            known = walks.records_of(placed, read)
            leading = known[np.argsort(exact[known])[:_LEADING]]
            ahead = np.concatenate([links[v] for v in leading.tolist()])
        else:
            ahead = np.concatenate([links[p] for p in fresh.tolist()])
        if told is not None:
            np.minimum.at(scores, placed.page_of[ahead], told[ahead])
            order = np.where(done, np.inf, np.minimum(scores, ranks))
        else:
            pages, times = np.unique(placed.page_of[ahead], return_counts=True)
            order = np.where(done, np.inf, ranks)
            linked = ranks[pages] / (1 + 0.25 * times)
            order[pages] = np.where(done[pages], np.inf, linked)
        fresh = np.argpartition(order, size)[:size]
        fresh = fresh[np.isfinite(order[fresh])]
        done[fresh] = True
        read = np.concatenate([read, fresh])
    return read
