"""All commands; each stands with its options in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from velo import __version__
from velo.cli.arguments import AsJson, IoDevice, MemoryText, PlanChoice, Threads, takes_build_options
from velo.cli.build import build
from velo.cli.delete import delete
from velo.cli.demo import demo
from velo.cli.inspection import doctor, info, verify
from velo.cli.metadata import metadata_set, metadata_show
from velo.cli.output import reported
from velo.cli.rows import flush, insert, optimize, snapshot, update, upsert
from velo.cli.search import search
from velo.cli.size import size
from velo.cli.tune import tune

__all__ = ["app", "main"]

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
    search,
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
):
    app.command()(reported(_command))

metadata_app = typer.Typer(
    help="Look at the metadata of an index, replace or extend it.", no_args_is_help=True
)
app.add_typer(metadata_app, name="metadata")
metadata_app.command("set")(reported(metadata_set))
metadata_app.command("show")(reported(metadata_show))


@app.command()
@reported
def serve(
    paths: Annotated[
        list[Path], typer.Argument(help="Indexes or collections; each is served under its name.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    memory: MemoryText = None,
    threads: Threads = None,
    io: IoDevice = "auto",
    plan: PlanChoice = "auto",
    ray: Annotated[
        bool, typer.Option("--ray", help="Start the shards of a collection as Ray actors.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(help='Of a running Ray cluster, "auto" to find one; one of our own without it.'),
    ] = None,
    pin: Annotated[
        str | None, typer.Option(help='Where shards run: "resource:NAME" or "label:KEY=VALUE".')
    ] = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="Give each shard a process of its own, without Ray.")
    ] = False,
    ready_shards: Annotated[
        int | None, typer.Option(min=1, help="Shards that must be up for /readyz; one if not said.")
    ] = None,
    drain_s: Annotated[
        float, typer.Option(min=0, help="Seconds to go on answering after SIGTERM, while /readyz says no.")
    ] = 0.0,
    workers: Annotated[
        int, typer.Option(min=1, help="Gateway processes on this port; more than one implies --processes.")
    ] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, help="Processes or actors of each shard; another one answers when one dies.")
    ] = 1,
    slow_ms: Annotated[
        float | None, typer.Option(min=0, help="Write requests to the log that take as long.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as lines of JSON.")] = False,
    writable: Annotated[
        bool, typer.Option("--writable", help="Let clients write rows; nobody else may write meanwhile.")
    ] = False,
    durability: Annotated[
        str, typer.Option(help='When a write is on the device: "sync", "interval" or "process".')
    ] = "sync",
    api_keys: Annotated[
        Path | None, typer.Option(help='File of lines "read KEY" and "admin KEY"; ask for one of them.')
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help='Let web pages of this origin ask; "*": of any.')
    ] = None,
    ssl_certfile: Annotated[Path | None, typer.Option(help="Certificate in PEM: serve HTTPS.")] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Its key, if it is in another file.")] = None,
    ssl_keyfile_password: Annotated[
        str | None, typer.Option(envvar="VELO_SSL_KEYFILE_PASSWORD", help="Of the key.")
    ] = None,
    ssl_ca_certs: Annotated[
        Path | None, typer.Option(help="Ask clients for a certificate that one of these vouches for.")
    ] = None,
    aliases: Annotated[Path | None, typer.Option(help='File of lines "ALIAS COLLECTION".')] = None,
    as_json: AsJson = False,
) -> None:
    """Serve indexes or sharded collections over HTTP until interrupted."""
    from velo.cli.serve import run

    run(
        paths,
        host=host,
        port=port,
        memory=memory,
        threads=threads,
        io=io,
        plan=plan,
        ray=ray,
        ray_address=ray_address,
        pin=pin,
        processes=processes,
        ready_shards=ready_shards,
        drain_s=drain_s,
        workers=workers,
        replicas=replicas,
        slow_s=None if slow_ms is None else slow_ms / 1000,
        log_json=log_json,
        writable=writable,
        durability=durability,
        api_keys=api_keys,
        cors_origins=cors_origin or (),
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        ssl_keyfile_password=ssl_keyfile_password,
        ssl_ca_certs=ssl_ca_certs,
        aliases=aliases,
        as_json=as_json,
    )


def main() -> None:
    """Run the command line."""
    app()
