"""``bench serve`` over a small collection: every line is measured, and held against its target."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import velo
from bench.commands import serve


def test_targets_compare_what_was_measured() -> None:
    rows: list[dict[str, object]] = [
        {"what": "fan-out over the road", "p50_ms": 0.2, "p99_ms": 0.8},
        {"what": "one JSON query at a time", "p50_ms": 1.5},
        {"what": "JSON, 32 connections", "queries_per_s": 3000.0},
        {"what": "JSON, 32 connections, 2 workers", "queries_per_s": 6000.0},
        {"what": "npy bodies of 64, 4 connections", "queries_per_s": 800.0},
        {"what": "library", "queries_per_s": 1000.0, "slowest_shard_p50_ms": 1.0},
        {"what": "shards at once", "queries_per_s": 4000.0},
    ]
    assert [line.value for line in serve.targets(rows)] == [0.2, 0.8, 0.5, 3000.0, 2.0, 0.8, 0.8]


def test_idle_shards_answer_over_the_road() -> None:
    told = {row["what"]: row for row in serve.fan_out(8, ray=False, count=50)}
    assert 0 < told["fan-out over the road"]["p50_ms"] <= told["fan-out over the road"]["p99_ms"]


@pytest.mark.long(guarded_by="tests/bench/test_serve.py::test_targets_compare_what_was_measured")
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
