"""``bench serve`` over a small collection: every line is measured, and held against its target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velo
from bench.commands import serve, serve_costs, serve_sections
from bench.harness.sections import Context


def test_targets_compare_what_was_measured() -> None:
    rows: list[dict[str, Any]] = [
        {"what": "JSON, 32 connections, processes", "gateway_us": 300.0, "shards_us": 400.0, "all_us": 700.0},
        {"what": "JSON, 32 connections, processes", "side": "former", "all_us": 1000.0},
        {"what": "JSON, 32 connections, threads", "gateway_us": 600.0, "shards_us": 0.0, "all_us": 600.0},
        {"what": "JSON, 1 connections, processes", "gateway_us": 500.0, "shards_us": 900.0, "all_us": 1400.0},
        {"what": "shards that answer at once", "all_us": 240.0},
        {"what": "shards that answer at once", "side": "FastAPI", "all_us": 120.0},
        {"what": "light queries alone", "p99_ms": 5.0, "refused": 0},
        {"what": "light queries beside heavy ones", "p99_ms": 10.0, "refused": 0},
        {"what": "fan-out over the road", "p50_ms": 0.2, "p99_ms": 0.8},
        {"what": "one JSON query at a time", "p50_ms": 1.5},
        {"what": "JSON, 32 connections", "queries_per_s": 3000.0},
        {"what": "JSON, 32 connections, 2 workers", "queries_per_s": 6000.0},
        {"what": "npy bodies of 64, 4 connections", "queries_per_s": 800.0},
        {"what": "library", "queries_per_s": 1000.0, "slowest_shard_p50_ms": 1.0},
        {"what": "shards at once", "queries_per_s": 4000.0},
    ]
    table = serve.targets(serve.rows_of({"all": {"result": {"rows": rows}}}))
    assert [line.value for line in table] == [
        *(700.0, 600.0, 500.0, 1400.0, 2.0, 2.0),
        *(0.2, 0.8, 0.5, 3000.0, 2.0, 0.8, 0.8),
    ]
    assert table[0].note == "gateway 300, shards 400; the version before: 1,000"
    assert [line.verdict for line in serve.targets({})] == ["not measured"] * len(table)


def test_idle_shards_answer_over_the_road() -> None:
    told = {row["what"]: row for row in serve_sections.fan_out(8, ray=False, count=50)}
    assert 0 < told["fan-out over the road"]["p50_ms"] <= told["fan-out over the road"]["p99_ms"]


@pytest.mark.long(guarded_by="tests/bench/test_serve.py::test_targets_compare_what_was_measured")
@pytest.mark.timeout(900)
def test_every_line_is_measured(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    vectors = random.standard_normal((2000, 16)).astype(np.float32)
    path = velo.build_collection(tmp_path / "small.velo", vectors, shards=serve_costs.SHARDS, threads=2)
    np.save(tmp_path / "queries.npy", random.standard_normal((600, 16)).astype(np.float32))
    options = {"queries": str(tmp_path / "queries.npy"), "seconds": 0.4, "ray": False, "beside": None}
    context = Context(str(path), str(tmp_path / "work"), None, 0, 0, 1, options)
    table = serve.run(context, tmp_path, "small", None)
    assert all(line.value is not None and line.value == line.value for line in table)
    told = [json.loads(line) for line in (tmp_path / "small.jsonl").read_text().splitlines()]
    rows = {row["what"]: row for one in told if "result" in one for row in one["result"]["rows"]}
    assert rows["JSON, 32 connections, processes"]["refused"] == 0
    assert rows["JSON, 32 connections, processes"]["shards_us"] > 0
    assert rows["nothing"]["asked"] == serve_sections.ASKED
    assert rows["a shard is killed"]["partial"] > 0
    page = (tmp_path / "small.md").read_text()
    assert all(line.what in page for line in table)
    assert (tmp_path / "small.png").stat().st_size > 10_000
