"""The application: all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from velo import __version__
from velo.cli.arguments import takes_build_options
from velo.cli.build import build
from velo.cli.demo import demo
from velo.cli.importing import import_
from velo.cli.inspection import doctor, info, verify
from velo.cli.metadata import metadata_set, metadata_show
from velo.cli.output import reported
from velo.cli.planning import size, tune
from velo.cli.rows import (
    count,
    create,
    delete,
    export,
    flush,
    get,
    insert,
    optimize,
    rows,
    snapshot,
    update,
    upsert,
)
from velo.cli.search import search
from velo.cli.serve import serve, stop

__all__ = ["app"]

app = typer.Typer(
    name="velo",
    help="Vector search over an index that lives on an SSD and answers as if it lived in memory.",
    no_args_is_help=True,
    add_completion=True,
    epilog="Exit codes: 0 done, 1 an error, 2 wrong usage, 3 a damaged index, 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"velo {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Vector search over an index that lives on an SSD and answers as if it lived in memory."""


for _command in (
    takes_build_options(build),
    create,
    search,
    get,
    rows,
    count,
    export,
    info,
    tune,
    size,
    delete,
    insert,
    upsert,
    update,
    snapshot,
    flush,
    optimize,
    verify,
    doctor,
    demo,
    serve,
    stop,
):
    app.command()(reported(_command))

app.command("import")(reported(import_))

metadata_app = typer.Typer(
    help="Look at the metadata of an index, replace or extend it.", no_args_is_help=True
)
app.add_typer(metadata_app, name="metadata")
metadata_app.command("set")(reported(metadata_set))
metadata_app.command("show")(reported(metadata_show))
