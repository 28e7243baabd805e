"""Processes read while another writes and merges segments: no reader sees half of a call, or an error."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import velo
from tests import child
from tests.long import count
from velo.index import folder as segments
from velo.segments.segment import Segment

DIM = 8
READERS = count(2, 4)
GROUP = 10
"""Rows of a call: they come together and go together."""
SECONDS = count(2, 6)

#: A reader looks until a file says that the writer is done, and says in one line what it saw.
READER = """
import json, sys, time
from pathlib import Path
import numpy as np
import velo

path, stop, dim, group, seed = Path(sys.argv[1]), Path(sys.argv[2]), *(int(one) for one in sys.argv[3:6])
random = np.random.default_rng(seed)
looks = refreshes = found = 0
sequence = -1
with velo.open(path, threads=1) as index:
    print("open", flush=True)
    while not stop.exists() or looks < 3:
        live = index.info()["live"]
        assert live["sequence"] >= sequence, "time goes on"
        refreshes += live["sequence"] > sequence
        sequence = live["sequence"]
        rows = index.rows(limit=1_000_000, columns=["call"])
        calls, counts = np.unique(np.array(rows["call"]), return_counts=True)
        assert (counts == group).all(), "a call is there wholly or not at all"
        ids = np.array(rows["id"])
        assert len(np.unique(ids)) == len(ids), "an id has two rows"
        if len(ids):
            chosen = random.choice(ids, min(5, len(ids)), replace=False)
            queries = np.stack([np.random.default_rng(int(one)).normal(size=dim) for one in chosen])
            hits = index.search(queries.astype(np.float32), 1, recall=1.0)
            # The search follows the writer: some of the rows may be deleted by now.
            left = np.isin(chosen, index.rows(limit=1_000_000)["id"])
            assert (hits.ids[left, 0] == chosen[left]).all(), "a row that lives is found"
            found += len(chosen)
        looks += 1
print(json.dumps({"looks": looks, "refreshes": refreshes, "found": found}), flush=True)
"""


def vectors_of(ids: np.ndarray) -> np.ndarray:
    """The vector of each id."""
    return np.stack([np.random.default_rng(int(one)).normal(size=DIM) for one in ids]).astype(np.float32)


def test_processes_read_while_one_writes_and_merges(tmp_path: Path, random: np.random.Generator) -> None:
    path, stop = tmp_path / "a.velo", tmp_path / "stop"
    with velo.create(
        path, dim=DIM, metadata=pa.schema([("call", pa.int64())]), durability="interval"
    ) as index:
        readers = [
            child.start(READER, path, stop, DIM, GROUP, number, stderr=subprocess.PIPE)
            for number in range(READERS)
        ]
        try:
            for reader in readers:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "open\n", reader.communicate()[1]
            calls: list[int] = []
            next_call, merges, end = 0, 0, time.monotonic() + SECONDS
            while time.monotonic() < end or not merges:
                ids = np.arange(next_call * GROUP, (next_call + 1) * GROUP)
                index.insert(vectors_of(ids), ids, {"call": [next_call] * GROUP})
                calls.append(next_call)
                next_call += 1
                if len(calls) > 30 and random.random() < 0.4:
                    gone = calls.pop(int(random.integers(len(calls))))
                    index.delete(np.arange(gone * GROUP, (gone + 1) * GROUP))
                if next_call % 15 == 0:
                    index.flush()
                if next_call % 60 == 0:
                    index.optimize()
                    merges += 1
        finally:
            stop.touch()
            told = [reader.communicate(timeout=120) for reader in readers]
    for reader, (said, error) in zip(readers, told, strict=True):
        assert reader.returncode == 0, error
        seen = json.loads(said.splitlines()[-1])
        assert seen["looks"] >= 3
        assert seen["found"] > 0
    assert merges > 0


@pytest.mark.parametrize("when", [1, 3])
def test_an_index_is_opened_whose_segments_become_one_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    path = tmp_path / "a.velo"
    with velo.create(path, dim=DIM) as index:
        for first in (0, 100, 200):
            ids = np.arange(first, first + 100)
            index.insert(vectors_of(ids), ids)
            index.flush()

        opened: list[Segment] = []

        def segment(*arguments: Any, **options: Any) -> Segment:
            opened.append(Segment(*arguments, **options))
            if len(opened) == when:
                index.optimize()  # the root that was read names these segments no longer
            return opened[-1]

        monkeypatch.setattr(segments, "Segment", segment)
        with velo.open(path) as reader:
            monkeypatch.undo()
            assert len(reader) == 300
            assert len(reader.info()["live"]["parts"]) == 1
            assert (reader.search(vectors_of(np.arange(0, 300, 50)), 1, recall=1.0).ids[:, 0] % 50 == 0).all()
