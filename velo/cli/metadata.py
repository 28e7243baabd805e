"""``velo metadata set`` and ``velo metadata show``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from velo.cli.output import console, emit_json, table
from velo.errors import InvalidArgumentError
from velo.folder.exchange import change_metadata, find_index
from velo.folder.live import data_folder
from velo.folder.manifest import COLLECTION_FILE
from velo.folder.metadata import MetadataStore, file_names, given_metadata, open_metadata, read_table
from velo.results import size_text

__all__ = ["set_table", "show"]


def _folders(path: Path) -> list[Path]:
    """The index itself, or the shards of a collection."""
    if (path / COLLECTION_FILE).is_file():
        return sorted(entry for entry in path.iterdir() if entry.name.startswith("shard-"))
    return [path]


def set_table(
    path: Path, source: Path, *, ids_column: str | None, add: bool, overwrite: bool, as_json: bool
) -> None:
    """Put a file's columns in the place of the metadata, or add them to it."""
    if overwrite and not add:
        raise InvalidArgumentError("--overwrite goes with --add", argument="overwrite")
    started = time.perf_counter()
    indexes = [(folder, *find_index(folder)) for folder in _folders(path)]
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
    stores = [(folder, open_metadata(folder, rows)) for folder, rows, _ in indexes]
    names = [] if stores[0][1] is None else stores[0][1].column_names
    size = sum(_size(folder, store) for folder, store in stores if store is not None)
    if as_json:
        emit_json(
            {"path": str(path), "rows": first, "columns": names, "bytes": size, "seconds": round(seconds, 3)}
        )
        return
    console().print(
        f"{path}: {len(names)} columns of {first:,} rows, {size_text(size)}, set in {seconds:.1f} s"
    )


def _size(folder: Path, store: MetadataStore) -> int:
    return sum((folder / name).stat().st_size for name in file_names(store.generation))


def show(path: Path, *, as_json: bool) -> None:
    """Print the statistics of every column."""
    indexes: list[dict[str, Any]] = []
    for folder in _folders(path):
        rows, _ = find_index(folder)
        store = open_metadata(data_folder(folder), rows)
        columns = [] if store is None else list(store.statistics.values())
        indexes.append(
            {
                "path": str(folder),
                "rows": rows,
                "generation": 0 if store is None else store.generation,
                "columns": columns,
            }
        )
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
