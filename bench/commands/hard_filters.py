"""``bench hard --filters``: what is found at ``recall=0.95`` under filters, on every set.

Shares of 50 to 0.1 % pass: by chance, by a label that follows the vectors and is near the query, and by one
that is far from it. Two sets are made here: points in a thousand blobs with 2,000 Zipf tags, and 200 blobs of
which 1 % pass.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench.commands import hard, hard_labels, hard_rows
from bench.commands.hard_labels import SHARES, Rows
from bench.harness import datasets, machine, runs, sections
from bench.harness.datasets import EXACT_SLACK, Dataset, K
from bench.harness.sections import Context, Results, Section

QUERIES = 200
ASKED = 0.95
KINDS = ("random", "cluster", "far")
LIMIT_S = 1800.0
SEED = 14
#: Queries whose filter plan is looked up.
PLANS_SEEN = 10

ZIPF, BLOBS = "zipf-tags", "blobs-scan"
TAGS, TAGS_A_ROW = 2000, 8
#: Rows that pass, where the tags' queries are told apart: below and above which filter plans change.
TAG_BOUNDS = (100, 3000, 10_000)


@dataclass(frozen=True)
class Filtered:
    """One kind of filter over one set.

    Attributes
    ----------
    label : str
        ``random 1%``
    filters : list
        An expression a query, or one for all.
    rows : list of ndarray
        What passes, a query.
    asked : float
        Recall.
    """

    label: str
    filters: Any
    rows: list[Rows]
    asked: float = ASKED


def columns_of(dataset: Dataset) -> pa.Table:
    """A rank by chance, and a label that follows the vectors for each share."""
    columns: dict[str, Any] = {"rank": np.random.default_rng(SEED).permutation(dataset.n).astype(np.int32)}
    vectors = hard_labels.measured_as(dataset.base, dataset.metric)
    for share in SHARES:
        parts = hard_labels.parts_of(share)
        columns[f"leaf{parts}"] = hard_labels.leaf_labels(vectors, parts, SEED)
    return pa.table(columns)


def cases_of(dataset: Dataset, columns: pa.Table) -> list[Filtered]:
    """Every share by chance, near and far."""
    queries, found = dataset.queries, []
    rank = np.asarray(columns["rank"])
    for share in SHARES:
        bound = round(share * dataset.n)
        passing = np.flatnonzero(rank < bound)
        found.append(Filtered(f"random {share:g}", velo.col("rank") < bound, [passing] * len(queries)))
        name = f"leaf{hard_labels.parts_of(share)}"
        labels = np.asarray(columns[name])
        by_label = hard_labels.rows_by_label(labels)
        for kind, chosen in zip(
            KINDS[1:], hard_labels.near_and_far(dataset, queries, labels, SEED), strict=True
        ):
            filters = [velo.col(name) == int(label) for label in chosen]
            found.append(Filtered(f"{kind} {share:g}", filters, [by_label[label] for label in chosen]))
    return found


# ---- sets that are made here ----


def blobs(name: str, n: int, dim: int, centers: int, queries: int, random: np.random.Generator) -> Dataset:
    """Points of standard deviation 1 around centers between -10 and 10."""
    means = random.uniform(-10, 10, (centers, dim))
    points = means[random.integers(centers, size=n + queries)] + random.normal(size=(n + queries, dim))
    base, asked = np.split(points.astype(np.float32), [n])
    none = np.empty((queries, K), np.int64)
    return Dataset(name, Path(), "l2", base, asked, none, slack=EXACT_SLACK)


def zipf_tags() -> tuple[Dataset, pa.Table, list[Filtered]]:
    """100,000 points with eight draws of tags each; half of the queries ask for one tag, half for two."""
    random = np.random.default_rng(SEED)
    dataset = blobs(ZIPF, 100_000, 50, 1000, 4 * QUERIES, random)
    weights = 1 / np.arange(1, TAGS + 1)
    drawn = random.choice(TAGS, (dataset.n, TAGS_A_ROW), p=weights / weights.sum())
    tags = [np.unique(row) for row in drawn]
    sizes = np.array([len(row) for row in tags])
    flat = np.concatenate(tags)
    owner = np.repeat(np.arange(dataset.n), sizes)
    order = np.argsort(flat, kind="stable")
    with_tag = np.split(owner[order], np.searchsorted(flat[order], np.arange(1, TAGS)))
    asked = []
    for query, row in enumerate(random.integers(dataset.n, size=len(dataset.queries))):
        # Tags that some row has together, as in sets of tagged pictures
        asked.append(random.choice(tags[row], min(1 + query % 2, len(tags[row])), replace=False).tolist())
    passing = [
        with_tag[one[0]] if len(one) == 1 else np.intersect1d(with_tag[one[0]], with_tag[one[1]])
        for one in asked
    ]
    filters = [velo.col("tags").contains_all(one) for one in asked]
    column = pa.array(tags, pa.list_(pa.int32()))
    cases = [Filtered(f"tags, asked {recall:g}", filters, passing, recall) for recall in (0.9, ASKED)]
    return dataset, pa.table({"tags": column}), cases


def blobs_scan() -> tuple[Dataset, pa.Table, list[Filtered]]:
    """20,000 rows of 48 dimensions in 200 blobs; 1 % pass."""
    random = np.random.default_rng(SEED)
    dataset = blobs(BLOBS, 20_000, 48, 200, QUERIES, random)
    columns = columns_of(dataset)
    return dataset, columns, [one for one in cases_of(dataset, columns) if one.label.endswith(" 0.01")]


MADE: dict[str, Callable[[], tuple[Dataset, pa.Table, list[Filtered]]]] = {
    ZIPF: zipf_tags,
    BLOBS: blobs_scan,
}


# ---- measuring ----


def measure_set(name: str, context: Context) -> Results:
    """Rows of all filters over one set."""
    if name in MADE:
        dataset, columns, cases = MADE[name]()
    else:
        whole = datasets.load(Path(context.data) / name)
        dataset = replace(whole, queries=whole.queries[: context.query_count])
        columns = columns_of(dataset)
        cases = cases_of(dataset, columns)
    table = context.folder / "columns" / f"hard-{dataset.name}-{dataset.n}.parquet"
    table.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns, table)
    job = runs.Job("velo", "velo", hard.build_options(dataset) | {"metadata": str(table)}, [])
    log = context.folder / "runs" / f"hard-filters-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = runs.built_index(job, dataset, context.folder, log, threads=context.threads)
    truths = hard_labels.truths(dataset, dataset.queries, [case.rows for case in cases])
    rows: list[Results] = []
    tuning = velo.OpenTuning(cache_share=0.0)
    with velo.open(path, memory=hard.BUDGET, threads=context.threads, tuning=tuning) as index:
        for case, truth in zip(cases, truths, strict=True):
            rows += rows_of(index, dataset, case, truth)
    return {"rows": rows}


def rows_of(index: velo.Index, dataset: Dataset, case: Filtered, truth: NDArray[np.int64]) -> list[Results]:
    """The row of a filter; of tags also a row for each range of matches."""
    start = time.perf_counter()
    answer = index.search(dataset.queries, K, filter=case.filters, recall=case.asked)
    taken = time.perf_counter() - start
    ids = np.asarray(answer.ids, np.int64)
    matches = np.array([len(rows) for rows in case.rows])
    recalls = hard_labels.recalls(dataset, dataset.queries, truth, ids)
    filter_plans = filter_plans_of(index, dataset, case)
    expected = answer.expected

    def row(label: str, chosen: NDArray[np.int64]) -> Results:
        stats = {name: float(answer.stats[name][chosen].mean()) for name in ("reads", "rounds", "estimates")}
        return {
            "dataset": dataset.name,
            "metric": dataset.metric,
            "label": label,
            "asked": case.asked,
            "query_count": len(chosen),
            "matches": float(matches[chosen].mean()),
            "recall": float(recalls[chosen].mean()),
            "queries_below_half": float((recalls[chosen] < 0.5).mean()),
            "expected": None if expected is None else expected.recall,
            "list_size": None if expected is None else expected.list_size,
            "plans": filter_plans,
            "qps": len(dataset.queries) / taken,
            **stats,
        }

    found = [row(case.label, np.flatnonzero(matches > 0))]
    if dataset.name == ZIPF:
        edges = [0, *TAG_BOUNDS, dataset.n]
        for low, high in itertools.pairwise(edges):
            some = np.flatnonzero((matches > low) & (matches <= high))
            if len(some):
                found.append(row(f"{case.label}: {low:,} to {high:,} rows pass", some))
    return found


def filter_plans_of(index: velo.Index, dataset: Dataset, case: Filtered) -> dict[str, int]:
    """How the first few queries go about their filters."""
    seen: Counter[str] = Counter()
    for number, query in enumerate(dataset.queries[:PLANS_SEEN]):
        own = case.filters[number] if isinstance(case.filters, list) else case.filters
        plan = index.explain(query, K, filter=own, recall=case.asked).filter_plan
        seen[plan.chosen if plan else "none"] += 1
    return dict(seen)


def sections_of(context: Context) -> dict[str, Section]:
    names = [*context.options["sets"], *MADE]
    return {name: Section(name, partial(measure_set, name), LIMIT_S) for name in names}


def run(asked: hard.Run, names: Sequence[str]) -> None:
    """Measure filters on the sets, each in a process of its own, and keep rows beside those of other sets."""
    file = asked.out / f"{hard_rows.filters_name(asked.name)}.jsonl"
    rows = hard_rows.load_rows(file)
    head = {"machine": machine.describe(asked.work), "version": velo.__version__, "budget": hard.BUDGET}
    context = Context(
        data=str(asked.data),
        work=str(asked.work),
        limit=None,
        query_count=QUERIES,
        single_count=0,
        threads=asked.threads,
        options={"sets": [name for name in names if name not in MADE]},
    )
    for name in names:
        print(f"hard: {name}: filters", file=sys.stderr, flush=True)
        log = asked.work / "runs" / "hard-filters" / f"{name}.log"
        found = sections.call("bench.commands.hard_filters", name, context, LIMIT_S, log)
        if "error" in found:
            print(f"  not measured: {found['error']}", file=sys.stderr, flush=True)
            fresh: list[Results] = [{"dataset": name, "label": "filters", "error": found["error"]}]
        else:
            fresh = [row | {"library": found["library"]} for row in found["result"]["rows"]]
        rows = [row for row in rows if row["dataset"] != name] + fresh
        hard_rows.keep_rows(file, head, rows)
        for line in hard_rows.brief_filters(fresh):
            print(line, flush=True)
