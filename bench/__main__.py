"""``python -m bench``: report, ladder, cache, rungs, budgets, sweep, speed, filters, hard, live, serve…"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

from bench.commands import (
    budgets,
    cache_and_layout,
    capped,
    confined,
    filters,
    hard,
    hard_filters,
    hard_tables,
    hybrid,
    ladder,
    live,
    live_sections,
    newcomer,
    outside,
    quotes,
    report,
    rewrite,
    rungs,
    speed,
    store,
    sweep,
)
from bench.harness import datasets, lines, machine, runs, sections, tables
from bench.peers import install

BUDGET_HELP = "share of n·d·4 bytes, with bits in memory and in the record after a colon: 20%%, 10%%:2+6"

REPORT_BUDGETS = ["5%:1+7", "10%:2+6", "15%:3+7", "20%", "25%", "30%", "45%"]
LISTS = ["32", "64", "96", "128", "160", "192", "256", "384", "512", "768", "1024"]


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    def common(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--data", type=Path, required=True, help="folder of the set (python -m bench data finds it)"
        )
        sub.add_argument("--limit", type=int, help="only the first N base vectors, with truth of their own")
        sub.add_argument("--queries", type=int, help="only the first N queries")
        sub.add_argument(
            "--work", type=Path, default=Path(".bench"), help="indexes, environments, raw answers"
        )
        sub.add_argument("--out", type=Path, default=Path("docs/results"))
        sub.add_argument("--name", help="name of the report (default: command and set)")
        sub.add_argument("--threads", type=int, default=2)

    sub = commands.add_parser("sweep", help="recall against cost, beside the peers")
    common(sub)
    sub.add_argument("--budgets", nargs="*", default=["20%"], help=BUDGET_HELP)
    sub.add_argument("--lists", nargs="+", default=LISTS, help="list sizes for velo; 64@1.5 sets sigma too")
    sub.add_argument("--peer-lists", nargs="+", type=int, default=[12, 16, 24, 32, 48, 64, 96, 128, 192, 256])
    sub.add_argument("--peers", default=",".join(install.NAMES), help="comma-separated, or none")
    sub.add_argument("--peer-code-share", default="20%", help="memory that disk peers get for their codes")
    sub.add_argument("--single", type=int, default=1000, help="queries of the one-at-a-time pass")
    sub.add_argument("--no-metadata", action="store_true", help="leave the set's columns out of velo's index")
    sub.add_argument("--io", default="auto", choices=["auto", "uring", "threads"])
    sub.add_argument(
        "--plan",
        default="auto",
        choices=["auto", "links_in_memory", "links_on_disk"],
        help="how velo opens",
    )

    sub = commands.add_parser("report", help="the search core against its targets, beside the peers")
    common(sub)
    sub.add_argument("--peers", default=",".join(install.NAMES), help="comma-separated, or none")
    sub.add_argument("--text", type=Path, help="folder of the set of texts")
    sub.add_argument("--budgets", nargs="+", default=REPORT_BUDGETS, help=BUDGET_HELP)
    sub.add_argument("--disk-budget", default="10%:2+6", help="for links on disk")
    sub.add_argument("--stream-budget", default="20%:3+7", help="for the stream with a cache")
    sub.add_argument("--text-budget", default="10%:2+6")
    sub.add_argument("--four-bits", default="4+0", help="bits of the index of 4 bits in all")
    sub.add_argument("--lists", nargs="+", type=int, help="list sizes of velo's curves")
    sub.add_argument("--single", type=int, default=500, help="queries of the one-at-a-time pass")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure only these")

    for name, text in (
        ("ladder", "what each idea of the search brings, at equal recall and memory"),
        ("cache", "hit rates of the cache's units and policies, by its size"),
        ("layout", "reads by what stays of a page that was read"),
    ):
        sub = commands.add_parser(name, help=text)
        common(sub)
        sub.add_argument("--budget", default="20%", help="share of n·d·4 bytes")
        sub.add_argument("--bits", default="4+4", help="bits in memory and in the record")
        sub.add_argument("--lists", nargs="+", type=int, help="list sizes of the curves")
        sub.add_argument("--list-size", type=int, default=64, help="the list size of the table of hit rates")
        sub.add_argument("--single", type=int, default=300, help="queries of the one-at-a-time pass")
        sub.add_argument(
            "--only", nargs="+", metavar="SECTION", help="measure these; others as last measured"
        )

    sub = commands.add_parser("budgets", help="reads, rounds and queries a second over memory")
    common(sub)
    sub.add_argument("--lists", nargs="+", type=int, help="list sizes of the curves")
    sub.add_argument("--single", type=int, default=300, help="queries of the one-at-a-time pass")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")

    sub.add_argument(
        "--given", type=Path, help="folder of indexes that are there: '1+7.velo', '1+7 and links.velo'…"
    )

    sub = commands.add_parser(
        "confined", help="all of the API in a process that the kernel holds to some memory"
    )
    common(sub)
    sub.add_argument("--memory", default="10%", help="that the index is opened with")
    sub.add_argument("--limit-mib", type=int, default=256, help="of the process")
    sub.add_argument(
        "--index", type=Path, help="an index of the set that is there, with the column uniform10 and vectors"
    )
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")
    sub.set_defaults(queries=1000, single=0)

    sub = commands.add_parser("capped", help="systems whose searches the kernel holds to some memory")
    common(sub)
    sub.add_argument("--limit-bytes", type=int, default=160_000_000, help="of the searching process")
    sub.add_argument("--budget", default="20%", help=BUDGET_HELP + "; peers' codes take its share")
    sub.add_argument("--lists", nargs="+", default=list(capped.VELO_LISTS), help="list sizes for velo")
    sub.add_argument("--peer-lists", nargs="+", type=int, default=list(capped.PEER_LISTS))
    sub.add_argument("--single", type=int, default=200, help="queries of the one-at-a-time pass")
    sub.add_argument("--peers", default=",".join(capped.PEERS), help="comma-separated, or none")
    sub.add_argument("--beside", action="store_true", help="the page says that other work ran beside")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")
    sub.set_defaults(limit=300_000, queries=1000)

    sub = commands.add_parser("rungs", help="which plan reads least where memory is short, simulated")
    common(sub)
    sub.add_argument("--recall", type=float, default=0.95, help="at which plans are compared")
    sub.add_argument("--wide", action="store_true", help="1,536 dimensions made of the set, measured as well")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")
    sub.set_defaults(queries=200, single=0)

    sub = commands.add_parser("score", help="score the raw answers of earlier sweeps again, in one table")
    sub.add_argument(
        "run", type=Path, nargs="+", help="folders under WORK/runs, of one set and the same queries"
    )
    common(sub)

    sub = commands.add_parser("filters", help="filtered search by selectivity and kind of label")
    common(sub)
    sub.add_argument("--budget", default="25%", help=BUDGET_HELP)
    sub.add_argument("--peers", default="hnswlib,diskannpy", help="that over-fetch; comma-separated, or none")
    sub.add_argument("--ladder", action="store_true", help="late, gate, and by cost instead")
    sub.add_argument("--lists", nargs="+", type=int, help="list sizes of the curves")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure only these; others as before")

    sub = commands.add_parser("hard", help="sets with varied norms, outliers, copies: recall asked and got")
    sub.add_argument("--data", type=Path, required=True, help="folder of the sets, a folder each")
    sub.add_argument("--work", type=Path, default=Path(".bench"), help="indexes, environments, raw answers")
    sub.add_argument("--out", type=Path, default=Path("docs/results"))
    sub.add_argument("--name", default="hard", help="name of rows and report")
    sub.add_argument("--before", default="hard-before", help="name of the rows that stand beside them")
    sub.add_argument("--sets", nargs="+", metavar="NAME", help="only these")
    sub.add_argument("--no-peers", action="store_true", help="velo alone")
    sub.add_argument("--no-velo", action="store_true", help="peers alone")
    sub.add_argument("--filters", action="store_true", help="recall under filters instead")
    sub.add_argument("--tables", action="store_true", help="measure nothing: the report from what is kept")
    sub.add_argument("--threads", type=int, default=2)

    sub = commands.add_parser("live", help="rows that come and go while the index answers")
    common(sub)
    sub.add_argument("--memory", default="20%", help="share of n·d·4 bytes")
    sub.add_argument("--merge-memory", help="of merges, beside --memory (default: as much)")
    sub.add_argument("--burst", type=int, default=20_000, help="rows of the insert that meets no merge")
    sub.add_argument("--deletes", type=int, default=100_000, help="rows that go by id, half of all at most")
    sub.add_argument("--callers", type=int, default=64, help="of single upserts")
    sub.add_argument("--seconds", type=float, default=5.0, help="of upserts, and of idle queries")
    sub.add_argument("--turnovers", type=int, default=10, help="of a tenth of the rows each")
    sub.add_argument("--single", type=int, default=300, help="queries of the one-at-a-time pass")
    sub.add_argument(
        "--runbook", metavar="FILE:SET", help="of big-ann's streaming track; its ranges are scaled to the set"
    )
    sub.add_argument(
        "--former", type=Path, metavar="JSONL", help="rows of another version: drawn beside many"
    )
    sub.add_argument("--peers", default=",".join(live_sections.PEERS), help="comma-separated, or none")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")

    sub = commands.add_parser("speed", help="processor time of a query, beside systems in memory")
    common(sub)
    sub.set_defaults(threads=1, limit=100_000)
    sub.add_argument("--budgets", nargs="+", default=list(speed.BUDGETS), help=BUDGET_HELP)
    sub.add_argument("--lists", nargs="+", default=list(speed.LISTS), help="list sizes for velo")
    sub.add_argument("--peer-lists", nargs="+", type=int, default=list(speed.PEER_LISTS))
    sub.add_argument(
        "--passes", type=int, default=speed.PASSES, help="over each setting; the best one counts"
    )
    sub.add_argument("--single", type=int, default=100, help="queries of the one-at-a-time pass")
    sub.add_argument("--peers", default=",".join(speed.PEERS), help="comma-separated, or none")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")

    sub = commands.add_parser(
        "serve", help="the road to the shards, the gateway, and who waits when one dies"
    )
    sub.add_argument("collection", type=Path, help="four shards: velo build VECTORS PATH --shards 4")
    sub.add_argument("queries", type=Path, help="a file of vectors")
    sub.add_argument("--seconds", type=float, default=5.0, help="of each throughput")
    sub.add_argument("--no-ray", action="store_true", help="leave out Ray's own calls")
    sub.add_argument("--beside", type=Path, help="a checkout of a former version, asked in turns")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="measure these; others as last measured")
    sub.add_argument("--work", type=Path, default=Path(".bench"), help="what sections measured")
    sub.add_argument("--out", type=Path, default=Path("docs/results"))
    sub.add_argument("--name", help="of the page; default: serve-, and the collection's name")

    sub = commands.add_parser("soak", help="reads and writes while processes die and builds change places")
    sub.add_argument("--minutes", type=float, default=30.0)
    sub.add_argument("--rest", type=float, default=6.0, help="seconds between two events")
    sub.add_argument("--rows", type=int, default=20_000, help="of each of two builds")
    sub.add_argument("--seed", type=int, default=17)
    sub.add_argument(
        "--patient", action="store_true", help="for a machine with other work: who waits for it hangs not"
    )
    sub.add_argument("--out", type=Path, default=Path("docs/results"))
    sub.add_argument("--name", default="serve")

    sub = commands.add_parser("hybrid", help="known items of the set text, by words, vectors and both")
    sub.add_argument("data", type=Path, help="the folder of the set")
    sub.add_argument("--maker", type=Path, required=True, help="the script that made the set")
    sub.add_argument("--wheel", type=Path, required=True, help="the wheel of its model")
    sub.add_argument("--count", type=int, default=1000, help="items asked for by name and by summary")
    sub.add_argument("--work", type=Path, default=Path(".bench"))
    sub.add_argument("--out", type=Path, default=Path("docs/results"))
    sub.add_argument("--name", default="hybrid-text")

    sub = commands.add_parser("outside", help="velo in the benches of others; docs/howto/outside.md")
    sub.add_argument("what", choices=["place", "page"], help="put velo there; write what their runs said")
    sub.add_argument("checkouts", nargs="+", type=Path, help="of the projects, in any order")
    sub.add_argument("--data", type=Path, help="folder of the set that is placed")
    sub.add_argument("--queries", type=int, default=1000, help="only the first N queries")
    sub.add_argument("--out", type=Path, default=Path("docs/results"))
    sub.add_argument("--name", default="outside-sift100k")

    sub = commands.add_parser("newcomer", help="one program of somebody who is new, for velo and others")
    sub.add_argument("data", type=Path, help="the folder of the set text")
    sub.add_argument("--only", nargs="+", metavar="SECTION", help="run these; others as last measured")
    sub.add_argument("--work", type=Path, default=Path(".bench"))
    sub.add_argument("--out", type=Path, default=Path("docs/results"))
    sub.add_argument("--name", help="of the page; default: newcomer-, and the set's name")

    sub = commands.add_parser("store", help="the metadata store: writing it, checking and resolving filters")
    sub.add_argument("--rows", type=int, default=1_000_000)
    sub.add_argument("--distinct", type=int, default=1000, help="different filters of a batch")

    sub = commands.add_parser("data", help="print the folder of a set; make it where a maker is named")
    sub.add_argument("set", choices=["sift1m", "sift100k"])
    sub.add_argument("--maker", type=Path, help="the script that makes it")

    sub = commands.add_parser("quotes", help="whether README and docs quote what the results say")
    sub.add_argument("--write", action="store_true", help="put there what the results say")
    sub.add_argument("--readme", choices=list(quotes.SETS), help="make README's table of this report")

    sub = commands.add_parser("rewrite", help="pages and pictures anew from rows that are kept")
    sub.add_argument("names", nargs="*", metavar="PAGE", help="default: all that can be")
    sub.add_argument("--out", type=Path, default=Path("docs/results"))

    sub = commands.add_parser("machine", help="describe this machine and probe a file's device")
    sub.add_argument("--probe", type=Path, help="a large file on that device")
    return top


def run_sweep(arguments: argparse.Namespace) -> None:
    dataset = datasets.load(arguments.data.resolve(), limit=arguments.limit, query_count=arguments.queries)
    jobs = [
        runs.velo_job(
            dataset,
            budget,
            arguments.lists,
            io=arguments.io,
            plan=arguments.plan,
            metadata=not arguments.no_metadata,
        )
        for budget in arguments.budgets
    ]
    share = runs.share_of(arguments.peer_code_share)
    names = [] if arguments.peers == "none" else arguments.peers.split(",")
    jobs += [runs.peer_job(name, dataset, arguments.peer_lists, share) for name in names]
    rows = sweep.run(
        dataset,
        jobs,
        work=arguments.work,
        out=arguments.out,
        name=arguments.name or f"sweep-{dataset.name}-{dataset.n}",
        threads=arguments.threads,
        single_count=arguments.single,
    )
    show(arguments.out, arguments.name or f"sweep-{dataset.name}-{dataset.n}")
    if not rows:
        sys.exit("sweep: nothing was measured")


def run_filters(arguments: argparse.Namespace) -> None:
    if arguments.limit is not None:
        sys.exit("filters: the truths of a set are for all of it; --limit is for the sweep")
    folder = arguments.data.resolve()
    step = "-ladder" if arguments.ladder else ""
    name = arguments.name or f"filters{step}-{folder.name}"
    context = sections.Context(
        data=str(folder),
        work=str(arguments.work.resolve()),
        limit=None,
        query_count=min(arguments.queries or 1000, 1000),
        single_count=20,
        threads=arguments.threads,
        options={
            "budget": arguments.budget,
            "budgets": [arguments.budget],
            "lists": arguments.lists,
            "ladder": arguments.ladder,
            "peers": [] if arguments.peers == "none" else arguments.peers.split(","),
        },
    )
    table = filters.run(context, arguments.out, name, arguments.only)
    show(arguments.out, name)
    if table:
        print(lines.tally(table))


def context_of(arguments: argparse.Namespace, options: dict[str, Any]) -> sections.Context:
    """What sections over one set are told by the arguments that their commands share."""
    folder = arguments.data.resolve()
    return sections.Context(
        data=str(folder),
        work=str(arguments.work.resolve()),
        limit=arguments.limit,
        query_count=arguments.queries or query_count(folder),
        single_count=arguments.single,
        threads=arguments.threads,
        options=options,
    )


def run_report(arguments: argparse.Namespace) -> None:
    name = arguments.name or f"report-{arguments.data.resolve().name}"
    context = context_of(
        arguments,
        {
            "peers": [] if arguments.peers == "none" else arguments.peers.split(","),
            "budgets": arguments.budgets,
            "disk_budget": arguments.disk_budget,
            "stream_budget": arguments.stream_budget,
            "text_budget": arguments.text_budget,
            "four_bits": arguments.four_bits,
            "lists": arguments.lists,
            "text": str(arguments.text.resolve()) if arguments.text else None,
        },
    )
    table = report.run(context, arguments.out, name, arguments.only)
    show(arguments.out, name)
    print(lines.tally(table))


def run_steps(arguments: argparse.Namespace) -> None:
    """ladder, cache and layout: sections over one set."""
    name = arguments.name or f"{arguments.command}-{arguments.data.resolve().name}"
    context = context_of(
        arguments,
        {key: getattr(arguments, key) for key in ("budget", "bits", "lists", "list_size")},
    )
    match arguments.command:
        case "ladder":
            ladder.run(context, arguments.out, name, arguments.only)
        case "cache":
            cache_and_layout.run_cache(context, arguments.out, name, arguments.only)
        case _:
            cache_and_layout.run_layout(context, arguments.out, name, arguments.only)
    show(arguments.out, name)


def run_rungs(arguments: argparse.Namespace) -> None:
    name = arguments.name or f"rungs-{arguments.data.resolve().name}"
    options = {"recall": arguments.recall, "wide": arguments.wide}
    rungs.run(context_of(arguments, options), arguments.out, name, arguments.only)
    show(arguments.out, name)


def run_budgets(arguments: argparse.Namespace) -> None:
    name = arguments.name or f"budgets-{arguments.data.resolve().name}"
    given = arguments.given and str(arguments.given.resolve())
    context = context_of(arguments, {"lists": arguments.lists, "given": given})
    budgets.run(context, arguments.out, name, arguments.only)
    show(arguments.out, name)


def run_confined(arguments: argparse.Namespace) -> None:
    name = arguments.name or f"confined-{arguments.data.resolve().name}"
    options = {key: getattr(arguments, key) for key in ("memory", "limit_mib")}
    options["index"] = arguments.index and str(arguments.index.resolve())
    confined.run(context_of(arguments, options), arguments.out, name, arguments.only)
    show(arguments.out, name)


def run_capped(arguments: argparse.Namespace) -> None:
    options = {
        key: getattr(arguments, key) for key in ("limit_bytes", "budget", "lists", "peer_lists", "beside")
    }
    options["peers"] = [] if arguments.peers == "none" else arguments.peers.split(",")
    name = arguments.name or f"capped-sift{arguments.limit // 1000}k"
    capped.run(context_of(arguments, options), arguments.out, name, arguments.only)
    show(arguments.out, name)


def run_live(arguments: argparse.Namespace) -> None:
    keys = ("memory", "merge_memory", "burst", "deletes", "callers", "seconds", "turnovers", "runbook")
    options = {key: getattr(arguments, key) for key in keys}
    options["peers"] = [] if arguments.peers == "none" else arguments.peers.split(",")
    name = arguments.name or "live"
    table = live.run(context_of(arguments, options), arguments.out, name, arguments.only, arguments.former)
    show(arguments.out, name)
    print(lines.tally(table))


def run_speed(arguments: argparse.Namespace) -> None:
    options = {key: getattr(arguments, key) for key in ("budgets", "lists", "peer_lists", "passes")}
    options["peers"] = [] if arguments.peers == "none" else arguments.peers.split(",")
    name = arguments.name or f"speed-{arguments.data.resolve().name}"
    table = speed.run(context_of(arguments, options), arguments.out, name, arguments.only)
    show(arguments.out, name)
    print(lines.tally(table))


def run_serve(arguments: argparse.Namespace) -> None:
    from bench.commands import serve  # it needs the serving packages, which no other command does

    name = arguments.name or f"serve-{arguments.collection.resolve().stem}"
    context = sections.Context(
        data=str(arguments.collection.resolve()),
        work=str(arguments.work.resolve()),
        limit=None,
        query_count=0,
        single_count=0,
        threads=1,
        options={
            "queries": str(arguments.queries.resolve()),
            "seconds": arguments.seconds,
            "ray": not arguments.no_ray,
            "beside": None if arguments.beside is None else str(arguments.beside.resolve()),
        },
    )
    table = serve.run(context, arguments.out, name, arguments.only)
    show(arguments.out, name)
    print(lines.tally(table))


def run_newcomer(arguments: argparse.Namespace) -> None:
    data = arguments.data.resolve()
    name = arguments.name or f"newcomer-{data.name}"
    work = str(arguments.work.resolve())
    context = sections.Context(str(data), work, None, 0, 0, 1, {})
    newcomer.run(context, arguments.out, name, arguments.only)
    show(arguments.out, name)


def run_soak(arguments: argparse.Namespace) -> None:
    from bench.commands import soak  # as above

    plan = soak.Plan(
        arguments.minutes,
        arguments.rest,
        arguments.rows,
        seed=arguments.seed,
        patient=arguments.patient,
    )
    verdicts = soak.run(plan, out=arguments.out, name=arguments.name)
    show(arguments.out, f"soak-{arguments.name}")
    if not all(one.holds for one in verdicts):
        sys.exit("soak: something does not hold")


def run_hard(arguments: argparse.Namespace) -> None:
    data = arguments.data.resolve()
    run = hard.Run(
        data=data,
        work=arguments.work.resolve(),
        out=arguments.out.resolve(),
        name=arguments.name,
        threads=arguments.threads,
        peers=() if arguments.no_peers else hard.PEERS,
        velo=not arguments.no_velo,
    )
    sets = arguments.sets
    if arguments.filters and not arguments.tables:
        own_sets = [name for name in sets or hard_filters.MADE if name in hard_filters.MADE]
        other_sets = [name for name in sets or () if name not in hard_filters.MADE]
        names = hard.chosen_names(data, other_sets) if other_sets or not sets else []
        hard_filters.run(run, [*own_sets, *names])
    elif not arguments.tables:
        hard.run_sets(run, hard.chosen_names(data, sets))
    print(hard_tables.write(run.out, run.name, arguments.before).read_text())


def query_count(folder: Path) -> int:
    """Half of a set's queries, so that as many are left to fill caches; at most 5,000, and 2,000 of them for
    sets that are searched in minutes.
    """
    dataset = datasets.load(folder)
    return min(len(dataset.queries) // 2, 5000 if dataset.n > 200_000 else 2000)


def show(out: Path, name: str) -> None:
    print((out / f"{name}.md").read_text())


def run_outside(arguments: argparse.Namespace) -> None:
    checkouts = [checkout.resolve() for checkout in arguments.checkouts]
    if arguments.what == "page":
        outside.page(checkouts, arguments.out, arguments.name)
        return
    if arguments.data is None:
        sys.exit("outside: --data says which set is placed")
    dataset = datasets.load(arguments.data.resolve(), query_count=arguments.queries)
    for checkout in checkouts:
        outside.place(checkout, dataset)
        print(f"{outside.project_of(checkout).name}: velo is placed")


def main() -> None:
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a section's processes end with it
    try:
        match arguments.command:
            case "sweep":
                run_sweep(arguments)
            case "report":
                run_report(arguments)
            case "ladder" | "cache" | "layout":
                run_steps(arguments)
            case "filters":
                run_filters(arguments)
            case "score":
                dataset = datasets.load(
                    arguments.data.resolve(), limit=arguments.limit, query_count=arguments.queries
                )
                sweep.finish(dataset, arguments.run, arguments.out, arguments.name)
            case "hard":
                run_hard(arguments)
            case "live":
                run_live(arguments)
            case "budgets":
                run_budgets(arguments)
            case "confined":
                run_confined(arguments)
            case "capped":
                run_capped(arguments)
            case "rungs":
                run_rungs(arguments)
            case "speed":
                run_speed(arguments)
            case "serve":
                run_serve(arguments)
            case "soak":
                run_soak(arguments)
            case "store":
                store.run(arguments.rows, arguments.distinct)
            case "newcomer":
                run_newcomer(arguments)
            case "hybrid":
                arguments.work.mkdir(parents=True, exist_ok=True)
                hybrid.run(
                    arguments.data.resolve(),
                    arguments.maker,
                    arguments.wheel,
                    arguments.work.resolve(),
                    arguments.out,
                    arguments.name,
                    arguments.count,
                )
                show(arguments.out, arguments.name)
            case "outside":
                run_outside(arguments)
            case "data":
                print(datasets.find(arguments.set, arguments.maker))
            case "quotes":
                if faults := quotes.run(runs.ROOT, arguments.readme, put=arguments.write):
                    sys.exit("\n".join(faults))
            case "rewrite":
                print("\n".join(rewrite.run(arguments.out, arguments.names)))
            case "machine":
                host = machine.describe(Path.cwd(), arguments.probe)
                print(json.dumps(host, indent=1))
                print(tables.machine_line(host))
    except (datasets.DataError, install.PeerMissing) as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
