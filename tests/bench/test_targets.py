"""Arithmetic of the reports: values at a recall, ratios, targets, cells of tables, colors of pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.harness import curves, plots, report, targets
from bench.harness.curves import RECALL
from bench.harness.runs import ROOT
from bench.harness.targets import Line, Target, at, of, ratio


def row(size: int, recall: float, **values: float) -> dict[str, object]:
    return {"list_size": size, RECALL: recall, **values}


CURVE = [row(64, 0.96, reads=12, qps=500), row(16, 0.80, reads=6, qps=2000), row(32, 0.92, reads=8, qps=1000)]
DIPS = [row(10, 0.90, reads=1), row(20, 0.96, reads=3), row(30, 0.94, reads=5), row(40, 0.97, reads=7)]


@pytest.mark.parametrize(
    ("rows", "key", "recall", "value", "exact"),
    [
        (CURVE, "reads", 0.95, 8 + 0.75 * 4, True),  # costs linearly
        (CURVE, "qps", 0.94, 1 / ((1 / 1000 + 1 / 500) / 2), True),  # rates by their inverse
        (CURVE, "reads", 0.92, 8, True),  # a setting that hits the recall
        (CURVE, "reads", 0.5, 6, False),  # the curve begins above
        (DIPS, "reads", 0.93, 2, True),  # the first crossing
        (CURVE, "reads", 0.97, None, True),
        (CURVE, "rounds", 0.9, None, True),
        ([], "reads", 0.9, None, True),
    ],
)
def test_values_at_a_recall(
    rows: list[dict[str, object]], key: str, recall: float, value: float | None, exact: bool
) -> None:
    found = curves.at_recall(rows, key, recall)
    if value is None:
        assert found is None
    else:
        assert found is not None
        assert (found.value, found.exact) == (pytest.approx(value), exact)


FOUND: dict[str, Any] = {
    "mine": {"result": {"rows": CURVE, "a": {"b": 6}, "steps": [{"x": 1}, {"x": 5}], "zero": 0}},
    "theirs": {"result": {"rows": [each | {"reads": 2 * float(str(each["reads"]))} for each in CURVE]}},
    "failed": {"error": "no wheel"},
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (at("mine", "reads", 0.95), 11),
        (ratio("theirs", "mine", "reads", 0.95), 2),
        (of("mine", "a.b"), 6),
        (of("mine", "a.b / steps.-1.x", "{a[b]} of {steps[1][x]}"), 1.2),
        (of("mine", "steps.-1.x - a.b"), -1),
        (of("mine", lambda told: told["a"]["b"] + 1), 7),
        (at("mine", "reads", 0.99), "recall 0.99 not reached (best 0.9600)"),
        (ratio("mine", "failed", "reads", 0.9), "failed: no wheel"),
        (of("mine", "a.c"), "mine has no such value"),
        (of("mine", "a.b / zero"), "mine has no such value"),
        (of("none", "a"), "not asked for"),
    ],
)
def test_values_of_sections(value: targets.Value, expected: float | str) -> None:
    line = Target("x", "≥ 1", value).line(FOUND)
    if isinstance(expected, str):
        assert line.value is None
        assert expected in line.note
        assert line.verdict == "not measured"
    else:
        assert line.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("bound", "value", "kept"),
    [
        ("≥ 0.9", 0.9, True),
        ("≥ 0.9", 0.89, False),
        ("≤ 1/3", 0.33, True),
        ("≤ 1/3", 0.34, False),
        ("< 1", 1.0, False),
        ("≤ 8.5", 8.4, True),
    ],
)
def test_bounds(bound: str, value: float, kept: bool) -> None:
    assert targets.holds(bound, value) is kept
    assert (Line("x", bound, value).verdict == "met") is kept


def test_a_line_without_a_value_says_why() -> None:
    lines = [Line("x", "≥ 1", None, "the peer does not install"), Line("y", "≥ 1", 2.0)]
    assert "| not measured: the peer does not install | not measured |" in report.target_table(lines)[2]
    assert targets.tally(lines) == "1 met, 0 missed, 1 not measured"


def test_cells_are_paths_or_functions_and_missing_ones_are_dashes() -> None:
    columns: dict[str, report.Cell] = {
        "name": "name",
        "MB": "size.bytes/1e6:.1f",
        "twice": lambda one: 2 * one["count"] if "count" in one else None,
        "reads": report.at_cell("reads", 0.5, ".1f"),
    }
    rows = [{"name": "a", "size": {"bytes": 25e5}, "count": 2, "points": CURVE}, {"points": []}]
    table = report.Table("Sizes", columns, rows, "A note.").markdown()
    assert table[4:] == ["| a | 2.5 | 4 | 6.0* |", "| – | – | – | – |", "", "A note."]


def test_a_color_is_one_system_s_everywhere() -> None:
    systems = [color for color, _ in plots.STYLES.values()]
    assert len(set(systems)) == len(systems)
    assert plots.SHADES[0] == plots.STYLES["velo"][0]
    others = (*plots.SHADES[1:], *plots.MOMENTS, plots.PALE, plots.ASKED, plots.GRID)
    assert len(set(others)) == len(others)
    assert not set(others) & set(systems)
    named = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "bench").rglob("*.py"))
        if path != Path(plots.__file__) and re.search(r"""["']#[0-9a-fA-F]{6}["']""", path.read_text())
    ]
    assert named == []


def test_a_label_has_the_color_of_the_system_it_begins_with() -> None:
    labels = ["velo, recall 0.9", "velo, filtering late", "hnswlib, over-fetching", "rows", "_pale"]
    styles = plots.styled(labels)
    assert styles["hnswlib, over-fetching"].color == plots.STYLES["hnswlib"][0]
    assert styles["_pale"].color == plots.PALE
    mine = [styles[label] for label in labels if not label.startswith(("hnswlib", "_"))]
    assert len(set(mine)) == 3
    assert {style.color for style in mine} <= set(plots.SHADES)
    assert len(set(plots.styled([str(number) for number in range(16)]).values())) == 16
