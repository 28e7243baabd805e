"""High dimensions: links beside records or apart from them, measured with velo over a made set of 1,536."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.harness import datasets, tables
from bench.harness.datasets import K, unit
from bench.harness.sections import Context, Results
from bench.rungs.placed import Floats, targets

#: Views of a text side by side: its embedding, and fixed maps of it that bend.
VIEWS = 4
MEMORY = "5%"
PLANS = ("links_on_disk", "links_in_memory")
_LISTS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 400)
_AT = 0.97


def made(context: Context) -> Path:
    """The set of views, synthetic but for the first: in a folder of its own."""
    folder = context.folder / "rungs" / "wide" / f"views-{VIEWS}"
    if (folder / "set.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    dataset = context.dataset(warm_up=0)
    base, queries = (side_by_side(targets(x, dataset.metric)) for x in (dataset.base, dataset.queries))
    np.save(folder / "base.npy", base)
    np.save(folder / "query.npy", queries)
    np.savez(folder / "truth.npz", ids=datasets.nearest(base, queries, K, "cosine"))
    (folder / "set.json").write_text(json.dumps({"metric": "cosine"}))
    return folder


def side_by_side(vectors: Floats) -> Floats:
    """Views of each vector, each of length 1."""
    dim = vectors.shape[1]
    views = [vectors]
    for seed in range(1, VIEWS):
        map_of = np.random.default_rng(seed).standard_normal((dim, dim)).astype(np.float32)
        views.append(unit(np.maximum(vectors @ map_of, 0)))
    joined: Floats = np.concatenate(views, axis=1)
    return joined


def measure(plan: str, context: Context) -> Results:
    """Reads over recall of one plan within ``MEMORY``; both search one index."""
    folder = made(context)
    dataset = datasets.load(folder)
    path = folder / "1+6.velo"
    if not (path / "manifest.json").exists():
        options: Any = {"memory_bits": 1, "record_bits": 6, "page_links": True, "calibrate": False}
        velo.build(path, dataset.base, metric="cosine", threads=context.threads, **options).close()
    rows = []
    with velo.open(path, memory=MEMORY, plan=plan, threads=context.threads) as index:  # type: ignore[arg-type]
        info = index.info()
        for size in _LISTS:
            result = index.search(dataset.queries, K, list_size=size)
            found = datasets.recall(dataset, np.asarray(result.ids))
            counts = {name: float(result.stats[name].mean()) for name in ("reads", "rounds", "bytes_read")}
            rows.append({"list_size": size, "recall": float(found.mean()), **counts})
    return {
        "rows": rows,
        "n": dataset.n,
        "dim": dataset.dim,
        "memory_bytes": info["memory_bytes"],
        "links_kept": info["links_kept"],
        "pages_bytes": (path / "pages.bin").stat().st_size,
    }


def lines_of(results: Mapping[str, Results]) -> list[str]:
    """The page's part on this."""
    told = {plan: results.get(f"wide:{plan}", {}).get("result") for plan in PLANS}
    known = {plan: result for plan, result in told.items() if result}
    if not known:
        return []
    one = next(iter(known.values()))
    text = [
        "",
        f"## {one['dim']:,} dimensions, measured",
        "",
        f"{one['n']:,} × {one['dim']:,}, **synthetic** but for its first quarter: {VIEWS} views of each "
        f"text side by side, its embedding and {VIEWS - 1} fixed maps of it that bend (random directions, "
        f"negative parts cut off). One index of velo, codes of 1 bit in memory and 6 in pages, {MEMORY} of "
        "float32. *links_on_disk* is the coupled layout: a record and its links share a page, and who "
        "follows a vertex reads it; what codes leave of memory caches records. *links_in_memory* has links "
        "apart.",
        "",
        f"At recall@10 {_AT:g}, between measured lists:",
        "",
    ]
    cells = []
    for plan, result in known.items():
        rows = sorted(result["rows"], key=lambda row: row["recall"])
        recalls = [row["recall"] for row in rows]
        values = [
            float(np.interp(_AT, recalls, [row[name] for row in rows]))
            for name in ("reads", "rounds", "bytes_read")
        ]
        reached = recalls[-1] >= _AT
        cells.append(
            [
                plan,
                *(
                    [f"{values[0]:.1f}", f"{values[1]:.1f}", f"{values[2] / 1024:,.0f}"]
                    if reached
                    else [f"recall ends at {recalls[-1]:.3f}", "–", "–"]
                ),
            ]
        )
    return text + tables.table(["plan", "reads", "rounds", "KiB read"], cells)
