"""``bench budgets``: from the least that opens to 30 %, and what stands beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.commands import budgets
from bench.harness.datasets import nearest
from bench.harness.sections import Context


def test_every_budget_has_its_plan_and_what_fails_is_named(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    folder = tmp_path / "small"
    folder.mkdir()
    base = random.normal(size=(2000, 64)).astype(np.float32)
    queries = random.normal(size=(120, 64)).astype(np.float32)
    np.save(folder / "base.npy", base)
    np.save(folder / "query.npy", queries)
    np.savez(folder / "truth.npz", ids=nearest(base, queries, 10, "l2"))
    (folder / "set.json").write_text(json.dumps({"metric": "l2"}))
    context = Context(str(folder), str(tmp_path / "work"), None, 60, 3, 1, {"lists": [16, 800]})
    out = tmp_path / "out"
    out.mkdir()
    peer = {
        "label": "hnswlib",
        "home": "memory",
        "n": 2000,
        "dim": 64,
        "resident_growth_bytes": 3 * 10**6,
        "disk_bytes": 10**6,
    }
    points = [
        {**peer, "list_size": size, "recall_at_10": recall, "qps": 1000.0, "device_bytes_per_query": 0.0}
        for size, recall in ((10, 0.9), (100, 1.0))
    ]
    counts = dict.fromkeys(("reads", "rounds", "estimates", "cpu_us_per_query"), 5.0)
    kept = dict.fromkeys(("codes", "links", "cache", "pages"), 1000)
    facts = {"plan": "links_in_memory", "links_kept": 16, "records_per_page": 30, "memory_bytes": kept}
    mine = [{**one, **counts, "label": "velo 20% 4+6", "facts": facts} for one in points]
    report = {"peer-hnswlib": points, "velo20": mine}
    lines = [{"section": name, "load": 1, "result": {"rows": rows}} for name, rows in report.items()]
    (out / "report-small.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    every = budgets.sections_of(context)
    chosen = [f"memory:{share}:1+7" for share in (*budgets.least_of(context.dataset()), "8%")]
    assert next(name for name in every if name.startswith("memory:")) == chosen[0]
    assert set(chosen) <= set(every)
    budgets.run(context, out, "small", chosen)
    rows = [json.loads(line) for line in (out / "small.jsonl").read_text().splitlines()]
    table = [row["row"] for row in rows if "row" in row]
    text = (out / "small.md").read_text()
    assert {budgets.kind_of(row) for row in table} >= {
        "codes of pages",
        "links on disk",
        "links that neighbors share",
    }
    assert all(row["bytes"] <= row["share"] * 4 * 64 for row in table)
    assert table[0]["rounds"] < table[1]["rounds"] > table[2]["rounds"]
    assert "| hnswlib | 3 | 586% | – | 1,000 |" in text
    assert "- memory:45%:4+6: not asked for" in text
    assert "| 20.0%¹ | 4+6 | 16 |" in text
    assert (out / "small.png").stat().st_size > 10_000
