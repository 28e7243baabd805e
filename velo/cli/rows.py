"""Commands on rows and on an index that is written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import typer

from velo.cli.arguments import (
    AsJson,
    Columns,
    Condition,
    IndexPath,
    KeepColumns,
    NewColumn,
    NewIds,
    NewIdsColumn,
    NewMetadata,
    NewVectors,
    filter_of,
    ids_of,
)
from velo.cli.build import read_parts
from velo.cli.output import answer, console, emit_json, table
from velo.errors import (
    FormatError,
    IndexExistsError,
    InvalidArgumentError,
    UnknownColumnError,
    VeloError,
)
from velo.folder.metadata import read_table
from velo.formats import Source, open_vectors
from velo.index import Index, create_index, open_path
from velo.options.columns import column_type

#: Bytes of vectors in one call of insert, upsert or update: the index holds a call in memory.
_CALL_BYTES: Final = 4 << 20
#: Rows that an export reads and writes at once.
_PAGE: Final = 10_000


def create(
    path: IndexPath,
    dim: Annotated[int, typer.Option(help="Dimensions of a vector.")],
    metric: Annotated[str, typer.Option(help="l2, ip or cosine.")] = "l2",
    dtype: Annotated[str, typer.Option(help="float32, float16, uint8 or int8.")] = "float32",
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="A column, as year:int32 or tags:list<string>; once for each.", metavar="NAME:TYPE"
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column whose words searches find, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an index without rows; insert adds them. The first rows decide what ids are."""
    schema = pa.schema([_field(one) for one in column]) if column else None
    given: dict[str, Any] = {"metric": metric, "dtype": dtype, "text": text}
    with create_index(path, dim=dim, metadata=schema, **given) as index:
        told = {"path": str(path), "dim": index.dim, "metric": index.metric, "dtype": dtype}
    names = [] if schema is None else schema.names
    shown = f" and the columns {', '.join(names)}" if names else ""
    text = f"{path}: an index of {dim} dimensions ({metric}, {dtype}){shown}, without rows"
    answer(as_json, {**told, "columns": names}, text)


def _field(text: str) -> Any:
    name, colon, kind = text.rpartition(":")
    if not colon or not name:
        raise InvalidArgumentError(f"a column is NAME:TYPE, as year:int32, not {text!r}", argument="column")
    return pa.field(name, column_type(kind, name, "column"))


def _adding(name: str, doc: str) -> Callable[..., None]:
    """The command ``insert`` or ``upsert``."""

    def command(
        path: IndexPath,
        vectors: NewVectors,
        ids: NewIds = None,
        metadata: NewMetadata = None,
        column: NewColumn = None,
        ids_column: NewIdsColumn = None,
        keep_columns: KeepColumns = False,
        as_json: AsJson = False,
    ) -> None:
        given = _Given(vectors, ids, metadata, column, ids_column, keep_columns)
        _add(path, given, as_json, upsert=name == "upsert")

    command.__name__, command.__doc__ = name, doc
    return command


insert = _adding(
    "insert",
    "Add rows to an index. Others may search it meanwhile. Rows that were added before a failure stay.",
)
upsert = _adding(
    "upsert", "Add rows, or replace those that have their ids. After a failure the command can be repeated."
)


class _Given(NamedTuple):
    """The source of new rows."""

    vectors: Path
    ids: str | None
    metadata: Path | None
    column: str | None
    ids_column: str | None
    keep_columns: bool

    def read(self) -> tuple[Source, Any, Any]:
        """Vectors, ids of a column, and metadata."""
        if self.ids is not None and self.ids_column is not None:
            raise InvalidArgumentError("--ids and --ids-column do not go together", argument="ids_column")
        table = None if self.metadata is None else read_table(self.metadata)
        if self.ids_column is not None or self.keep_columns:
            return read_parts(self.vectors, self.column, self.ids_column, table, self.keep_columns)
        source = open_vectors(self.vectors, column=self.column)
        if table is not None and table.num_rows != source.shape[0]:
            raise InvalidArgumentError(
                f"metadata has {table.num_rows} rows, {source.shape[0]} are needed", argument="metadata"
            )
        return source, None, table


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
    others = f", {replaced:,} of them in the place of another" if replaced else ""
    document = {"path": str(path), "written": count, "replaced": replaced, "rows": left}
    answer(as_json, document, f"{path}: {count:,} rows written{others}; there are {left:,}")


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
    document = {"path": str(path), "written": written, "missing": missing}
    answer(as_json, document, f"{path}: {written:,} rows changed{_unknown_text(missing)}")


def delete(path: IndexPath, ids: NewIds = None, condition: Condition = None, as_json: AsJson = False) -> None:
    """Delete rows by id, or all that pass a filter. Others may search the index meanwhile."""
    if (ids is None) == (condition is None):
        raise InvalidArgumentError("delete takes --ids or --filter, and one of them", argument="ids")
    with open_path(path, writable=True, threads=1) as index:
        if ids is None:
            done = index.delete(filter=filter_of(condition))
        else:
            done = index.delete(ids_of(ids, index.info()["ids"]))
        left = len(index)
    document = {"path": str(path), "deleted": done.rows, "missing": done.missing, "rows": left}
    text = f"{path}: {done.rows:,} rows deleted{_unknown_text(done.missing)}; {left:,} are left"
    answer(as_json, {**document, "sequence": done.sequence}, text)


def _unknown_text(missing: int) -> str:
    return f", {missing:,} ids that no row has" if missing else ""


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
    document = {"path": str(path), "target": str(target), "rows": rows}
    answer(as_json, document, f"{target}: {rows:,} rows, as {path} has them")


def _id_kind(index: Index) -> str:
    """The kind of ids on a command line: those of an index without rows are strings."""
    info = index.info()
    return str(info["ids"]) if info["n"] else "string"


def flush(path: IndexPath, as_json: AsJson = False) -> None:
    """Write the rows in memory as a segment, an index of the ordinary format."""
    _keep_up(path, everything=False, as_json=as_json)


def optimize(path: IndexPath, as_json: AsJson = False) -> None:
    """Merge all live rows into one segment, for the fastest searches; deleted rows take no room then."""
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
    text = f"{path}: {left:,} rows in {len(parts)} part{'' if len(parts) == 1 else 's'}"
    answer(as_json, {"path": str(path), "rows": left, "parts": parts}, text)


def get(
    path: IndexPath,
    ids: Annotated[
        str, typer.Argument(help="Ids separated by commas, or @FILE with one a line.", metavar="IDS")
    ],
    columns: Columns = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Their vectors as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the rows of some ids. Ids that no row has are left out."""
    with open_path(path, threads=1) as index:
        found = index.get(ids_of(ids, index.info()["ids"]), columns=_names(columns), unknown="skip")
        if vectors and found.num_rows:
            stored = index.get_vectors(found.column("id"))
            found = found.append_column(_vector_name(found, "vector"), _lists(stored, index.dim))
    _show(path, found, as_json)


def rows(
    path: IndexPath,
    condition: Condition = None,
    limit: Annotated[int, typer.Option(help="Rows at most.")] = 20,
    after: Annotated[str | None, typer.Option(help="The last id of the page before.", metavar="ID")] = None,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """Print rows in the order of their ids, all or those that pass a filter."""
    with open_path(path, threads=1) as index:
        last = None if after is None else ids_of(after, index.info()["ids"])[0]
        found = index.rows(filter_of(condition), limit=limit, after=last, columns=_names(columns))
    _show(path, found, as_json)


def count(path: IndexPath, condition: Condition = None, as_json: AsJson = False) -> None:
    """Count the rows that live, or those that pass a filter."""
    with open_path(path, threads=1) as index:
        found = index.count(filter_of(condition))
    answer(as_json, {"path": str(path), "rows": found}, f"{found:,}")


def export(
    path: IndexPath,
    target: Annotated[Path, typer.Argument(help="The Parquet file to make.", metavar="FILE")],
    condition: Condition = None,
    columns: Columns = None,
    vectors: Annotated[bool, typer.Option("--vectors/--no-vectors", help="The vectors as well.")] = True,
    vector_column: Annotated[str, typer.Option(help="The name of their column.")] = "vector",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write ids, columns and vectors into a Parquet file, in the order of the ids.

    The index may be written to meanwhile: the file holds it as it was at the beginning. A build takes the
    file with --ids-column id --keep-columns.
    """
    import pyarrow.parquet as pq

    if target.exists() and not overwrite:
        raise IndexExistsError(f"{target} already exists; --overwrite replaces it", argument="target")
    begun = target.with_name(f"{target.name}.tmp")
    written = 0
    try:
        with open_path(path, threads=1) as index:
            info = index.info()
            schema = index.get([], columns=_names(columns)).schema
            if info["ids"] == "string":
                schema = schema.set(0, pa.field("id", pa.string()))
            if vectors:
                kind = pa.list_(pa.from_numpy_dtype(np.dtype(info["dtype"])), index.dim)
                schema = schema.append(pa.field(_vector_name(schema, vector_column), kind))
            after = None
            with pq.ParquetWriter(begun, schema) as writer:
                while True:
                    page = index.rows(filter_of(condition), limit=_PAGE, after=after, columns=_names(columns))
                    if page.num_rows:
                        after = page.column("id")[-1]
                        if vectors:
                            stored = index.get_vectors(page.column("id")).astype(info["dtype"])
                            page = page.append_column(vector_column, _lists(stored, index.dim))
                        writer.write_table(page.cast(schema))
                        written += page.num_rows
                    if page.num_rows < _PAGE:
                        break
        os.replace(begun, target)
    except BaseException as error:
        begun.unlink(missing_ok=True)
        if isinstance(error, pa.ArrowException | OSError) and not isinstance(error, VeloError):
            raise FormatError(f"{target} cannot be written: {error}", file=str(target)) from error
        raise
    document = {"path": str(path), "target": str(target), "rows": written, "columns": schema.names}
    answer(as_json, document, f"{target}: {written:,} rows with {', '.join(schema.names)}")


def _names(columns: str | None) -> list[str] | bool:
    return True if columns is None else [one.strip() for one in columns.split(",") if one.strip()]


def _vector_name(given: Any, name: str) -> str:
    names = given.column_names if isinstance(given, pa.Table) else given.names
    if name in names:
        raise InvalidArgumentError(
            f"there is a column {name!r} already: name that of the vectors (--vector-column)",
            argument="vector_column",
        )
    return name


def _lists(vectors: Any, dim: int) -> Any:
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, dim)


def _show(path: Path, found: Any, as_json: bool) -> None:
    if as_json:
        emit_json({"path": str(path), "rows": found.to_pylist()})
        return
    shown = table(*(f"{name}:" for name in found.column_names))
    for row in found.to_pylist():
        shown.add_row(*(_cell(value) for value in row.values()))
    console().print(shown)


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
