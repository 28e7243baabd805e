"""``bench hard``: sets that differ from SIFT and from sentence embeddings where it hurts.

A set is a folder with base.npy, query.npy, truth.npz and set.json. velo is built for 20 % and asked for
recalls, then for lists; peers stand beside it. Rows are kept by set and system, so a part can be measured
again.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import velo
from bench.commands import hard_rows
from bench.harness import datasets, machine, pages, runs
from bench.harness.datasets import DataError, Dataset
from bench.peers import install

Row = dict[str, Any]

BUDGET = "20%"
ASKED = (0.8, 0.9, 0.95, 0.98, 0.99)
PEERS = ("hnswlib", "numpy")
#: Queries that are asked one at a time: enough to see that they are answered.
SINGLE = 10
#: Sets whose queries come from elsewhere than their rows: users and items, patches of other pictures.
#: There an index is also built with half of the queries, and asked the other half.
OTHER_QUERIES = ("items", "patches")
#: Queries asked before the clock starts. There is no cache to fill, so they are repeats.
WARM_UP = 50


@dataclass(frozen=True)
class Run:
    """Where things lie, and what is measured."""

    data: Path
    work: Path
    out: Path
    name: str
    threads: int
    peers: Sequence[str]
    velo: bool = True


def set_names(data: Path) -> list[str]:
    """Sets in ``data``, large ones last: the first rows of a table come soon."""
    found = {}
    for file in data.glob("*/set.json"):
        info = json.loads(file.read_text())
        found[file.parent.name] = (info["n"] * info["dim"] > 4_000_000, file.parent.name)
    if not found:
        raise DataError(f"{data} holds no folder with a set.json")
    return sorted(found, key=found.__getitem__)


def chosen_names(data: Path, wanted: Sequence[str] | None) -> list[str]:
    """All sets, or those named."""
    known = set_names(data)
    for name in wanted or ():
        if name not in known:
            raise DataError(f"{data} holds no set {name!r}; there are {', '.join(known)}")
    return list(wanted or known)


def can_be_exact() -> bool:
    """Whether this velo scores from stored vectors when it is told to."""
    return "exact" in inspect.signature(velo.Index.search).parameters


def build_options(dataset: Dataset) -> dict[str, Any]:
    """What a user would say: the memory that searches will have, and the metric."""
    metric = {} if dataset.metric == "l2" else {"metric": dataset.metric}
    return {"search_memory": BUDGET, **metric}


def velo_jobs(dataset: Dataset) -> list[runs.Job]:
    """velo by recall and by list; with stored vectors as well, where searches can use them."""
    build = build_options(dataset)
    # A cache would meet the same queries twice.
    fixed = {"memory": BUDGET, "io": "auto", "plan": "auto", "open_tuning": {"cache_share": 0.0}}
    asked: list[dict[str, Any]] = [{"recall": recall} for recall in ASKED]
    lists: list[dict[str, Any]] = [{"list_size": size} for size in hard_rows.LISTS]
    close: list[dict[str, Any]] = [{"list_size": size} for size in hard_rows.CLOSE_LISTS]
    compared = close if dataset.name in hard_rows.COMPARED else []
    jobs = [runs.Job("velo", "velo", build, [point | fixed for point in asked + lists + compared])]
    if can_be_exact():
        high: list[dict[str, Any]] = [{"recall": recall} for recall in (0.95, *hard_rows.HIGH)]
        points = [point | fixed | {"exact": True} for point in high + lists]
        jobs.append(runs.Job("velo", "velo exact", build | {"store_vectors": True}, points))
    if dataset.name in OTHER_QUERIES:
        jobs.append(
            runs.Job("velo", hard_rows.QUERIES_KNOWN, build, [point | fixed for point in asked + compared])
        )
    return jobs


def peer_jobs(dataset: Dataset, peers: Sequence[str]) -> list[runs.Job]:
    jobs = []
    lists = hard_rows.CLOSE_PEER_LISTS if dataset.name in hard_rows.COMPARED else hard_rows.PEER_LISTS
    for name in peers:
        job = runs.peer_job(name, dataset, lists, 0.2)
        if name == "numpy":  # float32 is not exact on these sets: it finds nothing on `shifted`
            job = replace(job, label="numpy, float64", build={"dtype": "float64"})
        if dataset.metric == "ip":
            job.build["metric"] = "ip"
        jobs.append(job)
    return jobs


def measured(run: Run, dataset: Dataset, job: runs.Job) -> list[Row]:
    """Scored rows of one job; one row that says why, where it failed."""
    folder = run.work / "runs" / f"hard-{dataset.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if job.label == hard_rows.QUERIES_KNOWN:
        job, dataset = with_known_queries(job, dataset, run.work)
    count = len(dataset.queries)
    repeats = dataset.queries[-WARM_UP:] if count >= 4 * WARM_UP else dataset.queries[:0]
    asked = replace(dataset, queries=np.concatenate([dataset.queries, repeats]))
    points = [point | {"warm_up_count": WARM_UP} for point in job.points]
    also = {"metric": dataset.metric, "dtype": str(dataset.base.dtype), "library": pages.library()}
    try:
        runs.run_job(
            replace(job, points=points),
            asked,
            run.work,
            folder / "00",
            threads=run.threads,
            single_count=SINGLE,
        )
        rows = runs.score_run(dataset, folder)
    except install.PeerMissing as missing:
        return [failure(dataset, job, str(missing))]
    except (RuntimeError, subprocess.TimeoutExpired) as failed:
        print(f"hard: {failed}", file=sys.stderr, flush=True)
        return [failure(dataset, job, str(failed).splitlines()[-1])]
    return [asked_of(row) | also for row in rows]


def with_known_queries(job: runs.Job, dataset: Dataset, work: Path) -> tuple[runs.Job, Dataset]:
    """The build is told half of the queries; what is left to ask is the other half."""
    half = len(dataset.queries) // 2
    file = work / "queries" / f"{dataset.name}-first-{half}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, dataset.queries[:half])
    asked = replace(dataset, queries=dataset.queries[half:], truth_ids=dataset.truth_ids[half:])
    return replace(job, build=job.build | {"queries": str(file)}), asked


def asked_of(row: Row) -> Row:
    """``row`` with what was asked apart from what it led to: ``asked``, and the list in ``list_size``.

    Of the index's facts only what was expected is kept: no table asks for more.
    """
    asked = {name: row[name] for name in ("recall", "list_size") if row.get(name)}
    used = (row["facts"].get("expected") or {}).get("list_size", 0)
    left = {
        name: value for name, value in row.items() if name not in ("recall", "open_tuning", "warm_up_count")
    }
    facts = {name: value for name, value in row["facts"].items() if name == "expected"}
    return left | {"asked": asked, "list_size": row.get("list_size", used), "facts": facts}


def failure(dataset: Dataset, job: runs.Job, why: str) -> Row:
    return {"dataset": dataset.name, "system": job.system, "label": job.label, "error": why}


def run_sets(run: Run, names: Sequence[str]) -> list[Row]:
    """Measure the sets and keep their rows beside those of the others; peers' in a file of their own."""
    head = {"machine": machine.describe(run.work), "version": velo.__version__, "budget": BUDGET}
    kept: list[Row] = []
    for name in names:
        dataset = datasets.load(run.data / name)
        mine = velo_jobs(dataset) if run.velo else []
        for job in [*mine, *peer_jobs(dataset, run.peers)]:
            print(f"hard: {name}: {job.label}", file=sys.stderr, flush=True)
            fresh = measured(run, dataset, job)
            own = run.name if job.system == "velo" else hard_rows.peers_name(run.name)
            file = run.out / f"{own}.jsonl"
            hard_rows.keep_rows(file, head, hard_rows.replaced(hard_rows.load_rows(file), fresh))
            kept += fresh
            for line in hard_rows.brief(fresh):
                print(line, flush=True)
    return kept
