"""A process without codes of vectors in memory: how much it grows by, and the whole API within 64 MiB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
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
        grown = {"own": status_bytes("RssAnon") - own, "all": status_bytes("VmHWM") - before}
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
    """Resident bytes of the mappings of a file in this process."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()
        if "-" in head[0] and not head[0].endswith(":"):
            inside = line.endswith(name)
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
    assert (released.of(vertices[vertices >= 0], complete=True) == expected[vertices >= 0]).all()
