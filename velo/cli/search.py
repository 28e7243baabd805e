"""``velo search``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from velo.cli.arguments import (
    AsJson,
    Device,
    IndexPath,
    IoDevice,
    MemoryText,
    PlanChoice,
    Threads,
    filter_of,
)
from velo.cli.output import console, emit_json, table
from velo.errors import FilterError, InvalidArgumentError, UnknownColumnError
from velo.formats import open_vectors, read_truth
from velo.index import open_path
from velo.options import SearchTuning
from velo.results import GroupedResult, RangeResult, SearchResult
from velo.testing import recall_at_k

#: Hits of a query that are printed; a radius may have thousands of them.
_LINES_OF_A_QUERY = 20


def search(
    index_path: IndexPath,
    queries_path: Annotated[
        Path | None, typer.Argument(help="File of queries; not needed with --text.", metavar="queries")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Neighbors of each query.")] = 10,
    filter_json: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help='Filter as SQL ("year >= 2020") or JSON (\'{"year": {"$gte": 2020}}\'). In JSON a value '
            '"@name" stands for that column of --query-table in the query\'s row.',
        ),
    ] = None,
    query_table: Annotated[
        Path | None, typer.Option(help="Parquet file, one row a query, that the filter may refer to.")
    ] = None,
    filter_plan: Annotated[
        str, typer.Option(help="How a search applies its filter: auto; for comparison late, gate or scan.")
    ] = "auto",
    group_by: Annotated[
        str | None, typer.Option(help="Find the nearest k groups of rows with equal values in this column.")
    ] = None,
    group_size: Annotated[int, typer.Option(help="Rows of a group.")] = 1,
    radius: Annotated[
        float | None, typer.Option(help="Find all rows within this distance instead of the nearest k.")
    ] = None,
    limit: Annotated[int, typer.Option(help="The most hits of a query within the radius.")] = 10_000,
    text: Annotated[
        str | None,
        typer.Option(help="Words that rows are found by, too; without queries words alone are asked."),
    ] = None,
    fusion: Annotated[
        str | None,
        typer.Option(help="How words and vectors become one list: rrf, by ranks, or weighted, by scores."),
    ] = None,
    truth: Annotated[Path | None, typer.Option(help="Exact neighbors, to measure recall.")] = None,
    recall: Annotated[float | None, typer.Option(help="Recall to aim for, between 0 and 1.")] = None,
    list_size: Annotated[int | None, typer.Option(help="Candidates kept while searching.")] = None,
    exact: Annotated[
        bool | None,
        typer.Option("--exact/--estimated", help="Distances from stored vectors, or from codes alone."),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, help="Search only this number of queries, from the first on.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column or data set of the queries.")] = None,
    memory: MemoryText = None,
    threads: Threads = None,
    io: IoDevice = "auto",
    plan: PlanChoice = "auto",
    device: Device = "cpu",
    output: Annotated[
        Path | None, typer.Option(help="Write ids and distances there: .npz, .parquet or .arrow.")
    ] = None,
    show: Annotated[
        int, typer.Option(min=0, help="Queries to print the nearest 20 of; 0 with --json leaves ids out.")
    ] = 3,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain how the first query was answered.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Search an index. Print recall, speed and reads."""
    if radius is not None and group_by is not None:
        raise InvalidArgumentError("--radius and --group-by do not go together", argument="group_by")
    if (truth is not None or explain) and (radius is not None or group_by is not None or text is not None):
        raise InvalidArgumentError("--truth and --explain are for plain searches", argument="truth")
    if text is not None and radius is not None:
        raise InvalidArgumentError("--radius and --text do not go together", argument="text")
    if queries_path is None and text is None:
        raise typer.BadParameter("give a file of queries, --text, or both", param_hint="queries")
    queries = None if queries_path is None else open_vectors(queries_path, column=column).read()[:first]
    count = 1 if queries is None else len(queries)
    filters = _filters(filter_json, query_table, count)
    tuning = SearchTuning(filter_plan=filter_plan)
    options_of_search: dict[str, Any] = {
        "recall": recall,
        "list_size": list_size,
        "exact": exact,
        "tuning": tuning,
    }
    options_of_open: dict[str, Any] = {
        "memory": memory,
        "threads": threads,
        "io": io,
        "plan": plan,
        "device": device,
    }
    with open_path(index_path, **options_of_open) as index:
        started = time.perf_counter()
        result: SearchResult | RangeResult
        if radius is not None:
            result = index.range_search(queries, radius, filter=filters, limit=limit, **options_of_search)
        else:
            options = {"group_by": group_by, "group_size": group_size, **options_of_search}
            if text is not None or fusion is not None:
                options |= {"text": [text] if queries is None else text, "fusion": fusion}
            result = index.search(queries, k, filter=filters, **options)
        seconds = time.perf_counter() - started
        summary = _summary(index, result, seconds, limit if radius is not None else k)
        if truth is not None and isinstance(result, SearchResult):
            summary["recall"] = _recall(result, truth, k, index.info()["ids"])
        if output is not None:
            _write(output, result)
            summary["output"] = str(output)
        explanation = None
        if explain and queries is not None and len(queries):
            one = filters[0] if isinstance(filters, list) else filters
            explanation = index.explain(queries[0], k, filter=one, **options_of_search)
    if as_json:
        if explanation is not None:
            summary["explain"] = explanation.to_dict()
        if output is None and show:
            summary.update(_hits(result))
        emit_json(summary)
        return
    _print(summary, result, show)
    if explanation is not None:
        console().print(f"\n{explanation}", markup=False)


def _hits(result: SearchResult | RangeResult) -> dict[str, Any]:
    """Ids and distances as JSON has them: null for infinity."""
    finite: Any = result.distances.astype(object)
    finite[~np.isfinite(result.distances)] = None
    found: dict[str, Any] = {"ids": result.ids.tolist(), "distances": finite.tolist()}
    if isinstance(result, RangeResult):
        found |= {"lims": result.lims.tolist(), "limited": result.limited.tolist()}
    elif result.scores is not None:
        found["scores"] = result.scores.tolist()
    elif isinstance(result, GroupedResult):
        found |= {"groups": result.groups, "group_sizes": result.group_sizes.tolist()}
    return found


def _filters(filter_json: str | None, query_table: Path | None, count: int) -> Any:
    if filter_json is None:
        return None
    condition = filter_of(filter_json)
    if query_table is None:
        return condition
    if not isinstance(condition, dict):
        raise FilterError("with --query-table --filter is JSON, not SQL", argument="filter")
    try:
        rows = pq.read_table(query_table).slice(0, count)
    except (OSError, pa.ArrowException) as error:
        raise InvalidArgumentError(
            f"{query_table} cannot be read: {error}", argument="query_table"
        ) from error
    return query_filters(condition, rows, count)


def query_filters(condition: Any, rows: pa.Table, count: int) -> list[Any]:
    """A filter for each query: values ``"@name"`` are taken from the query's row of a table."""
    if rows.num_rows < count:
        raise InvalidArgumentError(
            f"the query table has {rows.num_rows} rows for {count} queries", argument="query_table"
        )

    def filled(part: Any, row: dict[str, Any]) -> Any:
        if isinstance(part, dict):
            return {name: filled(value, row) for name, value in part.items()}
        if isinstance(part, list):
            return [filled(value, row) for value in part]
        if isinstance(part, str) and part.startswith("@"):
            if part[1:] not in row:
                raise UnknownColumnError(f"the query table has no column {part[1:]!r}", argument="filter")
            return row[part[1:]]
        return part

    return [filled(condition, row) for row in rows.slice(0, count).to_pylist()]


def _summary(index: Any, result: SearchResult | RangeResult, seconds: float, k: int) -> dict[str, Any]:
    info = index.info()
    count = len(result.counts)
    summary: dict[str, Any] = {
        "queries": count,
        "k": k,
        "seconds": seconds,
        "qps": count / seconds if count else 0.0,
        "device": info["device"]["name"],
        "direct": info["device"]["direct"],
        "plan": info["plan"],
        "memory_bytes": info["memory_bytes_total"],
        "found": float(np.mean(result.counts)) if count else 0.0,
    }
    for name, values in result.stats.items():
        summary[name] = float(np.mean(values)) if count else 0.0
    if count:
        for percent in (50, 99):
            summary[f"latency_us_p{percent}"] = float(np.percentile(result.stats["latency_us"], percent))
    return summary


def _recall(result: SearchResult, path: Path, k: int, kind: str) -> float:
    if kind == "string":
        raise InvalidArgumentError("a truth file holds numbers, this index has string ids", argument="truth")
    truth = read_truth(path)
    wide = truth.ids[: len(result.ids)]
    return recall_at_k(result.ids[: len(wide)], wide, k=min(k, wide.shape[1]))


def _write(path: Path, result: SearchResult | RangeResult) -> None:
    if path.suffix == ".npz":
        arrays: dict[str, Any] = {"ids": result.ids, "distances": result.distances, "counts": result.counts}
        if isinstance(result, RangeResult):
            arrays["lims"] = result.lims
        elif result.scores is not None:
            arrays["scores"] = result.scores
        elif isinstance(result, GroupedResult):
            arrays["group_sizes"] = result.group_sizes
        np.savez(path, **arrays)
    elif path.suffix == ".parquet":
        pq.write_table(result.to_arrow(), path)
    elif path.suffix in (".arrow", ".feather"):
        hits = result.to_arrow()
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, hits.schema) as writer:
            writer.write_table(hits)
    else:
        raise InvalidArgumentError(f"{path}: --output takes .npz, .parquet or .arrow", argument="output")


def _print(summary: dict[str, Any], result: SearchResult | RangeResult, show: int) -> None:
    out = console()
    if show and len(result.counts):
        grouped = isinstance(result, GroupedResult)
        ranked = isinstance(result, SearchResult) and result.scores is not None
        names = ["query", *["group:"] * grouped, "id", "distance", *["score"] * ranked]
        shown = table(*names)
        before, lines = None, 0
        for hit in result.to_arrow().to_pylist():
            if hit["query"] >= show:
                break
            lines = lines + 1 if hit["query"] == before else 1
            if lines > _LINES_OF_A_QUERY:
                if lines == _LINES_OF_A_QUERY + 1:
                    shown.add_row(*["…" if name == "id" else "" for name in names])
                continue
            named = [str(hit["value"]) if hit["rank"] == 0 else ""] if grouped else []
            first = str(hit["query"]) if hit["query"] != before else ""
            # Full-text hits have no distance.
            numbers = [f"{hit['distance']:,.4g}" if np.isfinite(hit["distance"]) else ""]
            numbers += [f"{hit['score']:,.4g}"] if ranked else []
            shown.add_row(first, *named, str(hit["id"]), *numbers)
            before = hit["query"]
        out.print(shown)
        out.print()
    columns = [
        "queries",
        "QPS",
        "mean ms",
        "p99 ms",
        "reads",
        "rounds",
        "KiB read",
        "hops",
        "estimates",
        "found",
    ]
    cells = [
        f"{summary['queries']:,}",
        f"{summary['qps']:,.0f}",
        f"{summary['latency_us'] / 1000:.2f}",
        f"{summary.get('latency_us_p99', 0.0) / 1000:.2f}",
        f"{summary['reads']:.1f}",
        f"{summary['rounds']:.2f}",
        f"{summary['bytes_read'] / 1024:.0f}",
        f"{summary['expanded']:.0f}",
        f"{summary['estimates']:.0f}",
        f"{summary['found']:.1f}",
    ]
    if "recall" in summary:
        columns.insert(0, f"recall@{summary['k']}")
        cells.insert(0, f"{summary['recall']:.4f}")
    means = table(*columns)
    means.add_row(*cells)
    out.print(means)
    direct = "O_DIRECT" if summary["direct"] else "buffered"
    out.print(f"plan {summary['plan']}, device {summary['device']} ({direct})", style="dim")
