"""The newcomer's programs take the same steps, velo's runs, and answers are judged by the rows there are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.commands import newcomer
from bench.harness import sections
from bench.newcomer import run as program

ROWS = 3_000


@pytest.mark.parametrize("name", newcomer.SYSTEMS)
def test_programs_take_the_same_steps(name: str) -> None:
    text = (newcomer.PROGRAMS / f"{name}_program.py").read_text()
    steps = program.steps_of(text)
    assert ("import", *(step for step, *_ in steps[1:])) == newcomer.STEPS
    assert "".join(text for *_, text in steps) == text
    for _, number, step in steps:
        assert text.splitlines()[number - 1] == step.splitlines()[0]
    assert 15 <= program.lines_of(text) <= 50


def test_velo_s_program_over_a_small_set(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    data = tmp_path / "small"
    data.mkdir()
    np.save(data / "base.f16.npy", random.normal(size=(ROWS, 16)).astype(np.float16))
    np.save(data / "query.f16.npy", random.normal(size=(20, 16)).astype(np.float16))
    sections_of_rows = pa.array([["python", "games", "libs"][row % 3] for row in range(ROWS)])
    table = {
        "package": [f"p{row}" for row in range(ROWS)],
        "section": sections_of_rows.dictionary_encode(),
        "installed_size": list(range(ROWS)),
        "summary": ["a package"] * ROWS,
    }
    pq.write_table(pa.table(table), data / "meta.parquet")
    context = sections.Context(str(data), str(tmp_path / "work"), None, 0, 0, 1, {})
    newcomer.run(context, tmp_path / "out", "newcomer-small", ["velo"])
    text = (tmp_path / "out" / "newcomer-small.md").read_text()
    cells = {
        line.split("|")[1].strip(): line.split("|")[2].strip() for line in re.findall(r"^\|.*", text, re.M)
    }
    gone = set(program.gone_of(ROWS - program.NEW))
    left = [row for row in range(1, ROWS, 3) if row not in gone]
    assert cells["counted"] == f"{len(left):,}"
    assert cells["rows found that may not be"] == "0"
    assert min(float(value) for key, value in cells.items() if key.startswith("recall")) > 0.8
    assert "- usearch: not asked for" in text
    newcomer.rewrite(tmp_path / "out", "newcomer-small")
    assert (tmp_path / "out" / "newcomer-small.md").read_text() == text


def test_recall_counts_what_may_be_found() -> None:
    near = np.array([[5.0], [4.0], [3.0], [2.0]] + [[0.0]] * 10, np.float32)
    may = np.ones(14, bool)
    may[0] = False
    best = [1, 2, 3, *range(4, 11)]
    assert newcomer.recall(near, may, [best]) == (1.0, 0)
    assert newcomer.recall(near, may, [[0, *best[1:]]]) == (0.9, 1)
    assert newcomer.recall(near, may, [best[:5]]) == (0.5, 0)
    assert newcomer.recall(near, may, [[*best[:-1], 1]])[0] == 0.9
