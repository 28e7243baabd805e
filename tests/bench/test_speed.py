"""``bench speed``: its sections run over a small set, are kept, and the best pass of each setting counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.commands import profile, speed
from bench.harness.datasets import nearest
from bench.harness.sections import Context, Results


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """3,000 rows of 32 dimensions, as bench's own sets lie on disk."""
    random = np.random.default_rng(3)
    folder = tmp_path / "small"
    folder.mkdir()
    base = random.normal(size=(3000, 32)).astype(np.float32)
    queries = random.normal(size=(300, 32)).astype(np.float32)
    np.save(folder / "base.npy", base)
    np.save(folder / "query.npy", queries)
    np.savez(folder / "truth.npz", ids=nearest(base, queries, 10, "l2"))
    (folder / "set.json").write_text(json.dumps({"metric": "l2"}))
    options = {"budgets": ["20%"], "lists": ["16", "64"], "peer_lists": [], "passes": 2, "peers": []}
    return Context(str(folder), str(tmp_path / "work"), None, 80, 5, 1, options)


def test_velo_alone_is_measured_at_every_list_and_written(context: Context, tmp_path: Path) -> None:
    table = speed.run(context, tmp_path / "out", "small", ["velo:20%"])
    text = (tmp_path / "out" / "small.md").read_text()
    rows = [json.loads(line) for line in (tmp_path / "out" / "small.jsonl").read_text().splitlines()]
    section = next(row for row in rows if row.get("section") == "velo:20%")
    found = section["result"]["rows"]
    assert sorted(row["list_size"] for row in found) == [16, 64]
    assert all(row[speed.COST] > 0 and row["reads"] > 0 for row in found)
    assert max(row["recall_at_10"] for row in found) > 0.8
    assert "velo 20% 4+6" in text
    assert all(line.value is None for line in table)  # nobody stands beside it

    kept = (context.folder / "speed").rglob("velo-20%.json")
    assert json.loads(next(kept).read_text())["result"] == section["result"]


def curve(costs: dict[int, float]) -> Results:
    """A section's result: recall follows from the list."""
    recalls = {16: 0.85, 64: 0.94, 128: 0.97, 256: 0.995}
    rows = [
        {"system": "any", "list_size": size, "recall_at_10": recalls[size], speed.COST: cost}
        for size, cost in costs.items()
    ]
    return {"result": {"label": "any", "rows": rows}}


def test_ratios_are_taken_at_equal_recall_and_say_what_is_missing() -> None:
    mine = curve({16: 40, 64: 60, 128: 90, 256: 140})
    theirs = curve({16: 20, 64: 30, 128: 45, 256: 70})
    lines = speed.lines_of(
        {"velo:20%": mine, "peer:hnswlib": theirs, "peer:rabitqlib": {"error": "no wheel"}}
    )
    values = {line.what: (line.value, line.note) for line in lines}
    assert values["20%: µs of processor a query at recall 0.95 ÷ hnswlib"][0] == pytest.approx(2.0)
    assert values["20%: µs of processor a query at recall 0.99 ÷ rabitqlib"] == (None, "no wheel")
    assert values["45%: µs of processor a query at recall 0.95 ÷ hnswlib"] == (None, "not asked for")
    short = curve({16: 40, 64: 60})
    lines = speed.lines_of({"velo:20%": short, "peer:hnswlib": theirs, "peer:rabitqlib": theirs})
    short_of = [line for line in lines if line.what.startswith("20%")]
    assert all(line.value is None and "does not reach" in line.note for line in short_of)


def test_samples_of_a_profile_are_told_apart_by_what_they_are_for() -> None:
    report = """# Overhead|Shared Object|Symbol
 30.00%  |libvelo.so        |[.] navigation.navigate            |-      -
 10.00%  |libvelo.so        |[.] k_v4_estimate_gather           |-      -
  5.00%  |libvelo.so        |[.] hash.xxhash.XxHash3.hashLong   |-      -
 40.00%  |[kernel.kallsyms] |[k] iowrite16                      |-      -
 15.00%  |libpython3.so     |[.] navigation_of_another          |-      -
"""
    shares = profile.shares_of(report, "libvelo.so")
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == pytest.approx([0.4, 0.3, 0.15, 0.1, 0.05])
    assert "reads" in next(iter(shares))
    assert shares["estimates"] == pytest.approx(0.1)
    assert shares["checksums of pages"] == pytest.approx(0.05)
