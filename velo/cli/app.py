"""All commands and their options; each does its work in a module of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from velo import __version__
from velo.cli.arguments import takes_build_options
from velo.cli.output import reported

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

IndexPath = Annotated[Path, typer.Argument(help="Folder of an index.", metavar="INDEX")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
MemoryText = Annotated[
    str | None, typer.Option(help='Budget: "15%" of the float32 vectors, "2GiB", or bytes.', metavar="BUDGET")
]
Threads = Annotated[int | None, typer.Option(help="Worker threads; all cores without it.")]
IoDevice = Annotated[str, typer.Option(help="auto, uring or threads.")]
PlanChoice = Annotated[str, typer.Option(help="How to open: auto, links_in_memory or links_on_disk.")]


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


@app.command()
@reported
@takes_build_options
def build(
    vectors: Annotated[
        Path, typer.Argument(help="File of vectors (fbin, fvecs, npy, HDF5, Parquet, Arrow, …).")
    ],
    output: Annotated[Path, typer.Argument(help="Folder to make.", metavar="INDEX")],
    metadata: Annotated[Path | None, typer.Option(help="Parquet or Arrow file, one row a vector.")] = None,
    column: Annotated[str | None, typer.Option(help="Column or data set of the vectors.")] = None,
    ids_column: Annotated[
        str | None,
        typer.Option(
            help="Column that holds the ids, in the file of the vectors or in the metadata. "
            "Without it ids are row numbers."
        ),
    ] = None,
    keep_columns: Annotated[
        bool,
        typer.Option("--keep-columns", help="Take the other columns of that file as the metadata."),
    ] = False,
    queries: Annotated[
        Path | None,
        typer.Option(
            help="File of queries like those of your users. The build calibrates with them instead of rows."
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Make a collection of this many shards instead of one index.")
    ] = None,
    build_memory: Annotated[
        str | None,
        typer.Option(
            help="Budget of the build: a share of the float32 vectors, or bytes. A graph that does not "
            "fit is built in partitions.",
            metavar="BUDGET",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an index once the new one is complete.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume/--restart", help="Go on where a killed build of the same input stopped.")
    ] = True,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """Build an index, or a collection of shards, from a file of vectors."""
    from velo.cli.build import run

    run(
        vectors,
        output,
        metadata=metadata,
        column=column,
        ids_column=ids_column,
        keep_columns=keep_columns,
        queries=queries,
        shards=shards,
        build_memory=build_memory,
        overwrite=overwrite,
        resume=resume,
        as_json=as_json,
        options=options,
    )


@app.command()
@reported
def search(
    index: IndexPath,
    queries: Annotated[Path, typer.Argument(help="File of queries.")],
    k: Annotated[int, typer.Option("-k", "--k", help="Neighbors of each query.")] = 10,
    filter_json: Annotated[
        str | None,
        typer.Option(
            "--filter",
            help='Filter as SQL ("year >= 2020") or JSON (\'{"year": {"$gte": 2020}}\'). In JSON a value '
            '"@name" stands for that column of --query-table in the query\'s row.',
        ),
    ] = None,
    query_table: Annotated[
        Path | None, typer.Option(help="Parquet file, one row a query, that the filter may refer to.")
    ] = None,
    filter_plan: Annotated[
        str,
        typer.Option(help="How a search applies its filter: auto; for comparison late, gate or scan."),
    ] = "auto",
    group_by: Annotated[
        str | None, typer.Option(help="Find the nearest k groups of rows with equal values in this column.")
    ] = None,
    group_size: Annotated[int, typer.Option(help="Rows of a group.")] = 1,
    radius: Annotated[
        float | None, typer.Option(help="Find all rows within this distance instead of the nearest k.")
    ] = None,
    limit: Annotated[int, typer.Option(help="The most hits of a query within the radius.")] = 10_000,
    truth: Annotated[Path | None, typer.Option(help="Exact neighbors, to measure recall.")] = None,
    recall: Annotated[float | None, typer.Option(help="Recall to aim for, between 0 and 1.")] = None,
    list_size: Annotated[int | None, typer.Option(help="Candidates kept while searching.")] = None,
    exact: Annotated[
        bool | None,
        typer.Option("--exact/--estimated", help="Distances from stored vectors, or from codes alone."),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, help="Search only so many queries, from the first on.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="Column or data set of the queries.")] = None,
    memory: MemoryText = None,
    threads: Threads = None,
    io: IoDevice = "auto",
    plan: PlanChoice = "auto",
    output: Annotated[
        Path | None, typer.Option(help="Write ids and distances there: .npz, .parquet or .arrow.")
    ] = None,
    show: Annotated[
        int,
        typer.Option(min=0, help="Print the nearest 20 of so many queries; 0 with --json leaves ids out."),
    ] = 3,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain how the first query was answered.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Search an index. Print recall, speed and reads."""
    from velo.cli.search import run

    run(
        index,
        queries,
        k=k,
        filter_json=filter_json,
        query_table=query_table,
        filter_plan=filter_plan,
        group_by=group_by,
        group_size=group_size,
        radius=radius,
        limit=limit,
        truth=truth,
        recall=recall,
        list_size=list_size,
        exact=exact,
        first=first,
        column=column,
        memory=memory,
        threads=threads,
        io=io,
        plan=plan,
        output=output,
        show=show,
        explain=explain,
        as_json=as_json,
    )


@app.command()
@reported
def info(
    index: IndexPath,
    memory: MemoryText = None,
    io: IoDevice = "auto",
    plan: PlanChoice = "auto",
    budgets: Annotated[
        bool, typer.Option("--budgets", help="Show what each budget would buy, and what another 5 % would.")
    ] = False,
    recall: Annotated[float, typer.Option(help="With --budgets: the recall of the searches.")] = 0.95,
    k: Annotated[int, typer.Option("-k", "--k", help="With --budgets: the neighbors of each query.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print what an index is, what it costs and how memory would be divided."""
    from velo.cli.budgets import show as show_budgets
    from velo.cli.inspection import info as show_info

    if budgets:
        show_budgets(index, memory=memory, recall=recall, k=k, as_json=as_json)
        return
    show_info(index, memory=memory, io=io, plan=plan, as_json=as_json)


@app.command()
@reported
def tune(
    vectors: Annotated[Path, typer.Argument(help="File of vectors, as for build.")],
    memory: Annotated[
        str, typer.Option(help='Budget of searches: "15%", "2GiB", or bytes.', metavar="BUDGET")
    ] = "20%",
    recall: Annotated[float, typer.Option(help="Recall to tune for.")] = 0.95,
    k: Annotated[int, typer.Option("-k", "--k", help="Neighbors to tune for.")] = 10,
    metric: Annotated[str, typer.Option(help="l2, ip or cosine.")] = "l2",
    column: Annotated[str | None, typer.Option(help="Column or data set of the vectors.")] = None,
    sample: Annotated[int, typer.Option(help="Rows to draw.")] = 50_000,
    degree: Annotated[
        list[int] | None,
        typer.Option(help="Degree to try; may be repeated. Without it 24, 32, 48 and 64 are tried."),
    ] = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    scratch: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the small indexes, on the device to tune for. Without it: beside the file."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw queries a second over recall into a file: .png, .svg or .pdf."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Propose options for build and open, after measuring small indexes over a sample of the vectors."""
    from velo.cli.tune import run

    run(
        vectors,
        memory=memory,
        recall=recall,
        k=k,
        metric=metric,
        column=column,
        sample=sample,
        degrees=degree,
        threads=threads,
        seed=seed,
        scratch=scratch,
        plot=plot,
        as_json=as_json,
    )


@app.command()
@reported
def size(
    rows: Annotated[str, typer.Option(help="Vectors of all shards: 20000, 500M, 1.2B.", metavar="COUNT")],
    dim: Annotated[int, typer.Option(help="Dimensions.")],
    memory: Annotated[
        str | None,
        typer.Option(help='Budget of searches, of all shards: "64GB", "15%", or bytes.', metavar="BUDGET"),
    ] = None,
    shards: Annotated[int, typer.Option(help="Indexes that the rows are divided into.")] = 1,
    store_vectors: Annotated[
        bool, typer.Option("--store-vectors", help="The index stores the vectors, too.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of the vectors: f32, f16, u8 or i8.")] = "f32",
    memory_bits: Annotated[int | None, typer.Option(help="Bits a dimension in memory.")] = None,
    record_bits: Annotated[int | None, typer.Option(help="Bits a dimension on disk.")] = None,
    degree: Annotated[int | None, typer.Option(help="Links of a vertex.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan an index before there are vectors: its memory, its disk, its build, and the cost of a query."""
    from velo.cli.size import run

    run(
        rows,
        dim,
        memory=memory,
        shards=shards,
        store_vectors=store_vectors,
        dtype=dtype,
        memory_bits=memory_bits,
        record_bits=record_bits,
        degree=degree,
        as_json=as_json,
    )


@app.command()
@reported
def delete(
    index: IndexPath,
    ids: Annotated[
        str | None, typer.Option(help="Ids separated by commas, or @FILE with one a line.", metavar="IDS")
    ] = None,
    condition: Annotated[
        str | None, typer.Option("--filter", help="All rows that pass: SQL, or JSON of a filter dict.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete rows by id, or all that pass a filter. Others may search the index meanwhile."""
    from velo.cli.delete import run

    run(index, ids=ids, condition=condition, as_json=as_json)


NewVectors = Annotated[Path, typer.Argument(help="File of the new vectors, in any format that velo reads.")]
NewIds = Annotated[
    str | None, typer.Option(help="Ids separated by commas, or @FILE with one a line.", metavar="IDS")
]
NewMetadata = Annotated[Path | None, typer.Option(help="Parquet or Arrow file, one row a vector.")]
NewColumn = Annotated[str | None, typer.Option(help="Column or data set of the vectors.")]


@app.command()
@reported
def insert(
    index: IndexPath,
    vectors: NewVectors,
    ids: NewIds = None,
    metadata: NewMetadata = None,
    column: NewColumn = None,
    as_json: AsJson = False,
) -> None:
    """Add rows to an index. Others may search it meanwhile. Rows that were added before a failure stay."""
    from velo.cli.rows import run

    run(index, vectors, ids=ids, metadata=metadata, column=column, upsert=False, as_json=as_json)


@app.command()
@reported
def upsert(
    index: IndexPath,
    vectors: NewVectors,
    ids: NewIds = None,
    metadata: NewMetadata = None,
    column: NewColumn = None,
    as_json: AsJson = False,
) -> None:
    """Add rows, or replace those that have their ids. After a failure the command can be repeated."""
    from velo.cli.rows import run

    run(index, vectors, ids=ids, metadata=metadata, column=column, upsert=True, as_json=as_json)


@app.command()
@reported
def update(
    index: IndexPath,
    metadata: Annotated[Path, typer.Argument(help="Parquet or Arrow file of the columns that change.")],
    ids: NewIds = None,
    ids_column: Annotated[str | None, typer.Option(help="Its column that holds the ids.")] = None,
    as_json: AsJson = False,
) -> None:
    """Change columns of rows. Their vectors and other columns stay as they are."""
    from velo.cli.rows import run_update

    run_update(index, metadata, ids=ids, ids_column=ids_column, as_json=as_json)


@app.command()
@reported
def snapshot(
    index: IndexPath,
    target: Annotated[Path, typer.Argument(help="The folder to make.")],
    as_json: AsJson = False,
) -> None:
    """Copy an index, as it is now, into another folder. Others may write meanwhile."""
    from velo.cli.rows import run_snapshot

    run_snapshot(index, target, as_json=as_json)


@app.command()
@reported
def flush(index: IndexPath, as_json: AsJson = False) -> None:
    """Fold new rows into a part, which is an index of the ordinary format."""
    from velo.cli.rows import keep_up

    keep_up(index, everything=False, as_json=as_json)


@app.command()
@reported
def optimize(index: IndexPath, as_json: AsJson = False) -> None:
    """Fold all live rows into one part. Searches are fastest then, and dead rows take no room."""
    from velo.cli.rows import keep_up

    keep_up(index, everything=True, as_json=as_json)


@app.command()
@reported
def verify(
    index: IndexPath,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="First remove what killed builds and exchanges left there and beside it."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read every file of an index whole and check every checksum, page and link."""
    from velo.cli import inspection

    inspection.verify(index, clean=clean, as_json=as_json)


metadata_app = typer.Typer(
    help="Look at the metadata of an index, replace or extend it.", no_args_is_help=True
)
app.add_typer(metadata_app, name="metadata")


@metadata_app.command("set")
@reported
def metadata_set(
    index: IndexPath,
    table: Annotated[Path, typer.Argument(help="Parquet or Arrow file, one row a vector.")],
    ids_column: Annotated[
        str | None,
        typer.Option(help="Column of the table that holds ids. Without it rows are in their order."),
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Keep the columns that are there.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --add: replace columns of the same name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replace the metadata of an index, or of all shards of a collection. The graph stays as it is."""
    from velo.cli import metadata

    metadata.set_table(index, table, ids_column=ids_column, add=add, overwrite=overwrite, as_json=as_json)


@metadata_app.command("show")
@reported
def metadata_show(index: IndexPath, as_json: AsJson = False) -> None:
    """Print each column's type, nulls, distinct and frequent values, and extremes."""
    from velo.cli import metadata

    metadata.show(index, as_json=as_json)


@app.command()
@reported
def doctor(
    folder: Annotated[Path, typer.Argument(help="Folder whose device to look at.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Say which device, processor level and library are in use, why, and how to get better ones."""
    from velo.cli import inspection

    inspection.doctor(folder, as_json=as_json)


@app.command()
@reported
def demo(
    memory: Annotated[str, typer.Option(help="Budget of the open index.", metavar="BUDGET")] = "20%",
    keep: Annotated[
        Path | None, typer.Option(help="Keep the index in this folder instead of a temporary one.")
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Build an index over sample data, search it with and without a filter, and show what it took."""
    from velo.cli.demo import run

    run(memory=memory, keep=keep, threads=threads, as_json=as_json)


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
        as_json=as_json,
    )


def main() -> None:
    """Run the command line."""
    app()
