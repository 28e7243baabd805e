"""``bench filters``: filtered search measured by selectivity and by what labels follow, beside its peers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import velo
from bench.commands import filters_cases, report_sections
from bench.commands.filters_cases import LABELS, MIXES, SHARES, Case
from bench.commands.store import check_ns
from bench.harness import curves, datasets, runs
from bench.harness.curves import RECALL
from bench.harness.datasets import Dataset, K
from bench.harness.sections import Context, Results, Section

LISTS = [10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512]
#: List sizes of searches that filter late, as multiples of k / selectivity.
LATE_FACTORS = (0.25, 0.5, 0.8, 1.2, 2.0, 3.0, 5.0)
LIST_MAX = 8192
PEER_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0)
PEER_CANDIDATES_MAX = 2000
PEER_QUERIES = 500
#: Late filtering below this share asks for more candidates than a list holds.
LATE_SHARE_MIN = 0.01
#: The steps of ``--ladder``.
FILTER_PLANS = ("late", "gate", "auto")
SETTING = 0.95


def index_of(context: Context, dataset: Dataset) -> tuple[Path, Path]:
    """The index with the set's columns and those of the mixes, built if needed, and their Parquet file."""
    columns = filters_cases.table_of(dataset, context.folder)
    job = report_sections.velo_job(dataset, context.options["budget"], [], build={"metadata": str(columns)})
    log = report_sections.run_folder(context, "build")
    return runs.built_index(job, dataset, context.folder, log, threads=context.threads), columns


def opened(context: Context, path: Path, **options: Any) -> velo.Index:
    memory = context.options["budget"].partition(":")[0]
    index: velo.Index = velo.open(path, **({"memory": memory, "threads": context.threads} | options))
    return index


def search(
    dataset: Dataset, index: velo.Index, case: Case, *, plan: str = "auto", **how: Any
) -> dict[str, Any]:
    """One batch, each query with its filter; filters are compiled before the clock starts."""
    tuning = velo.SearchTuning(filter_plan=plan)
    index.search(case.queries[:20], K, filter=case.filters[:20], tuning=tuning, **how)
    start = time.perf_counter()
    result = index.search(case.queries, K, filter=case.filters, tuning=tuning, **how)
    seconds = time.perf_counter() - start
    stats = {
        name: float(np.mean(result.stats[name])) for name in ("reads", "rounds", "estimates", "expanded")
    }
    return {
        "filter": case.name,
        "plan": plan,
        "system": "velo",
        "list_size": how.get("list_size") or 0,
        RECALL: filters_cases.score(dataset, case, np.asarray(result.ids)),
        "qps": len(case.queries) / seconds,
        "engine_latency_us": float(np.mean(result.stats["latency_us"])),
        "query_count": len(case.queries),
        **stats,
    }


def sweep_lists(
    dataset: Dataset, index: velo.Index, case: Case, plan: str, lists: Sequence[int]
) -> list[dict[str, Any]]:
    # Compiling is the filter's cost, not the search's: done before, for all predicates of the case.
    index.search(case.queries, K, filter=case.filters, list_size=K)
    return [search(dataset, index, case, plan=plan, list_size=size) for size in lists]


def late_lists(share: float) -> list[int]:
    sizes = [max(16, int(np.ceil(factor * K / share))) for factor in LATE_FACTORS]
    return sorted({size for size in sizes if size <= LIST_MAX})


def case_of(context: Context, dataset: Dataset, name: str, columns: Path) -> Case:
    """``share_0.1``, ``mix50``, or a filter that the set names."""
    count = context.query_count
    if name.startswith("share_"):
        return filters_cases.share_case(dataset, float(name.removeprefix("share_")), columns, count=count)
    if name.startswith("mix"):
        return filters_cases.mix_case(dataset, int(name.removeprefix("mix")), columns, count=count)
    return filters_cases.load(dataset, name, count=count)


def measure_case(name: str) -> Callable[[Context], Results]:
    """A filter by velo's own filter plan, by filtering late, and at the one setting ``recall=0.95``."""

    def measure(context: Context) -> Results:
        dataset = context.dataset(warm_up=0)
        path, columns = index_of(context, dataset)
        case = case_of(context, dataset, name, columns)
        share = filters_cases.share_of(case, filters_cases.masks_of(case, columns))
        lists = context.options.get("lists") or LISTS
        result: Results = {"filter": name, "share": share, "query_count": len(case.queries)}
        with opened(context, path) as index:
            result["rows"] = sweep_lists(dataset, index, case, "auto", lists)
            result["setting"] = search(dataset, index, case, recall=SETTING)
            if share >= LATE_SHARE_MIN * 0.9:
                result["late"] = sweep_lists(dataset, index, case, "late", late_lists(share))
        return result

    return measure


def edges(context: Context) -> Results:
    """The one setting where all rows pass, and where a single row does."""
    dataset = context.dataset(warm_up=0)
    path, columns = index_of(context, dataset)
    queries = dataset.queries[: context.query_count]
    column = "price" if "price" in pq.read_schema(columns).names else None
    if column is None:
        raise datasets.DataError("the set has no column price")
    values = np.asarray(pq.read_table(columns, columns=[column])[column])
    least = int(np.argmin(values))
    bound = float(np.nextafter(values[least], np.float32(2), dtype=np.float32))
    everything = Case("share_2", column, [2.0] * len(queries), queries, dataset.truth_ids[: len(queries)])
    one = np.full((len(queries), K), -1, np.int64)
    one[:, 0] = least
    single = Case("share_one", column, [bound] * len(queries), queries, one)
    with opened(context, path) as index:
        return {
            "all": search(dataset, index, everything, recall=SETTING),
            "one": search(dataset, index, single, recall=SETTING),
        }


def one_thread(context: Context) -> Results:
    """10 % pass, one thread, 20 % of memory, with the mean latency of single queries."""
    dataset = context.dataset(warm_up=0)
    path, columns = index_of(context, dataset)
    name = tenth(dataset)
    case = case_of(context, dataset, name, columns)
    with opened(context, path, memory="20%", threads=1) as index:
        rows = sweep_lists(dataset, index, case, "auto", context.options.get("lists") or LISTS)
        late = sweep_lists(dataset, index, case, "late", late_lists(0.1))
    return {"filter": name, "rows": rows, "late": late}


def over_fetched(peer: str, name: str) -> Callable[[Context], Results]:
    """A peer that knows no filter asked for k / selectivity candidates and more, of which those that pass are
    kept; what dropping the others takes is not counted.
    """

    def measure(context: Context) -> Results:
        dataset = context.dataset(warm_up=0)
        columns = filters_cases.table_of(dataset, context.folder)
        narrow = replace(context, query_count=min(context.query_count, PEER_QUERIES))
        case = case_of(narrow, dataset, name, columns)
        masks = filters_cases.masks_of(case, columns)
        share = filters_cases.share_of(case, masks)
        counts = [int(np.ceil(K / share * factor)) for factor in PEER_FACTORS]
        counts = [count for count in counts if count <= PEER_CANDIDATES_MAX]
        if not counts:
            raise datasets.DataError(f"{name}: more than {PEER_CANDIDATES_MAX} candidates would be needed")
        job = runs.peer_job(peer, dataset, counts, 0.2)
        points = [point | {"k": point["list_size"], "warm_up_count": 0} for point in job.points]
        queries_only = replace(dataset, queries=case.queries, truth_ids=np.maximum(case.truth_ids, 0))
        folder = report_sections.run_folder(context, peer)
        runs.run_job(
            replace(job, points=points),
            queries_only,
            context.folder,
            folder / "00",
            threads=context.threads,
            single_count=20,
        )
        rows = runs.score_run(queries_only, folder)
        for number, row in enumerate(rows):
            with np.load(folder / "00" / f"{number}.npz") as answer:
                passing_ids = passing(answer["ids"].astype(np.int64), case, masks)
            row[RECALL] = filters_cases.score(dataset, case, passing_ids)
        return {"filter": name, "share": share, "rows": rows}

    return measure


def passing(answers: NDArray[np.int64], case: Case, masks: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
    """The first k ids of each query that pass its filter, padded with -1."""
    ids = np.full((len(answers), K), -1, dtype=np.int64)
    for (_, members), mask in zip(case.groups(), masks, strict=True):
        for query in members:
            first = answers[query][(answers[query] >= 0) & mask[np.maximum(answers[query], 0)]][:K]
            ids[query, : len(first)] = first
    return ids


def plan_steps(name: str) -> Callable[[Context], Results]:
    """The steps of the ladder on one filter: late, gate, and the choice by cost."""

    def measure(context: Context) -> Results:
        dataset = context.dataset(warm_up=0)
        path, columns = index_of(context, dataset)
        case = case_of(context, dataset, name, columns)
        share = filters_cases.share_of(case, filters_cases.masks_of(case, columns))
        result: Results = {"filter": name, "share": share}
        with opened(context, path) as index:
            for plan in FILTER_PLANS:
                own = plan in ("gate", "auto")
                lists = (context.options.get("lists") or LISTS) if own else late_lists(share)
                result[plan] = sweep_lists(dataset, index, case, plan, lists)
        return result

    return measure


def links(context: Context) -> Results:
    """Bytes of the links in memory, 32 a vertex."""
    dataset = context.dataset(warm_up=0)
    path, _ = index_of(context, dataset)
    tuning = velo.OpenTuning(links_kept=32)
    with velo.open(path, threads=context.threads, tuning=tuning) as index:
        info = index.info()
    return {"bytes": info["memory_bytes"]["links"] / info["n"], "kept": info["links_kept"]}


def predicate_cost(context: Context) -> Results:
    """Nanoseconds that one check takes, of vertices in random order, before a filter's matches are found."""
    dataset = context.dataset(warm_up=0)
    path, columns = index_of(context, dataset)
    order = np.random.default_rng(9).permutation(dataset.n).astype(np.uint32)
    result: Results = {}
    there = filters_cases.names_of(dataset.folder)
    for kind, name in (
        ("equality", "uniform10" if "uniform10" in there else "section"),
        ("two tags", "tags2"),
    ):
        if name not in there:
            continue
        case = case_of(context, dataset, name, columns)
        taken = []
        for value, _ in list(case.groups())[:10]:
            with opened(context, path) as index:
                compiled = index._seen().filters.compile(filters_cases.predicate(case, value))
                taken.append(check_ns(compiled, order))
        result[kind] = float(np.median(taken))
    return result


def unfiltered(context: Context) -> Results:
    """The same batch without a filter, before any column was touched and after filters were used."""
    dataset = context.dataset(warm_up=0)
    path, columns = index_of(context, dataset)
    case = case_of(context, dataset, filters_cases.names_of(dataset.folder)[0], columns)
    queries = np.ascontiguousarray(dataset.queries[: context.query_count])
    before, after = [], []

    def rate(index: velo.Index) -> float:
        start = time.perf_counter()
        index.search(queries, K, list_size=100)
        return len(queries) / (time.perf_counter() - start)

    for _ in range(5):
        with opened(context, path) as index:
            index.search(queries[:200], K, list_size=100)
            before.append(rate(index))
            index.search(case.queries, K, filter=case.filters)
            after.append(rate(index))
    return {"before": float(np.median(before)), "after": float(np.median(after))}


def store(context: Context) -> Results:
    """A table of 8 columns, a row a vector, made into the filter store of a finished index."""
    dataset = context.dataset(warm_up=0)
    path, _ = index_of(context, dataset)
    table = store_table(dataset.n)
    copy = context.folder / f"store-{time.time_ns()}"
    try:
        shutil.copytree(path, copy)
        with velo.open(copy, threads=context.threads) as index:
            start = time.perf_counter()
            index.set_metadata(table)
            return {"seconds": time.perf_counter() - start, "rows": dataset.n}
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def store_table(n: int) -> pa.Table:
    """Eight columns of the kinds that people have: numbers, flags, times, words, lists of words."""
    random = np.random.default_rng(88)
    words = np.array([f"word{number}" for number in range(5000)])
    ends = np.concatenate([[0], np.cumsum(random.poisson(4, n))]).astype(np.int32)
    said = pa.array(words).take(pa.array(random.zipf(1.5, ends[-1]) % 5000))
    tags: Any = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), said)
    columns: dict[str, Any] = {
        "year": random.integers(1990, 2026, n, dtype=np.int16),
        "price": random.random(n).astype(np.float32),
        "views": random.zipf(1.3, n) % 10**9,
        "stocked": random.random(n) < 0.5,
        "seen": pa.array(random.integers(0, 10**12, n), pa.timestamp("ms")),
        "brand": pa.array(words[random.zipf(1.4, n) % 500]).dictionary_encode(),
        "title": pa.array(words[random.integers(0, 5000, n)], mask=random.random(n) < 0.03),
        "tags": tags,
    }
    return pa.table(columns)


def case_names(dataset: Dataset) -> list[str]:
    """Every filter measured over the set."""
    there = filters_cases.names_of(dataset.folder)
    names = [filters_cases.share_name(share) for share in SHARES if share * dataset.n >= 1]
    names += [label for label in dict.fromkeys((*LABELS, *filters_cases.TEXT_CASES)) if label in there]
    return names + [filters_cases.mix_name(mix) for mix in MIXES]


def tenth(dataset: Dataset) -> str:
    """The filter that a tenth of the rows passes and whose labels follow nothing."""
    return "uniform10" if "uniform10" in filters_cases.names_of(dataset.folder) else filters_cases.mix_name(0)


def sections_of(context: Context) -> dict[str, Section]:
    dataset = context.dataset(warm_up=0)
    large = dataset.n > 200_000
    limit_s = 3600.0 if large else 600.0
    texts = (dataset.folder / "truth.npz").exists()
    names = case_names(dataset)
    plain = tenth(dataset)
    own = [name for name in names if not name.startswith(("share_", "mix"))]
    if context.options.get("ladder"):
        kinds = [plain, *(own if texts else (name for name in ("zipf10", "far") if name in names))]
        steps = [Section(f"ladder-{name}", plan_steps(name), limit_s) for name in kinds]
        return {section.name: section for section in steps}
    steps = [Section(name, measure_case(name), limit_s) for name in names]
    steps.append(Section("one_thread", one_thread, limit_s))
    steps.append(Section("edges", edges, limit_s))
    for peer in context.options["peers"]:
        steps += [
            Section(f"{peer}-{name}", over_fetched(peer, name), limit_s)
            for name in [plain, "share_0.5", "share_0.2", "share_0.05", *(own if texts else ())]
            if name in names
        ]
    steps += [
        Section("links", links, limit_s),
        Section("predicate", predicate_cost, limit_s),
        Section("unfiltered", unfiltered, limit_s),
        Section("store", store, limit_s),
    ]
    return {section.name: section for section in steps}


def rows_of(results: dict[str, Results], section: str, key: str = "rows") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results.get(section, {}).get("result", {}).get(key, [])
    return rows


def value_at(rows: list[dict[str, Any]], key: str, recall: float) -> float | None:
    at = curves.at_recall(rows, key, recall)
    return None if at is None else at.value
