"""What ``bench live`` measures: rows that come and go, section by section, each over a folder of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import velo
from bench.commands import live_churn, live_many, live_peers, live_runbook
from bench.commands.live_indexes import (
    KEPT,
    RECALL,
    Truth,
    Work,
    built,
    columns,
    copy_of,
    created,
    growth_over_time,
    insert_all,
    memory_of,
    merge_memory_of,
    opened,
    searched,
    stretches,
)
from bench.harness.datasets import DataError, Dataset, K
from bench.harness.sections import Context, Results, Section
from bench.peers.live import Growth, bytes_written

#: Others that take all writes, or those of a runbook.
PEERS = tuple(dict.fromkeys([*live_peers.NAMES, *live_runbook.PEERS]))
_LIMIT_S = 4 * 3600.0
#: Longer than a merge that may have begun takes at sizes like these.
_REST_S = 10.0
#: Of the rows, in the index that young parts come to: once they have a fifth as many, all become one.
_OLD = 0.85

#: Writes batches until the log holds some, says so, and is killed.
_WRITER = """
import json, sys
import numpy as np
import velo

path, rows, memory, durability = sys.argv[1], np.load(sys.argv[2], mmap_mode="r"), int(sys.argv[3]), "process"
with velo.open(path, writable=True, memory=memory, durability=durability) as index:
    for start in range(0, len(rows), 1000):
        some = np.asarray(rows[start : start + 1000])
        ids = np.arange(10**9 + start, 10**9 + start + len(some))
        done = index.insert(some, ids, {"bucket": (ids % 10).astype(np.int8)})
        if done.pressure > 0.4:
            break
    print(json.dumps({"log_bytes": index.info()["live"]["log_bytes"]}), flush=True)
    sys.stdin.read()
"""


def sections_of(context: Context) -> Mapping[str, Section]:
    """Every section by name, in the order in which they run."""
    peers = context.options["peers"]
    for name in peers:
        if name not in PEERS:
            raise DataError(f"no peer {name!r}; there are {', '.join(PEERS)}")
    every: dict[str, Callable[[Context], Results]] = {
        "insert": insert,
        "double": double,
        "upserts": upserts,
        "deletes": deletes,
        "parts": parts,
        "many": live_many.many,
        "dead": dead,
        "merge": merge,
        "disk": disk,
        "kill": kill,
        **{f"churn:{kind}": partial(live_churn.churn, kind) for kind in live_churn.KINDS},
        "runbook": live_runbook.runbook,
        **{
            f"runbook:{name}": partial(live_runbook.peer, name)
            for name in live_runbook.PEERS
            if name in peers
        },
        **{f"peer:{name}": partial(live_peers.peer, name) for name in live_peers.NAMES if name in peers},
    }
    return {name: Section(name, measure, _LIMIT_S) for name, measure in every.items()}


def insert(context: Context) -> Results:
    """All rows into an index without any: the rate, and what folds add to it."""
    dataset = context.dataset()
    with Work(context, dataset, "insert") as work:
        return _until_merged(context, dataset, partial(created, context, dataset, work / "a.velo"), 0)


def double(context: Context) -> Results:
    """Half of the rows are there, and as many come."""
    dataset = context.dataset()
    with Work(context, dataset, "double") as work:
        path = copy_of(built(context, dataset, 0.5), work / "a.velo")
        return _until_merged(context, dataset, partial(opened, context, dataset, path), dataset.n // 2)


def _until_merged(
    context: Context, dataset: Dataset, index_of: Callable[[], velo.Index], first: int
) -> Results:
    """The rows from `first` on are inserted, until all is in one part."""
    pa.array([0])  # with the first, pyarrow imports pandas where it is: some 28 MiB
    growth = Growth()
    before = bytes_written()
    began, used = time.perf_counter(), time.process_time()
    with index_of() as index:
        last = min(dataset.n, first + context.options["burst"])
        few = insert_all(index, dataset, np.arange(first, last), 1000)
        rest = insert_all(index, dataset, np.arange(last, dataset.n), 1000)
        index.flush()
        parts_before = len(index.info()["live"]["parts"])
        flushed = time.perf_counter() - began
        flushed_cpu = time.process_time() - used
        index.optimize()
    rows = dataset.n - first
    return {
        "burst": few,
        "rest": rest,
        "given_rows": rows,
        "flushed_s": flushed,
        "flushed_cpu_s": flushed_cpu,
        "parts": parts_before,
        "whole_s": time.perf_counter() - began,
        "whole_cpu_s": time.process_time() - used,
        "written_bytes": bytes_written() - before,
        "given_bytes": rows * dataset.dim * dataset.base.dtype.itemsize,
        "given_float32_bytes": rows * dataset.dim * 4,
        "growth_bytes": growth.bytes(),
        "growth_over_time": growth_over_time(growth),
        "memory_bytes": memory_of(context, dataset) + merge_memory_of(context, dataset),
    }


def upserts(context: Context) -> Results:
    """Single upserts with durability="sync", from many callers and from one."""
    dataset = context.dataset()
    found: Results = {}
    with Work(context, dataset, "upserts") as work:
        path = copy_of(built(context, dataset, KEPT), work / "a.velo")
        with opened(context, dataset, path, "sync") as index:
            for callers in (1, context.options["callers"]):
                found[str(callers)] = upserts_from(index, dataset, callers, context.options["seconds"])
    return found


def upserts_from(index: velo.Index, dataset: Dataset, callers: int, seconds: float) -> Results:
    end = time.perf_counter() + seconds
    taken: list[list[float]] = [[] for _ in range(callers)]
    failures: list[BaseException] = []

    def work(caller: int) -> None:
        random = np.random.default_rng(caller)
        try:
            while (start := time.perf_counter()) < end:
                row = int(random.integers(0, dataset.n))
                ids = np.array([row])
                index.upsert(np.asarray(dataset.base[row : row + 1]), ids, columns(ids))
                taken[caller].append(time.perf_counter() - start)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(callers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    every: Any = np.array([one for caller in taken for one in caller])
    return {
        "calls": len(every),
        "rate": len(every) / (time.perf_counter() - began),
        "p50_us": float(np.median(every)) * 1e6,
        "p99_us": float(np.quantile(every, 0.99)) * 1e6,
    }


def deletes(context: Context) -> Results:
    """Rows go by id in one call, and by a filter."""
    dataset = context.dataset()
    with Work(context, dataset, "deletes") as work:
        path = copy_of(built(context, dataset, 1.0), work / "a.velo")
        count = min(int(context.options["deletes"]), dataset.n // 2)
        chosen = np.random.default_rng(1).permutation(dataset.n)[:count]
        with opened(context, dataset, path, "sync") as index:
            index.delete([int(chosen[0])])  # the first write makes the folder live
            began = time.perf_counter()
            by_id = index.delete(chosen)
            id_s = time.perf_counter() - began
            began = time.perf_counter()
            by_filter = index.delete(filter=velo.col("bucket") == 3)
            filter_s = time.perf_counter() - began
    return {"by_id": by_id.rows, "id_s": id_s, "by_filter": by_filter.rows, "filter_s": filter_s}


def parts(context: Context) -> Results:
    """Searches of a fresh build; with as many young rows beside as parts may have; of one part again."""
    dataset = context.dataset()
    truth = Truth(context, dataset, np.arange(dataset.n))
    found: Results = {}
    with Work(context, dataset, "parts") as work:
        with opened(context, dataset, copy_of(built(context, dataset, 1.0), work / "fresh.velo")) as index:
            found["fresh"] = searched(context, index, truth)
        path = copy_of(built(context, dataset, _OLD), work / "a.velo")
        with opened(context, dataset, path) as index:
            new = np.arange(int(dataset.n * _OLD), dataset.n)
            began = time.perf_counter()
            found["at_once"] = 0
            for some in np.array_split(new, 4):
                insert_all(index, dataset, some, 1000)
                probes = some[:: max(1, len(some) // 25)]
                near = index.search(np.asarray(dataset.base[probes]), 1, recall=RECALL).ids[:, 0]
                same = (dataset.base[near] == dataset.base[probes]).all(axis=1)  # copies of a row are as near
                found["at_once"] += int(same.sum())
                found["probes"] = found.get("probes", 0) + len(probes)
                index.flush()
            found["flushed_s"] = time.perf_counter() - began
            found["new"] = len(new)
            found["young"] = searched(context, index, truth)
            found["young"]["parts"] = len(index.info()["live"]["parts"])
            began, used = time.perf_counter(), time.process_time()
            index.optimize()
            found["optimize_s"] = time.perf_counter() - began
            found["optimize_cpu_s"] = time.process_time() - used
            found["merged"] = searched(context, index, truth)
    return found


def dead(context: Context) -> Results:
    """Searches where a tenth of the rows is dead."""
    dataset = context.dataset()
    gone = np.random.default_rng(2).permutation(dataset.n)[: dataset.n // 10]
    rows = np.setdiff1d(np.arange(dataset.n), gone)
    with (
        Work(context, dataset, "dead") as work,
        opened(context, dataset, copy_of(built(context, dataset, 1.0), work / "a.velo")) as index,
    ):
        none = searched(context, index, Truth(context, dataset, np.arange(dataset.n)))
        index.delete(gone)
        return {"none": none, "tenth": searched(context, index, Truth(context, dataset, rows))}


def merge(context: Context) -> Results:
    """A caller alone, with nothing beside it and while everything is made into one part."""
    dataset = context.dataset()
    queries = np.asarray(dataset.queries[: context.query_count])
    with Work(context, dataset, "merge") as work:
        path = copy_of(built(context, dataset, KEPT), work / "a.velo")
        with opened(context, dataset, path) as index:
            insert_all(index, dataset, np.arange(int(dataset.n * KEPT), dataset.n), 1000)
            index.flush()
            wait_until_at_rest(index)

            first = time.perf_counter()
            over_time: list[list[float]] = []

            def lone(until: Callable[[], bool]) -> list[float]:
                taken: list[float] = []
                starts: list[float] = []
                while not until():
                    query = queries[len(taken) % len(queries)]
                    start = time.perf_counter()
                    index.search(query, K, recall=RECALL)
                    taken.append(time.perf_counter() - start)
                    starts.append(start - first)
                over_time.extend(stretches(starts, taken, max))
                return taken

            end = time.perf_counter() + 1.0
            lone(lambda: time.perf_counter() > end)
            over_time.clear()
            end = time.perf_counter() + float(context.options["seconds"])
            idle = lone(lambda: time.perf_counter() > end)
            uuid = index.info()["uuid"]
            growth = Growth()
            began = time.perf_counter()
            index.optimize(wait=False)
            last = [0.0, False]

            def ended() -> bool:
                if time.perf_counter() - last[0] > 0.1:  # a look costs more than a search
                    last[0], last[1] = time.perf_counter(), index.info()["uuid"] != uuid
                return bool(last[1])

            busy = lone(ended)
            seconds = time.perf_counter() - began
            growth_bytes = growth.bytes()
            merges = [began - first, began - first + seconds]
            end = time.perf_counter() + float(context.options["seconds"])
            lone(lambda: time.perf_counter() > end)
    return {
        "seconds": seconds,
        "over_time": over_time,
        "merge_s": merges,
        "growth_bytes": growth_bytes,
        "growth_over_time": growth_over_time(growth),
        "memory_bytes": memory_of(context, dataset) + merge_memory_of(context, dataset),
        **{
            name: {
                "calls": len(taken),
                "mean_us": float(np.mean(taken)) * 1e6,
                "p99_us": float(np.quantile(taken, 0.99)) * 1e6,
            }
            for name, taken in (("idle", idle), ("busy", busy))
        },
    }


def wait_until_at_rest(index: velo.Index) -> None:
    """Nothing was merged for longer than a merge of young parts takes here."""
    parts, since = index.info()["live"]["parts"], time.perf_counter()
    while time.perf_counter() - since < _REST_S:
        time.sleep(0.2)
        now = index.info()["live"]["parts"]
        if now != parts:
            parts, since = now, time.perf_counter()


def disk(context: Context) -> Results:
    """Half of the rows goes, and everything is made into one part."""
    dataset = context.dataset()
    with Work(context, dataset, "disk") as work:
        path = copy_of(built(context, dataset, 1.0), work / "a.velo")
        with opened(context, dataset, path) as index:
            index.delete(np.random.default_rng(3).permutation(dataset.n)[: dataset.n // 2])
            index.optimize()
            left = len(index)
        size = sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
    return {"rows": left, "bytes": size, "float32_bytes": left * dataset.dim * 4}


def kill(context: Context) -> Results:
    """A writer is killed with much in its log; how long the next one takes until it answers."""
    dataset = context.dataset()
    with Work(context, dataset, "kill") as work:
        path = copy_of(built(context, dataset, KEPT), work / "a.velo")
        np.save(work / "rows.npy", np.asarray(dataset.base))
        command = [sys.executable, "-c", _WRITER, str(path), str(work / "rows.npy")]
        command.append(str(memory_of(context, dataset)))
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            told = json.loads(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
        began = time.perf_counter()
        with opened(context, dataset, path) as index:
            open_s = time.perf_counter() - began
            index.search(np.asarray(dataset.queries[0]), K, recall=RECALL)
            first_s = time.perf_counter() - began
            rows = index.info()["live"]["delta"]["n"]
    return {"log_bytes": told["log_bytes"], "rows": rows, "open_s": open_s, "first_answer_s": first_s}
