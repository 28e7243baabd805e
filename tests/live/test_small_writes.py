"""Many small writes with searches between: what a search reads of the delta does not grow with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from tests.live.rows import DIM, SCHEMA, table, vectors_of
from velo.segments import delta

WRITES = 250


def test_a_record_is_read_a_few_times_however_many_there_are(
    index: velo.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = []
    read_batch = delta.read_batch

    def counted(*given: Any) -> Any:
        records.append(given)
        return read_batch(*given)

    monkeypatch.setattr(delta, "read_batch", counted)
    vectors = vectors_of(WRITES)
    newest: dict[int, int] = {}
    for row in range(WRITES):
        newest[row // 2] = row  # every second write replaces the row of the one before
        index.upsert(vectors[row : row + 1], [row // 2], table([row // 2]))
        for wanted in (row // 2, row // 4):
            found = index.search(vectors[newest[wanted]], 1, filter={"n": wanted})
            assert (found.ids.tolist(), found.distances.tolist()) == ([wanted], [0.0])
    # One of the sixteen that come before a chunk, then once for each doubling of its chunk.
    assert len(records) <= 16 * WRITES


def test_a_reader_follows_a_wal_that_starts_over(tmp_path: Path) -> None:
    """Rows that it has read lie elsewhere in memory then."""
    vectors = vectors_of(1040)
    path = tmp_path / "a.velo"
    with velo.create(path, dim=DIM, metadata=SCHEMA, durability="process", threads=1) as writer:
        for row in range(40):
            writer.upsert(vectors[row : row + 1], [row], table([row]))
        with velo.open(path, threads=1) as reader:
            assert reader.count(filter={"n": {"$lt": 40}}) == 40
            assert np.array_equal(reader.get_vectors(np.arange(40)), vectors[:40])
            logs = {entry.name for entry in path.glob("*.velolog")}
            for _ in range(100):
                writer.upsert(vectors[40:], np.arange(40, 1040), table(range(40, 1040)))
                if {entry.name for entry in path.glob("*.velolog")} != logs:
                    break
            else:
                pytest.fail("the log did not begin anew")
            assert writer.info()["live"]["parts"] == []
            writer.delete(ids=[3, 500])
            assert reader.count() == reader.count(filter={"n": {"$gte": 0}}) == 1038
            own = np.delete(np.arange(1040), [3, 500])
            assert np.array_equal(reader.get_vectors(own), vectors[own])
            found = reader.search(vectors[own], 1, recall=1.0, return_metadata=["n"])
            assert found.ids[:, 0].tolist() == own.tolist()
            assert [hits["n"][0].as_py() for hits in found.metadata] == own.tolist()
