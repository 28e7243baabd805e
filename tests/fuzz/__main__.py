"""``python -m tests.fuzz --count 5000``: change fields of indexes, mend the sums, use them in a child.

A finding is a signal, a hang, an error that is none of velo's, or an answer that cannot be: it is printed
with the seed that repeats it (``--only SEED``), and the command ends with 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz.runner import Fuzzer, build_sound


def main() -> int:
    """Run so many cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=5_000, help="cases")
    parser.add_argument("--seed", type=int, default=1, help="of the first case; the others follow")
    parser.add_argument("--only", type=int, help="run this one case, and say what it does")
    parser.add_argument("--folder", type=Path, help="where to keep the indexes (default: a temporary folder)")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    if arguments.only is not None:
        seeds = range(arguments.only, arguments.only + 1)
    outcomes: Counter[str] = Counter()
    findings = 0
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        Fuzzer(build_sound(Path(folder))) as fuzzer,
    ):
        for number, seed in enumerate(seeds, 1):
            case = fuzzer.run(seed)
            outcomes.update(case.outcomes)
            if case.findings or arguments.only is not None:
                print(case, flush=True)
            findings += bool(case.findings)
            if number % 500 == 0:
                print(f"{number} cases, {findings} with findings", file=sys.stderr, flush=True)
    print(f"{len(seeds)} cases from seed {seeds.start} on, {findings} with findings")
    for outcome, count in outcomes.most_common():
        print(f"{count:7d} {outcome}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
