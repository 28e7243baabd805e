"""``velo import``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from velo.cli.arguments import AsJson
from velo.cli.output import console, emit_json
from velo.errors import EmptyError, IndexExistsError, InvalidArgumentError
from velo.importing import OPENERS, Asked
from velo.index import create_index

_LIBRARIES: Final = ", ".join(OPENERS)


def import_(
    library: Annotated[str, typer.Argument(help=f"Whose index it is: {_LIBRARIES}.", metavar="LIBRARY")],
    source: Annotated[str, typer.Argument(help="Its file or folder, or the address of a server.")],
    path: Annotated[Path, typer.Argument(help="Folder to make.", metavar="INDEX")],
    metric: Annotated[
        str | None, typer.Option(help="l2, ip or cosine, if the source does not name it (hnswlib, LanceDB).")
    ] = None,
    collection: Annotated[
        str | None, typer.Option(help="Which collection (Qdrant) or table (LanceDB).")
    ] = None,
    vector: Annotated[str | None, typer.Option(help="Which of a row's vectors (Qdrant, LanceDB).")] = None,
    ids_column: Annotated[
        str | None, typer.Option(help="Column of the ids (LanceDB); numbers from 0 without it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make an index of one of another library, with its ids and payloads; as a whole or not at all."""
    if library not in OPENERS:
        raise InvalidArgumentError(f"{library!r} is not known here; {_LIBRARIES} are", argument="library")
    if path.exists():
        raise IndexExistsError(f"{path} already exists", argument="path")
    foreign = OPENERS[library](Asked(source, metric, collection, vector, ids_column))
    begun = path.with_name(f"{path.name}.importing")
    shutil.rmtree(begun, ignore_errors=True)
    try:
        with create_index(
            begun, dim=foreign.dim, metric=foreign.metric, metadata=foreign.schema, durability="process"
        ) as index:
            for ids, vectors, table in foreign.batches:
                if len(ids):
                    index.insert(np.asarray(vectors), ids, table)
            rows = len(index)
            if rows == 0:
                raise EmptyError(f"{source} has no rows", argument="source")
            index.optimize()
        os.rename(begun, path)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        raise
    columns = [] if foreign.schema is None else foreign.schema.names
    if as_json:
        told = {"path": str(path), "rows": rows, "dim": foreign.dim, "metric": foreign.metric}
        emit_json({**told, "columns": columns, "notes": list(foreign.notes)})
        return
    shown = f" and the columns {', '.join(columns)}" if columns else ""
    console().print(f"{path}: {rows:,} rows of {foreign.dim} dimensions ({foreign.metric}){shown}")
    for note in foreign.notes:
        console().print(note)
