"""Several processes verify, open, refresh, snapshot and search beside a writer; every error is a failure.

``python -m tests.live.soak --minutes 30`` prints the calls of each kind and the errors. An index lasts for
some seconds, so that first writes, flushes, merges and checkpoints all come often.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import pyarrow as pa

import velo
from tests import child
from velo.errors import VeloError

DIM = 8
BUILT_ROWS = 300
#: Seconds of an index, and how many are kept for calls under way.
INDEX_SECONDS = 3.0
INDEXES_KEPT = 6
KINDS = ["verify", "index.verify", "refresh", "search", "snapshot", "info", "plans", "pickle"]


def rows_of(ids: range) -> tuple[np.ndarray, list[int], dict[str, list[str] | list[int]]]:
    vectors = np.random.default_rng(ids.start).normal(size=(len(ids), DIM)).astype(np.float32)
    return vectors, list(ids), {"n": list(ids), "text": [f"word{one % 17}" for one in ids]}


def write(folder: Path, ends_at: float, random: np.random.Generator) -> int:
    """Make one index after another; the calls of the writer."""
    calls = 0
    while time.time() < ends_at:
        path = folder / f"{calls:09}.velo"
        vectors, ids, metadata = rows_of(range(BUILT_ROWS))
        if random.random() < 0.7:
            velo.build(
                path, vectors, ids=ids, metadata=metadata, text="text", calibrate=False, threads=1
            ).close()
        else:
            schema = pa.schema({"n": pa.int64(), "text": pa.string()})
            velo.create(path, dim=DIM, metadata=schema, text="text", threads=1).close()
        pending = folder / "current.tmp"
        pending.write_text(path.name)
        pending.rename(folder / "current")
        time.sleep(float(random.uniform(0, 0.3)))
        until = min(ends_at, time.time() + INDEX_SECONDS)
        next_id = BUILT_ROWS
        while time.time() < until:
            # Closed now and then: another writer takes a folder over.
            with velo.open(path, writable=True, durability="process", threads=1) as index:
                for _ in range(int(random.integers(1, 60))):
                    kind = random.choice(
                        ["insert", "upsert", "delete", "flush", "optimize", "columns"],
                        p=[0.4, 0.15, 0.2, 0.15, 0.07, 0.03],
                    )
                    calls += 1
                    if kind in ("insert", "upsert"):
                        chosen = range(next_id, next_id + int(random.integers(1, 40)))
                        next_id = chosen.stop
                        vectors, ids, metadata = rows_of(chosen)
                        names = [] if index.info()["columns"] is None else index.info()["columns"]
                        metadata |= {name: [0] * len(ids) for name in names if name not in metadata}
                        getattr(index, str(kind))(vectors, ids, metadata)
                    elif kind == "delete":
                        index.delete(random.integers(0, next_id, 12).tolist())
                    elif kind == "columns":
                        with contextlib.suppress(VeloError):  # there are enough of them
                            index.add_columns({f"added{int(random.integers(0, 3))}": 0})
                    else:
                        getattr(index, str(kind))()
        stale = sorted(folder.glob("*.velo"))[:-INDEXES_KEPT]
        for one in stale:
            shutil.rmtree(one)
        calls += 1
    return calls


def read(folder: Path, ends_at: float, random: np.random.Generator) -> tuple[dict[str, int], list[str]]:
    """Read the index of the moment in all ways; the calls of each kind, and the errors."""
    calls: collections.Counter[str] = collections.Counter()
    errors: list[str] = []
    queries = random.normal(size=(4, DIM)).astype(np.float32)
    while not (folder / "current").exists():
        time.sleep(0.01)
    opened: tuple[Path, velo.Index] | None = None
    kinds: list[str] = []
    copy = folder / f"copy-{os.getpid()}"
    while time.time() < ends_at or len(calls) <= len(KINDS):
        path = folder / (folder / "current").read_text()
        if opened is None or opened[0] != path or random.random() < 0.1:
            kind = "open"
        else:
            kinds = kinds or random.permutation(KINDS).tolist()
            kind = kinds.pop()
        calls[kind] += 1
        try:
            if kind == "open" or opened is None:
                if opened is not None:
                    opened[1].close()
                    opened = None
                opened = path, velo.open(path, threads=1)
                continue
            index = opened[1]
            if kind == "verify":
                velo.verify(path)
            elif kind == "index.verify":
                index.verify()
            elif kind == "refresh":
                index.refresh()
            elif kind == "search":
                index.search(queries, 3)
                index.search(queries[0], 3, text="word3")
                index.rows(limit=10_000)
            elif kind == "info":
                info = index.info()
                assert info["n"] >= 0
                assert index.count() <= info["n"] or index.refresh() is not None
            elif kind == "plans":
                with contextlib.suppress(velo.UnsupportedError):  # no segment yet, or none of two rows
                    velo.plans(path)
            elif kind == "pickle":
                index.__reduce__()[0](*index.__reduce__()[1]).close()
            else:
                index.snapshot(copy)
                velo.verify(copy)
                with velo.open(copy, threads=1) as one:
                    one.search(queries, 3)
        except Exception:
            errors.append(f"{kind} of {path.name}:\n{traceback.format_exc()}")
            print(errors[-1], file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    if opened is not None:
        opened[1].close()
    return dict(calls), errors


def run(folder: Path, seconds: float, seed: int, readers: int) -> tuple[dict[str, int], list[str]]:
    """One writer and the readers, each a process; the calls of each kind, and the errors."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.live.soak",
                "--of",
                str(folder),
                str(seconds),
                str(seed + number),
                role,
            ],
            stdout=subprocess.PIPE,
            env=child.environment(),
            text=True,
        )
        for number, role in enumerate(["write"] + ["read"] * readers)
    ]
    calls: collections.Counter[str] = collections.Counter()
    errors: list[str] = []
    for process in processes:
        out, _ = process.communicate(timeout=seconds + 120)
        if process.returncode != 0:
            errors.append(f"a process ended with {process.returncode}")
            continue
        of_one = json.loads(out.splitlines()[-1])
        calls.update(of_one["calls"])
        errors += of_one["errors"]
    return dict(calls), errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.of:
        folder, seconds, seed, role = arguments.of
        ends_at = time.time() + float(seconds)
        random = np.random.default_rng(int(seed))
        if role == "write":
            calls, errors = {"write": write(Path(folder), ends_at, random)}, []
        else:
            calls, errors = read(Path(folder), ends_at, random)
        print(json.dumps({"calls": calls, "errors": errors}))
        return
    with tempfile.TemporaryDirectory() as folder:
        calls, errors = run(Path(folder), 60 * arguments.minutes, arguments.seed, 4)
    for kind, count in sorted(calls.items()):
        print(f"{kind}: {count:,} calls")
    print(f"{len(errors)} errors (seed {arguments.seed})")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
