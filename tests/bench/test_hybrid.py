"""``bench hybrid``: what is counted of known items, and the page that says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import velo
from bench.commands import hybrid
from bench.commands.hybrid_asked import PARAPHRASES


def test_known_items_are_counted(tmp_path: Path) -> None:
    names = [*list(PARAPHRASES)[:3], *(f"package-{row}" for row in range(97))]
    summaries = [f"number{row}" for row in range(100)]
    asked = hybrid.asked_of(pa.table({"package": names, "summary": summaries}), 20)
    assert asked["paraphrase"] == ([PARAPHRASES[name] for name in names[:3]], [0, 1, 2])
    texts, rows = asked["name"]
    assert texts == [names[row] for row in rows]
    assert len(set(rows)) == 20

    vectors = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    with velo.build(
        tmp_path / "a.velo", vectors, metadata={"text": summaries}, text="text", threads=1, calibrate=False
    ) as index:
        # Vectors that know names, and nothing of the others.
        of_kind = {kind: np.zeros((len(texts), 8), np.float32) for kind, (texts, _) in asked.items()}
        of_kind["name"] = vectors[list(rows)]
        found = hybrid.measure(index, "summary", asked, of_kind)
    of = {(row["asked"], row["way"]): row for row in found}
    assert len(of) == 3 * len(hybrid.WAYS)
    assert of["name", "vectors"]["at_1"] == 1
    assert of["name", "words"]["at_10"] == 0
    assert of["summary", "words"]["at_1"] == 1
    assert of["summary", "both, by ranks"]["at_10"] == 1
    assert of["summary", "vectors"]["mean_reciprocal_rank"] < 0.5
    head = {
        "machine": {"cpu": "c", "cores": 1, "memory_gib": 1, "kernel": "k", "device": "d", "python": "p"},
        "dataset": "text",
        "n": 100,
        "dim": 8,
    }
    sizes = [{"column": "summary", "text_bytes": 10**6, "words_bytes": 10**6, "memory_bytes": 1 << 17}]
    page = hybrid.markdown(head, sizes, found)
    assert "| name | 20 | vectors | 1.000 | 1.000 | 1.000 |" in page
    assert page.count("| paraphrase | 3 |") == len(hybrid.WAYS)
