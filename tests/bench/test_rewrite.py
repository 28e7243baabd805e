"""Pages of results are what their rows make of them now, and a color means one system in every picture."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from bench.commands import rewrite
from bench.harness import plots
from bench.harness.datasets import DataError
from bench.harness.runs import ROOT

RESULTS = ROOT / "docs" / "results"


def test_pages_are_what_their_rows_make_of_them(tmp_path: Path) -> None:
    out = tmp_path / "results"
    shutil.copytree(RESULTS, out, ignore=shutil.ignore_patterns("*.png"))
    written = rewrite.run(out, [])
    assert {name.split("-")[0] for name in written} == set(rewrite.WRITERS)
    other = [
        f"{name}{suffix}"
        for name in written
        for suffix in (".md", ".jsonl")
        if (out / f"{name}{suffix}").read_text() != (RESULTS / f"{name}{suffix}").read_text()
    ]
    assert other == [], "`python -m bench rewrite` puts it right"
    for name in written:
        text = (out / f"{name}.md").read_text()
        pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
        assert {file for file in pictures if not (out / file).exists()} == set()
        if "\n| what | target |" in text:
            assert text.index("![") < text.index("\n| what | target |"), name


def test_pages_without_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "report-bare.md").write_text("# bare\n")
    with pytest.raises(DataError, match="no rows are kept of 'report-bare'"):
        rewrite.run(tmp_path, ["report-bare"])


def test_a_color_is_one_system_s_everywhere() -> None:
    systems = [color for color, _ in plots.STYLES.values()]
    assert len(set(systems)) == len(systems)
    assert plots.SHADES[0] == plots.STYLES["velo"][0]
    others = (*plots.SHADES[1:], *plots.MOMENTS, plots.WRONG, plots.ASKED, plots.GRID)
    assert len(set(others)) == len(others)
    assert not set(others) & set(systems)
    table = Path(plots.__file__)
    named = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "bench").rglob("*.py"))
        if path != table and re.search(r"""["']#[0-9a-fA-F]{6}["']""", path.read_text())
    ]
    assert named == [], "colors stand in bench/harness/plots.py"


def test_a_label_has_the_color_of_the_system_it_begins_with() -> None:
    labels = ["velo, recall 0.9", "velo, filtering late", "hnswlib, over-fetching", "rows"]
    styles = plots.styled(labels)
    assert styles["hnswlib, over-fetching"].color == plots.STYLES["hnswlib"][0]
    mine = [styles[label] for label in labels if not label.startswith("hnswlib")]
    assert len(set(mine)) == 3
    assert {style.color for style in mine} <= set(plots.SHADES)
    many = plots.styled([str(number) for number in range(16)])
    assert len(set(many.values())) == 16
