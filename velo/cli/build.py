"""``velo build``."""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from velo.building.build import Watch, build_shard
from velo.building.collection import build_shards
from velo.building.tables import parts_of, query_sample
from velo.cli.arguments import AsJson, KeepColumns, NewColumn, NewMetadata
from velo.cli.output import console, emit_json, facts, watching
from velo.errors import InvalidArgumentError, LeftOutWarning
from velo.folder.manifest import COLLECTION_FILE, read_manifest
from velo.formats import Source
from velo.options import BuildOptions
from velo.results import size_text


def build(
    vectors: Annotated[
        Path,
        typer.Argument(
            help="File of vectors (fbin, fvecs, npy, HDF5, Parquet, Arrow, …), or folder of Parquet files."
        ),
    ],
    output: Annotated[Path, typer.Argument(help="Folder to make.", metavar="INDEX")],
    metadata: NewMetadata = None,
    column: NewColumn = None,
    ids_column: Annotated[
        str | None,
        typer.Option(
            help="Column that holds the ids, in the file of the vectors or in the metadata. "
            "Without it ids are row numbers."
        ),
    ] = None,
    keep_columns: KeepColumns = False,
    text: Annotated[
        str | None, typer.Option(help="Column of the metadata whose words searches find, too.")
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="File of queries like those of your users. The build calibrates with them instead of rows."
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Make a collection of this many shards instead of one index.")
    ] = None,
    build_memory: Annotated[
        str | None,
        typer.Option(
            help="Budget of the build: a share of the float32 vectors, or bytes. A graph that does not "
            "fit is built in partitions.",
            metavar="BUDGET",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an index once the new one is complete.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Go on where a killed build of the same input stopped.")
    ] = True,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Build an index, or a collection of shards, from a file of vectors."""
    chosen = BuildOptions(**options)
    source, ids, table = read_parts(vectors, column, ids_column, metadata, keep_columns)
    started = time.perf_counter()
    if shards is None:
        with watching("") as watch:
            build_shard(
                output,
                source,
                chosen,
                ids=ids,
                metadata=table,
                text=text,
                queries=query_sample(queries, source.shape[1], chosen),
                build_memory=build_memory,
                overwrite=overwrite,
                resume=resume,
                watch=watch,
                resumed=_tell_resumed,
            )
        summary = _summary(output)
    else:
        with ExitStack() as bars:

            def watch_of(number: int, _start: int, _stop: int) -> Watch | None:
                bars.pop_all().close()
                return bars.enter_context(watching(f"{number + 1}/{shards}"))

            build_shards(
                output,
                source,
                chosen,
                shards=shards,
                ids=ids,
                metadata=table,
                text=text,
                queries=queries,
                build_memory=build_memory,
                overwrite=overwrite,
                watch_of=watch_of,
            )
        collection = json.loads((output / COLLECTION_FILE).read_bytes())
        parts = [_summary(output / shard["path"]) for shard in collection["shards"]]
        summary = {name: collection[name] for name in ("n", "dim", "metric")}
        summary |= {"shards": len(parts), "disk_bytes": sum(part["disk_bytes"] for part in parts)}
    seconds = time.perf_counter() - started
    summary = {"path": str(output), **summary, "seconds": round(seconds, 3)}
    if as_json:
        emit_json(summary)
        return
    lines = dict(summary)
    lines["disk_bytes"] = (
        f"{size_text(summary['disk_bytes'])} ({summary['disk_bytes'] / summary['n']:.0f} B a vector)"
    )
    lines["n"] = f"{summary['n']:,}"
    lines["seconds"] = f"{seconds:,.1f} ({summary['n'] / seconds:,.0f} rows/s)"
    console().print(facts(lines))


def read_parts(
    vectors: Path, column: str | None, ids_column: str | None, metadata: Any, keep_columns: bool
) -> tuple[Source, Any, Any]:
    """Vectors, ids and metadata of a command; warnings go to stderr in the words of its options."""
    if keep_columns and metadata is not None:
        raise InvalidArgumentError("--keep-columns and --metadata do not go together", argument="metadata")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", LeftOutWarning)
        given = True if keep_columns else metadata
        parts = parts_of(vectors, column=column, ids_column=ids_column, metadata=given)
    for one in heard:
        text = str(one.message).replace("ids_column=", "--ids-column")
        sys.stderr.write(f"velo: {text.replace('metadata=True keeps', '--keep-columns keeps')}\n")
    return parts


def _tell_resumed(stage: str, done: int, total: int) -> None:
    far = f", {done / total:.0%} done" if done else ""
    console(stderr=True).print(f"resuming an unfinished build of the same vectors: stage {stage}{far}")


def _summary(folder: Path) -> dict[str, Any]:
    manifest = read_manifest(folder)
    return {
        "n": manifest.row_count,
        "dim": manifest.dim,
        "metric": manifest.metric,
        "bits": f"{manifest.memory_bits} + {manifest.record_bits}",
        "page_count": manifest.page_count,
        "disk_bytes": sum(entry.stat().st_size for entry in folder.iterdir() if entry.is_file()),
    }
