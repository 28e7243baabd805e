"""The filters of ``bench hard``: recall at ``recall=0.95`` under filters, on every set.

Shares of 50 to 0.1 % pass: by chance, by a label that follows the vectors and is near the query, and by one
that is far from it. One set is made here: points in a thousand blobs with 2,000 Zipf tags.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench.commands import hard_labels
from bench.commands.hard_labels import SHARES, Rows
from bench.harness import datasets, runs
from bench.harness.datasets import EXACT_SLACK, Dataset, K
from bench.harness.sections import Context, Results

BUDGET = "20%"
QUERIES = 200
ASKED = 0.95
KINDS = ("random", "cluster", "far")
SEED = 14
#: Queries whose filter plan is looked up.
PLANS_SEEN = 10

#: The set that is made here.
ZIPF = "zipf-tags"
TAGS, TAGS_A_ROW = 2000, 8
#: Rows that pass, at which queries of tags are divided: filter plans change there.
TAG_BOUNDS = (100, 3000, 10_000)


@dataclass(frozen=True)
class Filtered:
    """One kind of filter over one set: an expression for each query or for all, and the rows that pass."""

    label: str
    filters: Any
    rows: list[Rows]
    asked: float = ASKED


def build_options(dataset: Dataset) -> dict[str, Any]:
    """The options that a user gives: the memory that searches will have, and the metric."""
    return {"search_memory": BUDGET, **({} if dataset.metric == "l2" else {"metric": dataset.metric})}


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


def zipf_tags() -> tuple[Dataset, pa.Table, list[Filtered]]:
    """100,000 points with eight draws of tags each; half of the queries ask for one tag, half for two."""
    random = np.random.default_rng(SEED)
    n, dim, centers, queries = 100_000, 50, 1000, 4 * QUERIES
    means = random.uniform(-10, 10, (centers, dim))
    points = means[random.integers(centers, size=n + queries)] + random.normal(size=(n + queries, dim))
    base, wanted = np.split(points.astype(np.float32), [n])
    none = np.empty((queries, K), np.int64)
    dataset = Dataset(ZIPF, Path(), "l2", base, wanted, none, slack=EXACT_SLACK)
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


# ---- measuring ----


def measure_set(name: str, context: Context) -> Results:
    """Rows of all filters over one set."""
    if name == ZIPF:
        dataset, columns, cases = zipf_tags()
    else:
        whole = datasets.load(Path(context.data) / name)
        dataset = replace(whole, queries=whole.queries[:QUERIES])
        columns = columns_of(dataset)
        cases = cases_of(dataset, columns)
    table = context.folder / "columns" / f"hard-{dataset.name}-{dataset.n}.parquet"
    table.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns, table)
    job = runs.Job("velo", "velo", build_options(dataset) | {"metadata": str(table)}, [])
    path = runs.built_index(context, dataset, job)
    truths = hard_labels.truths(dataset, dataset.queries, [case.rows for case in cases])
    rows: list[Results] = []
    tuning = velo.OpenTuning(cache_share=0.0)
    with velo.open(path, memory=BUDGET, threads=context.threads, tuning=tuning) as index:
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
    """The filter plans of the first few queries."""
    seen: Counter[str] = Counter()
    for number, query in enumerate(dataset.queries[:PLANS_SEEN]):
        own = case.filters[number] if isinstance(case.filters, list) else case.filters
        plan = index.explain(query, K, filter=own, recall=case.asked).filter_plan
        seen[plan.chosen if plan else "none"] += 1
    return dict(seen)
