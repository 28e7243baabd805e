"""Arguments that several commands share, and arguments derived from Python's options."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from velo.errors import FilterError, InvalidArgumentError, NativeLibraryError
from velo.filters import from_sql
from velo.folder.manifest import COLLECTION_FILE
from velo.options import BuildOptions, PublicField, limit_of
from velo.types import Memory

Command = Callable[..., None]

IndexPath = Annotated[Path, typer.Argument(help="Folder of an index.", metavar="INDEX")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
MemoryText = Annotated[
    str | None, typer.Option(help='Budget: "15%" of the float32 vectors, "2GiB", or bytes.', metavar="BUDGET")
]
Threads = Annotated[int | None, typer.Option(help="Worker threads; all cores without it.")]
IoDevice = Annotated[str, typer.Option(help="auto, uring or threads.")]
Device = Annotated[
    str, typer.Option(help="cpu, cuda (or cuda:1, …) to navigate on a GPU for many queries, or auto.")
]
PlanChoice = Annotated[str, typer.Option(help="How to open: auto, links_in_memory, links_on_disk or walk.")]
Condition = Annotated[
    str | None, typer.Option("--filter", help="Rows that pass: SQL, or JSON of a filter dict.")
]
Columns = Annotated[
    str | None, typer.Option(help="Columns separated by commas; all without it.", metavar="NAMES")
]
NewVectors = Annotated[Path, typer.Argument(help="File of the new vectors, in any format that velo reads.")]
NewIds = Annotated[
    str | None, typer.Option(help="Ids separated by commas, or @FILE with one a line.", metavar="IDS")
]
NewMetadata = Annotated[Path | None, typer.Option(help="Parquet or Arrow file, one row a vector.")]
NewIdsColumn = Annotated[
    str | None, typer.Option(help="Column that holds the ids, in the file of the vectors or in the metadata.")
]
KeepColumns = Annotated[
    bool, typer.Option("--keep-columns", help="Take the other columns of that file as the metadata.")
]
NewColumn = Annotated[str | None, typer.Option(help="Column or data set of the vectors.")]


def takes_build_options(command: Command) -> Command:
    """Replace ``**options`` of a command by an argument for each option of a build."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=_argument(one)
        )
        for one in BuildOptions.public_fields()
    ]
    as_keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    command.__signature__ = signature.replace(parameters=as_keywords)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    return command


def _argument(option: PublicField) -> Any:
    """A type as typer takes it, with what ``--help`` says."""
    if option.type == Memory | None:
        return Annotated[str | None, typer.Option(help=option.help, metavar="BUDGET")]
    if bool in (option.type, *get_args(option.type)):
        flag = option.name.replace("_", "-")
        return Annotated[option.type, typer.Option(f"--{flag}/--no-{flag}", help=option.help)]
    return Annotated[option.type, typer.Option(help=option.help + _range_text(option.name))]


def _range_text(name: str) -> str:
    """The limit of an argument, where it has one."""
    try:
        low, high = limit_of(name)
    except NativeLibraryError:  # none, or no velo.h is installed, which `velo doctor` reports
        return ""
    return f" {low} to {high}."


def folders_of(path: Path) -> list[Path]:
    """The index itself, or the shards of a collection."""
    if (path / COLLECTION_FILE).is_file():
        return sorted(entry for entry in path.iterdir() if entry.name.startswith("shard-"))
    return [path]


def ids_of(text: str, kind: str) -> list[Any]:
    """Read ids separated by commas, or one a line of a file that is named as ``@FILE``."""
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
    """Read a filter of SQL or JSON; None is no filter."""
    if text is None:
        return None
    if not text.lstrip().startswith("{"):
        return from_sql(text)
    try:
        return json.loads(text)
    except ValueError as error:
        raise FilterError(f"--filter is not JSON: {error}", argument="filter") from error
