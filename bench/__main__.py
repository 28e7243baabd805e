"""``python -m bench``: benchmarks of velo and its peers; docs/HACKING.md lists the commands."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

from bench.harness import datasets, targets
from bench.harness.report import Report
from bench.peers import install

#: Commands by the module whose ``REPORT`` describes each; those of serving import its packages.
REPORTS = ("report", "speed", "budgets", "sweep", "filters", "hard", "live", "confined", "hybrid", "serve")


def report_of(name: str) -> Report:
    """The report of a command."""
    described: Report = importlib.import_module(f"bench.commands.{name}").REPORT
    return described


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for name in REPORTS:
        try:
            described = report_of(name)
        except ModuleNotFoundError as error:
            if error.name != "velo_serving":  # only `serve` needs it
                raise
            continue
        described.add_arguments(commands.add_parser(name, help=described.help))
    sub = commands.add_parser("soak", help="reads and writes while processes die and builds are exchanged")
    sub.add_argument("--minutes", type=float, default=30.0)
    sub.add_argument("--rest", type=float, default=6.0, help="seconds between two events")
    sub.add_argument("--rows", type=int, default=20_000, help="of each of two builds")
    sub.add_argument("--seed", type=int, default=17)
    sub.add_argument(
        "--patient", action="store_true", help="for a busy machine: a slow shard is not taken for hung"
    )
    sub.add_argument("--out", type=Path, default=Path("docs/results"))
    sub.add_argument("--name", default="serve")
    from bench.commands import gpu

    gpu.add_arguments(commands.add_parser("gpu", help="a GPU against the processors beside it"))
    return top


def run_soak(arguments: argparse.Namespace) -> None:
    from bench.commands import soak

    plan = soak.Plan(
        arguments.minutes, arguments.rest, arguments.rows, seed=arguments.seed, patient=arguments.patient
    )
    verdicts = soak.run(plan, out=arguments.out, name=arguments.name)
    if not all(one.holds for one in verdicts):
        sys.exit("soak: something does not hold")


def main() -> None:
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a section's processes end with it
    try:
        if arguments.command == "soak":
            run_soak(arguments)
        elif arguments.command == "gpu":
            from bench.commands import gpu

            gpu.run(arguments)
        elif lines := report_of(arguments.command).main(arguments):
            print(targets.tally(lines))
    except (datasets.DataError, install.PeerMissing) as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
