"""``velo insert``, ``upsert``, ``update``, ``snapshot``, ``flush`` and ``optimize``."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from velo.building.tables import parts_of
from velo.cli.arguments import (
    AsJson,
    IndexPath,
    KeepColumns,
    NewColumn,
    NewIds,
    NewIdsColumn,
    NewMetadata,
    NewVectors,
)
from velo.cli.build import in_options
from velo.cli.delete import ids_of
from velo.cli.output import console, emit_json
from velo.errors import InvalidArgumentError, LeftOutWarning, UnknownColumnError
from velo.folder.metadata import read_table
from velo.formats import Source, open_vectors
from velo.index import Index, open_path

__all__ = ["flush", "insert", "optimize", "snapshot", "update", "upsert"]

#: Rows of one call at most: a call is held in memory.
_CALL_BYTES: Final = 4 << 20


def insert(
    path: IndexPath,
    vectors: NewVectors,
    ids: NewIds = None,
    metadata: NewMetadata = None,
    column: NewColumn = None,
    ids_column: NewIdsColumn = None,
    keep_columns: KeepColumns = False,
    as_json: AsJson = False,
) -> None:
    """Add rows to an index. Others may search it meanwhile. Rows that were added before a failure stay."""
    given = _Given(vectors, ids, metadata, column, ids_column, keep_columns)
    _add(path, given, as_json, upsert=False)


def upsert(
    path: IndexPath,
    vectors: NewVectors,
    ids: NewIds = None,
    metadata: NewMetadata = None,
    column: NewColumn = None,
    ids_column: NewIdsColumn = None,
    keep_columns: KeepColumns = False,
    as_json: AsJson = False,
) -> None:
    """Add rows, or replace those that have their ids. After a failure the command can be repeated."""
    given = _Given(vectors, ids, metadata, column, ids_column, keep_columns)
    _add(path, given, as_json, upsert=True)


class _Given(NamedTuple):
    """Where new rows come from."""

    vectors: Path
    ids: str | None
    metadata: Path | None
    column: str | None
    ids_column: str | None
    keep_columns: bool

    def read(self) -> tuple[Source, Any, Any]:
        """Vectors, ids of a column, and metadata."""
        if self.keep_columns and self.metadata is not None:
            raise InvalidArgumentError(
                "--keep-columns and --metadata do not go together", argument="metadata"
            )
        if self.ids is not None and self.ids_column is not None:
            raise InvalidArgumentError("--ids and --ids-column do not go together", argument="ids_column")
        table = None if self.metadata is None else read_table(self.metadata)
        if self.ids_column is None and not self.keep_columns:
            source = open_vectors(self.vectors, column=self.column)
            if table is not None and table.num_rows != source.shape[0]:
                raise InvalidArgumentError(
                    f"metadata has {table.num_rows} rows, {source.shape[0]} are needed", argument="metadata"
                )
            return source, None, table
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", LeftOutWarning)
            parts = parts_of(
                self.vectors,
                column=self.column,
                ids_column=self.ids_column,
                metadata=True if self.keep_columns else table,
            )
        for one in heard:
            sys.stderr.write(f"velo: {in_options(str(one.message))}\n")
        return parts


def _add(path: Path, given: _Given, as_json: bool, *, upsert: bool) -> None:
    """Add the vectors of a file, call by call, and say how many."""
    source, held, table = given.read()
    count = source.shape[0]
    replaced = 0
    with open_path(path, writable=True, durability="process", threads=1) as index:
        names = held if given.ids is None else ids_of(given.ids, _id_kind(index))
        if names is not None and len(names) != count:
            raise InvalidArgumentError(f"{len(names)} ids were given for {count} vectors", argument="ids")
        start = 0
        for chunk in source.chunks(max(1, _CALL_BYTES // (4 * source.shape[1]))):
            stop = start + len(chunk)
            verb = index.upsert if upsert else index.insert
            done = verb(
                np.asarray(chunk),
                None if names is None else names[start:stop],
                None if table is None else table.slice(start, stop - start),
            )
            replaced += done.replaced
            start = stop
        left = len(index)
    if as_json:
        emit_json({"path": str(path), "written": count, "replaced": replaced, "rows": left})
        return
    others = f", {replaced:,} of them in the place of another" if replaced else ""
    console().print(f"{path}: {count:,} rows written{others}; there are {left:,}")


def update(
    path: IndexPath,
    metadata: Annotated[Path, typer.Argument(help="Parquet or Arrow file of the columns that change.")],
    ids: NewIds = None,
    ids_column: Annotated[str | None, typer.Option(help="Its column that holds the ids.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change columns of rows. Their vectors and other columns stay as they are."""
    if (ids is None) == (ids_column is None):
        raise InvalidArgumentError("update takes --ids or --ids-column, and one of them", argument="ids")
    table = read_table(metadata)
    if ids_column is not None and ids_column not in table.column_names:
        raise UnknownColumnError(f"{metadata} has no column {ids_column!r}", argument="ids_column")
    written = missing = 0
    with open_path(path, writable=True, durability="process", threads=1) as index:
        if ids_column is not None:
            names: Any = table.column(ids_column).combine_chunks()
            table = table.drop_columns([ids_column])
        else:
            names = ids_of(ids or "", _id_kind(index))
        if len(names) != table.num_rows:
            raise InvalidArgumentError(
                f"{len(names)} ids were given for {table.num_rows} rows", argument="ids"
            )
        step = max(1, _CALL_BYTES // (4 * index.dim))
        for start in range(0, table.num_rows, step):
            done = index.update(names[start : start + step], table.slice(start, step))
            written += done.rows
            missing += done.missing
    if as_json:
        emit_json({"path": str(path), "written": written, "missing": missing})
        return
    others = f", {missing:,} ids that no row has" if missing else ""
    console().print(f"{path}: {written:,} rows changed{others}")


def snapshot(
    path: IndexPath,
    target: Annotated[Path, typer.Argument(help="The folder to make.")],
    as_json: AsJson = False,
) -> None:
    """Copy an index, as it is now, into another folder. Others may write meanwhile."""
    with open_path(path, threads=1) as index:
        index.snapshot(target)
    with open_path(target, threads=1) as copy:
        rows = len(copy)
    if as_json:
        emit_json({"path": str(path), "target": str(target), "rows": rows})
        return
    console().print(f"{target}: {rows:,} rows, as {path} has them")


def _id_kind(index: Index) -> str:
    """What ids on a command line are; of an index without rows they decide it, and are strings."""
    info = index.info()
    return str(info["ids"]) if info["n"] else "string"


def flush(path: IndexPath, as_json: AsJson = False) -> None:
    """Make a part of new rows, which is an index of the ordinary format."""
    _keep_up(path, everything=False, as_json=as_json)


def optimize(path: IndexPath, as_json: AsJson = False) -> None:
    """Make one part of all live rows. Searches are fastest then, and dead rows take no room."""
    _keep_up(path, everything=True, as_json=as_json)


def _keep_up(path: Path, *, everything: bool, as_json: bool) -> None:
    with open_path(path, writable=True) as index:
        if everything:
            index.optimize()
        else:
            index.flush()
        told: dict[str, Any] = index.info()
        each = [one["live"] for one in told.get("shards", [told])]
        parts = [part for live in each if live for part in live["parts"]]
        left = len(index)
    if as_json:
        emit_json({"path": str(path), "rows": left, "parts": parts})
        return
    console().print(f"{path}: {left:,} rows in {len(parts)} part{'' if len(parts) == 1 else 's'}")
