"""``bench serve`` over a small collection: every line is measured, and held against its target."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import velo
from bench.commands import serve


@pytest.mark.timeout(600)
def test_every_line_is_measured(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    vectors = random.standard_normal((2000, 16)).astype(np.float32)
    path = velo.build_collection(tmp_path / "small.velo", vectors, shards=serve.SHARDS, threads=2)
    np.save(tmp_path / "queries.npy", random.standard_normal((300, 16)).astype(np.float32))
    serve.run(path, tmp_path / "queries.npy", seconds=0.3, ray=False, out=tmp_path, name="small")
    rows = [json.loads(line) for line in (tmp_path / "serve-small.jsonl").read_text().splitlines()]
    measured = serve.targets(rows)
    assert len(measured) == 7
    assert all(line.value is not None and line.value == line.value for line in measured)
    assert measured[3].value is not None
    assert measured[3].value > 1  # answers, not refusals
    events = {row["what"]: row for row in rows if "partial" in row}
    assert events["nothing"]["asked"] == serve.ASKED
    assert events["a shard is killed"]["partial"] > 0
    page = (tmp_path / "serve-small.md").read_text()
    assert all(line.what in page for line in measured)
    assert (tmp_path / "serve-small.png").stat().st_size > 10_000
