"""``velo demo``: build and search an index over sample data."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console

from velo.building.build import build_shard
from velo.cli.arguments import AsJson, Threads
from velo.cli.output import console, device_text, emit_json, memory_table, table, watching
from velo.cli.search import query_filters
from velo.formats import open_vectors, read_truth
from velo.formats.files import as_source
from velo.index import Index, open_index
from velo.options import BuildOptions, SearchTuning
from velo.results import size_text
from velo.testing import brute_force, recall_at_k, synthetic_metadata, synthetic_vectors
from velo.types import AnyArray, Int64Array

K = 10
#: The list of the demo; the sample is harder than its size suggests.
LIST_SIZE = 64
#: Repeats of the query set when speed is measured: the set is small.
REPEATS = 10


@dataclass(frozen=True)
class Sample:
    """Vectors, queries, labels and exact neighbors."""

    name: str
    base: AnyArray
    queries: AnyArray
    labels: pa.Table
    label: str
    asked: pa.Table
    truth: Int64Array
    truth_filtered: Int64Array


def _sample() -> Sample:
    folder = Path(__file__).resolve().parent.parent.parent / "examples" / "data"
    if (folder / "sample.u8bin").is_file():
        return Sample(
            name="20,000 real SIFT descriptors (examples/data)",
            base=open_vectors(folder / "sample.u8bin").read(),
            queries=open_vectors(folder / "sample_queries.u8bin").read(),
            labels=pq.read_table(folder / "sample_labels.parquet"),
            label="uniform10",
            asked=pq.read_table(folder / "sample_query_filters.parquet"),
            truth=read_truth(folder / "sample_truth.bin").ids[:, :K],
            truth_filtered=read_truth(folder / "sample_truth_uniform10.bin").ids[:, :K],
        )
    rows, queries_count, dim = 20_000, 200, 128
    made = synthetic_vectors(rows + queries_count, dim, seed=1)
    scaled = np.clip(made * 24 + 64, 0, 255).astype(np.uint8)
    base, queries = scaled[:rows], scaled[rows:]
    labels = synthetic_metadata(rows, seed=1)
    wanted = np.random.default_rng(1).integers(10, size=queries_count).astype(np.uint8)
    mask = np.asarray(labels.column("label"))[None, :] == wanted[:, None]
    return Sample(
        name="20,000 made-up vectors (a checkout has a sample of real ones in examples/data)",
        base=base,
        queries=queries,
        labels=labels,
        label="label",
        asked=pa.table({"label": pa.array(wanted)}),
        truth=brute_force(base, queries, K).ids,
        truth_filtered=brute_force(base, queries, K, mask=mask).ids,
    )


def demo(
    memory: Annotated[str, typer.Option(help="Budget of the open index.", metavar="BUDGET")] = "20%",
    keep: Annotated[
        Path | None, typer.Option(help="Keep the index in this folder instead of a temporary one.")
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Build an index over sample data, search it with and without a filter, and show what it took."""
    sample = _sample()
    out = console()
    with ExitStack() as stack:
        folder = keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="velo-demo-"))) / "demo.velo"
        if not as_json:
            out.print(
                f"Building over {sample.name}: {sample.base.shape[0]:,} x {sample.base.shape[1]}, uint8, L2"
            )
        started = time.perf_counter()
        with watching("") as watch:
            build_shard(
                folder,
                as_source(sample.base),
                BuildOptions(threads=threads, search_memory=memory, store_vectors=True),
                metadata=sample.labels,
                overwrite=keep is not None,
                watch=watch,
            )
        build_seconds = time.perf_counter() - started
        index = stack.enter_context(open_index(folder, memory=memory, threads=threads))
        filters = query_filters({sample.label: f"@{sample.label}"}, sample.asked, len(sample.queries))
        late = SearchTuning(filter_plan="late")
        rows = [
            _measure(index, sample, "no filter", sample.truth, None, None),
            _measure(index, sample, "filter, 10 % pass", sample.truth_filtered, filters, None),
            _measure(index, sample, "the same, filtered late", sample.truth_filtered, filters, late),
        ]
        info = index.info()
        document = {
            "sample": sample.name,
            "build_seconds": build_seconds,
            "searches": rows,
            "memory_bytes": info["memory_bytes"],
            "memory_budget_bytes": info["memory_budget_bytes"],
            "memory_share_of_float32": info["memory_bytes_total"] / (4 * info["n"] * info["dim"]),
            "device": info["device"],
            "plan": info["plan"],
        }
        if as_json:
            emit_json(document)
            return
        out.print(f"Built in {build_seconds:.1f} s, {size_text(sum(info['disk_bytes'].values()))} on disk.\n")
        _tables(out, rows, info)


def _measure(
    index: Index, sample: Sample, name: str, truth: Int64Array, filters: Any, tuning: SearchTuning | None
) -> dict[str, Any]:
    asked = {"filter": filters, "list_size": LIST_SIZE, "tuning": tuning}
    result = index.search(sample.queries, K, **asked)
    started = time.perf_counter()
    for _ in range(REPEATS):
        index.search(sample.queries, K, **asked)
    seconds = (time.perf_counter() - started) / REPEATS
    alone = [
        index.search(query, K, **{**asked, "filter": filters and filters[number]})
        for number, query in enumerate(sample.queries[:50])
    ]
    stats = {counter: float(np.mean(values)) for counter, values in result.stats.items()}
    return {
        "name": name,
        "recall": recall_at_k(result.ids, truth),
        "qps": len(sample.queries) / seconds,
        "latency_alone_us": float(np.mean([one.stats["latency_us"][0] for one in alone])),
        **stats,
    }


def _tables(out: Console, rows: list[dict[str, Any]], info: dict[str, Any]) -> None:
    searches = table("search:", f"recall@{K}", "QPS", "ms alone", "reads", "rounds", "KiB read", "hops")
    for row in rows:
        searches.add_row(
            row["name"],
            f"{row['recall']:.3f}",
            f"{row['qps']:,.0f}",
            f"{row['latency_alone_us'] / 1000:.2f}",
            f"{row['reads']:.1f}",
            f"{row['rounds']:.2f}",
            f"{row['bytes_read'] / 1024:.0f}",
            f"{row['expanded']:.0f}",
        )
    out.print(searches)
    out.print("reads, rounds, KiB and hops are means a query\n", style="dim")
    out.print(memory_table(info))
    out.print("the workers' part is the same however many vectors there are", style="dim")
    out.print(f"plan {info['plan']}; device {device_text(info['device'])}", style="dim")
