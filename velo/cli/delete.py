"""``velo delete``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from velo.cli.arguments import AsJson, IndexPath
from velo.cli.output import console, emit_json
from velo.errors import FilterError, InvalidArgumentError
from velo.filters import from_sql
from velo.index import open_path

__all__ = ["delete", "filter_of", "ids_of"]


def delete(
    path: IndexPath,
    ids: Annotated[
        str | None, typer.Option(help="Ids separated by commas, or @FILE with one a line.", metavar="IDS")
    ] = None,
    condition: Annotated[
        str | None, typer.Option("--filter", help="All rows that pass: SQL, or JSON of a filter dict.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete rows by id, or all that pass a filter. Others may search the index meanwhile."""
    if (ids is None) == (condition is None):
        raise InvalidArgumentError("delete takes --ids or --filter, and one of them", argument="ids")
    with open_path(path, writable=True, threads=1) as index:
        if ids is None:
            done = index.delete(filter=filter_of(condition))
        else:
            done = index.delete(ids_of(ids, index.info()["ids"]))
        left = len(index)
    if as_json:
        emit_json(
            {
                "path": str(path),
                "deleted": done.rows,
                "missing": done.missing,
                "rows": left,
                "sequence": done.sequence,
            }
        )
        return
    missing = f", {done.missing:,} ids that no row has" if done.missing else ""
    console().print(f"{path}: {done.rows:,} rows deleted{missing}; {left:,} are left")


def ids_of(text: str, kind: str) -> list[Any]:
    """Ids apart by commas or lines; ``@FILE`` reads them from a file."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"{text[1:]} cannot be read: {error}", argument="ids") from error
        parts = text.splitlines()
    else:
        parts = text.split(",")
    names = [part.strip() for part in parts if part.strip()]
    if kind == "string":
        return names
    try:
        return [int(name) for name in names]
    except ValueError as error:
        raise InvalidArgumentError(
            f"the ids of this index are whole numbers: {error}", argument="ids"
        ) from error


def filter_of(text: str | None) -> Any:
    """A filter of SQL or JSON; None: there is none."""
    if text is None:
        return None
    if not text.lstrip().startswith("{"):
        return from_sql(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise FilterError(f"--filter is not JSON: {error}", argument="filter") from error
