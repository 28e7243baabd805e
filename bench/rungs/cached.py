"""Simulates a cache above codes and links: whole pages or records, ranked by links or by answers."""

from __future__ import annotations

from typing import Any

import numpy as np

import velo
from bench.harness.sections import Context
from bench.rungs import plans
from bench.rungs.placed import Numbers, Placed

Row = dict[str, Any]

#: Shares of pages.bin that have room in memory.
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
#: Queries that the ranks by answers are taken from: rows of the index, each without itself.
_TAUGHT = 60_000
_K = 10
_LIST_SIZE = 128
#: Of a cached record beside its code, and of a cached page: states, links of the cache and the mapping.
_SLOT_BYTES = 20
_PAGE_BYTES = 4096
_SEED = 1


def measure(context: Context) -> Row:
    """The section: of the pages on which a query's true neighbors lie the share that needs no read."""
    world = plans.World.of(context)
    placed, wanted = world.placed, world.truth[:, :_K]
    answers = _answers(context, placed)
    links = np.bincount(placed.links[placed.links >= 0], minlength=placed.n)
    learned = np.bincount(answers.ravel(), minlength=placed.n)
    pages = np.array([len(np.unique(placed.page_of[row])) for row in wanted])
    rows = []
    for share in SHARES:
        row: Row = {"share": share, "pages": float(pages.mean())}
        for name, heat in (("links", links), ("answers", learned)):
            of_pages = np.bincount(placed.page_of, heat, minlength=placed.page_count)
            held = _hottest(of_pages, round(share * placed.page_count))[placed.page_of]
            row[f"pages by {name}"] = _reads(placed, wanted, held)
            record_bytes = _PAGE_BYTES * placed.page_count / placed.n + _SLOT_BYTES
            count = round(share * placed.page_count * _PAGE_BYTES / record_bytes)
            # Records that were no answer rank by their links.
            own = heat + (links / (links.max() + 1) if name == "answers" else 0)
            row[f"records by {name}"] = _reads(placed, wanted, _hottest(own, count))
        rows.append(row)
    return {"rows": rows, "taught": len(answers)}


def _answers(context: Context, placed: Placed) -> Numbers:
    """The vertices that rows of the set, taken as queries, have as their neighbors."""
    dataset = context.dataset(warm_up=0)
    chosen = np.random.default_rng(_SEED).choice(placed.n, min(_TAUGHT, placed.n), replace=False)
    vertex_of = np.empty(placed.n, dtype=np.int64)
    vertex_of[placed.rows] = np.arange(placed.n)
    with velo.open(plans.index_path(context, dataset), threads=context.threads) as index:
        rows = np.sort(chosen)
        found = index.search(np.ascontiguousarray(dataset.base[rows]), _K + 1, list_size=_LIST_SIZE)
    kept = [ids[ids != own][:_K] for ids, own in zip(found.ids, rows, strict=True)]
    answers: Numbers = vertex_of[np.stack(kept)]
    return answers


def _hottest(heat: Any, count: int) -> Any:
    held = np.zeros(len(heat), dtype=bool)
    held[np.argsort(-heat, kind="stable")[:count]] = True
    return held


def _reads(placed: Placed, wanted: Numbers, held: Any) -> float:
    """Pages that a query reads, in the mean: those with a neighbor that is not held."""
    return float(np.mean([len(np.unique(placed.page_of[row[~held[row]]])) for row in wanted]))
