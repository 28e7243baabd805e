"""``velo create``, ``get``, ``rows``, ``count`` and ``export``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import typer

from velo.cli.arguments import AsJson, IndexPath
from velo.cli.delete import filter_of, ids_of
from velo.cli.output import console, emit_json, table
from velo.errors import FormatError, IndexExistsError, InvalidArgumentError, VeloError
from velo.index import create_index, open_path
from velo.options.columns import column_type

__all__ = ["count", "create", "export", "get", "rows"]

#: Rows that are read and written at once.
_PAGE: Final = 10_000

Condition = Annotated[
    str | None, typer.Option("--filter", help="Rows that pass: SQL, or JSON of a filter dict.")
]
Columns = Annotated[
    str | None, typer.Option(help="Columns separated by commas; all without it.", metavar="NAMES")
]


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
    if as_json:
        emit_json({**told, "columns": names})
        return
    shown = f" and the columns {', '.join(names)}" if names else ""
    console().print(f"{path}: an index of {dim} dimensions ({metric}, {dtype}){shown}, without rows")


def _field(text: str) -> Any:
    name, colon, kind = text.rpartition(":")
    if not colon or not name:
        raise InvalidArgumentError(f"a column is NAME:TYPE, as year:int32, not {text!r}", argument="column")
    return pa.field(name, column_type(kind, name, "column"))


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
    if as_json:
        emit_json({"path": str(path), "rows": found})
        return
    console().print(f"{found:,}")


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
        raise IndexExistsError(f"{target} is there already; --overwrite replaces it", argument="target")
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
    if as_json:
        emit_json({"path": str(path), "target": str(target), "rows": written, "columns": schema.names})
        return
    console().print(f"{target}: {written:,} rows with {', '.join(schema.names)}")


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
