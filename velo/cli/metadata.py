"""``velo metadata set`` and ``velo metadata show``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from velo.cli.arguments import AsJson, IndexPath, folders_of
from velo.cli.output import answer, console, emit_json, table
from velo.errors import InvalidArgumentError
from velo.folder.exchange import change_metadata, find_index
from velo.folder.manifest import data_folder, read_manifest
from velo.folder.metadata import file_names, given_metadata, open_metadata, read_table
from velo.folder.replace import read_consistently
from velo.results import size_text


def metadata_set(
    path: IndexPath,
    source: Annotated[Path, typer.Argument(help="Parquet or Arrow file, one row a vector.", metavar="table")],
    ids_column: Annotated[
        str | None,
        typer.Option(help="Column of the table that holds ids. Without it rows are in their order."),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Keep the columns that are there.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --add: replace columns of the same name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replace the metadata of an index, or of all shards of a collection. The graph stays as it is."""
    if overwrite and not add:
        raise InvalidArgumentError("--overwrite goes with --add", argument="overwrite")
    started = time.perf_counter()
    indexes = [(folder, *find_index(folder)) for folder in folders_of(path)]
    source_table: Any = source
    if len(indexes) > 1:
        source_table = read_table(source)
        given_metadata(source_table, sum(rows for _, rows, _ in indexes))
        if ids_column is not None:
            raise InvalidArgumentError(
                "rows of a collection are matched in their order; with ids, set the metadata of each shard",
                argument="ids_column",
            )
    first = 0
    for folder, rows, ids in indexes:
        part = source_table.slice(first, rows) if len(indexes) > 1 else source_table
        change_metadata(folder, part, rows, ids, ids_column=ids_column, keep=add, overwrite=overwrite)
        first += rows
    seconds = time.perf_counter() - started
    found = [read_consistently(folder, partial(_names_and_size, folder, rows)) for folder, rows, _ in indexes]
    names = found[0][0]
    size = sum(size for _, size in found)
    document = {"path": str(path), "rows": first, "columns": names, "bytes": size}
    text = f"{path}: {len(names)} columns of {first:,} rows, {size_text(size)}, set in {seconds:.1f} s"
    answer(as_json, {**document, "seconds": round(seconds, 3)}, text)


def _names_and_size(folder: Path, rows: int) -> tuple[list[str], int]:
    """The names of the columns, and the bytes of their files."""
    store = open_metadata(folder, rows)
    if store is None:
        return [], 0
    sizes = ((folder / name).stat().st_size for name in file_names(store.generation))
    return store.column_names, sum(sizes)


def _shown(folder: Path) -> dict[str, Any]:
    data = data_folder(folder)
    rows = read_manifest(data).row_count
    store = open_metadata(data, rows)
    return {
        "path": str(folder),
        "rows": rows,
        "generation": 0 if store is None else store.generation,
        "columns": [] if store is None else list(store.statistics.values()),
    }


def metadata_show(path: IndexPath, as_json: AsJson = False) -> None:
    """Print each column's type, nulls, distinct and frequent values, and extremes."""
    indexes = [read_consistently(folder, partial(_shown, folder)) for folder in folders_of(path)]
    if as_json:
        emit_json(indexes[0] if len(indexes) == 1 else {"shards": indexes})
        return
    out = console()
    for one in indexes:
        out.print(f"{one['path']}: {one['rows']:,} rows, generation {one['generation']}")
        listed = table("column:", "type:", "nulls", "distinct", "least:", "greatest:", "most frequent:")
        for column in one["columns"]:
            top = ", ".join(f"{_short(value)} ({count:,})" for value, count in column.get("top", [])[:3])
            listed.add_row(
                column["name"],
                column["type"],
                f"{column['nulls']:,}",
                f"{column['distinct']:,}" if "distinct" in column else "not filtered on",
                _short(column.get("min", "")),
                _short(column.get("max", "")),
                top,
            )
        out.print(listed)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:23] + "…"
