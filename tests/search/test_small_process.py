"""A process without codes of vectors in memory: how much it grows by, and the whole API within 64 MiB."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from bench.harness import cgroup
from bench.harness.datasets import DataError
from tests import child
from tests.rungs import PAGES_LEAST, budget_of
from velo.folder.ids import Ids, write_ids
from velo.testing import synthetic_vectors

ROWS, DIM = 20_000, 32
#: Buffers of two workers and 32 queries in flight; with text of libraries, which processes share.
OWN_MOST, GROWTH_MOST = 8_000_000, 12_000_000

GROWTH = """
    import json, sys
    import numpy as np
    import velo
    path, memory = sys.argv[1], int(sys.argv[2])
    queries = np.random.default_rng(2).standard_normal((1_000, 32), np.float32)

    def status_bytes(name):
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    before, own = status_bytes("VmRSS"), status_bytes("RssAnon")
    with velo.open(path, memory=memory, threads=2) as index:
        index.search(queries, 10, list_size=70)
        for query in queries[:50]:
            index.search(query, 10, list_size=70)
        grown = {"all": status_bytes("VmHWM") - before}
        # Searches that use more memory give it back.
        index.search(queries[:64], 1_000, list_size=8_000)
        grown["own"] = status_bytes("RssAnon") - own
        print(json.dumps(grown | {"plan": index.info()["plan"]}))
    """


def test_a_process_grows_little_beside_codes_of_pages(tmp_path: Path) -> None:
    rows = synthetic_vectors(ROWS, DIM, seed=3, intrinsic_dim=12)
    path = tmp_path / "i"
    build: Any = {"page_codes": True, "page_links": False, "calibrate": False, "degree": 24}
    velo.build(path, rows, build_list_size=30, **build).close()
    done = child.run(GROWTH, path, budget_of(path, PAGES_LEAST))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["plan"] == "walk"
    assert told["own"] < OWN_MOST
    assert told["all"] < GROWTH_MOST


def resident_of(name: str) -> int:
    """Resident bytes of the mappings in this process whose path contains `name`."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            inside = name in line
        elif inside and head[0] == "Rss:":
            total += int(head[1]) * 1024
    return total


@pytest.mark.parametrize("strings", [False, True])
def test_pages_of_ids_leave_the_resident_set(
    strings: bool, tmp_path: Path, random: np.random.Generator
) -> None:
    count = 400_000
    order = random.permutation(count).astype(np.uint32)
    given: Any = np.arange(count) * 7
    if strings:
        import pyarrow as pa

        given = pa.array(np.char.add("row ", given.astype(str)).tolist(), pa.large_string())
    write_ids(tmp_path, given, order)
    mapped, released = Ids(tmp_path, count), Ids(tmp_path, count, is_released=True)
    vertices = random.integers(-1, count, (300, 10))
    file = str(tmp_path / "ids.arrow")
    expected = mapped.of(vertices)
    whole = resident_of(file)
    del mapped
    found = released.of(vertices)
    assert found.shape == vertices.shape
    assert found.dtype == expected.dtype
    assert (found == expected).all()
    assert resident_of(file) < 100_000 < whole
    known = vertices >= 0
    assert (released.find(expected[known][:5]) == vertices[known][:5]).all()
    assert len(released.page(min(expected[known]), 5, None)) == 5
    assert released._mapped_order is not None  # not in memory of its own
    unnamed = f"{tmp_path}/#"
    assert resident_of(unnamed) < 100_000
    assert released._ordered().sum() > 0
    assert resident_of(unnamed) > 1_000_000
    assert resident_of(file) < 100_000
    assert (released.of(vertices[known], complete=True) == expected[known]).all()


#: The start of both programs: they print the anonymous memory after each step.
START = """
    import json, sys
    import numpy as np
    import velo
    path, memory = sys.argv[1], int(sys.argv[2])

    def own():
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    def told(step, found=None):
        print(json.dumps({"step": step, "own": own(), "found": found}), flush=True)
    """

READS = """
    told("import")
    with velo.open(path, memory=memory, threads=1) as index:
        assert index.info()["plan"] == "walk"
        told("open")
        ids = np.arange(300)
        queries = np.ascontiguousarray(index.get_vectors(ids))
        group = velo.col("group") == 3
        for k, count in ((1, 300), (10, 300), (100, 50), (1_000, 5)):
            found = index.search(queries[:count], k, list_size=max(70, k))
            told(f"search, k={k}", int(found.counts.sum()))
        for query in queries[:20]:
            index.search(query, 10)
        told("single queries")
        told("exact", int(index.search(queries, 10, exact=True).counts.sum()))
        told("filter", int(index.search(queries, 10, filter=group).counts.sum()))
        told("mask", int(index.search(queries, 10, filter=np.arange(index.n) % 7 == 0).counts.sum()))
        told("groups", len(index.search(queries[0], 5, group_by="group").ids))
        radius = float(index.search(queries[0], 50).distances[-1])
        told("range", len(index.range_search(queries[0], radius).ids))
        told("explain", index.explain(queries[0], 10, filter=group).filter_plan.chosen)
        told("count", index.count(group))
        told("verify", index.verify())
        told("info", index.info()["memory_within_budget_bytes"])
    told("close")
    """

WRITES = """
    ids, new = np.arange(300), np.random.default_rng(5).standard_normal((300, 32), np.float32) * 3
    told("import")
    with velo.open(path, memory=memory, threads=1, writable=True) as index:
        told("open to write")
        columns = {"group": [3] * len(new)}
        given = np.arange(index.n, index.n + len(new))
        told("insert", index.insert(new, metadata=columns).rows)
        index.upsert(new[:50], given[:50], {"group": [4] * 50})
        told("upsert")
        index.delete(ids[:50])
        told("delete")
        found = index.search(new, 1, list_size=70)
        told("search", int(np.isin(found.ids[:, 0], given).sum()))
        index.flush()
        told("flush")
        found = index.search(new, 1, list_size=70)
        told("search over segments", int(np.isin(found.ids[:, 0], given).sum()))
        assert not np.isin(index.search(new, 10, list_size=70).ids, ids[:50]).any()
    told("close")
    """
#: Writes take more: a delta with vectors, then a segment that is built from it.
READ_LIMIT, WRITE_LIMIT = 64 << 20, 128 << 20


@pytest.mark.long(
    guarded_by="tests/search/test_small_process.py::test_a_process_grows_little_beside_codes_of_pages"
)
def test_the_whole_api_runs_in_a_small_process(tmp_path: Path) -> None:
    """The kernel holds it to the limit where it lets us; anonymous memory stays below it everywhere."""
    rows = synthetic_vectors(ROWS, DIM, seed=3, intrinsic_dim=12)
    path = tmp_path / "i"
    build: Any = {"page_codes": True, "page_links": False, "calibrate": False, "store_vectors": True}
    velo.build(path, rows, metadata={"group": np.arange(ROWS) % 10}, **build).close()
    memory = budget_of(path, PAGES_LEAST)
    for program, limit in ((READS, READ_LIMIT), (WRITES, WRITE_LIMIT)):
        steps, code = run_in(program, path, memory, limit)
        assert code == 0, steps[-1]
        assert steps[-1]["step"] == "close"
        assert max(step["own"] for step in steps) < limit
        if program is WRITES:
            found = {step["step"]: step["found"] for step in steps}
            assert found["search"] > 280
            assert found["search over segments"] > 280


def run_in(program: str, path: Path, memory: int, limit: int) -> tuple[list[Any], int]:
    """The steps of a program in a process of `limit` bytes, and how it ended."""
    arguments = [
        sys.executable,
        "-c",
        textwrap.dedent(START) + textwrap.dedent(program),
        str(path),
        str(memory),
    ]
    with contextlib.ExitStack() as stack:
        start: Any = subprocess.Popen
        with contextlib.suppress(DataError):
            start = stack.enter_context(cgroup.limited(limit)).popen
        options: Any = {"text": True} if start is subprocess.Popen else {}
        process = start(arguments, stdout=subprocess.PIPE, env=child.environment(), **options)
        output, _ = process.communicate(timeout=280)
    return [json.loads(line) for line in output.splitlines()], process.returncode
