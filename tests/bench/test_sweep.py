"""A small sweep of each kind runs in every test run, so that the benchmarks cannot rot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench.commands import sweep
from bench.harness import datasets, machine, runs
from bench.peers import install

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "data"


def test_sweep_measures_velo_beside_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The one peer that needs no environment of its own: this one has numpy.
    monkeypatch.setattr(install, "interpreter", lambda name, work: Path(sys.executable))
    dataset = datasets.load(SAMPLE, limit=4000, query_count=100)
    jobs = [runs.velo_job(dataset, "20%", ["24", "96@1"]), runs.peer_job("numpy", dataset, [], 0.2)]
    rows = sweep.run(
        dataset, jobs, work=tmp_path / "work", out=tmp_path / "out", name="small", single_count=20
    )

    exact = next(row for row in rows if row["system"] == "numpy")
    assert exact["recall_at_10"] == 1
    narrow, wide = (row for row in rows if row["system"] == "velo")
    assert wide["recall_at_10"] >= max(0.9, narrow["recall_at_10"])
    assert wide["budget_bytes"] == 4000 * 128 * 4 // 5
    assert wide["reads"] > 0
    assert wide["bytes_read"] >= wide["reads"] * 4096
    for row in rows:
        assert row["qps"] > 0
        assert row["latency_p50_us"] <= row["latency_p99_us"]
        assert row["cpu_us_per_query"] > 0

    lines = [json.loads(line) for line in (tmp_path / "out" / "small.jsonl").read_text().splitlines()]
    assert lines[0]["head"]["notes"] == []
    assert lines[1:] == rows
    table = (tmp_path / "out" / "small.md").read_text()
    assert "numpy, exact" in table
    assert f"velo 20% {runs.DEFAULT_BITS}" in table

    (run,) = (tmp_path / "work" / "runs").iterdir()
    assert sweep.finish(dataset, [run], tmp_path / "again") == rows


def test_a_system_that_fails_is_a_line_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, work: Path) -> Path:
        raise install.PeerMissing(f"{name}: skipped, it does not install here")

    monkeypatch.setattr(install, "interpreter", missing)
    dataset = datasets.load(SAMPLE, limit=500, query_count=10)
    job = runs.peer_job("hnswlib", dataset, [16], 0.2)
    assert sweep.run(dataset, [job], work=tmp_path / "work", out=tmp_path / "out", name="none") == []
    assert "hnswlib: skipped" in (tmp_path / "out" / "none.md").read_text()


def test_every_peer_has_a_runner_and_pinned_requirements() -> None:
    for name in install.NAMES:
        assert install.runner(name).is_file()
        lines = (install.HERE / name / "requirements.txt").read_text().split("\n")
        assert all("==" in line for line in lines if line.strip()), name


def test_machine_is_described(tmp_path: Path) -> None:
    file = tmp_path / "probe"
    file.write_bytes(bytes(1 << 20))
    host = machine.describe(tmp_path, file)
    assert host["cores"] >= 1
    assert host["cpu"]
    assert "reads" in host
