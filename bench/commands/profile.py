"""Where a query's processor time goes: samples of a profiler over the library with its symbols, by kind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness import datasets, runs
from bench.harness.datasets import DataError
from bench.harness.sections import Context, Results

BUDGET = "20%"
LISTS = (16, 128)
_PASSES = 30
_SAMPLES_A_SECOND = 4999
_BUILD_LIMIT_S = 900
_SEARCH_LIMIT_S = 600

#: The first that matches says what a symbol of the library is for; of other files, see `kind_of`.
KINDS = (
    ("scoring records of pages", r"on_page|dot_rows|record_distances|page\.View|estimate_page|take_pending"),
    ("checksums of pages", r"checksum|xxhash"),
    ("nearest centers, entry points", r"entry\.|shared\.|k_\w+_dot$"),
    ("preparing the query", r"rotation|hadamard|multiply|quantise|Query\.prepare|max_magnitude|space\."),
    ("estimates", r"estimate_gather"),
    ("the list of candidates", r"insert_nearest"),
    ("decoding lists of links", r"adjacency|links\."),
    (
        "following: who was met, who is next, waiting for memory",
        r"navigation|search_state|list\.|page_ways|page_set",
    ),
)
_ENGINE = "the rest of the library"
_KERNEL = "the operating system's side of reads"
_OTHERS = "Python and libraries"


def measure(context: Context) -> Results:
    """The section: µs a query by kind of work, for a short list and one that reaches recall 0.95."""
    if shutil.which("perf") is None:
        raise DataError("perf is not installed: a profile is made of its samples")
    dataset, folder = context.dataset(), context.folder / "profile"
    folder.mkdir(parents=True, exist_ok=True)
    index = runs.built_index(
        runs.velo_job(dataset, BUDGET, [], metadata=False), dataset, context.folder, folder, threads=2
    )
    np.save(folder / "queries.npy", np.ascontiguousarray(dataset.queries[: context.query_count]))
    library = _with_symbols(folder)
    return {"lists": {str(size): _profiled(folder, index, library, size) for size in LISTS}}


def _with_symbols(folder: Path) -> Path:
    zig = [sys.executable, "-m", "ziglang", "build", "libvelo", "--release=safe", "-Dstrip=false"]
    subprocess.run([*zig, "--prefix", str(folder)], cwd=runs.ROOT, check=True, timeout=_BUILD_LIMIT_S)
    return folder / "lib" / "libvelo.so"


def _profiled(folder: Path, index: Path, library: Path, list_size: int) -> dict[str, Any]:
    asked = [str(index), BUDGET, str(folder / "queries.npy"), str(list_size)]
    env = dict(os.environ, VELO_LIBRARY=str(library))
    samples = folder / f"{list_size}.data"
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.commands.profile", *asked],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=runs.ROOT,
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError("the searching process ended before its first query")
        record = ["perf", "record", "-e", "cpu-clock", "-F", str(_SAMPLES_A_SECOND), "-o", str(samples)]
        perf = subprocess.Popen([*record, "-p", str(child.pid)], stderr=subprocess.DEVNULL)
        time.sleep(1)  # until it is attached
        told: dict[str, Any] = json.loads(child.communicate("go\n", timeout=_SEARCH_LIMIT_S)[0])
        perf.wait(timeout=60)
    finally:
        child.kill()
    report = [
        "perf",
        "report",
        "-i",
        str(samples),
        "--stdio",
        "--no-children",
        "--sort",
        "dso,symbol",
        "-t",
        "|",
    ]
    text = subprocess.run(report, capture_output=True, text=True, check=True).stdout
    shares = shares_of(text, library.name)
    return told | {"us_by_kind": {kind: share * told["cpu_us"] for kind, share in shares.items()}}


def shares_of(report: str, library: str) -> dict[str, float]:
    """Shares by kind, the largest first, of lines ``12.3%|file|[.] symbol``; they add up to 1."""
    found: dict[str, float] = {}
    for line in report.splitlines():
        if match := re.match(r"\s*([\d.]+)%\s*\|\s*(.*?)\s*\|\s*\[(.)\]\s*(\S+)", line):
            share, file, level, symbol = match.groups()
            kind = kind_of(symbol, level == "k", file == library)
            found[kind] = found.get(kind, 0.0) + float(share)
    whole = sum(found.values()) or 1.0
    return {kind: found[kind] / whole for kind in sorted(found, key=lambda kind: -found[kind])}


def kind_of(symbol: str, in_kernel: bool, in_library: bool) -> str:
    if in_kernel:
        return _KERNEL
    if not in_library:
        return _OTHERS
    return next((kind for kind, pattern in KINDS if re.search(pattern, symbol)), _ENGINE)


def _search(index: str, memory: str, queries: str, list_size: str) -> None:
    import velo  # of this process alone, with the library that it is told

    rows = np.load(queries)
    with velo.open(index, memory=memory, threads=1) as opened:
        opened.search(rows, datasets.K, list_size=int(list_size))
        print("ready", flush=True)
        sys.stdin.readline()
        begin = time.process_time()
        for _ in range(_PASSES):
            answer = opened.search(rows, datasets.K, list_size=int(list_size))
        took = time.process_time() - begin
    stats = {name: float(np.mean(values)) for name, values in answer.stats.items()}
    counts = {name: stats[name] for name in ("estimates", "expanded", "reads", "records_scored")}
    print(json.dumps({"cpu_us": took / (_PASSES * len(rows)) * 1e6, **counts}))


if __name__ == "__main__":
    _search(*sys.argv[1:])
