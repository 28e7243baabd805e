"""How a peer's rows come and go: the writes of ``bench live``, in a process of each peer's own.

A script of a peer subclasses :class:`LiveSystem` and ends with ``run(ThatSystem)``. It is started with the
interpreter of the peer's own environment and one argument, a JSON file that names the folder of ``base.npy``,
``queries.npy`` and ``truth.npy``, the metric, the threads, and how much is to be done. Its results go to
``answer.json`` there, and the ids of its searches to ``ids-….npy``, which are scored by the caller. Only
numpy and the standard library are used here: the file is imported inside environments that know nothing of
velo.

The first four fifths of the rows are built, then the last fifth comes in batches of 1,000. A system that
finds new rows well only after it was told to settle is told to, and the time counts. Searches use one setting
for all that follows: the least of the system's ladder with which the whole set is found at the recall asked.

A request may ask for a runbook instead (``what``): in one process what each setting finds in a fresh index,
in another every step with one setting.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

K = 10
KEPT = 0.8
BATCH = 1000
RSS_EVERY_S = 0.01


class LiveSystem(ABC):
    """One system whose rows come and go."""

    #: Settings from the quickest to the most careful.
    ladder: Sequence[int]
    #: Whether what is acknowledged survives the process.
    durable = True

    def __init__(self, request: dict[str, Any]) -> None:
        self.folder = Path(request["folder"]) / "index"
        self.folder.mkdir()
        self.metric = str(request["metric"])
        self.dim = int(request["dim"])
        self.capacity = int(request["capacity"])
        self.threads = int(request["threads"])
        self.setting = self.ladder[0]

    @abstractmethod
    def build(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """The first rows, however many at once."""

    @abstractmethod
    def insert(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """A batch; ids are new."""

    @abstractmethod
    def delete(self, ids: np.ndarray) -> None:
        """These ids, in as few calls as the system takes."""

    @abstractmethod
    def search(self, queries: np.ndarray) -> np.ndarray:
        """Ids of the nearest K of each, with ``setting``."""

    def settle(self) -> None:  # noqa: B027, most have to do nothing
        """What the system asks its users to call after writes, if anything."""

    def disk_bytes(self) -> int:
        return sum(entry.stat().st_size for entry in self.folder.rglob("*") if entry.is_file())


class Growth:
    """How far memory rises above where it stood, looked at every 10 ms."""

    def __init__(self) -> None:
        self.times = array("d")
        self.sizes = array("q")
        self._began_s = time.perf_counter()
        self._began = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    @staticmethod
    def _now() -> int:
        """Pages of our own: mapped files are the system's to drop."""
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def _look(self) -> None:
        while not self._stop.wait(RSS_EVERY_S):
            self.sizes.append(self._now() - self._began)
            self.times.append(time.perf_counter() - self._began_s)

    def bytes(self) -> int:
        """The greatest; it ends."""
        self._stop.set()
        self._thread.join()
        return max(self.sizes, default=0)


def bytes_written() -> int:
    """What this process gave to the system to write."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def rate(system: LiveSystem, queries: np.ndarray) -> float:
    """Queries a second, for a second at least."""
    began = time.perf_counter()
    rounds = 0
    while rounds == 0 or time.perf_counter() - began < 1.0:
        system.search(queries)
        rounds += 1
    return rounds * len(queries) / (time.perf_counter() - began)


def lone(system: LiveSystem, queries: np.ndarray, ended: Any) -> np.ndarray:
    """What single queries took until ``ended()``."""
    taken: list[float] = []
    while not taken or not ended():
        query = queries[len(taken) % len(queries)][None, :]
        began = time.perf_counter()
        system.search(query)
        taken.append(time.perf_counter() - began)
    return np.array(taken)


def beside_settling(system: LiveSystem, queries: np.ndarray, seconds: float) -> dict[str, Any]:
    """Single queries before the system settles, and while it does."""
    end = time.perf_counter() + seconds
    idle = lone(system, queries, lambda: time.perf_counter() > end)
    thread = threading.Thread(target=system.settle)
    thread.start()
    busy = lone(system, queries, lambda: not thread.is_alive())
    thread.join()
    return {
        name: {"calls": len(taken), "mean_us": taken.mean() * 1e6, "p99_us": np.quantile(taken, 0.99) * 1e6}
        for name, taken in (("idle", idle), ("busy", busy))
    }


def measure(system: LiveSystem, request: dict[str, Any]) -> dict[str, Any]:
    """Everything that is asked of a peer, in one process."""
    folder = Path(request["folder"])
    base = np.load(folder / "base.npy", mmap_mode="r")
    queries = np.load(folder / "queries.npy").astype(np.float32)
    truth = np.load(folder / "truth.npy")
    n = len(base)
    kept = int(n * KEPT)

    def rows(ids: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(base[ids], dtype=np.float32)

    def insert(ids: np.ndarray) -> None:
        for start in range(0, len(ids), BATCH):
            some = ids[start : start + BATCH]
            system.insert(rows(some), some)

    def asked(name: str) -> float:
        ids = system.search(queries)
        np.save(folder / f"ids-{name}.npy", ids)
        return float(
            np.mean([np.isin(row[:K], true[:K]).sum() / K for row, true in zip(ids, truth, strict=True)])
        )

    began = time.perf_counter()
    system.build(rows(np.arange(kept)), np.arange(kept))
    system.settle()
    told: dict[str, Any] = {"build_s": time.perf_counter() - began}

    growth, written = Growth(), bytes_written()
    new = np.arange(kept, n)
    began, used = time.perf_counter(), time.process_time()
    insert(new)
    told["insert_s"], told["insert_cpu_s"] = time.perf_counter() - began, time.process_time() - used
    system.settle()
    told["settled_s"], told["settled_cpu_s"] = time.perf_counter() - began, time.process_time() - used
    told["rows"] = len(new)
    told["growth_bytes"] = growth.bytes()
    told["written_share"] = (bytes_written() - written) / (len(new) * system.dim * 4)
    for setting in system.ladder:
        system.setting = setting
        told["recall"] = asked("whole")
        if told["recall"] >= request["recall"]:
            break
    told["setting"] = system.setting
    told["qps"] = rate(system, queries)

    random = np.random.default_rng(2)
    gone = random.permutation(n)[: n // 10]
    began = time.perf_counter()
    system.delete(gone)
    told["delete_s"], told["deleted"] = time.perf_counter() - began, len(gone)
    told["qps_tenth_dead"] = rate(system, queries)
    asked("tenth")
    np.save(folder / "gone.npy", gone)

    lives = np.ones(n, bool)
    lives[gone] = False
    for turn in range(int(request["turnovers"])):
        gone = random.permutation(np.flatnonzero(lives))[: int(lives.sum()) // 10]
        come = random.permutation(np.flatnonzero(~lives))[: len(gone)]
        system.delete(gone)
        insert(come)
        lives[gone], lives[come] = False, True
        if turn == 0:
            told["lone"] = beside_settling(system, queries, request["seconds"])
        else:
            system.settle()
    asked("churned")
    np.save(folder / "lives.npy", np.flatnonzero(lives))

    half = random.permutation(np.flatnonzero(lives))[: int(lives.sum()) // 2]
    system.delete(half)
    system.settle()
    told["disk_bytes"], told["disk_rows"] = system.disk_bytes(), int(lives.sum()) - len(half)
    return told


def settings(system: LiveSystem, request: dict[str, Any]) -> dict[str, Any]:
    """The ids that each setting finds among the rows of ``full.npy``, which are built at once."""
    folder = Path(request["folder"])
    base = np.load(folder / "base.npy", mmap_mode="r")
    queries = np.load(folder / "queries.npy").astype(np.float32)
    ids, rows = np.load(folder / "full.npy")
    system.build(np.ascontiguousarray(base[rows], dtype=np.float32), ids)
    system.settle()
    for setting in system.ladder:
        system.setting = setting
        np.save(folder / f"ids-setting-{setting}.npy", system.search(queries))
    return {"settings": list(system.ladder)}


def follow(system: LiveSystem, request: dict[str, Any]) -> dict[str, Any]:
    """A runbook, step by step: the ids of its searches, and what its writes took."""
    folder = Path(request["folder"])
    base = np.load(folder / "base.npy", mmap_mode="r")
    queries = np.load(folder / "queries.npy").astype(np.float32)
    system.setting = request["setting"]
    writes: dict[str, dict[str, Any]] = {}
    growth = Growth()
    start, start_cpu, search_cpu_s = time.perf_counter(), time.process_time(), 0.0
    for number, operation, first, stop, row, _ in request["steps"]:
        began, used = time.perf_counter(), time.process_time()
        if operation == "search":
            found = system.search(queries)
            search_cpu_s += time.process_time() - used
            np.save(folder / f"ids-step-{number}.npy", found)
            continue
        if operation != "insert" and first < stop:
            system.delete(np.arange(first, stop))
        if operation != "delete":
            for place in range(first, stop, BATCH):
                ids = np.arange(place, min(stop, place + BATCH))
                rows = base[row + place - first :][: len(ids)]
                system.insert(np.ascontiguousarray(rows, dtype=np.float32), ids)
        told = writes.setdefault(operation, {"rows": 0, "seconds": 0.0, "cpu_s": 0.0})
        told["rows"] += stop - first
        told["seconds"] += time.perf_counter() - began
        told["cpu_s"] += time.process_time() - used
    return {
        "writes": writes,
        "whole_s": time.perf_counter() - start,
        "cpu_s": time.process_time() - start_cpu - search_cpu_s,
        "growth_bytes": growth.bytes(),
    }


def run(system: type[LiveSystem]) -> None:
    """Entry of a peer's script."""
    request = json.loads(Path(sys.argv[1]).read_text())
    work = {"settings": settings, "runbook": follow}.get(request.get("what"), measure)
    told = work(system(request), request) | {"durable": system.durable}
    (Path(request["folder"]) / "answer.json").write_text(json.dumps(told))
