"""The application: all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from velo import __version__
from velo.cli import build, demo, importing, inspection, metadata, planning, rows, search, serve
from velo.cli.arguments import takes_build_options
from velo.cli.output import reported

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
    takes_build_options(build.build),
    *(rows.create, search.search, rows.get, rows.rows, rows.count, rows.export, inspection.info),
    *(planning.tune, planning.size, rows.delete, rows.insert, rows.upsert, rows.update, rows.snapshot),
    *(rows.flush, rows.optimize, inspection.verify, inspection.doctor, demo.demo, serve.serve, serve.stop),
):
    app.command()(reported(_command))
app.command("import")(reported(importing.import_))

metadata_app = typer.Typer(
    help="Look at the metadata of an index, replace or extend it.", no_args_is_help=True
)
app.add_typer(metadata_app, name="metadata")
metadata_app.command("set")(reported(metadata.metadata_set))
metadata_app.command("show")(reported(metadata.metadata_show))
