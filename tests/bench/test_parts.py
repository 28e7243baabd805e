"""Parts of the commands: peers, machines, plain reads, pages of vertices, known items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import velo
from bench.commands import hybrid
from bench.harness import machine
from bench.harness.datasets import DataError
from bench.harness.report import Page
from bench.peers import install


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


def test_a_machine_without_fio_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="fio is not installed"):
        machine.reads_at_depth(tmp_path / "pages")


def test_known_items_are_counted(tmp_path: Path) -> None:
    known = hybrid.paraphrases()
    assert len(known) > 80
    names = [*list(known)[:3], *(f"package-{row}" for row in range(97))]
    summaries = [f"number{row}" for row in range(100)]
    asked = hybrid.asked_of(pa.table({"package": names, "summary": summaries}), 20)
    assert asked["paraphrase"] == ([known[name] for name in names[:3]], [0, 1, 2])
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
        found = hybrid.measure(index, asked, of_kind)
    of = {(row["asked"], row["way"]): row for row in found}
    assert len(of) == 3 * len(hybrid.WAYS)
    assert of["name", "vectors"]["at_1"] == 1
    assert of["name", "words"]["at_10"] == 0
    assert of["summary", "words"]["at_1"] == 1
    assert of["summary", "both, by ranks"]["at_10"] == 1
    assert of["summary", "vectors"]["mean_reciprocal_rank"] < 0.5
    told = {"text_bytes": 10**6, "words_bytes": 10**6, "memory_bytes": 1 << 17, "rows": found}
    (table,) = hybrid.content(Page(tmp_path, "hybrid", {}, {"summary": {"result": told}}))
    page = "\n".join(table.markdown())
    assert "| name | 20 | vectors | 1.000 | 1.000 | 1.000 |" in page
    assert page.count("| paraphrase | 3 |") == len(hybrid.WAYS)
