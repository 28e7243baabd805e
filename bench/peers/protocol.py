"""The protocol of a system under test: one process, one request file, one folder of answers.

A runner is a script in a folder beside this file. It subclasses :class:`System`, ends with
``run(MySystem)``, and is started with the interpreter of its own environment and one argument, a JSON file:

    base, queries    paths of npy files
    k, threads       numbers
    single_count     queries of the one-at-a-time pass (the first of ``queries``)
    folder           the index, kept between runs; ``built.json`` in it says that it is whole
    build, built_by  options of the build, and the builder: opaque here
    points           settings to measure, one after the other
    out              folder of the answers: ``i.npz`` and a line of ``points.jsonl`` for point i

Only numpy and the standard library are used here: environments import it that know nothing of velo.

The batch pass and the one-at-a-time pass are separate, and no clock runs inside the batch. Warm-up queries
are the last of the set, and are measured in neither pass when the set is large enough (a point's
``warm_up_count`` asks for more of them, to fill a cache). Pages of the index files are dropped from the page
cache before opening. Memory is the highest growth of the process's resident set since just before the index
was opened; bytes from the device are the kernel's own count for this process (/proc/self/io).
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import resource
import shutil
import sys
import time
from abc import ABC, abstractmethod
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP_COUNT = 200


class System(ABC):
    """One system under test."""

    #: The distribution under test.
    package = "numpy"
    #: "memory" or "disk": the place of the vectors during a search.
    home = "memory"
    #: The type of queries that the system takes; None: the set's own. The conversion is not timed.
    query_dtype: str | None = "float32"
    #: Queries of the one-at-a-time pass at most: a slow system needs no thousand.
    single_max = 1_000_000

    def __init__(self, request: dict[str, Any]) -> None:
        self.threads = int(request["threads"])
        self.k = int(request["k"])
        self.folder = Path(request["folder"])
        self.options: dict[str, Any] = request["build"]

    def version(self) -> str:
        """Version of the package under test."""
        return version(self.package)

    @abstractmethod
    def build(self, base: np.ndarray) -> None:
        """Build into ``self.folder`` (empty)."""

    @abstractmethod
    def open(self) -> None:
        """Open ``self.folder`` for searching."""

    def set_point(self, point: dict[str, Any]) -> None:
        """Take the settings of the next measurement."""
        self.point = point

    def search_one(self, query: np.ndarray) -> Any:
        """Ids of the nearest to one query; whatever the system returns (converted after the clock stops)."""
        return self.search_batch(query[None, :])

    @abstractmethod
    def search_batch(self, queries: np.ndarray) -> Any:
        """Ids of the nearest to all queries, by ``self.threads`` threads."""

    def ids(self, answer: Any) -> np.ndarray:
        """(query_count, k) int64 from what search_batch returned."""
        return np.asarray(answer, dtype=np.int64)

    def counters(self, answer: Any) -> dict[str, np.ndarray]:
        """Arrays with an entry for each query, by the names of velo's ``result.stats``."""
        return {}

    def facts(self) -> dict[str, Any]:
        """Facts beside the numbers: bytes in memory by part, the device, …"""
        return {}


def status_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


def reset_peak() -> None:
    """Make VmHWM start again from the present resident set."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def device_bytes() -> int:
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("read_bytes")).split()[1])


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def drop_page_cache(folder: Path) -> None:
    """Ask the kernel to forget the clean pages of every file below ``folder`` (needs no privilege)."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def build_once(system: System, base_path: str, built_by: str | None) -> dict[str, Any]:
    """Build into the system's folder unless it is whole; a second runner waits for the first."""
    system.folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{system.folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _build_unless_built(system, base_path, built_by)


def _build_unless_built(system: System, base_path: str, built_by: str | None) -> dict[str, Any]:
    marker = system.folder / "built.json"
    if marker.exists():
        built: dict[str, Any] = json.loads(marker.read_text())
        return built
    if system.folder.exists():
        shutil.rmtree(system.folder)
    system.folder.mkdir(parents=True)
    base = np.load(base_path, mmap_mode="r")
    reset_peak()
    before, start, cpu_start = status_bytes("VmRSS"), time.perf_counter(), cpu_s()
    system.build(base)
    built = {
        "build_s": round(time.perf_counter() - start, 2),
        "build_cpu_s": round(cpu_s() - cpu_start, 2),
        "build_peak_bytes": status_bytes("VmHWM") - before,
        "disk_bytes": folder_bytes(system.folder),
        "build_load": os.getloadavg()[0],
        "built_by": built_by,
    }
    marker.write_text(json.dumps(built))
    return built


def measure(
    system: System, point: dict[str, Any], queries: np.ndarray, single_count: int, k: int, out: Path
) -> dict[str, Any]:
    system.k = int(point.get("k", k))
    system.set_point(point)
    warm_up_count = int(point.get("warm_up_count", WARM_UP_COUNT))
    enough = len(queries) >= 5 * min(warm_up_count, WARM_UP_COUNT) and len(queries) > warm_up_count
    if warm_up_count and enough:
        queries, warm_up = queries[:-warm_up_count], queries[-warm_up_count:]
    else:
        warm_up = queries
    system.search_batch(warm_up)
    single_count = min(single_count, len(queries), system.single_max)

    start, cpu_start, io_start = time.perf_counter(), cpu_s(), device_bytes()
    answer = system.search_batch(queries)
    batch_s, batch_cpu_s, batch_io = (
        time.perf_counter() - start,
        cpu_s() - cpu_start,
        device_bytes() - io_start,
    )

    latency_s = np.empty(single_count)
    for i in range(single_count):
        start = time.perf_counter()
        system.search_one(queries[i])
        latency_s[i] = time.perf_counter() - start

    arrays: dict[str, Any] = {name: np.asarray(values) for name, values in system.counters(answer).items()}
    arrays["ids"] = system.ids(answer).astype(np.int32)
    arrays["latency_us"] = (latency_s * 1e6).astype(np.float32)
    np.savez_compressed(out, **arrays)
    return {
        "point": point,
        "query_count": len(queries),
        "single_count": single_count,
        "batch_s": batch_s,
        "batch_cpu_s": batch_cpu_s,
        "batch_device_bytes": batch_io,
        "load": os.getloadavg()[0],
    }


def run(kind: type[System]) -> None:
    """Entry of a runner: build if needed, open, measure every point."""
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    out = Path(request["out"])
    out.mkdir(parents=True, exist_ok=True)
    system = kind(request)
    if request.get("only") == "build":
        print(
            json.dumps(
                {"version": system.version(), **build_once(system, request["base"], request["built_by"])}
            )
        )
        return
    if not (system.folder / "built.json").exists():  # in a process of its own: its memory is not the search's
        build_request = Path(sys.argv[1]).with_suffix(".build.json")
        build_request.write_text(json.dumps({**request, "only": "build"}))
        if os.spawnv(os.P_WAIT, sys.executable, [sys.executable, sys.argv[0], str(build_request)]) != 0:
            sys.exit(f"{sys.argv[0]}: the build failed")
    built = build_once(system, request["base"], request["built_by"])

    queries = np.load(request["queries"])
    if system.query_dtype is not None:
        queries = queries.astype(system.query_dtype)
    gc.collect()
    drop_page_cache(system.folder)
    reset_peak()
    before = status_bytes("VmRSS")
    start = time.perf_counter()
    system.open()
    opened = {
        "version": system.version(),
        "home": system.home,
        "open_s": time.perf_counter() - start,
        **built,
    }
    with (out / "points.jsonl").open("w") as lines:
        for i, point in enumerate(request["points"]):
            line = measure(
                system, point, queries, int(request["single_count"]), int(request["k"]), out / f"{i}.npz"
            )
            line.update(opened)
            line["resident_growth_bytes"] = status_bytes("VmHWM") - before
            line["facts"] = system.facts()
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            print(json.dumps(line), flush=True)
