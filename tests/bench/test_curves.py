"""Arithmetic of the reports: values at a recall, ratios, targets, sections that fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.commands import ladder, report, report_lines
from bench.harness import curves, lines, sections
from bench.harness.curves import RECALL


def row(size: int, recall: float, **values: float) -> dict[str, object]:
    return {"list_size": size, RECALL: recall, "system": "velo", "label": "velo", **values}


CURVE = [row(64, 0.96, reads=12, qps=500), row(16, 0.80, reads=6, qps=2000), row(32, 0.92, reads=8, qps=1000)]


def test_costs_are_interpolated_linearly_and_rates_by_their_inverse() -> None:
    reads = curves.at_recall(CURVE, "reads", 0.95)
    assert reads is not None
    assert reads.value == pytest.approx(8 + 0.75 * 4)
    assert reads.exact
    assert reads.how == "between list 32 and list 64"
    qps = curves.at_recall(CURVE, "qps", 0.94)
    assert qps is not None
    assert 1 / qps.value == pytest.approx((1 / 1000 + 1 / 500) / 2)


def test_a_recall_that_a_setting_hits_exactly_is_that_setting() -> None:
    at = curves.at_recall(CURVE, "reads", 0.92)
    assert at is not None
    assert at.value == 8


def test_beyond_its_ends_a_curve_says_so() -> None:
    assert curves.at_recall(CURVE, "reads", 0.97) is None
    assert "0.9600" in curves.why_missing(CURVE, 0.97)
    first = curves.at_recall(CURVE, "reads", 0.5)
    assert first is not None
    assert (first.value, first.exact) == (6, False)
    assert curves.at_recall(CURVE, "rounds", 0.9) is None
    assert curves.at_recall([], "reads", 0.9) is None


def test_a_dip_in_recall_takes_the_first_crossing() -> None:
    dipping = [row(10, 0.90, reads=1), row(20, 0.96, reads=3), row(30, 0.94, reads=5), row(40, 0.97, reads=7)]
    at = curves.at_recall(dipping, "reads", 0.93)
    assert at is not None
    assert at.value == pytest.approx(2)


def test_ratios_compare_both_curves_at_the_recall() -> None:
    twice = [{**each, "reads": 2 * float(str(each["reads"]))} for each in CURVE]
    at = curves.ratio(twice, CURVE, "reads", 0.95)
    assert at is not None
    assert at.value == pytest.approx(2)
    assert curves.ratio(CURVE, CURVE, "reads", 0.99) is None


@pytest.mark.parametrize(
    ("target", "value", "kept"),
    [
        ("≥ 0.9", 0.9, True),
        ("≥ 0.9", 0.89, False),
        ("≤ 1/3", 0.33, True),
        ("≤ 1/3", 0.34, False),
        ("< 1", 1.0, False),
        ("≤ 8.5", 8.4, True),
    ],
)
def test_targets(target: str, value: float, kept: bool) -> None:
    assert lines.holds(target, value) is kept
    assert (lines.Line("x", target, value).verdict == "met") is kept


def test_a_line_without_a_value_says_why() -> None:
    line = lines.Line("x", "≥ 1", None, "the peer does not install")
    assert line.verdict == "not measured"
    assert "does not install" in lines.table([line])[2]
    assert lines.tally([line, lines.Line("y", "≥ 1", 2.0)]) == "1 met, 0 missed, 1 not measured"


def context(tmp_path: Path) -> sections.Context:
    return sections.Context(str(tmp_path), str(tmp_path), None, 10, 5, 2, {"budgets": ["20%"], "peers": []})


def test_every_line_of_the_table_renders_from_nothing_and_from_full_curves(tmp_path: Path) -> None:
    empty = report_lines.lines({}, context(tmp_path), 1000)
    assert all(line.value is None for line in empty)
    full = [
        row(
            size,
            recall,
            reads=reads,
            rounds=1.5,
            qps=1000.0 / size,
            latency_mean_us=10.0 * size,
            latency_p99_us=20.0 * size,
            cpu_us_per_query=100.0,
            build_s=10.0,
            build_cpu_s=10.0,
            build_peak_bytes=(64 << 20) + 500.0,
            build_load=1.0,
            disk_bytes=100.0,
            resident_growth_bytes=1e6 * size,
            load=0.5,
            n=1000.0,
        )
        | {"version": "1", "build": {}}
        for size, recall, reads in ((10, 0.9, 5.0), (20, 0.96, 9.0), (40, 0.98, 11.0), (80, 0.996, 14.0))
    ]
    curve = {"result": {"rows": full, "n": 100}}
    found: dict[str, sections.Results] = {
        name: {"section": name, **curve}
        for name in (
            *(f"velo{share}" for share in (15, 20, 25, 30, 45)),
            *("peer-hnswlib", "peer-diskannpy", "tmpfs", "growth", "bounded_build"),
        )
    }
    found["text"] = {"section": "text", "result": {"rows": full, "hnswlib": full}}
    found["disk"] = {"section": "disk", "result": {"off": full, "on": full}}
    found["stream"] = {"section": "stream", "result": {"with": full, "without": full}}
    found["loop"] = {"section": "loop", "result": {"reads_per_s": 1e5, "how": "a loop"}}
    found["used"] = {"section": "used", "result": {"share": 0.2}}
    found["pages"] = {"section": "pages", "result": {"mean": 6.5}}
    found["disk_ratio"] = {
        "section": "disk_ratio",
        "result": {"eight": {"ratio": 0.4}, "four": {"ratio": 0.2}},
    }
    found["scaling"] = {
        "section": "scaling",
        "result": {"one": 10.0, "two": 19.0, "batch": 20.0, "many": 10.0, "list_size": 64},
    }
    table = report_lines.lines(found, context(tmp_path), 1000)
    assert len(table) == len(empty)
    by_name = {line.what: line for line in table}
    assert [line.what for line in table if line.value is None] == []
    assert by_name["reads at 0.95, 20 %"].value == pytest.approx(5 + 4 * 5 / 6)
    assert by_name["build's peak memory ÷ float32"].value == pytest.approx(0.5)
    assert by_name["QPS on two threads ÷ on one"].verdict == "met"
    assert by_name["one query from each of 64 threads ÷ one batch"].verdict == "**missed**"
    head = {
        "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "k", "device": "d", "python": "3"},
        "dataset": "made",
        "n": 1000,
        "dim": 4,
        "query_count": 10,
        "threads": 2,
    }
    pictures = report.draw(found, tmp_path, "made") if report.plots.available() else []
    text = report.markdown("made", head, table, found, pictures)
    assert "one query from each of 64 threads" in text
    for file, _ in pictures:
        assert (tmp_path / file).stat().st_size > 1000


def test_the_ladder_compares_each_step_with_the_last_that_was_measured(tmp_path: Path) -> None:
    names = [step.name for step in ladder.steps()]
    values = {"qps": 100.0, "reads": 40.0, "latency_mean_us": 8.0, "cpu_us_per_query": 1.0}
    better = {"qps": 300.0, "reads": 10.0, "latency_mean_us": 4.0, "cpu_us_per_query": 1.0}
    found: dict[str, sections.Results] = {
        names[0]: {"result": {"rows": [row(1, 0.9, **values), row(2, 0.96, **values)]}},
        names[1]: {"error": "stopped after 1 s"},
        names[2]: {"result": {"rows": [row(1, 0.9, **better), row(2, 0.96, **better)]}},
    }
    rungs = ladder.rungs(found)
    assert "qps_ratio" not in rungs[0]
    assert rungs[1]["error"] == "stopped after 1 s"
    assert rungs[2]["qps_ratio"] == pytest.approx(3)
    assert rungs[2]["reads_ratio"] == pytest.approx(0.25)
    machine = {"cpu": "c", "cores": 2, "memory_gib": 1, "kernel": "k", "device": "d", "python": "3"}
    head = {"machine": machine, "dataset": "made", "n": 9, "dim": 4, "budget": "20%", "bits": "4+4"}
    text = ladder.markdown("made", head, rungs, None)
    assert "stopped after 1 s" in text
    assert "3.00×" in text


def test_a_section_that_fails_or_lasts_too_long_leaves_its_reason(tmp_path: Path) -> None:
    asked = context(tmp_path)
    failed = sections.call("bench.no_such_module", "x", asked, 60, tmp_path / "a.log")
    assert "no_such_module" in failed["error"]
    slow = sections.call("bench.commands.report_sections", "velo20", asked, 0.05, tmp_path / "b.log")
    assert slow["error"] == "stopped after 0 s"


def test_the_reason_is_the_error_under_a_failed_runner() -> None:
    log = """RuntimeError: velo 20% failed (1); log ends:
Traceback (most recent call last):
velo.errors.BudgetTooSmallError: a build of these vectors takes 20 MB
/bench/peers/velo_runner.py: the build failed
"""
    assert sections.reason_in(log).startswith("velo.errors.BudgetTooSmallError")
    assert sections.reason_in("one\ntwo\n") == "two"
    assert sections.reason_in("") == ""


def test_sections_that_were_not_asked_for_are_taken_as_last_measured(tmp_path: Path) -> None:
    def never(_: sections.Context) -> sections.Results:
        raise AssertionError

    named = {name: sections.Section(name, never, 1) for name in ("old", "new")}
    (tmp_path / "old.json").write_text(json.dumps({"section": "old", "result": {"x": 1}}))
    found = sections.run("bench.commands.report_sections", named, context(tmp_path), folder=tmp_path, only=[])
    assert found["old"]["result"] == {"x": 1}
    assert found["new"]["error"] == "not asked for"
