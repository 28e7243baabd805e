"""Filtered search against filtering afterwards: recall, reads and throughput at equal recall."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench import datasets, machine, report, sweep
from bench.datasets import Dataset, K
from velo.formats import read_truth

#: How many candidates "filtered afterwards" asks for, as multiples of k / selectivity.
LATE_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0)
LATE_CANDIDATES_MAX = 2000


@dataclass(frozen=True)
class Case:
    """A filter of the set: one predicate a query, exact truth for the first queries."""

    name: str
    column: str
    truth_ids: NDArray[np.int64]
    #: predicate of each query: equal ones are searched in one batch
    values: list[Any]

    def groups(self) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        keys = [repr(value) for value in self.values]
        for key in dict.fromkeys(keys):
            yield self.values[keys.index(key)], np.array([i for i, k in enumerate(keys) if k == key])


def predicate(case: Case, value: Any) -> Any:
    column = velo.col(case.column)
    if case.name.startswith("range_"):
        return column < value
    if case.name == "tags2":
        return column.contains_all(list(value))
    return column == value


def load_cases(dataset: Dataset, names: Sequence[str]) -> list[Case]:
    folder = dataset.folder
    sample = (folder / "sample.u8bin").exists()
    asked = pq.read_table(folder / ("sample_query_filters.parquet" if sample else "query_filters.parquet"))
    columns = {"far": "far10", "norm": "norm_decile", "tags2": "tags"}
    cases = []
    values: list[Any]
    for name in names:
        truth = read_truth(folder / f"{'sample_' if sample else ''}truth_{name}.bin").ids
        count = min(len(truth), len(dataset.queries))
        if name.startswith("range_"):
            column, values = "price", [float(name.removeprefix("range_"))] * count
        elif name == "tags2":
            column = "tags"
            values = list(
                zip(asked["tag_a"].to_pylist()[:count], asked["tag_b"].to_pylist()[:count], strict=True)
            )
        else:
            column = columns.get(name, name)
            values = asked[column].to_pylist()[:count]
        cases.append(Case(name, column, truth[:count], values))
    return cases


def known_cases(folder: Path) -> list[str]:
    names = [path.stem.split("truth_", 1)[1] for path in folder.glob("*truth_*.bin")]
    names += [
        path.name.split("truth_", 1)[1].removesuffix(".bin") for path in folder.glob("truth_range_*.bin")
    ]
    return sorted(
        {
            name
            for name in names
            if (folder / f"truth_{name}.bin").exists() or (folder / f"sample_truth_{name}.bin").exists()
        }
    )


def build(dataset: Dataset, job: sweep.Job, work: Path, threads: int) -> Path:
    """The index that a sweep with the same options makes; made here if it is not there yet."""
    path = sweep.index_folder(job, dataset, work) / "index.velo"
    if not path.exists():
        out = work / "runs" / f"build-{path.parent.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        sweep.run_job(sweep.Job(job.system, job.label, job.build, []), dataset, work, out, threads=threads)
    return path


def filtered_bound(dataset: Dataset, case: Case) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Distance of each query's farthest true match, and how many matches there are (fewer than k for rare
    filters).
    """
    counts = (case.truth_ids >= 0).sum(axis=1)
    queries = dataset.queries[: len(case.truth_ids)]
    exact = datasets.exact_distances(dataset.base, queries, case.truth_ids, dataset.metric)
    return np.where(np.isinf(exact), -1, exact).max(axis=1), counts


def measure(dataset: Dataset, index: velo.Index, case: Case, setting: str) -> dict[str, Any]:
    """One batch with a filter for each query."""
    count = len(case.values)
    point = sweep.velo_point(setting)
    tuning = velo.SearchTuning(sigma=point.get("sigma"))
    asked = [predicate(case, value) for value in case.values]
    start = time.perf_counter()
    result = index.search(
        dataset.queries[:count], K, filter=asked, list_size=point["list_size"], tuning=tuning
    )
    seconds = time.perf_counter() - start
    return score(dataset, case, np.asarray(result.ids)) | {
        "how": "filtered",
        "setting": f"list {setting}",
        "qps": count / seconds,
        "reads": float(np.mean(result.stats["reads"])),
        "rounds": float(np.mean(result.stats["rounds"])),
    }


def measure_late(
    dataset: Dataset,
    index: velo.Index,
    case: Case,
    passes: list[NDArray[np.bool_]],
    candidates: int,
    list_size: int,
) -> dict[str, Any]:
    """The same index searched without a filter for ``candidates``, the filter applied to the answer."""
    count = len(case.truth_ids)
    start = time.perf_counter()
    result = index.search(dataset.queries[:count], candidates, list_size=max(list_size, candidates))
    seconds = time.perf_counter() - start
    found = np.asarray(result.ids)
    ids = np.full((count, K), -1, dtype=np.int64)
    for (_, members), mask in zip(case.groups(), passes, strict=True):
        for query in members:
            kept = [vertex for vertex in found[query] if vertex >= 0 and mask[vertex]][:K]
            ids[query, : len(kept)] = kept
    return score(dataset, case, ids) | {
        "how": "filtered afterwards",
        "setting": f"{candidates} candidates",
        "qps": count / seconds,
        "reads": float(np.mean(result.stats["reads"])),
        "rounds": float(np.mean(result.stats["rounds"])),
    }


def score(dataset: Dataset, case: Case, ids: NDArray[np.int64]) -> dict[str, Any]:
    bound, counts = filtered_bound(dataset, case)
    some = counts > 0
    queries = dataset.queries[: len(ids)]
    shares = datasets.recall_within(dataset, queries[some], ids[some], bound[some], counts[some])
    return {"filter": case.name, "query_count": int(some.sum()), f"recall_at_{K}": float(shares.mean())}


def matching_rows(dataset: Dataset, case: Case) -> list[NDArray[np.bool_]]:
    """For each group of the case, which rows pass; by pyarrow, not by the engine under test."""
    assert dataset.labels is not None
    table = pq.read_table(dataset.labels, columns=[case.column])
    column: Any = table.column(0).slice(0, dataset.n).combine_chunks()
    masks = []
    mask: Any
    rows_of: dict[str, NDArray[np.int64]] = {}
    if case.name == "tags2":
        parents = np.asarray(pc.list_parent_indices(column))
        words = pc.list_flatten(column).dictionary_encode()
        codes = np.asarray(words.indices)
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(words.dictionary) + 1))
        for code, word in enumerate(words.dictionary.to_pylist()):
            rows_of[word] = np.unique(parents[order[bounds[code] : bounds[code + 1]]])
    for value, _ in case.groups():
        if case.name.startswith("range_"):
            mask = pc.less(column, pa.scalar(value, column.type))
        elif case.name == "tags2":
            rows = np.intersect1d(rows_of[value[0]], rows_of[value[1]])
            mask = np.zeros(dataset.n, dtype=bool)
            mask[rows] = True
            masks.append(mask)
            continue
        else:
            mask = pc.equal(column, pa.scalar(value, column.type))
        masks.append(np.asarray(pc.fill_null(mask, False)))
    return masks


def run(
    dataset: Dataset,
    names: Sequence[str],
    *,
    memory: str,
    lists: Sequence[str],
    work: Path,
    out: Path,
    name: str,
    threads: int,
) -> list[dict[str, Any]]:
    """Measure every case filtered and filtered afterwards; write ``out/name.jsonl`` and ``out/name.md``."""
    cases = load_cases(dataset, names)
    job = sweep.velo_job(dataset, memory, lists)
    path = build(dataset, job, work, threads)
    rows: list[dict[str, Any]] = []
    with velo.open(path, memory=memory.partition(":")[0], threads=threads) as index:
        for case in cases:
            print(f"filters: {case.name}", file=sys.stderr, flush=True)
            masks = matching_rows(dataset, case)
            sizes = [len(members) for _, members in case.groups()]
            share = float(np.average([mask.mean() for mask in masks], weights=sizes))
            widest = max(sweep.velo_point(text)["list_size"] for text in lists)
            early = [measure(dataset, index, case, size) | {"selectivity": share} for size in lists]
            rows += early
            wanted = max(row[f"recall_at_{K}"] for row in early)
            for factor in LATE_FACTORS:
                candidates = int(np.ceil(K / share * factor))
                if candidates > LATE_CANDIDATES_MAX:
                    break
                late = measure_late(dataset, index, case, masks, candidates, widest) | {"selectivity": share}
                rows.append(late)
                if late[f"recall_at_{K}"] >= wanted:
                    break
    host = machine.describe(work)
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{name}.jsonl").open("w") as file:
        for line in (
            {"head": {"machine": host, "dataset": dataset.name, "n": dataset.n, "memory": memory}},
            *rows,
        ):
            file.write(json.dumps(line) + "\n")
    (out / f"{name}.md").write_text(markdown(dataset, host, memory, rows, name))
    return rows


def markdown(
    dataset: Dataset, host: dict[str, Any], memory: str, rows: list[dict[str, Any]], name: str
) -> str:
    text = [
        f"# {name}",
        "",
        f"{dataset.name}: {dataset.n:,} × {dataset.dim}, budget {memory}. {report.machine_line(host)}",
        "",
        "Recall is against exact truth among the rows that pass. *Filtered afterwards* asks the same "
        "index without the filter for k / selectivity candidates and more, and drops what does not "
        "pass; where its rows end below the recall above them, it would have needed more than "
        f"{LATE_CANDIDATES_MAX} candidates.",
        "",
    ]
    text += report.table(
        ["filter", "passes", "how", "setting", f"recall@{K}", "reads", "rounds", "QPS"],
        [
            [
                row["filter"],
                f"{row['selectivity']:.3%}",
                row["how"],
                row["setting"],
                f"{row[f'recall_at_{K}']:.4f}",
                f"{row['reads']:.1f}",
                f"{row['rounds']:.2f}",
                f"{row['qps']:,.0f}",
            ]
            for row in rows
        ],
    )
    return "\n".join(text) + "\n"
