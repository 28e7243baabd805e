"""README and docs quote the results as they are, whichever report README's table is made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.commands import quotes
from bench.harness.runs import ROOT


def test_readme_and_docs_quote_what_the_results_say() -> None:
    assert quotes.run(ROOT, None, put=False) == [], "`python -m bench quotes --write` puts it right"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What quotes look at, to be changed."""
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.png"))
    return tmp_path


@pytest.mark.parametrize("report", quotes.SETS)
def test_the_table_of_either_report_is_true(copy: Path, report: str) -> None:
    assert quotes.run(copy, report, put=True) == []
    assert quotes.readme_report(copy) == report
    assert quotes.run(copy, None, put=False) == []
    text = (copy / "README.md").read_text()
    assert f"docs/results/{report}-memory.png" in text
    assert f"\n{quotes.SETS[report][0]} SIFT descriptors" in text


def test_a_number_that_is_no_longer_so_is_a_fault_until_it_is_written(copy: Path) -> None:
    file = copy / "docs" / "results" / "report-sift100k.jsonl"
    rows: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row.get("section") == "velo20":
            for point in row["result"]["rows"]:
                point["qps"] *= 2
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = {fault.partition(":")[0] for fault in quotes.run(copy, "report-sift1m", put=False)}
    assert named == {"README.md", "docs/comparison.md"}
    assert quotes.run(copy, "report-sift1m", put=True) == []


def test_a_sentence_that_is_gone_is_a_fault(copy: Path) -> None:
    index = copy / "docs" / "index.md"
    index.write_text(index.read_text().replace(" at recall 0.95", ""))
    (fault,) = quotes.run(copy, None, put=True)
    assert fault.startswith("docs/index.md has 0 times:")
